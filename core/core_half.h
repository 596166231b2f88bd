/* core_half.h - bf16 and f16 from and to float32. Rounding is to nearest even; a NaN stays a NaN. */
#ifndef SPEC_CORE_HALF_H
#define SPEC_CORE_HALF_H

#include <stdint.h>
#include <string.h>

#define SPECI_F16_MOST 65504.0f /* the largest finite f16 */

static inline uint32_t speci_bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static inline float speci_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline float speci_from_bf16(uint16_t h)
{
    return speci_float((uint32_t)h << 16);
}

static inline uint16_t speci_to_bf16(float f)
{
    uint32_t u = speci_bits(f);
    uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    uint32_t nan = (u >> 16) | 0x40u;
    return (uint16_t)((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

/* The exponent is moved by a multiplication with 2^112, which also makes subnormal values right. */
static inline float speci_from_f16(uint16_t h)
{
    uint32_t sign = ((uint32_t)h & 0x8000u) << 16, rest = ((uint32_t)h & 0x7fffu) << 13;
    uint32_t finite = speci_bits(speci_float(rest) * 0x1p112f);
    uint32_t special = rest | 0x7f800000u; /* infinity and NaN */
    return speci_float(sign | (rest >= 0x0f800000u ? special : finite));
}

static inline uint16_t speci_to_f16(float f)
{
    uint32_t u = speci_bits(f), sign = (u >> 16) & 0x8000u;
    u &= 0x7fffffffu;
    /* below 2^-14: adding 1/2 leaves the rounded subnormal in the low bits */
    uint32_t small = speci_bits(speci_float(u) + 0.5f) - 0x3f000000u;
    uint32_t normal = (u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13;
    uint32_t large = u > 0x7f800000u ? 0x7e00u | ((u >> 13) & 0x3ffu) : 0x7c00u;
    uint32_t h = u < 0x38800000u ? small : u >= 0x47800000u ? large : normal;
    return (uint16_t)(sign | h);
}

#endif
