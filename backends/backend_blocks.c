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
        for (int i = 0; i < SPEC_SMALL_BLOCK; i++) y[i] = d * (float)(spec_q4_number(block->qs, i) - 8);
    }
}

void speci_unpack_q4_1(float *y, const void *blocks, size_t n)
{
    const spec_q4_1_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        const float d = speci_from_f16(block->d), m = speci_from_f16(block->m);
        for (int i = 0; i < SPEC_SMALL_BLOCK; i++) y[i] = d * (float)spec_q4_number(block->qs, i) + m;
    }
}

void speci_unpack_q5_0(float *y, const void *blocks, size_t n)
{
    const spec_q5_0_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        const float d = speci_from_f16(block->d);
        for (int i = 0; i < SPEC_SMALL_BLOCK; i++) y[i] = d * (float)(spec_q5_number(block->qh, block->qs, i) - 16);
    }
}

void speci_unpack_q5_1(float *y, const void *blocks, size_t n)
{
    const spec_q5_1_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        const float d = speci_from_f16(block->d), m = speci_from_f16(block->m);
        for (int i = 0; i < SPEC_SMALL_BLOCK; i++) y[i] = d * (float)spec_q5_number(block->qh, block->qs, i) + m;
    }
}

/* The scale of group g of Q4_K and Q5_K, and what is less. */
static void group_scale(float *scale, float *least, uint16_t d, uint16_t dmin, const uint8_t scales[12], int g)
{
    int sc, mn;
    spec_k_scale(scales, g, &sc, &mn);
    *scale = speci_from_f16(d) * (float)sc, *least = speci_from_f16(dmin) * (float)mn;
}

void speci_unpack_q4_k(float *y, const void *blocks, size_t n)
{
    const spec_q4_k_block *block = blocks;
    float scale = 0.0f, least = 0.0f;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_K_BLOCK)
        for (int i = 0; i < SPEC_K_BLOCK; i++) {
            if (i % 32 == 0) group_scale(&scale, &least, block->d, block->dmin, block->scales, i / 32);
            y[i] = scale * (float)spec_q4_k_number(block->qs, i) - least;
        }
}

void speci_unpack_q5_k(float *y, const void *blocks, size_t n)
{
    const spec_q5_k_block *block = blocks;
    float scale = 0.0f, least = 0.0f;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_K_BLOCK)
        for (int i = 0; i < SPEC_K_BLOCK; i++) {
            if (i % 32 == 0) group_scale(&scale, &least, block->d, block->dmin, block->scales, i / 32);
            y[i] = scale * (float)spec_q5_k_number(block->qh, block->qs, i) - least;
        }
}

void speci_unpack_q6_k(float *y, const void *blocks, size_t n)
{
    const spec_q6_k_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_K_BLOCK) {
        const float d = speci_from_f16(block->d);
        for (int i = 0; i < SPEC_K_BLOCK; i++)
            y[i] = d * (float)block->scales[i / 16] * (float)(spec_q6_k_number(block, i) - 32);
    }
}
