/* cpu_norm.c - RMS and layer norms, with a gate before or after (formulas: spec_backend.h, loops: cpu_loops.h). One row
 * is one task: the order of its sums never depends on the number of rows. */
#include "backends/cpu/cpu.h"

spec_status speci_cpu_check_norm(spec_device *dev, const spec_op *op)
{
    const spec_norm_args *a = &op->u.norm;
    const spec_host *h = dev->host;
    if (a->dim < 1 || a->n_group < 1 || a->dim % a->n_group != 0)
        return h->fail(SPEC_E_INVALID, "norm: %d groups of %d columns", a->n_group, a->dim);
    if (a->kind < SPEC_NORM_RMS || a->kind > SPEC_NORM_NONE)
        return h->fail(SPEC_E_UNSUPPORTED, "norm: kind %d", (int)a->kind);
    if ((a->kind == SPEC_NORM_LAYER || a->kind == SPEC_NORM_NONE) && (a->n_group != 1 || a->gate.data))
        return h->fail(SPEC_E_UNSUPPORTED, "norm: of kind %d with one group and no gate alone, not %d groups", (int)a->kind, a->n_group);
    if (a->kind == SPEC_NORM_RMS_ADD && (a->y.dtype != SPEC_DTYPE_F32 || a->y.data == a->x.data))
        return h->fail(SPEC_E_INVALID, "norm: what is added to is f32, and not x");
    if (a->x.dtype != SPEC_DTYPE_F32 || (a->gate.data && a->gate.dtype != SPEC_DTYPE_F32))
        return h->fail(SPEC_E_INVALID, "norm: x is %s, expected f32 (and the gate too)", speci_dtype_name(a->x.dtype));
    if (!cpu_is_float(a->y.dtype))
        return h->fail(SPEC_E_INVALID, "norm: y is %s", speci_dtype_name(a->y.dtype));
    if (a->x.ld < a->dim || a->y.ld < a->dim || (a->gate.data && a->gate.ld < a->dim))
        return h->fail(SPEC_E_INVALID, "norm: rows are %d and %d apart, need %d", a->x.ld, a->y.ld, a->dim);
    return SPEC_OK;
}

typedef struct norm_job {
    spec_queue *q;
    const spec_norm_args *a;
} norm_job;

static void norm_row(void *arg, int32_t row)
{
    const norm_job *job = arg;
    const spec_norm_args *a = job->a;
    const cpu_loops *loops = job->q->dev->loops;
    const float *gate = a->gate.data ? cpu_at(&a->gate, row, 0) : NULL;
    /* f32 results of separate rows need no scratch; y in place of x or gate is read element by element before */
    if (a->kind != SPEC_NORM_RMS_ADD && a->y.dtype == SPEC_DTYPE_F32 && a->y.data != a->gate.data) {
        loops->norm(a, cpu_at(&a->y, row, 0), cpu_at(&a->x, row, 0), gate);
        return;
    }
    float *y = (float *)(void *)speci_cpu_scratch_take(job->q);
    loops->norm(a, y, cpu_at(&a->x, row, 0), gate);
    if (a->kind == SPEC_NORM_RMS_ADD) {
        float *sum = cpu_at(&a->y, row, 0);
        for (int32_t i = 0; i < a->dim; i++) sum[i] += y[i];
    } else {
        loops->store(cpu_at(&a->y, row, 0), a->y.dtype, y, (size_t)a->dim);
    }
    speci_cpu_scratch_give(job->q, (uint8_t *)y);
}

spec_status speci_cpu_norm(spec_queue *q, const spec_op *op)
{
    const spec_norm_args *a = &op->u.norm;
    CPU_TRY(speci_cpu_check_norm(q->dev, op));
    if ((size_t)a->dim * sizeof(float) > q->slot_bytes)
        return q->dev->host->fail(SPEC_E_INVALID, "norm: %d columns, but the queue was opened for %zu", a->dim,
                                  q->slot_bytes / sizeof(float));
    norm_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, cpu_rows(q), norm_row, &job);
    return SPEC_OK;
}
