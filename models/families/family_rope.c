/* family_rope.c - rotary frequencies. Source: transformers modeling_rope_utils.py (standardize_rope_params,
 * _compute_linear_scaling_rope_parameters, _compute_llama3_parameters).
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

static spec_status read_type(model_config *o, model_rope_type *out)
{
    const char *type, *old;
    SPEC_TRY(speci_config_string_or(o, &type, "rope_type", NULL));
    SPEC_TRY(speci_config_string_or(o, &old, "type", NULL));
    if (type && old && strcmp(type, old) != 0)
        return speci_fail(SPEC_E_FORMAT, "%s: %srope_type is \"%s\", but %stype is \"%s\"", o->file, o->in, type, o->in,
                          old);
    if (!type) type = old ? old : "default";
    if (strcmp(type, "default") == 0) *out = MODEL_ROPE_DEFAULT;
    else if (strcmp(type, "linear") == 0) *out = MODEL_ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0) *out = MODEL_ROPE_LLAMA3;
    else
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: %srope_type is \"%.60s\", expected default, linear or llama3",
                          o->file, o->in, type);
    return SPEC_OK;
}

static spec_status read_scaling(model_config *o, model_rope *r)
{
    if (r->type == MODEL_ROPE_DEFAULT) return SPEC_OK;
    SPEC_TRY(speci_config_number(o, &r->factor, "factor", 1e-3, 1e6));
    if (r->type == MODEL_ROPE_LINEAR) return SPEC_OK;
    SPEC_TRY(speci_config_number(o, &r->low_freq_factor, "low_freq_factor", 1e-3, 1e6));
    SPEC_TRY(speci_config_number(o, &r->high_freq_factor, "high_freq_factor", 1e-3, 1e6));
    SPEC_TRY(speci_config_number(o, &r->original_max_position, "original_max_position_embeddings", 1, 1e9));
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

static spec_status add_partial(model_config *c, model_rope *r, const model_rope_keys *keys)
{
    double top;
    SPEC_TRY(speci_config_number_or(c, &top, keys->partial, NAN, 1e-6, 1));
    if (isnan(r->partial) && keys->partial_top_counts) r->partial = top;
    if (isnan(r->partial)) r->partial = keys->partial_default;
    if (keys->whole_head && (r->partial != 1 || (!isnan(top) && top != 1)))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is %g: this family turns whole heads", c->file, keys->partial,
                          r->partial != 1 ? r->partial : top);
    if (!isnan(top) && top != r->partial)
        return contradiction(c, keys->partial, top, "what holds for this family", r->partial);
    return SPEC_OK;
}

/* The object in force; the other spelling may be there only if it says the same. */
static spec_status choose_object(model_config *c, model_config *out)
{
    const json_t *old = speci_config_take(c, "rope_scaling"), *new = speci_config_take(c, "rope_parameters");
    SPEC_TRY(speci_config_child(c, out, old ? "rope_scaling" : "rope_parameters"));
    model_rope_type type;
    spec_status status = out->root ? read_type(out, &type) : SPEC_OK; /* an unknown type is the better message */
    if (status == SPEC_OK && old && new && !json_equal(old, new))
        status = speci_fail(SPEC_E_FORMAT, "%s: rope_scaling and rope_parameters contradict each other", c->file);
    if (status != SPEC_OK) speci_config_close(out);
    return status;
}

spec_status speci_rope_read(model_config *c, model_rope *out, const model_rope_keys *keys)
{
    model_config object;
    *out = (model_rope){ 0 };
    SPEC_TRY(choose_object(c, &object));
    const spec_status status = read_object(&object, out);
    speci_config_close(&object);
    SPEC_TRY(status);
    SPEC_TRY(add_theta(c, out, keys->theta));
    if (strcmp(keys->theta, "rope_theta") != 0) SPEC_TRY(add_theta(c, out, "rope_theta"));
    if (isnan(out->theta)) out->theta = keys->theta_default > 0 ? keys->theta_default : THETA_DEFAULT;
    return add_partial(c, out, keys);
}

spec_status speci_rope_dims(const model_rope *rope, int32_t *n_rot, int32_t head_dim, const char *file)
{
    *n_rot = (int32_t)(head_dim * rope->partial);
    if (*n_rot % 2 == 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %d of a head's %d dimensions turn, expected an even number", file, *n_rot,
                      head_dim);
}

/* Long waves are slowed down by `factor`, short ones kept, those between are mixed (Llama 3.1). */
static double llama3(const model_rope *r, double f)
{
    const double wave = 2 * 3.14159265358979323846 / f;
    const double s = (r->original_max_position / wave - r->low_freq_factor) /
                     (r->high_freq_factor - r->low_freq_factor);
    if (wave < r->original_max_position / r->high_freq_factor) return f;
    if (wave > r->original_max_position / r->low_freq_factor) return f / r->factor;
    return (1 - s) * f / r->factor + s * f;
}

/* f_k = theta^(-2k / n_rot) */
void speci_rope_frequencies(const model_rope *rope, float *freq, int32_t n_rot)
{
    for (int32_t k = 0; k < n_rot / 2; k++) {
        double f = pow(rope->theta, -2.0 * k / n_rot);
        if (rope->type == MODEL_ROPE_LINEAR) f /= rope->factor;
        if (rope->type == MODEL_ROPE_LLAMA3) f = llama3(rope, f);
        freq[k] = (float)f;
    }
}
