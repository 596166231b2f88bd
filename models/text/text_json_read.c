/* text_json_read.c - what the readers of tokenizer.json share: values by their keys, and components by their type. */
#include <string.h>

#include "models/text/text_json.h"

enum { NESTING_MAX = 16 }; /* Sequences inside Sequences */

spec_status speci_text_bad(const char *file, const char *key, const char *expected)
{
    return speci_fail(SPEC_E_FORMAT, "%s: \"%s\" is missing or wrong, expected %s", file, key, expected);
}

spec_status speci_text_read_bool(const char *file, const json_t *json, const char *key, bool missing, bool *out)
{
    const json_t *value = json_object_get(json, key);
    *out = missing;
    if (!value || json_is_null(value)) return SPEC_OK;
    if (!json_is_boolean(value)) return speci_text_bad(file, key, "true or false");
    *out = json_is_true(value);
    return SPEC_OK;
}

spec_status speci_text_read_int(const char *file, const json_t *json, const char *key, json_int_t low,
                            json_int_t high, json_int_t *out)
{
    const json_t *value = json_object_get(json, key);
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= low && *out <= high) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: \"%s\" is missing or wrong, expected an integer from %lld to %lld", file,
                      key, (long long)low, (long long)high);
}

spec_status speci_text_read_string(const char *file, const json_t *json, const char *key, const char **out, size_t *n)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_string(value)) return speci_text_bad(file, key, "a string");
    *out = json_string_value(value);
    *n = json_string_length(value);
    return SPEC_OK;
}

spec_status speci_text_copy_string(const spec_tokenizer *t, const char *s, size_t n, char **out)
{
    *out = speci_alloc(&t->allocator, n + 1, 1);
    if (!*out) return SPEC_E_NOMEM;
    memcpy(*out, s, n);
    return SPEC_OK;
}

spec_status speci_text_read_pattern(const spec_tokenizer *t, const json_t *json, speci_regex **out)
{
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *literal = json_object_get(pattern, "String"), *regex = json_object_get(pattern, "Regex");
    const json_t *value = literal ? literal : regex;
    if (!json_is_string(value)) return speci_text_bad(t->path, "pattern", "{\"String\": ...} or {\"Regex\": ...}");
    return speci_regex_open(out, json_string_value(value), json_string_length(value), literal != NULL, t->path,
                            &t->allocator);
}

spec_status speci_text_read_component(spec_tokenizer *t, const json_t *json, const char *section, const speci_text_component *table,
                                  int depth)
{
    if (depth > NESTING_MAX)
        return speci_fail(SPEC_E_FORMAT, "%s: %s: Sequences nested deeper than %d", t->path, section, NESTING_MAX);
    const char *type = json_string_value(json_object_get(json, "type"));
    if (!type) return speci_text_bad(t->path, section, "an object with a \"type\"");
    for (; table->type; table++)
        if (strcmp(type, table->type) == 0) return table->read(t, json, depth);
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: the %s '%.64s' is not supported", t->path, section, type);
}

spec_status speci_text_read_sequence(spec_tokenizer *t, const json_t *json, const char *key, speci_text_read_fn each, int depth)
{
    const json_t *list = json_object_get(json, key);
    if (!json_is_array(list)) return speci_text_bad(t->path, key, "an array");
    for (size_t i = 0; i < json_array_size(list); i++) SPEC_TRY(each(t, json_array_get(list, i), depth + 1));
    return SPEC_OK;
}

spec_status speci_text_read_char(const spec_tokenizer *t, const json_t *json, const char *key, char out[4], size_t *n)
{
    const char *text;
    SPEC_TRY(speci_text_read_string(t->path, json, key, &text, n));
    if (*n == 0 || speci_utf8_length(text, *n) != *n) return speci_text_bad(t->path, key, "one character");
    memcpy(out, text, *n);
    return SPEC_OK;
}

/* Older files have add_prefix_space alone; a file that has both must agree. */
spec_status speci_text_read_prepend(const spec_tokenizer *t, const json_t *json, speci_prepend *out)
{
    static const char *const names[] = { "never", "first", "always" }; /* in the order of the enum */
    const char *name = json_string_value(json_object_get(json, "prepend_scheme"));
    bool prefix_space;
    SPEC_TRY(speci_text_read_bool(t->path, json, "add_prefix_space", true, &prefix_space));
    *out = prefix_space ? SPECI_PREPEND_ALWAYS : SPECI_PREPEND_NEVER;
    if (!json_object_get(json, "prepend_scheme")) return SPEC_OK;
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (speci_prepend)i;
        if (!prefix_space && i != 0) return speci_text_bad(t->path, "add_prefix_space", "true beside this prepend_scheme");
        return SPEC_OK;
    }
    return speci_text_bad(t->path, "prepend_scheme", "never, first or always");
}
