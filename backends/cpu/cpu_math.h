/* cpu_math.h - the functions that several operations share: one function for one rule.
 * Plain C without branches, so that a compiler can vectorise them and gives the same bits when it does
 * (-ffp-contract=off). Independent of the C library. */
#ifndef SPEC_CPU_MATH_H
#define SPEC_CPU_MATH_H

#include "core/core_half.h"

/* e^x = 2^n e^r, n = round(x / ln 2), |r| <= ln 2 / 2; polynomial of Cephes' expf. Within 2 ulp.
 * The power is applied in two halves, so that subnormal results are right. NaN gives NaN. */
static inline float cpu_exp(float x)
{
    x = x > 89.0f ? 89.0f : x;
    x = x < -104.0f ? -104.0f : x;
    float t = x * 1.44269504088896341f + 12582912.0f; /* 1.5 * 2^23: the low bits of t are n */
    float n = t - 12582912.0f;
    float r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    uint32_t k = speci_bits(t) - 0x4b400000u + 256u; /* n + 256, positive */
    uint32_t half = k >> 1;                        /* floor(n / 2) + 128 */
    float a = speci_float((half - 1u) << 23);        /* 2^floor(n / 2) */
    float b = speci_float((k - half - 1u) << 23);    /* 2^(n - floor(n / 2)) */
    return p * a * b;
}

/* ln(1 + u) for u in [0, 1] = 2 atanh(s), s = u / (2 + u) <= 1/3: series in s^2 <= 1/9. */
static inline float cpu_log1p_unit(float u)
{
    float s = u / (2.0f + u), z = s * s;
    float p = 1.0f / 15.0f;
    p = p * z + 1.0f / 13.0f;
    p = p * z + 1.0f / 11.0f;
    p = p * z + 1.0f / 9.0f;
    p = p * z + 1.0f / 7.0f;
    p = p * z + 1.0f / 5.0f;
    p = p * z + 1.0f / 3.0f;
    return 2.0f * (s + s * (p * z));
}

/* x > 20: x; else ln(1 + e^x) = max(x, 0) + ln(1 + e^-|x|) */
static inline float cpu_softplus(float x)
{
    float magnitude = x < 0.0f ? -x : x;
    float positive = x < 0.0f ? 0.0f : x;
    float y = positive + cpu_log1p_unit(cpu_exp(-magnitude));
    return x > 20.0f ? x : y;
}

static inline float cpu_silu(float x)
{
    return x / (1.0f + cpu_exp(-x));
}

/* tanh(x), relative error 1.5e-7: x + x^3 P(x^2) below 5/8 (Cephes' tanhf), 1 - 2 / (1 + e^2x) above. */
static inline float cpu_tanh(float x)
{
    float magnitude = x < 0.0f ? -x : x, z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float near = x + x * (z * p), far = 1.0f - 2.0f / (1.0f + cpu_exp(2.0f * magnitude));
    return magnitude > 0.625f ? (x < 0.0f ? -far : far) : near;
}

/* erfc(x) for x >= 0, relative error 1.2e-7: Chebyshev fit of Numerical Recipes (erfcc). */
static inline float cpu_erfc_positive(float x)
{
    float t = 1.0f / (1.0f + 0.5f * x);
    float p = 0.17087277f;
    p = p * t - 0.82215223f;
    p = p * t + 1.48851587f;
    p = p * t - 1.13520398f;
    p = p * t + 0.27886807f;
    p = p * t - 0.18628806f;
    p = p * t + 0.09678418f;
    p = p * t + 0.37409196f;
    p = p * t + 1.00002368f;
    return t * cpu_exp(p * t - 1.26551223f - x * x);
}

/* x/2 (1 + erf(x / sqrt 2)) = x/2 erfc(-x / sqrt 2) */
static inline float cpu_gelu(float x)
{
    float z = x * 0.70710678118654752f;
    float magnitude = z < 0.0f ? -z : z;
    float tail = cpu_erfc_positive(magnitude);
    return 0.5f * x * (z < 0.0f ? tail : 2.0f - tail);
}

/* x/2 (1 + tanh(z)) = x / (1 + e^-2z), z = sqrt(2/pi) (x + 0.044715 x^3) */
static inline float cpu_gelu_tanh(float x)
{
    float z = 0.79788456080286536f * (x + 0.044715f * x * x * x);
    return x / (1.0f + cpu_exp(-2.0f * z));
}

#endif
