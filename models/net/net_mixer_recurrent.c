/* net_mixer_recurrent.c - what recurrent mixers share: the declaration of what S <- a S + k u^T keeps (algorithms.md 8.7). */
#include "models/net/net_mixer.h"

int32_t speci_net_recurrent_buffers(net_buffer *out, const spec_model *m, const net_recurrence *r, const net_shape *s)
{
    const size_t t = speci_dtype_bytes(m->dtype), f = sizeof(float);
    const size_t u = (size_t)r->n_u * t, k = (size_t)r->n_k * t, a = (size_t)r->n_head * f, channels = (size_t)r->n_channel * t;
    const size_t state = (size_t)r->n_head * (size_t)r->n_value * (size_t)r->n_key * f;
    const int32_t n_recent = r->chunked ? s->n_recent_max : 0;
    const net_buffer recent = { .role = NET_RECENT, .n = n_recent, .zeroed = true, .saved = true };
    const net_buffer node = { .role = NET_NODE, .n = s->n_cache, .halves = true };
    out[NET_R_CONV] = (net_buffer){ .role = NET_CONV, .bytes = (size_t)(r->width - 1) * channels, .n = 1, .halves = true,
                                    .zeroed = true, .saved = true };
    out[NET_R_STATE] = (net_buffer){ .role = NET_STATE, .bytes = state, .n = 1, .zeroed = true, .saved = true };
    for (int32_t i = NET_R_RECENT_U; i <= NET_R_RECENT_A; i++) out[i] = recent;
    if (n_recent > 0) out[NET_R_RECENT_U].bytes = u, out[NET_R_RECENT_K].bytes = k, out[NET_R_RECENT_A].bytes = a;
    for (int32_t i = NET_R_NODE_CONV; i <= NET_R_NODE_STATE; i++) out[i] = node;
    out[NET_R_NODE_CONV].bytes = channels, out[NET_R_NODE_A].bytes = a, out[NET_R_NODE_K].bytes = r->k_aside ? k : 0;
    out[NET_R_NODE_STATE].bytes = s->node_state ? state : 0, out[NET_R_NODE_STATE].halves = false;
    return NET_R_N;
}
