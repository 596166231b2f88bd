/* family_layers.c - which layers of a model are of which kind, as configs say it: a list of types, or of numbers, or a pattern. */
#include "models/families/family_transformer.h"

#include <string.h>

spec_status speci_transformer_check_layers(const model_config *c, const char *key, const json_t *list, int32_t n_layer)
{
    if (json_array_size(list) == (size_t)n_layer) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: %s has %zu entries, expected %d (num_hidden_layers)", c->file, key, json_array_size(list),
                      n_layer);
}

spec_status speci_transformer_layer_numbers(model_config *c, const json_t **out, const char *key, int32_t n_layer)
{
    const json_t *list = *out = speci_config_take(c, key);
    if (list && !json_is_array(list))
        return speci_fail(SPEC_E_FORMAT, "%s: %s is %s, expected a list of layers", c->file, key, speci_value_of(list).s);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= n_layer)
            return speci_fail(SPEC_E_FORMAT, "%s: %s[%zu] is %s, expected a layer below %d", c->file, key, i, speci_value_of(v).s, n_layer);
    }
    return SPEC_OK;
}

bool speci_transformer_is_listed(const json_t *list, int32_t layer)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == layer) return true;
    return false;
}

spec_status speci_transformer_layer_types(model_config *c, model_transformer_layer *layers, int32_t n_layer,
                                          int32_t width, const char *off)
{
    const json_t *types = speci_config_take(c, "layer_types");
    if (!types) return SPEC_OK;
    SPEC_TRY(speci_transformer_check_layers(c, "layer_types", types, n_layer));
    for (int32_t i = 0; i < n_layer; i++) {
        const json_t *v = json_array_get(types, (size_t)i);
        const char *type = json_is_string(v) ? json_string_value(v) : "";
        const bool slides = strcmp(type, "sliding_attention") == 0;
        if (!slides && strcmp(type, "full_attention") != 0)
            return speci_fail(SPEC_E_UNSUPPORTED,
                              "%s: layer_types[%d] is %s, expected full_attention or sliding_attention", c->file, i,
                              speci_value_of(v).s);
        if (slides && width == 0)
            return speci_fail(SPEC_E_FORMAT, "%s: layer_types[%d] is sliding_attention, but %s", c->file, i, off);
        layers[i].window = slides ? width : 0;
    }
    return SPEC_OK;
}

spec_status speci_transformer_windows(model_config *c, model_transformer_layer *layers, int32_t n_layer, int32_t width, int32_t pattern)
{
    for (int32_t i = 0; i < n_layer; i++) layers[i].window = (i + 1) % pattern ? width : 0;
    return speci_transformer_layer_types(c, layers, n_layer, width, "sliding_window is null");
}

int32_t speci_transformer_period(const model_transformer_layer *layers, int32_t n_layer)
{
    int32_t period = 1;
    while (period <= n_layer && layers[period - 1].window > 0) period++;
    for (int32_t i = 0; i < n_layer; i++)
        if ((layers[i].window == 0) != ((i + 1) % period == 0)) return 0;
    return period;
}

/* Qwen2Config, Qwen3Config: sliding_window counts with use_sliding_window only, for layers from max_window_layers on,
 * unless layer_types says which. */
static spec_status qwen_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    bool use;
    int32_t width = 4096, first;
    SPEC_TRY(speci_config_bool_or(c, &use, "use_sliding_window", false));
    SPEC_TRY(speci_config_int_or(c, &width, "sliding_window",
                                 speci_config_present(c, "sliding_window") ? 0 : width, 1, INT32_MAX));
    SPEC_TRY(speci_config_int_or(c, &first, "max_window_layers", 28, 0, INT32_MAX));
    if (!use) width = 0;
    for (int32_t i = 0; i < t->n_layer; i++) layers[i].window = i >= first ? width : 0;
    return speci_transformer_layer_types(c, layers, t->n_layer, width,
                                         use ? "sliding_window is null" : "use_sliding_window is false");
}

spec_status speci_qwen_build(model_builder *b, const model_transformer *t)
{
    return speci_transformer_build(b, t, qwen_layers);
}
