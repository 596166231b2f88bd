/* cpu_linear_rows.c - both ends of a product, whoever multiplies: x as float32 and sums of it, and the epilogue
 *   t = W x (+ bias);  glu: t = act(t_gate) * t_up, else t = act(t);  y = scale t, or y += scale t */
#include "backends/cpu/cpu.h"

/* --- x as f32, and sums of it --- */

enum { PREPARE_VALUES = 1 << 15 /* of a task: fewer take less time than to be handed over */ };

typedef struct prepare_job {
    const spec_queue *q;
    const spec_linear_args *a;
    int32_t first, n_row, rows; /* rows: of a task */
    float *x, *sum;             /* NULL: not wanted */
} prepare_job;

static void prepare_task(void *arg, int32_t task)
{
    const prepare_job *job = arg;
    const spec_linear_args *a = job->a;
    const cpu_loops *loops = job->q->dev->loops;
    const size_t n_in = (size_t)a->n_in;
    const int32_t end = cpu_min((task + 1) * job->rows, job->n_row);
    for (int32_t r = task * job->rows; r < end; r++) {
        const void *const from = cpu_at(&a->x, job->first + r, 0);
        if (job->x) loops->load(job->x + (size_t)r * n_in, from, a->x.dtype, n_in);
        if (job->sum) loops->group_sums(job->sum + (size_t)r * (n_in / SPEC_SMALL_BLOCK), from, a->x.dtype, n_in);
    }
}

static void prepare(prepare_job *job)
{
    job->rows = cpu_max(PREPARE_VALUES / job->a->n_in, 1);
    speci_cpu_parallel(job->q->dev->pool, cpu_parts(job->n_row, job->rows), prepare_task, job);
}

bool speci_cpu_x_has_room(const spec_queue *q, const spec_linear_args *a)
{
    return (size_t)cpu_rows(q) * (size_t)a->n_in <= q->x_n;
}

spec_view speci_cpu_x_f32(spec_queue *q, const spec_linear_args *a)
{
    if (a->x.dtype == SPEC_DTYPE_F32) return a->x;
    prepare_job job = { .q = q, .a = a, .n_row = cpu_rows(q), .x = q->x };
    prepare(&job);
    return (spec_view){ q->x, SPEC_DTYPE_F32, a->n_in };
}

int32_t speci_cpu_x_blocks_rows(const spec_queue *q, const spec_linear_args *a, bool as_f32)
{
    const size_t n_sum = a->w->format->form->has_m ? (size_t)a->n_in / SPEC_SMALL_BLOCK : 0, n = (as_f32 ? (size_t)a->n_in : 0) + n_sum;
    return n == 0 || q->x_n / n > INT32_MAX ? INT32_MAX : (int32_t)(q->x_n / n);
}

cpu_blocks_x speci_cpu_x_blocks(spec_queue *q, const spec_linear_args *a, int32_t first, int32_t n_row, bool as_f32)
{
    const size_t n_x = as_f32 ? (size_t)n_row * (size_t)a->n_in : 0;
    prepare_job job = { .q = q, .a = a, .first = first, .n_row = n_row, .x = as_f32 ? q->x : NULL,
                        .sum = a->w->format->form->has_m ? q->x + n_x : NULL };
    if (job.x || job.sum) prepare(&job);
    if (as_f32) return (cpu_blocks_x){ q->x, (size_t)a->n_in, job.sum };
    return (cpu_blocks_x){ cpu_at(&a->x, first, 0), (size_t)a->x.ld, job.sum };
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
