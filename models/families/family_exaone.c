/* family_exaone.c - EXAONE 3 and 3.5: Llama, with other names of keys and tensors. Source: transformers models/exaone,
 * conversion_mapping.py; the keys of its files are those of the code that comes with them. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

static const model_transformer_names names = {
    .embed = "transformer.wte.weight", .head = "lm_head", .final_norm = "transformer.ln_f", .layers = "transformer.h",
    .norm1 = "ln_1", .norm2 = "ln_2", .attention = "attn.attention", .mlp = "mlp", .out = "out_proj",
    .gate = "c_fc_0", .up = "c_fc_1", .down = "c_proj",
};

spec_status speci_family_exaone(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 4096, .n_kv_head = 8, .eps = 1e-5,
        .rope = { .theta = "rope_theta", .theta_default = 500000, .partial = "partial_rotary_factor", .partial_default = 1,
                  .whole_head = true },
    };
    model_transformer t;
    SPEC_TRY(speci_config_also(b->config, "num_hidden_layers", "num_layers"));
    SPEC_TRY(speci_config_also(b->config, "rms_norm_eps", "layer_norm_epsilon"));
    SPEC_TRY(speci_config_also(b->config, "hidden_act", "activation_function"));
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_transformer_read_biases(b->config, &t));
    t.names = &names;
    return speci_transformer_build(b, &t, NULL);
}
