/* net_mixer_mlp.c - down(act(gate x) * up x), or down(act(up x)). Keeps nothing. */
#include "models/net/net_mixer_mlp.h"

#include "models/net/net_mixer.h"

static void widths(net_widths *w, const model_branch *b)
{
    const model_mlp *m = b->own;
    w->mixed = net_max(w->mixed, m->n_inner);
}

static void emit(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in)
{
    const model_mlp *m = b->own;
    const spec_view inner = speci_net_packed(e->mixed, m->n_inner);
    (void)buffer;
    speci_net_emit_linear(e, &m->up, in, inner, (spec_linear_args){ .act = m->act, .glu = m->glu });
    speci_net_emit_out(e, b, &m->down, (net_input){ .x = inner });
}

const net_mixer speci_mixer_mlp = { .name = "mlp", .bytes = sizeof(model_mlp), .widths = widths, .emit = emit };
