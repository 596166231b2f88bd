/* spec_draw.h - random numbers that both sides of the backend contract draw alike: Philox4x32-10, and the streams of
 * draft draws. Valid C99, C++17 and CUDA C++.
 *
 * Sources: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011; algorithms.md 1, 2.3.
 *
 * A node of a draft tree owns a stream, named by a 64-bit key: the root's comes from (seed, the sequence's step counter),
 * a child's from its parent's key and its rank. So what is drawn at a slot depends on the slot alone, whichever builder
 * draws it, in whatever order and batch. */
#ifndef SPEC_DRAW_H
#define SPEC_DRAW_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define SPEC_DRAW_HD __host__ __device__
#else
#define SPEC_DRAW_HD
#endif

/* c [4] = Philox4x32-10 of counter c under the key. */
SPEC_DRAW_HD static inline void spec_philox(uint32_t c[4], uint64_t key)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int i = 0; i < 10; i++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        const uint32_t r0 = (uint32_t)(b >> 32) ^ c[1] ^ k0, r2 = (uint32_t)(a >> 32) ^ c[3] ^ k1;
        c[0] = r0, c[1] = (uint32_t)b, c[2] = r2, c[3] = (uint32_t)a;
        k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
    }
}

/* Purposes: the third word of the counter, so that streams under one key do not meet. Verification's are 1 to 3. */
enum { SPEC_STREAM_ROOT = 16, SPEC_STREAM_CHILD = 17, SPEC_STREAM_GUMBEL = 18, SPEC_STREAM_REPEAT = 19 };

SPEC_DRAW_HD static inline uint64_t spec_stream_(uint64_t key, uint64_t at, uint32_t purpose)
{
    uint32_t c[4] = { (uint32_t)at, (uint32_t)(at >> 32), purpose, 0 };
    spec_philox(c, key);
    return (uint64_t)c[1] << 32 | c[0];
}
SPEC_DRAW_HD static inline uint64_t spec_stream_root(uint64_t seed, uint64_t step)
{
    return spec_stream_(seed, step, SPEC_STREAM_ROOT);
}
SPEC_DRAW_HD static inline uint64_t spec_stream_child(uint64_t key, int32_t rank)
{
    return spec_stream_(key, (uint64_t)(uint32_t)rank, SPEC_STREAM_CHILD);
}

/* Draws without replacement are an exponential race: the entry of distribution l finishes at E / l, E exponential, and the k
 * first are k draws in order, distributed as if drawn one after the other (2.3). A Philox block serves two entries.
 *
 * E = -log(1 - U), U of 64 bits: a likely winner's E is small, and there U keeps 24 significant bits. words: the two of
 * the entry. */
SPEC_DRAW_HD static inline void spec_gumbel_words(uint64_t key, uint32_t pair, uint32_t words[4])
{
    words[0] = pair, words[1] = 0, words[2] = SPEC_STREAM_GUMBEL, words[3] = 0;
    spec_philox(words, key);
}
SPEC_DRAW_HD static inline float spec_gumbel_exponential(uint32_t high, uint32_t low)
{
    const float u = ((float)high * 4294967296.0f + (float)low) * 5.42101086242752217e-20f; /* 2^-64, rounded */
    return u >= 1.0f ? 44.3614195558364998f : u > 0.0f ? -log1pf(-u) : 2.71050543121376109e-20f; /* 64 ln 2; 2^-65 */
}
/* Entry id's value in the race under `key`: larger is earlier; 0 for entries that cannot be drawn. */
SPEC_DRAW_HD static inline float spec_gumbel_value(float probs, uint32_t high, uint32_t low)
{
    return probs > 0.0f ? probs / spec_gumbel_exponential(high, low) : 0.0f;
}

/* Uniform in [0, 1) of draw j with replacement. */
SPEC_DRAW_HD static inline float spec_repeat_uniform(uint64_t key, uint32_t j)
{
    uint32_t c[4] = { j, 0, SPEC_STREAM_REPEAT, 0 };
    spec_philox(c, key);
    return (float)(c[0] >> 8) * 5.9604644775390625e-8f; /* 2^-24 */
}

#endif
