/* cpu_glu.c - y = act(gate) * up, rounded to y's type: by the loops of a product's epilogue (cpu_linear_rows.c), so with its bits. */
#include "backends/cpu/cpu.h"

spec_status speci_cpu_check_glu(spec_device *dev, const spec_op *op)
{
    const spec_glu_args *a = &op->u.glu;
    const spec_host *h = dev->host;
    if (a->dim < 1 || a->gate.ld < a->dim || a->up.ld < a->dim || a->y.ld < a->dim)
        return h->fail(SPEC_E_INVALID, "glu: %d columns of rows %d, %d and %d apart", a->dim, a->gate.ld, a->up.ld, a->y.ld);
    if (a->gate.dtype != SPEC_DTYPE_F32 || a->up.dtype != SPEC_DTYPE_F32 || !cpu_is_float(a->y.dtype))
        return h->fail(SPEC_E_UNSUPPORTED, "glu: gate is %s, up %s, y %s; need f32, f32 and a float type", speci_dtype_name(a->gate.dtype),
                       speci_dtype_name(a->up.dtype), speci_dtype_name(a->y.dtype));
    if (a->act > SPEC_ACT_RELU) return h->fail(SPEC_E_UNSUPPORTED, "glu: activation %d", (int)a->act);
    return SPEC_OK;
}

typedef struct glu_job {
    const spec_queue *q;
    const spec_glu_args *a;
} glu_job;

enum { GLU_COLUMNS = 1024 /* at once */ };

static void glu_row(void *arg, int32_t row)
{
    const glu_job *job = arg;
    const spec_glu_args *a = job->a;
    const cpu_loops *loops = job->q->dev->loops;
    float t[GLU_COLUMNS];
    for (int32_t col = 0; col < a->dim; col += GLU_COLUMNS) {
        const size_t n = (size_t)cpu_min(GLU_COLUMNS, a->dim - col);
        const float *up = cpu_at(&a->up, row, col);
        memcpy(t, cpu_at(&a->gate, row, col), n * sizeof *t);
        loops->activate(t, a->act, 1.0f, n);
        for (size_t i = 0; i < n; i++) t[i] *= up[i];
        loops->store(cpu_at(&a->y, row, col), a->y.dtype, t, n);
    }
}

spec_status speci_cpu_glu(spec_queue *q, const spec_op *op)
{
    CPU_TRY(speci_cpu_check_glu(q->dev, op));
    glu_job job = { q, &op->u.glu };
    speci_cpu_parallel(q->dev->pool, q->step->n_row_run, glu_row, &job);
    return SPEC_OK;
}
