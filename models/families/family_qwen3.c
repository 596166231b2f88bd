/* family_qwen3.c - Qwen3: Llama with norms on the heads of q and k before they turn, and a head size of its own.
 * Source: transformers models/qwen3. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_qwen3(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 32768, .n_kv_head = 32, .head_dim = 128, .eps = 1e-6,
                                                  .rope = speci_rope_whole_head };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_bool_or(b->config, &t.qkv_bias, "attention_bias", false));
    t.out_bias = t.qkv_bias;
    t.qk_norm = true;
    return speci_qwen_build(b, &t);
}
