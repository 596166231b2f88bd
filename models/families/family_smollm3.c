/* family_smollm3.c - SmolLM3: Llama with layers whose heads do not turn, every fourth unless no_rope_layers says which.
 * Source: transformers models/smollm3. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

/* no_rope_layers: for each layer 1 where heads turn, 0 where they do not. */
static spec_status read_no_rope(model_config *c, model_transformer_layer *layers, int32_t n_layer)
{
    int32_t interval;
    SPEC_TRY(speci_config_int_or(c, &interval, "no_rope_layer_interval", 4, 1, INT32_MAX));
    const json_t *turns = speci_config_take(c, "no_rope_layers");
    if (turns && json_array_size(turns) < (size_t)n_layer)
        return speci_fail(SPEC_E_FORMAT, "%s: no_rope_layers has %zu entries, expected %d (num_hidden_layers)", c->file,
                          json_array_size(turns), n_layer);
    for (int32_t i = 0; i < n_layer; i++) {
        const json_t *v = json_array_get(turns, (size_t)i);
        if (turns && (!json_is_integer(v) || (json_integer_value(v) != 0 && json_integer_value(v) != 1)))
            return speci_fail(SPEC_E_FORMAT, "%s: no_rope_layers[%d] is %s, expected 0 or 1", c->file, i, speci_value_of(v).s);
        layers[i].no_rope = turns ? json_integer_value(v) == 0 : (i + 1) % interval == 0;
    }
    return SPEC_OK;
}

/* A window counts with use_sliding_window only: in the layers that do not turn, unless layer_types says which. */
static spec_status read_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    bool use;
    int32_t width;
    SPEC_TRY(read_no_rope(c, layers, t->n_layer));
    SPEC_TRY(speci_config_bool_or(c, &use, "use_sliding_window", false));
    SPEC_TRY(speci_config_int_or(c, &width, "sliding_window", 0, 1, INT32_MAX));
    (void)speci_config_take(c, "max_window_layers"); /* in the files, and without a meaning for the class */
    if (!use) width = 0;
    for (int32_t i = 0; i < t->n_layer; i++) layers[i].window = layers[i].no_rope ? width : 0;
    return speci_transformer_layer_types(c, layers, t->n_layer, width,
                                         use ? "sliding_window is null" : "use_sliding_window is false");
}

spec_status speci_family_smollm3(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 32768, .n_kv_head = 4, .eps = 1e-6, .tied = true,
                                                  .rope = { .theta = "rope_theta", .theta_default = 2000000,
                                                            .partial = "partial_rotary_factor", .partial_default = 1,
                                                            .whole_head = true } };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    SPEC_TRY(speci_transformer_read_biases(b->config, &t));
    return speci_transformer_build(b, &t, read_layers);
}
