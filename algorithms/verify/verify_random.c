/* verify_random.c - counter-based random numbers (spec_draw.h) for verification and target draws. */
#include "algorithms/verify/verify.h"

float spec_uniform(uint64_t seed, uint64_t position, uint32_t purpose, uint32_t index)
{
    uint32_t c[4] = { (uint32_t)position, (uint32_t)(position >> 32), purpose, index };
    spec_philox(c, seed);
    return (float)(c[0] >> 8) * 0x1p-24f;
}
