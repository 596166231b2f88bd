/* cpu_scan.c - selective scan over trees with activation replay in front: what is refused, and which form does it.
 *
 *   S(node) = exp(dt A) S(parent) + dt x B^T;   y = S C + D x;   out = z ? y silu(z) : y
 *
 * cpu_scan_recurrent.c has prefill and the recurrent form, cpu_scan_chunked.c the chunked one, cpu_scan_node.c what
 * both have. */
#include "backends/cpu/cpu_scan.h"

spec_status speci_cpu_check_scan(spec_device *dev, const spec_op *op)
{
    const spec_scan_args *a = &op->u.scan;
    const spec_host *h = dev->host;
    if (a->n_state < 1 || a->n_state > CPU_STATE_MAX)
        return h->fail(SPEC_E_UNSUPPORTED, "scan: state %d, supported are 1 to %d", a->n_state, CPU_STATE_MAX);
    if (a->n_head < 1 || a->head_dim < 1 || a->n_node < 1)
        return h->fail(SPEC_E_INVALID, "scan: %d heads of %d, %d nodes", a->n_head, a->head_dim, a->n_node);
    if (a->x_rep < 1 || a->b_rep < 1 || a->c_rep < 1 || a->n_head % a->x_rep || a->n_head % a->b_rep ||
        a->n_head % a->c_rep)
        return h->fail(SPEC_E_INVALID, "scan: %d heads do not share x, B, C by %d, %d, %d", a->n_head, a->x_rep,
                       a->b_rep, a->c_rep);
    if (!cpu_is_float(a->dtype) || !cpu_is_float(a->x.dtype) || !cpu_is_float(a->b.dtype) ||
        !cpu_is_float(a->c.dtype) || !cpu_is_float(a->dt.dtype) || !cpu_is_float(a->y.dtype) ||
        (a->z.data && !cpu_is_float(a->z.dtype)))
        return h->fail(SPEC_E_INVALID, "scan: x %s, B %s, C %s, dt %s, y %s, caches %s", speci_dtype_name(a->x.dtype),
                       speci_dtype_name(a->b.dtype), speci_dtype_name(a->c.dtype), speci_dtype_name(a->dt.dtype),
                       speci_dtype_name(a->y.dtype), speci_dtype_name(a->dtype));
    if (a->x.dtype != a->dtype || (a->b_in_conv && a->b.dtype != a->dtype))
        return h->fail(SPEC_E_INVALID, "scan: x is %s and B %s, but the convolution's output is %s",
                       speci_dtype_name(a->x.dtype), speci_dtype_name(a->b.dtype), speci_dtype_name(a->dtype));
    if (!a->b_in_conv && !a->cache_b) return h->fail(SPEC_E_INVALID, "scan: no cache for B");
    return a->chunk != 0 ? speci_cpu_scan_chunked_check(dev, a) : SPEC_OK;
}

size_t speci_cpu_scan_scratch(const spec_scan_args *a)
{
    if (a->n_state < 1 || a->head_dim < 1) return 0;
    return a->chunk != 0 ? speci_cpu_scan_chunked_scratch(a) : speci_cpu_scan_recurrent_scratch(a);
}

/* Nothing outside of caches and buffers is to be reached, and no saved state is to be read before it is written. */
static spec_status check_step(const scan_job *job, const spec_step_seq *s)
{
    const spec_host *h = job->q->dev->host;
    const int32_t n = s->n_fed + s->n_row;
    if (s->n_fed < 0 || s->n_row < 0 || n > job->a->n_node || s->n_replay > job->a->n_node)
        return h->fail(SPEC_E_INVALID, "scan: %d nodes fed, %d new, %d replayed; the caches hold %d", s->n_fed, s->n_row,
                       s->n_replay, job->a->n_node);
    if (s->n_advance < 0 || s->n_advance > s->n_row || (s->n_advance > 0 && s->n_fed > 0))
        return h->fail(SPEC_E_INVALID, "scan: %d nodes to advance by, of %d fed and %d new", s->n_advance, s->n_fed,
                       s->n_row);
    return job->a->chunk != 0 ? speci_cpu_scan_chunked_check_step(job, s) : speci_cpu_scan_recurrent_check_step(job, s);
}

spec_status speci_cpu_scan(spec_queue *q, const spec_op *op)
{
    const spec_scan_args *a = &op->u.scan;
    const spec_step_block *b = q->step;
    CPU_TRY(speci_cpu_check_scan(q->dev, op));
    const bool chunked = a->chunk != 0 && b->phase == SPEC_PHASE_DECODE;
    scan_job job = { .q = q, .a = a, .rows = speci_cpu_scan_recurrent_rows(a), .n_saved = spec_traversal_saved(a->n_node) };
    job.n_part = cpu_parts(a->n_head * a->head_dim, job.rows);
    if (chunked) speci_cpu_scan_chunked_cut(&job);
    if (b->phase == SPEC_PHASE_DECODE && speci_cpu_scan_scratch(a) > q->slot_bytes)
        return q->dev->host->fail(SPEC_E_INVALID, "scan: %zu bytes of scratch, the queue was opened for %zu",
                                  speci_cpu_scan_scratch(a), q->slot_bytes);
    for (int32_t i = 0; i < b->n_seq && b->phase == SPEC_PHASE_DECODE; i++)
        CPU_TRY(check_step(&job, spec_step_seqs(b) + i));
    speci_cpu_parallel(q->dev->pool, b->n_seq * job.n_part,
                       chunked ? speci_cpu_scan_chunked_task : speci_cpu_scan_recurrent_task, &job);
    return SPEC_OK;
}
