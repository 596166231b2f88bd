/* backend_probe.c - a device is asked, when it opens, whether a row's product depends on its neighbours.
 *
 * One row alone is the measure; the same row among 3 and 8 rows, at every slot, must have the same bits. A backend
 * that fails would break path invariance, that is the equality of speculative and plain decoding. */
#include <string.h>

#include "backends/backend.h"
#include "backends/backend_probe.h"
#include "core/core_dtype.h"

enum { N_IN = 200, N_OUT = 72, ROWS = 8 };

typedef struct probe {
    const spec_backend_ops *ops;
    spec_device *dev;
    spec_dtype dtype;
    size_t x_bytes, y_bytes;
    spec_weight *w;
    spec_queue *q;
    void *x, *y; /* device: [ROWS][N_IN] of dtype, [ROWS][N_OUT] f32 */
    spec_op product;
} probe;

/* Entries that round differently in different orders of summation: value i of a fixed sequence in (-1, 1). */
static float value(uint32_t i)
{
    uint32_t h = (i + 1u) * 2654435761u;
    h = (h ^ (h >> 15)) * 2246822519u;
    return (float)(int32_t)(h ^ (h >> 13)) / 2147483648.0f;
}

/* Writes `value(seed + i)` as float32 or bf16 (cut, which is exact enough here). */
static void fill(void *out, spec_dtype dtype, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        float f = value(seed + (uint32_t)i);
        uint32_t bits;
        memcpy(&bits, &f, sizeof bits);
        uint16_t high = (uint16_t)(bits >> 16);
        if (dtype == SPEC_DTYPE_F32) memcpy((char *)out + i * 4, &f, 4);
        else memcpy((char *)out + i * 2, &high, 2);
    }
}

/* A decode step of n rows, for operations that look at n_row_run only. */
static spec_step_block rows_only(int32_t n)
{
    spec_step_block b;
    memset(&b, 0, sizeof b);
    b.bytes = (int32_t)sizeof b;
    b.phase = SPEC_PHASE_DECODE;
    b.n_row = b.n_row_run = n;
    b.off_seq = b.off_node = b.off_row_seq = b.off_path = b.off_page = (int32_t)sizeof b;
    return b;
}

/* y [n][N_OUT] of x [n][N_IN] on the device. */
static spec_status product(probe *p, float *y, const void *x, int32_t n)
{
    spec_step_block block = rows_only(n);
    SPEC_TRY(p->ops->upload(p->q, p->x, x, (size_t)n * N_IN * speci_dtype_bytes(p->dtype)));
    SPEC_TRY(p->ops->step_bind(p->q, &block));
    SPEC_TRY(speci_op_run(p->ops, p->q, &p->product, &block));
    SPEC_TRY(p->ops->download(p->q, y, p->y, (size_t)n * N_OUT * sizeof(float)));
    return p->ops->sync(p->q);
}

/* The row `first` among n rows at slot `slot` against `alone`. */
static spec_status compare(probe *p, const void *first, const float *alone, int32_t n, int32_t slot)
{
    float x[ROWS * N_IN], y[ROWS * N_OUT];
    size_t row = N_IN * speci_dtype_bytes(p->dtype);
    fill(x, p->dtype, (size_t)n * N_IN, 7777u * (uint32_t)n);
    memcpy((char *)x + (size_t)slot * row, first, row);
    SPEC_TRY(product(p, y, x, n));
    if (memcmp(y + slot * N_OUT, alone, N_OUT * sizeof(float)) == 0) return SPEC_OK;
    return speci_fail(SPEC_E_DEVICE, "backend %s: in %s, the product of a row at slot %d of %d differs from that of the "
                      "row alone; decoding would not be exact", p->ops->name, spec_dtype_name(p->dtype), slot, n);
}

static spec_status compare_all(probe *p)
{
    static const int32_t counts[] = { 3, ROWS };
    float first[N_IN], alone[N_OUT];
    fill(first, p->dtype, N_IN, 99u);
    SPEC_TRY(product(p, alone, first, 1));
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        for (int32_t slot = 0; slot < counts[i]; slot++) SPEC_TRY(compare(p, first, alone, counts[i], slot));
    return SPEC_OK;
}

static spec_status setup(probe *p, const void *matrix)
{
    spec_weight_part part = { matrix, N_OUT };
    spec_weight_desc desc = { N_OUT, N_IN, p->dtype, p->dtype, 0, 0, &part, 1 };
    SPEC_TRY(p->ops->weight_open(p->dev, &p->w, &desc));
    p->x_bytes = ROWS * N_IN * speci_dtype_bytes(p->dtype);
    p->y_bytes = ROWS * N_OUT * sizeof(float);
    SPEC_TRY(p->ops->alloc(p->dev, &p->x, p->x_bytes));
    SPEC_TRY(p->ops->alloc(p->dev, &p->y, p->y_bytes));
    p->product = (spec_op){ .kind = SPEC_OP_LINEAR,
                            .u.linear = { .w = p->w, .n_in = N_IN, .n_out = N_OUT, .scale = 1.0f,
                                          .x = { p->x, p->dtype, N_IN }, .y = { p->y, SPEC_DTYPE_F32, N_OUT } } };
    spec_plan plan = { &p->product, 1, SPEC_PHASE_DECODE, ROWS, 1, ROWS, SPEC_PAGE };
    SPEC_TRY(speci_op_supports(p->ops, p->dev, &p->product));
    return p->ops->queue_open(p->dev, &p->q, &plan, 1, SPEC_PAGE);
}

static void teardown(probe *p)
{
    if (p->q) p->ops->queue_close(p->q);
    if (p->y) p->ops->free(p->dev, p->y, p->y_bytes);
    if (p->x) p->ops->free(p->dev, p->x, p->x_bytes);
    if (p->w) p->ops->weight_close(p->dev, p->w);
}

spec_status speci_backend_probe(spec_backend *be)
{
    static const spec_dtype dtypes[] = { SPEC_DTYPE_F32, SPEC_DTYPE_BF16 };
    float *matrix = speci_alloc(&be->allocator, (size_t)N_OUT * N_IN, sizeof *matrix);
    if (!matrix) return SPEC_E_NOMEM;
    spec_status status = SPEC_OK;
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0] && status == SPEC_OK; i++) {
        probe p = { .ops = be->ops, .dev = be->dev, .dtype = dtypes[i] };
        fill(matrix, p.dtype, (size_t)N_OUT * N_IN, 1u);
        status = setup(&p, matrix);
        bool able = status == SPEC_OK;
        if (able) status = compare_all(&p);
        if (status == SPEC_E_UNSUPPORTED && !able) status = SPEC_OK; /* a type that the device does not have */
        teardown(&p);
    }
    speci_free(&be->allocator, matrix);
    return status;
}
