/* net_mixer_mlp.h - the MLP as data: for families that have such layers. Internal. */
#ifndef SPEC_NET_MIXER_MLP_H
#define SPEC_NET_MIXER_MLP_H

#include "models/model.h"

typedef struct model_mlp {
    model_linear up;   /* glu: rows [gate | up], of one weight or, of unlike blocks, of several */
    model_linear down;
    spec_activation act;
    int32_t glu;
    int32_t n_inner;   /* columns between up and down */
} model_mlp;

extern const net_mixer speci_mixer_mlp;

#endif
