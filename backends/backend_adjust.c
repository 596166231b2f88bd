/* backend_adjust.c - logits that a request changes, on the host: a row of it, and all of it for a backend that does not do it. */
#include <math.h>
#include <string.h>

#include "backends/backend.h"

static void edit(float *out, const float *logits, const spec_logit_edit *edits, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const spec_logit_edit *e = &edits[i];
        const float x = logits[e->token];
        out[e->token] = (x > 0 ? x / e->repeat : x * e->repeat) + e->add;
    }
}

void speci_adjust_row(const spec_adjust_args *a, const spec_adjust_row *row, const float *logits, float *out)
{
    memcpy(out, logits, (size_t)a->n_vocab * sizeof *out);
    edit(out, logits, a->host_edit + row->first_edit, row->n_edit);
    edit(out, logits, a->host_edit + row->first_own, row->n_own);
    if (row->mask < 0) return;
    const uint32_t *mask = a->host_mask + (size_t)row->mask * (size_t)a->n_word;
    for (int32_t i = 0; i < a->n_vocab; i++)
        if (!(mask[i / 32] >> (i % 32) & 1)) out[i] = -INFINITY;
}

static spec_status adjust_on_host(const spec_backend_ops *ops, spec_queue *q, const spec_adjust_args *a, float *x, float *y)
{
    const size_t bytes = (size_t)a->n_vocab * sizeof *x;
    for (int32_t i = 0; i < a->n_row; i++) {
        const spec_adjust_row *row = &a->host_row[i];
        SPEC_TRY(ops->download(q, x, a->logits + (size_t)row->src * (size_t)a->ld, bytes));
        SPEC_TRY(ops->sync(q));
        speci_adjust_row(a, row, x, y);
        SPEC_TRY(ops->upload(q, a->out + (size_t)row->dst * (size_t)a->ld, y, bytes));
    }
    return SPEC_OK;
}

spec_status speci_adjust(const spec_backend_ops *ops, spec_queue *q, const spec_adjust_args *a, const spec_allocator *allocator)
{
    if (ops->adjust) return ops->adjust(q, a);
    float *rows = speci_alloc(allocator, 2 * (size_t)a->n_vocab, sizeof *rows);
    if (!rows) return SPEC_E_NOMEM;
    const spec_status status = adjust_on_host(ops, q, a, rows, rows + a->n_vocab);
    speci_free(allocator, rows);
    return status;
}
