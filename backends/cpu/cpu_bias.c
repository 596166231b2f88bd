/* cpu_bias.c - y[r][column[c]] += table[row of r's token][c]. */
#include "backends/cpu/cpu.h"

spec_status speci_cpu_check_bias(spec_device *dev, const spec_op *op)
{
    const spec_bias_args *a = &op->u.bias;
    const spec_host *h = dev->host;
    if (a->dim < 1 || a->n_vocab < 1 || a->table.ld < a->dim || a->y.ld < a->dim)
        return h->fail(SPEC_E_INVALID, "bias: %d columns of rows %d and %d apart, %d ids", a->dim, a->table.ld, a->y.ld, a->n_vocab);
    if (!cpu_is_float(a->table.dtype) || a->y.dtype != SPEC_DTYPE_F32)
        return h->fail(SPEC_E_UNSUPPORTED, "bias: the table is %s, y %s; y is to be f32", speci_dtype_name(a->table.dtype),
                       speci_dtype_name(a->y.dtype));
    return SPEC_OK;
}

typedef struct bias_job {
    const spec_queue *q;
    const spec_bias_args *a;
} bias_job;

static void add(float *y, const int32_t *column, const float *x, int32_t n)
{
    for (int32_t c = 0; c < n; c++) y[column[c]] += x[c];
}

static void bias_row(void *arg, int32_t row)
{
    enum { PIECE = 512 };
    const bias_job *job = arg;
    const spec_bias_args *a = job->a;
    const spec_step_block *b = job->q->step;
    const spec_step_seq *s = spec_step_seqs(b) + spec_step_row_seq(b)[row];
    const int32_t token = spec_step_row_node(b, s, row)->token, from = token >= 0 && token < a->n_vocab ? a->row[token] : -1;
    float *y = cpu_at(&a->y, row, 0), piece[PIECE];
    if (from < 0) return;
    for (int32_t c = 0, n; c < a->dim; c += n) {
        const void *x = cpu_at(&a->table, from, c);
        n = a->dim - c < PIECE ? a->dim - c : PIECE;
        if (a->table.dtype != SPEC_DTYPE_F32) job->q->dev->loops->load(piece, x, a->table.dtype, (size_t)n);
        add(y, a->column + c, a->table.dtype == SPEC_DTYPE_F32 ? x : piece, n);
    }
}

spec_status speci_cpu_bias(spec_queue *q, const spec_op *op)
{
    const spec_bias_args *a = &op->u.bias;
    CPU_TRY(speci_cpu_check_bias(q->dev, op));
    bias_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, q->step->n_row, bias_row, &job);
    return SPEC_OK;
}
