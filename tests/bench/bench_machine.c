/* bench_machine.c - what the machine can do at best: memory (measured when the backend is opened), products of many
 * rows, a call, a look from the host. */
#include <stdio.h>
#include <string.h>

#include "tests/bench/bench.h"

enum { RUNS = 8, CALLS = 256, DIM_HOST = 2048, DIM_DEVICE = 8192 };

typedef struct machine {
    bench *b;
    spec_queue *q;
    spec_weight *w;
    void *x, *y;
    spec_dtype dtype;
    int32_t rows, dim; /* of the product: as many rows as a prefill pass has */
    double ms[RUNS];
    double *tflops; /* where keep_rate puts it */
} machine;

static spec_status emit(machine *t, const char *what, const char *unit, double per_run)
{
    json_t *r = bench_record(t->b, "machine");
    bench_text(r, "what", what);
    bench_count(r, "nodes", 1);
    bench_text(r, "tree", "none");
    bench_times(r, t->ms, RUNS);
    if (unit) bench_number(r, unit, per_run / (t->ms[0] / 1e3)); /* the best run: it is a bound */
    return bench_emit(t->b, r, 0);
}

/* --- products --- */

static size_t row_bytes(const machine *t)
{
    return (size_t)t->rows * (size_t)t->dim * sizeof(float);
}

static spec_op product(const machine *t)
{
    return (spec_op){ .kind = SPEC_OP_LINEAR,
                      .u.linear = { .w = t->w, .n_in = t->dim, .n_out = t->dim, .scale = 1,
                                    .x = { .data = t->x, .dtype = t->dtype, .ld = t->dim },
                                    .y = { .data = t->y, .dtype = SPEC_DTYPE_F32, .ld = t->dim } } };
}

static spec_status open_weight(machine *t)
{
    const spec_backend *be = t->b->be;
    const size_t n = (size_t)t->dim * (size_t)t->dim, size = t->dtype == SPEC_DTYPE_F32 ? 4 : 2;
    uint16_t *data = speci_alloc(NULL, n, size);
    if (!data) return SPEC_E_NOMEM;
    for (size_t i = 0; i < n * size / 2; i++) data[i] = (uint16_t)(0x3c00u + i % 97); /* about 0.01 */
    const spec_weight_part part = { data, t->dim };
    const spec_status status =
        be->ops->weight_open(be->dev, &t->w, &(spec_weight_desc){ .n_out = t->dim, .n_in = t->dim,
                                                                  .dtype = t->dtype, .compute = t->dtype,
                                                                  .parts = &part, .n_part = 1 });
    speci_free(NULL, data);
    return status;
}

static spec_status open_product(machine *t)
{
    const spec_backend *be = t->b->be;
    SPEC_TRY(be->ops->alloc(be->dev, &t->x, row_bytes(t)));
    SPEC_TRY(be->ops->alloc(be->dev, &t->y, row_bytes(t)));
    SPEC_TRY(open_weight(t));
    const spec_op op = product(t);
    const spec_plan plan = { .ops = &op, .n_op = 1, .phase = SPEC_PHASE_PREFILL, .n_row_max = t->rows, .n_seq_max = 1,
                             .n_node_max = t->rows, .n_kv_max = SPEC_PAGE };
    SPEC_TRY(be->ops->queue_open(be->dev, &t->q, &plan, 1, 0));
    SPEC_TRY(be->ops->zero(t->q, &(spec_range){ t->x, row_bytes(t) }, 1));
    const spec_step_block block = { .bytes = (int32_t)sizeof block, .phase = SPEC_PHASE_PREFILL, .n_row = t->rows,
                                    .n_row_run = t->rows };
    return be->ops->step_bind(t->q, &block);
}

static double tflop(const machine *t) { return 2.0 * t->rows * t->dim * t->dim / 1e12; }

static spec_status products(machine *t)
{
    const spec_backend_ops *ops = t->b->be->ops;
    const spec_op op = product(t);
    for (int32_t i = -1; i < RUNS; i++) {
        SPEC_TRY(ops->sync(t->q));
        const double start = speci_now_ms();
        SPEC_TRY(speci_op_run(ops, t->q, &op, NULL));
        SPEC_TRY(ops->sync(t->q));
        if (i >= 0) t->ms[i] = speci_now_ms() - start;
    }
    return SPEC_OK;
}

static spec_status matrix(machine *t)
{
    char what[64];
    SPEC_TRY(products(t));
    snprintf(what, sizeof what, "product %d x %d x %d", t->rows, t->dim, t->dim);
    return emit(t, what, "tflops", tflop(t));
}

/* --- calls and looks --- */

/* The smallest call: 256 bytes set to zero, many in a row before one look. */
static spec_status launches(machine *t)
{
    const spec_backend_ops *ops = t->b->be->ops;
    for (int32_t i = -1; i < RUNS; i++) {
        SPEC_TRY(ops->sync(t->q));
        const double start = speci_now_ms();
        for (int32_t k = 0; k < CALLS; k++) SPEC_TRY(ops->zero(t->q, &(spec_range){ t->y, 256 }, 1));
        SPEC_TRY(ops->sync(t->q));
        if (i >= 0) t->ms[i] = (speci_now_ms() - start) / CALLS;
    }
    return emit(t, "call", NULL, 0);
}

static spec_status looks(machine *t)
{
    const spec_backend_ops *ops = t->b->be->ops;
    int32_t seen[8];
    for (int32_t i = -1; i < RUNS; i++) {
        const double start = speci_now_ms();
        for (int32_t k = 0; k < CALLS; k++) {
            SPEC_TRY(ops->zero(t->q, &(spec_range){ t->y, 256 }, 1));
            SPEC_TRY(ops->download(t->q, seen, t->y, sizeof seen));
            SPEC_TRY(ops->sync(t->q));
        }
        if (i >= 0) t->ms[i] = (speci_now_ms() - start) / CALLS;
    }
    return emit(t, "call and look", NULL, 0);
}

/* Of a prefill pass. */
static int32_t most_rows(const spec_backend *be)
{
    int32_t i = 0;
    while (i + 1 < SPEC_PREFILL_SIZES && be->info.prefill_rows[i + 1] > 0) i++;
    return be->info.prefill_rows[i];
}

static spec_status with_machine(bench *b, spec_dtype dtype, spec_status (*what)(machine *t), double *tflops)
{
    const spec_backend *be = b->be;
    machine t = { .b = b, .dtype = dtype, .tflops = tflops, .rows = most_rows(be),
                  .dim = be->info.host_visible ? DIM_HOST : DIM_DEVICE };
    spec_status status = open_product(&t);
    if (status == SPEC_OK) status = what(&t);
    if (t.q) be->ops->queue_close(t.q);
    if (t.w) be->ops->weight_close(be->dev, t.w);
    if (t.x) be->ops->free(be->dev, t.x, row_bytes(&t));
    if (t.y) be->ops->free(be->dev, t.y, row_bytes(&t));
    return status;
}

static spec_status report_all(machine *t)
{
    SPEC_TRY(matrix(t));
    SPEC_TRY(launches(t));
    return looks(t);
}

spec_status bench_machine(bench *b)
{
    const bool f32 = b->o.dtype && strcmp(b->o.dtype, "f32") == 0;
    return with_machine(b, f32 ? SPEC_DTYPE_F32 : SPEC_DTYPE_BF16, report_all, NULL);
}

static spec_status keep_rate(machine *t)
{
    SPEC_TRY(products(t));
    bench_median(t->ms, RUNS); /* sorts */
    *t->tflops = tflop(t) / (t->ms[0] / 1e3);
    return SPEC_OK;
}

spec_status bench_matrix_tflops(double *out, bench *b, spec_dtype dtype)
{
    return with_machine(b, dtype, keep_rate, out);
}
