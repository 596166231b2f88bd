/* net_mixer_mlp.c - down(act(gate x) * up x), or down(act(up x)). Keeps nothing. */
#include "models/net/net_mixer_mlp.h"

#include "models/net/net_mixer.h"

/* Are gate and up weights of their own? */
static bool is_apart(const model_mlp *m) { return m->glu && m->up.more[0].w; }

static void widths(net_widths *w, const model_branch *b)
{
    const model_mlp *m = b->own;
    w->mixed = net_max(w->mixed, m->n_inner);
    if (is_apart(m)) w->projection = net_max(w->projection, 2 * m->n_inner);
}

/* [gate | up], then act(gate) * up */
static void emit_apart(net_emitter *e, const model_mlp *m, net_input in, spec_view inner)
{
    const spec_view both = speci_net_packed(e->projection, 2 * m->n_inner);
    speci_net_emit_linear(e, &m->up, in, both, (spec_linear_args){ 0 });
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_GLU,
                                    .u.glu = { .dim = m->n_inner, .act = m->act, .gate = both,
                                               .up = speci_net_columns(both, m->n_inner), .y = inner } });
}

static void emit(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in)
{
    const model_mlp *m = b->own;
    const spec_view inner = speci_net_packed(e->mixed, m->n_inner);
    (void)buffer;
    if (is_apart(m)) emit_apart(e, m, in, inner);
    else speci_net_emit_linear(e, &m->up, in, inner, (spec_linear_args){ .act = m->act, .glu = m->glu });
    speci_net_emit_out(e, b, &m->down, (net_input){ .x = inner });
}

const net_mixer speci_mixer_mlp = { .name = "mlp", .bytes = sizeof(model_mlp), .widths = widths, .emit = emit };
