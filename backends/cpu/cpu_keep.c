/* cpu_keep.c - y = x, rounded to y's type. */
#include "backends/cpu/cpu.h"

spec_status speci_cpu_check_keep(spec_device *dev, const spec_op *op)
{
    const spec_keep_args *a = &op->u.keep;
    const spec_host *h = dev->host;
    const spec_dtype x = a->x.dtype, y = a->y.dtype;
    if (a->dim < 1 || a->x.ld < a->dim || a->y.ld < a->dim)
        return h->fail(SPEC_E_INVALID, "keep: %d columns of rows %d and %d apart", a->dim, a->x.ld, a->y.ld);
    if (!cpu_converts(y, x))
        return h->fail(SPEC_E_UNSUPPORTED, "keep: x is %s, y %s", speci_dtype_name(x), speci_dtype_name(y));
    return SPEC_OK;
}

typedef struct keep_job {
    const spec_queue *q;
    const spec_keep_args *a;
} keep_job;

static void keep_row(void *arg, int32_t row)
{
    const keep_job *job = arg;
    const spec_keep_args *a = job->a;
    cpu_convert(job->q->dev->loops, cpu_at(&a->y, row, 0), a->y.dtype, cpu_at(&a->x, row, 0), a->x.dtype, (size_t)a->dim);
}

spec_status speci_cpu_keep(spec_queue *q, const spec_op *op)
{
    const spec_keep_args *a = &op->u.keep;
    CPU_TRY(speci_cpu_check_keep(q->dev, op));
    keep_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, q->step->n_row_run, keep_row, &job);
    return SPEC_OK;
}
