/* family_mistral.c - Mistral: Llama with a sliding window in every layer. Source: transformers models/mistral.
 *
 * sliding_window: null is full attention; when the key is absent the class's default, 4096, holds. A key at k is seen
 * from q if q - window < k <= q (masking_utils.py, sliding_window_overlay). */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_mistral_read(model_config *c, model_transformer *t)
{
    const model_transformer_defaults defaults = { .n_ctx = 131072, .n_kv_head = 8, .eps = 1e-6,
                                                  .rope = speci_rope_whole_head };
    const int32_t fallback = speci_config_present(c, "sliding_window") ? 0 : 4096;
    SPEC_TRY(speci_transformer_read(c, t, &defaults));
    return speci_config_int_or(c, &t->window, "sliding_window", fallback, 1, INT32_MAX);
}

spec_status speci_family_mistral(model_builder *b)
{
    model_transformer t;
    SPEC_TRY(speci_mistral_read(b->config, &t));
    return speci_transformer_build(b, &t, NULL);
}
