/* files_config.c - typed access to config.json. What becomes of keys that nobody asked for: files_config_keys.c. */
#include "models/files/files_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_MAX ((size_t)16 << 20) /* bytes; label maps can be long */

/* --- open and close --- */

spec_status speci_config_adopt(model_config *out, json_t *root, json_t *said, const char *file)
{
    *out = (model_config){ .file = file, .said = said };
    if (!json_is_object(root)) {
        json_decref(root);
        speci_config_close(out);
        return speci_fail(SPEC_E_FORMAT, "%s: not a JSON object", file);
    }
    out->root = root;
    out->rest = json_copy(root);
    if (out->rest) return SPEC_OK;
    speci_config_close(out);
    return speci_fail(SPEC_E_NOMEM, "%s: out of memory", file);
}

spec_status speci_config_read(model_config *out, const char *file, const spec_allocator *a)
{
    json_t *root = NULL;
    SPEC_TRY(speci_json_read(&root, file, CONFIG_MAX, a));
    return speci_config_adopt(out, root, NULL, file);
}

spec_status speci_config_parse(model_config *out, const char *text, size_t n, const char *file)
{
    json_t *root = NULL;
    SPEC_TRY(speci_json_parse(&root, text, n, file));
    return speci_config_adopt(out, root, NULL, file);
}

void speci_config_close(model_config *c)
{
    json_decref(c->rest);
    json_decref(c->root);
    json_decref(c->said);
    c->rest = c->root = c->said = NULL;
}

const char *speci_config_said(const model_config *c, const char *key)
{
    const char *said = json_string_value(json_object_get(c->said, key));
    return said ? said : key;
}

/* --- values --- */

model_value_text speci_value_of(const json_t *v)
{
    model_value_text t;
    double x = 0;
    if (json_is_integer(v)) snprintf(t.s, sizeof t.s, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (speci_json_number(v, &x)) snprintf(t.s, sizeof t.s, "%.9g", x);
    else if (json_is_string(v)) snprintf(t.s, sizeof t.s, "\"%.60s\"", json_string_value(v));
    else snprintf(t.s, sizeof t.s, "%s", !v || json_is_null(v) ? "null" : json_is_true(v) ? "true"
                  : json_is_false(v) ? "false" : json_is_array(v) ? "an array" : "an object");
    return t;
}

bool speci_config_present(const model_config *c, const char *key) { return json_object_get(c->root, key) != NULL; }

bool speci_config_has(const model_config *c, const char *key)
{
    const json_t *v = json_object_get(c->root, key);
    return v && !json_is_null(v);
}

json_t *speci_config_take(model_config *c, const char *key)
{
    json_t *v = json_object_get(c->root, key);
    if (v) json_object_del(c->rest, key);
    return v && !json_is_null(v) ? v : NULL;
}

void speci_config_note(const model_config *c, const char *key, json_t *value)
{
    if (c->taken && value) (void)json_object_set(c->taken, key, value);
    json_decref(value);
}

static spec_status no_memory(const model_config *c) { return speci_fail(SPEC_E_NOMEM, "%s: out of memory", c->file); }

spec_status speci_config_also(model_config *c, const char *key, const char *other)
{
    json_t *v = speci_config_take(c, other);
    const json_t *have = json_object_get(c->root, key);
    double x, y;
    if (!v) return SPEC_OK;
    if (have && !json_is_null(have)) {
        if (json_equal(v, have) || (speci_json_number(v, &x) && speci_json_number(have, &y) && x == y)) return SPEC_OK;
        return speci_fail(SPEC_E_FORMAT, "%s: %s%s is %s, but %s is %s", c->file, c->in, speci_config_said(c, key),
                          speci_value_of(have).s, speci_config_said(c, other), speci_value_of(v).s);
    }
    if (!c->said && !(c->said = json_object())) return no_memory(c);
    if (json_object_set_new(c->said, key, json_string(speci_config_said(c, other))) != 0 || json_object_set(c->root, key, v) != 0 ||
        json_object_set(c->rest, key, v) != 0)
        return no_memory(c);
    return SPEC_OK;
}

static spec_status missing(const model_config *c, const char *key, const char *expected)
{
    return speci_fail(SPEC_E_FORMAT, "%s: %s%s is missing, expected %s", c->file, c->in, speci_config_said(c, key), expected);
}

static spec_status wrong(const model_config *c, const char *key, const json_t *v, const char *expected)
{
    return speci_fail(SPEC_E_FORMAT, "%s: %s%s is %s, expected %s", c->file, c->in, speci_config_said(c, key), speci_value_of(v).s,
                      expected);
}

spec_status speci_config_int(model_config *c, int32_t *out, const char *key, int32_t min, int32_t max)
{
    char expected[64];
    const json_t *v = speci_config_take(c, key);
    double x = 0;
    if (min == max) snprintf(expected, sizeof expected, "%d", min);
    else snprintf(expected, sizeof expected, "an integer from %d to %d", min, max);
    if (!v) return missing(c, key, expected);
    /* 2.0 is taken for 2: files written by other programs have it. Large integers fail the range as doubles, too. */
    if (!json_is_number(v) || !speci_json_number(v, &x) || x != floor(x) || x < min || x > max)
        return wrong(c, key, v, expected);
    *out = (int32_t)x;
    speci_config_note(c, key, json_integer(*out));
    return SPEC_OK;
}

spec_status speci_config_number(model_config *c, double *out, const char *key, double min, double max)
{
    char expected[80];
    const json_t *v = speci_config_take(c, key);
    double x = 0;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (!v) return missing(c, key, expected);
    if (!speci_json_number(v, &x) || !(x >= min && x <= max)) return wrong(c, key, v, expected);
    *out = x;
    speci_config_note(c, key, json_real(x));
    return SPEC_OK;
}

spec_status speci_config_int_or(model_config *c, int32_t *out, const char *key, int32_t fallback, int32_t min,
                                int32_t max)
{
    *out = fallback;
    if (speci_config_take(c, key)) return speci_config_int(c, out, key, min, max);
    speci_config_note(c, key, json_integer(fallback));
    return SPEC_OK;
}

spec_status speci_config_agree(model_config *c, const char *key, int32_t value)
{
    int32_t found;
    return speci_config_int_or(c, &found, key, value, value, value);
}

spec_status speci_config_number_or(model_config *c, double *out, const char *key, double fallback, double min,
                                   double max)
{
    *out = fallback;
    if (speci_config_take(c, key)) return speci_config_number(c, out, key, min, max);
    speci_config_note(c, key, json_real(fallback)); /* NaN is none */
    return SPEC_OK;
}

spec_status speci_config_bool_or(model_config *c, bool *out, const char *key, bool fallback)
{
    const json_t *v = speci_config_take(c, key);
    *out = fallback;
    if (v && !json_is_boolean(v)) return wrong(c, key, v, "true or false");
    if (v) *out = json_is_true(v);
    speci_config_note(c, key, json_boolean(*out));
    return SPEC_OK;
}

spec_status speci_config_string_or(model_config *c, const char **out, const char *key, const char *fallback)
{
    const json_t *v = speci_config_take(c, key);
    *out = fallback;
    if (!v) return SPEC_OK;
    if (!json_is_string(v)) return wrong(c, key, v, "a string");
    *out = json_string_value(v);
    return SPEC_OK;
}

spec_status speci_config_agree_bool(model_config *c, const char *key, bool value)
{
    bool found;
    SPEC_TRY(speci_config_bool_or(c, &found, key, value));
    if (found == value) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s%s is %s: not supported", c->file, c->in, key, found ? "true" : "false");
}

spec_status speci_config_agree_text(model_config *c, const char *key, const char *value)
{
    const char *found;
    SPEC_TRY(speci_config_string_or(c, &found, key, value));
    if (strcmp(found, value) == 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s%s is \"%.60s\", expected \"%s\"", c->file, c->in, key, found, value);
}

spec_status speci_config_child(model_config *c, model_config *out, const char *key)
{
    json_t *v = speci_config_take(c, key);
    *out = (model_config){ .file = c->file };
    if (!v) return SPEC_OK;
    if (!json_is_object(v)) return wrong(c, key, v, "an object");
    SPEC_TRY(speci_config_adopt(out, json_incref(v), NULL, c->file));
    snprintf(out->in, sizeof out->in, "%.24s.", key);
    return SPEC_OK;
}

static void note_limit(const model_config *c, const char *key, const char *which, double x)
{
    char full[80];
    snprintf(full, sizeof full, "%s%s", key, which);
    speci_config_note(c, full, isinf(x) ? json_null() : json_real(x));
}

spec_status speci_config_limits_or_none(model_config *c, float *lo, float *hi, const char *key)
{
    const json_t *v = speci_config_take(c, key);
    double x = 0, y = 0;
    *lo = 0.0f, *hi = INFINITY;
    if (v && (json_array_size(v) != 2 || !speci_json_number(json_array_get(v, 0), &x) ||
        !speci_json_number(json_array_get(v, 1), &y) || !(x >= 0 && x <= y) || isinf(x)))
        return wrong(c, key, v, "[low, high] with 0 <= low <= high, low finite");
    if (v) *lo = (float)x, *hi = (float)y;
    note_limit(c, key, "[0]", v ? x : 0);
    note_limit(c, key, "[1]", v ? y : INFINITY);
    return SPEC_OK;
}

spec_status speci_config_all_known(const model_config *c)
{
    const char *key;
    json_t *v;
    json_object_foreach(c->rest, key, v)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s%.100s is %s: this key is not known here", c->file, c->in, key,
                          speci_value_of(v).s);
    return SPEC_OK;
}
