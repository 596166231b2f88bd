/* test_op_grow.c - trees that grow on the device: beginnings, candidates drawn from distributions, expansions, nodes that a
 * step takes from there. Beside each operation stands its rule, plainly: everything sorted, in double. */
#include <math.h>
#include <stdio.h>

#include "backends/backend.h"
#include "tests/ref_ops.h"
#include "tests/test.h"

#define F32 SPEC_DTYPE_F32

static void sync_queue(const test_device *d, spec_queue *q) { test_ok(d->ops->sync(q), "sync"); }

static uint64_t random_key(test_random *r)
{
    const uint64_t high = (uint64_t)test_below(r, 1 << 30), low = (uint64_t)test_below(r, 1 << 30);
    return high << 34 ^ low << 3 ^ high;
}

/* --- random numbers --- */

/* The known answers of Random123, the authors' own test (kat_vectors). */
static void test_philox(void **state)
{
    static const struct {
        uint32_t counter[4];
        uint64_t key;
        uint32_t want[4];
    } known[] = {
        { { 0, 0, 0, 0 }, 0, { 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u } },
        { { ~0u, ~0u, ~0u, ~0u }, ~0ull, { 0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu } },
        { { 0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u }, 0x299f31d0a4093822ull,
          { 0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u } },
    };
    (void)state;
    for (int32_t i = 0; i < N_ELEMENTS(known); i++) {
        uint32_t c[4];
        memcpy(c, known[i].counter, sizeof c);
        spec_philox(c, known[i].key);
        assert_memory_equal(c, known[i].want, sizeof c);
    }
}

/* E = -log(1 - U): finite, positive and not rising with 1 - U over all of U's range, and precise where U is small. */
static void test_exponential(void **state)
{
    static const uint32_t ends[][2] = { { 0, 0 },           { 0, 1 },          { 0, 77 },       { 0, ~0u },
                                        { 1, 0 },           { 77, 5 },         { 1u << 16, 0 }, { 1u << 31, 0 },
                                        { 0xffffff00u, 0 }, { ~0u - 200u, 0 }, { ~0u, 0 },      { ~0u, ~0u } };
    float last = 0.0f;
    (void)state;
    for (int32_t i = 0; i < N_ELEMENTS(ends); i++) {
        const double u = ((double)ends[i][0] * 4294967296.0 + (double)ends[i][1]) / 18446744073709551616.0;
        const float e = spec_gumbel_exponential(ends[i][0], ends[i][1]);
        assert_true(isfinite(e) && e > 0.0f && e >= last);
        if (i > 0 && u < 0.9) assert_true(fabs((double)e + log1p(-u)) <= 1e-6 * -log1p(-u));
        assert_true(isfinite(spec_gumbel_value(1.0f, ends[i][0], ends[i][1])));
        assert_true(spec_gumbel_value(1e-30f, ends[i][0], ends[i][1]) > 0.0f);
        assert_true(spec_gumbel_value(0.0f, ends[i][0], ends[i][1]) == 0.0f);
        last = e;
    }
}

/* --- draws: one distribution, any row of it --- */

enum { K_MAX = SPEC_MAX_CHILD };

typedef enum probs_kind { DENSE, FEW, TIED, ONE, EQUAL, STEEP, N_PROBS } probs_kind;

/* A distribution of n entries; not normalised for every kind: operations do not ask for that. */
static void fill_probs(test_random *random, probs_kind kind, double *probs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const double u = test_uniform(random);
        probs[i] = kind == DENSE   ? u * u
                 : kind == FEW   ? 0.0
                 : kind == TIED  ? nearbyint(u * 4.0)
                 : kind == EQUAL ? 1.0
                                 : 0.0;
        if (kind == STEEP) probs[i] = exp(-40.0 * u); /* 17 orders of magnitude */
        probs[i] /= (double)n;
    }
    for (int32_t i = 0; kind == FEW && i < 5; i++) probs[test_below(random, n)] = 0.1 + test_uniform(random);
    if (kind == ONE) probs[test_below(random, n)] = 1.0;
    for (int32_t i = 0; i < n; i++) probs[i] = test_round(probs[i], F32);
}

typedef struct entry {
    double value;
    int32_t id;
} entry;

static int by_value(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return x->value != y->value ? (x->value < y->value) - (x->value > y->value) : (x->id > y->id) - (x->id < y->id);
}

/* The race's value of entry id in double: only U is float's. */
static double race_value(float probs, uint64_t key, int32_t id)
{
    uint32_t w[4];
    spec_gumbel_words(key, (uint32_t)id / 2, w);
    const float high = (float)w[id % 2 * 2], low = (float)w[id % 2 * 2 + 1];
    const double u = (double)(high * 4294967296.0f + low) / 18446744073709551616.0;
    return (double)probs / (u >= 1.0 ? 64.0 * log(2.0) : u > 0.0 ? -log1p(-u) : ldexp(1.0, -65));
}

static void check_best(const char *name, const float *probs, int32_t n, spec_draw_how how, uint64_t key, int32_t k,
                       const spec_candidate *got)
{
    entry *all = calloc((size_t)n, sizeof *all);
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        if (probs[i] > 0.0f)
            all[count++] = (entry){ how == SPEC_DRAW_GUMBEL_TOPK ? race_value(probs[i], key, i) : (double)probs[i], i };
    qsort(all, (size_t)count, sizeof *all, by_value);
    for (int32_t j = 0; j < k; j++) {
        if (j >= count) {
            if (got[j].token != -1 || got[j].prob != 0.0f)
                fail_msg("%s: candidate %d of %d is token %d", name, j, count, got[j].token);
            continue;
        }
        if (got[j].token < 0 || got[j].token >= n || got[j].prob != probs[got[j].token])
            fail_msg("%s: candidate %d is token %d of distribution %g", name, j, got[j].token, (double)got[j].prob);
        for (int32_t i = 0; i < j; i++) assert_true(got[i].token != got[j].token);
        if (got[j].token == all[j].id) continue;
        /* the device's logarithm and quotient round */
        const double value = race_value(probs[got[j].token], key, got[j].token);
        if (how != SPEC_DRAW_GUMBEL_TOPK || fabs(value - all[j].value) > 1e-6 * all[j].value)
            fail_msg("%s: candidate %d is %d, expected %d", name, j, got[j].token, all[j].id);
    }
    free(all);
}

static void check_repeat(const char *name, const float *probs, int32_t n, uint64_t key, int32_t k,
                         const spec_candidate *got)
{
    double *upto = calloc((size_t)n + 1, sizeof *upto);
    for (int32_t i = 0; i < n; i++) upto[i + 1] = upto[i] + (probs[i] > 0.0f ? (double)probs[i] : 0.0);
    const double total = upto[n], slack = 1e-12 * total;
    for (int32_t j = 0; j < k; j++) {
        const double border = (double)spec_repeat_uniform(key, (uint32_t)j) * total;
        const int32_t id = got[j].token;
        if (id < 0 || id >= n || !(probs[id] > 0.0f) || got[j].prob != probs[id] || upto[id] > border + slack ||
            upto[id + 1] < border - slack)
            fail_msg("%s: draw %d is token %d, for the border %.17g of %.17g", name, j, id, border, total);
    }
    free(upto);
}

static const char *const how_names[] = { "top", "gumbel_topk", "repeat" };

/* Rows of many distributions in one call; `shorter` candidates are the first of k. */
static void run_draw(const test_device *d, int32_t n_row, int32_t n, int32_t k, spec_draw_how how)
{
    test_random random = { (uint64_t)(n_row * 7919 + n * 31 + k * 3) + (uint64_t)how };
    const int32_t ld = n + 3, shorter = (k + 1) / 2;
    double *distributions = calloc((size_t)N_PROBS * (size_t)ld, sizeof *distributions);
    for (int32_t i = 0; i < N_PROBS * ld; i++) distributions[i] = NAN; /* beyond a row nothing is looked at */
    for (int32_t i = 0; i < N_PROBS; i++) fill_probs(&random, (probs_kind)i, distributions + (size_t)i * (size_t)ld, n);
    test_buffer b = test_buffer_from(d, distributions, (size_t)N_PROBS * (size_t)ld, F32);
    float *probs = test_read_raw(&b);
    spec_candidate *got = calloc((size_t)(n_row * 2 * K_MAX), sizeof *got), *first = got + n_row * K_MAX;
    int32_t *row = calloc((size_t)n_row, sizeof *row);
    uint64_t *key = calloc((size_t)n_row, sizeof *key);
    for (int32_t r = 0; r < n_row; r++) row[r] = (r + n_row) % N_PROBS, key[r] = random_key(&random);
    spec_queue *q = test_row_queue(d, n);
    spec_draw_args a = { .probs = b.data, .ld = ld, .n_vocab = n, .n_row = n_row, .k = k, .how = how, .host_probs_row = row,
                         .host_key = key, .host_out = got };
    test_ok(d->ops->draw(q, &a), "draw");
    a.k = shorter, a.host_out = first;
    test_ok(d->ops->draw(q, &a), "draw");
    sync_queue(d, q);
    for (int32_t r = 0; r < n_row; r++) {
        char name[96];
        const float *own = probs + (size_t)row[r] * (size_t)ld;
        snprintf(name, sizeof name, "%s %s: row %d of %d, %d entries, distribution %d, k %d", d->name, how_names[how], r, n_row,
                 n, row[r], k);
        if (how == SPEC_DRAW_REPEAT) check_repeat(name, own, n, key[r], k, got + r * k);
        else check_best(name, own, n, how, key[r], k, got + r * k);
        assert_memory_equal(first + r * shorter, got + r * k, (size_t)shorter * sizeof *got);
    }
    d->ops->queue_close(q);
    free(key);
    free(row);
    free(got);
    free(probs);
    free(distributions);
    test_buffer_free(&b);
}

static void each_draw(test_device *d)
{
    static const struct {
        int32_t n_row, n, k;
    } shapes[] = {
        { 33, 1, 1 },   { 7, 2, 2 },    { 12, 3, 64 },   { 6, 31, 8 },    { 33, 64, 64 },    { 9, 65, 33 },
        { 6, 1000, 1 }, { 6, 1025, 7 }, { 6, 5000, 64 }, { 1, 4096, 16 }, { 6, 128257, 64 }, { 6, 128257, 8 }
    };
    for (int32_t i = 0; i < N_ELEMENTS(shapes); i++)
        for (int32_t how = SPEC_DRAW_TOP; how <= SPEC_DRAW_REPEAT; how++)
            run_draw(d, shapes[i].n_row, shapes[i].n, shapes[i].k, (spec_draw_how)how);
}

static void test_draw(void **state)
{
    (void)state;
    test_each_device(each_draw);
}

enum { LOGITS = 6 };

/* One logit of row `row`, from u of [-12, 12]: logits that fall off, ties, sorted ones and such whose largest stand close together. */
static double made_logit(int32_t row, int32_t i, double u)
{
    switch (row) {
    case 0: return u;
    case 1: return nearbyint(u / 4.0);
    case 2: return 9.0 - 1e-3 * i;
    case 3: return -9.0 + 1e-3 * i;
    case 4: return i % 2048 < 9 ? 8.0 - 1e-2 * i : 0.1 * u;
    default: return 3.0;
    }
}

/* [LOGITS][ld], of which columns from n on are not numbers. */
static double *made_logits(test_random *random, int32_t n, int32_t ld)
{
    double *v = calloc((size_t)LOGITS * (size_t)ld, sizeof *v);
    for (int32_t l = 0; l < LOGITS; l++)
        for (int32_t i = 0; i < ld; i++) {
            const double u = 12.0 * test_signed(random);
            v[(size_t)l * (size_t)ld + (size_t)i] = test_round(i < n ? made_logit(l, i, u) : NAN, F32);
        }
    return v;
}

/* Distributions made for a draw, and the candidates: what the two operations one after the other leave, to the bit; n_valid of n_probs
 * columns. */
static void run_made(const test_device *d, int32_t n_row, int32_t n, int32_t k, spec_draw_how how, bool aligned)
{
    static const spec_sampling samplings[] = { { 1.0f, 0, 0.0f, 0.0f, 0 }, { 0.7f, 40, 0.9f, 0.0f, 0 },
                                               { 1.5f, 0, 0.8f, 0.0f, 0 }, { 1.0f, 3, 0.0f, 0.02f, 0 } };
    test_random random = { (uint64_t)(n_row * 31 + n * 7 + k) + (uint64_t)how };
    const int32_t ld = aligned ? (n + 3) / 4 * 4 : n + 1, n_probs = n + 5, ld_probs = n_probs + 2;
    double *v = made_logits(&random, n, ld);
    int32_t *src = calloc((size_t)n_row, sizeof *src), *dst = calloc((size_t)n_row, sizeof *dst);
    uint64_t *key = calloc((size_t)n_row, sizeof *key);
    spec_sampling *sampling = calloc((size_t)n_row, sizeof *sampling);
    for (int32_t r = 0; r < n_row; r++) {
        src[r] = (r + n) % LOGITS, dst[r] = n_row - 1 - r, key[r] = random_key(&random);
        sampling[r] = samplings[r % N_ELEMENTS(samplings)];
    }
    const size_t size = (size_t)n_row * (size_t)ld_probs;
    test_buffer logits = test_buffer_from(d, v, (size_t)LOGITS * (size_t)ld, F32);
    test_buffer one = test_buffer_new(d, size, F32), both = test_buffer_new(d, size, F32);
    spec_candidate *want = calloc((size_t)(n_row * k), sizeof *want), *got = calloc((size_t)(n_row * k), sizeof *got);
    spec_queue *q = test_row_queue(d, n_probs);
    spec_probs_args distributions = { logits.data, ld, n, one.data, ld_probs, n_probs, n_row, src, dst, sampling };
    spec_draw_args a = { .probs = one.data, .ld = ld_probs, .n_vocab = n_probs, .n_row = n_row, .k = k, .how = how,
                         .host_probs_row = dst, .host_key = key, .host_out = want };
    test_ok(d->ops->probs(q, &distributions), "distribution");
    test_ok(d->ops->draw(q, &a), "draw");
    distributions.probs = both.data, a.probs = both.data, a.distributions = &distributions, a.host_out = got;
    test_ok(d->ops->draw(q, &a), "distribution and draw");
    sync_queue(d, q);
    float *probs_one = test_read_raw(&one), *probs_both = test_read_raw(&both);
    for (int32_t r = 0; r < n_row; r++) {
        const size_t at = (size_t)dst[r] * (size_t)ld_probs;
        if (memcmp(probs_one + at, probs_both + at, (size_t)n_probs * sizeof *probs_one) != 0)
            fail_msg("%s %s: row %d of %d, %d entries: another distribution", d->name, how_names[how], r, n_row, n);
        for (int32_t j = 0; j < k; j++)
            if (memcmp(&want[r * k + j], &got[r * k + j], sizeof *got) != 0)
                fail_msg("%s %s: row %d of %d, %d entries: candidate %d of %d is token %d (%g), expected %d (%g)", d->name,
                         how_names[how], r, n_row, n, j, k, got[r * k + j].token, (double)got[r * k + j].prob,
                         want[r * k + j].token, (double)want[r * k + j].prob);
    }
    distributions.n_row--;
    assert_true(d->ops->draw(q, &a) == SPEC_E_INVALID);
    d->ops->queue_close(q);
    free(probs_both);
    free(probs_one);
    free(got);
    free(want);
    free(sampling);
    free(key);
    free(dst);
    free(src);
    free(v);
    test_buffer_free(&both);
    test_buffer_free(&one);
    test_buffer_free(&logits);
}

static void each_made(test_device *d)
{
    static const struct {
        int32_t n_row, n, k;
    } shapes[] = { { 5, 1, 1 },     { 9, 3, 4 },     { 6, 70, 16 },      { 12, 1000, 16 },   { 1, 4096, 4 },
                   { 6, 4097, 17 }, { 7, 5000, 64 }, { 33, 32000, 4 },   { 8, 50288, 4 },    { 8, 50288, 16 },
                   { 70, 9000, 3 }, { 2, 128257, 8 }, { 36, 128257, 16 } };
    for (int32_t i = 0; i < N_ELEMENTS(shapes); i++)
        for (int32_t how = SPEC_DRAW_TOP; how <= SPEC_DRAW_REPEAT; how++)
            run_made(d, shapes[i].n_row, shapes[i].n, shapes[i].k, (spec_draw_how)how, i % 2 == 0);
}

static void test_draw_made(void **state)
{
    (void)state;
    test_each_device(each_made);
}

/* The hardest places for the largest entries: sorted either way, and all within a few of every 512, 1024 or 4096. */
static void each_placed(test_device *d)
{
    enum { N = 70001, K = 64, ROWS = 5 };
    static const int32_t row[ROWS] = { 0, 1, 2, 3, 4 }, step[ROWS] = { 1, 1, 512, 1024, 4096 };
    static const uint64_t key[ROWS] = { 0 };
    double *distributions = calloc((size_t)ROWS * N, sizeof *distributions);
    for (int32_t r = 0; r < ROWS; r++)
        for (int32_t i = 0; i < N; i++)
            distributions[r * N + i] = r == 0 ? i + 1 : r == 1 ? N - i : i % step[r] < 3 ? 2.0 * N - i : 1.0 + i % 7;
    test_buffer b = test_buffer_from(d, distributions, (size_t)ROWS * N, F32);
    float *probs = test_read_raw(&b);
    spec_candidate got[ROWS * K];
    spec_queue *q = test_row_queue(d, N);
    spec_draw_args a = { .probs = b.data, .ld = N, .n_vocab = N, .n_row = ROWS, .k = K, .how = SPEC_DRAW_TOP,
                         .host_probs_row = row, .host_key = key, .host_out = got };
    test_ok(d->ops->draw(q, &a), "draw");
    sync_queue(d, q);
    for (int32_t r = 0; r < ROWS; r++) check_best(d->name, probs + r * N, N, SPEC_DRAW_TOP, 0, K, got + r * K);
    d->ops->queue_close(q);
    free(probs);
    free(distributions);
    test_buffer_free(&b);
}

static void test_draw_placed(void **state)
{
    (void)state;
    test_each_device(each_placed);
}

/* --- draws: how often --- */

enum { S_N = 6, S_ROWS = 6000 };
static const double s_probs[S_N] = { .3, .05, .25, .1, .2, .1 };

static spec_candidate *draw_often(const test_device *d, spec_draw_how how, int32_t k)
{
    test_random random = { 21 };
    spec_candidate *got = calloc((size_t)S_ROWS * (size_t)k, sizeof *got);
    int32_t *row = calloc(S_ROWS, sizeof *row);
    uint64_t *key = calloc(S_ROWS, sizeof *key);
    for (int32_t r = 0; r < S_ROWS; r++) key[r] = spec_stream_root(random_key(&random), (uint64_t)r);
    test_buffer b = test_buffer_from(d, s_probs, S_N, F32);
    spec_queue *q = test_row_queue(d, S_N);
    spec_draw_args a = { .probs = b.data,
                         .ld = S_N,
                         .n_vocab = S_N,
                         .n_row = S_ROWS,
                         .k = k,
                         .how = how,
                         .host_probs_row = row,
                         .host_key = key,
                         .host_out = got };
    test_ok(d->ops->draw(q, &a), "draw");
    sync_queue(d, q);
    d->ops->queue_close(q);
    test_buffer_free(&b);
    free(key);
    free(row);
    return got;
}

static void add_chi(double *chi, double count, double expected)
{
    *chi += (count - expected) * (count - expected) / expected;
}

/* First draws, and ordered pairs of the first two, against draws one after the other. With 5 and 29 degrees of
 * freedom (35 with replacement), 20.5, 58.3 and 66.6 are exceeded with probability 0.001; the seeds are fixed. */
static void check_pairs(const test_device *d, spec_draw_how how, int32_t k, double limit)
{
    spec_candidate *got = draw_often(d, how, k);
    double one[S_N] = { 0 }, two[S_N][S_N] = { { 0 } }, chi = 0.0, chi_two = 0.0, after = 0.0;
    for (int32_t r = 0; r < S_ROWS; r++) {
        const int32_t x = got[r * k].token, y = got[r * k + 1].token;
        one[x] += 1.0, two[x][y] += 1.0;
        after += how == SPEC_DRAW_GUMBEL_TOPK && x == y;
    }
    for (int32_t x = 0; x < S_N; x++) {
        add_chi(&chi, one[x], S_ROWS * s_probs[x]);
        for (int32_t y = 0; y < S_N; y++) {
            const double rest = how == SPEC_DRAW_GUMBEL_TOPK ? 1.0 - s_probs[x] : 1.0;
            if (how != SPEC_DRAW_GUMBEL_TOPK || x != y) add_chi(&chi_two, two[x][y], S_ROWS * s_probs[x] * s_probs[y] / rest);
        }
    }
    if (chi > 20.5) fail_msg("%s %s: chi-square of the first draw %g", d->name, how_names[how], chi);
    if (chi_two > limit) fail_msg("%s %s: chi-square of the first two %g", d->name, how_names[how], chi_two);
    assert_true(after == 0.0);
    free(got);
}

static void each_often(test_device *d)
{
    check_pairs(d, SPEC_DRAW_GUMBEL_TOPK, 2, 58.3);
    check_pairs(d, SPEC_DRAW_REPEAT, 2, 66.6);
}

static void test_draw_often(void **state)
{
    (void)state;
    test_each_device(each_often);
}

/* --- trees --- */

/* Trees in host memory, and their twins on the device. */
typedef struct trees {
    spec_grow host, device;
    void *base[5];
    size_t bytes[5];
} trees;

static void trees_open(const test_device *d, trees *t, int32_t n_slot, int32_t cap, int32_t cap_frontier,
                       int32_t cap_feed)
{
    const size_t slots = (size_t)n_slot;
    *t = (trees){ .host = { .n_slot = n_slot, .cap = cap, .cap_frontier = cap_frontier, .cap_feed = cap_feed } };
    t->bytes[0] = slots * sizeof(int32_t);
    t->bytes[1] = slots * (size_t)cap_frontier * sizeof(int32_t);
    t->bytes[2] = slots * (size_t)cap * sizeof(spec_grow_node);
    t->bytes[3] = slots * (size_t)cap_feed * sizeof(spec_step_node);
    t->bytes[4] = slots * (size_t)cap_frontier * SPEC_MAX_CHILD * sizeof(spec_candidate);
    void *host[5];
    for (int32_t i = 0; i < 5; i++) {
        host[i] = malloc(t->bytes[i]);
        assert_non_null(host[i]);
        memset(host[i], 0x5a, t->bytes[i]); /* what nobody writes stays so on both sides */
        test_ok(d->ops->alloc(d->dev, &t->base[i], t->bytes[i]), "alloc");
        test_ok(d->ops->upload(d->io, t->base[i], host[i], t->bytes[i]), "upload");
    }
    sync_queue(d, d->io);
    t->device = t->host;
    t->host.n = host[0], t->host.frontier = host[1], t->host.node = host[2], t->host.feed = host[3];
    t->host.candidate = host[4];
    t->device.n = t->base[0], t->device.frontier = t->base[1], t->device.node = t->base[2], t->device.feed = t->base[3];
    t->device.candidate = t->base[4];
}

static void trees_close(const test_device *d, trees *t)
{
    for (int32_t i = 0; i < 5; i++) d->ops->free(d->dev, t->base[i], t->bytes[i]);
    free(t->host.n);
    free(t->host.frontier);
    free(t->host.node);
    free(t->host.feed);
    free(t->host.candidate);
}

static void trees_compare(const test_device *d, const trees *t, const char *name)
{
    static const char *const part[] = { "counts", "frontiers", "nodes", "feeds", "candidates" };
    const void *want[] = { t->host.n, t->host.frontier, t->host.node, t->host.feed, t->host.candidate };
    for (int32_t i = 0; i < 5; i++) {
        unsigned char *got = malloc(t->bytes[i]);
        assert_non_null(got);
        test_ok(d->ops->download(d->io, got, t->base[i], t->bytes[i]), "download");
        sync_queue(d, d->io);
        for (size_t at = 0; at < t->bytes[i]; at++)
            if (got[at] != ((const unsigned char *)want[i])[at])
                fail_msg("%s %s: %s differ at byte %zu of %zu", d->name, name, part[i], at, t->bytes[i]);
        free(got);
    }
}

static void ref_begin(const spec_grow *g, int32_t slot, const spec_grow_node *root)
{
    g->n[slot] = 1;
    g->node[slot * g->cap] = *root;
    for (int32_t f = 0; f < g->cap_frontier; f++) g->frontier[slot * g->cap_frontier + f] = f == 0 ? 0 : -1;
}

/* Trees of a root each, on both sides. */
static void begin(const test_device *d, trees *t, int32_t n, const int32_t *slot, const spec_grow_node *root)
{
    const void *host[3] = { t->host.n, t->host.frontier, t->host.node };
    for (int32_t i = 0; i < n; i++) ref_begin(&t->host, slot[i], &root[i]);
    for (int32_t i = 0; i < 3; i++) test_ok(d->ops->upload(d->io, t->base[i], host[i], t->bytes[i]), "upload");
    sync_queue(d, d->io);
}

static spec_grow_node root_node(uint64_t key, int32_t fed)
{
    return (spec_grow_node){ .key = key, .value = 1.0, .token = 7, .parent = -1, .prob = 1.0f, .fed = fed };
}

/* --- draws into trees --- */

/* Rows of frontier places: the node's key, candidates at the place, none where there is no node. */
enum { TREE_SLOTS = 4, TREE_FRONTIER = 3, TREE_N = 50, TREE_K = 5, TREE_ROWS = 5 };
static const int32_t tree_probs_row[TREE_ROWS] = { 2, 0, 1, 0, 2 }, tree_slot[TREE_ROWS] = { 1, 3, 1, 3, 3 };
static const int32_t tree_place[TREE_ROWS] = { 0, 0, 2, 1, 2 };

typedef struct tree_draws {
    const test_device *d;
    spec_queue *q;
    trees t;
    test_buffer given, made; /* distributions [3], [TREE_ROWS] */
    float *probs;            /* those that are given */
    spec_candidate got[TREE_ROWS * TREE_K];
} tree_draws;

static uint64_t tree_key(int32_t row) { return tree_slot[row] == 3 ? 12345 : 678; }

static spec_draw_args draws_in_trees(tree_draws *x, spec_draw_how how)
{
    return (spec_draw_args){ .probs = x->given.data, .ld = TREE_N, .n_vocab = TREE_N, .n_row = TREE_ROWS, .k = TREE_K, .how = how,
                             .host_probs_row = tree_probs_row, .grow = &x->t.device, .host_slot = tree_slot, .host_place = tree_place,
                             .host_out = x->got };
}

/* Candidates of a row with a node, of its distribution. */
static void check_drawn(const tree_draws *x, spec_draw_how how, const float *own, uint64_t key, const spec_candidate *at)
{
    if (how == SPEC_DRAW_REPEAT) check_repeat(x->d->name, own, TREE_N, key, TREE_K, at);
    else check_best(x->d->name, own, TREE_N, how, key, TREE_K, at);
}

/* The same on the device, whose candidates were checked. */
static void compare_places(tree_draws *x, spec_draw_how how)
{
    for (int32_t r = 0; r < TREE_ROWS; r++)
        memcpy(x->t.host.candidate + (tree_slot[r] * TREE_FRONTIER + tree_place[r]) * SPEC_MAX_CHILD, x->got + r * TREE_K,
               TREE_K * sizeof *x->got);
    trees_compare(x->d, &x->t, how_names[how]);
}

static void draw_given(tree_draws *x, spec_draw_how how)
{
    spec_draw_args a = draws_in_trees(x, how);
    test_ok(x->d->ops->draw(x->q, &a), "draw");
    sync_queue(x->d, x->q);
    for (int32_t r = 0; r < TREE_ROWS; r++) {
        const spec_candidate *at = x->got + r * TREE_K;
        for (int32_t j = 0; tree_place[r] > 0 && j < TREE_K; j++) assert_true(at[j].token == -1 && at[j].prob == 0.0f);
        if (tree_place[r] == 0) check_drawn(x, how, x->probs + tree_probs_row[r] * TREE_N, tree_key(r), at);
    }
    compare_places(x, how);
    a.host_out = NULL;
    test_ok(x->d->ops->draw(x->q, &a), "draw");
    sync_queue(x->d, x->q);
    trees_compare(x->d, &x->t, how_names[how]);
}

/* Distributions that are made first, of logits: also where the place has no node. Then by keys that are given: what stands at the place
 * does not matter. */
static void draw_made(tree_draws *x, spec_draw_how how)
{
    static const int32_t made_row[TREE_ROWS] = { 0, 1, 2, 3, 4 };
    static const uint64_t keys[TREE_ROWS] = { 5, 6, 7, 8, 9 };
    static const spec_sampling sampling[TREE_ROWS] = { { 1.0f, 0, 0.0f, 0.0f, 0 }, { 0.5f, 0, 0.0f, 0.0f, 0 },
                                                       { 1.0f, 9, 0.0f, 0.0f, 0 }, { 1.0f, 0, 0.9f, 0.0f, 0 },
                                                       { 1.0f, 0, 0.0f, 0.0f, 0 } };
    const spec_probs_args from = { x->given.data, TREE_N, TREE_N, x->made.data, TREE_N, TREE_N, TREE_ROWS,
                                   tree_probs_row, made_row, sampling };
    spec_draw_args a = draws_in_trees(x, how);
    a.probs = x->made.data, a.host_probs_row = made_row, a.distributions = &from;
    test_ok(x->d->ops->draw(x->q, &a), "distribution and draw");
    sync_queue(x->d, x->q);
    float *own = test_read_raw(&x->made);
    for (int32_t r = 0; r < TREE_ROWS; r++) {
        double sum = 0.0;
        for (int32_t i = 0; i < TREE_N; i++) sum += (double)own[r * TREE_N + i];
        assert_true(fabs(sum - 1.0) < 1e-5);
        for (int32_t j = 0; tree_place[r] > 0 && j < TREE_K; j++) assert_true(x->got[r * TREE_K + j].token == -1);
        if (tree_place[r] == 0) check_drawn(x, how, own + r * TREE_N, tree_key(r), x->got + r * TREE_K);
    }
    compare_places(x, how);
    a.host_key = keys;
    test_ok(x->d->ops->draw(x->q, &a), "draw by keys");
    sync_queue(x->d, x->q);
    for (int32_t r = 0; r < TREE_ROWS; r++) check_drawn(x, how, own + r * TREE_N, keys[r], x->got + r * TREE_K);
    compare_places(x, how);
    free(own);
}

static void each_draw_in_trees(test_device *d)
{
    static const int32_t slot[2] = { 3, 1 };
    const spec_grow_node root[2] = { root_node(12345, 0), root_node(678, 0) };
    test_random random = { 31 };
    double distributions[3 * TREE_N];
    for (int32_t i = 0; i < 3; i++) fill_probs(&random, i == 1 ? FEW : DENSE, distributions + i * TREE_N, TREE_N);
    tree_draws x = { .d = d, .given = test_buffer_from(d, distributions, 3 * TREE_N, F32),
                     .made = test_buffer_new(d, TREE_ROWS * TREE_N, F32) };
    x.probs = test_read_raw(&x.given);
    trees_open(d, &x.t, TREE_SLOTS, 9, TREE_FRONTIER, 9);
    x.q = test_row_queue(d, TREE_N);
    begin(d, &x.t, 2, slot, root);
    for (int32_t how = SPEC_DRAW_TOP; how <= SPEC_DRAW_REPEAT; how++) {
        draw_given(&x, (spec_draw_how)how);
        draw_made(&x, (spec_draw_how)how);
    }
    d->ops->queue_close(x.q);
    trees_close(d, &x.t);
    free(x.probs);
    test_buffer_free(&x.made);
    test_buffer_free(&x.given);
}

static void test_draw_in_trees(void **state)
{
    (void)state;
    test_each_device(each_draw_in_trees);
}

/* --- expansions --- */

/* A candidate that may become a child. */
typedef struct child {
    double value;
    int32_t f, j, node; /* node: what it became, or -1 */
} child;

static int by_child_value(const void *a, const void *b)
{
    const child *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? 1 : -1;
    return x->f != y->f ? x->f - y->f : x->j - y->j;
}
static int by_child_order(const void *a, const void *b)
{
    const child *x = a, *y = b;
    return x->f != y->f ? x->f - y->f : x->j - y->j;
}

/* The n first of `all` in value order, back in their own order. */
static int32_t keep_best(child *all, int32_t count, int32_t n)
{
    qsort(all, (size_t)count, sizeof *all, by_child_value);
    if (n < count) count = n;
    qsort(all, (size_t)count, sizeof *all, by_child_order);
    return count;
}

static int32_t list_eligible(const spec_grow *g, const spec_expand_args *a, int32_t slot, child *all)
{
    int32_t count = 0;
    for (int32_t f = 0; f < a->n_place; f++) {
        const int32_t x = g->frontier[slot * g->cap_frontier + f];
        const spec_candidate *c = g->candidate + (slot * g->cap_frontier + f) * SPEC_MAX_CHILD;
        double drawn = 0.0;
        for (int32_t j = 0; x >= 0 && j < a->k; j++) {
            const double value = g->node[slot * g->cap + x].value;
            if (c[j].token < 0 || (a->host_take && j >= a->host_take[f]) || value * (1.0 - drawn) < a->threshold) break;
            all[count++] = (child){ value * (double)c[j].prob, f, j, -1 };
            drawn += (double)c[j].prob;
        }
    }
    return count;
}

static void ref_place(const spec_grow *g, int32_t slot, int32_t base, int32_t i, int32_t x)
{
    spec_grow_node *node = g->node + slot * g->cap;
    spec_step_node fed = { .depth = 1 };
    g->frontier[slot * g->cap_frontier + i] = x;
    if (x >= 0) {
        node[x].fed = base + i;
        fed = (spec_step_node){ .token = node[x].token, .parent = node[node[x].parent].fed,
                                .depth = node[0].fed + node[x].depth };
    }
    g->feed[slot * g->cap_feed + base + i] = fed;
}

static void ref_next(const spec_grow *g, const spec_expand_args *a, int32_t slot, int32_t base, child *all,
                     int32_t count)
{
    int32_t n = 0;
    for (int32_t i = 0; a->host_next && i < a->n_next; i++) {
        int32_t x = -1;
        for (int32_t c = 0; c < count; c++)
            if (all[c].f * a->k + all[c].j == a->host_next[i]) x = all[c].node;
        ref_place(g, slot, base, n++, x);
    }
    if (!a->host_next) {
        int32_t worthy = 0;
        for (int32_t c = 0; c < count; c++)
            if (all[c].value >= a->next_threshold) all[worthy++] = all[c];
        worthy = keep_best(all, worthy, a->n_next);
        for (int32_t c = 0; c < worthy; c++) ref_place(g, slot, base, n++, all[c].node);
        while (n < a->n_next) ref_place(g, slot, base, n++, -1);
    }
    while (n < g->cap_frontier) g->frontier[slot * g->cap_frontier + n++] = -1;
}

static void ref_expand(const spec_grow *g, const spec_expand_args *a, int32_t i)
{
    const int32_t slot = a->host_slot[i];
    if (a->host_root) ref_begin(g, slot, &a->host_root[i]);
    child *all = calloc((size_t)(a->n_place * a->k + 1), sizeof *all);
    spec_grow_node *node = g->node + slot * g->cap;
    int32_t count = list_eligible(g, a, slot, all), added = 0;
    if (a->n_add > 0) count = keep_best(all, count, a->n_add);
    for (int32_t c = 0; c < count && g->n[slot] < a->n_max; c++, added++) {
        const int32_t x = g->frontier[slot * g->cap_frontier + all[c].f];
        const spec_candidate *from = g->candidate + (slot * g->cap_frontier + all[c].f) * SPEC_MAX_CHILD + all[c].j;
        all[c].node = g->n[slot]++;
        memset(&node[all[c].node], 0, sizeof *node);
        node[all[c].node] = (spec_grow_node){ .key = spec_stream_child(node[x].key, all[c].j), .value = all[c].value,
                                              .token = from->token, .parent = x, .depth = node[x].depth + 1,
                                              .rank = all[c].j, .prob = from->prob, .fed = -1 };
    }
    ref_next(g, a, slot, a->host_feed_base[i], all, added);
    free(all);
}

/* Candidates for every place: probabilities that fall, of few values (ties, ones) or of many; lists may end early. */
static void random_candidates(const test_device *d, test_random *random, trees *t, int32_t k, bool coarse)
{
    const spec_grow *g = &t->host;
    for (int32_t p = 0; p < g->n_slot * g->cap_frontier; p++) {
        spec_candidate *c = g->candidate + p * SPEC_MAX_CHILD;
        const int32_t there = test_below(random, 4) == 0 ? test_below(random, k + 1) : k;
        double left = 1.0;
        for (int32_t j = 0; j < k; j++) {
            const double part = coarse ? (test_below(random, 6) == 0 ? 1.0 : 0.5) : test_uniform(random);
            const double prob = test_round(left * part, F32);
            c[j] = j < there ? (spec_candidate){ test_below(random, 1000), (float)prob } : (spec_candidate){ -1, 0.0f };
            left -= left * part;
        }
    }
    test_ok(d->ops->upload(d->io, t->base[4], g->candidate, t->bytes[4]), "upload");
    sync_queue(d, d->io);
}

typedef struct expand_case {
    int32_t cap, frontier, k, rounds;
    bool coarse, take, next; /* next: a list */
    double threshold, next_threshold;
    int32_t n_add, n_max, n_next;
} expand_case;

static const expand_case expansions[] = {
    { 64, 8, 4, 3, false, false, false, 0.0, 0.0, 0, 64, 8 },       /* all, the best 8 go on */
    { 64, 8, 4, 3, true, false, false, 0.0, 0.0, 0, 64, 8 },        /* ties */
    { 64, 8, 4, 3, true, false, false, 0.0, 0.0, 10, 64, 5 },       /* the best 10 */
    { 64, 8, 4, 3, false, false, false, 0.0, 0.0, 10, 64, 5 },
    { 20, 8, 4, 4, true, false, false, 0.0, 0.0, 9, 17, 6 },        /* cut at n_max */
    { 20, 8, 4, 4, false, false, false, 0.0, 0.0, 0, 20, 8 },
    { 64, 8, 6, 3, false, true, false, 0.0, 0.0, 0, 60, 8 },        /* so many of each place */
    { 64, 8, 6, 3, true, true, true, 0.0, 0.0, 0, 60, 7 },          /* static trees: take and next */
    { 30, 8, 6, 3, false, true, true, 0.0, 0.0, 0, 14, 8 },         /* next names what n_max left out */
    { 64, 8, 8, 3, false, false, false, 0.02, 0.05, 0, 64, 8 },     /* thresholds */
    { 64, 8, 8, 3, true, false, false, 0.25, 0.25, 0, 64, 8 },      /* values on the threshold */
    { 64, 8, 1, 4, true, false, false, 0.0, 0.0, 0, 64, 1 },        /* a chain */
    { 64, 8, 4, 2, false, false, false, 0.0, 0.0, 3, 64, 0 },       /* a last round */
    { 64, 8, 4, 3, false, false, false, 2.0, 0.0, 0, 64, 4 },       /* nothing is eligible */
    { 256, 16, 10, 4, false, false, false, 0.0, 0.0, 60, 200, 10 }, /* more than one warp */
    { 1000, 64, 16, 3, true, false, false, 0.0, 0.0, 300, 999, 64 },
    { 1000, 64, 16, 3, false, false, false, 1e-4, 1e-3, 0, 1000, 64 },
    { 3000, 256, 64, 3, true, false, false, 0.0, 0.0, 1200, 3000, 256 },
    { 3000, 256, 64, 3, false, false, true, 0.0, 0.0, 0, 2990, 256 },
    { 20000, 256, 64, 3, false, true, false, 0.0, 0.0, 0, 20000, 256 },
};

/* Nodes are fed by their own tokens; by others; by others where a table has no such operation, so that the host renames them. */
typedef enum fed_by { FED_OWN, FED_OTHER, FED_OTHER_BY_HOST } fed_by;

/* What the reference lists to be fed, by other tokens. */
static void ref_rename(const spec_grow *g, const spec_expand_args *a, int32_t i, const int32_t *feed)
{
    spec_step_node *at = g->feed + a->host_slot[i] * g->cap_feed + a->host_feed_base[i];
    const int32_t *frontier = g->frontier + a->host_slot[i] * g->cap_frontier;
    for (int32_t k = 0; k < a->n_next; k++)
        if (frontier[k] >= 0) at[k].token = feed[at[k].token];
}

/* How many candidates each place takes, and which go on. */
static void random_places(test_random *random, const expand_case *c, int32_t n_place, int32_t *take, int32_t *next)
{
    for (int32_t f = 0; f < n_place; f++) take[f] = test_below(random, c->k + 2);
    for (int32_t i = 0; i < c->n_next; i++) next[i] = test_below(random, n_place * c->k);
    for (int32_t i = 1; i < c->n_next; i++) /* no candidate twice; what is repeated is left empty */
        for (int32_t j = 0; j < i; j++) next[i] = next[i] == next[j] ? -1 : next[i];
}

static void run_expand(const test_device *d, int32_t number, fed_by fed)
{
    enum { SLOTS = 5, TREES = 3, TOKENS = 1000 };
    static const int32_t slot[TREES] = { 4, 0, 2 };
    const expand_case *c = &expansions[number];
    test_random random = { (uint64_t)(40 + number) };
    spec_backend_ops ops = *d->ops;
    void *table = NULL;
    int32_t feed[TOKENS], base[TREES], *take = calloc((size_t)c->frontier, sizeof *take),
                         *next = calloc((size_t)c->n_next + 1, sizeof *next);
    spec_grow_node root[TREES];
    trees t;
    char name[32];
    snprintf(name, sizeof name, "expansion %d", number);
    trees_open(d, &t, SLOTS, c->cap, c->frontier, 3 + c->rounds * c->frontier);
    spec_queue *q = test_row_queue(d, 64);
    if (fed == FED_OTHER_BY_HOST) ops.gather = NULL;
    for (int32_t i = 0; i < TOKENS; i++) feed[i] = i * 7 % TOKENS;
    feed[0] = 0; /* of places without a node, whichever way */
    test_ok(d->ops->alloc(d->dev, &table, sizeof feed), "alloc");
    test_ok(d->ops->upload(q, table, feed, sizeof feed), "upload");
    for (int32_t i = 0; i < TREES; i++) base[i] = i + 1, root[i] = root_node(random_key(&random), i);
    spec_grow_node *out_node = calloc((size_t)(SLOTS * c->cap), sizeof *out_node);
    int32_t out_n[SLOTS] = { 0 };
    assert_non_null(out_node);
    for (int32_t round = 0, n_place = 1; round < c->rounds; round++, n_place = c->n_next) {
        random_candidates(d, &random, &t, c->k, c->coarse);
        random_places(&random, c, n_place, take, next);
        const bool told = round % 2 == 0;
        const spec_expand_args a = { .grow = &t.device, .n = TREES, .host_slot = slot, .host_feed_base = base,
                                     .host_root = round == 0 ? root : NULL, .n_place = n_place, .k = c->k,
                                     .host_take = c->take ? take : NULL, .threshold = c->threshold, .n_add = c->n_add,
                                     .n_max = c->n_max, .n_next = c->n_next, .host_next = c->next ? next : NULL,
                                     .next_threshold = c->next_threshold, .host_out_n = told ? out_n : NULL,
                                     .host_out_node = told ? out_node : NULL, .feed_token = fed == FED_OWN ? NULL : table };
        test_ok(fed == FED_OWN ? ops.expand(q, &a) : speci_expand_fed(&ops, q, &a, feed, &speci_malloc), "expand");
        for (int32_t i = 0; i < TREES; i++) {
            ref_expand(&t.host, &a, i);
            if (fed != FED_OWN) ref_rename(&t.host, &a, i, feed);
        }
        for (int32_t i = 0; i < TREES; i++) base[i] += c->n_next;
        memset(take, 0xff, (size_t)c->frontier * sizeof *take); /* read before the call returned */
        memset(next, 0x7f, (size_t)c->n_next * sizeof *next);
        sync_queue(d, q);
        trees_compare(d, &t, name);
        for (int32_t s = 0; told && s < SLOTS; s++) {
            const bool grew = s == slot[0] || s == slot[1] || s == slot[2];
            assert_int_equal(out_n[s], grew ? t.host.n[s] : 0);
            assert_memory_equal(out_node + s * c->cap, t.host.node + s * c->cap, (size_t)out_n[s] * sizeof *out_node);
        }
    }
    d->ops->free(d->dev, table, sizeof feed);
    d->ops->queue_close(q);
    trees_close(d, &t);
    free(out_node);
    free(next);
    free(take);
}

static void each_expand(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(expansions); i++)
        for (fed_by fed = FED_OWN; fed <= FED_OTHER_BY_HOST; fed++) run_expand(d, i, fed);
}

static void test_expand(void **state)
{
    (void)state;
    test_each_device(each_expand);
}

/* What is not possible is refused, and leaves trees alone. */
static void each_refused(test_device *d)
{
    static const int32_t slot = 0, bad_slot = 2, base = 3, bad_base = 5, row = 0, place = 0, bad_places[] = { -1, 4 };
    spec_grow_node root = root_node(1, 0);
    double probs[8] = { 0.5, 0.5 };
    test_buffer b = test_buffer_from(d, probs, 8, F32);
    trees t;
    trees_open(d, &t, 2, 10, 4, 8);
    spec_queue *q = test_row_queue(d, 8);
    spec_draw_args draw = { .probs = b.data, .ld = 8, .n_vocab = 8, .n_row = 1, .k = 65, .host_probs_row = &row,
                            .grow = &t.device, .host_slot = &slot, .host_place = &place };
    assert_true(d->ops->draw(q, &draw) == SPEC_E_INVALID);
    draw.k = 0;
    assert_true(d->ops->draw(q, &draw) == SPEC_E_INVALID);
    draw.k = 2, draw.host_slot = &bad_slot;
    assert_true(d->ops->draw(q, &draw) == SPEC_E_INVALID);
    draw.host_slot = &slot;
    for (int32_t i = 0; i < N_ELEMENTS(bad_places); i++) {
        draw.host_place = &bad_places[i];
        assert_true(d->ops->draw(q, &draw) == SPEC_E_INVALID);
    }
    const spec_expand_args good = { .grow = &t.device,
                                    .n = 1,
                                    .host_slot = &slot,
                                    .host_feed_base = &base,
                                    .n_place = 1,
                                    .k = 2,
                                    .n_max = 10,
                                    .n_next = 4 };
    for (int32_t i = 0; i < 7; i++) {
        spec_expand_args a = good;
        if (i == 0) a.n_place = 5;
        if (i == 1) a.n_next = 5;
        if (i == 2) a.n_max = 11;
        if (i == 3) a.k = 65;
        if (i == 4) a.host_slot = &bad_slot;
        if (i == 5) a.host_feed_base = &bad_base;
        if (i == 6) a.host_root = &root, a.n_place = 2;
        assert_true(d->ops->expand(q, &a) == SPEC_E_INVALID);
    }
    sync_queue(d, q);
    trees_compare(d, &t, "refused");
    d->ops->queue_close(q);
    trees_close(d, &t);
    test_buffer_free(&b);
}

static void test_refused(void **state)
{
    (void)state;
    test_each_device(each_refused);
}

/* Memory for a wider frontier than a backend expands. */
static void each_too_wide(test_device *d)
{
    enum { WIDE = SPEC_MAX_FRONTIER + 1 };
    static const int32_t slot = 0, base = 0;
    trees t;
    trees_open(d, &t, 1, 10, WIDE, WIDE);
    spec_queue *q = test_row_queue(d, 8);
    spec_expand_args a = { .grow = &t.device, .n = 1, .host_slot = &slot, .host_feed_base = &base, .n_place = WIDE, .k = 1, .n_max = 10 };
    assert_true(d->ops->expand(q, &a) == SPEC_E_INVALID);
    a.n_place = 1, a.n_next = WIDE;
    assert_true(d->ops->expand(q, &a) == SPEC_E_INVALID);
    sync_queue(d, q);
    trees_compare(d, &t, "too wide");
    d->ops->queue_close(q);
    trees_close(d, &t);
}

static void test_too_wide(void **state)
{
    (void)state;
    test_each_device(each_too_wide);
}

/* --- nodes that a step takes from the device --- */

/* Two sequences, the second one fed before: embeddings of the nodes that grew, or of all nodes by the tokens that did. */
static void feed_nodes(test_device *d, bool tokens)
{
    enum { VOCAB = 40, DIM = 16, LD = 9, SLOTS = 6, ROWS = 3 + 4 };
    static const int32_t parent[6] = { -1, 0, 0, 1, 1, 2 }, given[2] = { 1, 3 };
    static const int32_t want_tokens[2][ROWS] = { { 5, 21, 22, 15, 33, 34, 35 }, { 5, 21, 22, 32, 33, 34, 35 } };
    const int32_t *want_token = want_tokens[tokens];
    int32_t token[6] = { 5, 6, 15, 16, 17, 18 };
    test_random random = { 51 };
    test_seq seqs[2] = { { .slot = 3, .n_node = 3, .parent = parent, .token = token },
                         { .slot = 1, .n_past = 4, .n_node = 6, .n_fed = 2, .parent = parent, .token = token } };
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, seqs, 2, 0);
    spec_step_node feed[SLOTS * LD];
    for (int32_t i = 0; i < SLOTS * LD; i++) feed[i] = (spec_step_node){ .token = 1, .parent = 0, .depth = 1 };
    feed[3 * LD + 1].token = 21, feed[3 * LD + 2].token = 22;
    for (int32_t i = 0; i < 6; i++) feed[1 * LD + i].token = 30 + i;
    spec_grow_node grown[SLOTS * LD]; /* a node's place in the tree is not looked at */
    for (int32_t i = 0; i < SLOTS * LD; i++) grown[i] = (spec_grow_node){ .token = feed[i].token, .parent = 8, .depth = 9 };
    const size_t bytes = tokens ? sizeof grown : sizeof feed;
    void *d_feed;
    test_ok(d->ops->alloc(d->dev, &d_feed, bytes), "alloc");
    test_ok(d->ops->upload(d->io, d_feed, tokens ? (const void *)grown : feed, bytes), "upload");
    sync_queue(d, d->io);
    /* n_given counts nodes, the fed ones too: the second sequence's node 2 stands in the block, and 3 to 5 come */
    spec_step_seq *s = (spec_step_seq *)((char *)step + step->off_seq);
    for (int32_t i = 0; i < 2 && !tokens; i++) s[i].n_given = given[i];
    if (tokens) step->grown = d_feed, step->ld_grown = LD;
    else step->feed = d_feed, step->ld_feed = LD;
    double *table = test_values(&random, VOCAB * DIM, 2.0), want[ROWS * DIM];
    spec_weight *w = test_weight(d, table, VOCAB, DIM, F32, F32, 0, 1);
    for (int32_t r = 0; r < ROWS; r++)
        for (int32_t i = 0; i < DIM; i++) want[r * DIM + i] = table[want_token[r] * DIM + i];
    test_buffer y = test_buffer_new(d, ROWS * DIM, F32);
    spec_op op = { .kind = SPEC_OP_EMBED };
    op.u.embed = (spec_embed_args){ .table = w, .n_vocab = VOCAB, .dim = DIM, .scale = 1.0f, .y = test_view(&y, DIM) };
    test_run(d, &op, step, 6);
    double *got = test_read(&y);
    test_compare(d, "feed", "y", got, want, ROWS, DIM, 1e-7);
    free(got);
    test_buffer_free(&y);
    d->ops->weight_close(d->dev, w);
    d->ops->free(d->dev, d_feed, bytes);
    free(table);
    free(step);
}

static void each_feed(test_device *d)
{
    feed_nodes(d, false);
    feed_nodes(d, true);
}

static void test_feed(void **state)
{
    (void)state;
    test_each_device(each_feed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),        cmocka_unit_test(test_exponential), cmocka_unit_test(test_draw),
        cmocka_unit_test(test_draw_placed),   cmocka_unit_test(test_draw_often),  cmocka_unit_test(test_draw_in_trees),
        cmocka_unit_test(test_draw_made),
        cmocka_unit_test(test_expand),        cmocka_unit_test(test_refused),     cmocka_unit_test(test_too_wide),
        cmocka_unit_test(test_feed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
