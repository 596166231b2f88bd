/* backend_blocks.c - blocks of weights as float32: the formulas of spec_blocks.h. */
#include "backends/backend_blocks.h"

#include "core/core_half.h"

_Static_assert(sizeof(spec_q8_block) == 34 && sizeof(spec_q4_0_block) == 18 && sizeof(spec_q4_1_block) == 20 &&
                   sizeof(spec_q5_0_block) == 22 && sizeof(spec_q5_1_block) == 24 && sizeof(spec_q4_k_block) == 144 &&
                   sizeof(spec_q5_k_block) == 176 && sizeof(spec_q6_k_block) == 210,
               "a block is as long as in a file");

void speci_unpack_q8_0(float *y, const void *blocks, size_t n)
{
    const spec_q8_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_Q8_BLOCK) {
        const float d = speci_from_f16(block->scale);
        for (int i = 0; i < SPEC_Q8_BLOCK; i++) y[i] = d * (float)block->q[i];
    }
}

void speci_unpack_q4_0(float *y, const void *blocks, size_t n)
{
    const spec_q4_0_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        const float d = speci_from_f16(block->d);
        for (int i = 0; i < 16; i++) {
            y[i] = d * (float)((block->qs[i] & 15) - 8);
            y[i + 16] = d * (float)((block->qs[i] >> 4) - 8);
        }
    }
}

void speci_unpack_q4_1(float *y, const void *blocks, size_t n)
{
    const spec_q4_1_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        const float d = speci_from_f16(block->d), m = speci_from_f16(block->m);
        for (int i = 0; i < 16; i++) {
            y[i] = d * (float)(block->qs[i] & 15) + m;
            y[i + 16] = d * (float)(block->qs[i] >> 4) + m;
        }
    }
}

/* Numbers of five bits: q [32]. */
static void five_bits(int q[SPEC_SMALL_BLOCK], const uint8_t qh[4], const uint8_t qs[16])
{
    for (int i = 0; i < 16; i++) {
        q[i] = (qs[i] & 15) | (qh[i / 8] >> i % 8 & 1) << 4;
        q[i + 16] = qs[i] >> 4 | (qh[2 + i / 8] >> i % 8 & 1) << 4;
    }
}

void speci_unpack_q5_0(float *y, const void *blocks, size_t n)
{
    const spec_q5_0_block *block = blocks;
    int q[SPEC_SMALL_BLOCK];
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        const float d = speci_from_f16(block->d);
        five_bits(q, block->qh, block->qs);
        for (int i = 0; i < SPEC_SMALL_BLOCK; i++) y[i] = d * (float)(q[i] - 16);
    }
}

void speci_unpack_q5_1(float *y, const void *blocks, size_t n)
{
    const spec_q5_1_block *block = blocks;
    int q[SPEC_SMALL_BLOCK];
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        const float d = speci_from_f16(block->d), m = speci_from_f16(block->m);
        five_bits(q, block->qh, block->qs);
        for (int i = 0; i < SPEC_SMALL_BLOCK; i++) y[i] = d * (float)q[i] + m;
    }
}

/* A pair of groups, 64 values, of Q4_K (qh NULL) or Q5_K; bits 2 * pair and 2 * pair + 1 of qh are theirs. */
static void unpack_pair(float *y, float d, float dmin, const uint8_t scales[12], int pair, const uint8_t *qs, const uint8_t *qh)
{
    for (int half = 0; half < 2; half++, y += 32) {
        int sc, mn;
        spec_k_scale(scales, 2 * pair + half, &sc, &mn);
        const float scale = d * (float)sc, least = dmin * (float)mn;
        for (int l = 0; l < 32; l++) {
            const int fifth = qh ? (qh[l] >> (2 * pair + half) & 1) << 4 : 0;
            y[l] = scale * (float)((qs[l] >> 4 * half & 15) | fifth) - least;
        }
    }
}

void speci_unpack_q4_k(float *y, const void *blocks, size_t n)
{
    const spec_q4_k_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++) {
        const float d = speci_from_f16(block->d), dmin = speci_from_f16(block->dmin);
        for (int pair = 0; pair < 4; pair++, y += 64) unpack_pair(y, d, dmin, block->scales, pair, block->qs + 32 * pair, NULL);
    }
}

void speci_unpack_q5_k(float *y, const void *blocks, size_t n)
{
    const spec_q5_k_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++) {
        const float d = speci_from_f16(block->d), dmin = speci_from_f16(block->dmin);
        for (int pair = 0; pair < 4; pair++, y += 64)
            unpack_pair(y, d, dmin, block->scales, pair, block->qs + 32 * pair, block->qh);
    }
}

void speci_unpack_q6_k(float *y, const void *blocks, size_t n)
{
    const spec_q6_k_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_K_BLOCK) {
        const float d = speci_from_f16(block->d);
        for (int i = 0; i < SPEC_K_BLOCK; i++) {
            const int half = i / 128, k = i / 32 % 4, l = i % 32;
            const int low = block->ql[64 * half + 32 * (k % 2) + l] >> 4 * (k / 2) & 15;
            const int high = block->qh[32 * half + l] >> 2 * k & 3;
            y[i] = d * (float)block->scales[i / 16] * (float)((low | high << 4) - 32);
        }
    }
}
