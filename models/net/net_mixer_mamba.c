/* net_mixer_mamba.c - Mamba-1 and Mamba-2: projection, convolution, scan, gated norm, projection. Where B, C and dt come from is
 * what they differ in. */
#include "models/net/net_mixer_mamba.h"

#include "models/net/net_mixer.h"

/* Chunked scans need one decay per head. */
static int32_t buffers(net_buffer *out, const spec_model *m, const model_branch *b, const net_shape *s)
{
    const model_mamba *a = b->own;
    const net_recurrence r = { .n_head = a->n_head, .n_value = a->head_dim, .n_key = a->n_state,
                               .n_u = spec_scan_columns(a->n_head, a->x_rep, a->head_dim),
                               .n_k = spec_scan_columns(a->n_head, a->b_rep, a->n_state), .n_channel = a->n_channel,
                               .width = a->width, .k_aside = a->select.w != NULL, .chunked = !a->a_per_state };
    return speci_net_recurrent_buffers(out, m, &r, s);
}

static void widths(net_widths *w, const model_branch *b)
{
    const model_mamba *a = b->own;
    w->projection = net_max(w->projection, a->in.n_out);
    w->channel = net_max(w->channel, a->n_channel);
    w->mixed = net_max(w->mixed, a->n_head * a->head_dim);
    if (a->has_norm) w->scan = net_max(w->scan, a->n_head * a->head_dim);
}

/* Projection and convolution; returns the scan's arguments but for b, c, dt. */
static spec_scan_args emit_front(net_emitter *e, const model_mamba *a, const net_buffer *buffer, net_input in)
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
    const int32_t n_recent = buffer[NET_R_RECENT_U].bytes > 0 ? buffer[NET_R_RECENT_U].n : 0;
    return (spec_scan_args){
        .n_head = a->n_head, .head_dim = a->head_dim, .n_state = a->n_state, .x_rep = a->x_rep, .b_rep = a->b_rep,
        .c_rep = a->c_rep, .a = a->a, .a_per_state = a->a_per_state, .d = a->d, .dt_bias = a->dt_bias, .dt_min = a->dt_min,
        .dt_max = a->dt_max, .x = speci_net_columns(conv, a->x_col), .dtype = type, .replay_y = e->replay,
        .replay_ld = a->n_channel, .replay_x_col = a->x_col, .replay_b_col = a->b_col, .b_in_conv = !a->select.w,
        .state = (float *)buffer[NET_R_STATE].base, .cache_dt = (float *)buffer[NET_R_NODE_A].base,
        .cache_b = buffer[NET_R_NODE_K].base, .n_node = e->shape->n_cache,
        .node_state = (float *)buffer[NET_R_NODE_STATE].base, .n_recent_max = n_recent, .chunk = n_recent > 0 ? SPEC_CHUNK : 0,
        .recent_x = buffer[NET_R_RECENT_U].base, .recent_b = buffer[NET_R_RECENT_K].base,
        .recent_dt = (float *)buffer[NET_R_RECENT_A].base,
    };
}

/* Scan, gated norm, projection. Where the gate comes before the norm, the scan applies it: many blocks there, few in a norm of
 * few rows. */
static void emit_back(net_emitter *e, const model_branch *b, spec_scan_args s)
{
    const model_mamba *a = b->own;
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
    speci_net_emit_out(e, b, &a->out, mixed);
}

/* --- Mamba-1: B, C and dt are a second projection of the convolution's output, one dt per channel --- */

static void widths_mamba1(net_widths *w, const model_branch *b)
{
    const model_mamba *a = b->own;
    widths(w, b);
    w->select = net_max(w->select, a->select.n_out), w->dt = net_max(w->dt, a->n_head);
}

static void emit_mamba1(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in)
{
    const model_mamba *a = b->own;
    const spec_view select = speci_net_packed(e->select, a->select.n_out), dt = speci_net_packed(e->dt, a->n_head);
    spec_scan_args s = emit_front(e, a, buffer, in);
    const net_input conv = { .x = speci_net_packed(e->conv, a->n_channel) };
    speci_net_emit_linear(e, &a->select, conv, select, (spec_linear_args){ 0 });
    speci_net_emit_linear(e, &a->dt, (net_input){ .x = select }, dt, (spec_linear_args){ 0 });
    s.b = speci_net_columns(select, a->dt_rank), s.c = speci_net_columns(select, a->dt_rank + a->n_state), s.dt = dt;
    emit_back(e, b, s);
}

const net_mixer speci_mixer_mamba1 = { .name = "mamba1", .bytes = sizeof(model_mamba), .widths = widths_mamba1,
                                       .buffers = buffers, .emit = emit_mamba1 };

/* --- Mamba-2: B and C come out of the convolution, dt out of the projection, one per head --- */

static void emit_mamba2(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in)
{
    const model_mamba *a = b->own;
    spec_scan_args s = emit_front(e, a, buffer, in);
    const spec_view conv = speci_net_packed(e->conv, a->n_channel);
    s.b = speci_net_columns(conv, a->b_col), s.c = speci_net_columns(conv, a->c_col);
    s.dt = speci_net_columns(speci_net_packed(e->projection, a->in.n_out), a->col_dt);
    emit_back(e, b, s);
}

const net_mixer speci_mixer_mamba2 = { .name = "mamba2", .bytes = sizeof(model_mamba), .widths = widths, .buffers = buffers,
                                       .emit = emit_mamba2 };
