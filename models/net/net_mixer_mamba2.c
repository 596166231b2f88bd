/* net_mixer_mamba2.c - Mamba-2: x, B and C come out of the convolution, dt out of the projection, one per head. */
#include "models/net/net_mixer.h"

static void widths(net_widths *w, const model_branch *b) { speci_net_mamba_widths(w, &b->u.mamba); }

static int32_t buffers(net_buffer *out, const spec_model *m, const model_branch *b, const net_shape *s)
{
    const net_recurrence r = speci_net_mamba_recurrence(&b->u.mamba);
    return speci_net_recurrent_buffers(out, m, &r, s);
}

static void emit(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in)
{
    const model_mamba *a = &b->u.mamba;
    spec_scan_args s = speci_net_emit_mamba_front(e, a, buffer, in);
    const spec_view conv = speci_net_packed(e->conv, a->n_channel);
    s.b = speci_net_columns(conv, a->b_col), s.c = speci_net_columns(conv, a->c_col);
    s.dt = speci_net_columns(speci_net_packed(e->projection, a->in.n_out), a->col_dt);
    speci_net_emit_mamba_back(e, a, s, b->scale);
}

const net_mixer speci_mixer_mamba2 = { .name = "mamba2", .widths = widths, .buffers = buffers, .emit = emit };
