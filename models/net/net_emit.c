/* net_emit.c - tensors and the operations on them that go into a plan. */
#include "models/net/net_mixer.h"

spec_view speci_net_tensor(net_emitter *e, int32_t rows, int32_t cols, spec_dtype type)
{
    spec_view v = { .dtype = type, .ld = cols };
    if (cols > 0) v.data = net_take(&e->memory->work, (size_t)rows * (size_t)cols * speci_dtype_bytes(type));
    return v;
}

spec_view speci_net_columns(spec_view v, int32_t col)
{
    if (v.data) v.data = (char *)v.data + (size_t)col * speci_dtype_bytes(v.dtype);
    return v;
}

spec_view speci_net_packed(spec_view v, int32_t cols)
{
    v.ld = cols;
    return v;
}

void speci_net_emit_op(net_emitter *e, spec_op op)
{
    spec_op *ops = e->plans->ops[e->phase];
    if (ops) ops[e->plans->n_op[e->phase]] = op;
    e->plans->n_op[e->phase]++;
}

net_input speci_net_emit_norm(net_emitter *e, const model_norm *n, spec_view x, spec_view gate, int32_t norm_first, spec_view y)
{
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_NORM,
                                    .u.norm = { .kind = n->kind, .dim = n->dim, .n_group = n->n_group, .eps = n->eps,
                                                .weight = n->weight, .bias = n->bias, .x = x, .gate = gate,
                                                .norm_first = norm_first, .y = y } });
    return (net_input){ y };
}

net_input speci_net_emit_input(net_emitter *e, const model_norm *n, int32_t i)
{
    return speci_net_emit_norm(e, n, e->residual, (spec_view){ 0 }, 0, e->normed[i]);
}

/* Outputs [first, first + n_out) of l, by weight w. */
static void emit_rows(net_emitter *e, const model_linear *l, const spec_weight *w, int32_t first, int32_t n_out, spec_linear_args args)
{
    args.w = w, args.n_out = n_out, args.y = speci_net_columns(args.y, first);
    args.bias = l->bias ? l->bias + first : NULL;
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_LINEAR, .u.linear = args });
}

void speci_net_emit_linear(net_emitter *e, const model_linear *l, net_input in, spec_view y, spec_linear_args extra)
{
    int32_t first = l->n_out;
    extra.n_in = l->n_in, extra.x = in.x, extra.y = y;
    if (extra.scale == 0.0f) extra.scale = 1.0f;
    for (int32_t i = 0; i < MODEL_LINEAR_MORE; i++) first -= l->more[i].n_out;
    emit_rows(e, l, l->w, 0, first, extra);
    for (int32_t i = 0; i < MODEL_LINEAR_MORE && l->more[i].w; first += l->more[i++].n_out)
        emit_rows(e, l, l->more[i].w, first, l->more[i].n_out, extra);
}

void speci_net_emit_out(net_emitter *e, const model_branch *b, const model_linear *l, net_input in)
{
    if (b->behind.weight) {
        speci_net_emit_linear(e, l, in, e->branch, (spec_linear_args){ 0 });
        (void)speci_net_emit_norm(e, &b->behind, e->branch, (spec_view){ 0 }, 0, e->residual);
        return;
    }
    speci_net_emit_linear(e, l, in, e->residual, (spec_linear_args){ .add = 1, .scale = b->scale });
}
