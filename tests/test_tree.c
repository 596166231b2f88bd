/* test_tree.c - trees as plain data, each function against a reference that is slow and plain: recursion over children,
 * or paths compared as sequences. */
#include "test.h"

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/engine/engine.h"

enum { MOST = 48, ROUNDS = 3000 };

/* ----------------------------------------------------------------------------------- random trees --- */

/* Parents uniform among the `reach` nodes before: 1 gives a chain, n a random recursive tree. */
static void random_tree(test_random *r, spec_tree *t, int32_t n, int32_t reach)
{
    t->n = 0;
    t->kind = (spec_tree_kind)test_below(r, 4);
    (void)spec_tree_add(t, -1, test_below(r, 1000), 1.0f);
    while (t->n < n) {
        const int32_t parent = t->n - 1 - test_below(r, t->n < reach ? t->n : reach);
        /* token = number: siblings differ */
        const int32_t x = spec_tree_add(t, parent, 1000 + t->n, (float)test_uniform(r));
        assert_int_equal(x, t->n - 1);
    }
    for (int32_t i = 0; i < n; i++) t->q_row[i] = test_below(r, 2) ? test_below(r, 99) : -1;
    /* Siblings swap ranks. */
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = 1; j < i; j++) {
            if (t->parent[i] != t->parent[j] || test_below(r, 2)) continue;
            const int32_t rank = t->rank[i];
            t->rank[i] = t->rank[j], t->rank[j] = rank;
        }
}

static spec_tree new_tree(int32_t cap)
{
    spec_tree t;
    test_ok(spec_tree_alloc(&t, cap, NULL), "spec_tree_alloc");
    return t;
}

static void each_tree(void (*check)(test_random *r, const spec_tree *t))
{
    test_random r = { 20 };
    spec_tree t = new_tree(MOST);
    for (int32_t i = 0; i < ROUNDS; i++) {
        const int32_t n = 1 + test_below(&r, MOST);
        random_tree(&r, &t, n, 1 + test_below(&r, n));
        check(&r, &t);
    }
    spec_tree_free(&t, NULL);
}

static bool on_path(const spec_tree *t, int32_t j, int32_t i)
{
    if (i == j) return true;
    return i > 0 && on_path(t, j, t->parent[i]);
}

static int32_t depth_of(const spec_tree *t, int32_t i) { return i == 0 ? 0 : 1 + depth_of(t, t->parent[i]); }

static int32_t size_of(const spec_tree *t, int32_t x)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) n += on_path(t, x, i);
    return n;
}

/* Tokens from the root to node i: their count. */
static int32_t tokens_to(const spec_tree *t, int32_t i, int32_t *token)
{
    const int32_t n = i == 0 ? 0 : tokens_to(t, t->parent[i], token);
    token[n] = t->token[i];
    return n + 1;
}

/* Do node i of a and node j of b have the same tokens on their paths? */
static bool same_path(const spec_tree *a, int32_t i, const spec_tree *b, int32_t j)
{
    int32_t x[2 * MOST], y[2 * MOST];
    const int32_t n = tokens_to(a, i, x);
    return n == tokens_to(b, j, y) && memcmp(x, y, (size_t)n * sizeof *x) == 0;
}

/* ---------------------------------------------------------------------------------- memory, nodes --- */

typedef struct counting {
    int32_t left, live; /* allocations until one fails; blocks not freed */
} counting;

static void *counting_alloc(void *user, size_t bytes, size_t align)
{
    counting *c = user;
    if (c->left-- == 0) return NULL;
    c->live++;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void counting_free(void *user, void *p, size_t bytes)
{
    (void)bytes;
    ((counting *)user)->live -= p != NULL;
    free(p);
}

static void memory(void **state)
{
    (void)state;
    for (int32_t n = 0; n < 6; n++) {
        counting c = { .left = n };
        const spec_allocator a = { counting_alloc, counting_free, &c };
        spec_tree t;
        const spec_status status = spec_tree_alloc(&t, 7, &a);
        assert_int_equal(status, n < 5 ? SPEC_E_NOMEM : SPEC_OK);
        assert_int_equal(c.live, n < 5 ? 0 : 5);
        assert_int_equal(t.cap, n < 5 ? 0 : 7);
        assert_int_equal(t.n, 0);
        spec_tree_free(&t, &a);
        assert_int_equal(c.live, 0);
        assert_null(t.token);
    }
    spec_tree t;
    assert_int_equal(spec_tree_alloc(&t, 0, NULL), SPEC_E_INVALID);
    assert_int_equal(spec_tree_alloc(&t, INT32_MAX, NULL), SPEC_E_INVALID);
}

static void add(void **state)
{
    (void)state;
    spec_tree t = new_tree(5);
    assert_int_equal(spec_tree_add(&t, 0, 1, 1.0f), -1); /* no root yet */
    assert_int_equal(spec_tree_add(&t, -1, 1, 1.0f), 0);
    assert_int_equal(spec_tree_add(&t, -1, 1, 1.0f), -1); /* a second one */
    assert_int_equal(spec_tree_add(&t, 1, 1, 1.0f), -1);  /* below itself */
    assert_int_equal(spec_tree_add(&t, 0, 5, 0.5f), 1);
    assert_int_equal(spec_tree_add(&t, 1, 6, 0.25f), 2);
    assert_int_equal(spec_tree_add(&t, 0, 7, 0.125f), 3);
    assert_int_equal(spec_tree_add(&t, 0, 8, 0.0625f), 4);
    assert_int_equal(spec_tree_add(&t, 0, 9, 0.5f), -1); /* full */
    const int32_t parent[] = { -1, 0, 1, 0, 0 }, rank[] = { 0, 0, 0, 1, 2 }, token[] = { 1, 5, 6, 7, 8 };
    assert_memory_equal(t.parent, parent, sizeof parent);
    assert_memory_equal(t.rank, rank, sizeof rank);
    assert_memory_equal(t.token, token, sizeof token);
    assert_true(t.prob[3] == 0.125f && t.q_row[3] == -1 && t.n == 5);
    spec_tree_free(&t, NULL);
}

static void check_copy(test_random *r, const spec_tree *t)
{
    spec_tree copy = new_tree(MOST), bare = { .cap = MOST, .token = copy.token, .parent = copy.parent };
    const size_t bytes = (size_t)t->n * sizeof(int32_t);
    memset(copy.q_row, 7, MOST * sizeof *copy.q_row);
    test_ok(spec_tree_copy(&copy, t), "spec_tree_copy");
    assert_int_equal(copy.n, t->n);
    assert_int_equal(copy.kind, t->kind);
    assert_memory_equal(copy.token, t->token, bytes);
    assert_memory_equal(copy.parent, t->parent, bytes);
    assert_memory_equal(copy.rank, t->rank, bytes);
    assert_memory_equal(copy.prob, t->prob, bytes);
    assert_memory_equal(copy.q_row, t->q_row, bytes);
    /* Ranks that say more than places cannot be left out. */
    bool places = true;
    for (int32_t i = 1; i < t->n; i++)
        for (int32_t j = 1; j < i; j++) places &= t->parent[i] != t->parent[j] || t->rank[j] < t->rank[i];
    assert_int_equal(spec_tree_copy(&bare, t), places ? SPEC_OK : SPEC_E_INVALID);
    /* And ranks that are not there are the places. */
    spec_tree plain = *t;
    plain.rank = NULL, plain.q_row = NULL;
    test_ok(spec_tree_copy(&copy, &plain), "spec_tree_copy");
    for (int32_t i = 0; i < t->n; i++) {
        int32_t before = 0;
        for (int32_t j = 1; j < i; j++) before += t->parent[j] == t->parent[i];
        assert_int_equal(copy.rank[i], before);
        assert_int_equal(copy.q_row[i], -1);
    }
    copy.cap = t->n - 1;
    assert_int_equal(spec_tree_copy(&copy, t), SPEC_E_FULL);
    copy.cap = MOST;
    spec_tree_free(&copy, NULL);
    (void)r;
}

static void copy(void **state)
{
    (void)state;
    each_tree(check_copy);
}

/* ------------------------------------------------------------------------------------------ check --- */

static void refuse(const spec_tree *t, int32_t n_max, const char *says)
{
    assert_int_equal(spec_tree_check(t, n_max, 2000), SPEC_E_INVALID);
    if (!strstr(spec_last_error(), says)) fail_msg("\"%s\" does not say \"%s\"", spec_last_error(), says);
}

/* t with one number changed. */
static void refuse_with(spec_tree *t, int32_t *at, int32_t value, const char *says)
{
    const int32_t was = *at;
    *at = value;
    refuse(t, MOST, says);
    *at = was;
    test_ok(spec_tree_check(t, MOST, 2000), "the tree as it was");
}

static void check_errors(void **state)
{
    (void)state;
    spec_tree t = new_tree(128);
    const int32_t parent[] = { -1, 0, 0, 1, 1, 2 };
    for (int32_t i = 0; i < 6; i++) (void)spec_tree_add(&t, parent[i], i, 1.0f);
    t.kind = SPEC_TREE_SAMPLED;
    refuse_with(&t, &t.parent[0], 0, "node 0 has parent 0");
    refuse_with(&t, &t.parent[3], 3, "node 3 has parent 3"); /* a cycle */
    refuse_with(&t, &t.parent[3], 4, "node 3 has parent 4");
    refuse_with(&t, &t.parent[3], -1, "node 3 has parent -1"); /* an orphan */
    refuse_with(&t, &t.token[4], -1, "node 4 has token -1");
    refuse_with(&t, &t.token[4], 2000, "node 4 has token 2000");
    refuse_with(&t, &t.token[4], 3, "nodes 3 and 4 are siblings with the same token 3");
    refuse_with(&t, &t.rank[0], 1, "node 0 has rank 1");
    refuse_with(&t, &t.rank[4], 0, "nodes 3 and 4 are siblings with the same rank 0");
    refuse_with(&t, &t.rank[4], 2, "node 4 has rank 2");
    refuse_with(&t, &t.rank[4], -1, "node 4 has rank -1");
    refuse_with(&t, &t.n, 0, "a tree of 0 nodes");
    refuse(&t, 5, "a tree of 6 nodes");
    refuse(NULL, 5, "without tokens");
    t.kind = (spec_tree_kind)4;
    refuse(&t, MOST, "kind 4");
    t.kind = SPEC_TREE_SAMPLED_IID;
    t.token[4] = 3; /* as it may be there */
    test_ok(spec_tree_check(&t, MOST, 2000), "repeats");
    int32_t *rank = t.rank;
    t.rank = NULL;
    test_ok(spec_tree_check(&t, MOST, 2000), "no ranks");
    t.rank = rank;
    /* 63 deep is possible, 64 not. */
    t.n = 0;
    for (int32_t i = 0; i < 64; i++) (void)spec_tree_add(&t, i - 1, 1, 1.0f);
    test_ok(spec_tree_check(&t, 128, 2000), "a chain of 63 drafts");
    (void)spec_tree_add(&t, 63, 1, 1.0f);
    refuse(&t, 128, "node 64 is deeper than 63");
    spec_tree_free(&t, NULL);
}

static void check_random(test_random *r, const spec_tree *t)
{
    test_ok(spec_tree_check(t, MOST, 2000), "a random tree");
    (void)r;
}

static void check(void **state)
{
    (void)state;
    each_tree(check_random);
}

/* ------------------------------------------------------------------------------- what layers need --- */

static void check_tables(test_random *r, const spec_tree *t)
{
    enum { WIDTH = 5, GUARD = 0x5a5a5a5a };
    int32_t depth[MOST + 1], rank[MOST + 1], taps[MOST * (WIDTH - 1) + 1];
    uint32_t bits[MOST * 2 + 1];
    const int32_t words = (t->n + 31) / 32, width = 1 + test_below(r, WIDTH);
    depth[t->n] = rank[t->n] = taps[t->n * (width - 1)] = GUARD, bits[t->n * words] = GUARD;
    spec_tree_depths(t, depth);
    spec_tree_ranks(t, rank);
    spec_tree_masks(t, bits);
    spec_tree_conv_ancestors(t, taps, width);
    for (int32_t i = 0; i < t->n; i++) {
        assert_int_equal(depth[i], depth_of(t, i));
        assert_int_equal(rank[i], t->rank[i]);
        for (int32_t j = 0; j < 32 * words; j++)
            assert_int_equal(bits[i * words + j / 32] >> (j % 32) & 1, j < t->n && on_path(t, j, i));
        for (int32_t k = 1; k < width; k++) {
            int32_t x = i;
            for (int32_t up = 0; up < k && x >= 0; up++) x = t->parent[x];
            /* k steps up from depth d: k - d - 1 entries before the newest stored one */
            assert_int_equal(taps[i * (width - 1) + k - 1], x >= 0 ? x : -1 - (k - depth[i] - 1));
        }
    }
    assert_true(depth[t->n] == GUARD && rank[t->n] == GUARD && taps[t->n * (width - 1)] == GUARD);
    assert_int_equal(bits[t->n * words], GUARD);
    spec_tree plain = *t;
    plain.rank = NULL;
    spec_tree_ranks(&plain, rank);
    for (int32_t i = 0; i < t->n; i++) {
        int32_t before = 0;
        for (int32_t j = 1; j < i; j++) before += t->parent[j] == t->parent[i];
        assert_int_equal(rank[i], before);
    }
}

static void tables(void **state)
{
    (void)state;
    each_tree(check_tables);
}

/* ----------------------------------------------------------------------------------------- orders --- */

/* The rest of x's subtree behind x, children one by one: the first that was not yet visited. */
static void visit(const spec_tree *t, bool heavy, int32_t x, int32_t *order, int32_t *n)
{
    bool done[MOST] = { false };
    order[(*n)++] = x;
    for (;;) {
        int32_t best = -1;
        for (int32_t i = 1; i < t->n; i++) {
            if (t->parent[i] != x || done[i]) continue;
            const int32_t more = best < 0 ? 1 : heavy ? size_of(t, i) - size_of(t, best) : 0;
            if (more > 0 || (more == 0 && t->rank[i] < t->rank[best])) best = i;
        }
        if (best < 0) return;
        done[best] = true;
        visit(t, heavy, best, order, n);
    }
}

static void check_order(test_random *r, const spec_tree *t)
{
    int32_t order[MOST], scratch[3 * MOST], want[MOST];
    spec_tree out = new_tree(MOST), plain = *t;
    if (test_below(r, 2)) plain.rank = NULL;
    for (int32_t heavy = 0; heavy < 2; heavy++) {
        int32_t n = 0;
        spec_tree_order(t, order, heavy ? SPEC_ORDER_HEAVY_PATH : SPEC_ORDER_DEPTH_FIRST, scratch);
        visit(t, heavy, 0, want, &n);
        assert_int_equal(n, t->n);
        assert_memory_equal(order, want, (size_t)n * sizeof *order);

        test_ok(spec_tree_permute(&plain, &out, order), "spec_tree_permute");
        assert_int_equal(out.n, n);
        assert_int_equal(out.kind, t->kind);
        int32_t rank[MOST];
        spec_tree_ranks(&plain, rank);
        for (int32_t i = 0; i < n; i++) {
            assert_int_equal(out.token[i], t->token[order[i]]);
            assert_int_equal(i == 0 ? -1 : order[out.parent[i]], t->parent[order[i]]);
            assert_int_equal(out.rank[i], rank[order[i]]);
            assert_int_equal(out.q_row[i], t->q_row[order[i]]);
            assert_true(out.prob[i] == t->prob[order[i]]);
        }
    }
    if (t->n > 2) { /* orders that are none, and then nothing has changed */
        const int32_t at = 1 + test_below(r, t->n - 1), was = order[at], first = order[0];
        spec_tree before = new_tree(MOST);
        test_ok(spec_tree_copy(&before, &out), "spec_tree_copy");
        order[at] = order[at - 1];
        assert_int_equal(spec_tree_permute(t, &out, order), SPEC_E_INVALID);
        order[at] = t->n;
        assert_int_equal(spec_tree_permute(t, &out, order), SPEC_E_INVALID);
        order[at] = first, order[0] = was;
        assert_int_equal(spec_tree_permute(t, &out, order), SPEC_E_INVALID);
        /* A child right before its parent, wherever there is one right behind it. */
        order[0] = first, order[at] = was;
        for (int32_t i = 2; i < t->n; i++) {
            if (t->parent[order[i]] != order[i - 1]) continue;
            const int32_t parent = order[i - 1];
            order[i - 1] = order[i], order[i] = parent;
            assert_int_equal(spec_tree_permute(t, &out, order), SPEC_E_INVALID);
            order[i] = order[i - 1], order[i - 1] = parent;
        }
        assert_memory_equal(out.rank, before.rank, (size_t)t->n * sizeof *out.rank);
        assert_memory_equal(out.parent, before.parent, (size_t)t->n * sizeof *out.parent);
        spec_tree_free(&before, NULL);
    }
    spec_tree_free(&out, NULL);
}

static void orders(void **state)
{
    (void)state;
    each_tree(check_order);
}

/* ----------------------------------------------------------------------------------------- blocks --- */

static int64_t blocks_by_mask(const spec_tree *t, int32_t block)
{
    int64_t n = 0;
    for (int32_t a = 0; a < t->n; a += block)
        for (int32_t b = 0; b < t->n; b += block) {
            bool any = false;
            for (int32_t i = a; i < a + block && i < t->n; i++)
                for (int32_t j = b; j < b + block && j < t->n; j++) any |= on_path(t, j, i);
            n += any;
        }
    return n;
}

static void check_blocks(test_random *r, const spec_tree *t)
{
    const int32_t block = 1 + test_below(r, 9);
    assert_int_equal(spec_tree_blocks(t, block), blocks_by_mask(t, block));
}

/* DySpec, Table 5: blocks of 32 of random recursive trees, mean over trees; depth first and heavy path as in
 * algorithms.md 5.3, which rounds to whole blocks. */
static void blocks_of_table_5(void)
{
    enum { TREES = 24 };
    static const struct {
        int32_t n;
        double inserted, depth_first, heavy;
    } rows[] = { { 256, 36, 22, 22 }, { 512, 135.5, 51, 49 }, { 1024, 490.2, 124, 107 }, { 2048, 1654.5, 265, 235 } };
    test_random r = { 5 };
    for (int32_t i = 0; i < N_ELEMENTS(rows); i++) {
        const int32_t n = rows[i].n;
        spec_tree t = new_tree(n), out = new_tree(n);
        int32_t *order = malloc((size_t)n * 4 * sizeof *order);
        double sum[3] = { 0 };
        for (int32_t k = 0; k < TREES; k++) {
            random_tree(&r, &t, n, n);
            int32_t *rank = t.rank;
            t.rank = NULL; /* siblings as they came, which is how the paper's are ordered */
            sum[0] += (double)spec_tree_blocks(&t, 32) / TREES;
            for (int32_t heavy = 0; heavy < 2; heavy++) {
                spec_tree_order(&t, order, (spec_tree_order_kind)heavy, order + n);
                test_ok(spec_tree_permute(&t, &out, order), "spec_tree_permute");
                sum[1 + heavy] += (double)spec_tree_blocks(&out, 32) / TREES;
            }
            t.rank = rank;
        }
        print_message("blocks of %4d nodes: %7.1f inserted, %6.1f depth first, %6.1f heavy path\n", n, sum[0], sum[1],
                      sum[2]);
        const double want[3] = { rows[i].inserted, rows[i].depth_first, rows[i].heavy };
        for (int32_t k = 0; k < 3; k++)
            if (!(sum[k] >= 0.97 * want[k] - 0.5 * (k > 0) && sum[k] <= 1.03 * want[k] + 0.5 * (k > 0)))
                fail_msg("%d nodes, order %d: %.1f blocks, not %.1f", n, k, sum[k], want[k]);
        free(order);
        spec_tree_free(&t, NULL);
        spec_tree_free(&out, NULL);
    }
}

/* Of siblings with the same token, the one that was drawn first. */
static void child_with(void **state)
{
    (void)state;
    spec_tree t = new_tree(4);
    t.kind = SPEC_TREE_SAMPLED_IID;
    for (int32_t i = 0; i < 4; i++) (void)spec_tree_add(&t, i ? 0 : -1, i == 1 ? 6 : 7, 1);
    assert_int_equal(speci_tree_child_with(&t, 0, 7), 2);
    t.rank[1] = 2, t.rank[2] = 1, t.rank[3] = 0;
    assert_int_equal(speci_tree_child_with(&t, 0, 7), 3);
    assert_int_equal(speci_tree_child_with(&t, 0, 8), -1);
    spec_tree_free(&t, NULL);
}

static void blocks(void **state)
{
    (void)state;
    each_tree(check_blocks);
    blocks_of_table_5();
    enum { LONG = 150 }; /* more blocks than a word has bits */
    spec_tree chain = new_tree(LONG);
    for (int32_t i = 0; i < LONG; i++) (void)spec_tree_add(&chain, i - 1, 1, 1);
    assert_int_equal(spec_tree_blocks(&chain, 1), LONG * (LONG + 1) / 2);
    spec_tree_free(&chain, NULL);
}

/* ------------------------------------------------------------------------------------------ prune --- */

static bool is_kept(const spec_tree *t, const uint8_t *keep, bool by_slot, int32_t i)
{
    if (i == 0) return true;
    if (!keep[i]) return false;
    for (int32_t j = 1; j < t->n && by_slot; j++)
        if (t->parent[j] == t->parent[i] && t->rank[j] < t->rank[i] && !keep[j]) return false;
    return is_kept(t, keep, by_slot, t->parent[i]);
}

static void check_prune(test_random *r, const spec_tree *t)
{
    uint8_t keep[MOST];
    int32_t map[MOST];
    const int32_t share = test_below(r, 4), by_slot = test_below(r, 2);
    spec_tree p = new_tree(MOST);
    for (int32_t i = 0; i < t->n; i++) keep[i] = share == 3 || test_below(r, 4) <= share;
    test_ok(spec_tree_copy(&p, t), "spec_tree_copy");
    spec_tree_prune(&p, map, keep, by_slot);
    const bool sampled = t->kind == SPEC_TREE_SAMPLED || t->kind == SPEC_TREE_SAMPLED_IID;
    assert_int_equal(p.kind, by_slot || !sampled ? t->kind : SPEC_TREE_DETERMINISTIC);

    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) {
        if (!is_kept(t, keep, by_slot && sampled, i)) {
            assert_int_equal(map[i], -1);
            continue;
        }
        assert_int_equal(map[i], n);
        assert_int_equal(p.token[n], t->token[i]);
        assert_int_equal(p.parent[n], i == 0 ? -1 : map[t->parent[i]]);
        assert_true(p.prob[n] == t->prob[i]);
        int32_t rank = 0;
        bool parent = false;
        for (int32_t j = 1; j < t->n; j++) {
            const bool stays = is_kept(t, keep, by_slot && sampled, j);
            rank += stays && i > 0 && t->parent[j] == t->parent[i] && t->rank[j] < t->rank[i];
            parent |= stays && t->parent[j] == i;
        }
        assert_int_equal(p.rank[n], rank);
        assert_int_equal(p.q_row[n], parent ? t->q_row[i] : -1);
        n++;
    }
    assert_int_equal(p.n, n);
    test_ok(spec_tree_check(&p, MOST, 2000), "what is left");
    spec_tree_free(&p, NULL);
}

static void prune(void **state)
{
    (void)state;
    each_tree(check_prune);
}

/* ----------------------------------------------------------------------------------------- merges --- */

/* Few tokens, so that paths are shared, and in trees with repeats siblings too. */
static void few_tokens(test_random *r, spec_tree *t, int32_t n, bool repeats)
{
    t->n = 0;
    t->kind = repeats ? SPEC_TREE_SAMPLED_IID : SPEC_TREE_SAMPLED;
    (void)spec_tree_add(t, -1, 7, 1.0f);
    for (int32_t tries = 0; t->n < n && tries < 400; tries++) {
        const int32_t parent = test_below(r, t->n), token = test_below(r, 4);
        bool there = false;
        for (int32_t i = 1; i < t->n; i++) there |= t->parent[i] == parent && t->token[i] == token;
        if (!there || repeats) (void)spec_tree_add(t, parent, token, (float)test_uniform(r));
    }
}

static int32_t find_path(const spec_tree *in, const spec_tree *t, int32_t i)
{
    int32_t found = -1;
    for (int32_t x = 0; x < in->n; x++) {
        if (!same_path(t, i, in, x)) continue;
        assert_int_equal(found, -1); /* stored once */
        found = x;
    }
    return found;
}

static void unite(void **state)
{
    (void)state;
    test_random r = { 8 };
    spec_tree a = new_tree(MOST), b = new_tree(MOST), out = new_tree(2 * MOST);
    for (int32_t round = 0; round < ROUNDS; round++) {
        int32_t map[MOST];
        few_tokens(&r, &a, 1 + test_below(&r, MOST), test_below(&r, 4) == 0);
        few_tokens(&r, &b, 1 + test_below(&r, MOST), test_below(&r, 4) == 0);
        out.cap = 2 * MOST;
        const bool with_map = test_below(&r, 2);
        test_ok(spec_tree_union(&out, with_map ? map : NULL, &a, &b), "spec_tree_union");
        assert_int_equal(out.kind, SPEC_TREE_DETERMINISTIC);
        test_ok(spec_tree_check(&out, 2 * MOST, 100), "the united tree");
        bool used[2 * MOST] = { false };
        for (int32_t i = 0; i < a.n; i++) {
            const int32_t x = find_path(&out, &a, i);
            assert_true(x >= 0);
            used[x] = true;
        }
        for (int32_t i = 0; i < b.n; i++) {
            const int32_t x = find_path(&out, &b, i);
            assert_true(x >= 0);
            used[x] = true;
            if (with_map) assert_int_equal(map[i], x);
        }
        for (int32_t i = 0; i < out.n; i++) assert_true(used[i]); /* and nothing else */
        const int32_t n = out.n;
        out.cap = n;
        test_ok(spec_tree_union(&out, NULL, &a, &b), "room for just as many");
        out.cap = n - 1;
        assert_int_equal(spec_tree_union(&out, NULL, &a, &b), SPEC_E_FULL);
        assert_int_equal(out.n, 0);
    }
    out.cap = 2 * MOST;
    assert_int_equal(spec_tree_union(&a, NULL, &a, &b), SPEC_E_INVALID);
    assert_int_equal(spec_tree_union(&b, NULL, &a, &b), SPEC_E_INVALID);
    b.token[0] = 6;
    assert_int_equal(spec_tree_union(&out, NULL, &a, &b), SPEC_E_INVALID);
    spec_tree_free(&a, NULL);
    spec_tree_free(&b, NULL);
    spec_tree_free(&out, NULL);
}

static void check_unroll(test_random *r, const spec_tree *t)
{
    enum { ROOM = MOST * MOST };
    static int32_t leaf[ROOM];
    spec_tree out = new_tree(ROOM);
    int32_t n = 1, chains = 0, seen = 0;
    test_ok(spec_tree_unroll(t, &out, leaf), "spec_tree_unroll");
    assert_int_equal(out.kind, SPEC_TREE_UNROLLED);
    test_ok(spec_tree_check(&out, ROOM, 2000), "the unrolled tree");
    for (int32_t i = 1; i < t->n; i++)
        if (size_of(t, i) == 1) n += depth_of(t, i), chains++;
    assert_int_equal(out.n, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t children = 0;
        for (int32_t j = i + 1; j < n; j++) children += out.parent[j] == i;
        if (i == 0) assert_int_equal(children, chains);
        else assert_true(children <= 1);
        assert_true(same_path(&out, i, t, leaf[i]));
        assert_true(out.prob[i] == t->prob[leaf[i]] && out.q_row[i] == t->q_row[leaf[i]]);
        /* Every chain goes down to a leaf, each to another. */
        if (i > 0 && children == 0) {
            assert_int_equal(size_of(t, leaf[i]), 1);
            for (int32_t j = i + 1; j < n; j++) assert_true(leaf[j] != leaf[i]);
            seen++;
        }
    }
    assert_int_equal(seen, chains);
    out.cap = n - 1;
    assert_int_equal(spec_tree_unroll(t, &out, NULL), SPEC_E_FULL);
    assert_int_equal(spec_tree_unroll(&out, &out, NULL), SPEC_E_INVALID);
    spec_tree_free(&out, NULL);
    (void)r;
}

static void unroll(void **state)
{
    (void)state;
    test_random r = { 3 };
    spec_tree t = new_tree(MOST);
    for (int32_t i = 0; i < 300; i++) {
        random_tree(&r, &t, 1 + test_below(&r, 24), 24);
        check_unroll(&r, &t);
    }
    spec_tree_free(&t, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory), cmocka_unit_test(add),    cmocka_unit_test(copy),  cmocka_unit_test(check_errors),
        cmocka_unit_test(check),  cmocka_unit_test(tables), cmocka_unit_test(orders), cmocka_unit_test(blocks),
        cmocka_unit_test(prune),  cmocka_unit_test(unite),  cmocka_unit_test(unroll),
        cmocka_unit_test(child_with),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
