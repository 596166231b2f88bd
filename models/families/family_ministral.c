/* family_ministral.c - Ministral: Mistral with a window in the layers that layer_types says. Source: transformers
 * models/ministral. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

spec_status speci_family_ministral(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 131072, .n_kv_head = 8, .eps = 1e-6,
                                                  .rope = speci_rope_whole_head };
    const int32_t fallback = speci_config_present(b->config, "sliding_window") ? 0 : 4096;
    model_transformer t;
    model_transformer_layer *layers;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_config_int_or(b->config, &t.window, "sliding_window", fallback, 1, INT32_MAX));
    SPEC_TRY(speci_transformer_layers(b, &layers, &t));
    spec_status status = speci_transformer_layer_types(b->config, layers, t.n_layer, t.window,
                                                       "sliding_window is null");
    if (status == SPEC_OK) status = speci_transformer_build(b, &t, layers);
    speci_free(b->model->allocator, layers);
    return status;
}
