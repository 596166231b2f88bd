/* family_seed_oss.c - Seed-OSS: Llama with biases of q, k and v, and a head size of its own. Source: transformers models/seed_oss. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_seed_oss(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 524288, .n_kv_head = 8, .head_dim = 128, .eps = 1e-6,
                                                  .rope = speci_rope_whole_head };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "attention_bias", true));
    SPEC_TRY(speci_config_bool_or(b->config, &t.out_bias, "attention_out_bias", false));
    SPEC_TRY(speci_config_bool_or(b->config, &t.mlp_bias, "mlp_bias", false));
    return speci_transformer_build(b, &t, NULL);
}
