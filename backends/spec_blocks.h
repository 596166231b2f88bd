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

#endif
