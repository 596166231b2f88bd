/* test_op_kv.c - rope_kv (norms, rotation, writing of K and V) and kv_commit (compaction of accepted paths). */
#include <math.h>

#include "tests/ref_ops.h"
#include "tests/test.h"

#define F32 SPEC_DTYPE_F32
#define BF16 SPEC_DTYPE_BF16
#define F16 SPEC_DTYPE_F16

static const int32_t chain[] = { -1, 0, 1, 2, 3 };
static const int32_t bush[] = { -1, 0, 1, 1, 0, 4, 0 };
static const int32_t path_far[] = { 0, 4, 5 };
static const int32_t path_root[] = { 0 };
static const int32_t path_mixed[] = { 0, 1, 3 };

/* Sequences of the cases. */
static const test_seq one[] = { { .slot = 0, .n_past = 5, .n_node = 1, .parent = chain } };
static const test_seq chain_at_0[] = { { .slot = 0, .n_past = 0, .n_node = 5, .parent = chain } };
static const test_seq tree[] = { { .slot = 1, .parity = 1, .n_past = 61, .n_replay = 3, .path = path_far,
                                   .n_node = 7, .parent = bush } };
static const test_seq fed[] = { { .slot = 2, .n_past = 130, .n_node = 7, .n_fed = 3, .parent = bush } };
static const test_seq several[] = { { .slot = 3, .n_past = 62, .n_replay = 3, .path = path_far, .n_node = 7,
                                      .parent = bush },
                                    { .slot = 0, .parity = 1, .n_past = 9, .n_replay = 1, .path = path_root,
                                      .n_node = 1, .parent = chain },
                                    { .slot = 5, .parity = 1, .n_past = 200, .n_replay = 3, .path = path_mixed,
                                      .n_node = 5, .n_fed = 2, .parent = chain } };

static const test_seq flush[] = { { .slot = 1, .parity = 1, .n_past = 61, .n_replay = 3, .path = path_far } };
static const test_seq flush_some[] = { { .slot = 3, .n_past = 62, .n_replay = 3, .path = path_far },
                                       { .slot = 5, .parity = 1, .n_past = 200, .n_node = 5, .parent = chain },
                                       { .slot = 0, .n_past = 9, .n_replay = 3, .path = path_mixed } };

/* Element (slot, head, i) of sequence memory `seq`. */
static size_t kv_index(int32_t seq, int32_t slot, int32_t head, int32_t i, int32_t n_head, int32_t dim)
{
    size_t page = (size_t)test_page(seq, slot / SPEC_PAGE);
    return ((page * (size_t)n_head + (size_t)head) * SPEC_PAGE + (size_t)(slot % SPEC_PAGE)) * (size_t)dim + (size_t)i;
}

static size_t kv_size(int32_t n_head, int32_t dim)
{
    return (size_t)TEST_PAGES * TEST_SEQS * (size_t)n_head * SPEC_PAGE * (size_t)dim;
}

typedef struct rope_case {
    const char *name;
    const test_seq *seqs;
    int32_t n_seq;
    int32_t n_head, n_kv_head, dim, n_rot;
    bool q_norm, k_norm;
    spec_dtype dtype;
    int32_t phase;
    double gain;
} rope_case;

static const rope_case ropes[] = {
    { "base", chain_at_0, 1, 4, 4, 16, 16, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "one_row", one, 1, 4, 4, 16, 16, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "tree_over_pages", tree, 1, 4, 4, 16, 16, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "fed", fed, 1, 4, 4, 16, 16, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "several", several, 3, 4, 4, 16, 16, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "grouped", tree, 1, 6, 2, 16, 16, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "partial", tree, 1, 4, 2, 16, 6, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "no_rotation", tree, 1, 4, 2, 16, 0, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "odd_dim", tree, 1, 3, 1, 15, 10, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "dim_128", several, 3, 2, 1, 128, 128, false, false, F32, SPEC_PHASE_DECODE, 0 },
    { "q_norm", tree, 1, 4, 2, 16, 16, true, false, F32, SPEC_PHASE_DECODE, 0 },
    { "qk_norm", several, 3, 4, 2, 32, 32, true, true, F32, SPEC_PHASE_DECODE, 0 },
    { "bf16", several, 3, 4, 2, 32, 32, true, true, BF16, SPEC_PHASE_DECODE, 0 },
    { "f16", several, 3, 4, 2, 32, 32, false, false, F16, SPEC_PHASE_DECODE, 0 },
    { "prefill", chain_at_0, 1, 4, 2, 16, 16, false, false, F32, SPEC_PHASE_PREFILL, 0 },
    { "gain_1", tree, 1, 4, 2, 16, 6, false, false, F32, SPEC_PHASE_DECODE, 1 },
    { "gain", tree, 1, 4, 2, 16, 6, false, false, F32, SPEC_PHASE_DECODE, 1.4 },
    { "gain_norm", several, 3, 4, 2, 32, 24, true, true, BF16, SPEC_PHASE_DECODE, 0.7 },
    { "gain_prefill", chain_at_0, 1, 2, 1, 128, 96, false, false, F16, SPEC_PHASE_PREFILL, 1.2 },
};

/* Replaces the row's q and k heads, and puts k and v where the cache has them. */
static void expect_row(const rope_case *c, double *row, double *k, double *v, const double *q_norm,
                       const double *k_norm, const double *inv_freq, int32_t seq, int32_t slot, int32_t position)
{
    for (int32_t h = 0; h < c->n_head + c->n_kv_head; h++) {
        const double *weight = h < c->n_head ? (c->q_norm ? q_norm : NULL) : (c->k_norm ? k_norm : NULL);
        ref_rope(row + h * c->dim, weight, c->dim, 1e-6, inv_freq, c->n_rot, position, c->gain > 0 ? c->gain : 1);
    }
    const double *new_k = row + c->n_head * c->dim, *new_v = new_k + c->n_kv_head * c->dim;
    for (int32_t h = 0; h < c->n_kv_head; h++) {
        for (int32_t i = 0; i < c->dim; i++) {
            k[kv_index(seq, slot, h, i, c->n_kv_head, c->dim)] = new_k[h * c->dim + i];
            v[kv_index(seq, slot, h, i, c->n_kv_head, c->dim)] = new_v[h * c->dim + i];
        }
    }
}

static void expect_rope(const rope_case *c, double *qkv, double *k, double *v, const double *q_norm,
                        const double *k_norm, const double *inv_freq)
{
    int32_t width = (c->n_head + 2 * c->n_kv_head) * c->dim, row = 0, path[TEST_NODES];
    for (int32_t i = 0; i < c->n_seq; i++) {
        const test_seq *s = &c->seqs[i];
        for (int32_t node = s->n_fed; node < s->n_node; node++, row++)
            expect_row(c, qkv + row * width, k, v, q_norm, k_norm, inv_freq, s->slot, s->n_past + node,
                       s->n_past + test_path(s, node, path) - 1);
    }
}

static void run_rope(const test_device *d, const rope_case *c)
{
    test_random random = { 4 };
    spec_step_block *step = test_step(c->phase, c->seqs, c->n_seq, 0);
    int32_t width = (c->n_head + 2 * c->n_kv_head) * c->dim, rows = step->n_row;
    size_t n = (size_t)rows * (size_t)width, n_kv = kv_size(c->n_kv_head, c->dim);
    double *qkv = test_values(&random, n, 1.0), *q_norm = test_values(&random, (size_t)c->dim, 2.0);
    double *k_norm = test_values(&random, (size_t)c->dim, 2.0), inv_freq[64];
    double *k = calloc(n_kv, sizeof *k), *v = calloc(n_kv, sizeof *v);
    for (int32_t i = 0; i < c->n_rot / 2; i++) inv_freq[i] = (double)(float)pow(10000.0, -2.0 * i / c->n_rot);
    test_round_all(qkv, n, F32);
    test_round_all(q_norm, (size_t)c->dim, F32);
    test_round_all(k_norm, (size_t)c->dim, F32);
    for (size_t i = 0; i < n_kv; i++) k[i] = v[i] = NAN; /* what is not written stays */
    test_buffer bq = test_buffer_from(d, qkv, n, F32);
    test_buffer bk = test_buffer_new(d, n_kv, c->dtype), bv = test_buffer_new(d, n_kv, c->dtype);
    test_buffer bqn = test_floats(d, c->q_norm ? q_norm : NULL, (size_t)c->dim);
    test_buffer bkn = test_floats(d, c->k_norm ? k_norm : NULL, (size_t)c->dim);
    test_buffer bf = test_floats(d, inv_freq, (size_t)c->n_rot / 2);
    expect_rope(c, qkv, k, v, q_norm, k_norm, inv_freq);
    spec_op op = { .kind = SPEC_OP_ROPE_KV };
    op.u.rope_kv = (spec_rope_kv_args){ .qkv = test_view(&bq, width), .n_head = c->n_head, .q_norm = bqn.data,
                                        .k_norm = bkn.data, .eps = 1e-6f, .inv_freq = bf.data, .n_rot = c->n_rot,
                                        .kv = { bk.data, bv.data, c->dtype, TEST_PAGES * TEST_SEQS, c->n_kv_head, c->dim },
                                        .gain = (float)c->gain };
    if (test_can(d, c->name, &op)) {
        test_run(d, &op, step, TEST_NODES);
        double *gq = test_read(&bq), *gk = test_read(&bk), *gv = test_read(&bv);
        for (int32_t r = 0; r < rows; r++) /* k and v in the row itself may change */
            test_compare(d, c->name, "q", gq + r * width, qkv + r * width, c->n_head, c->dim, test_tolerance(F32));
        test_compare(d, c->name, "k", gk, k, (int32_t)(n_kv / (size_t)c->dim), c->dim, test_tolerance(c->dtype));
        test_compare(d, c->name, "v", gv, v, (int32_t)(n_kv / (size_t)c->dim), c->dim, test_tolerance(c->dtype));
        free(gv);
        free(gk);
        free(gq);
    }
    test_buffer_free(&bf);
    test_buffer_free(&bkn);
    test_buffer_free(&bqn);
    test_buffer_free(&bv);
    test_buffer_free(&bk);
    test_buffer_free(&bq);
    free(v);
    free(k);
    free(k_norm);
    free(q_norm);
    free(qkv);
    free(step);
}

static void each_rope(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(ropes); i++) run_rope(d, &ropes[i]);
}

static void test_rope_kv(void **state)
{
    (void)state;
    test_each_device(each_rope);
}

/* --- kv_commit --- */

enum { LAYERS = 3, MAX_DIM = 32 };

typedef struct commit_case {
    const char *name;
    const test_seq *seqs;
    int32_t n_seq, n_kv_head, dim;
    spec_dtype dtype;
} commit_case;

static const commit_case commits[] = {
    { "nothing", one, 1, 2, 16, F32 },        { "base", tree, 1, 2, 16, F32 },
    { "one_head_odd", tree, 1, 1, 15, F32 },  { "several", several, 3, 2, 16, F32 },
    { "bf16", several, 3, 2, 16, BF16 },      { "f16", several, 3, 2, 24, F16 },
    { "flush", flush, 1, 2, 16, F32 },        { "flush_some", flush_some, 3, 2, 16, BF16 },
};

/* After: slot n_past - n_replay + j is what slot n_past - n_replay + path[j] was. */
static void expect_commit(const commit_case *c, double *now, const double *was)
{
    for (int32_t s = 0; s < c->n_seq; s++) {
        const test_seq *q = &c->seqs[s];
        int32_t base = q->n_past - q->n_replay;
        for (int32_t j = 0; j < q->n_replay; j++)
            for (int32_t h = 0; h < c->n_kv_head; h++)
                for (int32_t i = 0; i < c->dim; i++)
                    now[kv_index(q->slot, base + j, h, i, c->n_kv_head, c->dim)] =
                        was[kv_index(q->slot, base + q->path[j], h, i, c->n_kv_head, c->dim)];
    }
}

static void run_commit(const test_device *d, const commit_case *c)
{
    test_random random = { 5 };
    spec_step_block *step = test_step(SPEC_PHASE_DECODE, c->seqs, c->n_seq, 0);
    size_t n = kv_size(c->n_kv_head, c->dim);
    double *want[2 * LAYERS];
    test_buffer b[2 * LAYERS];
    spec_kv layers[LAYERS];
    for (int32_t i = 0; i < 2 * LAYERS; i++) {
        double *was = test_values(&random, n, 1.0);
        test_round_all(was, n, c->dtype);
        b[i] = test_buffer_from(d, was, n, c->dtype);
        want[i] = calloc(n, sizeof *was);
        memcpy(want[i], was, n * sizeof *was);
        expect_commit(c, want[i], was);
        free(was);
    }
    for (int32_t i = 0; i < LAYERS; i++)
        layers[i] = (spec_kv){ b[2 * i].data, b[2 * i + 1].data, c->dtype, TEST_PAGES * TEST_SEQS, c->n_kv_head, c->dim };
    spec_op op = { .kind = SPEC_OP_KV_COMMIT, .u = { .kv_commit = { layers, LAYERS } } };
    if (test_can(d, c->name, &op)) {
        test_run(d, &op, step, TEST_NODES);
        for (int32_t i = 0; i < 2 * LAYERS; i++) {
            double *got = test_read(&b[i]);
            test_compare(d, c->name, "cache", got, want[i], (int32_t)(n / (size_t)c->dim), c->dim, 0.0);
            free(got);
        }
    }
    for (int32_t i = 0; i < 2 * LAYERS; i++) {
        test_buffer_free(&b[i]);
        free(want[i]);
    }
    free(step);
}

static void each_commit(test_device *d)
{
    for (int32_t i = 0; i < N_ELEMENTS(commits); i++) run_commit(d, &commits[i]);
}

static void test_kv_commit(void **state)
{
    (void)state;
    test_each_device(each_commit);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_rope_kv), cmocka_unit_test(test_kv_commit) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
