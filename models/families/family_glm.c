/* family_glm.c - GLM-4 of 2024 (glm-4-9b): Llama with biases on q, k and v, gate and up in one tensor, and the first half of each
 * head turning in neighbouring pairs. Source: transformers models/glm. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_glm_read(model_config *c, model_transformer *t)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 131072, .n_kv_head = 2, .head_dim = 128, .eps = 1.5625e-7,
        .rope = { .theta = "rope_theta", .partial = "partial_rotary_factor", .partial_default = 0.5,
                  .partial_top_counts = true },
    };
    SPEC_TRY(speci_transformer_read(c, t, &defaults));
    SPEC_TRY(speci_config_bool_or(c, &t->qkv_bias, "attention_bias", true));
    t->fused_mlp = true;
    t->interleaved = true;
    return SPEC_OK;
}

/* q, k and v are one tensor in GGUF files of the first layout. */
spec_status speci_family_glm(model_builder *b)
{
    model_transformer t;
    SPEC_TRY(speci_glm_read(b->config, &t));
    if (speci_checkpoint_find(b->checkpoint, "model.layers.0.self_attn.qkv_proj.weight")) t.qkv = MODEL_QKV_FUSED;
    return speci_transformer_build(b, &t, NULL);
}
