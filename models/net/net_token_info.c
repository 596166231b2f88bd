/* net_token_info.c - what a head knows of the token in front of the one that it drafts (algorithms.md 17.3), in factors.
 *
 * info(t) = s_t W2' W1 e_t: W2' has the norm's weights in it, and s_t, one over the root mean square of the hot outputs, follows from
 * u = W1 e_t alone: |W2 u|^2 / n = u (W2^T W2 / n) u. So a table of s_t u_t, of zeros where t is not hot, is made once, of the target's
 * embedding; a row of logits then costs a look into the table and a product with rank columns. */
#include <math.h>
#include <string.h>

#include "models/net/net_mixer.h"

/* --- in a plan --- */

void speci_net_take_info_rows(net_emitter *e, int32_t rows)
{
    const model_token_info *info = e->model->intake->info;
    e->told = speci_net_tensor(e, rows, info->rank, SPEC_DTYPE_F32);
    e->told_in = speci_net_tensor(e, rows, info->rank, e->model->dtype);
}

/* Left out with the head where nobody reads logits. */
static void emit_behind(net_emitter *e, spec_op op)
{
    op.head = 1;
    speci_net_emit_op(e, op);
}

void speci_net_emit_info(net_emitter *e, spec_view logits)
{
    const spec_model *m = e->model;
    const model_token_info *info = m->intake->info;
    emit_behind(e, (spec_op){ .kind = SPEC_OP_EMBED, .u.embed = { .table = e->plans->info, .n_vocab = m->n_vocab, .dim = info->rank,
                                                                   .scale = 1, .y = e->told } });
    emit_behind(e, (spec_op){ .kind = SPEC_OP_KEEP, .u.keep = { .dim = info->rank, .x = e->told, .y = e->told_in } });
    emit_behind(e, (spec_op){ .kind = SPEC_OP_LINEAR,
                              .u.linear = { .w = info->out.w, .n_in = info->rank, .n_out = m->n_vocab, .add = 1, .scale = 1,
                                            .x = e->told_in, .y = logits } });
}

/* --- the table --- */

static const model_token_info *info_of(const net_exec *net)
{
    const spec_model *m = net->base.model;
    return m->intake && net->shape.target ? m->intake->info : NULL;
}

static spec_weight_desc table_of(const net_exec *net, const spec_weight_part *part)
{
    const spec_model *m = net->base.model;
    return (spec_weight_desc){ .n_out = m->n_vocab, .n_in = m->intake->info->rank, .dtype = SPEC_DTYPE_F32, .compute = m->dtype,
                               .gather = 1, .parts = part, .n_part = part ? 1 : 0 };
}

size_t speci_net_info_bytes(const net_exec *net)
{
    if (!info_of(net)) return 0;
    const spec_weight_desc desc = table_of(net, NULL);
    return net->ops->weight_bytes(net->dev, &desc);
}

void speci_net_close_info(net_exec *net)
{
    if (net->plans.info) net->ops->weight_close(net->dev, net->plans.info);
    net->plans.info = NULL;
}

/* u_t of all tokens, by passes of the device: embedding, then W1. */
typedef struct info_pass {
    net_exec *net;
    spec_queue *queue;
    void *memory;
    size_t bytes;
    spec_view x, x_in, u;
    spec_op ops[3];
    int32_t *ids; /* [rows] */
} info_pass;

static void describe(info_pass *p, char *base)
{
    const net_exec *net = p->net;
    const spec_model *m = net->base.model, *target = net->shape.target;
    const model_token_info *info = m->intake->info;
    net_memory memory = { .work = { .base = base } };
    net_emitter e = { .memory = &memory };
    p->x = speci_net_tensor(&e, net->shape.chunk, m->dim, SPEC_DTYPE_F32);
    p->x_in = speci_net_tensor(&e, net->shape.chunk, m->dim, m->dtype);
    p->u = speci_net_tensor(&e, net->shape.chunk, info->rank, SPEC_DTYPE_F32);
    p->bytes = memory.work.n;
    p->ops[0] = (spec_op){ .kind = SPEC_OP_EMBED,
                           .u.embed = { .table = target->embed, .n_vocab = m->n_vocab, .dim = m->dim, .scale = 1, .y = p->x } };
    p->ops[1] = (spec_op){ .kind = SPEC_OP_KEEP, .u.keep = { .dim = m->dim, .x = p->x, .y = p->x_in } };
    p->ops[2] = (spec_op){ .kind = SPEC_OP_LINEAR, .u.linear = { .w = info->w1.w, .n_in = m->dim, .n_out = info->rank, .scale = 1,
                                                                 .x = p->x_in, .y = p->u } };
}

static spec_status pass_open(info_pass *p)
{
    const net_exec *net = p->net;
    describe(p, NULL);
    const spec_plan plan = { .ops = p->ops, .n_op = 3, .phase = SPEC_PHASE_PREFILL, .n_row_max = net->shape.chunk, .n_seq_max = 1,
                             .n_node_max = net->shape.n_cache };
    if (!(p->ids = speci_alloc(net->a, (size_t)net->shape.chunk, sizeof *p->ids))) return SPEC_E_NOMEM;
    SPEC_TRY(net->ops->queue_open(net->dev, &p->queue, &plan, 1, 1));
    SPEC_TRY(net->ops->alloc(net->dev, &p->memory, p->bytes));
    describe(p, p->memory);
    for (int i = 0; i < 3; i++) SPEC_TRY(speci_op_supports(net->ops, net->dev, &p->ops[i]));
    return SPEC_OK;
}

static void pass_close(info_pass *p)
{
    const net_exec *net = p->net;
    if (p->queue) net->ops->queue_close(p->queue);
    if (p->memory) net->ops->free(net->dev, p->memory, p->bytes);
    speci_free(net->a, p->ids);
}

/* Tokens [first, first + n), to out [n][rank]. */
static spec_status pass_run(info_pass *p, int32_t first, int32_t n, float *out)
{
    const net_exec *net = p->net;
    for (int32_t i = 0; i < n; i++) p->ids[i] = first + i;
    speci_net_describe_prefill(p->net, 0, p->ids, n, net->shape.chunk);
    SPEC_TRY(net->ops->step_bind(p->queue, net->block));
    for (int i = 0; i < 3; i++) SPEC_TRY(speci_op_run(net->ops, p->queue, &p->ops[i], net->block));
    SPEC_TRY(net->ops->download(p->queue, out, p->u.data, (size_t)n * (size_t)p->u.ld * sizeof *out));
    return net->ops->sync(p->queue);
}

/* W2^T W2 / n_hot, [rank][rank] */
static void square_of(double *out, const model_token_info *info)
{
    const size_t r = (size_t)info->rank;
    memset(out, 0, r * r * sizeof *out);
    for (int32_t h = 0; h < info->n_hot; h++) {
        const float *w = info->w2 + (size_t)h * r;
        for (size_t i = 0; i < r; i++)
            for (size_t j = 0; j < r; j++) out[i * r + j] += (double)w[i] * (double)w[j] / info->n_hot;
    }
}

/* u becomes s u. */
static void scale(float *u, const double *square, const model_token_info *info)
{
    const size_t r = (size_t)info->rank;
    double sum = 0;
    for (size_t i = 0; i < r; i++)
        for (size_t j = 0; j < r; j++) sum += (double)u[i] * square[i * r + j] * (double)u[j];
    const double s = 1.0 / sqrt((sum > 0 ? sum : 0) + (double)info->eps);
    for (size_t i = 0; i < r; i++) u[i] = (float)(s * (double)u[i]);
}

/* all [n_vocab][rank] holds u; table [n_vocab][rank] is zero. */
static spec_status fill(net_exec *net, const float *all, float *table)
{
    const model_token_info *info = info_of(net);
    const size_t r = (size_t)info->rank;
    double *square = speci_alloc(net->a, r * r, sizeof *square);
    if (!square) return SPEC_E_NOMEM;
    square_of(square, info);
    for (int32_t h = 0; h < info->n_hot; h++) {
        float *u = table + (size_t)info->hot[h] * r;
        memcpy(u, all + (size_t)info->hot[h] * r, r * sizeof *u);
        scale(u, square, info);
    }
    speci_free(net->a, square);
    const spec_weight_part part = { table, net->base.model->n_vocab };
    const spec_weight_desc desc = table_of(net, &part);
    return net->ops->weight_open(net->dev, &net->plans.info, &desc);
}

static spec_status read_all(net_exec *net, float *all)
{
    const int32_t n_vocab = net->base.model->n_vocab, rank = info_of(net)->rank;
    info_pass p = { .net = net };
    spec_status status = pass_open(&p);
    for (int32_t i = 0, n; i < n_vocab && status == SPEC_OK; i += n) {
        n = n_vocab - i < net->shape.chunk ? n_vocab - i : net->shape.chunk;
        status = pass_run(&p, i, n, all + (size_t)i * (size_t)rank);
    }
    pass_close(&p);
    return status;
}

spec_status speci_net_make_info(net_exec *net)
{
    const model_token_info *info = info_of(net);
    if (!info) return SPEC_OK;
    const size_t n = (size_t)net->base.model->n_vocab * (size_t)info->rank;
    float *all = speci_alloc(net->a, n, sizeof *all), *table = speci_alloc(net->a, n, sizeof *table);
    spec_status status = all && table ? read_all(net, all) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = fill(net, all, table);
    speci_free(net->a, all);
    speci_free(net->a, table);
    return status;
}
