/* family_gemma3.c - Gemma 3, its text models: Gemma with norms on the heads of q and k and behind both branches, a sliding window in
 * five layers of six, and rotary positions of these with a base of their own. Source: transformers models/gemma3. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

#include <math.h>

/* The key of the first files is sliding_window_pattern. */
static spec_status read_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    int32_t width, pattern, old;
    SPEC_TRY(speci_config_int_or(c, &width, "sliding_window", 4096, 1, INT32_MAX));
    SPEC_TRY(speci_config_int_or(c, &old, "sliding_window_pattern", 6, 1, INT32_MAX));
    SPEC_TRY(speci_config_int_or(c, &pattern, "_sliding_window_pattern", old, 1, INT32_MAX));
    SPEC_TRY(speci_transformer_windows(c, layers, t->n_layer, width, pattern));
    speci_config_note(c, "_sliding_window_pattern", json_integer(speci_transformer_period(layers, t->n_layer)));
    return SPEC_OK;
}

spec_status speci_family_gemma3(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 131072, .n_kv_head = 4, .head_dim = 256, .eps = 1e-6, .tied = true, .act = "gelu_pytorch_tanh", .two_ropes = true,
        .rope = { .theta = "rope_theta", .theta_default = 1000000, .partial = "partial_rotary_factor", .partial_default = 1,
                  .whole_head = true, .sliding_theta = "rope_local_base_freq", .sliding_default = 10000 },
    };
    model_transformer t;
    double scalar;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "attention_bias", false));
    SPEC_TRY(speci_gemma_one_activation(b->config, &t));
    SPEC_TRY(speci_config_number_or(b->config, &scalar, "query_pre_attn_scalar", 256, 1e-6, 1e6));
    SPEC_TRY(speci_config_agree_bool(b->config, "use_bidirectional_attention", false));
    t.out_bias = t.qkv_bias, t.qk_norm = true, t.names = &speci_gemma_names;
    t.attention_scale = 1 / sqrt(scalar);
    b->norms_from_one = true;
    SPEC_TRY(speci_transformer_build(b, &t, read_layers));
    b->model->embed_scale = (float)sqrt(t.dim);
    return SPEC_OK;
}
