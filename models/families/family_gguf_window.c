/* family_gguf_window.c - which layers have a sliding window, in GGUF files: attention.sliding_window_pattern is a flag for each layer, or a
 * number, every so-many-th layer attends to all. Source: llama.cpp, src/llama-model.cpp (load_swa_pattern). */
#include <string.h>

#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

static const char slides[] = "sliding_attention", full[] = "full_attention";

static model_name key_of(const char *architecture) { return speci_namef("%s.attention.sliding_window_pattern", architecture); }

/* Flags [n] to names of kinds. */
static spec_status kinds_of(json_t **out, const json_t *flags, const char *file, const char *key)
{
    size_t i;
    json_t *flag, *kinds = *out = json_array();
    json_array_foreach((json_t *)(uintptr_t)flags, i, flag) {
        if (!json_is_boolean(flag) && !(json_is_integer(flag) && json_integer_value(flag) >> 1 == 0))
            return speci_fail(SPEC_E_FORMAT, "%s: %s[%zu] is %s, expected a flag for each layer", file, key, i, speci_value_of(flag).s);
        const bool window = json_is_true(flag) || json_integer_value(flag) == 1;
        if (json_array_append_new(kinds, json_string(window ? slides : full)) != 0)
            return speci_fail(SPEC_E_NOMEM, "%s: no memory for %s", file, key);
    }
    return SPEC_OK;
}

spec_status speci_gguf_windows(gguf_reading *r)
{
    json_t *pattern = json_object_get(r->config, SPECI_GGUF_WINDOWS);
    if (!pattern) return SPEC_OK;
    const model_name key = key_of(r->architecture);
    json_t *kinds = NULL;
    const spec_status status = json_is_array(pattern) ? kinds_of(&kinds, pattern, r->file->file, key.s) : SPEC_OK;
    if (status != SPEC_OK) {
        json_decref(kinds);
        return status;
    }
    SPEC_TRY(kinds ? speci_gguf_set(r, "layer_types", kinds, key.s)
                   : speci_gguf_set(r, "sliding_window_pattern", json_incref(pattern), key.s));
    return speci_gguf_set(r, SPECI_GGUF_WINDOWS, json_null(), NULL);
}

spec_status speci_gguf_put_windows(gguf_writing *w)
{
    size_t i;
    json_t *kind, *kinds = json_object_get(w->taken, "layer_types");
    if ((int64_t)json_array_size(kinds) != json_integer_value(json_object_get(w->taken, "num_hidden_layers")))
        return speci_fail(SPEC_E_NOMEM, "%s: out of memory", w->config->file);
    SPEC_TRY(speci_gguf_put_array(w->head, key_of(w->row->architecture).s, SPECI_GGUF_BOOL, json_array_size(kinds)));
    json_array_foreach(kinds, i, kind) {
        const uint8_t flag = strcmp(json_string_value(kind), slides) == 0;
        SPEC_TRY(speci_gguf_put_element(w->head, &flag, sizeof flag));
    }
    return SPEC_OK;
}
