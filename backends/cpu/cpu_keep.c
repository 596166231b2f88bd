/* cpu_keep.c - y = x, rounded to y's type. */
#include "backends/cpu/cpu.h"

spec_status speci_cpu_check_keep(spec_device *dev, const spec_op *op)
{
    const spec_keep_args *a = &op->u.keep;
    const spec_host *h = dev->host;
    const spec_dtype x = a->x.dtype, y = a->y.dtype;
    if (a->dim < 1 || a->x.ld < a->dim || a->y.ld < a->dim)
        return h->fail(SPEC_E_INVALID, "keep: %d columns of rows %d and %d apart", a->dim, a->x.ld, a->y.ld);
    if (!cpu_is_float(x) || !cpu_is_float(y) || (x != y && x != SPEC_DTYPE_F32 && y != SPEC_DTYPE_F32))
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
    const cpu_loops *loops = job->q->dev->loops;
    const void *x = cpu_at(&a->x, row, 0);
    void *y = cpu_at(&a->y, row, 0);
    const size_t n = (size_t)a->dim;
    if (a->x.dtype == a->y.dtype) memcpy(y, x, n * cpu_dtype_size(a->x.dtype));
    else if (a->x.dtype == SPEC_DTYPE_F32) loops->store(y, a->y.dtype, x, n);
    else loops->load(y, x, a->x.dtype, n);
}

spec_status speci_cpu_keep(spec_queue *q, const spec_op *op)
{
    const spec_keep_args *a = &op->u.keep;
    CPU_TRY(speci_cpu_check_keep(q->dev, op));
    keep_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, q->step->n_row_run, keep_row, &job);
    return SPEC_OK;
}
