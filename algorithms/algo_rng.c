/* algo_rng.c - counter-based random numbers: Philox4x32-10.
 * Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#include "algorithms/algo.h"

static void philox_round(uint32_t c[4], const uint32_t k[2])
{
    const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
    const uint32_t r[4] = { (uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                            (uint32_t)a };
    for (int i = 0; i < 4; i++) c[i] = r[i];
}

float spec_uniform(uint64_t seed, uint64_t position, uint32_t purpose, uint32_t index)
{
    uint32_t c[4] = { (uint32_t)position, (uint32_t)(position >> 32), purpose, index };
    uint32_t k[2] = { (uint32_t)seed, (uint32_t)(seed >> 32) };
    for (int i = 0; i < 10; i++) {
        philox_round(c, k);
        k[0] += 0x9E3779B9u, k[1] += 0xBB67AE85u;
    }
    return (float)(c[0] >> 8) * 0x1p-24f;
}
