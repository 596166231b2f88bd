/* test_blocks.c - blocks of weights as float32, bit for bit as the Python package `gguf` has them (golden/blocks.txt, made by
 * tools/make_block_cases.py): every type with every value of its f16 scales, and the rows of the table of types. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/core_half.h"
#include "models/files/files_gguf_types.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden/blocks.txt"
enum { N_BLOCK = 65536, MOST_BYTES = 292, MOST_VALUES = 256, SHIFT = 40503 };

/* Where the f16 scales of a type's blocks are; the numbers of the script. */
static const struct {
    const char *name;
    uint32_t id;
    int n_scale, at[2];
} rows[] = {
    { "Q8_0", 8, 1, { 0 } }, { "Q4_0", 2, 1, { 0 } }, { "Q4_1", 3, 2, { 0, 2 } }, { "Q5_0", 6, 1, { 0 } },
    { "Q5_1", 7, 2, { 0, 2 } }, { "Q4_K", 12, 2, { 0, 2 } }, { "Q5_K", 13, 2, { 0, 2 } }, { "Q6_K", 14, 1, { 208 } },
    { "Q2_K", 10, 2, { 80, 82 } }, { "Q3_K", 11, 1, { 108 } }, { "IQ4_NL", 20, 1, { 0 } }, { "IQ4_XS", 23, 1, { 0 } },
    { "MXFP4", 39, 0, { 0 } }, { "F16", 1, 1, { 0 } }, { "BF16", 30, 1, { 0 } },
};

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* Block b of row r's type. */
static void fill(uint8_t *out, int r, uint32_t n_byte, uint64_t b)
{
    const uint64_t n_word = (n_byte + 7) / 8;
    for (uint64_t k = 0; k < n_byte; k++)
        out[k] = (uint8_t)(mixed((b * n_word + k / 8 + 1) * 0x9E3779B97F4A7C15u) >> 8 * (k % 8));
    for (int i = 0; i < rows[r].n_scale; i++) {
        const uint64_t scale = i ? b * SHIFT : b;
        out[rows[r].at[i]] = (uint8_t)scale, out[rows[r].at[i] + 1] = (uint8_t)(scale >> 8);
    }
}

static void unpack(float *y, const gguf_type *type, const uint16_t *block)
{
    if (type->unpack) type->unpack(y, block, 1);
    else y[0] = type->dtype == SPEC_DTYPE_F16 ? speci_from_f16(block[0]) : speci_from_bf16(block[0]);
}

static uint64_t sum_of(int r)
{
    const gguf_type *type = speci_gguf_type(rows[r].id);
    uint16_t block[MOST_BYTES / 2];
    float y[MOST_VALUES];
    uint64_t sum = 0, at = 1;
    for (uint64_t b = 0; b < N_BLOCK; b++) {
        fill((uint8_t *)block, r, type->bytes, b);
        unpack(y, type, block);
        for (uint32_t i = 0; i < type->n_value; i++, at += 2) sum += at * (isnan(y[i]) ? 0x7FC00000u : speci_bits(y[i]));
    }
    return sum;
}

static int row_of(const char *name)
{
    for (int r = 0; r < N_ELEMENTS(rows); r++)
        if (strcmp(rows[r].name, name) == 0) return r;
    fail_msg("%s: no such type", name);
    return -1;
}

/* A number of n hexadecimal digits. */
static uint32_t digits(const char *text, int n)
{
    char word[9] = "";
    memcpy(word, text, (size_t)n);
    return (uint32_t)strtoul(word, NULL, 16);
}

static void check_one(int r, const char *block_text, const char *values)
{
    const gguf_type *type = speci_gguf_type(rows[r].id);
    uint16_t block[MOST_BYTES / 2];
    float y[MOST_VALUES];
    assert_int_equal(strlen(block_text), 2 * type->bytes);
    assert_int_equal(strlen(values), 8 * type->n_value);
    for (uint32_t k = 0; k < type->bytes; k++) ((uint8_t *)block)[k] = (uint8_t)digits(block_text + 2 * k, 2);
    type->unpack(y, block, 1);
    for (uint32_t i = 0; i < type->n_value; i++)
        if (speci_bits(y[i]) != digits(values + 8 * i, 8))
            fail_msg("%s: value %u is %08x, expected %.8s", type->name, i, speci_bits(y[i]), values + 8 * i);
}

static void values(void **state)
{
    (void)state;
    char what[8], name[16], first[2 * MOST_BYTES + 1], second[8 * MOST_VALUES + 1];
    int n_all = 0;
    FILE *f = fopen(GOLDEN, "r");
    assert_non_null(f);
    while (fscanf(f, "%7s %15s %584s %2048s", what, name, first, second) == 4) {
        const int r = row_of(name);
        if (strcmp(what, "one") == 0) {
            check_one(r, first, second);
            continue;
        }
        assert_int_equal(atoi(first), N_BLOCK);
        char got[17];
        snprintf(got, sizeof got, "%016llx", (unsigned long long)sum_of(r));
        if (strcmp(got, second) != 0) fail_msg("%s: the sum over all blocks is %s, expected %s", name, got, second);
        n_all++;
    }
    fclose(f);
    assert_int_equal(n_all, N_ELEMENTS(rows));
}

/* Several blocks in one call are those blocks one after the other. */
static void in_a_row(void **state)
{
    (void)state;
    enum { N = 5 };
    for (int r = 0; r < N_ELEMENTS(rows); r++) {
        const gguf_type *type = speci_gguf_type(rows[r].id);
        static uint16_t blocks[N * MOST_BYTES / 2];
        static float all[N * MOST_VALUES], one[MOST_VALUES];
        if (!type->unpack) continue;
        uint8_t *at = (uint8_t *)blocks;
        for (uint64_t b = 0; b < N; b++) fill(at + b * type->bytes, r, type->bytes, 0x3000 + b);
        type->unpack(all, blocks, N);
        for (uint64_t b = 0; b < N && type->bytes % 2 == 0; b++) {
            type->unpack(one, at + b * type->bytes, 1);
            assert_memory_equal(one, all + b * type->n_value, type->n_value * sizeof *one);
        }
    }
}

/* Of types that are known by name and size alone, how a tensor's end is found: values and bytes of a block, in ggml-common.h the
 * asserted sizes. */
static const struct { uint32_t id, n_value, bytes; } named[] = {
    { 9, 32, 2 + 2 + 32 },        { 15, 256, 4 + 256 + 32 },    { 16, 256, 2 + 64 },          { 17, 256, 2 + 64 + 8 },
    { 18, 256, 2 + 96 },          { 19, 256, 2 + 32 + 16 },     { 21, 256, 2 + 104 + 4 },     { 22, 256, 2 + 64 + 16 },
    { 24, 1, 1 },                 { 25, 1, 2 },                 { 26, 1, 4 },                 { 27, 1, 8 },
    { 28, 1, 8 },                 { 29, 256, 32 + 16 + 8 },     { 34, 256, 2 + 4 + 48 },      { 35, 256, 2 + 64 },
    { 40, 64, 4 + 32 },
};

static void types(void **state)
{
    (void)state;
    for (int r = 0; r < N_ELEMENTS(rows); r++) assert_string_equal(speci_gguf_type(rows[r].id)->name, rows[r].name);
    for (int i = 0; i < N_ELEMENTS(named); i++) {
        const gguf_type *type = speci_gguf_type(named[i].id);
        assert_int_equal(type->n_value, named[i].n_value);
        if (type->bytes != named[i].bytes) fail_msg("%s: %u bytes, not %u", type->name, type->bytes, named[i].bytes);
    }
    assert_null(speci_gguf_type(4));
    assert_null(speci_gguf_type(1000));
    for (uint32_t id = 0; id < 64; id++) {
        const gguf_type *type = speci_gguf_type(id);
        if (!type) continue;
        assert_int_equal(type->id, id);
        assert_true(type->n_value <= MOST_VALUES && type->bytes <= MOST_BYTES);
        assert_true(!type->unpack || type->n_value % 32 == 0);
    }
}

/* Rows that are no whole large blocks get the small ones that hold as much; rows of neither get none. */
static void fitting(void **state)
{
    (void)state;
    static const struct { uint32_t id, small; } types_[] = { { 12, 6 }, { 13, 7 }, { 14, 8 } };
    for (int i = 0; i < N_ELEMENTS(types_); i++) {
        const gguf_type *type = speci_gguf_type(types_[i].id);
        assert_ptr_equal(speci_gguf_type_fitting(type, 512), type);
        assert_ptr_equal(speci_gguf_type_fitting(type, 96), speci_gguf_type(types_[i].small));
        assert_null(speci_gguf_type_fitting(type, 100));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(values), cmocka_unit_test(in_a_row), cmocka_unit_test(types),
                                         cmocka_unit_test(fitting) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
