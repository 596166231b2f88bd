/* backend_pack.c - float32 as blocks of 32: the formulas of spec_blocks.h, solved for the numbers.
 *
 *   ending in 0   the scale takes the value of the largest magnitude to the last number on its side: Q8_0 to 127 or -127,
 *                 Q4_0 to -8, Q5_0 to -16
 *   ending in 1   the minimum is the least value, and the scale takes the largest to the largest number
 *
 * Numbers are rounded with the scale before it becomes f16, halves up (Q8_0: away from zero). */
#include "backends/backend_pack.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/core_half.h"

enum { N = SPEC_SMALL_BLOCK };

/* The numbers of a scale: what values are multiplied with. None where f16 has no such scale. */
static float inverse_of(float scale, uint16_t *held)
{
    *held = speci_to_f16(scale);
    return (*held & 0x7fffu) != 0 ? 1.0f / scale : 0.0f;
}

static int at_most(int q, int most) { return q < most ? q : most; }

static void pack_q8_0(void *out, const float *x)
{
    spec_q8_block *block = out;
    float most = 0.0f;
    for (int i = 0; i < N; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    const float inverse = inverse_of(most / 127.0f, &block->scale);
    for (int i = 0; i < N; i++) {
        const float v = x[i] * inverse;
        const int whole = (int)v;
        const float rest = v - (float)whole;
        block->q[i] = (int8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
    }
}

/* Numbers q [32] from 0 to 2 * half - 1, with `half` as zero; returns the scale, f16. */
static uint16_t symmetric(int q[N], const float *x, int half)
{
    float far = 0.0f; /* of the largest magnitude, the first */
    for (int i = 0; i < N; i++) far = fabsf(x[i]) > fabsf(far) ? x[i] : far;
    uint16_t held;
    const float inverse = inverse_of(far / (float)-half, &held);
    for (int i = 0; i < N; i++) q[i] = at_most((int)(x[i] * inverse + ((float)half + 0.5f)), 2 * half - 1);
    return held;
}

/* Numbers q [32] from 0 to `most`; returns the scale, and in *held_least the minimum, f16. */
static uint16_t affine(int q[N], uint16_t *held_least, const float *x, int most)
{
    float least = x[0], largest = x[0];
    for (int i = 1; i < N; i++) {
        least = x[i] < least ? x[i] : least;
        largest = x[i] > largest ? x[i] : largest;
    }
    uint16_t held;
    const float inverse = inverse_of((largest - least) / (float)most, &held);
    *held_least = speci_to_f16(least);
    for (int i = 0; i < N; i++) q[i] = at_most((int)((x[i] - least) * inverse + 0.5f), most);
    return held;
}

/* The low four bits of each number. */
static void put_fours(uint8_t qs[16], const int q[N])
{
    for (int i = 0; i < 16; i++) qs[i] = (uint8_t)((q[i] & 15) | (q[i + 16] & 15) << 4);
}

/* The fifth bits. */
static void put_fifths(uint8_t qh[4], const int q[N])
{
    memset(qh, 0, 4);
    for (int i = 0; i < N; i++) qh[i / 8] = (uint8_t)(qh[i / 8] | q[i] >> 4 << i % 8);
}

static void pack_q4_0(void *out, const float *x)
{
    spec_q4_0_block *block = out;
    int q[N];
    block->d = symmetric(q, x, 8);
    put_fours(block->qs, q);
}

static void pack_q4_1(void *out, const float *x)
{
    spec_q4_1_block *block = out;
    int q[N];
    block->d = affine(q, &block->m, x, 15);
    put_fours(block->qs, q);
}

static void pack_q5_0(void *out, const float *x)
{
    spec_q5_0_block *block = out;
    int q[N];
    block->d = symmetric(q, x, 16);
    put_fours(block->qs, q);
    put_fifths(block->qh, q);
}

static void pack_q5_1(void *out, const float *x)
{
    spec_q5_1_block *block = out;
    int q[N];
    block->d = affine(q, &block->m, x, 31);
    put_fours(block->qs, q);
    put_fifths(block->qh, q);
}

const speci_packing speci_pack_q8_0 = { "q8_0", N, sizeof(spec_q8_block), 127 * SPECI_F16_MOST, pack_q8_0 };
const speci_packing speci_pack_q4_0 = { "q4_0", N, sizeof(spec_q4_0_block), 8 * SPECI_F16_MOST, pack_q4_0 };
const speci_packing speci_pack_q4_1 = { "q4_1", N, sizeof(spec_q4_1_block), SPECI_F16_MOST, pack_q4_1 };
const speci_packing speci_pack_q5_0 = { "q5_0", N, sizeof(spec_q5_0_block), 16 * SPECI_F16_MOST, pack_q5_0 };
const speci_packing speci_pack_q5_1 = { "q5_1", N, sizeof(spec_q5_1_block), SPECI_F16_MOST, pack_q5_1 };

static bool fits(const float *x, size_t n, float most)
{
    size_t n_held = 0;
    for (size_t i = 0; i < n; i++) n_held += fabsf(x[i]) <= most; /* not so for a NaN */
    return n_held == n;
}

size_t speci_pack(const speci_packing *packing, void *blocks, const float *x, size_t n)
{
    uint8_t *block = blocks;
    for (size_t b = 0; b < n; b++, block += packing->bytes, x += packing->n_value) {
        if (!fits(x, packing->n_value, packing->most)) return b;
        packing->pack_one(block, x);
    }
    return n;
}
