/* spec_blocks.h - weights in blocks of small whole numbers: how a block lies in memory, and the value of each of its numbers.
 * Both sides of the backend contract use it. Valid C99, C++17 and CUDA C++.
 *
 * A row of a matrix is blocks one after the other, of 32 or 256 consecutive values. The layouts are those of GGUF files
 * (ggml, ggml-common.h), so that a file's bytes are a device's. Fields named d, m, dmin hold f16; all is little-endian. A value is
 * what the formula beside its struct gives in float32, each operation rounded once, in the order written; i counts the values of a
 * block. nibble(i) of n values: the low four bits of qs[i] for i < n / 2, the high four of qs[i - n / 2] else. */
#ifndef SPEC_BLOCKS_H
#define SPEC_BLOCKS_H

#include <stdint.h>

#ifdef __CUDACC__
#define SPEC_BLOCKS_HD __host__ __device__
#else
#define SPEC_BLOCKS_HD
#endif

/* --- blocks of 32: a scale; those ending in 1 have a minimum --- */

#define SPEC_Q8_BLOCK 32
#define SPEC_SMALL_BLOCK 32

/* scale * q[i] */
typedef struct spec_q8_block {
    uint16_t scale; /* f16; finite in what the library makes */
    int8_t q[SPEC_Q8_BLOCK];
} spec_q8_block;

/* d * (nibble(i) - 8) */
typedef struct spec_q4_0_block {
    uint16_t d;
    uint8_t qs[16];
} spec_q4_0_block;

/* d * nibble(i) + m */
typedef struct spec_q4_1_block {
    uint16_t d, m;
    uint8_t qs[16];
} spec_q4_1_block;

/* d * (q - 16), q = nibble(i) + 16 * bit i of qh, which is a number of 32 bits */
typedef struct spec_q5_0_block {
    uint16_t d;
    uint8_t qh[4], qs[16];
} spec_q5_0_block;

/* d * q + m, q as in Q5_0 */
typedef struct spec_q5_1_block {
    uint16_t d, m;
    uint8_t qh[4], qs[16];
} spec_q5_1_block;

/* --- blocks of 256: groups with scales of six or eight bits, which are times the block's --- */

#define SPEC_K_BLOCK 256

/* (d * sc) * q - dmin * mn, sc and mn of group g = i / 32 (spec_k_scale).
 * q: with l = i % 32, the low four bits of qs[32 * (g / 2) + l] for even g, the high four for odd g. */
typedef struct spec_q4_k_block {
    uint16_t d, dmin;
    uint8_t scales[12], qs[128];
} spec_q4_k_block;

/* as Q4_K, and bit g of qh[l] is bit 4 of q */
typedef struct spec_q5_k_block {
    uint16_t d, dmin;
    uint8_t scales[12], qh[32], qs[128];
} spec_q5_k_block;

/* (d * scales[i / 16]) * (q - 32).
 * q: in each half of 128 values, whose bytes are ql + 64 * half and qh + 32 * half, value 32 k + l has as low four bits the low
 * (k < 2) or high (k >= 2) four of ql[32 * (k % 2) + l], and as bits 4 and 5 bits 2 k and 2 k + 1 of qh[l]. */
typedef struct spec_q6_k_block {
    uint8_t ql[128], qh[64];
    int8_t scales[16];
    uint16_t d;
} spec_q6_k_block;

/* The scale and minimum of group g, 0 .. 7, of Q4_K and Q5_K: six bits each. Those of groups 0 to 3 are the low six bits of bytes g
 * and g + 4. Of groups 4 to 7 the low four bits are the halves of byte g + 4, and the high two are on top of bytes g - 4 and g. */
SPEC_BLOCKS_HD static inline void spec_k_scale(const uint8_t scales[12], int g, int *sc, int *mn)
{
    if (g < 4) {
        *sc = scales[g] & 63, *mn = scales[g + 4] & 63;
        return;
    }
    *sc = (scales[g + 4] & 15) | (scales[g - 4] >> 6) << 4;
    *mn = scales[g + 4] >> 4 | (scales[g] >> 6) << 4;
}

/* --- q of value i --- */

/* nibble(i) of 32 values, Q4_0 and Q4_1; with the fifth bit, Q5_0 and Q5_1 */
SPEC_BLOCKS_HD static inline int spec_q4_number(const uint8_t qs[16], int i) { return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4; }
SPEC_BLOCKS_HD static inline int spec_q5_number(const uint8_t qh[4], const uint8_t qs[16], int i)
{
    return spec_q4_number(qs, i) | (qh[i / 8] >> i % 8 & 1) << 4;
}
/* ... of 256: of value l, 0 .. 31, of group g */
SPEC_BLOCKS_HD static inline int spec_q4_k_of(const uint8_t qs[128], int g, int l) { return qs[32 * (g / 2) + l] >> 4 * (g % 2) & 15; }
SPEC_BLOCKS_HD static inline int spec_q5_k_of(const uint8_t qh[32], const uint8_t qs[128], int g, int l)
{
    return spec_q4_k_of(qs, g, l) | (qh[l] >> g & 1) << 4;
}
SPEC_BLOCKS_HD static inline int spec_q6_k_of(const spec_q6_k_block *b, int g, int l)
{
    const int half = g / 4, k = g % 4;
    return (b->ql[64 * half + 32 * (k % 2) + l] >> 4 * (k / 2) & 15) | (b->qh[32 * half + l] >> 2 * k & 3) << 4;
}
SPEC_BLOCKS_HD static inline int spec_q4_k_number(const uint8_t qs[128], int i) { return spec_q4_k_of(qs, i / 32, i % 32); }
SPEC_BLOCKS_HD static inline int spec_q5_k_number(const uint8_t qh[32], const uint8_t qs[128], int i)
{
    return spec_q5_k_of(qh, qs, i / 32, i % 32);
}
SPEC_BLOCKS_HD static inline int spec_q6_k_number(const spec_q6_k_block *b, int i) { return spec_q6_k_of(b, i / 32, i % 32); }

/* --- all of them alike, for who keeps their parts in an order of his own ---
 *
 * With f and fm 1 in blocks of 32, and o the middle of q (8, 16, 32 or 0):
 *   value = (d * f) * (q - o) + m,   in blocks of 256   (d * f) * (q - o) - m * fm
 * where each product is a number that float32 holds: only the sum is rounded, and a fused multiply-add gives the same bits. */
typedef struct spec_block_parts {
    uint16_t d, m;           /* f16; m 0: there is none */
    uint8_t f[16], fm[16];   /* of 16 values each, f of Q6_K int8; not set in blocks of 32 */
    uint8_t q[SPEC_K_BLOCK]; /* with the middle */
} spec_block_parts;

typedef struct spec_block_form {
    int32_t n_value, n_byte; /* of a block */
    int32_t n_high;          /* bits of q above four */
    int32_t middle;
    int32_t has_m, n_f;      /* n_f: different f, 0, 8 or 16 */
} spec_block_form;

#define SPEC_FORM_Q4_0 { 32, 18, 0, 8, 0, 0 }
#define SPEC_FORM_Q4_1 { 32, 20, 0, 0, 1, 0 }
#define SPEC_FORM_Q5_0 { 32, 22, 1, 16, 0, 0 }
#define SPEC_FORM_Q5_1 { 32, 24, 1, 0, 1, 0 }
#define SPEC_FORM_Q4_K { 256, 144, 0, 0, 1, 8 }
#define SPEC_FORM_Q5_K { 256, 176, 1, 0, 1, 8 }
#define SPEC_FORM_Q6_K { 256, 210, 2, 32, 0, 16 }

SPEC_BLOCKS_HD static inline void spec_q4_0_parts(spec_block_parts *to, const void *block)
{
    const spec_q4_0_block *b = (const spec_q4_0_block *)block;
    to->d = b->d, to->m = 0;
    for (int i = 0; i < SPEC_SMALL_BLOCK; i++) to->q[i] = (uint8_t)spec_q4_number(b->qs, i);
}
SPEC_BLOCKS_HD static inline void spec_q4_1_parts(spec_block_parts *to, const void *block)
{
    const spec_q4_1_block *b = (const spec_q4_1_block *)block;
    to->d = b->d, to->m = b->m;
    for (int i = 0; i < SPEC_SMALL_BLOCK; i++) to->q[i] = (uint8_t)spec_q4_number(b->qs, i);
}
SPEC_BLOCKS_HD static inline void spec_q5_0_parts(spec_block_parts *to, const void *block)
{
    const spec_q5_0_block *b = (const spec_q5_0_block *)block;
    to->d = b->d, to->m = 0;
    for (int i = 0; i < SPEC_SMALL_BLOCK; i++) to->q[i] = (uint8_t)spec_q5_number(b->qh, b->qs, i);
}
SPEC_BLOCKS_HD static inline void spec_q5_1_parts(spec_block_parts *to, const void *block)
{
    const spec_q5_1_block *b = (const spec_q5_1_block *)block;
    to->d = b->d, to->m = b->m;
    for (int i = 0; i < SPEC_SMALL_BLOCK; i++) to->q[i] = (uint8_t)spec_q5_number(b->qh, b->qs, i);
}
SPEC_BLOCKS_HD static inline void spec_k_parts(spec_block_parts *to, const uint8_t scales[12])
{
    for (int i = 0; i < 16; i++) {
        int sc, mn;
        spec_k_scale(scales, i / 2, &sc, &mn);
        to->f[i] = (uint8_t)sc, to->fm[i] = (uint8_t)mn;
    }
}
SPEC_BLOCKS_HD static inline void spec_q4_k_parts(spec_block_parts *to, const void *block)
{
    const spec_q4_k_block *b = (const spec_q4_k_block *)block;
    to->d = b->d, to->m = b->dmin;
    spec_k_parts(to, b->scales);
    for (int g = 0; g < SPEC_K_BLOCK / 32; g++)
        for (int l = 0; l < 32; l++) to->q[32 * g + l] = (uint8_t)spec_q4_k_of(b->qs, g, l);
}
SPEC_BLOCKS_HD static inline void spec_q5_k_parts(spec_block_parts *to, const void *block)
{
    const spec_q5_k_block *b = (const spec_q5_k_block *)block;
    to->d = b->d, to->m = b->dmin;
    spec_k_parts(to, b->scales);
    for (int g = 0; g < SPEC_K_BLOCK / 32; g++)
        for (int l = 0; l < 32; l++) to->q[32 * g + l] = (uint8_t)spec_q5_k_of(b->qh, b->qs, g, l);
}
SPEC_BLOCKS_HD static inline void spec_q6_k_parts(spec_block_parts *to, const void *block)
{
    const spec_q6_k_block *b = (const spec_q6_k_block *)block;
    to->d = b->d, to->m = 0;
    for (int i = 0; i < 16; i++) to->f[i] = (uint8_t)b->scales[i], to->fm[i] = 0;
    for (int g = 0; g < SPEC_K_BLOCK / 32; g++)
        for (int l = 0; l < 32; l++) to->q[32 * g + l] = (uint8_t)spec_q6_k_of(b, g, l);
}

#endif
