/* net_intake.c - what a head takes in, as operations (model_intake.h). The first pass over a tree is given rows of the target; the nodes
 * of later ones have what their parents hand down. */
#include "models/net/net_mixer.h"

/* Of the given rows: they are made of float32 ones. */
static bool has_norms(const model_intake *in) { return in->join_norm.weight || in->given_norm[0].weight; }

void speci_net_take_intake_rows(net_emitter *e, int32_t rows)
{
    const spec_model *m = e->model;
    const model_intake *in = m->intake;
    const int32_t wide = in->fuse.w ? in->fuse.n_in : 2 * m->dim;
    e->gathered = speci_net_tensor(e, rows, has_norms(in) ? in->join.n_in : 0, SPEC_DTYPE_F32);
    e->joined = speci_net_tensor(e, rows, in->join.w ? in->join.n_in : 0, m->dtype);
    e->fused = speci_net_tensor(e, rows, wide, m->dtype);
    if (in->info) speci_net_take_info_rows(e, rows);
}

void speci_net_take_intake(net_emitter *e)
{
    const spec_model *m = e->model;
    const net_shape *s = e->shape;
    spec_tap taps[MODEL_MAX_TAP];
    speci_intake_taps(m->intake, s->target, taps);
    for (int32_t i = 0; i < m->intake->n_tap; i++)
        e->plans->given[i] = speci_net_tensor(e, net_max(s->n_row_decode, s->chunk), m->intake->n_hidden,
                                              taps[i].where == SPEC_TAP_NORM ? m->dtype : SPEC_DTYPE_F32);
    e->handed = net_take(&e->memory->work, (size_t)s->n_seq * (size_t)s->n_cache * (size_t)m->dim * sizeof *e->handed);
}

spec_view speci_net_given(const speci_exec *exec, int32_t tap)
{
    const net_exec *net = exec->state;
    return net->plans.given[tap];
}

/* --- ends --- */

void speci_net_emit_embed(net_emitter *e)
{
    const spec_model *m = e->model, *target = e->shape->target, *of = m->embed || !target ? m : target;
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_EMBED,
                                    .u.embed = { .table = of->embed, .n_vocab = m->n_vocab, .dim = m->dim, .scale = m->embed_scale,
                                                 .y = e->residual } });
}

const spec_model *speci_net_head_of(const net_emitter *e)
{
    return e->model->head.w || !e->shape->target ? e->model : e->shape->target;
}

/* --- pieces --- */

static void emit_copy(net_emitter *e, int32_t dim, spec_view x, spec_view y)
{
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_KEEP, .u.keep = { .dim = dim, .x = x, .y = y } });
}

static void emit_recycle(net_emitter *e, int32_t dim, spec_view x, spec_view y, int32_t store)
{
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_RECYCLE,
                                    .u.recycle = { .dim = dim, .store = store, .x = x, .y = y, .cache = e->handed,
                                                   .n_node = e->shape->n_cache } });
}

/* norm(x), or x itself */
static void emit_normed(net_emitter *e, const model_norm *n, int32_t dim, spec_view x, spec_view y)
{
    if (n->weight) (void)speci_net_emit_norm(e, n, x, (spec_view){ 0 }, 0, y);
    else emit_copy(e, dim, x, y);
}

/* The given rows side by side, then as one row as wide as the head: the residual. */
static void emit_joined(net_emitter *e)
{
    const model_intake *in = e->model->intake;
    for (int32_t i = 0; i < in->n_tap; i++) {
        const spec_view to = speci_net_columns(has_norms(in) ? e->gathered : e->joined, i * in->n_hidden);
        emit_copy(e, in->n_hidden, e->plans->given[i], to);
        if (in->given_norm[i].weight)
            (void)speci_net_emit_norm(e, &in->given_norm[i], to, (spec_view){ 0 }, 0,
                                      in->join_norm.weight ? to : speci_net_columns(e->joined, i * in->n_hidden));
    }
    if (in->join_norm.weight) (void)speci_net_emit_norm(e, &in->join_norm, e->gathered, (spec_view){ 0 }, 0, e->joined);
    speci_net_emit_linear(e, &in->join, (net_input){ e->joined }, e->residual, (spec_linear_args){ 0 });
}

/* --- the whole --- */

/* [token; .] */
static void emit_token(net_emitter *e)
{
    speci_net_emit_embed(e);
    emit_normed(e, &e->model->intake->token_norm, e->model->dim, e->residual, e->fused);
}

/* [.; hidden], and the residual as EAGLE-3 has it. */
static void emit_hidden(net_emitter *e)
{
    const spec_model *m = e->model;
    const model_intake *in = m->intake;
    const spec_view to = speci_net_columns(e->fused, m->dim);
    if (!in->join.w && in->hands_input) {
        emit_copy(e, m->dim, e->plans->given[0], to);
        return;
    }
    if (!in->join.w) {
        emit_recycle(e, m->dim, e->plans->given[0], to, 0);
        return;
    }
    emit_joined(e);
    emit_recycle(e, m->dim, e->residual, e->residual, 0);
    if (!in->residual_normed) {
        emit_normed(e, &in->hidden_norm, m->dim, e->residual, to);
        return;
    }
    emit_normed(e, &in->hidden_norm, m->dim, e->residual, e->residual);
    emit_copy(e, m->dim, e->residual, to);
}

void speci_net_emit_intake(net_emitter *e)
{
    const spec_model *m = e->model;
    const model_intake *in = m->intake;
    emit_token(e);
    emit_hidden(e);
    if (in->fuse.w) speci_net_emit_linear(e, &in->fuse, (net_input){ e->fused }, e->residual, (spec_linear_args){ 0 });
    if (in->hands_input) emit_recycle(e, m->dim, e->residual, e->residual, 0);
}

net_input speci_net_emit_first(net_emitter *e, const model_norm *n)
{
    return e->model->intake->fuse.w ? speci_net_emit_input(e, n, 0) : (net_input){ e->fused };
}

void speci_net_emit_handed(net_emitter *e) { emit_recycle(e, e->model->dim, e->residual, e->residual, 0); }

void speci_net_emit_hand_down(net_emitter *e, spec_view normed)
{
    emit_recycle(e, e->model->dim, e->model->intake->hands_normed ? normed : e->residual, (spec_view){ 0 }, 1);
}
