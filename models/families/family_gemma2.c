/* family_gemma2.c - Gemma 2: Gemma with norms behind both branches, a sliding window in every other layer, and soft caps of scores and
 * of logits. Source: transformers models/gemma2. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

#include <math.h>

const model_transformer_names speci_gemma_names = {
    .embed = "model.embed_tokens.weight", .head = "lm_head", .final_norm = "model.norm", .layers = "model.layers",
    .norm1 = "input_layernorm", .norm2 = "pre_feedforward_layernorm", .behind1 = "post_attention_layernorm",
    .behind2 = "post_feedforward_layernorm", .attention = "self_attn", .mlp = "mlp", .out = "o_proj", .q_norm = "q_norm",
    .k_norm = "k_norm", .gate = "gate_proj", .up = "up_proj", .down = "down_proj",
};

static spec_status read_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    static const char gguf_pattern[] = "_sliding_window_pattern"; /* of newer files */
    int32_t width;
    SPEC_TRY(speci_config_int_or(c, &width, "sliding_window", 4096, 1, INT32_MAX));
    SPEC_TRY(speci_config_agree(c, "sliding_window_size", width)); /* in published files; not read by the class */
    SPEC_TRY(speci_config_agree(c, gguf_pattern, 2));
    SPEC_TRY(speci_transformer_windows(c, layers, t->n_layer, width, 2));
    speci_config_note(c, gguf_pattern, json_integer(speci_transformer_period(layers, t->n_layer)));
    return SPEC_OK;
}

/* null is none; without the key there is the class's. */
static spec_status read_cap(model_config *c, double *out, const char *key, double otherwise)
{
    return speci_config_number_or(c, out, key, speci_config_present(c, key) ? 0 : otherwise, 1e-3, 1e6);
}

spec_status speci_family_gemma2(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 8192, .n_kv_head = 4, .head_dim = 256, .eps = 1e-6, .tied = true,
                                                  .act = "gelu_pytorch_tanh", .rope = speci_rope_whole_head };
    model_transformer t;
    double scalar, logit_cap;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "attention_bias", false));
    SPEC_TRY(speci_gemma_one_activation(b->config, &t));
    SPEC_TRY(speci_config_number_or(b->config, &scalar, "query_pre_attn_scalar", 256, 1e-6, 1e6));
    SPEC_TRY(speci_config_agree_bool(b->config, "use_bidirectional_attention", false));
    SPEC_TRY(read_cap(b->config, &t.attention_cap, "attn_logit_softcapping", 50));
    SPEC_TRY(read_cap(b->config, &logit_cap, "final_logit_softcapping", 30));
    (void)speci_config_take(b->config, "cache_implementation"); /* of generate */
    t.out_bias = t.qkv_bias, t.names = &speci_gemma_names;
    t.attention_scale = 1 / sqrt(scalar);
    b->norms_from_one = true;
    SPEC_TRY(speci_transformer_build(b, &t, read_layers));
    b->model->embed_scale = (float)sqrt(t.dim), b->model->logit_cap = (float)logit_cap;
    return SPEC_OK;
}
