/* family_starcoder2.c - StarCoder2: layer norms, biases everywhere, an MLP without a gate, and a sliding window.
 * Source: transformers models/starcoder2. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

/* In the files; the class knows one value of each. */
static spec_status read_fixed(model_config *c)
{
    SPEC_TRY(speci_config_agree_text(c, "mlp_type", "default"));
    SPEC_TRY(speci_config_agree_text(c, "norm_type", "layer_norm"));
    return speci_config_agree_bool(c, "scale_attn_weights", true);
}

spec_status speci_family_starcoder2(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 4096, .n_kv_head = 2, .eps_key = "norm_epsilon", .eps = 1e-5,
                                                  .tied = true, .act = "gelu_pytorch_tanh", .rope = speci_rope_whole_head };
    model_transformer_names names = speci_llama_names;
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "use_bias", true));
    SPEC_TRY(speci_config_int_or(b->config, &t.window, "sliding_window", 0, 1, INT32_MAX));
    if (t.window == 0) speci_config_note(b->config, "sliding_window", json_null());
    SPEC_TRY(read_fixed(b->config));
    t.out_bias = t.mlp_bias = t.qkv_bias;
    t.norm = MODEL_NORM_LAYER;
    t.ungated = true;
    names.up = "c_fc", names.down = "c_proj";
    t.names = &names;
    return speci_transformer_build(b, &t, NULL);
}
