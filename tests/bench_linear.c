/* bench_linear.c - products of 1 to 256 rows with a weight: time, bytes per second, and the ratio to one row.
 *
 *     bench_linear [backend] [n_in] [n_out] [threads]        cpu 2560 10240 1
 *
 * A weight is larger than the caches when it is read again: several copies are walked in turn. The shortest of the repeats: other
 * programs only ever add. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/backend_pack.h"

enum { COPIES = 4, REPEATS = 25, ROWS_MAX = 256 };

typedef struct bench {
    const spec_backend_ops *ops;
    spec_device *dev;
    spec_queue *q;
    spec_weight *w[COPIES];
    void *x, *y;
    int32_t n_in, n_out;
    spec_dtype weight, compute;
} bench;

static double time_rows(bench *b, int32_t rows, int32_t phase)
{
    double least = 1e9;
    spec_step_block block;
    memset(&block, 0, sizeof block);
    block.bytes = (int32_t)sizeof block;
    block.phase = phase;
    block.n_row = block.n_row_run = rows;
    b->ops->step_bind(b->q, &block);
    for (int i = 0; i < REPEATS; i++) {
        const spec_op op = { .kind = SPEC_OP_LINEAR,
                             .u.linear = { .w = b->w[i % COPIES], .n_in = b->n_in, .n_out = b->n_out, .scale = 1.0f,
                                           .x = { b->x, b->compute, b->n_in }, .y = { b->y, SPEC_DTYPE_F32, b->n_out } } };
        double start = speci_now_ms();
        if (speci_op_run(b->ops, b->q, &op, NULL) != SPEC_OK || b->ops->sync(b->q) != SPEC_OK) return -1.0;
        const double ms = speci_now_ms() - start;
        least = ms < least ? ms : least;
    }
    return least;
}

/* How blocks of a type are made, or NULL. */
static const speci_packing *packing_of(spec_dtype type)
{
    switch (type) {
    case SPEC_DTYPE_Q8_0: return &speci_pack_q8_0;
    case SPEC_DTYPE_Q4_0: return &speci_pack_q4_0;
    case SPEC_DTYPE_Q4_1: return &speci_pack_q4_1;
    case SPEC_DTYPE_Q5_1: return &speci_pack_q5_1;
    case SPEC_DTYPE_Q4_K: return &speci_pack_q4_k;
    case SPEC_DTYPE_Q6_K: return &speci_pack_q6_k;
    default: return NULL;
    }
}

static size_t weight_bytes(const bench *b)
{
    const size_t n = (size_t)b->n_in * (size_t)b->n_out;
    const speci_packing *packing = packing_of(b->weight);
    if (packing) return n / packing->n_value * packing->bytes;
    return n * (b->weight == SPEC_DTYPE_F32 ? 4 : 2);
}

/* Blocks: one of values from -1 to 1, again and again. */
static void fill(const bench *b, uint16_t *matrix, size_t bytes)
{
    const speci_packing *packing = packing_of(b->weight);
    for (size_t i = 0; i < bytes / 2; i++) matrix[i] = (uint16_t)(0x3c00u + i % 97);
    if (!packing) return;
    float x[SPEC_K_BLOCK];
    for (uint32_t i = 0; i < packing->n_value; i++) x[i] = (float)(i * 37 % 97) / 48.0f - 1.0f;
    speci_pack(packing, matrix, x, 1);
    for (size_t i = packing->bytes; i < bytes; i += packing->bytes) memcpy((uint8_t *)matrix + i, matrix, packing->bytes);
}

static spec_status setup(bench *b)
{
    size_t bytes = weight_bytes(b);
    void *matrix = calloc(bytes, 1);
    if (!matrix) return SPEC_E_NOMEM;
    fill(b, matrix, bytes);
    spec_weight_part part = { matrix, b->n_out };
    spec_weight_desc desc = { b->n_out, b->n_in, b->weight, b->compute, 0, 0, &part, 1 };
    spec_status status = SPEC_OK;
    for (int i = 0; i < COPIES && status == SPEC_OK; i++) status = b->ops->weight_open(b->dev, &b->w[i], &desc);
    free(matrix);
    SPEC_TRY(status);
    spec_op op = { .kind = SPEC_OP_LINEAR,
                   .u = { .linear = { .w = b->w[0], .n_in = b->n_in, .n_out = b->n_out, .x = { .dtype = b->compute } } } };
    spec_plan plan = { &op, 1, SPEC_PHASE_PREFILL, ROWS_MAX, 1, ROWS_MAX, 64 };
    SPEC_TRY(b->ops->queue_open(b->dev, &b->q, &plan, 1, 64));
    SPEC_TRY(b->ops->alloc(b->dev, &b->x, (size_t)ROWS_MAX * (size_t)b->n_in * 4));
    SPEC_TRY(b->ops->alloc(b->dev, &b->y, (size_t)ROWS_MAX * (size_t)b->n_out * 4));
    return b->ops->zero(b->q, &(spec_range){ b->x, (size_t)ROWS_MAX * (size_t)b->n_in * 4 }, 1);
}

static void teardown(bench *b)
{
    for (int i = 0; i < COPIES; i++)
        if (b->w[i]) b->ops->weight_close(b->dev, b->w[i]);
    if (b->x) b->ops->free(b->dev, b->x, (size_t)ROWS_MAX * (size_t)b->n_in * 4);
    if (b->y) b->ops->free(b->dev, b->y, (size_t)ROWS_MAX * (size_t)b->n_out * 4);
    if (b->q) b->ops->queue_close(b->q);
}

static void run(const spec_backend *be, int32_t n_in, int32_t n_out, spec_dtype weight, spec_dtype compute)
{
    static const int32_t rows[] = { 1, 2, 4, 8, 16, 32, 64, ROWS_MAX, ROWS_MAX }; /* the last one as a prefill pass */
    enum { N = sizeof rows / sizeof rows[0] };
    bench b = { .ops = be->ops, .dev = be->dev, .n_in = n_in, .n_out = n_out, .weight = weight, .compute = compute };
    double one = 0.0, bytes = (double)weight_bytes(&b);
    if (setup(&b) == SPEC_OK) {
        for (int i = 0; i < N; i++) {
            int32_t phase = i == N - 1 ? SPEC_PHASE_PREFILL : SPEC_PHASE_DECODE;
            double ms = time_rows(&b, rows[i], phase);
            if (i == 0) one = ms;
            printf("%s,%s,%s,%d,%d,%s,%d,%.3f,%.1f,%.2f\n", be->info.name, spec_dtype_name(weight),
                   spec_dtype_name(compute), n_in, n_out, phase == SPEC_PHASE_PREFILL ? "prefill" : "decode", rows[i], ms,
                   bytes / ms * 1e-6, ms / one);
        }
    } else {
        printf("%s,%s,%s: %s\n", be->info.name, spec_dtype_name(weight), spec_dtype_name(compute), spec_last_error());
    }
    teardown(&b);
}

int main(int argc, char **argv)
{
    spec_backend_params params = SPEC_BACKEND_PARAMS_INIT;
    spec_backend *be = NULL;
    int32_t n_in = argc > 2 ? atoi(argv[2]) : 2560, n_out = argc > 3 ? atoi(argv[3]) : 10240;
    params.n_threads = argc > 4 ? atoi(argv[4]) : 1;
    if (spec_backend_open(&be, argc > 1 ? argv[1] : "cpu", &params) != SPEC_OK) {
        fprintf(stderr, "%s\n", spec_last_error());
        return 1;
    }
    printf("backend,weight,compute,n_in,n_out,phase,rows,ms,GB/s,ratio\n");
    run(be, n_in, n_out, SPEC_DTYPE_BF16, SPEC_DTYPE_BF16);
    run(be, n_in, n_out, SPEC_DTYPE_F32, SPEC_DTYPE_F32);
    run(be, n_in, n_out, SPEC_DTYPE_BF16, SPEC_DTYPE_F32);
    run(be, n_in, n_out, SPEC_DTYPE_F16, SPEC_DTYPE_F16);
    static const spec_dtype blocks[] = { SPEC_DTYPE_Q8_0, SPEC_DTYPE_Q4_0, SPEC_DTYPE_Q4_1,
                                         SPEC_DTYPE_Q5_1, SPEC_DTYPE_Q4_K, SPEC_DTYPE_Q6_K };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) run(be, n_in, n_out, blocks[i], SPEC_DTYPE_BF16);
    spec_backend_close(be);
    return 0;
}
