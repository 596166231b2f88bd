/* family_cohere.c - Cohere's Command R and Aya: layer norms without a bias, attention and MLP side by side behind one norm,
 * heads that turn in neighbouring pairs, scaled logits. Source: transformers models/cohere. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_cohere_build(model_builder *b, const model_transformer_defaults *defaults, model_read_layers read)
{
    model_transformer_names names = speci_llama_names;
    model_transformer t;
    double scale;
    SPEC_TRY(speci_transformer_read(b->config, &t, defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "attention_bias", false));
    SPEC_TRY(speci_config_number_or(b->config, &scale, "logit_scale", 0.0625, 1e-6, 1e6));
    t.out_bias = t.qkv_bias;
    t.norm = MODEL_NORM_LAYER_SCALE;
    t.parallel = t.interleaved = true;
    names.norm2 = NULL;
    t.names = &names;
    SPEC_TRY(speci_transformer_build(b, &t, read));
    b->model->logit_scale = (float)scale;
    return SPEC_OK;
}

spec_status speci_family_cohere(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 8192, .eps_key = "layer_norm_eps", .eps = 1e-5, .tied = true,
        .rope = { .theta = "rope_theta", .theta_default = 500000, .partial = "partial_rotary_factor", .partial_default = 1,
                  .whole_head = true },
    };
    return speci_cohere_build(b, &defaults, NULL);
}
