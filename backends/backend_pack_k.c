/* backend_pack_k.c - float32 as blocks of 256 with two levels of scales: Q4_K, Q5_K and Q6_K.
 *
 * Such a block is filled from its groups up:
 *   1. of each group alone: the scale (and minimum) in float32 of the least sum of squared errors that is met. A trial takes the range
 *      of the values to some more or fewer numbers than there are, rounds, and has least squares say which scale these numbers want.
 *      Fewer numbers than there are cost a rounding; more cut the largest values short, which often costs less.
 *   2. the block's scales, f16, from the largest of the groups; the groups' in whole numbers of these: of the nearest and their
 *      neighbours the best.
 *   3. the numbers: the nearest, given what is now held. */
#include "backends/backend_pack.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/core_half.h"

enum { GROUP = 32, SMALL_GROUP = 16, N_GROUP = 8, N_SMALL_GROUP = 16, SCALE_MOST = 63 };

static float least_of(float a, float b) { return a < b ? a : b; }
static float most_of(float a, float b) { return a > b ? a : b; }

static float between(float v, float low, float high) /* a NaN is `low` */
{
    const float above = v > low ? v : low;
    return above < high ? above : high;
}

static int clamp(int v, int low, int high) { return v < low ? low : v > high ? high : v; }

/* A block's scale: f16, finite, and not nearer to zero than `scale`, so that whole numbers of it reach the largest group's. The step of
 * f16 is no small one where weights are: below 6e-5. */
static uint16_t hold(float scale)
{
    const uint16_t near = speci_to_f16(between(scale, -SPECI_F16_MOST, SPECI_F16_MOST));
    const bool is_short = fabsf(speci_from_f16(near)) < fabsf(scale) && fabsf(scale) < SPECI_F16_MOST;
    return (uint16_t)(near + is_short);
}

/* v in steps, which may be 0, rounded. */
static int steps(float v, float step, int low, int high)
{
    return step == 0.0f ? 0 : clamp((int)lrintf(between(v / step, (float)low, (float)high)), low, high);
}

/* --- Q4_K and Q5_K: scale * q - least, q from 0 to `most`, least from 0 up --- */

typedef struct affine {
    float scale, least;
} affine;

static float nearest(float x, affine f, float inverse, float most)
{
    return (float)(int)(between((x + f.least) * inverse, 0.0f, most) + 0.5f);
}

static float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

/* Sums go over four lanes, which compilers take together: 2.7 times as fast as one after the other. In Q6_K, whose groups are shorter, it
 * is no faster. */
enum { LANE = 4 };
static float sum_of(const float lanes[LANE]) { return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]); }

/* The sum of squared errors of a group. */
static float error_of(const float *x, affine f, float most)
{
    const float inverse = inverse_of(f.scale);
    float error[LANE] = { 0 };
    for (int i = 0; i < GROUP; i += LANE) {
        for (int k = 0; k < LANE; k++) {
            const float e = x[i + k] - (f.scale * nearest(x[i + k], f, inverse, most) - f.least);
            error[k] += e * e;
        }
    }
    return sum_of(error);
}

/* What the numbers that `f` gives want: the scale and least of the fewest squared errors. */
static affine least_squares(const float *x, affine f, float most)
{
    const float inverse = inverse_of(f.scale);
    float qs[LANE] = { 0 }, qqs[LANE] = { 0 }, xs[LANE] = { 0 }, qxs[LANE] = { 0 };
    for (int i = 0; i < GROUP; i += LANE) {
        for (int k = 0; k < LANE; k++) {
            const float q = nearest(x[i + k], f, inverse, most);
            qs[k] += q, qqs[k] += q * q, xs[k] += x[i + k], qxs[k] += q * x[i + k];
        }
    }
    const float sum_q = sum_of(qs), sum_qq = sum_of(qqs), sum_x = sum_of(xs), sum_qx = sum_of(qxs);
    const float determinant = GROUP * sum_qq - sum_q * sum_q;
    if (!(determinant > 0.0f)) return f;
    affine best = { (GROUP * sum_qx - sum_q * sum_x) / determinant, (sum_q * sum_qx - sum_qq * sum_x) / determinant };
    if (best.least < 0.0f) best = (affine){ sum_qx / sum_qq, 0.0f };
    return best.scale > 0.0f ? best : f;
}

static affine fit(const float *x, float most)
{
    enum { N_TRIAL = 20 };
    float least = 0.0f, largest = 0.0f;
    for (int i = 0; i < GROUP; i++) least = least_of(least, x[i]), largest = most_of(largest, x[i]);
    affine best = { (largest - least) / most, -least };
    if (!(best.scale > 0.0f)) return best;
    float error = error_of(x, best, most);
    for (int t = 0; t < N_TRIAL; t++) {
        const float part = most / (most - 1.2f + 0.4f * (float)(t / 2));
        affine f = least_squares(x, (affine){ part * (largest - least) / most, t % 2 ? -least : -part * least }, most);
        f = least_squares(x, f, most);
        const float e = error_of(x, f, most);
        if (e < error) best = f, error = e;
    }
    return best;
}

typedef struct block_scales {
    float d, dmin;
    int sc[N_GROUP], mn[N_GROUP];
} block_scales;

static affine held(const block_scales *s, int g) { return (affine){ s->d * (float)s->sc[g], s->dmin * (float)s->mn[g] }; }

/* The whole scales of group g: of those about f's the best. */
static void choose(block_scales *s, int g, const float *x, affine f, float most)
{
    const int sc = steps(f.scale, s->d, 0, SCALE_MOST), mn = steps(f.least, s->dmin, 0, SCALE_MOST);
    float error = INFINITY;
    for (int k = 0; k < 9; k++) {
        block_scales trial = *s;
        trial.sc[g] = clamp(sc + k / 3 - 1, 0, SCALE_MOST), trial.mn[g] = clamp(mn + k % 3 - 1, 0, SCALE_MOST);
        const float e = error_of(x, held(&trial, g), most);
        if (e < error) *s = trial, error = e;
    }
}

/* Twelve bytes of six-bit numbers: spec_k_scale's way back. */
static void put_scales(uint8_t out[12], const block_scales *s)
{
    for (int g = 0; g < 4; g++) {
        const int sc = s->sc[g + 4], mn = s->mn[g + 4];
        out[g] = (uint8_t)(s->sc[g] | sc >> 4 << 6);
        out[g + 4] = (uint8_t)(s->mn[g] | mn >> 4 << 6);
        out[g + 8] = (uint8_t)((sc & 15) | (mn & 15) << 4);
    }
}

/* The parts that both types have; q [256] from 0 to `most`. */
static void pack_groups(int q[SPEC_K_BLOCK], uint16_t *d, uint16_t *dmin, uint8_t scales[12], const float *x, float most)
{
    affine groups[N_GROUP];
    affine largest = { 0 };
    for (int g = 0; g < N_GROUP; g++) {
        groups[g] = fit(x + GROUP * g, most);
        largest.scale = most_of(largest.scale, groups[g].scale), largest.least = most_of(largest.least, groups[g].least);
    }
    *d = hold(largest.scale / SCALE_MOST), *dmin = hold(largest.least / SCALE_MOST);
    block_scales s = { .d = speci_from_f16(*d), .dmin = speci_from_f16(*dmin) };
    for (int g = 0; g < N_GROUP; g++) {
        choose(&s, g, x + GROUP * g, groups[g], most);
        const affine f = held(&s, g);
        for (int i = GROUP * g; i < GROUP * (g + 1); i++) q[i] = (int)nearest(x[i], f, inverse_of(f.scale), most);
    }
    put_scales(scales, &s);
}

static void put_fours(uint8_t qs[128], const int q[SPEC_K_BLOCK])
{
    for (int i = 0; i < 128; i++) {
        const int low = i / 32 * 64 + i % 32;
        qs[i] = (uint8_t)((q[low] & 15) | (q[low + 32] & 15) << 4);
    }
}

static void pack_q4_k(void *out, const float *x)
{
    spec_q4_k_block *block = out;
    int q[SPEC_K_BLOCK];
    pack_groups(q, &block->d, &block->dmin, block->scales, x, 15.0f);
    put_fours(block->qs, q);
}

static void pack_q5_k(void *out, const float *x)
{
    spec_q5_k_block *block = out;
    int q[SPEC_K_BLOCK];
    pack_groups(q, &block->d, &block->dmin, block->scales, x, 31.0f);
    put_fours(block->qs, q);
    memset(block->qh, 0, sizeof block->qh);
    for (int i = 0; i < SPEC_K_BLOCK; i++) block->qh[i % 32] = (uint8_t)(block->qh[i % 32] | q[i] >> 4 << i / 32);
}

/* --- Q6_K: scale * q, q from -32 to 31 --- */

static float nearest_signed(float x, float inverse) { return (float)((int)(between(x * inverse, -32.0f, 31.0f) + 32.5f) - 32); }

static float signed_inverse(float scale) { return scale != 0.0f ? 1.0f / scale : 0.0f; }

static float signed_error(const float *x, float scale)
{
    const float inverse = signed_inverse(scale);
    float error = 0.0f;
    for (int i = 0; i < SMALL_GROUP; i++) {
        const float e = x[i] - scale * nearest_signed(x[i], inverse);
        error += e * e;
    }
    return error;
}

static float signed_least_squares(const float *x, float scale)
{
    const float inverse = signed_inverse(scale);
    float sum_qq = 0.0f, sum_qx = 0.0f;
    for (int i = 0; i < SMALL_GROUP; i++) {
        const float q = nearest_signed(x[i], inverse);
        sum_qq += q * q, sum_qx += q * x[i];
    }
    return sum_qq > 0.0f ? sum_qx / sum_qq : scale;
}

static float fit_signed(const float *x)
{
    static const float ends[] = { -34.0f, -33.2f, -32.6f, -32.0f, -31.4f, -30.8f, -30.0f, 30.0f, 30.7f, 31.0f, 31.4f, 32.2f };
    float far = 0.0f;
    for (int i = 0; i < SMALL_GROUP; i++) far = fabsf(x[i]) > fabsf(far) ? x[i] : far;
    float best = far / -32.0f, error = signed_error(x, best);
    for (size_t t = 0; t < sizeof ends / sizeof *ends && far != 0.0f; t++) {
        const float scale = signed_least_squares(x, far / ends[t]), e = signed_error(x, scale);
        if (e < error) best = scale, error = e;
    }
    return best;
}

static int choose_signed(const float *x, float scale, float d)
{
    const int about = steps(scale, d, -128, 127);
    int best = about;
    float error = signed_error(x, d * (float)about);
    for (int k = -1; k <= 1; k += 2) {
        const int sc = clamp(about + k, -128, 127);
        const float e = signed_error(x, d * (float)sc);
        if (e < error) best = sc, error = e;
    }
    return best;
}

/* q [256] from 0 to 63 */
static void put_sixes(spec_q6_k_block *block, const int q[SPEC_K_BLOCK])
{
    memset(block->ql, 0, sizeof block->ql);
    memset(block->qh, 0, sizeof block->qh);
    for (int i = 0; i < SPEC_K_BLOCK; i++) {
        const int half = i / 128, k = i / 32 % 4, l = i % 32;
        uint8_t *low = block->ql + 64 * half + 32 * (k % 2) + l, *high = block->qh + 32 * half + l;
        *low = (uint8_t)(*low | (q[i] & 15) << 4 * (k / 2));
        *high = (uint8_t)(*high | q[i] >> 4 << 2 * k);
    }
}

static void pack_q6_k(void *out, const float *x)
{
    spec_q6_k_block *block = out;
    float groups[N_SMALL_GROUP], far = 0.0f;
    int q[SPEC_K_BLOCK];
    for (int g = 0; g < N_SMALL_GROUP; g++) {
        groups[g] = fit_signed(x + SMALL_GROUP * g);
        far = fabsf(groups[g]) > fabsf(far) ? groups[g] : far;
    }
    block->d = hold(far / -128.0f);
    const float d = speci_from_f16(block->d);
    for (int g = 0; g < N_SMALL_GROUP; g++) {
        const int sc = choose_signed(x + SMALL_GROUP * g, groups[g], d);
        const float inverse = signed_inverse(d * (float)sc);
        block->scales[g] = (int8_t)sc;
        for (int i = SMALL_GROUP * g; i < SMALL_GROUP * (g + 1); i++) q[i] = (int)nearest_signed(x[i], inverse) + 32;
    }
    put_sixes(block, q);
}

/* The limits leave room for both levels; sums of squares of such values are finite. */
const speci_packing speci_pack_q4_k = { "q4_k", SPEC_K_BLOCK, sizeof(spec_q4_k_block), 60 * SPECI_F16_MOST, pack_q4_k };
const speci_packing speci_pack_q5_k = { "q5_k", SPEC_K_BLOCK, sizeof(spec_q5_k_block), 60 * SPECI_F16_MOST, pack_q5_k };
const speci_packing speci_pack_q6_k = { "q6_k", SPEC_K_BLOCK, sizeof(spec_q6_k_block), 31 * 120 * SPECI_F16_MOST, pack_q6_k };
