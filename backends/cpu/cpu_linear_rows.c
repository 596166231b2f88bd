/* cpu_linear_rows.c - both ends of a product, whoever multiplies: x as float32, and the epilogue
 *   t = W x (+ bias);  glu: t = act(t_gate) * t_up, else t = act(t);  y = scale t, or y += scale t */
#include "backends/cpu/cpu.h"

/* --- x as f32 --- */

enum { WIDEN_VALUES = 1 << 15 /* of a task: fewer take less time than to be handed over */ };

typedef struct widen_job {
    const spec_queue *q;
    const spec_linear_args *a;
    int32_t n_row, rows; /* rows: of a task */
} widen_job;

static void widen_task(void *arg, int32_t task)
{
    const widen_job *job = arg;
    const spec_linear_args *a = job->a;
    const int32_t end = cpu_min((task + 1) * job->rows, job->n_row);
    for (int32_t r = task * job->rows; r < end; r++)
        job->q->dev->loops->load(job->q->x + (size_t)r * (size_t)a->n_in, cpu_at(&a->x, r, 0), a->x.dtype, (size_t)a->n_in);
}

bool speci_cpu_x_has_room(const spec_queue *q, const spec_linear_args *a)
{
    return (size_t)cpu_rows(q) * (size_t)a->n_in <= q->x_n;
}

spec_view speci_cpu_x_f32(spec_queue *q, const spec_linear_args *a)
{
    if (a->x.dtype == SPEC_DTYPE_F32) return a->x;
    const int32_t rows = WIDEN_VALUES / a->n_in;
    widen_job job = { q, a, cpu_rows(q), rows > 0 ? rows : 1 };
    speci_cpu_parallel(q->dev->pool, cpu_parts(job.n_row, job.rows), widen_task, &job);
    return (spec_view){ q->x, SPEC_DTYPE_F32, a->n_in };
}

/* --- the epilogue --- */

/* Columns of one row: t [n] -> y. */
static void store_row(const spec_device *dev, const spec_linear_args *a, float *t, int32_t row, int32_t col, size_t n)
{
    const cpu_loops *loops = dev->loops;
    void *y = cpu_at(&a->y, row, col);
    if (a->scale != 1.0f) loops->scale(t, a->scale, n);
    if (!a->add) {
        loops->store(y, a->y.dtype, t, n);
        return;
    }
    float *sum = y;
    for (size_t i = 0; i < n; i++) sum[i] += t[i];
}

static void add_bias(float *t, const float *bias, size_t n)
{
    for (size_t i = 0; bias && i < n; i++) t[i] += bias[i];
}

void speci_cpu_linear_store(const spec_device *dev, const spec_linear_args *a, float *t, int32_t task,
                            int32_t first_row, int32_t n_row)
{
    const cpu_loops *loops = dev->loops;
    int32_t n_y = a->glu ? a->n_out / 2 : a->n_out, width = a->glu ? CPU_PANEL : CPU_TASK_OUT;
    int32_t col = task * width;
    size_t n = (size_t)cpu_min(width, n_y - col);
    for (int32_t r = 0; r < n_row; r++, t += CPU_TASK_OUT) {
        add_bias(t, a->bias ? a->bias + col : NULL, n);
        loops->activate(t, a->act, a->scale, n);
        if (a->glu) {
            float *up = t + CPU_PANEL;
            add_bias(up, a->bias ? a->bias + n_y + col : NULL, n);
            for (size_t i = 0; i < n; i++) t[i] *= up[i];
        }
        store_row(dev, a, t, first_row + r, col, n);
    }
}
