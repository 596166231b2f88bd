/* family_exaone4.c - EXAONE 4: branches read the residual as it is and have a norm behind them; norms on the heads of q and k; where
 * some layers have a sliding window, the heads of the others do not turn. Source: transformers models/exaone4. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

#include <string.h>

/* sliding_window_pattern: every so-many-th layer is without a window; or one letter a layer, L with and G without, as often as it
 * takes. */
static spec_status read_pattern(model_config *c, model_transformer_layer *layers, int32_t n_layer, int32_t width)
{
    const json_t *v = json_object_get(c->root, "sliding_window_pattern");
    const char *text = json_string_value(v);
    int32_t pattern;
    if (!text) {
        SPEC_TRY(speci_config_int_or(c, &pattern, "sliding_window_pattern", 4, width > 0 ? 1 : 0, INT32_MAX));
        return speci_transformer_windows(c, layers, n_layer, width, width > 0 ? pattern : 1);
    }
    (void)speci_config_take(c, "sliding_window_pattern");
    const size_t n = strlen(text);
    if (n == 0 || strspn(text, "LG") != n)
        return speci_fail(SPEC_E_FORMAT, "%s: sliding_window_pattern is \"%.60s\", expected the letters L and G", c->file, text);
    for (int32_t i = 0; i < n_layer; i++) layers[i].window = i + 1 < n_layer && text[(size_t)i % n] == 'L' ? width : 0;
    return speci_transformer_layer_types(c, layers, n_layer, width, "sliding_window is null");
}

static spec_status read_layers(model_config *c, model_transformer_layer *layers, const model_transformer *t)
{
    const int32_t fallback = speci_config_present(c, "sliding_window") ? 0 : 4096; /* null: there are no windows */
    int32_t width;
    SPEC_TRY(speci_config_int_or(c, &width, "sliding_window", fallback, 1, INT32_MAX));
    if (width == 0) speci_config_note(c, "sliding_window", json_null());
    SPEC_TRY(read_pattern(c, layers, t->n_layer, width));
    for (int32_t i = 0; i < t->n_layer; i++) layers[i].no_rope = width > 0 && layers[i].window == 0;
    return SPEC_OK;
}

spec_status speci_family_exaone4(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 2048, .n_kv_head = 32, .eps = 1e-5, .rope = speci_rope_whole_head };
    model_transformer t;
    SPEC_TRY(speci_transformer_read(b->config, &t, &defaults));
    t.bare = t.qk_norm = true, t.names = &speci_bare_names;
    return speci_transformer_build(b, &t, read_layers);
}
