/* net_mixer_short_conv.h - the short convolution as data: for families that have such layers. Internal. */
#ifndef SPEC_NET_MIXER_SHORT_CONV_H
#define SPEC_NET_MIXER_SHORT_CONV_H

#include "models/model.h"

/* y = W_out (C * conv(B * x)), [B | C | x] = W_in u: a causal convolution between two gates. */
typedef struct model_short_conv {
    model_linear in, out;
    int32_t n_channel, width;
    const float *conv_weight; /* device [n_channel][width], last tap newest */
    const float *conv_bias;   /* device [n_channel] or NULL */
} model_short_conv;

extern const net_mixer speci_mixer_short_conv;

#endif
