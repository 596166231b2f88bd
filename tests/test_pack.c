/* test_pack.c - float32 as blocks of weights. Blocks of 32 are those of the Python package `gguf`, byte for byte (golden/packed.txt, made
 * by tools/make_pack_cases.py). Blocks of 256 hold the values within the steps of the format, and better than a plain search does
 * (a block in thousands is as much as 3 % worse). */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backends/backend_blocks.h"
#include "backends/backend_pack.h"
#include "core/core_half.h"
#include "tests/test.h"

#define GOLDEN SPEC_TEST_DIR "/golden/packed.txt"
enum { N_BLOCK = 20000, MOST_BYTES = 210, N_KIND = 5 };

static const struct {
    const char *name; /* in the golden file; NULL = not there */
    const speci_packing *packing;
    speci_unpack_fn *unpack;
    double steps; /* from the least to the largest number */
} rows[] = {
    { "Q8_0", &speci_pack_q8_0, speci_unpack_q8_0, 254 }, { "Q4_0", &speci_pack_q4_0, speci_unpack_q4_0, 16 },
    { "Q4_1", &speci_pack_q4_1, speci_unpack_q4_1, 15 },  { "Q5_0", &speci_pack_q5_0, speci_unpack_q5_0, 32 },
    { "Q5_1", &speci_pack_q5_1, speci_unpack_q5_1, 31 },  { NULL, &speci_pack_q4_k, speci_unpack_q4_k, 15 },
    { NULL, &speci_pack_q5_k, speci_unpack_q5_k, 31 },    { NULL, &speci_pack_q6_k, speci_unpack_q6_k, 63 },
};

/* --- the same bytes --- */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    return x ^ (x >> 31);
}

/* The values of block b, as the script has them. */
static void fill(float x[SPEC_SMALL_BLOCK], uint64_t b)
{
    static const float sizes[] = { 2.0f, 0.03f, 1e-4f, 17.0f, 900.0f, 127.0f, 16.0f };
    const float size = sizes[b % N_ELEMENTS(sizes)] / 8388608.0f;
    for (uint64_t i = 0; i < SPEC_SMALL_BLOCK; i++) {
        const uint64_t hashed = mixed((b * SPEC_SMALL_BLOCK + i + 1) * 0x9E3779B97F4A7C15u);
        const int whole = (int)(hashed >> 40) - (1 << 23);
        x[i] = (float)whole * size;
        if (b % N_KIND == 1) x[i] = fabsf(x[i]);
        if (b % N_KIND == 2) x[i] = (float)floor(whole / 262144.0) * 0.5f;
        if (b % N_KIND == 3 && hashed % 4 != 0) x[i] = 0.0f;
    }
    for (int i = 31; b % N_KIND == 4 && i >= 0; i--) x[i] = x[0] + 0.25f;
}

static int row_of(const char *name)
{
    for (int r = 0; r < N_ELEMENTS(rows); r++)
        if (rows[r].name && strcmp(rows[r].name, name) == 0) return r;
    fail_msg("%s: no such type", name);
    return -1;
}

static void pack(int r, uint16_t *block, const float *x)
{
    assert_int_equal(speci_pack(rows[r].packing, block, x, 1), 1);
}

static void check_one(int r, uint64_t b, const char *want)
{
    uint16_t block[MOST_BYTES / 2];
    float x[SPEC_SMALL_BLOCK];
    char got[2 * MOST_BYTES + 1] = "";
    fill(x, b);
    pack(r, block, x);
    for (uint32_t i = 0; i < rows[r].packing->bytes; i++) snprintf(got + 2 * i, 3, "%02x", ((uint8_t *)block)[i]);
    assert_string_equal(got, want);
}

static uint64_t sum_of(int r)
{
    uint16_t block[MOST_BYTES / 2];
    float x[SPEC_SMALL_BLOCK];
    uint64_t sum = 0, at = 1;
    for (uint64_t b = 0; b < N_BLOCK; b++) {
        fill(x, b);
        pack(r, block, x);
        for (uint32_t i = 0; i < rows[r].packing->bytes; i++, at += 2) sum += at * ((uint8_t *)block)[i];
    }
    return sum;
}

static void same_bytes(void **state)
{
    (void)state;
    char what[8], name[16], text[2 * MOST_BYTES + 1];
    unsigned long long n;
    int n_all = 0;
    FILE *f = fopen(GOLDEN, "r");
    assert_non_null(f);
    while (fscanf(f, "%7s %15s %llu %420s", what, name, &n, text) == 4) {
        const int r = row_of(name);
        if (strcmp(what, "one") == 0) {
            check_one(r, n, text);
            continue;
        }
        char got[17];
        assert_int_equal(n, N_BLOCK);
        snprintf(got, sizeof got, "%016llx", (unsigned long long)sum_of(r));
        if (strcmp(got, text) != 0) fail_msg("%s: the sum over all blocks is %s, expected %s", name, got, text);
        n_all++;
    }
    fclose(f);
    assert_int_equal(n_all, 5);
}

/* --- near the values --- */

/* Values as weights are, of a few shapes: bell-shaped, even, one far off, of one sign, groups of different sizes, one group of zeros. */
static void weights(float x[SPEC_K_BLOCK], int kind, float size, test_random *random)
{
    for (int i = 0; i < SPEC_K_BLOCK; i++) {
        double v = test_signed(random);
        if (kind % 6 != 1) v = (v + test_signed(random) + test_signed(random) + test_signed(random)) / 4;
        if (kind % 6 == 3) v = fabs(v);
        if (kind % 6 == 4) v *= pow(4.0, i / 32 - 4);
        if (kind % 6 == 5 && i / 32 == 2) v = 0.0;
        x[i] = (float)(v * (double)size);
    }
    if (kind % 6 == 2) x[test_below(random, SPEC_K_BLOCK)] = -4 * size;
}

static double squares(const float *x, const float *y, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++) sum += ((double)x[i] - (double)y[i]) * ((double)x[i] - (double)y[i]);
    return sum;
}

/* Every value is within half a step, of the range of the block with zero in it, and what the f16 scales add to that. */
static void within_a_step(void **state)
{
    (void)state;
    static const float sizes[] = { 1.0f, 0.02f, 300.0f, 2e-3f };
    test_random random = { 11 };
    for (int r = 0; r < N_ELEMENTS(rows); r++) {
        const int n = (int)rows[r].packing->n_value;
        for (int c = 0; c < 600; c++) {
            float x[SPEC_K_BLOCK], y[SPEC_K_BLOCK], far = 0;
            uint16_t block[MOST_BYTES / 2];
            weights(x, c, sizes[c % N_ELEMENTS(sizes)], &random);
            for (int i = 0; i < n; i++) far = fmaxf(far, fabsf(x[i]));
            pack(r, block, x);
            rows[r].unpack(y, block, 1);
            for (int i = 0; i < n; i++) {
                const double step = 2 * (double)far / rows[r].steps;
                if (fabs((double)x[i] - (double)y[i]) > 1.1 * step + (double)far / 64)
                    fail_msg("%s: case %d: value %d is %g, became %g", rows[r].packing->name, c, i, (double)x[i], (double)y[i]);
            }
        }
    }
}

/* A scale of a group as the format holds it, d whole steps of the f16 scale. */
static double held(double v, double d) { return d > 0 ? d * fmin(63, round(v / d)) : 0; }

/* The sum of squares of a block whose groups have their ranges, times `part`, as scales: Q4_K and Q5_K. */
static double plain_error(const float *x, double n_step, double part)
{
    double scale[8], least[8], d = 0, dmin = 0, sum = 0;
    for (int g = 0; g < 8; g++) {
        double low = 0, high = 0;
        for (int i = 0; i < 32; i++) low = fmin(low, (double)x[32 * g + i]), high = fmax(high, (double)x[32 * g + i]);
        scale[g] = part * (high - low) / n_step, least[g] = -part * low;
        d = fmax(d, scale[g] / 63), dmin = fmax(dmin, least[g] / 63);
    }
    d = test_round(d, SPEC_DTYPE_F16), dmin = test_round(dmin, SPEC_DTYPE_F16);
    for (int i = 0; i < SPEC_K_BLOCK; i++) {
        const double s = held(scale[i / 32], d), m = held(least[i / 32], dmin);
        const double q = s > 0 ? fmax(0, fmin(n_step, round(((double)x[i] + m) / s))) : 0;
        const double e = (double)x[i] - (s * q - m);
        sum += e * e;
    }
    return sum;
}

/* The same of Q6_K: groups of 16, numbers from -32 to 31. */
static double plain_error_signed(const float *x, double part)
{
    double scale[16], d = 0, sum = 0;
    for (int g = 0; g < 16; g++) {
        double far = 0;
        for (int i = 0; i < 16; i++) far = fmax(far, fabs((double)x[16 * g + i]));
        scale[g] = part * far / 31;
        d = fmax(d, scale[g] / 127);
    }
    d = test_round(d, SPEC_DTYPE_F16);
    for (int i = 0; i < SPEC_K_BLOCK; i++) {
        const double s = d > 0 ? d * fmin(127, round(scale[i / 16] / d)) : 0;
        const double q = s > 0 ? fmax(-32, fmin(31, round((double)x[i] / s))) : 0;
        sum += ((double)x[i] - s * q) * ((double)x[i] - s * q);
    }
    return sum;
}

static double best_plain_error(const float *x, double n_step)
{
    double best = DBL_MAX;
    for (double part = 0.7; part <= 1.05; part += 0.025)
        best = fmin(best, n_step == 63 ? plain_error_signed(x, part) : plain_error(x, n_step, part));
    return best;
}

static void better_than_plain(void **state)
{
    (void)state;
    test_random random = { 3 };
    for (int r = row_of("Q5_1") + 1; r < N_ELEMENTS(rows); r++) {
        double sum = 0, plain = 0, worst = 0;
        for (int c = 0; c < 2000; c++) {
            float x[SPEC_K_BLOCK], y[SPEC_K_BLOCK];
            uint16_t block[MOST_BYTES / 2];
            weights(x, c, 1.0f, &random);
            pack(r, block, x);
            rows[r].unpack(y, block, 1);
            const double got = squares(x, y, SPEC_K_BLOCK), want = best_plain_error(x, rows[r].steps);
            worst = fmax(worst, got / want);
            sum += got / want, plain += 1;
        }
        print_message("  %s: squared errors against a plain search's: mean %.3f, worst %.3f\n", rows[r].packing->name, sum / plain, worst);
        assert_true(worst <= 1.03 && sum / plain < 0.95);
    }
}

/* --- what cannot be held; several blocks --- */

static void beyond(void **state)
{
    (void)state;
    for (int r = 0; r < N_ELEMENTS(rows); r++) {
        const uint32_t n = rows[r].packing->n_value;
        const float most = rows[r].packing->most, bad[] = { NAN, INFINITY, -INFINITY, nextafterf(most, INFINITY), -2 * most };
        for (int k = 0; k < N_ELEMENTS(bad); k++) {
            float x[3 * SPEC_K_BLOCK] = { 0 };
            uint16_t blocks[3 * MOST_BYTES / 2];
            x[2 * n + 7] = bad[k];
            assert_int_equal(speci_pack(rows[r].packing, blocks, x, 3), 2);
            assert_int_equal(speci_pack(rows[r].packing, blocks, x, 2), 2);
        }
    }
}

/* The largest that fits, zeros, and what is too small for an f16 scale come back finite, and near. */
static void ends(void **state)
{
    (void)state;
    for (int r = 0; r < N_ELEMENTS(rows); r++) {
        const float most = rows[r].packing->most, sizes[] = { most, -most, 0.0f, 1e-7f, 1e-20f, 1e-41f };
        for (int k = 0; k < N_ELEMENTS(sizes); k++) {
            for (int same = 0; same < 2; same++) {
                float x[SPEC_K_BLOCK], y[SPEC_K_BLOCK];
                uint16_t block[MOST_BYTES / 2];
                for (int i = 0; i < SPEC_K_BLOCK; i++) x[i] = same ? sizes[k] : sizes[k] * (float)(i % 11 - 5) / 5;
                pack(r, block, x);
                rows[r].unpack(y, block, 1);
                for (uint32_t i = 0; i < rows[r].packing->n_value; i++)
                    assert_true(fabsf(x[i] - y[i]) <= 0.15f * fabsf(sizes[k]) + 1e-6f);
            }
        }
    }
}

static void in_a_row(void **state)
{
    (void)state;
    enum { N = 5 };
    test_random random = { 4 };
    static float x[N * SPEC_K_BLOCK];
    for (int b = 0; b < N; b++) weights(x + b * SPEC_K_BLOCK, b, 1.0f, &random);
    for (int r = 0; r < N_ELEMENTS(rows); r++) {
        uint16_t all[N * MOST_BYTES / 2], one[MOST_BYTES / 2];
        const speci_packing *p = rows[r].packing;
        assert_int_equal(speci_pack(p, all, x, N), N);
        for (uint32_t b = 0; b < N; b++) {
            pack(r, one, x + b * p->n_value);
            assert_memory_equal(one, (uint8_t *)all + b * p->bytes, p->bytes);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(same_bytes), cmocka_unit_test(within_a_step),
                                        cmocka_unit_test(better_than_plain), cmocka_unit_test(beyond), cmocka_unit_test(ends),
                                        cmocka_unit_test(in_a_row) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
