/* family_qwen2.c - Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows that released files switch off.
 * Source: transformers models/qwen2. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_qwen2(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 32768, .n_kv_head = 32, .eps = 1e-6,
                                                  .rope = speci_rope_whole_head };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    t.qkv_bias = true; /* the class has them whatever the config says */
    return speci_qwen_build(b, &t);
}
