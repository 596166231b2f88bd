/* model_qwen2.c - Qwen2 and Qwen2.5: Llama with biases on q, k and v, and windows that released files switch off.
 * Source: transformers models/qwen2. */
#include "models/model_family.h"
#include "models/model_transformer.h"

spec_status model_family_qwen2(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 32768, .n_kv_head = 32, .eps = 1e-6,
                                                  .rope = model_rope_whole_head };
    model_transformer t;
    SPEC_TRY(model_transformer_read(b->config, &t, &defaults));
    t.qkv_bias = true; /* the class has them whatever the config says */
    return model_qwen_build(b, &t);
}
