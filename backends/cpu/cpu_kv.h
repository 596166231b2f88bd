/* cpu_kv.h - where a position's keys and values lie. */
#ifndef SPEC_CPU_KV_H
#define SPEC_CPU_KV_H

#include "backends/cpu/cpu.h"

enum { CPU_HEAD_MAX = 512 }; /* head_dim */

/* Vector [head_dim] of head `head` at slot `slot` of the sequence whose pages these are; base = kv->k or kv->v. */
static inline void *cpu_kv_at(const spec_kv *kv, void *base, const int32_t *pages, int32_t slot, int32_t head)
{
    size_t page = (size_t)pages[slot / SPEC_PAGE], in_page = (size_t)(slot % SPEC_PAGE);
    size_t item = ((page * (size_t)kv->n_kv_head + (size_t)head) * SPEC_PAGE + in_page) * (size_t)kv->head_dim;
    return (char *)base + item * speci_dtype_bytes(kv->dtype);
}

#endif
