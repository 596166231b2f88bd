/* family_ssm.h - what the pure state-space models share: one mixer per layer, names below "backbone". Internal. */
#ifndef SPEC_MODEL_SSM_H
#define SPEC_MODEL_SSM_H

#include "models/families/family_build.h"

#define MODEL_STATE_MAX 65536
#define MODEL_EXPAND_MAX 16
#define MODEL_SSM_EPS 1e-5 /* of all norms in the original layout: defaults of mamba_ssm's modules */

typedef struct model_ssm {
    int32_t dim, n_layer, n_vocab;
    double eps;
    bool tied;
    const char *embed; /* "backbone.embeddings.weight"; the original layout says "embedding" */
} model_ssm;

/* config.json of the transformers classes: sizes, eps, hidden_act, and the keys that both Mambas have. */
spec_status speci_ssm_read(model_config *c, model_ssm *out, bool tied_default);
/* config.json of the original layout (mamba_ssm MambaConfig); vocab_size is padded as its model pads it. */
spec_status speci_ssm_read_original(model_config *c, model_ssm *out);
/* No model_type, but the original's keys. *layer: "Mamba1" or "Mamba2" or what the file says. */
bool speci_ssm_is_original(const model_config *c, const char **layer);

/* mixer: makes the mixer of a layer, its kind included, from its names below `prefix`. */
typedef spec_status (*model_ssm_mixer)(model_builder *b, model_branch *out, const char *prefix, const void *shape);
spec_status speci_ssm_build(model_builder *b, const model_ssm *s, model_ssm_mixer mixer, const void *shape);

#endif
