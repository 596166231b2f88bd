/* net_token_info.c - what a head knows of the token in front of the one that it drafts (algorithms.md 17.3), in factors.
 *
 * info(t) = s_t W2' W1 e_t: W2' has the norm's weights in it, and s_t, one over the root mean square of the hot outputs, follows from
 * u = W1 e_t alone: |W2 u|^2 / n = u (W2^T W2 / n) u. So a table of s_t u_t, of zeros where t is not hot, is made once, of the target's
 * embedding; a row of logits then costs a look into the table and a product with rank columns. Collapsed: net_token_table.c. */
#include <math.h>
#include <string.h>

#include "models/net/net_mixer.h"
#include "models/net/net_token_pass.h"

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
    if (e->shape->collapsed) {
        speci_net_emit_table(e, logits);
        return;
    }
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
    if (net->shape.collapsed) return speci_net_table_bytes(net);
    const spec_weight_desc desc = table_of(net, NULL);
    return net->ops->weight_bytes(net->dev, &desc);
}

void speci_net_close_info(net_exec *net)
{
    if (net->plans.info) net->ops->weight_close(net->dev, net->plans.info);
    net->plans.info = NULL;
    speci_net_close_table(net);
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

/* hot [n_hot][rank] holds u; table [n_vocab][rank] is zero. */
static spec_status fill(net_exec *net, const float *hot, float *table)
{
    const model_token_info *info = info_of(net);
    const size_t r = (size_t)info->rank;
    double *square = speci_alloc(net->a, r * r, sizeof *square);
    if (!square) return SPEC_E_NOMEM;
    square_of(square, info);
    for (int32_t h = 0; h < info->n_hot; h++) {
        float *u = table + (size_t)info->hot[h] * r;
        memcpy(u, hot + (size_t)h * r, r * sizeof *u);
        scale(u, square, info);
    }
    speci_free(net->a, square);
    const spec_weight_part part = { table, net->base.model->n_vocab };
    const spec_weight_desc desc = table_of(net, &part);
    return net->ops->weight_open(net->dev, &net->plans.info, &desc);
}

/* u_t of the hot tokens, by passes of the device: embedding, then W1. */
static spec_status read_hot(net_exec *net, float *hot)
{
    const model_token_info *info = info_of(net);
    net_token_pass p = { .net = net, .table = net->shape.target->embed, .wide = net->base.model->dim, .w = info->w1.w, .n_out = info->rank,
                         .rows = net->shape.chunk, .out = SPEC_DTYPE_F32 };
    spec_status status = speci_net_token_pass_open(&p);
    for (int32_t i = 0, n; i < info->n_hot && status == SPEC_OK; i += n) {
        n = info->n_hot - i < p.rows ? info->n_hot - i : p.rows;
        status = speci_net_token_pass_run(&p, info->hot + i, n);
        if (status == SPEC_OK)
            status = net->ops->download(p.queue, hot + (size_t)i * (size_t)info->rank, p.y.data, (size_t)n * (size_t)p.y.ld * sizeof *hot);
        if (status == SPEC_OK) status = net->ops->sync(p.queue);
    }
    speci_net_token_pass_close(&p);
    return status;
}

static spec_status make_factors(net_exec *net)
{
    const size_t n_vocab = (size_t)net->base.model->n_vocab, n_hot = (size_t)info_of(net)->n_hot, rank = (size_t)info_of(net)->rank;
    float *hot = speci_alloc(net->a, n_hot * rank, sizeof *hot), *table = speci_alloc(net->a, n_vocab * rank, sizeof *table);
    spec_status status = hot && table ? read_hot(net, hot) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = fill(net, hot, table);
    speci_free(net->a, hot);
    speci_free(net->a, table);
    return status;
}

/* Collapsed, the factors serve to make the table. */
spec_status speci_net_make_info(net_exec *net)
{
    if (!info_of(net)) return SPEC_OK;
    SPEC_TRY(make_factors(net));
    if (!net->shape.collapsed) return SPEC_OK;
    const spec_status status = speci_net_make_table(net, net->plans.info);
    net->ops->weight_close(net->dev, net->plans.info);
    net->plans.info = NULL;
    return status;
}
