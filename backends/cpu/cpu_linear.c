/* cpu_linear.c - products of a few rows with a weight: the driver, which has the device's kernels multiply (cpu_isa).
 *
 *   t = W x (+ bias);  glu: t = act(t_gate) * t_up, else t = act(t);  y = scale t, or y += scale t
 *
 * A task is two panels, 64 outputs (with glu: a gate panel and its up panel), over all rows: a weight is read from
 * memory once. Every instruction set has its own product function; the order of summation is that of cpu.h. */
#include "backends/cpu/cpu.h"

typedef struct linear_job {
    const spec_device *dev;
    const spec_linear_args *a;
    cpu_product_fn *product;
    spec_dtype x_type; /* what the product reads */
    int32_t n_row, n_task;
    int32_t first;     /* row */
    spec_view x;       /* the operation's, or its copy in x_type */
    cpu_blocks_fn *blocks; /* instead of product; else NULL */
    cpu_blocks_x of_blocks;
} linear_job;

enum {
    X_ROWS = 16, /* rows converted at a time */
    TURNS = 3    /* of a thread, at least, for two tasks at once */
};

/* Does the product read inputs up to k_end where they are? */
static bool in_place(const linear_job *job, int32_t k_end)
{
    return job->x.dtype == job->x_type && k_end <= job->a->n_in;
}

/* Rows [r0, r0 + n) of x, inputs [k0, k0 + n_k), as the product reads them; up to X_ROWS unless in place. */
static const void *x_block(const linear_job *job, float *buf, size_t *ldx, int32_t r0, int32_t n, int32_t k0,
                           int32_t n_k)
{
    if (in_place(job, k0 + n_k)) {
        *ldx = (size_t)job->x.ld;
        return cpu_at(&job->x, r0, k0);
    }
    *ldx = CPU_K_BLOCK;
    size_t valid = (size_t)cpu_min(n_k, job->a->n_in - k0);
    for (int32_t r = 0; r < n; r++) {
        const void *src = cpu_at(&job->x, r0 + r, k0);
        void *dst = cpu_item(buf, job->x_type, (size_t)r * CPU_K_BLOCK);
        if (job->x.dtype != job->x_type) {
            job->dev->loops->load(dst, src, job->x.dtype, valid);
        } else {
            memcpy(dst, src, valid * speci_dtype_bytes(job->x_type));
        }
        memset(cpu_item(dst, job->x_type, valid), 0, ((size_t)n_k - valid) * speci_dtype_bytes(job->x_type));
    }
    return buf;
}

/* Of n_panel panels' block of K, inputs [k, k + n_k), for rows first .. */
static void product_block(const linear_job *job, cpu_product_fn *multiply, float *t, const uint8_t *panel, size_t panel_bytes,
                          int32_t n_panel, const uint8_t *next, int32_t first, int32_t n_row, int32_t k, int32_t n_k)
{
    float buf[X_ROWS * CPU_K_BLOCK];
    for (int32_t r = 0, n; r < n_row; r += n) {
        size_t ldx;
        n = in_place(job, k + n_k) ? n_row : cpu_min(X_ROWS, n_row - r);
        const void *x = x_block(job, buf, &ldx, first + r, n, k, n_k);
        multiply(t + r * CPU_TASK_OUT, panel, panel_bytes, n_panel, next, x, ldx, n, n_k, k > 0);
    }
}

/* The same where panels' blocks become float32 first. */
static void product_unpacked(const linear_job *job, cpu_product_fn *multiply, float *t, const uint8_t *panel, int32_t n_panel,
                             const uint8_t *next, int32_t first, int32_t n_row, int32_t k, int32_t n_k)
{
    const spec_weight *w = job->a->w;
    float tile[CPU_TASK_PANELS][CPU_K_BLOCK * CPU_PANEL];
    for (int32_t p = 0; p < n_panel; p++)
        job->dev->loops->unpack(tile[p], CPU_PANEL, SPEC_DTYPE_F32, w->format->form, panel + (size_t)p * w->panel_bytes, n_k);
    product_block(job, multiply, t, (const uint8_t *)tile, sizeof tile[0], n_panel, next, first, n_row, k, n_k);
}

/* The same of few rows, by instruction sets that need no memory for the values. */
static void product_few_unpacked(const linear_job *job, float *t, const uint8_t *panel, int32_t n_panel, int32_t first, int32_t n_row,
                                 int32_t k, int32_t n_k)
{
    const spec_weight *w = job->a->w;
    float buf[CPU_FEW * CPU_K_BLOCK];
    size_t ldx;
    const void *x = x_block(job, buf, &ldx, first, n_row, k, n_k);
    job->dev->isa->values_few(t, w->format->form, panel, w->panel_bytes, n_panel, x, ldx, n_row, n_k, k > 0);
}

/* t [n_row][64] = the outputs of n_panel panels from the task's first on, for rows first .. */
static void product_rows(const linear_job *job, cpu_product_fn *multiply, float *t, int32_t task, int32_t n_panel, int32_t first,
                         int32_t n_row)
{
    const spec_weight *w = job->a->w;
    const uint8_t *const first_panel = w->data + (size_t)task * CPU_TASK_PANELS * w->panel_bytes;
    if (job->blocks) {
        const cpu_blocks_x *const all = &job->of_blocks;
        const size_t n_group = (size_t)(w->n_k / SPEC_SMALL_BLOCK);
        const cpu_blocks_x x = { cpu_item(all->x, job->x_type, (size_t)first * all->ldx), all->ldx,
                                 all->sum ? all->sum + (size_t)first * n_group : NULL };
        job->blocks(t, w->format->form, first_panel, w->panel_bytes, n_panel, &x, n_row, w->n_k);
        return;
    }
    const bool few = w->format->form && n_row <= CPU_FEW && job->dev->isa->values_few;
    for (int32_t k = 0; k < w->n_k; k += CPU_K_BLOCK) {
        const int32_t n_k = cpu_min(CPU_K_BLOCK, w->n_k - k);
        const bool last = k + n_k == w->n_k;
        const uint8_t *panel = first_panel + speci_cpu_weight_offset(w, k);
        const uint8_t *next = first_panel + (last ? (size_t)n_panel * w->panel_bytes : speci_cpu_weight_offset(w, k + n_k));
        if (few) product_few_unpacked(job, t, panel, n_panel, first, n_row, k, n_k);
        else if (w->format->form) product_unpacked(job, multiply, t, panel, n_panel, next, first, n_row, k, n_k);
        else product_block(job, multiply, t, panel, w->panel_bytes, n_panel, next, first, n_row, k, n_k);
    }
}

/* The i-th of n pieces of work to be taken. Threads take them in turn, so that each goes along a run of neighbours, whose
 * weights follow each other in memory. */
static int32_t piece_of(const linear_job *job, int32_t i, int32_t n)
{
    const int32_t n_run = job->dev->host->n_threads, run = i % n_run;
    return run * (n / n_run) + cpu_min(run, n % n_run) + i / n_run;
}

static void do_task(const linear_job *job, int32_t task)
{
    const int32_t n_panel = cpu_min(CPU_TASK_PANELS, job->a->w->n_panel - task * CPU_TASK_PANELS);
    float t[CPU_ROW_BLOCK * CPU_TASK_OUT];
    for (int32_t r = 0; r < job->n_row; r += CPU_ROW_BLOCK) {
        const cpu_isa *isa = job->dev->isa;
        int32_t n = cpu_min(CPU_ROW_BLOCK, job->n_row - r);
        if (isa->enter) isa->enter(job->a->w, n);
        product_rows(job, job->product, t, task, n_panel, r, n);
        if (isa->leave) isa->leave();
        speci_cpu_linear_store(job->dev, job->a, t, task, job->first + r, n);
    }
}

static void linear_task(void *arg, int32_t i)
{
    const linear_job *job = arg;
    do_task(job, piece_of(job, i, job->n_task));
}

/* Two tasks of few rows; the last ones, which have fewer panels, one after the other. */
static void linear_two_tasks(void *arg, int32_t i)
{
    const linear_job *job = arg;
    const int32_t task = 2 * piece_of(job, i, cpu_parts(job->n_task, 2));
    if ((task + 2) * CPU_TASK_PANELS > job->a->w->n_panel) {
        for (int32_t k = task; k < job->n_task; k++) do_task(job, k);
        return;
    }
    float t[2 * CPU_FEW * CPU_TASK_OUT];
    product_rows(job, job->dev->isa->pairs_two, t, task, 2 * CPU_TASK_PANELS, 0, job->n_row);
    for (int32_t k = 0; k < 2; k++)
        speci_cpu_linear_store(job->dev, job->a, t + k * job->n_row * CPU_TASK_OUT, task + k, 0, job->n_row);
}

spec_status speci_cpu_check_linear(spec_device *dev, const spec_op *op)
{
    const spec_linear_args *a = &op->u.linear;
    const spec_host *h = dev->host;
    const spec_weight *w = a->w;
    if (w->n_in != a->n_in || w->n_out != a->n_out || w->glu != a->glu)
        return h->fail(SPEC_E_INVALID, "linear: the weight is %d x %d (glu %d), the operation %d x %d (glu %d)",
                       w->n_out, w->n_in, w->glu, a->n_out, a->n_in, a->glu);
    if (a->x.dtype != w->compute)
        return h->fail(SPEC_E_INVALID, "linear: x is %s, the weight was made for %s", speci_dtype_name(a->x.dtype),
                       speci_dtype_name(w->compute));
    if (a->y.dtype != SPEC_DTYPE_F32 && a->y.dtype != w->compute)
        return h->fail(SPEC_E_INVALID, "linear: y is %s, expected f32 or %s", speci_dtype_name(a->y.dtype),
                       speci_dtype_name(w->compute));
    if (a->add && a->y.dtype != SPEC_DTYPE_F32)
        return h->fail(SPEC_E_INVALID, "linear: adding needs y in f32, not %s", speci_dtype_name(a->y.dtype));
    int32_t n_y = a->glu ? a->n_out / 2 : a->n_out;
    if (a->x.ld < a->n_in || a->y.ld < n_y)
        return h->fail(SPEC_E_INVALID, "linear: rows of x and y are %d and %d apart, need %d and %d", a->x.ld, a->y.ld,
                       a->n_in, n_y);
    if (a->act > SPEC_ACT_CAP) return h->fail(SPEC_E_UNSUPPORTED, "linear: activation %d", (int)a->act);
    if (a->act == SPEC_ACT_CAP && (!(a->scale > 0.0f) || a->glu || a->add || a->y.dtype != SPEC_DTYPE_F32))
        return h->fail(SPEC_E_INVALID, "linear: capped at %g, with glu %d, add %d, y %s", (double)a->scale, a->glu, a->add,
                       speci_dtype_name(a->y.dtype));
    return SPEC_OK;
}

/* How the weight is multiplied: sets the product and what it reads. */
static void choose_product(linear_job *job, const cpu_isa *isa, const spec_weight *w)
{
    const spec_dtype type = cpu_weight_type(w);
    job->x_type = SPEC_DTYPE_F32;
    job->product = isa->product[type] ? isa->product[type] : speci_cpu_isa_portable.product[type];
    if (w->pairs) {
        job->product = isa->bf16_pairs;
        job->x_type = isa->pairs_x;
    } else if (w->compute == SPEC_DTYPE_BF16 && isa->product_bf16[type]) {
        job->product = isa->product_bf16[type];
        job->x_type = SPEC_DTYPE_BF16;
    }
}

/* Blocks, in 16-bit compute types: as many rows at a time as the queue has room for. */
static spec_status linear_blocks(spec_queue *q, linear_job *job)
{
    const cpu_isa *isa = job->dev->isa;
    const bool bf16 = job->a->w->compute == SPEC_DTYPE_BF16 && isa->blocks_bf16;
    const int32_t n_row = job->n_row, most = speci_cpu_x_blocks_rows(q, job->a, !bf16);
    if (most < 1)
        return job->dev->host->fail(SPEC_E_INVALID, "linear: the queue was opened for products of fewer than %d inputs",
                                    job->a->n_in);
    job->blocks = bf16 ? isa->blocks_bf16 : isa->blocks ? isa->blocks : speci_cpu_isa_portable.blocks;
    job->x_type = bf16 ? SPEC_DTYPE_BF16 : SPEC_DTYPE_F32;
    for (; job->first < n_row; job->first += job->n_row) {
        job->n_row = cpu_min(most, n_row - job->first);
        job->of_blocks = speci_cpu_x_blocks(q, job->a, job->first, job->n_row, !bf16);
        speci_cpu_parallel(job->dev->pool, job->n_task, linear_task, job);
    }
    return SPEC_OK;
}

spec_status speci_cpu_linear(spec_queue *q, const spec_op *op)
{
    const spec_linear_args *a = &op->u.linear;
    const spec_device *dev = q->dev;
    const spec_weight *w = a->w;
    CPU_TRY(speci_cpu_check_linear(q->dev, op));
    if (cpu_rows(q) == 0) return SPEC_OK;
#if defined(SPEC_HAVE_BLAS)
    if (speci_cpu_prefill_wanted(q, a)) return speci_cpu_prefill(q, a);
#endif
    linear_job job = { .dev = dev, .a = a, .n_row = cpu_rows(q), .n_task = cpu_parts(w->n_panel, CPU_TASK_PANELS), .x = a->x };
    if (w->format->form && w->compute != SPEC_DTYPE_F32) return linear_blocks(q, &job);
    choose_product(&job, dev->isa, w);
    /* Else each task, of 64 outputs, does it again; one row is not worth the room in the caches. */
    if (job.x_type == SPEC_DTYPE_F32 && job.n_row > 1 && job.n_row <= CPU_ROW_BLOCK && speci_cpu_x_has_room(q, a))
        job.x = speci_cpu_x_f32(q, a);
    /* Where each thread still has several turns: the last ones end apart by one. */
    if (w->pairs && dev->isa->pairs_two && job.n_row <= CPU_FEW && job.n_task >= 2 * TURNS * dev->host->n_threads)
        speci_cpu_parallel(dev->pool, cpu_parts(job.n_task, 2), linear_two_tasks, &job);
    else speci_cpu_parallel(dev->pool, job.n_task, linear_task, &job);
    return SPEC_OK;
}
