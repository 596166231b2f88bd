/* cpu_prefill.c - products of prefill passes through OpenBLAS, where it is there and faster than the own kernels:
 * that is without AVX-512, whose kernels are as fast or, in bf16, twice as fast.
 *
 * A task is 8 panels, 256 outputs. Its weights are converted to float32 in blocks of 256 inputs, and multiplied by one
 * single-threaded sgemm a block, x [rows][256] by W [256][256]. The passes have a fixed number of rows, so a row's bits do
 * not depend on how many of them are valid.
 *
 * OpenBLAS starts threads when it is loaded, and has one number of threads for the whole process. So it is loaded when a
 * device opens whose kernels ask for it, not with the library; and the number is 1 only while products of ours run. */
#if defined(SPEC_HAVE_BLAS)
#include <dlfcn.h>
#include <pthread.h>

#include "backends/cpu/cpu.h"

enum { PANELS = 8, WIDTH = PANELS * CPU_PANEL, PREFILL_ROWS = CPU_PREFILL_CHUNK };

/* --- the library --- */

enum { ROW_MAJOR = 101, NO_TRANS = 111 }; /* CBLAS_ORDER, CBLAS_TRANSPOSE: the same in every CBLAS */

struct cpu_blas {
    void *lib;
    void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                  int ldb, float beta, float *c, int ldc);
    int (*get_threads)(void);
    void (*set_threads)(int n);
};

void speci_cpu_blas_close(spec_device *dev)
{
    if (!dev->blas) return;
    if (dev->blas->lib) (void)dlclose(dev->blas->lib);
    dev->host->free(dev->host, dev->blas);
    dev->blas = NULL;
}

/* Function pointers by way of memory: C has no cast from an object's. */
static bool find(void *lib, const char *name, void *function)
{
    void *found = dlsym(lib, name);
    memcpy(function, &found, sizeof found);
    return found != NULL;
}

void speci_cpu_blas_open(spec_device *dev)
{
    const spec_host *host = dev->host;
    cpu_blas *b = dev->isa->blas_prefill ? host->alloc(host, 1, sizeof *b) : NULL;
    if (!b) return;
    dev->blas = b;
    b->lib = dlopen("libopenblas.so.0", RTLD_NOW | RTLD_LOCAL);
    if (b->lib && find(b->lib, "cblas_sgemm", &b->sgemm) && find(b->lib, "openblas_get_num_threads", &b->get_threads) &&
        find(b->lib, "openblas_set_num_threads", &b->set_threads))
        return;
    host->log(host, SPEC_LOG_INFO, "cpu: no libopenblas.so.0; a prefill is slower without");
    speci_cpu_blas_close(dev);
}

/* --- its number of threads: 1 while any product of ours runs, since the pool is ours; then as it was --- */

static pthread_mutex_t threads_lock = PTHREAD_MUTEX_INITIALIZER;
static int n_product, threads_before;

static void one_thread_begin(const cpu_blas *b)
{
    pthread_mutex_lock(&threads_lock);
    if (n_product++ == 0) {
        threads_before = b->get_threads();
        if (threads_before != 1) b->set_threads(1);
    }
    pthread_mutex_unlock(&threads_lock);
}

static void one_thread_end(const cpu_blas *b)
{
    pthread_mutex_lock(&threads_lock);
    if (--n_product == 0 && threads_before != 1) b->set_threads(threads_before);
    pthread_mutex_unlock(&threads_lock);
}

/* --- products --- */

size_t speci_cpu_prefill_scratch(void)
{
    return ((size_t)CPU_K_BLOCK * WIDTH + (size_t)PREFILL_ROWS * WIDTH) * sizeof(float);
}

bool speci_cpu_prefill_wanted(const spec_queue *q, const spec_linear_args *a)
{
    return q->step->phase == SPEC_PHASE_PREFILL && q->dev->blas && speci_cpu_x_has_room(q, a) &&
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
        job->q->dev->blas->sgemm(ROW_MAJOR, NO_TRANS, NO_TRANS, n_row, n_panel * CPU_PANEL, n_k, 1.0f, x, job->x.ld, w, WIDTH,
                                 k > 0 ? 1.0f : 0.0f, y, WIDTH);
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
    one_thread_begin(q->dev->blas);
    speci_cpu_parallel(q->dev->pool, cpu_parts(a->w->n_panel, PANELS), prefill_task, &job);
    one_thread_end(q->dev->blas);
    return SPEC_OK;
}
#else
typedef int speci_cpu_prefill_is_empty;
#endif
