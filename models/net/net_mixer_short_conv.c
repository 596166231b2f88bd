/* net_mixer_short_conv.c - a causal convolution between two gates. Keeps its last inputs, and those of the tree's nodes. */
#include "models/net/net_mixer_short_conv.h"

#include "models/net/net_mixer.h"

static void widths(net_widths *w, const model_branch *b)
{
    const model_short_conv *a = b->own;
    w->projection = net_max(w->projection, a->in.n_out);
    w->mixed = net_max(w->mixed, a->n_channel);
}

static int32_t buffers(net_buffer *out, const spec_model *m, const model_branch *b, const net_shape *s)
{
    const model_short_conv *a = b->own;
    const size_t row = (size_t)a->n_channel * speci_dtype_bytes(m->dtype);
    out[0] = (net_buffer){ .role = NET_CONV, .bytes = (size_t)(a->width - 1) * row, .n = 1, .halves = true, .zeroed = true,
                           .saved = true };
    out[1] = (net_buffer){ .role = NET_NODE, .bytes = row, .n = s->n_cache, .halves = true };
    return 2;
}

static void emit(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in)
{
    const model_short_conv *a = b->own;
    const spec_view bcx = speci_net_packed(e->projection, a->in.n_out), y = speci_net_packed(e->mixed, a->n_channel);
    speci_net_emit_linear(e, &a->in, in, bcx, (spec_linear_args){ 0 });
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_CONV,
                                    .u.conv = { .u = speci_net_columns(bcx, 2 * a->n_channel), .n_channel = a->n_channel,
                                                .width = a->width, .weight = a->conv_weight, .bias = a->conv_bias,
                                                .dtype = e->model->dtype, .window = buffer[0].base,
                                                .cache = buffer[1].base, .n_node = e->shape->n_cache, .y = y,
                                                .act = SPEC_ACT_NONE, .gate_in = bcx,
                                                .gate_out = speci_net_columns(bcx, a->n_channel) } });
    speci_net_emit_out(e, b, &a->out, (net_input){ .x = y });
}

const net_mixer speci_mixer_short_conv = { .name = "short_conv", .bytes = sizeof(model_short_conv), .widths = widths,
                                           .buffers = buffers, .emit = emit };
