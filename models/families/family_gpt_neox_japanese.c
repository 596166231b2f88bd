/* family_gpt_neox_japanese.c - GPT-NeoX Japanese: GPT-NeoX with attention and MLP one behind the other, whole heads turning, and no
 * biases but that of the last layer's attention. Source: transformers models/gpt_neox_japanese. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

static const model_transformer_names names = {
    .embed = "gpt_neox_japanese.embed_in.weight", .head = "embed_out", .final_norm = "gpt_neox_japanese.final_layer_norm",
    .layers = "gpt_neox_japanese.layers", .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .attention = "attention",
    .mlp = "mlp", .qkv = "query_key_value", .out = "dense", .up = "dense_h_to_4h", .down = "dense_4h_to_h",
};

static spec_status read_config(model_config *c, model_transformer *t)
{
    model_transformer_defaults defaults = {
        .n_ctx = 2048, .eps_key = "layer_norm_eps", .eps = 1e-5, .tied = true, .act = "gelu",
        .rope = { .theta = "rotary_emb_base", .partial = "rotary_pct", .partial_default = 1, .partial_top_counts = true },
    };
    SPEC_TRY(speci_config_int_or(c, &defaults.n_inner_times, "intermediate_multiple_size", 4, 1, 1024));
    SPEC_TRY(speci_transformer_read(c, t, &defaults));
    if (t->n_kv_head != t->n_head || t->n_inner != (int64_t)t->dim * defaults.n_inner_times)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: num_key_value_heads is %d and intermediate_size is %d, expected %d and %lld, which this "
                          "family has", c->file, t->n_kv_head, t->n_inner, t->n_head, (long long)t->dim * defaults.n_inner_times);
    return SPEC_OK;
}

spec_status speci_family_gpt_neox_japanese(model_builder *b)
{
    model_transformer t;
    SPEC_TRY(read_config(b->config, &t));
    t.norm = MODEL_NORM_LAYER;
    t.qkv = MODEL_QKV_BY_GROUP;
    t.ungated = true;
    t.names = &names;
    SPEC_TRY(speci_transformer_build(b, &t, NULL));
    model_attention *last = b->model->layers[t.n_layer - 1].branch[0].own;
    return speci_model_build_vector(b, &last->out.bias, speci_namef("%s.%d.attention.dense_bias", names.layers, t.n_layer - 1).s, t.dim);
}
