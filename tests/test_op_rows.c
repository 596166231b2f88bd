/* test_op_rows.c - arg-max, rows under other numbers, distributions, acceptance, log-probabilities of rows. */
#include <math.h>
#include <stdio.h>

#include "backends/backend.h"
#include "tests/ref_ops.h"
#include "tests/test.h"

#define F32 SPEC_DTYPE_F32

/* --- arg-max --- */

static void each_argmax(test_device *d)
{
    enum { ROWS = 9, N = 1003, LD = 1010 };
    test_random random = { 9 };
    double *v = test_values(&random, ROWS * LD, 10.0);
    int32_t want[ROWS] = { 0, N - 1, 500, 7, -1, 3, 0, 41, 999 }, got[ROWS];
    v[0 * LD + 0] = 11.0;
    v[1 * LD + N - 1] = 11.0;
    v[1 * LD + N] = 99.0; /* beyond the row */
    v[2 * LD + 500] = v[2 * LD + 900] = v[2 * LD + 516] = 12.0; /* ties: the smallest */
    for (int32_t i = 0; i < N; i++) v[3 * LD + i] = i % 2 ? (double)-i : NAN;
    v[3 * LD + 7] = 5.0;
    for (int32_t i = 0; i < N; i++) v[4 * LD + i] = NAN;
    for (int32_t i = 0; i < N; i++) v[5 * LD + i] = i == 3 || i == 8 ? -INFINITY : NAN;
    for (int32_t i = 0; i < N; i++) v[6 * LD + i] = -INFINITY;
    for (int32_t i = 0; i < N; i++) v[7 * LD + i] = i < 41 ? -0.5 : i == 41 ? INFINITY : 3.0;
    for (int32_t i = 0; i < N; i++) v[8 * LD + i] = i == 999 ? -1.0 : -2.0;
    test_buffer b = test_buffer_from(d, v, ROWS * LD, F32);
    spec_queue *q = test_row_queue(d, LD);
    spec_step_node next[ROWS];
    void *roots = NULL;
    memset(next, 0x55, sizeof next);
    test_ok(d->ops->alloc(d->dev, &roots, sizeof next), "alloc");
    test_ok(d->ops->upload(q, roots, next, sizeof next), "upload");
    spec_argmax_args a = { b.data, LD, N, ROWS, got, roots };
    test_ok(d->ops->argmax(q, &a), "argmax");
    test_ok(d->ops->download(q, next, roots, sizeof next), "download");
    test_ok(d->ops->sync(q), "sync");
    for (int32_t r = 0; r < ROWS; r++) {
        if (got[r] != want[r]) fail_msg("%s: arg-max of row %d is %d, expected %d", d->name, r, got[r], want[r]);
        if (next[r].token != want[r] || next[r].parent != 0x55555555 || next[r].depth != 0x55555555)
            fail_msg("%s: root %d is token %d, parent %d, depth %d; expected token %d, and no more touched", d->name, r,
                     next[r].token, next[r].parent, next[r].depth, want[r]);
    }
    d->ops->free(d->dev, roots, sizeof next);
    d->ops->queue_close(q);
    test_buffer_free(&b);
    free(v);
}

static void test_argmax(void **state)
{
    (void)state;
    test_each_device(each_argmax);
}

/* --- rows under other numbers --- */

typedef struct gather_case {
    int32_t n_in, n_out, n_row;
    int32_t one_of; /* so many columns have a source, one of this number; 0: none has */
} gather_case;

static const gather_case gathers[] = {
    { 64, 64, 5, 1 }, { 8, 3, 1, 1 }, { 501, 4099, 9, 12 }, { 4099, 501, 3, 2 }, { 700, 701, 150, 3 }, { 33, 70, 4, 0 },
};

/* Of the device, or with a table that has no such operation: on the host. */
static void run_gather(const test_device *d, const gather_case *c, const spec_backend_ops *ops)
{
    test_random random = { 15 };
    const int32_t ld = c->n_in + 3, ld_out = c->n_out + 2, n_logits = 7;
    double *v = test_values(&random, (size_t)(ld * n_logits), 10.0);
    int32_t *column = calloc((size_t)c->n_out, sizeof *column), *src = calloc((size_t)c->n_row, sizeof *src);
    for (int32_t i = 0; i < c->n_out; i++)
        column[i] = c->one_of > 0 && test_below(&random, c->one_of) == 0 ? test_below(&random, c->n_in) : -1;
    for (int32_t i = 0; i < c->n_row; i++) src[i] = test_below(&random, n_logits);
    v[src[0] * ld] = -INFINITY, v[src[0] * ld + 1] = INFINITY;
    test_buffer logits = test_buffer_from(d, v, (size_t)(ld * n_logits), F32);
    test_buffer out = test_buffer_new(d, (size_t)(ld_out * c->n_row), F32);
    const size_t bytes = (size_t)c->n_out * sizeof *column;
    void *table = NULL;
    spec_queue *q = test_row_queue(d, ld_out);
    test_ok(d->ops->alloc(d->dev, &table, bytes), "alloc");
    test_ok(d->ops->upload(q, table, column, bytes), "upload");
    const spec_gather_args a = { .logits = logits.data, .out = out.data, .ld = ld, .ld_out = ld_out, .n_out = c->n_out,
                                 .column = table, .n_row = c->n_row, .host_src = src };
    test_ok(speci_gather(ops, q, &a, column, c->n_in, &speci_malloc), "gather");
    test_ok(d->ops->sync(q), "sync");
    float *x = test_read_raw(&logits), *y = test_read_raw(&out);
    for (int32_t i = 0; i < c->n_row; i++)
        for (int32_t k = 0; k < ld_out; k++) {
            const float got = y[i * ld_out + k];
            const float want = k >= c->n_out ? NAN : column[k] < 0 ? -INFINITY : x[src[i] * ld + column[k]];
            if (k >= c->n_out ? !isnan(got) : got != want)
                fail_msg("%s: gather: row %d, column %d of %d is %g, expected %g", d->name, i, k, c->n_out, (double)got,
                         (double)want);
        }
    free(test_read(&out)); /* what stands around it is as before */
    free(y);
    free(x);
    d->ops->free(d->dev, table, bytes);
    d->ops->queue_close(q);
    test_buffer_free(&out);
    test_buffer_free(&logits);
    free(src);
    free(column);
    free(v);
}

static void each_gather(test_device *d)
{
    spec_backend_ops without = *d->ops;
    without.gather = NULL;
    for (int32_t i = 0; i < N_ELEMENTS(gathers); i++) {
        run_gather(d, &gathers[i], d->ops);
        run_gather(d, &gathers[i], &without);
    }
}

static void test_gather(void **state)
{
    (void)state;
    test_each_device(each_gather);
}

/* --- distributions --- */

typedef struct probs_case {
    const char *name;
    int32_t n_valid, n_probs;
    spec_sampling s;
    double step; /* logits are multiples of this: ties */
} probs_case;

static const probs_case distributions[] = {
    { "base", 200, 200, { 1.0f, 0, 0.0f, 0.0f, 0 }, 0.0 },
    { "padded", 200, 260, { 1.0f, 0, 0.0f, 0.0f, 0 }, 0.0 },
    { "odd", 997, 1001, { 1.0f, 0, 0.0f, 0.0f, 0 }, 0.0 },
    { "cold", 200, 200, { 0.2f, 0, 0.0f, 0.0f, 0 }, 0.0 },
    { "hot", 200, 200, { 2.5f, 0, 0.0f, 0.0f, 0 }, 0.0 },
    { "top_k", 200, 200, { 0.8f, 20, 0.0f, 0.0f, 0 }, 0.0 },
    { "top_k_1", 200, 200, { 0.8f, 1, 0.0f, 0.0f, 0 }, 0.0 },
    { "top_k_all", 200, 200, { 0.8f, 500, 0.0f, 0.0f, 0 }, 0.0 },
    { "top_k_ties", 200, 200, { 0.8f, 37, 0.0f, 0.0f, 0 }, 1.0 },
    { "top_p", 200, 200, { 1.0f, 0, 0.9f, 0.0f, 0 }, 0.0 },
    { "top_p_small", 200, 200, { 1.0f, 0, 0.01f, 0.0f, 0 }, 0.0 },
    { "top_p_ties", 200, 200, { 1.0f, 0, 0.5f, 0.0f, 0 }, 1.0 },
    { "top_p_off", 200, 200, { 1.0f, 0, 1.0f, 0.0f, 0 }, 0.0 },
    { "top_k_p", 997, 997, { 1.3f, 50, 0.8f, 0.0f, 0 }, 0.0 },
    { "min_p", 200, 200, { 1.0f, 0, 0.0f, 0.1f, 0 }, 0.0 },
    { "all", 997, 1001, { 0.9f, 60, 0.95f, 0.05f, 0 }, 0.0 },
};

enum { PROBS_ROWS = 3 };

static void run_probs(const test_device *d, const probs_case *c)
{
    test_random random = { 10 };
    int32_t ld = c->n_probs + 3, dst[PROBS_ROWS] = { 2, 0, 3 }, src[PROBS_ROWS] = { 1, 2, 1 };
    size_t n = (size_t)ld * 4;
    double *v = test_values(&random, n, 6.0), *want = calloc(n, sizeof *want);
    for (size_t i = 0; i < n; i++) {
        if (c->step > 0.0) v[i] = c->step * nearbyint(v[i] / c->step);
        v[i] = test_round(v[i], F32);
        want[i] = NAN;
    }
    spec_sampling s[PROBS_ROWS] = { c->s, c->s, c->s };
    s[2].temperature *= 1.5f; /* rows have their own parameters */
    for (int32_t i = 0; i < PROBS_ROWS; i++) {
        double *row = want + dst[i] * ld;
        ref_probs(row, v + src[i] * ld, c->n_valid, &s[i]);
        for (int32_t j = c->n_valid; j < c->n_probs; j++) row[j] = 0.0;
    }
    test_buffer logits = test_buffer_from(d, v, n, F32), probs = test_buffer_new(d, n, F32);
    spec_queue *q = test_row_queue(d, ld);
    spec_probs_args a = { logits.data, ld, c->n_valid, probs.data, ld, c->n_probs, PROBS_ROWS, src, dst, s };
    test_ok(d->ops->probs(q, &a), "distribution");
    test_ok(d->ops->sync(q), "sync");
    double *got = test_read(&probs);
    test_compare(d, c->name, "distribution", got, want, 4, ld, 1e-5);
    for (int32_t i = 0; i < PROBS_ROWS; i++)
        for (int32_t j = 0; j < c->n_probs; j++) /* the support is exact */
            if ((got[dst[i] * ld + j] > 0.0) != (want[dst[i] * ld + j] > 0.0) && want[dst[i] * ld + j] < 1e-30)
                fail_msg("%s %s: distribution(%d, %d) is %g, expected %g", d->name, c->name, i, j, got[dst[i] * ld + j],
                         want[dst[i] * ld + j]);
    free(got);
    d->ops->queue_close(q);
    test_buffer_free(&probs);
    test_buffer_free(&logits);
    free(want);
    free(v);
}

static void each_probs(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(distributions); i++) run_probs(d, &distributions[i]);
}

static void test_probs(void **state)
{
    (void)state;
    test_each_device(each_probs);
}

/* Logits that are not finite, in rows of four and eight of them more. */
typedef struct odd_row {
    const char *name;
    float logits[4], probs[4]; /* the others are `rest`, and have probability 0 */
    float rest;
    spec_sampling s;
} odd_row;

#define INF INFINITY
static const odd_row odd_rows[] = {
    { "infinite", { 1, INF, 2, INF }, { 0, .5f, 0, .5f }, 3, { 1.0f, 0, 0.0f, 0.0f, 0 } },
    { "infinite, top_k", { 1, INF, 2, INF }, { 0, 1, 0, 0 }, 3, { 1.0f, 1, 0.0f, 0.0f, 0 } },
    { "infinite, top_p", { 1, INF, 2, INF }, { 0, .5f, 0, .5f }, 3, { 1.0f, 0, 0.9f, 0.0f, 0 } },
    { "infinite, small top_p", { 1, INF, 2, INF }, { 0, 1, 0, 0 }, -INF, { 0.5f, 0, 0.2f, 0.0f, 0 } },
    { "infinite, top_k and top_p", { NAN, INF, 2, INF }, { 0, .5f, 0, .5f }, 3, { 1.0f, 5, 0.9f, 0.0f, 0 } },
    { "infinite, min_p", { 1, INF, 2, INF }, { 0, .5f, 0, .5f }, NAN, { 1.0f, 0, 0.0f, 0.1f, 0 } },
    { "one number", { -INF, 7, NAN, -INF }, { 0, 1, 0, 0 }, -INF, { 1.0f, 0, 0.0f, 0.0f, 0 } },
    { "one number, top_p", { -INF, 7, NAN, -INF }, { 0, 1, 0, 0 }, -INF, { 1.0f, 0, 0.9f, 0.0f, 0 } },
    { "one number, all", { -INF, 7, NAN, -INF }, { 0, 1, 0, 0 }, NAN, { 1.0f, 6, 0.9f, 0.1f, 0 } },
    { "nothing", { -INF, NAN, -INF, -INF }, { 0 }, -INF, { 1.0f, 0, 0.0f, 0.0f, 0 } },
    { "nothing, top_k", { -INF, NAN, -INF, -INF }, { 0 }, -INF, { 1.0f, 2, 0.0f, 0.0f, 0 } },
    { "nothing, top_p", { -INF, NAN, -INF, -INF }, { 0 }, -INF, { 1.0f, 0, 0.9f, 0.0f, 0 } },
    { "nothing, min_p", { -INF, NAN, -INF, -INF }, { 0 }, -INF, { 1.0f, 0, 0.0f, 0.1f, 0 } },
    { "no number", { NAN, NAN, NAN, NAN }, { 0 }, NAN, { 1.0f, 0, 0.0f, 0.0f, 0 } },
    { "no number, all", { NAN, NAN, NAN, NAN }, { 0 }, NAN, { 1.0f, 6, 0.9f, 0.1f, 0 } },
};

static void run_odd(const test_device *d, const odd_row *c)
{
    enum { N = 12 };
    const int32_t row = 0;
    double v[N], want[N] = { 0 };
    for (int32_t i = 0; i < N; i++) v[i] = (double)(i < 4 ? c->logits[i] : c->rest);
    for (int32_t i = 0; i < 4; i++) want[i] = (double)c->probs[i];
    test_buffer logits = test_buffer_from(d, v, N, F32), probs = test_buffer_new(d, N, F32);
    spec_queue *q = test_row_queue(d, N);
    const spec_probs_args a = { logits.data, N, N, probs.data, N, N, 1, &row, &row, &c->s };
    test_ok(d->ops->probs(q, &a), "distribution");
    test_ok(d->ops->sync(q), "sync");
    double *got = test_read(&probs);
    test_compare(d, c->name, "distribution", got, want, 1, N, 1e-7);
    free(got);
    d->ops->queue_close(q);
    test_buffer_free(&probs);
    test_buffer_free(&logits);
}

static void each_odd(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(odd_rows); i++) run_odd(d, &odd_rows[i]);
}

static void test_odd_probs(void **state)
{
    (void)state;
    test_each_device(each_odd);
}

/* Rows of a real vocabulary's length, in one call and alone: the set that is kept is the shortest prefix of the
 * sorted row, to within 1e-7 of the mass, and a row's bits do not depend on the others. */
/* A call of BIG_CALL rows, each several times: a device may do it another way than one of a single row. */
enum { BIG_N = 128257, BIG_PROBS = BIG_N + 7, BIG_ROWS = 7, BIG_CALL = 6 * BIG_ROWS };

typedef struct big_row {
    double scale, step; /* of the logits; step > 0: they are multiples of it */
    spec_sampling s;
} big_row;

static const big_row big_rows[BIG_ROWS] = {
    { 12.0, 0.0, { 1.0f, 0, 0.9f, 0.0f, 0 } },   { 3.0, 0.0, { 1.0f, 0, 0.9f, 0.0f, 0 } },
    { 8.0, 0.5, { 1.0f, 0, 0.9f, 0.0f, 0 } },    { 0.0, 0.0, { 1.0f, 0, 0.9f, 0.0f, 0 } }, /* all equal */
    { 12.0, 0.0, { 0.7f, 1000, 0.8f, 0.0f, 0 } }, { 12.0, 0.25, { 1.3f, 5000, 0.0f, 0.01f, 0 } },
    { 12.0, 0.0, { 1.0f, 0, 0.0f, 0.0f, 0 } },
};

typedef struct ranked {
    float v;
    int32_t id;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    return x->v != y->v ? (x->v < y->v) - (x->v > y->v) : (x->id > y->id) - (x->id < y->id);
}

static void check_big(const test_device *d, int32_t row, const float *v, const float *probs)
{
    const spec_sampling *s = &big_rows[row].s;
    ranked *sorted = calloc(BIG_N, sizeof *sorted);
    double mass = 0.0, kept = 0.0, total = 0.0;
    for (int32_t i = 0; i < BIG_N; i++) sorted[i] = (ranked){ v[i], i };
    qsort(sorted, BIG_N, sizeof *sorted, by_rank);
    const double top = (double)sorted[0].v;
    int32_t n = s->top_k > 0 ? s->top_k : BIG_N, n_kept = 0;
    for (int32_t r = 0; r < n; r++) mass += exp(((double)sorted[r].v - top) / (double)s->temperature);
    while (n_kept < n && probs[sorted[n_kept].id] > 0.0f) n_kept++;
    for (int32_t r = n_kept; r < BIG_N; r++)
        if (probs[sorted[r].id] > 0.0f) fail_msg("%s: big row %d: entry %d is kept, %d is not", d->name, row, r, n_kept);
    for (int32_t r = 0; r < n_kept; r++) {
        const double w = exp(((double)sorted[r].v - top) / (double)s->temperature);
        if (s->top_p > 0.0f && kept >= (double)s->top_p * mass + 1e-7 * mass)
            fail_msg("%s: big row %d: %d of the row are kept, but %d suffice", d->name, row, n_kept, r);
        kept += w;
        if (w < (double)s->min_p * (1.0 - 1e-6)) fail_msg("%s: big row %d: entry %d is below min-p", d->name, row, r);
    }
    if (s->top_p > 0.0f && kept < (double)s->top_p * mass - 1e-7 * mass)
        fail_msg("%s: big row %d: %d entries have only %.9f of the mass", d->name, row, n_kept, kept / mass);
    if (s->top_p <= 0.0f && n_kept < n && /* the first that is dropped */
        exp(((double)sorted[n_kept].v - top) / (double)s->temperature) > (double)s->min_p * (1.0 + 1e-6))
        fail_msg("%s: big row %d: entry %d is dropped", d->name, row, n_kept);
    for (int32_t r = 0; r < n_kept; r++) {
        const double want = exp(((double)sorted[r].v - top) / (double)s->temperature) / kept;
        const double got = (double)probs[sorted[r].id];
        total += got;
        if (fabs(got - want) > 1e-5 * want)
            fail_msg("%s: big row %d: distribution of entry %d is %g, expected %g", d->name, row, r, got, want);
    }
    if (fabs(total - 1.0) > 1e-5) fail_msg("%s: big row %d sums to %.9f", d->name, row, total);
    for (int32_t i = BIG_N; i < BIG_PROBS; i++) assert_true(probs[i] == 0.0f);
    free(sorted);
}

static void each_big_probs(test_device *d)
{
    test_random random = { 14 };
    double *v = calloc((size_t)BIG_ROWS * BIG_N, sizeof *v);
    spec_sampling s[BIG_CALL];
    int32_t src[BIG_CALL], dst[BIG_CALL];
    for (int32_t i = 0; i < BIG_CALL; i++) src[i] = i % BIG_ROWS, dst[i] = i, s[i] = big_rows[i % BIG_ROWS].s;
    for (int32_t r = 0; r < BIG_ROWS; r++) {
        const big_row *b = &big_rows[r];
        for (int32_t i = 0; i < BIG_N; i++) { /* about normal */
            double x = b->scale * (test_signed(&random) + test_signed(&random) + test_signed(&random)) / 3.0;
            v[(size_t)r * BIG_N + (size_t)i] = test_round(b->step > 0.0 ? b->step * nearbyint(x / b->step) : x, F32);
        }
    }
    test_buffer logits = test_buffer_from(d, v, (size_t)BIG_ROWS * BIG_N, F32);
    test_buffer together = test_buffer_new(d, (size_t)BIG_CALL * BIG_PROBS, F32),
                alone = test_buffer_new(d, BIG_PROBS, F32);
    spec_queue *q = test_row_queue(d, BIG_PROBS);
    spec_probs_args a = { .logits = logits.data, .ld = BIG_N, .n_valid = BIG_N, .probs = together.data, .ld_probs = BIG_PROBS,
                        .n_probs = BIG_PROBS, .n_row = BIG_CALL, .host_src = src, .host_dst = dst, .host_sampling = s };
    test_ok(d->ops->probs(q, &a), "distribution");
    test_ok(d->ops->sync(q), "sync");
    float *probs = test_read_raw(&together), *first = test_read_raw(&logits);
    for (int32_t r = 0; r < BIG_ROWS; r++) {
        check_big(d, r, first + (size_t)r * BIG_N, probs + (size_t)r * BIG_PROBS);
        a.probs = alone.data, a.n_row = 1, a.host_src = &src[r], a.host_dst = &dst[0], a.host_sampling = &s[r];
        test_ok(d->ops->probs(q, &a), "distribution");
        test_ok(d->ops->sync(q), "sync");
        float *one = test_read_raw(&alone);
        for (int32_t i = r; i < BIG_CALL; i += BIG_ROWS)
            assert_memory_equal(one, probs + (size_t)i * BIG_PROBS, BIG_PROBS * sizeof *one);
        free(one);
    }
    free(first);
    free(probs);
    d->ops->queue_close(q);
    test_buffer_free(&alone);
    test_buffer_free(&together);
    test_buffer_free(&logits);
    free(v);
}

static void test_big_probs(void **state)
{
    (void)state;
    test_each_device(each_big_probs);
}

/* --- acceptance --- */

/* Random distributions (some with zeros), candidates drawn without replacement by hand, uniforms anywhere: choices and tokens
 * must be those of the reference. A draw within rounding of a border could go either way: such rows are left out. */
enum { A_ROWS = 200, A_N = 40, A_DISTRIBUTIONS = 16, A_CANDIDATES = 6 };

typedef struct accept_data {
    bool repeat;   /* candidates may come again */
    double *p, *q; /* [A_DISTRIBUTIONS][A_N] */
    int32_t p_row[A_ROWS], q_row[A_ROWS], first[A_ROWS + 1], candidate[A_ROWS * A_CANDIDATES];
    float u[A_ROWS * A_CANDIDATES], u_last[A_ROWS];
} accept_data;

static double *random_distributions(test_random *random)
{
    double *v = calloc(A_DISTRIBUTIONS * A_N, sizeof *v);
    for (int32_t r = 0; r < A_DISTRIBUTIONS; r++) {
        double total = 0.0;
        for (int32_t i = 0; i < A_N; i++) {
            double x = test_uniform(random);
            v[r * A_N + i] = x < 0.2 ? 0.0 : x * x * x;
            total += v[r * A_N + i];
        }
        for (int32_t i = 0; i < A_N; i++) v[r * A_N + i] = test_round(v[r * A_N + i] / total, F32);
    }
    return v;
}

static accept_data *make_accept(test_random *random, bool repeat)
{
    accept_data *t = calloc(1, sizeof *t);
    t->repeat = repeat;
    t->p = random_distributions(random);
    t->q = random_distributions(random);
    for (int32_t r = 0, n = 0; r < A_ROWS; r++) {
        int32_t count = r % (A_CANDIDATES + 1);
        t->p_row[r] = test_below(random, A_DISTRIBUTIONS);
        t->q_row[r] = r % 3 == 0 ? -1 : test_below(random, A_DISTRIBUTIONS);
        t->first[r] = n;
        for (int32_t j = 0; j < count; j++, n++) {
            bool again = true;
            while (again) { /* distinct within the row, except now and then */
                again = false;
                t->candidate[n] = test_below(random, A_N);
                for (int32_t k = t->first[r]; k < n; k++) again = again || t->candidate[k] == t->candidate[n];
                again = again && r % 10 != 7 && !repeat;
            }
            t->u[n] = (float)test_uniform(random);
        }
        t->u_last[r] = (float)test_uniform(random);
        t->first[r + 1] = n;
    }
    return t;
}

/* The rule with replacement: R = norm(max(R - D, 0)) after every rejection, D as it is. q NULL: D the point mass. */
static int32_t reference_repeat(int32_t *token, double *p, const double *q, const int32_t *candidates, int32_t count,
                                const float *u, double u_last)
{
    for (int32_t j = 0; j < count; j++) {
        const int32_t y = candidates[j];
        double total = 0.0;
        if (q && q[y] == 0.0) continue;
        if ((double)u[j] * (q ? q[y] : 1.0) < p[y]) {
            *token = y;
            return j;
        }
        for (int32_t i = 0; i < A_N; i++) {
            p[i] = fmax(p[i] - (q ? q[i] : i == y ? 1.0 : 0.0), 0.0);
            total += p[i];
        }
        for (int32_t i = 0; i < A_N && total > 0.0; i++) p[i] /= total;
    }
    *token = ref_draw(p, A_N, u_last);
    return -1;
}

static int32_t reference(const accept_data *t, int32_t r, int32_t *token, double nudge)
{
    double p[A_N], q[A_N];
    memcpy(p, t->p + t->p_row[r] * A_N, sizeof p);
    if (t->q_row[r] >= 0) memcpy(q, t->q + t->q_row[r] * A_N, sizeof q);
    float u[A_CANDIDATES];
    int32_t first = t->first[r], count = t->first[r + 1] - first;
    for (int32_t j = 0; j < count; j++) u[j] = (float)((double)t->u[first + j] * (1.0 + nudge));
    const double u_last = fmin((double)t->u_last[r] * (1.0 + nudge), 0.9999999);
    if (t->repeat)
        return reference_repeat(token, p, t->q_row[r] >= 0 ? q : NULL, t->candidate + first, count, u, u_last);
    return ref_accept(token, p, t->q_row[r] >= 0 ? q : NULL, A_N, t->candidate + first, count, u, u_last);
}

static void run_accept(const test_device *d, bool repeat)
{
    test_random random = { 11 };
    accept_data *t = make_accept(&random, repeat);
    int32_t choice[A_ROWS], token[A_ROWS], checked = 0;
    test_buffer p = test_buffer_from(d, t->p, A_DISTRIBUTIONS * A_N, F32), q = test_buffer_from(d, t->q, A_DISTRIBUTIONS * A_N, F32);
    spec_queue *queue = test_row_queue(d, A_N);
    for (int32_t r = 0; r < A_ROWS; r++) { /* one by one, since rows of p and q may be overwritten */
        int32_t count = t->first[r + 1] - t->first[r], ends[2] = { 0, count };
        spec_accept_args a = { .p = p.data,
                               .q = q.data,
                               .ld_p = A_N,
                               .ld_q = A_N,
                               .n_vocab = A_N,
                               .n_row = 1,
                               .n_candidate = count,
                               .repeat = repeat,
                               .host_p_row = &t->p_row[r],
                               .host_q_row = &t->q_row[r],
                               .host_first_candidate = ends,
                               .host_candidate = t->candidate + t->first[r],
                               .host_u = t->u + t->first[r],
                               .host_u_last = &t->u_last[r],
                               .host_out_choice = &choice[r],
                               .host_out_token = &token[r] };
        test_write(&p, t->p);
        test_write(&q, t->q);
        test_ok(d->ops->accept(queue, &a), "accept");
        test_ok(d->ops->sync(queue), "sync");
        if (!repeat) continue;
        double *left = test_read(&q); /* D never changes */
        assert_memory_equal(left, t->q, A_DISTRIBUTIONS * A_N * sizeof *left);
        free(left);
    }
    for (int32_t r = 0; r < A_ROWS; r++) {
        int32_t want_token, low_token, high_token, want = reference(t, r, &want_token, 0.0);
        int32_t low = reference(t, r, &low_token, -1e-5), high = reference(t, r, &high_token, 1e-5);
        if (low != want || high != want || low_token != want_token || high_token != want_token) continue;
        checked++;
        if (choice[r] != want || (want < 0 && token[r] != want_token))
            fail_msg("%s%s: row %d: choice %d, token %d; expected %d, %d", d->name, repeat ? " repeat" : "", r,
                     choice[r], token[r], want, want_token);
    }
    assert_true(checked > A_ROWS * 9 / 10);
    d->ops->queue_close(queue);
    test_buffer_free(&q);
    test_buffer_free(&p);
    free(t->p);
    free(t->q);
    free(t);
}

static void each_accept(test_device *d)
{
    run_accept(d, false);
    run_accept(d, true);
}

static void test_accept(void **state)
{
    (void)state;
    test_each_device(each_accept);
}

/* Rejections that leave less than rounding: R is then p without the tokens rejected so far. */
static void each_nothing_left(test_device *d)
{
    enum { N = 4 };
    static const double p[N] = { 0.5 - 1.0 / (1 << 25), 0.5, 1e-13, 0.0 }, q[N] = { 0.5, 0.5, 0.0, 0.0 };
    static const int32_t row = 0, none = -1, ends[] = { 0, 1 }, candidate = 0;
    static const float u = 1.0f - 1.0f / (1 << 24), u_last[] = { 0.0f, 0.5f, 0.999f };
    test_buffer bp = test_buffer_from(d, p, N, F32), bq = test_buffer_from(d, q, N, F32);
    spec_queue *queue = test_row_queue(d, N);
    for (int32_t i = 0; i < 6; i++) {
        int32_t choice = 7, token = 7;
        spec_accept_args a = { .p = bp.data,
                               .q = bq.data,
                               .ld_p = N,
                               .ld_q = N,
                               .n_vocab = N,
                               .n_row = 1,
                               .n_candidate = 1,
                               .repeat = i / 3,
                               .host_p_row = &row,
                               .host_q_row = &row,
                               .host_first_candidate = ends,
                               .host_candidate = &candidate,
                               .host_u = &u,
                               .host_u_last = &u_last[i % 3],
                               .host_out_choice = &choice,
                               .host_out_token = &token };
        test_write(&bp, p);
        test_write(&bq, q);
        test_ok(d->ops->accept(queue, &a), "accept");
        test_ok(d->ops->sync(queue), "sync");
        if (choice != -1 || token != 1) fail_msg("%s: nothing left: choice %d, token %d", d->name, choice, token);
        a.host_q_row = &none; /* point masses take the token out, whatever is left */
        test_write(&bp, p);
        test_ok(d->ops->accept(queue, &a), "accept");
        test_ok(d->ops->sync(queue), "sync");
        if (choice != -1 || token != 1) fail_msg("%s: point mass: choice %d, token %d", d->name, choice, token);
    }
    d->ops->queue_close(queue);
    test_buffer_free(&bq);
    test_buffer_free(&bp);
}

static void test_accept_nothing_left(void **state)
{
    (void)state;
    test_each_device(each_nothing_left);
}

/* The fixture of algorithms.md 3.8, three candidates: acceptance probability 0.99348 when they are drawn without
 * replacement and 0.93002 with, and the emitted distribution is p. Rows in one call, each with its own copies of p and q. */
static void run_fixture(const test_device *d, bool repeat, double acceptance)
{
    enum { N = 5, ROWS = 4000, K = 3 };
    static const double p[N] = { .22, .08, .30, .25, .15 }, q[N] = { .30, .24, .20, .16, .10 };
    test_random random = { 12 };
    double *ps = calloc(ROWS * N, sizeof *ps), *qs = calloc(ROWS * N, sizeof *qs);
    int32_t *ints = calloc(ROWS * 6 + 1, sizeof *ints), candidate[ROWS * K], *rows = ints, *first = ints + ROWS;
    int32_t *choice = ints + 2 * ROWS + 1, *token = ints + 3 * ROWS + 1, accepted = 0, count[N] = { 0 };
    float u[ROWS * K], u_last[ROWS];
    for (int32_t r = 0; r < ROWS; r++) {
        double left[N];
        memcpy(ps + r * N, p, sizeof p);
        memcpy(qs + r * N, q, sizeof q);
        memcpy(left, q, sizeof q);
        rows[r] = r;
        first[r] = r * K;
        for (int32_t j = 0; j < K; j++) {
            candidate[r * K + j] = ref_draw(left, N, test_uniform(&random));
            if (!repeat) left[candidate[r * K + j]] = 0.0;
            u[r * K + j] = (float)test_uniform(&random);
        }
        u_last[r] = (float)test_uniform(&random);
    }
    first[ROWS] = ROWS * K;
    test_buffer bp = test_buffer_from(d, ps, ROWS * N, F32), bq = test_buffer_from(d, qs, ROWS * N, F32);
    spec_queue *queue = test_row_queue(d, N);
    spec_accept_args a = { .p = bp.data,
                           .q = bq.data,
                           .ld_p = N,
                           .ld_q = N,
                           .n_vocab = N,
                           .n_row = ROWS,
                           .n_candidate = ROWS * K,
                           .repeat = repeat,
                           .host_p_row = rows,
                           .host_q_row = rows,
                           .host_first_candidate = first,
                           .host_candidate = candidate,
                           .host_u = u,
                           .host_u_last = u_last,
                           .host_out_choice = choice,
                           .host_out_token = token };
    test_ok(d->ops->accept(queue, &a), "accept");
    test_ok(d->ops->sync(queue), "sync");
    for (int32_t r = 0; r < ROWS; r++) {
        accepted += choice[r] >= 0;
        count[choice[r] >= 0 ? candidate[r * K + choice[r]] : token[r]]++;
    }
    /* chi-square with 4 degrees of freedom: 18.5 is exceeded with probability 0.001 (the seed is fixed) */
    double chi = 0.0;
    for (int32_t i = 0; i < N; i++) chi += pow(count[i] - ROWS * p[i], 2.0) / (ROWS * p[i]);
    if (chi > 18.5) fail_msg("%s: chi-square %g", d->name, chi);
    if (fabs(accepted / (double)ROWS - acceptance) > 3.5 * sqrt(acceptance * (1.0 - acceptance) / ROWS)) /* 3.5 sigma */
        fail_msg("%s: %d of %d accepted", d->name, accepted, ROWS);
    d->ops->queue_close(queue);
    test_buffer_free(&bq);
    test_buffer_free(&bp);
    free(ints);
    free(qs);
    free(ps);
}

static void each_fixture(test_device *d)
{
    run_fixture(d, false, 0.99348);
    run_fixture(d, true, 0.93002);
}

static void test_accept_fixture(void **state)
{
    (void)state;
    test_each_device(each_fixture);
}

/* --- log-probabilities --- */

static void each_logprob(test_device *d)
{
    enum { ROWS = 3, N = 501, LD = 512, TOP = 20 };
    static const int32_t row[ROWS] = { 2, 0, 2 }, token[ROWS] = { 17, 500, 0 };
    test_random random = { 13 };
    double *v = test_values(&random, ROWS * LD, 8.0), want[ROWS], want_top[ROWS * TOP], got_d[ROWS * TOP];
    float got[ROWS], got_top[ROWS * TOP];
    int32_t top[ROWS * TOP];
    for (int32_t i = 0; i < ROWS * LD; i++) v[i] = test_round(nearbyint(v[i] * 4.0) / 4.0, F32); /* ties */
    test_buffer b = test_buffer_from(d, v, ROWS * LD, F32);
    spec_queue *q = test_row_queue(d, LD);
    spec_logprob_args a = { b.data, LD, N, ROWS, TOP, row, token, got, top, got_top };
    test_ok(d->ops->logprob(q, &a), "logprob");
    test_ok(d->ops->sync(q), "sync");
    for (int32_t r = 0; r < ROWS; r++) {
        const double *x = v + row[r] * LD;
        double sum = 0.0, last = INFINITY;
        for (int32_t i = 0; i < N; i++) sum += exp(x[i]);
        want[r] = x[token[r]] - log(sum);
        for (int32_t k = 0, id = -1; k < TOP; k++) {
            int32_t best = -1;
            for (int32_t i = 0; i < N; i++)
                if ((x[i] < last || (x[i] == last && i > id)) && (best < 0 || x[i] > x[best])) best = i;
            assert_int_equal(top[r * TOP + k], best);
            want_top[r * TOP + k] = x[best] - log(sum);
            id = best;
            last = x[best];
        }
    }
    for (int32_t i = 0; i < ROWS * TOP; i++) got_d[i] = (double)got_top[i];
    test_compare(d, "logprob", "top", got_d, want_top, ROWS, TOP, 1e-5);
    for (int32_t i = 0; i < ROWS; i++) got_d[i] = (double)got[i];
    test_compare(d, "logprob", "logprob", got_d, want, 1, ROWS, 1e-5);
    d->ops->queue_close(q);
    test_buffer_free(&b);
    free(v);
}

static void test_logprob(void **state)
{
    (void)state;
    test_each_device(each_logprob);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_argmax),
                                        cmocka_unit_test(test_gather),
                                        cmocka_unit_test(test_probs),
                                        cmocka_unit_test(test_odd_probs),
                                        cmocka_unit_test(test_big_probs),
                                        cmocka_unit_test(test_accept),
                                        cmocka_unit_test(test_accept_nothing_left),
                                        cmocka_unit_test(test_accept_fixture),
                                        cmocka_unit_test(test_logprob) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
