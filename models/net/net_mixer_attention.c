/* net_mixer_attention.c - softmax attention over a KV cache. Keeps K and V of every position. */
#include "models/net/net_mixer_attention.h"

#include "models/net/net_mixer.h"

static void widths(net_widths *w, const model_branch *b)
{
    const model_attention *a = b->own;
    w->projection = net_max(w->projection, a->qkv.n_out);
    w->mixed = net_max(w->mixed, a->n_head * a->head_dim);
}

static int32_t buffers(net_buffer *out, const spec_model *m, const model_branch *b, const net_shape *s)
{
    const model_attention *a = b->own;
    (void)s;
    out[0] = out[1] = (net_buffer){ .role = NET_KV, .bytes = (size_t)a->head_dim * speci_dtype_bytes(m->dtype), .n = a->n_kv_head,
                                    .saved = true };
    return 2;
}

static spec_kv kv_of(const net_emitter *e, const model_attention *a, const net_buffer *buffer)
{
    return (spec_kv){ .k = buffer[0].base, .v = buffer[1].base, .dtype = e->model->dtype, .n_page = e->shape->n_page,
                      .n_kv_head = a->n_kv_head, .head_dim = a->head_dim };
}

/* One set of frequencies for all positions of all sequences, by the longest that a sequence can become: keys that are in the cache
 * could not be turned anew when a sequence outgrows a length. */
static const float *frequencies(const net_emitter *e, const model_attention *a)
{
    return speci_net_is_long(e->shape, a->n_short) ? a->inv_freq_long : a->inv_freq;
}

/* Of columns of qkv, in place. */
static void emit_whole_norms(net_emitter *e, const model_attention *a, spec_view qkv)
{
    const spec_view k = speci_net_columns(qkv, a->n_head * a->head_dim);
    if (!a->q_whole.weight) return;
    (void)speci_net_emit_norm(e, &a->q_whole, qkv, (spec_view){ 0 }, 0, qkv);
    (void)speci_net_emit_norm(e, &a->k_whole, k, (spec_view){ 0 }, 0, k);
}

static void emit(net_emitter *e, const model_branch *b, const net_buffer *buffer, net_input in)
{
    const model_attention *a = b->own;
    const spec_kv kv = kv_of(e, a, buffer);
    const int32_t n_qkv = (a->n_head + 2 * a->n_kv_head) * a->head_dim;
    const spec_view qkv = speci_net_packed(e->projection, n_qkv), y = speci_net_packed(e->mixed, a->n_head * a->head_dim);
    speci_net_emit_linear(e, &a->qkv, in, qkv, (spec_linear_args){ 0 });
    emit_whole_norms(e, a, qkv);
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_ROPE_KV,
                                    .u.rope_kv = { .qkv = qkv, .n_head = a->n_head, .q_norm = a->q_norm,
                                                   .k_norm = a->k_norm, .eps = a->qk_eps, .inv_freq = frequencies(e, a),
                                                   .n_rot = a->n_rot, .kv = kv, .gain = a->gain } });
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_ATTENTION,
                                    .u.attention = { .q = qkv, .n_head = a->n_head, .scale = a->scale,
                                                     .window = a->window, .kv = kv, .y = y, .cap = a->cap } });
    speci_net_emit_out(e, b, &a->out, (net_input){ .x = y });
}

/* The caches of all layers are compacted by one operation. */
static void front(net_emitter *e)
{
    net_plans *p = e->plans;
    int32_t branch = 0;
    p->n_kv = 0;
    for (int32_t i = 0; i < e->model->n_layer; i++)
        for (int32_t j = 0; j < e->model->layers[i].n_branch; j++, branch++) {
            const model_branch *b = &e->model->layers[i].branch[j];
            if (b->mixer != &speci_mixer_attention) continue;
            if (p->kv && p->kept) p->kv[p->n_kv] = kv_of(e, b->own, p->kept[branch].buffer);
            p->n_kv++;
        }
    speci_net_emit_op(e, (spec_op){ .kind = SPEC_OP_KV_COMMIT, .u.kv_commit = { .layers = p->kv, .n_layer = p->n_kv } });
}

static int32_t n_short(const model_branch *b)
{
    const model_attention *a = b->own;
    return a->n_short;
}

const net_mixer speci_mixer_attention = { .name = "attention", .bytes = sizeof(model_attention), .widths = widths,
                                          .buffers = buffers, .emit = emit, .front = front, .n_short = n_short };
