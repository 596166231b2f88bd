/* family_rope_frequency.c - how fast each pair of dimensions turns. Source: transformers modeling_rope_utils.py
 * (_compute_linear_scaling_rope_parameters, _compute_llama3_parameters, _compute_yarn_parameters, _compute_longrope_parameters,
 * dynamic_rope_update). */
#include "models/families/family_rope.h"

#include <math.h>

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

/* The dimension whose wave turns `turns` times in the original length. */
static double yarn_dimension(const model_rope *r, double turns, int32_t n_rot)
{
    return n_rot * log(r->original_max_position / (turns * 2 * 3.14159265358979323846)) / (2 * log(r->theta));
}

/* Waves that turn often in the original length are kept, those that turn less than once slowed down, the others mixed by a
 * ramp over their dimensions. */
static double yarn(const model_rope *r, double f, int32_t k, int32_t n_rot)
{
    double low = yarn_dimension(r, r->beta_fast, n_rot), high = yarn_dimension(r, r->beta_slow, n_rot);
    if (r->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, n_rot - 1);
    if (low == high) high += 0.001;
    const double ramp = fmin(fmax((k - low) / (high - low), 0), 1);
    return f / r->factor * ramp + f * (1 - ramp);
}

/* f_k = theta^(-2k / n_rot), scaled */
static double frequency(const model_rope *rope, int32_t k, int32_t n_rot)
{
    const double f = pow(rope->theta, -2.0 * k / n_rot);
    switch (rope->type) {
    case MODEL_ROPE_LINEAR: return f / rope->factor;
    case MODEL_ROPE_LLAMA3: return llama3(rope, f);
    case MODEL_ROPE_YARN: return yarn(rope, f, k, n_rot);
    default: return f;
    }
}

/* Each frequency over its factor (Ding et al. 2024, LongRoPE). */
static spec_status divide(float *freq, const json_t *factor, const model_rope *rope, int32_t n_rot, const char *key,
                          const char *file)
{
    if (json_array_size(factor) != (size_t)n_rot / 2)
        return speci_fail(SPEC_E_FORMAT, "%s: %s has %zu entries, expected %d, half of the dimensions that turn", file, key,
                          json_array_size(factor), n_rot / 2);
    for (int32_t k = 0; k < n_rot / 2; k++) {
        const json_t *v = json_array_get(factor, (size_t)k);
        double x = 0;
        if (!speci_json_number(v, &x) || !(x >= 1e-3 && x <= 1e6))
            return speci_fail(SPEC_E_FORMAT, "%s: %s[%d] is %s, expected a number from 0.001 to 1e+06", file, key, k,
                              speci_value_of(v).s);
        freq[k] = (float)(frequency(rope, k, n_rot) / x);
    }
    return SPEC_OK;
}

spec_status speci_rope_frequencies(const model_rope *rope, float *freq, int32_t n_rot, const char *file)
{
    if (rope->short_factor) return divide(freq, rope->short_factor, rope, n_rot, "short_factor", file);
    for (int32_t k = 0; k < n_rot / 2; k++) freq[k] = (float)frequency(rope, k, n_rot);
    return SPEC_OK;
}

int32_t speci_rope_short_length(const model_rope *rope)
{
    return rope->type == MODEL_ROPE_LONGROPE ? (int32_t)rope->original_max_position : 0;
}

spec_status speci_rope_long_frequencies(const model_rope *rope, float *freq, int32_t n_rot, const char *file)
{
    return divide(freq, rope->long_factor, rope, n_rot, "long_factor", file);
}
