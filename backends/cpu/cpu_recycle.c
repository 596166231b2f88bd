/* cpu_recycle.c - rows that the nodes of a growing tree hand down to their children. */
#include "backends/cpu/cpu.h"

spec_status speci_cpu_check_recycle(spec_device *dev, const spec_op *op)
{
    const spec_recycle_args *a = &op->u.recycle;
    const spec_host *h = dev->host;
    if (a->dim < 1 || a->n_node < 1 || a->x.ld < a->dim || (!a->store && a->y.ld < a->dim))
        return h->fail(SPEC_E_INVALID, "recycle: %d columns of rows %d and %d apart, %d nodes", a->dim, a->x.ld, a->y.ld, a->n_node);
    const spec_dtype x = a->x.dtype, y = a->store ? SPEC_DTYPE_F32 : a->y.dtype;
    if (!cpu_converts(y, x))
        return h->fail(SPEC_E_UNSUPPORTED, "recycle: x is %s, y %s", speci_dtype_name(x), speci_dtype_name(y));
    return SPEC_OK;
}

typedef struct recycle_job {
    const spec_queue *q;
    const spec_recycle_args *a;
} recycle_job;

static void recycle_row(void *arg, int32_t row)
{
    const recycle_job *job = arg;
    const spec_recycle_args *a = job->a;
    const cpu_loops *loops = job->q->dev->loops;
    const spec_step_block *b = job->q->step;
    const spec_step_seq *s = spec_step_seqs(b) + spec_step_row_seq(b)[row];
    const size_t n = (size_t)a->dim;
    float *cache = a->cache + (size_t)s->slot * (size_t)a->n_node * n;
    const void *x = cpu_at(&a->x, row, 0);
    if (a->store)
        cpu_convert(loops, cache + (size_t)(s->n_fed + row - s->first_row) * n, SPEC_DTYPE_F32, x, a->x.dtype, n);
    else if (s->n_fed == 0)
        cpu_convert(loops, cpu_at(&a->y, row, 0), a->y.dtype, x, a->x.dtype, n);
    else
        cpu_convert(loops, cpu_at(&a->y, row, 0), a->y.dtype, cache + (size_t)spec_step_row_node(b, s, row)->parent * n, SPEC_DTYPE_F32, n);
}

spec_status speci_cpu_recycle(spec_queue *q, const spec_op *op)
{
    const spec_recycle_args *a = &op->u.recycle;
    CPU_TRY(speci_cpu_check_recycle(q->dev, op));
    recycle_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, q->step->n_row, recycle_row, &job);
    return SPEC_OK;
}
