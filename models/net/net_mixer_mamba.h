/* net_mixer_mamba.h - Mamba-1 and Mamba-2 as data: for families that have such layers. Internal. */
#ifndef SPEC_NET_MIXER_MAMBA_H
#define SPEC_NET_MIXER_MAMBA_H

#include "models/model.h"

/* Mamba-1 and Mamba-2 alike: projection, causal convolution, selective scan, gate, projection.
 * The projection's row is cut into pieces by column: z (gate), u (the convolution's channels), and for Mamba-2 dt
 * (one per head). The convolution's output row holds x at column x_col and, for Mamba-2, B and C.
 * Mamba-1 (select.w != NULL): a second projection `select` of the convolution's output gives [dt_low | B | C], and
 * `dt` raises dt_low to one dt per channel; its bias is dt_bias, added in the scan. */
typedef struct model_mamba {
    model_linear in, out;
    int32_t col_z, col_u, col_dt;      /* columns of the projection; col_dt unused for Mamba-1 */
    int32_t n_channel, width;          /* convolution */
    const float *conv_weight;          /* device [n_channel][width], last tap newest */
    const float *conv_bias;            /* device [n_channel] or NULL */
    int32_t n_head, head_dim, n_state; /* inner size = n_head * head_dim; Mamba-1: head_dim 1 */
    int32_t x_rep, b_rep, c_rep;       /* head h reads block h / rep */
    int32_t x_col, b_col, c_col;       /* columns of the convolution's output (b, c: Mamba-2) */
    model_linear select, dt;           /* Mamba-1 only */
    int32_t dt_rank;                   /* Mamba-1: select's row is [dt_rank | n_state | n_state] */
    const float *a;                    /* device: -exp(A_log), [n_head] or [n_head][n_state] */
    int32_t a_per_state;
    const float *d, *dt_bias;          /* device [n_head] */
    float dt_min, dt_max;
    int32_t has_norm, norm_first;      /* gated norm; without one the scan multiplies by silu(z) */
    model_norm norm;                   /* over n_head * head_dim, n_group groups */
} model_mamba;

extern const net_mixer speci_mixer_mamba1, speci_mixer_mamba2;

#endif
