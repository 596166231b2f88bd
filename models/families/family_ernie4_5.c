/* family_ernie4_5.c - Ernie 4.5, dense: Llama whose heads turn in neighbouring pairs; one key for all biases.
 * Source: transformers models/ernie4_5. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_ernie4_5(model_builder *b)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 131072, .n_kv_head = 2, .head_dim = 128, .eps = 1e-5, .tied = true,
        .rope = { .theta = "rope_theta", .theta_default = 500000, .partial = "partial_rotary_factor", .partial_default = 1,
                  .whole_head = true },
    };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "use_bias", false));
    SPEC_TRY(speci_config_agree(b->config, "compression_ratio", 1)); /* of positions, in the first files' own code */
    t.out_bias = t.mlp_bias = t.qkv_bias;
    t.interleaved = true;
    return speci_transformer_build(b, &t, NULL);
}
