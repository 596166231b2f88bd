/* cpu_rows.h - what operations over rows of a vocabulary share. */
#ifndef SPEC_CPU_ROWS_H
#define SPEC_CPU_ROWS_H

#include "backends/cpu/cpu.h"

/* A slot's scratch in a row operation: two rows of float and one of ids. */
typedef struct row_scratch {
    uint8_t *slot;
    float *a, *b;
    int32_t *ids;
} row_scratch;

/* For rows of n values; given back by its slot. */
row_scratch speci_cpu_row_scratch(spec_queue *q, size_t n);
/* Fails, naming the operation, where rows are no rows, or longer than the queue has scratch for. */
spec_status speci_cpu_check_rows(const spec_queue *q, const char *op, int32_t n_vocab, int32_t ld);

static inline const float *cpu_row_at(const float *base, int32_t row, int32_t ld)
{
    return base + (size_t)row * (size_t)ld;
}

#endif
