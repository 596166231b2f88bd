/* family_olmo2.c - OLMo 2 and OLMo 3: branches read the residual as it is and have a norm behind them; one norm over all heads of q,
 * and one over those of k. OLMo 3 has a sliding window in three layers of four, and a scaling of rotary positions in the others
 * alone. Source: transformers models/olmo2, models/olmo3. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

const model_transformer_names speci_bare_names = {
    .embed = "model.embed_tokens.weight", .head = "lm_head", .final_norm = "model.norm", .layers = "model.layers",
    .behind1 = "post_attention_layernorm", .behind2 = "post_feedforward_layernorm", .attention = "self_attn", .mlp = "mlp",
    .out = "o_proj", .q_norm = "q_norm", .k_norm = "k_norm", .gate = "gate_proj", .up = "up_proj", .down = "down_proj",
};

static spec_status build(model_builder *b, const model_transformer_defaults *defaults, model_read_layers read)
{
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "attention_bias", false));
    t.out_bias = t.qkv_bias;
    t.bare = t.qk_norm = t.qk_norm_whole = true, t.names = &speci_bare_names;
    return speci_transformer_build(b, &t, read);
}

spec_status speci_family_olmo2(model_builder *b)
{
    return build(b, &(model_transformer_defaults){ .n_ctx = 2048, .eps = 1e-5, .rope = speci_rope_whole_head }, NULL);
}

static spec_status read_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    int32_t width;
    SPEC_TRY(speci_config_int_or(c, &width, "sliding_window", 4096, 1, INT32_MAX));
    return speci_transformer_windows(c, layers, t->n_layer, width, 4);
}

spec_status speci_family_olmo3(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 2048, .eps = 1e-5, .two_ropes = true,
        .rope = { .theta = "rope_theta", .theta_default = 500000, .partial = "partial_rotary_factor", .partial_default = 1,
                  .whole_head = true, .sliding_theta = SPECI_OLMO3_SLIDING_THETA },
    };
    return build(b, &defaults, read_layers);
}
