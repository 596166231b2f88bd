/* net_mixer_attention.h - softmax attention over a KV cache, as data: for families that have such layers. Internal. */
#ifndef SPEC_NET_MIXER_ATTENTION_H
#define SPEC_NET_MIXER_ATTENTION_H

#include "models/model.h"

/* Softmax attention over a KV cache; rotary positions over the first n_rot dimensions of a head. */
typedef struct model_attention {
    int32_t n_head, n_kv_head, head_dim, n_rot;
    int32_t window;               /* sliding window in positions; 0 = none */
    float scale;                  /* 1 / sqrt(head_dim) unless the family says otherwise */
    float cap;                    /* scores are softly capped at it; 0 = none */
    float gain;                   /* of the dimensions that turn; 0 = 1 */
    model_linear qkv;             /* rows [q | k | v], heads in order */
    model_linear out;
    const float *q_norm, *k_norm; /* device [head_dim] or NULL */
    float qk_eps;
    model_norm q_whole, k_whole;  /* over all heads of q, of k, at once; weight NULL: none */
    const float *inv_freq;        /* device [n_rot / 2] */
    int32_t n_short;              /* 0, or the longest context that inv_freq is for; longer ones have inv_freq_long */
    const float *inv_freq_long;
} model_attention;

extern const net_mixer speci_mixer_attention;

#endif
