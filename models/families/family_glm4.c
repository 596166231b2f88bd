/* family_glm4.c - GLM-4 of 2025 (GLM-4-0414): GLM with norms behind both branches. Source: transformers models/glm4. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

static const model_transformer_names names = {
    .embed = "model.embed_tokens.weight", .head = "lm_head", .final_norm = "model.norm", .layers = "model.layers",
    .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .behind1 = "post_self_attn_layernorm",
    .behind2 = "post_mlp_layernorm", .attention = "self_attn", .mlp = "mlp", .out = "o_proj", .gate_up = "gate_up_proj",
    .down = "down_proj",
};

spec_status speci_family_glm4(model_builder *b)
{
    model_transformer t;
    SPEC_TRY(speci_glm_read(b->config, &t));
    t.names = &names;
    return speci_transformer_build(b, &t, NULL);
}
