/* family_mistral.c - Mistral: Llama with a sliding window in every layer. Source: transformers models/mistral.
 *
 * sliding_window: null is full attention; when the key is absent the class's default, 4096, holds. A key at k is seen
 * from q if q - window < k <= q (masking_utils.py, sliding_window_overlay). */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_mistral(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 131072, .n_kv_head = 8, .eps = 1e-6,
                                                  .rope = speci_rope_whole_head };
    const int32_t fallback = speci_config_present(b->config, "sliding_window") ? 0 : 4096;
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_int_or(b->config, &t.window, "sliding_window", fallback, 1, INT32_MAX));
    return speci_transformer_build(b, &t, NULL);
}
