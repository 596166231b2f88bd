/* cpu_embed.c - y[r] = scale * table[token of row r]; rows that are not valid become 0. */
#include "backends/cpu/cpu.h"

spec_status speci_cpu_check_embed(spec_device *dev, const spec_op *op)
{
    const spec_embed_args *a = &op->u.embed;
    const spec_host *h = dev->host;
    if (a->table->n_in != a->dim || a->table->n_out < a->n_vocab || a->table->glu)
        return h->fail(SPEC_E_INVALID, "embed: the table is %d x %d (glu %d), expected %d x %d", a->table->n_out,
                       a->table->n_in, a->table->glu, a->n_vocab, a->dim);
    if (a->y.dtype != SPEC_DTYPE_F32 || a->y.ld < a->dim)
        return h->fail(SPEC_E_INVALID, "embed: y is %s with rows %d apart, expected f32 and %d",
                       speci_dtype_name(a->y.dtype), a->y.ld, a->dim);
    return SPEC_OK;
}

typedef struct embed_job {
    const spec_queue *q;
    const spec_embed_args *a;
} embed_job;

static void embed_row(void *arg, int32_t row)
{
    const embed_job *job = arg;
    const spec_step_block *b = job->q->step;
    const spec_embed_args *a = job->a;
    float *y = cpu_at(&a->y, row, 0);
    int32_t token = -1;
    if (row < b->n_row) {
        const spec_step_seq *s = spec_step_seqs(b) + spec_step_row_seq(b)[row];
        token = spec_step_row_node(b, s, row)->token;
    }
    if (token < 0 || token >= a->n_vocab) {
        memset(y, 0, (size_t)a->dim * sizeof *y);
        return;
    }
    speci_cpu_weight_row(a->table, token, y);
    if (a->scale != 1.0f) job->q->dev->loops->scale(y, a->scale, (size_t)a->dim);
}

spec_status speci_cpu_embed(spec_queue *q, const spec_op *op)
{
    const spec_embed_args *a = &op->u.embed;
    CPU_TRY(speci_cpu_check_embed(q->dev, op));
    embed_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, q->step->n_row_run, embed_row, &job);
    return SPEC_OK;
}
