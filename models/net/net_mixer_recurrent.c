/* net_mixer_recurrent.c - what recurrent mixers share: the declaration of what S <- a S + k u^T keeps (algorithms.md 8.7), and the
 * operations around a Mamba scan. */
#include "models/net/net_mixer.h"

int32_t speci_net_recurrent_buffers(net_buffer *out, const spec_model *m, const net_recurrence *r, const net_shape *s)
{
    const size_t t = net_type_bytes(m->dtype), f = sizeof(float);
    const size_t u = (size_t)r->n_u * t, k = (size_t)r->n_k * t, a = (size_t)r->n_head * f, channels = (size_t)r->n_channel * t;
    const size_t state = (size_t)r->n_head * (size_t)r->n_value * (size_t)r->n_key * f;
    const int32_t ring = r->chunked ? s->n_recent_max : 0;
    const net_buffer recent = { .role = NET_RECENT, .n = ring, .zeroed = true, .saved = true };
    const net_buffer node = { .role = NET_NODE, .n = s->n_cache, .halves = true };
    out[NET_R_CONV] = (net_buffer){ .role = NET_CONV, .bytes = (size_t)(r->width - 1) * channels, .n = 1, .halves = true,
                                    .zeroed = true, .saved = true };
    out[NET_R_STATE] = (net_buffer){ .role = NET_STATE, .bytes = state, .n = 1, .zeroed = true, .saved = true };
    for (int32_t i = NET_R_RECENT_U; i <= NET_R_RECENT_A; i++) out[i] = recent;
    if (ring > 0) out[NET_R_RECENT_U].bytes = u, out[NET_R_RECENT_K].bytes = k, out[NET_R_RECENT_A].bytes = a;
    for (int32_t i = NET_R_NODE_CONV; i <= NET_R_NODE_STATE; i++) out[i] = node;
    out[NET_R_NODE_CONV].bytes = channels, out[NET_R_NODE_A].bytes = a, out[NET_R_NODE_K].bytes = r->k_aside ? k : 0;
    out[NET_R_NODE_STATE].bytes = s->node_state ? state : 0, out[NET_R_NODE_STATE].halves = false;
    return NET_R_N;
}

/* --- Mamba --- */

/* Chunked scans need one decay per head. */
net_recurrence speci_net_mamba_recurrence(const model_mamba *a)
{
    return (net_recurrence){ .n_head = a->n_head, .n_value = a->head_dim, .n_key = a->n_state,
                             .n_u = spec_scan_columns(a->n_head, a->x_rep, a->head_dim),
                             .n_k = spec_scan_columns(a->n_head, a->b_rep, a->n_state), .n_channel = a->n_channel,
                             .width = a->width, .k_aside = a->select.w != NULL, .chunked = !a->a_per_state };
}

void speci_net_mamba_widths(net_widths *w, const model_mamba *a)
{
    w->projection = net_max(w->projection, a->in.n_out);
    w->channel = net_max(w->channel, a->n_channel);
    w->mixed = net_max(w->mixed, a->n_head * a->head_dim);
    if (a->has_norm) w->scan = net_max(w->scan, a->n_head * a->head_dim);
}

spec_scan_args speci_net_emit_mamba_front(net_emitter *e, const model_mamba *a, const net_buffer *buffer, net_input in)
{
    const spec_dtype type = e->model->dtype;
    const spec_view projected = speci_net_packed(e->projection, a->in.n_out), conv = speci_net_packed(e->conv, a->n_channel);
    speci_net_emit_linear(e, &a->in, in, projected, (spec_linear_args){ 0 });
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_CONV,
                                    .u.conv = { .u = speci_net_columns(projected, a->col_u), .n_channel = a->n_channel,
                                                .width = a->width, .weight = a->conv_weight, .bias = a->conv_bias,
                                                .dtype = type, .window = buffer[NET_R_CONV].base,
                                                .cache = buffer[NET_R_NODE_CONV].base, .replay_y = e->replay,
                                                .n_node = e->shape->n_cache, .y = conv, .act = SPEC_ACT_SILU } });
    const int32_t ring = buffer[NET_R_RECENT_U].bytes > 0 ? buffer[NET_R_RECENT_U].n : 0;
    return (spec_scan_args){
        .n_head = a->n_head, .head_dim = a->head_dim, .n_state = a->n_state, .x_rep = a->x_rep, .b_rep = a->b_rep,
        .c_rep = a->c_rep, .a = a->a, .a_per_state = a->a_per_state, .d = a->d, .dt_bias = a->dt_bias, .dt_min = a->dt_min,
        .dt_max = a->dt_max, .x = speci_net_columns(conv, a->x_col), .dtype = type, .replay_y = e->replay,
        .replay_ld = a->n_channel, .replay_x_col = a->x_col, .replay_b_col = a->b_col, .b_in_conv = !a->select.w,
        .state = (float *)buffer[NET_R_STATE].base, .cache_dt = (float *)buffer[NET_R_NODE_A].base,
        .cache_b = buffer[NET_R_NODE_K].base, .n_node = e->shape->n_cache,
        .node_state = (float *)buffer[NET_R_NODE_STATE].base, .n_recent_max = ring, .chunk = ring > 0 ? SPEC_CHUNK : 0,
        .recent_x = buffer[NET_R_RECENT_U].base, .recent_b = buffer[NET_R_RECENT_K].base,
        .recent_dt = (float *)buffer[NET_R_RECENT_A].base,
    };
}

/* Where the gate comes before the norm, the scan applies it: many blocks there, few in a norm of few rows. */
void speci_net_emit_mamba_back(net_emitter *e, const model_mamba *a, spec_scan_args s, float scale)
{
    const int32_t inner = a->n_head * a->head_dim;
    const spec_view z = speci_net_columns(speci_net_packed(e->projection, a->in.n_out), a->col_z);
    const spec_view y = speci_net_packed(e->mixed, inner), scanned = speci_net_packed(e->scan, inner);
    const bool gate_late = a->has_norm && a->norm_first;
    if (!gate_late) s.z = z;
    s.y = a->has_norm ? scanned : y;
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_SCAN, .u.scan = s });
    net_input mixed = { .x = y };
    if (a->has_norm)
        mixed = speci_net_emit_norm(e, &a->norm, scanned, gate_late ? z : (spec_view){ 0 }, gate_late, y);
    speci_net_emit_out(e, &a->out, mixed, scale);
}
