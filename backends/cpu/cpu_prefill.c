/* cpu_prefill.c - products of prefill passes through OpenBLAS, where it is built in and faster than the own kernels:
 * that is without AVX-512, whose kernels are as fast or, in bf16, twice as fast.
 *
 * A task is 8 panels, 256 outputs. Its weights are converted to float32 in blocks of 256 inputs, and multiplied by one
 * single-threaded sgemm a block, x [rows][256] by W [256][256]. The passes have a fixed number of rows, so a row's bits do
 * not depend on how many of them are valid. */
#if defined(SPEC_HAVE_BLAS)
#include <cblas.h>

#include "backends/cpu/cpu.h"

enum { PANELS = 8, WIDTH = PANELS * CPU_PANEL, PREFILL_ROWS = CPU_PREFILL_CHUNK };

size_t speci_cpu_prefill_scratch(void)
{
    return ((size_t)CPU_K_BLOCK * WIDTH + (size_t)PREFILL_ROWS * WIDTH) * sizeof(float);
}

bool speci_cpu_prefill_wanted(const spec_queue *q, const spec_linear_args *a)
{
    return q->step->phase == SPEC_PHASE_PREFILL && q->dev->isa->blas_prefill && speci_cpu_x_has_room(q, a) &&
           q->slot_bytes >= speci_cpu_prefill_scratch();
}

typedef struct prefill_job {
    spec_queue *q;
    const spec_linear_args *a;
    spec_view x; /* f32 */
    int32_t n_row;
} prefill_job;

/* y [n_row][WIDTH] = x W^T for rows first .. and the panels of the task */
static void multiply(const prefill_job *job, float *y, float *w, int32_t first, int32_t n_row, int32_t panel,
                     int32_t n_panel)
{
    const spec_linear_args *a = job->a;
    for (int32_t k = 0; k < a->n_in; k += CPU_K_BLOCK) {
        int32_t n_k = cpu_min(CPU_K_BLOCK, a->n_in - k);
        for (int32_t p = 0; p < n_panel; p++)
            speci_cpu_weight_panel(a->w, job->q->dev->loops, panel + p, k, n_k, w + p * CPU_PANEL, WIDTH);
        const float *x = cpu_at(&job->x, first, k);
        cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n_row, n_panel * CPU_PANEL, n_k, 1.0f, x, job->x.ld, w,
                    WIDTH, k > 0 ? 1.0f : 0.0f, y, WIDTH);
    }
}

/* The epilogue takes pieces of two panels and at most CPU_ROW_BLOCK rows. */
static void store_rows(const prefill_job *job, const float *y, int32_t first, int32_t n_row, int32_t panel,
                       int32_t n_panel)
{
    float t[CPU_ROW_BLOCK * CPU_TASK_OUT];
    for (int32_t p = 0; p < n_panel; p += CPU_TASK_PANELS) {
        size_t columns = (size_t)cpu_min(CPU_TASK_PANELS, n_panel - p) * CPU_PANEL;
        for (int32_t r = 0; r < n_row; r += CPU_ROW_BLOCK) {
            int32_t n = cpu_min(CPU_ROW_BLOCK, n_row - r);
            for (int32_t i = 0; i < n; i++)
                memcpy(t + i * CPU_TASK_OUT, y + (size_t)(r + i) * WIDTH + p * CPU_PANEL, columns * sizeof *t);
            speci_cpu_linear_store(job->q->dev, job->a, t, (panel + p) / CPU_TASK_PANELS, first + r, n);
        }
    }
}

static void prefill_task(void *arg, int32_t task)
{
    const prefill_job *job = arg;
    int32_t panel = task * PANELS, n_panel = cpu_min(PANELS, job->a->w->n_panel - panel);
    uint8_t *slot = speci_cpu_scratch_take(job->q);
    float *w = (float *)(void *)slot, *y = w + (size_t)CPU_K_BLOCK * WIDTH;
    for (int32_t r = 0; r < job->n_row; r += PREFILL_ROWS) {
        int32_t n = cpu_min(PREFILL_ROWS, job->n_row - r);
        multiply(job, y, w, r, n, panel, n_panel);
        store_rows(job, y, r, n, panel, n_panel);
    }
    speci_cpu_scratch_give(job->q, slot);
}

spec_status speci_cpu_prefill(spec_queue *q, const spec_linear_args *a)
{
    prefill_job job = { q, a, speci_cpu_x_f32(q, a), q->step->n_row_run };
    speci_cpu_parallel(q->dev->pool, cpu_parts(a->w->n_panel, PANELS), prefill_task, &job);
    return SPEC_OK;
}

/* The pool is ours: BLAS runs on the thread that calls it. Process-wide in OpenBLAS. */
void openblas_set_num_threads(int n);
void speci_cpu_prefill_open(void)
{
    openblas_set_num_threads(1);
}
#else
typedef int speci_cpu_prefill_is_empty;
#endif
