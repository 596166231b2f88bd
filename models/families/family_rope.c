/* family_rope.c - the keys of rotary positions. Source: transformers modeling_rope_utils.py (standardize_rope_params,
 * _compute_yarn_parameters, _compute_longrope_parameters).
 *
 * Old files say rope_theta and rope_scaling: { type or rope_type, ... }; new ones rope_parameters: { rope_theta,
 * rope_type, partial_rotary_factor, ... }. The object wins over top-level keys there; here a contradiction is an
 * error, since versions of transformers have differed. */
#include "models/families/family_rope.h"

#include <math.h>
#include <string.h>

#define THETA_DEFAULT 10000.0 /* RotaryEmbeddingConfigMixin.default_theta */
#define THETA_MAX 1e15

static spec_status contradiction(const model_config *c, const char *key, double a, const char *other, double b)
{
    return speci_fail(SPEC_E_FORMAT, "%s: %s is %g, but %s says %g", c->file, key, a, other, b);
}

static const struct {
    const char *name;
    model_rope_type type;
} rope_types[] = {
    { "default", MODEL_ROPE_DEFAULT }, { "linear", MODEL_ROPE_LINEAR },     { "llama3", MODEL_ROPE_LLAMA3 },
    { "yarn", MODEL_ROPE_YARN },       { "longrope", MODEL_ROPE_LONGROPE }, { "su", MODEL_ROPE_LONGROPE }, /* its first name */
    { "dynamic", MODEL_ROPE_DYNAMIC }, { MODEL_ROPE_DIVIDED_NAME, MODEL_ROPE_DIVIDED },
};

const char *speci_rope_type_name(const model_rope *rope)
{
    size_t i = 0;
    while (rope_types[i].type != rope->type) i++;
    return rope_types[i].name;
}

static spec_status read_type(model_config *o, model_rope_type *out)
{
    const char *type, *old;
    SPEC_TRY(speci_config_string_or(o, &type, "rope_type", NULL));
    SPEC_TRY(speci_config_string_or(o, &old, "type", NULL));
    if (type && old && strcmp(type, old) != 0)
        return speci_fail(SPEC_E_FORMAT, "%s: %srope_type is \"%s\", but %stype is \"%s\"", o->file, o->in, type, o->in,
                          old);
    if (!type) type = old ? old : "default";
    for (size_t i = 0; i < sizeof rope_types / sizeof *rope_types; i++)
        if (strcmp(rope_types[i].name, type) == 0) {
            *out = rope_types[i].type;
            return SPEC_OK;
        }
    return speci_fail(SPEC_E_UNSUPPORTED,
                      "%s: %srope_type is \"%.60s\", expected default, linear, llama3, yarn, longrope or dynamic", o->file, o->in,
                      type);
}

/* sqrt(1 / t) = 0.1 mscale ln s + 1 (Peng et al. 2023, YaRN, 3.4) */
static double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1; }

/* mscale and mscale_all_dim together are DeepSeek's way to say the attention factor. "finetuned", of the authors' own files, says how
 * the model came about. */
static spec_status read_yarn(model_config *o, model_rope *r)
{
    double mscale, all_dim;
    SPEC_TRY(speci_config_number_or(o, &r->original_max_position, "original_max_position_embeddings", 0, 1, 1e9));
    SPEC_TRY(speci_config_number_or(o, &r->beta_fast, "beta_fast", 32, 1e-3, 1e6));
    SPEC_TRY(speci_config_number_or(o, &r->beta_slow, "beta_slow", 1, 1e-3, 1e6));
    SPEC_TRY(speci_config_bool_or(o, &r->truncate, "truncate", true));
    SPEC_TRY(speci_config_number_or(o, &r->attention_factor, "attention_factor", 0, 1e-3, 1e3));
    SPEC_TRY(speci_config_number_or(o, &mscale, "mscale", 0, 0, 1e3));
    SPEC_TRY(speci_config_number_or(o, &all_dim, "mscale_all_dim", 0, 0, 1e3));
    (void)speci_config_take(o, "finetuned");
    if (r->beta_slow >= r->beta_fast)
        return speci_fail(SPEC_E_FORMAT, "%s: %sbeta_slow is %g, expected less than beta_fast, %g", o->file, o->in,
                          r->beta_slow, r->beta_fast);
    if (r->attention_factor > 0) return SPEC_OK;
    r->attention_factor = mscale > 0 && all_dim > 0 ? yarn_mscale(r->factor, mscale) / yarn_mscale(r->factor, all_dim)
                                                    : yarn_mscale(r->factor, 1);
    return SPEC_OK;
}

/* The attention factor may need what stands outside of the object: finish_longrope. */
static spec_status read_longrope(model_config *o, model_rope *r)
{
    r->short_factor = speci_config_take(o, "short_factor");
    r->long_factor = speci_config_take(o, "long_factor");
    if (!r->short_factor || !r->long_factor)
        return speci_fail(SPEC_E_FORMAT, "%s: %s%s is missing, expected a list of numbers", o->file, o->in,
                          r->short_factor ? "long_factor" : "short_factor");
    SPEC_TRY(speci_config_number_or(o, &r->factor, "factor", 0, 1e-3, 1e6));
    SPEC_TRY(speci_config_number_or(o, &r->attention_factor, "attention_factor", 0, 1e-3, 1e3));
    return speci_config_number_or(o, &r->original_max_position, "original_max_position_embeddings", 0, 2, 1e9);
}

static spec_status read_scaling(model_config *o, model_rope *r)
{
    if (r->type == MODEL_ROPE_LONGROPE) return read_longrope(o, r);
    if (r->type == MODEL_ROPE_DIVIDED) {
        r->short_factor = speci_config_take(o, "short_factor");
        return SPEC_OK;
    }
    if (r->type == MODEL_ROPE_DEFAULT) return speci_config_number_or(o, &r->factor, "factor", 1, 1, 1);
    SPEC_TRY(speci_config_number(o, &r->factor, "factor", 1e-3, 1e6));
    if (r->type == MODEL_ROPE_DYNAMIC) return SPEC_OK;
    if (r->type == MODEL_ROPE_LINEAR) /* the length is written down, and means nothing here */
        return speci_config_number_or(o, &r->original_max_position, "original_max_position_embeddings", 0, 1, 1e9);
    if (r->type == MODEL_ROPE_YARN) return read_yarn(o, r);
    SPEC_TRY(speci_config_number(o, &r->low_freq_factor, "low_freq_factor", 1e-3, 1e6));
    SPEC_TRY(speci_config_number(o, &r->high_freq_factor, "high_freq_factor", 1e-3, 1e6));
    SPEC_TRY(speci_config_number_or(o, &r->original_max_position, "original_max_position_embeddings", 0, 1, 1e9));
    if (r->low_freq_factor >= r->high_freq_factor)
        return speci_fail(SPEC_E_FORMAT, "%s: %slow_freq_factor is %g, expected less than high_freq_factor, %g",
                          o->file, o->in, r->low_freq_factor, r->high_freq_factor);
    return SPEC_OK;
}

/* theta and partial: from the object if it has them, else NaN. */
static spec_status read_object(model_config *o, model_rope *r)
{
    r->theta = r->partial = NAN;
    if (!o->root) return SPEC_OK;
    SPEC_TRY(read_type(o, &r->type));
    SPEC_TRY(read_scaling(o, r));
    SPEC_TRY(speci_config_number_or(o, &r->theta, "rope_theta", NAN, 1e-3, THETA_MAX));
    SPEC_TRY(speci_config_number_or(o, &r->partial, "partial_rotary_factor", NAN, 1e-6, 1));
    return speci_config_all_known(o);
}

static spec_status add_theta(model_config *c, model_rope *r, const char *key)
{
    double top;
    SPEC_TRY(speci_config_number_or(c, &top, key, NAN, 1e-3, THETA_MAX));
    if (isnan(top)) return SPEC_OK;
    if (!isnan(r->theta) && r->theta != top) return contradiction(c, key, top, "another rotary base", r->theta);
    r->theta = top;
    return SPEC_OK;
}

/* The top-level key; under a family's older name too, if it says the same. NaN: absent. */
static spec_status read_partial(model_config *c, double *top, const model_rope_keys *keys)
{
    static const char newer[] = "partial_rotary_factor";
    double other = NAN;
    SPEC_TRY(speci_config_number_or(c, top, keys->partial, NAN, 1e-6, 1));
    if (strcmp(keys->partial, newer) != 0) SPEC_TRY(speci_config_number_or(c, &other, newer, NAN, 1e-6, 1));
    if (!isnan(other) && !isnan(*top) && other != *top) return contradiction(c, newer, other, keys->partial, *top);
    if (isnan(*top)) *top = other;
    return SPEC_OK;
}

static spec_status add_partial(model_config *c, model_rope *r, const model_rope_keys *keys)
{
    double top;
    SPEC_TRY(read_partial(c, &top, keys));
    if (isnan(r->partial) && keys->partial_top_counts) r->partial = top;
    if (isnan(r->partial)) r->partial = keys->partial_default;
    if (keys->whole_head && (r->partial != 1 || (!isnan(top) && top != 1)))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is %g: this family turns whole heads", c->file, keys->partial,
                          r->partial != 1 ? r->partial : top);
    if (!isnan(top) && top != r->partial)
        return contradiction(c, keys->partial, top, "what holds for this family", r->partial);
    return SPEC_OK;
}

static bool has_original(const model_rope *r)
{
    return r->type == MODEL_ROPE_LLAMA3 || r->type == MODEL_ROPE_YARN || r->type == MODEL_ROPE_LONGROPE;
}

/* Where nobody says the original length, it is the length. */
static spec_status default_original(model_config *c, model_rope *r)
{
    if (!has_original(r) || r->original_max_position > 0) return SPEC_OK;
    return speci_config_number(c, &r->original_max_position, "max_position_embeddings", 2, 1e9);
}

/* The top-level key wins in the class; here what both say must agree. */
static spec_status find_original(model_config *c, model_rope *r, const model_rope_keys *keys)
{
    static const char key[] = "original_max_position_embeddings";
    double top;
    if (!has_original(r)) return SPEC_OK;
    const bool said = speci_config_has(c, key);
    SPEC_TRY(speci_config_number_or(c, &top, key, keys->original_default, 2, 1e9));
    if (top > 0 && r->original_max_position > 0 && top != r->original_max_position)
        return contradiction(c, said ? key : "original_max_position_embeddings, by this family's default,", top,
                             "the same key of the object", r->original_max_position);
    if (top > 0) r->original_max_position = top;
    return default_original(c, r);
}

/* The attention factor is sqrt(1 + ln(factor) / ln(original length)). */
static spec_status finish_longrope(model_config *c, model_rope *r)
{
    double longest;
    SPEC_TRY(speci_config_number(c, &longest, "max_position_embeddings", 1, INT32_MAX));
    if (r->factor == 0) r->factor = longest / r->original_max_position;
    speci_config_note(c, "original_max_position_embeddings", json_integer((json_int_t)r->original_max_position));
    if (r->attention_factor == 0)
        r->attention_factor = r->factor <= 1 ? 1 : sqrt(1 + log(r->factor) / log(r->original_max_position));
    return SPEC_OK;
}

static bool same_value(const json_t *a, const json_t *b)
{
    double x, y;
    return json_equal(a, b) || (speci_json_number(a, &x) && speci_json_number(b, &y) && x == y);
}

/* Files for old and new readers have both spellings. What both say must agree. */
static spec_status add_new_spelling(model_config *o, const json_t *new)
{
    const char *key;
    json_t *v, *both;
    if (!json_is_object(new))
        return speci_fail(SPEC_E_FORMAT, "%s: rope_parameters is %s, expected an object", o->file, speci_value_of(new).s);
    if (!(both = json_copy(o->root))) return speci_fail(SPEC_E_NOMEM, "%s: out of memory", o->file);
    json_decref(o->root);
    o->root = both;
    json_object_foreach((json_t *)(uintptr_t)new, key, v) {
        const json_t *have = json_object_get(both, key);
        if (have && !same_value(have, v))
            return speci_fail(SPEC_E_FORMAT, "%s: rope_scaling and rope_parameters contradict each other: %.60s is %s and %s",
                              o->file, key, speci_value_of(have).s, speci_value_of(v).s);
        if (!have && (json_object_set(both, key, v) || json_object_set(o->rest, key, v)))
            return speci_fail(SPEC_E_NOMEM, "%s: out of memory", o->file);
    }
    return SPEC_OK;
}

/* rope_scaling, rope_parameters, or both. */
static spec_status choose_object(model_config *c, model_config *out)
{
    const json_t *old = speci_config_take(c, "rope_scaling"), *new = speci_config_take(c, "rope_parameters");
    SPEC_TRY(speci_config_child(c, out, old ? "rope_scaling" : "rope_parameters"));
    model_rope_type type;
    spec_status status = out->root ? read_type(out, &type) : SPEC_OK; /* an unknown type is the better message */
    if (status == SPEC_OK && old && new) status = add_new_spelling(out, new);
    if (status != SPEC_OK) speci_config_close(out);
    return status;
}

/* What the object comes to, under one spelling. Of scalings what is not said by frequencies alone. */
static void note(const model_config *c, const model_rope *r)
{
    speci_config_note(c, "rope_theta", json_real(r->theta));
    speci_config_note(c, "partial_rotary_factor", json_real(r->partial));
    if (r->type == MODEL_ROPE_DEFAULT) return;
    speci_config_note(c, "rope_scaling.rope_type", json_string(speci_rope_type_name(r)));
    speci_config_note(c, "rope_scaling.factor", json_real(r->factor));
    speci_config_note(c, "rope_scaling.low_freq_factor", json_real(r->low_freq_factor));
    speci_config_note(c, "rope_scaling.high_freq_factor", json_real(r->high_freq_factor));
    speci_config_note(c, "rope_scaling.original_max_position_embeddings", json_integer((json_int_t)r->original_max_position));
    speci_config_note(c, "rope_scaling.beta_fast", json_real(r->beta_fast));
    speci_config_note(c, "rope_scaling.beta_slow", json_real(r->beta_slow));
    speci_config_note(c, "rope_scaling.truncate", json_boolean(r->truncate));
    speci_config_note(c, "rope_scaling.attention_factor", json_real(r->attention_factor));
    speci_config_note(c, "rope_scaling.short_factor", json_copy((json_t *)(uintptr_t)r->short_factor));
    speci_config_note(c, "rope_scaling.long_factor", json_copy((json_t *)(uintptr_t)r->long_factor));
}

spec_status speci_rope_read(model_config *c, model_rope *out, const model_rope_keys *keys)
{
    model_config object;
    *out = (model_rope){ 0 };
    SPEC_TRY(choose_object(c, &object));
    const spec_status status = read_object(&object, out);
    speci_config_close(&object);
    SPEC_TRY(status);
    SPEC_TRY(find_original(c, out, keys));
    if (out->type == MODEL_ROPE_LONGROPE) SPEC_TRY(finish_longrope(c, out));
    SPEC_TRY(add_theta(c, out, keys->theta));
    if (strcmp(keys->theta, "rope_theta") != 0) SPEC_TRY(add_theta(c, out, "rope_theta"));
    if (isnan(out->theta)) out->theta = keys->theta_default > 0 ? keys->theta_default : THETA_DEFAULT;
    SPEC_TRY(add_partial(c, out, keys));
    note(c, out);
    return SPEC_OK;
}

/* An object for one kind of layer. */
static spec_status read_kind(model_config *c, model_config *both, model_rope *out, const char *kind, const model_rope_keys *keys,
                             double theta)
{
    model_config object;
    *out = (model_rope){ 0 };
    SPEC_TRY(speci_config_child(both, &object, kind));
    const spec_status status = read_object(&object, out);
    speci_config_close(&object);
    SPEC_TRY(status);
    if (out->type == MODEL_ROPE_LONGROPE || out->type == MODEL_ROPE_DYNAMIC)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: rope_type of %s is \"%s\", expected default, linear, llama3 or yarn", both->file, kind,
                          speci_rope_type_name(out));
    if (isnan(out->theta)) out->theta = theta;
    if (isnan(out->partial)) out->partial = keys->partial_default;
    return default_original(c, out);
}

static double theta_or_default(double theta) { return theta > 0 ? theta : THETA_DEFAULT; }

static spec_status read_by_kind(model_config *c, model_config *both, model_rope *full, model_rope *sliding, const model_rope_keys *keys)
{
    SPEC_TRY(read_kind(c, both, full, "full_attention", keys, theta_or_default(keys->theta_default)));
    SPEC_TRY(read_kind(c, both, sliding, "sliding_attention", keys,
                       keys->sliding_default > 0 ? keys->sliding_default : theta_or_default(keys->theta_default)));
    return speci_config_all_known(both);
}

spec_status speci_rope_read_two(model_config *c, model_rope *full, model_rope *sliding, const model_rope_keys *keys)
{
    const json_t *by_kind = json_object_get(c->root, "rope_parameters");
    if (json_object_get(by_kind, "full_attention") || json_object_get(by_kind, "sliding_attention")) {
        model_config both;
        SPEC_TRY(speci_config_child(c, &both, "rope_parameters"));
        const spec_status status = read_by_kind(c, &both, full, sliding, keys);
        speci_config_close(&both);
        SPEC_TRY(status);
        note(c, full);
        speci_config_note(c, "sliding_rope_type", json_string(speci_rope_type_name(sliding)));
        if (keys->sliding_theta) speci_config_note(c, keys->sliding_theta, json_real(sliding->theta));
        return SPEC_OK;
    }
    SPEC_TRY(speci_rope_read(c, full, keys));
    *sliding = (model_rope){ .theta = full->theta, .partial = full->partial };
    const double otherwise = keys->sliding_default > 0 ? keys->sliding_default : full->theta;
    return keys->sliding_theta ? speci_config_number_or(c, &sliding->theta, keys->sliding_theta, otherwise, 1e-3, THETA_MAX) : SPEC_OK;
}

spec_status speci_rope_dims(const model_rope *rope, int32_t *n_rot, int32_t head_dim, const char *file)
{
    *n_rot = (int32_t)(head_dim * rope->partial);
    if (*n_rot % 2 == 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %d of a head's %d dimensions turn, expected an even number", file, *n_rot,
                      head_dim);
}

void speci_rope_gains(const model_rope *rope, double *score, double *turned, int32_t n_rot, int32_t head_dim)
{
    const double factor = rope->attention_factor > 0 && n_rot > 0 ? rope->attention_factor : 1;
    const bool whole = n_rot == head_dim;
    *score = whole ? factor * factor : 1;
    *turned = whole ? 1 : factor;
}

int32_t speci_rope_context(const model_rope *rope, int32_t n_ctx)
{
    if (rope->type != MODEL_ROPE_YARN) return n_ctx;
    return (int32_t)fmax(fmin(rope->original_max_position * rope->factor, INT32_MAX), n_ctx);
}
