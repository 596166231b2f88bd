/* family_llama.c - Llama 1 to 3 and what keeps to its class. Source: transformers models/llama. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_llama(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 2048, .eps = 1e-6, .rope = speci_rope_whole_head };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_transformer_read_biases(b->config, &t));
    return speci_transformer_build(b, &t, NULL);
}
