/* family_eagle2.c - heads of EAGLE 1 and 2: one layer over fc([embedding; feature]); no norm in front of attention, none at the end.
 * Sources: SafeAILab/EAGLE eagle/model/cnets1.py, configs.py. Its config says "llama" or "qwen2": the tensor fc.weight tells. */
#include "models/families/family.h"
#include "models/families/family_head.h"

bool speci_is_eagle2(const model_config *config, const model_checkpoint *checkpoint)
{
    (void)config;
    return speci_head_has(checkpoint, "fc.weight") && speci_head_has(checkpoint, "layers.0.self_attn.q_proj.weight") &&
           !speci_head_has(checkpoint, "layers.0.hidden_norm.weight");
}

spec_status speci_family_eagle2(model_builder *b)
{
    model_transformer t;
    bool bias;
    (void)speci_config_take(b->config, "qkv_bias"); /* as the tensors are */
    SPEC_TRY(speci_head_read(b->config, &t));
    SPEC_TRY(speci_config_bool_or(b->config, &bias, "bias", speci_head_has(b->checkpoint, "fc.bias")));
    SPEC_TRY(speci_head_begin(b, &t, "EAGLE-2", t.dim));
    spec_model *m = b->model;
    model_intake *in = m->intake;
    in->after_norm = true;
    SPEC_TRY(speci_model_build_linear(b, &in->fuse, "fc", t.dim, 2 * t.dim, bias));
    SPEC_TRY(speci_head_layer(b, &t, "layers.0"));
    m->final_norm = (model_norm){ .kind = SPEC_NORM_NONE, .dim = t.dim, .n_group = 1 };
    return speci_head_embedding(b);
}
