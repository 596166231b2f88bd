/* family_gpt_neox.c - GPT-NeoX and Pythia. Source: transformers models/gpt_neox.
 *
 *     x + attention(norm1(x)) + mlp(norm2(x))      use_parallel_residual (the default): both read the same x
 *
 * LayerNorm with bias; part of each head turns; query_key_value holds, head by head, [q; k; v]. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

static const model_transformer_names names = {
    .embed = "gpt_neox.embed_in.weight", .head = "embed_out", .final_norm = "gpt_neox.final_layer_norm",
    .layers = "gpt_neox.layers", .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .attention = "attention",
    .mlp = "mlp", .qkv = "query_key_value", .out = "dense", .up = "dense_h_to_4h", .down = "dense_4h_to_h",
};

spec_status speci_family_gpt_neox(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 2048, .eps_key = "layer_norm_eps", .eps = 1e-5, .act = "gelu",
        .rope = { .theta = "rotary_emb_base", .partial = "rotary_pct", .partial_default = 0.25, .partial_top_counts = true },
    };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    if (t.n_kv_head != t.n_head)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: num_key_value_heads is %d, expected as many as num_attention_heads, %d",
                          b->config->file, t.n_kv_head, t.n_head);
    SPEC_TRY(speci_config_bool_or(b->config, &t.parallel, "use_parallel_residual", true));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "attention_bias", true));
    t.out_bias = t.qkv_bias;
    t.mlp_bias = true;
    t.norm = MODEL_NORM_LAYER;
    t.qkv = MODEL_QKV_BY_GROUP;
    t.ungated = true;
    t.names = &names;
    return speci_transformer_build(b, &t, NULL);
}
