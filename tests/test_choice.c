/* test_choice.c - choice at run time on plain data: step costs and their files, expected emitted tokens, the choice of
 * most tokens per second, and the bandit (algorithms.md 4.7, 13, 14). */
#include "tests/test.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/engine/engine.h"
#include "tests/support_file.h"

/* ---------------------------------------------------------------------------------------- costs --- */

static double cost(const spec_cost_table *t, int32_t n)
{
    return (double)spec_cost_ms(t, n);
}

static void test_interpolation(void **state)
{
    (void)state;
    const spec_cost_table t = { .n = 4, .n_node = { 1, 5, 8, 16 }, .ms = { 10, 13, 12, 20 } }; /* falls in between */
    NEAR(cost(&t, 1), 10, 0);
    NEAR(cost(&t, 2), 10.75, 1e-6);
    NEAR(cost(&t, 5), 13, 0);
    NEAR(cost(&t, 6), 13 - 1.0 / 3, 1e-6);
    NEAR(cost(&t, 8), 12, 0);
    NEAR(cost(&t, 9), 13, 1e-6);
    NEAR(cost(&t, 16), 20, 0);
    NEAR(cost(&t, 18), 22, 1e-6);
    NEAR(cost(&t, 1016), 1020, 1e-3);
    NEAR(cost(&t, 0), 0, 0);
    NEAR(cost(&t, -3), 0, 0);
    const spec_cost_table late = { .n = 2, .n_node = { 4, 8 }, .ms = { 6, 7 } };
    NEAR(cost(&late, 1), 6, 0);
    NEAR(cost(&late, 4), 6, 0);
    NEAR(cost(&late, 12), 8, 1e-6);
    const spec_cost_table falls = { .n = 3, .n_node = { 1, 2, 4 }, .ms = { 5, 9, 7 } }; /* noise, not a distribution */
    NEAR(cost(&falls, 3), 8, 1e-6);
    NEAR(cost(&falls, 1000000), 7, 0);
    const spec_cost_table one = { .n = 1, .n_node = { 8 }, .ms = { 3 } };
    NEAR(cost(&one, 1), 3, 0);
    NEAR(cost(&one, 100), 3, 0);
    NEAR(cost(&(spec_cost_table){ .n = 0 }, 5), 0, 0);
    spec_cost_table full = { .n = 16 };
    for (int32_t i = 0; i < 16; i++) full.n_node[i] = 1 << i, full.ms[i] = (float)(1 + i);
    for (int32_t i = 0; i < 16; i++) NEAR(cost(&full, 1 << i), 1 + i, 0);
    NEAR(cost(&full, 65536), 18, 1e-6); /* 16 + 32768 / 16384 */
}

/* Two entries make a line, whatever is asked for. */
static void test_fit_two(void **state)
{
    (void)state;
    for (int32_t x = 1; x < 200; x += 7) {
        const spec_cost_table two = { .n = 2, .n_node = { x, 3 * x + 1 }, .ms = { 5, 9.3f } };
        double line[3];
        spec_cost_fit(&two, line, 1);
        NEAR(line[2], 0, 0);
        NEAR(line[0] + line[1] * x, 5, 1e-6);
    }
}

static void test_fit(void **state)
{
    (void)state;
    static const int32_t sizes[] = { 1, 2, 4, 8, 16, 32, 64, 512, 4096 };
    double k[3];
    spec_cost_table t = { .n = N_ELEMENTS(sizes) };
    memcpy(t.n_node, sizes, sizeof sizes);
    /* Coefficients that keep every value exact in float32. */
    for (int32_t i = 0; i < t.n; i++) t.ms[i] = (float)(8 + 0.25 * sizes[i]);
    for (int quadratic = 0; quadratic < 2; quadratic++) {
        spec_cost_fit(&t, k, quadratic);
        NEAR(k[0], 8, 1e-10);
        NEAR(k[1], 0.25, 1e-12);
        NEAR(k[2], 0, 1e-14);
    }
    for (int32_t i = 0; i < t.n; i++) t.ms[i] = (float)(12 + 0.5 * sizes[i] + 0.0078125 * sizes[i] * sizes[i]);
    spec_cost_fit(&t, k, 1);
    NEAR(k[0], 12, 1e-9);
    NEAR(k[1], 0.5, 1e-11);
    NEAR(k[2], 0.0078125, 1e-14);
    /* By hand: points (1, 1), (2, 3), (3, 2), (4, 6): slope 7/5, intercept -1/2; quadratic 1/2 x^2 - 11/10 x + 2. */
    const spec_cost_table hand = { .n = 4, .n_node = { 1, 2, 3, 4 }, .ms = { 1, 3, 2, 6 } };
    spec_cost_fit(&hand, k, 0);
    NEAR(k[0], -0.5, 1e-12);
    NEAR(k[1], 1.4, 1e-12);
    NEAR(k[2], 0, 0);
    spec_cost_fit(&hand, k, 1);
    NEAR(k[0], 2, 1e-12);
    NEAR(k[1], -1.1, 1e-12);
    NEAR(k[2], 0.5, 1e-12);
    /* Fewer points than coefficients. */
    spec_cost_fit(&(spec_cost_table){ .n = 2, .n_node = { 2, 4 }, .ms = { 5, 6 } }, k, 1);
    NEAR(k[0], 4, 1e-12);
    NEAR(k[1], 0.5, 1e-12);
    NEAR(k[2], 0, 0);
    spec_cost_fit(&(spec_cost_table){ .n = 1, .n_node = { 2 }, .ms = { 5 } }, k, 1);
    NEAR(k[0], 5, 0);
    NEAR(k[1], 0, 0);
    spec_cost_fit(&(spec_cost_table){ .n = 0 }, k, 1);
    NEAR(k[0], 0, 0);
    /* Counts that no table has. */
    static const int32_t counts[] = { -1, 17, INT32_MAX };
    spec_builder *sequoia;
    assert_int_equal(spec_builder_open(&sequoia, "sequoia:8", NULL), SPEC_OK);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        spec_cost_profile p = { .struct_size = sizeof p, .target = { .n_node = { 1 }, .ms = { 1 } } };
        p.target.n = counts[i];
        spec_cost_fit(&p.target, k, 1);
        NEAR(k[0], 0, 0);
        NEAR(spec_cost_ms(&p.target, INT32_MAX), 0, 0);
        assert_int_equal(spec_builder_costs(sequoia, &p), SPEC_E_INVALID);
        p.target.n = 1, p.draft.n = counts[i];
        assert_int_equal(spec_builder_costs(sequoia, &p), counts[i] < 0 ? SPEC_OK : SPEC_E_INVALID);
    }
    spec_builder_close(sequoia);
}

/* ---------------------------------------------------------------------------------------- files --- */

static char path[64];

static int open_file(void **state)
{
    (void)state;
    snprintf(path, sizeof path, "/tmp/spec-test-choice-%ld.json", (long)getpid());
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    remove(path);
    return 0;
}

static void put(const char *text, size_t n) { support_write(path, text, n); }

static const spec_cost_profile good = {
    .struct_size = sizeof(spec_cost_profile),
    .target = { .n = 3, .n_node = { 1, 7, 2147483647 }, .ms = { 0, 0.1f, 1e9f } },
    .draft = { .n = 2, .n_node = { 1, 64 }, .ms = { FLT_MIN, 1.0f / 3 } },
    .target_of = "llama in bf16, on \"cpu\", 2 threads", .draft_of = "~",
};

static void same(const spec_cost_table *a, const spec_cost_table *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->n_node, b->n_node, (size_t)a->n * sizeof *a->n_node);
    assert_memory_equal(a->ms, b->ms, (size_t)a->n * sizeof *a->ms);
}

static void round_trip(const spec_cost_profile *p)
{
    spec_cost_profile got;
    memset(&got, 0x55, sizeof got);
    got.struct_size = sizeof got;
    test_ok(spec_cost_save(p, path), "save");
    test_ok(spec_cost_load(&got, path), "load");
    same(&got.target, &p->target);
    same(&got.draft, &p->draft);
    assert_string_equal(got.target_of, p->target_of);
    assert_string_equal(got.draft_of, p->draft_of);
    assert_int_equal(got.struct_size, sizeof got);
}

static void test_round_trip(void **state)
{
    (void)state;
    test_random r = { 3 };
    round_trip(&good);
    spec_cost_profile p = { .struct_size = sizeof p };
    for (int32_t i = 0; i < 200; i++) {
        p.target.n = 1 + i % 16, p.draft.n = (i / 2) % 17;
        for (int32_t k = 0, x = 0, y = 0; k < 16; k++) {
            p.target.n_node[k] = x += 1 + test_below(&r, 100), p.draft.n_node[k] = y += 1 + test_below(&r, 100);
            p.target.ms[k] = (float)(100 * test_uniform(&r)), p.draft.ms[k] = (float)exp(70 * test_uniform(&r) - 50);
        }
        round_trip(&p);
    }
}

static void refuse_save(const spec_cost_profile *p)
{
    remove(path);
    assert_int_equal(spec_cost_save(p, path), SPEC_E_INVALID);
    assert_int_not_equal(access(path, F_OK), 0); /* nothing was written */
}

static void test_save_refused(void **state)
{
    (void)state;
    spec_cost_profile p = good;
    p.target.n = 17, refuse_save(&p);
    p.target.n = 0, refuse_save(&p);
    p.target.n = -1, refuse_save(&p);
    p = good, p.draft.n_node[1] = 1, refuse_save(&p);
    p = good, p.target.n_node[0] = 0, refuse_save(&p);
    p = good, p.draft.ms[0] = NAN, refuse_save(&p);
    p = good, p.draft.ms[0] = -1, refuse_save(&p);
    p = good, p.draft.ms[0] = INFINITY, refuse_save(&p);
    p = good, p.draft.ms[0] = 2e9f, refuse_save(&p);
    p = good, p.sequences.n = 17, refuse_save(&p);
    p = good, p.sequences = (spec_cost_table){ .n = 2, .n_node = { 4, 4 }, .ms = { 1, 2 } }, refuse_save(&p);
    p = good, p.target_of[0] = '\n', refuse_save(&p);
    p = good, p.draft_of[0] = '\x7f', refuse_save(&p);
    p = good, memset(p.draft_of, 'x', sizeof p.draft_of), refuse_save(&p);
    p = good, p.struct_size = 0, refuse_save(&p);
    assert_int_equal(spec_cost_save(NULL, path), SPEC_E_INVALID);
    assert_int_equal(spec_cost_save(&good, NULL), SPEC_E_INVALID);
    assert_int_equal(spec_cost_save(&good, "/no/such/directory/costs.json"), SPEC_E_IO);
    assert_non_null(strstr(spec_last_error(), "No such file"));
}

static void refuse_load(const char *from, spec_status want)
{
    spec_cost_profile p, before;
    memset(&p, 0x55, sizeof p);
    p.struct_size = sizeof p;
    memcpy(&before, &p, sizeof p);
    const spec_status got = spec_cost_load(&p, from);
    if (got != want) fail_msg("%s instead of %s: %s", spec_status_name(got), spec_status_name(want), spec_last_error());
    assert_memory_equal(&p, &before, sizeof p);
}

#define HEAD "{\"spec_cost_profile\": 1, "
#define X8 "xxxxxxxx"
#define X128 X8 X8 X8 X8 X8 X8 X8 X8 X8 X8 X8 X8 X8 X8 X8 X8
#define NO_DRAFT ", \"draft\": {\"n_node\": [], \"ms\": []}}"

static const char *const malformed[] = {
    "",
    "[]",
    "null",
    "{",
    "{}",
    "\xff\xfe",
    "{\"spec_cost_profile\": 1}",
    "{\"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT,
    "{\"spec_cost_profile\": 2, \"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT,
    "{\"spec_cost_profile\": 1.0, \"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [1]}}",
    HEAD "\"target\": [[1], [1]]" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [], \"ms\": []}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": 1, \"ms\": 1}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1, 2], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [0], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [-5], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1.5], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [\"1\"], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [2147483648], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [100000000000000000000], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1, 1], \"ms\": [1, 2]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [2, 1], \"ms\": [1, 2]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [-1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [NaN]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [Infinity]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [1.1e9]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [1e999]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [null]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [[1]]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17], "
         "\"ms\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"n_node\": [2], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT "x",
    HEAD "\"sequences\": {\"n_node\": [2, 1], \"ms\": [1, 2]}, \"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"target_of\": 1, \"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"draft_of\": \"a\\u0000b\", \"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"draft_of\": \"\\u00e9\", \"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT,
    HEAD "\"draft_of\": \"" X128 X128 "\", \"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT,
};

static void test_malformed(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_ELEMENTS(malformed); i++) {
        put(malformed[i], strlen(malformed[i]));
        refuse_load(path, SPEC_E_FORMAT);
    }
    static const char fits[] = HEAD "\"note\": \"mine\", \"target\": {\"n_node\": [1], \"ms\": [1]}" NO_DRAFT;
    spec_cost_profile p = { .struct_size = sizeof p };
    put(fits, sizeof fits - 1);
    test_ok(spec_cost_load(&p, path), "load"); /* so that what is refused above is refused for its own fault */
    for (size_t n = 0; n + 1 < sizeof fits; n++) {
        put(fits, n);
        refuse_load(path, SPEC_E_FORMAT);
    }
    p.struct_size = 0;
    put(fits, sizeof fits - 1);
    assert_int_equal(spec_cost_load(&p, path), SPEC_E_INVALID);
    assert_int_equal(spec_cost_load(NULL, path), SPEC_E_INVALID);
    refuse_load(NULL, SPEC_E_INVALID);
    remove(path);
    refuse_load(path, SPEC_E_IO);
    refuse_load("/tmp", SPEC_E_IO);
}

/* ------------------------------------------------------------------------------------ expectation --- */

enum { MAX_NODE = 24 };

typedef struct ranked {
    int32_t token[MAX_NODE], parent[MAX_NODE], rank[MAX_NODE];
    spec_tree tree;
} ranked;

static void ranked_open(ranked *t)
{
    *t = (ranked){ .parent = { -1 } };
    t->tree = (spec_tree){ .n = 1, .cap = MAX_NODE, .token = t->token, .parent = t->parent, .rank = t->rank };
}

static void ranked_add(ranked *t, int32_t parent)
{
    const int32_t i = t->tree.n++;
    t->parent[i] = parent;
    for (int32_t j = 1; j < i; j++) t->rank[i] += t->parent[j] == parent;
}

/* E(node) = 1 + sum over children of a[rank] E(child) */
static double expected(const ranked *t, int32_t node, const float *a, int32_t n_a)
{
    double sum = 1;
    for (int32_t c = node + 1; c < t->tree.n; c++)
        if (t->parent[c] == node && t->rank[c] < n_a) sum += (double)a[t->rank[c]] * expected(t, c, a, n_a);
    return sum;
}

static void test_expected(void **state)
{
    (void)state;
    static const float a[] = { .6f, .2f, .08f };
    test_random r = { 9 };
    ranked t;
    for (int32_t i = 0; i < 500; i++) {
        ranked_open(&t);
        const int32_t n = 1 + test_below(&r, MAX_NODE);
        while (t.tree.n < n) ranked_add(&t, test_below(&r, t.tree.n));
        NEAR(spec_expected_emitted(&t.tree, a, 3), expected(&t, 0, a, 3), 1e-12);
        t.tree.rank = NULL; /* by place */
        NEAR(spec_expected_emitted(&t.tree, a, 2), expected(&t, 0, a, 2), 1e-12);
        /* Ranks that are not the places: reversed among the root's children. */
        int32_t n_child = 0;
        for (int32_t j = 1; j < n; j++) n_child += t.parent[j] == 0;
        for (int32_t j = 1; j < n; j++)
            if (t.parent[j] == 0) t.rank[j] = n_child - 1 - t.rank[j];
        t.tree.rank = t.rank;
        NEAR(spec_expected_emitted(&t.tree, a, 3), expected(&t, 0, a, 3), 1e-12);
    }
    NEAR(spec_expected_emitted(&t.tree, a, 0), 1, 0);
    /* Chains: (1 - alpha^(gamma + 1)) / (1 - alpha)  (3.1). */
    ranked_open(&t);
    for (int32_t gamma = 0; gamma < 8; gamma++, ranked_add(&t, t.tree.n - 1))
        NEAR(spec_expected_emitted(&t.tree, a, 1), (1 - pow((double)a[0], gamma + 1)) / (1 - (double)a[0]), 1e-12);
}

/* Every tree of m nodes and at most l levels, nodes in breadth-first order of choice: the best expectation. */
static double best_shape(ranked *t, int32_t m, int32_t l, const float *a)
{
    if (t->tree.n == m) return spec_expected_emitted(&t->tree, a, 3);
    double best = 0;
    for (int32_t parent = t->parent[t->tree.n - 1] > 0 ? t->parent[t->tree.n - 1] : 0; parent < t->tree.n; parent++) {
        if (speci_tree_depth(&t->tree, parent) + 2 > l) continue;
        t->rank[t->tree.n] = 0;
        ranked_add(t, parent);
        best = fmax(best, best_shape(t, m, l, a));
        t->tree.n--;
    }
    return best;
}

static void test_sequoia(void **state)
{
    (void)state;
    static const float a[] = { .6f, .2f, .08f };
    static const struct {
        int32_t m, l;
        double g;
    } known[] = { { 4, 2, 1.88 }, { 4, 3, 2.16 }, { 5, 4, 2.376 }, { 6, 4, 2.496 }, { 8, 3, 2.528 }, { 8, 4, 2.696 } };
    for (int32_t i = 0; i < N_ELEMENTS(known); i++) {
        ranked t;
        ranked_open(&t);
        NEAR(best_shape(&t, known[i].m, known[i].l, a), known[i].g, 1e-6);
    }
}

static void test_rate(void **state)
{
    (void)state;
    const double emitted[] = { 1, 2.3, 3, 2.3 }, ms[] = { 10, 20, 27, 20 };
    assert_int_equal(spec_choose_rate(emitted, ms, 4), 1); /* ties with 3 */
    assert_int_equal(spec_choose_rate(emitted, ms, 1), 0);
    assert_int_equal(spec_choose_rate((double[]){ 1, 1.9 }, (double[]){ 10, 20 }, 2), 0); /* not speculating wins */
    assert_int_equal(spec_choose_rate((double[]){ 3, 2, 4 }, (double[]){ 3, 2, 4 }, 3), 0);
    assert_int_equal(spec_choose_rate((double[]){ NAN, 2, NAN }, (double[]){ 1, 9, 1 }, 3), 1);
}

/* ---------------------------------------------------------------------------------------- bandit --- */

static void test_bandit_open(void **state)
{
    (void)state;
    spec_bandit b, before;
    memset(&b, 0x55, sizeof b);
    memcpy(&before, &b, sizeof b);
    assert_int_equal(spec_bandit_open(&b, 0, 1), SPEC_E_INVALID);
    assert_int_equal(spec_bandit_open(&b, SPEC_MAX_ARM + 1, 1), SPEC_E_INVALID);
    assert_int_equal(spec_bandit_open(&b, 2, -0.5), SPEC_E_INVALID);
    assert_int_equal(spec_bandit_open(&b, 2, NAN), SPEC_E_INVALID);
    assert_int_equal(spec_bandit_open(&b, 2, INFINITY), SPEC_E_INVALID);
    assert_memory_equal(&b, &before, sizeof b);
    b = (spec_bandit){ .n_arm = INT32_MAX, .n_round = 1 }; /* which nobody opened */
    spec_bandit_update(&b, SPEC_MAX_ARM, 1, 1);
    assert_int_equal(spec_bandit_choose(&b), 0);
    assert_int_equal(b.n_round, 1);
    test_ok(spec_bandit_open(&b, SPEC_MAX_ARM, 0), "open");
    /* What cannot be changes nothing. */
    memcpy(&before, &b, sizeof b);
    spec_bandit_update(&b, -1, 2, 3);
    spec_bandit_update(&b, SPEC_MAX_ARM, 2, 3);
    spec_bandit_update(&b, 0, NAN, 3);
    spec_bandit_update(&b, 0, 2, -1);
    spec_bandit_update(&b, 0, 2, INFINITY);
    assert_memory_equal(&b, &before, sizeof b);
}

/* A bandit by either reward: tokens over time, or the paper's. */
typedef struct player {
    bool paper;
    spec_bandit rate;
    spec_paper_bandit mean;
} player;

static void player_open(player *b, int paper, int32_t n_arm, double lambda_ucb)
{
    memset(b, 0, sizeof *b);
    b->paper = paper;
    test_ok(paper ? spec_paper_bandit_open(&b->mean, n_arm, lambda_ucb) : spec_bandit_open(&b->rate, n_arm, lambda_ucb),
            "open");
}

static int32_t player_choose(const player *b)
{
    return b->paper ? spec_paper_bandit_choose(&b->mean) : spec_bandit_choose(&b->rate);
}

static void player_update(player *b, int32_t arm, double emitted, double ms)
{
    if (b->paper) spec_paper_bandit_update(&b->mean, arm, emitted, ms);
    else spec_bandit_update(&b->rate, arm, emitted, ms);
}

static const spec_bandit *counts_of(const player *b) { return b->paper ? &b->mean.bandit : &b->rate; }

/* Constant rewards: arms in turn, the first on ties; each arm once at first. */
static void test_round_robin(void **state)
{
    (void)state;
    for (int paper = 0; paper < 2; paper++)
        for (int32_t n_arm = 1; n_arm <= SPEC_MAX_ARM; n_arm++) {
            player b;
            player_open(&b, paper, n_arm, 1);
            for (int32_t t = 0; t < 40 * n_arm; t++) {
                const int32_t arm = player_choose(&b);
                assert_int_equal(arm, t % n_arm);
                assert_int_equal(player_choose(&b), arm); /* choosing changes nothing */
                player_update(&b, arm, 2, 8);
            }
        }
}

/* Arms [n]: emits `low` or `high`, the latter with probability p, in ms milliseconds. */
typedef struct lever {
    double low, high, p, ms;
} lever;

static void play(player *b, const lever *arms, test_random *r, int64_t until)
{
    while (counts_of(b)->n_round < until) {
        const int32_t k = player_choose(b);
        const double emitted = test_uniform(r) < arms[k].p ? arms[k].high : arms[k].low;
        player_update(b, k, emitted, arms[k].ms);
    }
}

/* Pulls of an arm that lags by `gap`, of rewards in [0, 1]: at most 8 ln t / gap^2 + 1 + pi^2 / 3 (Auer, Cesa-Bianchi,
 * Fischer 2002, theorem 1), so that regret grows with the logarithm of the rounds. */
static void check_pulls(const spec_bandit *b, const double *value, int32_t best)
{
    int64_t sum = 0;
    for (int32_t k = 0; k < b->n_arm; k++) {
        const double gap = value[best] - value[k], bound = 8 * log((double)b->n_round) / (gap * gap) + 1 + 3.29;
        assert_true(b->n_pull[k] >= 1);
        sum += b->n_pull[k];
        if (k != best && !((double)b->n_pull[k] <= bound))
            fail_msg("arm %d: %lld pulls in %lld rounds; the bound is %.0f", k, (long long)b->n_pull[k],
                     (long long)b->n_round, bound);
    }
    assert_true(sum == b->n_round);
}

static double regret(const spec_bandit *b, const double *value, int32_t best)
{
    double sum = 0;
    for (int32_t k = 0; k < b->n_arm; k++) sum += (value[best] - value[k]) * (double)b->n_pull[k];
    return sum;
}

static void test_regret(void **state)
{
    (void)state;
    /* Not speculating, and three shapes; a round's tokens / ms differ from their mean by less than the best rate. */
    static const lever arms[] = { { 1, 1, 0, 10 }, { 1, 3, .4, 20 }, { 2, 3, .8, 20 }, { 1, 4, .5, 25 } };
    const int32_t best = 2, n = N_ELEMENTS(arms);
    for (int paper = 0; paper < 2; paper++)
        for (uint64_t seed = 1; seed <= 5; seed++) {
            double value[N_ELEMENTS(arms)], at[3];
            test_random r = { seed };
            player b;
            player_open(&b, paper, n, 1);
            b.mean.lambda_gamma = 0.2;
            const double gamma[] = { 0, 2, 2, 4 }, c_max = 1 + 0.2 * 4;
            memcpy(b.mean.gamma, gamma, sizeof gamma);
            for (int32_t k = 0; k < n; k++) {
                const lever *a = &arms[k];
                const double rate = (a->low + a->p * (a->high - a->low)) / a->ms;
                const double c = (1 + 0.2 * gamma[k]) * ((1 - a->p) / a->low + a->p / a->high);
                value[k] = paper ? 1 - c / c_max : rate / (2.8 / 20);
            }
            for (int32_t i = 0; i < 3; i++) {
                play(&b, arms, &r, 2000 * (int64_t)pow(10, i));
                check_pulls(counts_of(&b), value, best);
                at[i] = regret(counts_of(&b), value, best);
            }
            /* Ten times the rounds add a constant to the regret, not a factor. */
            if (!(at[2] < 4 * at[0] && at[2] - at[1] < 1.5 * (at[1] - at[0]) + 20))
                fail_msg("regret %g, %g, %g at seed %d", at[0], at[1], at[2], (int)seed);
            assert_true(counts_of(&b)->n_pull[best] > counts_of(&b)->n_round * 9 / 10);
        }
}

/* The arms of MD, table 6, with a drafter that takes a tenth of the target's time per level: by hand,
 *     gamma 4, 5, 6: 1 + lambda gamma = 1.4, 1.5, 1.6; c_max = 1.6
 *     rounds (arm: emitted) 0: 2, 1: 3, 2: 4 -> c = 0.7, 0.5, 0.4 -> 1 - c / c_max = 0.5625, 0.6875, 0.75 */
static void test_paper(void **state)
{
    (void)state;
    spec_paper_bandit b, before;
    memset(&b, 0x55, sizeof b);
    memcpy(&before, &b, sizeof b);
    assert_int_equal(spec_paper_bandit_open(&b, 0, 1), SPEC_E_INVALID);
    assert_memory_equal(&b, &before, sizeof b);
    test_ok(spec_paper_bandit_open(&b, 3, 0.1), "open");
    b.lambda_gamma = 0.1;
    b.gamma[0] = 4, b.gamma[1] = 5, b.gamma[2] = 6;
    for (int32_t k = 0; k < 3; k++) {
        assert_int_equal(spec_paper_bandit_choose(&b), k);
        spec_paper_bandit_update(&b, k, 2 + k, 1000); /* time plays no part */
    }
    NEAR(b.sum[0], 0.5625, 1e-12);
    NEAR(b.sum[1], 0.6875, 1e-12);
    NEAR(b.sum[2], 0.75, 1e-12);
    assert_int_equal(spec_paper_bandit_choose(&b), 2);
    spec_paper_bandit_update(&b, 2, 2, 1); /* c = 0.8 -> 0.5: the mean is 0.625 */
    NEAR(b.sum[2] / (double)b.bandit.n_pull[2], 0.625, 1e-12);
    /* 0.6875 + 0.1 sqrt(2 ln 4) = 0.854 against 0.625 + 0.1 sqrt(ln 4) = 0.743 and 0.5625 + 0.1665 = 0.729 */
    assert_int_equal(spec_paper_bandit_choose(&b), 1);
    spec_paper_bandit_update(&b, 1, 1, 1); /* c = 1.5 -> 0.0625: the mean is 0.375 */
    /* 0.625 + 0.1 sqrt(ln 5) = 0.752 against 0.5625 + 0.1 sqrt(2 ln 5) = 0.742 */
    assert_int_equal(spec_paper_bandit_choose(&b), 2);
    /* 0.625 + 0.254 = 0.879 against 0.5625 + 0.359 = 0.921 */
    b.bandit.lambda_ucb = 0.2;
    assert_int_equal(spec_paper_bandit_choose(&b), 0);
    /* The worst there is gives 0, the best less than 1. */
    spec_paper_bandit_update(&b, 2, 1, 1);
    NEAR(b.sum[2], 0.75 + 0.5, 1e-12);
    /* What cannot be changes nothing. */
    before = b;
    spec_paper_bandit_update(&b, 3, 2, 1);
    spec_paper_bandit_update(&b, 0, NAN, 1);
    assert_memory_equal(&b, &before, sizeof b);
}

/* RATE by hand: arms of 2 tokens in 10 ms and 6 in 40: rates 0.2 and 0.15, shares 1 and 0.75. */
static void test_rate_index(void **state)
{
    (void)state;
    spec_bandit b;
    test_ok(spec_bandit_open(&b, 2, 0), "open");
    spec_bandit_update(&b, 0, 1, 4), spec_bandit_update(&b, 0, 1, 6); /* the sums count, not the rounds' own rates */
    spec_bandit_update(&b, 1, 6, 40);
    assert_int_equal(spec_bandit_choose(&b), 0);
    /* 1 + lambda sqrt(2 ln 3 / 2) against 0.75 + lambda sqrt(2 ln 3): equal at lambda = 0.25 / 0.43416 = 0.57583 */
    b.lambda_ucb = 0.575;
    assert_int_equal(spec_bandit_choose(&b), 0);
    b.lambda_ucb = 0.577;
    assert_int_equal(spec_bandit_choose(&b), 1);
    /* A clock that never ticks: all arms alike. */
    test_ok(spec_bandit_open(&b, 2, 1), "open");
    for (int32_t t = 0; t < 10; t++) {
        assert_int_equal(spec_bandit_choose(&b), t % 2);
        spec_bandit_update(&b, t % 2, 1, 0);
    }
}

/* An arm that always emits 2 against one that emits 1 or 6, at the same cost: tokens over time prefers the second
 * (3.5 a round), the mean of costs the first (1/2 against 7/12). */
static void test_rewards_differ(void **state)
{
    (void)state;
    static const lever arms[] = { { 2, 2, 0, 10 }, { 1, 6, .5, 10 } };
    for (int paper = 0; paper < 2; paper++) {
        test_random r = { 21 };
        player b;
        player_open(&b, paper, 2, 0.5);
        play(&b, arms, &r, 50000);
        const int64_t liked = counts_of(&b)->n_pull[paper ? 0 : 1];
        if (!(liked > 45000)) fail_msg("%s: %lld", paper ? "paper" : "rate", (long long)liked);
    }
}

/* The same history gives the same choices. */
static void test_deterministic(void **state)
{
    (void)state;
    spec_bandit a, b;
    test_random r = { 4 };
    test_ok(spec_bandit_open(&a, 7, 1), "open");
    test_ok(spec_bandit_open(&b, 7, 1), "open");
    for (int32_t t = 0; t < 5000; t++) {
        const int32_t arm = spec_bandit_choose(&a);
        const double emitted = 1 + test_below(&r, 6), ms = 1 + test_uniform(&r);
        assert_int_equal(spec_bandit_choose(&b), arm);
        spec_bandit_update(&a, arm, emitted, ms), spec_bandit_update(&b, arm, emitted, ms);
    }
    assert_memory_equal(&a, &b, sizeof a);
}

/* A decision costs microseconds: 1e5 of 16 arms within a second, ten times what a machine under load needs. */
static void test_decision_time(void **state)
{
    (void)state;
    spec_bandit b;
    test_ok(spec_bandit_open(&b, SPEC_MAX_ARM, 1), "open");
    const double start = speci_now_ms();
    for (int32_t t = 0; t < 100000; t++) spec_bandit_update(&b, spec_bandit_choose(&b), 1 + t % 5, 1);
    const double us = (speci_now_ms() - start) * 1000 / 100000;
    if (!(us < 10)) fail_msg("%.2f microseconds", us);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_interpolation),   cmocka_unit_test(test_fit), cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_fit_two),
        cmocka_unit_test(test_save_refused),    cmocka_unit_test(test_malformed),    cmocka_unit_test(test_expected),
        cmocka_unit_test(test_sequoia),         cmocka_unit_test(test_rate),         cmocka_unit_test(test_bandit_open),
        cmocka_unit_test(test_round_robin),     cmocka_unit_test(test_regret),       cmocka_unit_test(test_paper),
        cmocka_unit_test(test_rate_index),      cmocka_unit_test(test_rewards_differ),
        cmocka_unit_test(test_deterministic),   cmocka_unit_test(test_decision_time),
    };
    return cmocka_run_group_tests(tests, open_file, remove_file);
}
