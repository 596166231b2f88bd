/* backend_gather.c - logits under other numbers, and nodes that are fed by other tokens: a row on the host, and all of it for a backend
 * that does not do it. */
#include <math.h>

#include "backends/backend.h"

void speci_gather_row(const int32_t *column, int32_t n_out, const float *logits, float *out)
{
    for (int32_t c = 0; c < n_out; c++) out[c] = column[c] >= 0 ? logits[column[c]] : -INFINITY;
}

static spec_status gather_on_host(const spec_backend_ops *ops, spec_queue *q, const spec_gather_args *a, const int32_t *column,
                                  int32_t n_in, float *x, float *y)
{
    for (int32_t i = 0; i < a->n_row; i++) {
        SPEC_TRY(ops->download(q, x, a->logits + (size_t)a->host_src[i] * (size_t)a->ld, (size_t)n_in * sizeof *x));
        SPEC_TRY(ops->sync(q));
        speci_gather_row(column, a->n_out, x, y);
        SPEC_TRY(ops->upload(q, a->out + (size_t)i * (size_t)a->ld_out, y, (size_t)a->n_out * sizeof *y));
    }
    return SPEC_OK;
}

spec_status speci_gather(const spec_backend_ops *ops, spec_queue *q, const spec_gather_args *a, const int32_t *host_column,
                         int32_t n_in, const spec_allocator *allocator)
{
    if (ops->gather) return ops->gather(q, a);
    float *rows = speci_alloc(allocator, (size_t)n_in + (size_t)a->n_out, sizeof *rows);
    if (!rows) return SPEC_E_NOMEM;
    const spec_status status = gather_on_host(ops, q, a, host_column, n_in, rows, rows + n_in);
    speci_free(allocator, rows);
    return status;
}

/* The nodes that the expansion has listed to be fed, of one tree. */
static spec_status rename_fed(const spec_backend_ops *ops, spec_queue *q, const spec_expand_args *a, int32_t i,
                              const int32_t *feed, spec_step_node *nodes)
{
    const size_t bytes = (size_t)a->n_next * sizeof *nodes;
    spec_step_node *at = a->grow->feed + (size_t)a->host_slot[i] * (size_t)a->grow->cap_feed + a->host_feed_base[i];
    SPEC_TRY(ops->download(q, nodes, at, bytes));
    SPEC_TRY(ops->sync(q));
    for (int32_t k = 0; k < a->n_next; k++) nodes[k].token = feed[nodes[k].token] < 0 ? 0 : feed[nodes[k].token];
    return ops->upload(q, at, nodes, bytes);
}

spec_status speci_expand_fed(const spec_backend_ops *ops, spec_queue *q, const spec_expand_args *a, const int32_t *host_feed,
                             const spec_allocator *allocator)
{
    if (ops->gather) return ops->expand(q, a);
    spec_expand_args args = *a;
    args.feed_token = NULL;
    SPEC_TRY(ops->expand(q, &args));
    if (a->n_next == 0) return SPEC_OK;
    spec_step_node *nodes = speci_alloc(allocator, (size_t)a->n_next, sizeof *nodes);
    if (!nodes) return SPEC_E_NOMEM;
    spec_status status = SPEC_OK;
    for (int32_t i = 0; i < a->n && status == SPEC_OK; i++) status = rename_fed(ops, q, a, i, host_feed, nodes);
    speci_free(allocator, nodes);
    return status;
}
