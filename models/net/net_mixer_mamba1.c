/* net_mixer_mamba1.c - Mamba-1: B, C and dt are a second projection of the convolution's output, one dt per channel. */
#include "models/net/net_mixer.h"

static void widths(net_widths *w, const model_branch *b)
{
    const model_mamba *a = &b->u.mamba;
    speci_net_mamba_widths(w, a);
    w->select = net_max(w->select, a->select.n_out), w->dt = net_max(w->dt, a->n_head);
}

static int32_t buffers(net_buffer *out, const spec_model *m, const model_branch *b, const net_shape *s)
{
    const net_recurrence r = speci_net_mamba_recurrence(&b->u.mamba);
    return speci_net_recurrent_buffers(out, m, &r, s);
}

static void emit(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in)
{
    const model_mamba *a = &b->u.mamba;
    const spec_view select = speci_net_packed(e->select, a->select.n_out), dt = speci_net_packed(e->dt, a->n_head);
    spec_scan_args s = speci_net_emit_mamba_front(e, a, buffer, in);
    speci_net_emit_linear(e, &a->select, (net_input){ .x = speci_net_packed(e->conv, a->n_channel) }, select, (spec_linear_args){ 0 });
    speci_net_emit_linear(e, &a->dt, (net_input){ .x = select }, dt, (spec_linear_args){ 0 });
    s.b = speci_net_columns(select, a->dt_rank), s.c = speci_net_columns(select, a->dt_rank + a->n_state), s.dt = dt;
    speci_net_emit_mamba_back(e, a, s, b->scale);
}

const net_mixer speci_mixer_mamba1 = { .name = "mamba1", .widths = widths, .buffers = buffers, .emit = emit };
