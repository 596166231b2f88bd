/* files_gguf_types.c - the types of tensors in GGUF files. Source of numbers and layouts: ggml (ggml.h, ggml-common.h).
 *
 * Blocks that devices may keep as they are stand in spec_blocks.h. Those here are unpacked when they are loaded. nibble(i) and the
 * order of operations are as there. */
#include "models/files/files_gguf_types.h"

#include <string.h>
#include <strings.h>

#include "core/core_half.h"

/* (d * (scales[i / 16] & 15)) * q - dmin * (scales[i / 16] >> 4).
 * q: in each half of 128 values, value 32 k + l is bits 2 k and 2 k + 1 of qs[32 * half + l]. */
typedef struct q2_k_block {
    uint8_t scales[16], qs[64];
    uint16_t d, dmin;
} q2_k_block;

/* (d * (scale - 32)) * q. q as in Q2_K, less 4 where bit i / 32 of hmask[i % 32] is not set. The scale of group g = i / 16 has as low
 * four bits a half of scales[g % 8], the low one for g < 8, and as high two bits 2 (g / 4) and 2 (g / 4) + 1 of scales[8 + g % 4]. */
typedef struct q3_k_block {
    uint8_t hmask[32], qs[64], scales[12];
    uint16_t d;
} q3_k_block;

/* d * fours[nibble(i)] */
typedef struct iq4_nl_block {
    uint16_t d;
    uint8_t qs[16];
} iq4_nl_block;

/* (d * (scale - 32)) * fours[nibble of the group]: groups of 32. The scale of group g has as low four bits a half of
 * scales_l[g / 2], the low one for even g, and as high two bits 2 g and 2 g + 1 of scales_h. */
typedef struct iq4_xs_block {
    uint16_t d, scales_h;
    uint8_t scales_l[4], qs[128];
} iq4_xs_block;

/* 2^(e - 128) * halves[nibble(i)]: numbers of E2M1, doubled. Source: OCP Microscaling Formats 1.0. */
typedef struct mxfp4_block {
    uint8_t e, qs[16];
} mxfp4_block;

_Static_assert(sizeof(q2_k_block) == 84 && sizeof(q3_k_block) == 110 && sizeof(iq4_nl_block) == 18 && sizeof(iq4_xs_block) == 136 &&
                   sizeof(mxfp4_block) == 17, "a block is as long as in a file");

static const int8_t fours[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };
static const int8_t halves[16] = { 0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12 };

/* Two bits of value i in qs of Q2_K and Q3_K. */
static int two_bits(const uint8_t qs[64], int i) { return qs[32 * (i / 128) + i % 32] >> 2 * (i / 32 % 4) & 3; }

static void unpack_q2_k(float *y, const void *blocks, size_t n)
{
    const q2_k_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_K_BLOCK) {
        const float d = speci_from_f16(block->d), dmin = speci_from_f16(block->dmin);
        for (int i = 0; i < SPEC_K_BLOCK; i++) {
            const int scale = block->scales[i / 16];
            y[i] = d * (float)(scale & 15) * (float)two_bits(block->qs, i) - dmin * (float)(scale >> 4);
        }
    }
}

static void unpack_q3_k(float *y, const void *blocks, size_t n)
{
    const q3_k_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_K_BLOCK) {
        const float d = speci_from_f16(block->d);
        for (int i = 0; i < SPEC_K_BLOCK; i++) {
            const int g = i / 16, low = block->scales[g % 8] >> 4 * (g / 8) & 15, high = block->scales[8 + g % 4] >> 2 * (g / 4) & 3;
            const int q = two_bits(block->qs, i) - (block->hmask[i % 32] >> i / 32 & 1 ? 0 : 4);
            y[i] = d * (float)((low | high << 4) - 32) * (float)q;
        }
    }
}

/* 32 values with one scale, from a table of sixteen. */
static void unpack_table(float *y, float scale, const int8_t table[16], const uint8_t qs[16])
{
    for (int i = 0; i < 16; i++) {
        y[i] = scale * (float)table[qs[i] & 15];
        y[i + 16] = scale * (float)table[qs[i] >> 4];
    }
}

static void unpack_iq4_nl(float *y, const void *blocks, size_t n)
{
    const iq4_nl_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        unpack_table(y, speci_from_f16(block->d), fours, block->qs);
    }
}

static void unpack_iq4_xs(float *y, const void *blocks, size_t n)
{
    const iq4_xs_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++) {
        for (int g = 0; g < 8; g++, y += 32) {
            const int low = block->scales_l[g / 2] >> 4 * (g % 2) & 15, high = block->scales_h >> 2 * g & 3;
            unpack_table(y, speci_from_f16(block->d) * (float)((low | high << 4) - 32), fours, block->qs + 16 * g);
        }
    }
}

static void unpack_mxfp4(float *y, const void *blocks, size_t n)
{
    const mxfp4_block *block = blocks;
    for (size_t b = 0; b < n; b++, block++, y += SPEC_SMALL_BLOCK) {
        /* of 2^-128 and 2^-127, which are subnormal, the bits; else the exponent, which is one less than e */
        const uint32_t bits = block->e < 2 ? 0x00200000u << block->e : (uint32_t)(block->e - 1) << 23;
        unpack_table(y, speci_float(bits), halves, block->qs);
    }
}

static const gguf_type types[] = {
    { 0, "F32", 1, 4, SPEC_DTYPE_F32, NULL, NULL },
    { 1, "F16", 1, 2, SPEC_DTYPE_F16, NULL, NULL },
    { 30, "BF16", 1, 2, SPEC_DTYPE_BF16, NULL, NULL },
    { 8, "Q8_0", 32, 34, SPEC_DTYPE_Q8_0, speci_unpack_q8_0, &speci_pack_q8_0 },
    { 2, "Q4_0", 32, 18, SPEC_DTYPE_Q4_0, speci_unpack_q4_0, &speci_pack_q4_0 },
    { 3, "Q4_1", 32, 20, SPEC_DTYPE_Q4_1, speci_unpack_q4_1, &speci_pack_q4_1 },
    { 6, "Q5_0", 32, 22, SPEC_DTYPE_Q5_0, speci_unpack_q5_0, &speci_pack_q5_0 },
    { 7, "Q5_1", 32, 24, SPEC_DTYPE_Q5_1, speci_unpack_q5_1, &speci_pack_q5_1 },
    { 12, "Q4_K", 256, 144, SPEC_DTYPE_Q4_K, speci_unpack_q4_k, &speci_pack_q4_k },
    { 13, "Q5_K", 256, 176, SPEC_DTYPE_Q5_K, speci_unpack_q5_k, &speci_pack_q5_k },
    { 14, "Q6_K", 256, 210, SPEC_DTYPE_Q6_K, speci_unpack_q6_k, &speci_pack_q6_k },
    { 10, "Q2_K", 256, 84, SPEC_DTYPE_AUTO, unpack_q2_k, NULL },
    { 11, "Q3_K", 256, 110, SPEC_DTYPE_AUTO, unpack_q3_k, NULL },
    { 20, "IQ4_NL", 32, 18, SPEC_DTYPE_AUTO, unpack_iq4_nl, NULL },
    { 23, "IQ4_XS", 256, 136, SPEC_DTYPE_AUTO, unpack_iq4_xs, NULL },
    { 39, "MXFP4", 32, 17, SPEC_DTYPE_AUTO, unpack_mxfp4, NULL },
    /* Known by name and size: such a tensor may stand in a file, but is refused where it is needed. */
    { 9, "Q8_1", 32, 36, SPEC_DTYPE_AUTO, NULL, NULL },
    { 15, "Q8_K", 256, 292, SPEC_DTYPE_AUTO, NULL, NULL },
    { 16, "IQ2_XXS", 256, 66, SPEC_DTYPE_AUTO, NULL, NULL },
    { 17, "IQ2_XS", 256, 74, SPEC_DTYPE_AUTO, NULL, NULL },
    { 18, "IQ3_XXS", 256, 98, SPEC_DTYPE_AUTO, NULL, NULL },
    { 19, "IQ1_S", 256, 50, SPEC_DTYPE_AUTO, NULL, NULL },
    { 21, "IQ3_S", 256, 110, SPEC_DTYPE_AUTO, NULL, NULL },
    { 22, "IQ2_S", 256, 82, SPEC_DTYPE_AUTO, NULL, NULL },
    { 24, "I8", 1, 1, SPEC_DTYPE_AUTO, NULL, NULL },
    { 25, "I16", 1, 2, SPEC_DTYPE_AUTO, NULL, NULL },
    { 26, "I32", 1, 4, SPEC_DTYPE_AUTO, NULL, NULL },
    { 27, "I64", 1, 8, SPEC_DTYPE_AUTO, NULL, NULL },
    { 28, "F64", 1, 8, SPEC_DTYPE_AUTO, NULL, NULL },
    { 29, "IQ1_M", 256, 56, SPEC_DTYPE_AUTO, NULL, NULL },
    { 34, "TQ1_0", 256, 54, SPEC_DTYPE_AUTO, NULL, NULL },
    { 35, "TQ2_0", 256, 66, SPEC_DTYPE_AUTO, NULL, NULL },
    { 40, "NVFP4", 64, 36, SPEC_DTYPE_AUTO, NULL, NULL },
};

const gguf_type *speci_gguf_type(uint32_t id)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].id == id) return &types[i];
    return NULL;
}

const gguf_type *speci_gguf_type_of(spec_dtype dtype)
{
    for (size_t i = 0; i < sizeof types / sizeof *types && dtype != SPEC_DTYPE_AUTO; i++)
        if (types[i].dtype == dtype) return &types[i];
    return NULL;
}

const gguf_type *speci_gguf_type_fitting(const gguf_type *type, int64_t n_col)
{
    static const uint32_t others[][2] = { { 12, 6 }, { 13, 7 }, { 14, 8 } }; /* Q4_K: Q5_0, Q5_K: Q5_1, Q6_K: Q8_0 */
    for (size_t i = 0; i < sizeof others / sizeof *others && n_col % type->n_value; i++)
        if (others[i][0] == type->id) type = speci_gguf_type(others[i][1]);
    return n_col % type->n_value ? NULL : type;
}

const gguf_type *speci_gguf_type_named(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strlen(types[i].name) == n && strncasecmp(types[i].name, name, n) == 0) return &types[i];
    return NULL;
}
