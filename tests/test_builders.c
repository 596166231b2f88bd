/* test_builders.c - builders on plain arrays, with distributions that are a function of the path: shapes, draws keyed
 * by slot, and each method against brute force or against the method written down plainly. */
#include "test.h"

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "algorithms/build/build.h"
#include "tests/support_file.h"
#include "tests/support_memory.h"

enum { MOST_VOCAB = 96, MOST_NODES = SPECI_MAX_NODE };

/* ----------------------------------------------------------------------------------------- distributions --- */

typedef enum fault { NO_FAULT, NAN_PROBS, NEGATIVE, INFINITE, LONG, SHORT, REFUSED } fault;

/* A drafter whose distribution after a path is a function of the path's tokens. */
typedef struct drafter {
    uint64_t seed;
    double sharp;      /* distributions ~ uniform^sharp */
    double gone, sure; /* shares of tokens without probability, of distributions with a single token */
    int32_t depth_max; /* nodes there must not be asked for; 0 = any */
    int32_t n_call, n_asked;
    fault fault;
    int32_t fault_call; /* in which call, at its last node */
} drafter;

static void probs_after(const drafter *d, const int32_t *path, int32_t n, float *probs, int32_t n_vocab)
{
    test_random r = { d->seed };
    for (int32_t i = 0; i < n; i++) {
        r.state = (r.state ^ (uint64_t)path[i]) * 0x9E3779B97F4A7C15u + (uint64_t)i;
        (void)test_uniform(&r);
    }
    const bool sure = test_uniform(&r) < d->sure;
    const int32_t always = test_below(&r, n_vocab);
    double sum = 0.0;
    for (int32_t i = 0; i < n_vocab; i++) {
        const double x = pow(test_uniform(&r), d->sharp), u = test_uniform(&r);
        probs[i] = i == always ? (float)fmax(0.1, x) : sure || u < d->gone ? 0.0f : (float)x;
        sum += (double)probs[i];
    }
    for (int32_t i = 0; i < n_vocab; i++) probs[i] = (float)((double)probs[i] / sum);
}

static int32_t tokens_to(const spec_tree *t, int32_t i, int32_t *token)
{
    const int32_t n = i == 0 ? 0 : tokens_to(t, t->parent[i], token);
    token[n] = t->token[i];
    return n + 1;
}

static int32_t ranks_to(const spec_tree *t, int32_t i, int32_t *rank)
{
    if (i == 0) return 0;
    const int32_t n = ranks_to(t, t->parent[i], rank);
    rank[n] = t->rank[i];
    return n + 1;
}

static void break_probs(fault f, float *probs)
{
    if (f == NAN_PROBS) probs[1] = NAN;
    if (f == NEGATIVE) probs[0] += 0.5f, probs[1] -= probs[1] + 0.5f;
    if (f == INFINITE) probs[1] = INFINITY;
    if (f == LONG) probs[1] += 0.0015f;
    if (f == SHORT) probs[probs[0] > probs[1] ? 0 : 1] -= 0.0015f;
}

static spec_status distributions(void *user, const spec_tree *tree, const int32_t *nodes, int32_t n, float *out,
                                 int32_t n_vocab)
{
    drafter *d = user;
    assert_true(n > 0);
    for (int32_t i = 0; i < n; i++) {
        int32_t path[MOST_NODES];
        const int32_t depth = tokens_to(tree, nodes[i], path) - 1;
        if (d->depth_max) assert_true(depth < d->depth_max);
        probs_after(d, path, depth + 1, out + (size_t)i * (size_t)n_vocab, n_vocab);
    }
    if (d->fault && d->n_call == d->fault_call) {
        if (d->fault == REFUSED) return speci_fail(SPEC_E_ABORTED, "the drafter is tired");
        break_probs(d->fault, out + (size_t)(n - 1) * (size_t)n_vocab);
    }
    d->n_call++;
    d->n_asked += n;
    return SPEC_OK;
}

/* ---------------------------------------------------------------------------------------- builds --- */

static spec_builder *open_builder(const char *text)
{
    spec_builder *b;
    test_ok(spec_builder_open(&b, text, NULL), text);
    return b;
}

static spec_tree new_tree(void)
{
    spec_tree t;
    test_ok(spec_tree_alloc(&t, MOST_NODES, NULL), "spec_tree_alloc");
    return t;
}

static spec_build_args args_for(drafter *d, int32_t n_vocab, int32_t draw, uint64_t seed)
{
    d->n_call = d->n_asked = 0;
    return (spec_build_args){ .struct_size = sizeof(spec_build_args),
                              .token = 1,
                              .n_vocab = n_vocab,
                              .probs = distributions,
                              .user_data = d,
                              .draw = draw,
                              .seed = seed,
                              .step = seed / 3 };
}

static void grow(spec_builder *b, drafter *d, int32_t n_vocab, int32_t draw, uint64_t seed, spec_tree *t)
{
    const spec_build_args args = args_for(d, n_vocab, draw, seed);
    test_ok(spec_builder_build(b, t, &args), "spec_builder_build");
}

static void grow_text(const char *text, drafter *d, int32_t n_vocab, int32_t draw, uint64_t seed, spec_tree *t)
{
    spec_builder *b = open_builder(text);
    grow(b, d, n_vocab, draw, seed, t);
    spec_builder_close(b);
}

/* The node of t at the slot of node i of `of`, or -1. */
static int32_t at_slot(const spec_tree *t, const spec_tree *of, int32_t i)
{
    int32_t x[MOST_NODES], y[MOST_NODES];
    const int32_t n = ranks_to(of, i, x);
    for (int32_t j = 0; j < t->n; j++)
        if (ranks_to(t, j, y) == n && memcmp(x, y, (size_t)n * sizeof *x) == 0) return j;
    return -1;
}

/* The same slots with the same tokens, in whatever order. */
static void assert_same(const spec_tree *a, const spec_tree *b, const char *what)
{
    if (a->n != b->n) fail_msg("%s: %d nodes and %d", what, a->n, b->n);
    for (int32_t i = 0; i < a->n; i++) {
        const int32_t j = at_slot(b, a, i);
        if (j < 0 || a->token[i] != b->token[j]) fail_msg("%s: node %d is not in the other tree", what, i);
        assert_true(a->prob[i] == b->prob[j]);
    }
}

/* The candidates after a node: from its path's tokens the distribution, from its path's ranks the key. */
static void candidates_after(const drafter *d, const spec_tree *t, int32_t x, spec_draw_how how, uint64_t seed,
                             int32_t n_vocab, int32_t k, float *probs, spec_candidate *out)
{
    int32_t path[MOST_NODES], rank[MOST_NODES];
    const int32_t depth = ranks_to(t, x, rank);
    uint64_t key = spec_stream_root(seed, seed / 3);
    for (int32_t i = 0; i < depth; i++) key = spec_stream_child(key, rank[i]);
    probs_after(d, path, tokens_to(t, x, path), probs, n_vocab);
    speci_draw_row(probs, n_vocab, how, key, k, out);
}

static int32_t n_children(const spec_tree *t, int32_t x)
{
    int32_t n = 0;
    for (int32_t i = 1; i < t->n; i++) n += t->parent[i] == x;
    return n;
}

static int32_t depth_of(const spec_tree *t, int32_t x) { return x == 0 ? 0 : 1 + depth_of(t, t->parent[x]); }

static int32_t deepest(const spec_tree *t)
{
    int32_t most = 0;
    for (int32_t i = 0; i < t->n; i++) most = depth_of(t, i) > most ? depth_of(t, i) : most;
    return most;
}

/* -------------------------------------------------------------------------------- every builder --- */

static const char *const every[] = {
    "none", "chain:1", "chain:7", "static:A", "static:B", "static:C", "static:D", "static:E", "static:eagle",
    "product:3,2,2", "product:12", "product:1,1,5", "product-repeat:4,3", "product-repeat:2,2,2", "beam:1,3",
    "beam:4,4", "beam:7,2", "dyspec:0", "dyspec:1", "dyspec:24", "dyspec:64", "dyspec-threshold:0.05",
    "dyspec-threshold:0.02,32", "dyspec-threshold:1,0", "dyspec-threshold:1e-2,40,3,9", "sequoia:0", "sequoia:1",
    "sequoia:20", "sequoia:64,5", "sequoia:90,2", "eagle2:3,12,4", "eagle2:10,60,6", "eagle2:2,100,3", "eagle2:5,1,2",
};

/* Drafters of all tempers: uniform (which makes ties), flat, sharp, with few tokens possible, with one. */
static drafter random_drafter(test_random *r)
{
    static const double sharps[] = { 0, 1, 4, 16 }, shares[] = { 0, 0, 0.5, 0.9 }, sures[] = { 0, 0, 0.3, 1 };
    const uint64_t seed = 1 + (uint64_t)test_below(r, 1 << 30);
    return (drafter){ .seed = seed, .sharp = sharps[test_below(r, 4)], .gone = shares[test_below(r, 4)],
                      .sure = sures[test_below(r, 4)] };
}

/* Tokens are the draws at their slots, rows are their distributions, sizes are what info said. */
static void check_build(spec_builder *b, drafter *d, int32_t n_vocab, int32_t draw, uint64_t seed, int32_t depth_max)
{
    spec_builder_info info = { .struct_size = sizeof info };
    test_ok(spec_builder_get_info(b, &info), "spec_builder_get_info");
    spec_tree t = new_tree();
    float *q = malloc((size_t)(info.n_row + 1) * (size_t)n_vocab * sizeof *q), probs[MOST_VOCAB];
    spec_build_args args = args_for(d, n_vocab, draw, seed);
    args.q = q;
    args.depth_max = d->depth_max = depth_max;
    test_ok(spec_builder_build(b, &t, &args), info.text);
    test_ok(spec_tree_check(&t, info.n_node, n_vocab), info.text);
    assert_true(d->n_call <= info.n_level && d->n_asked <= info.n_row);
    assert_true(deepest(&t) <= info.depth && (!depth_max || deepest(&t) <= depth_max));
    assert_int_equal(t.kind, draw ? info.kind : SPEC_TREE_DETERMINISTIC);
    assert_int_equal(t.token[0], 1);
    const spec_draw_how how = t.kind == SPEC_TREE_DETERMINISTIC ? SPEC_DRAW_TOP
                              : t.kind == SPEC_TREE_SAMPLED ? SPEC_DRAW_GUMBEL_TOPK : SPEC_DRAW_REPEAT;
    for (int32_t x = 0; x < t.n; x++) {
        spec_candidate c[SPEC_MAX_CHILD];
        if (n_children(&t, x) == 0) {
            assert_int_equal(t.q_row[x], -1);
            continue;
        }
        assert_in_range(t.q_row[x], 0, info.n_row - 1);
        for (int32_t y = 0; y < x; y++) assert_true(t.q_row[y] == -1 || t.q_row[y] != t.q_row[x]);
        candidates_after(d, &t, x, how, seed, n_vocab, SPEC_MAX_CHILD, probs, c);
        assert_memory_equal(q + (size_t)t.q_row[x] * (size_t)n_vocab, probs, (size_t)n_vocab * sizeof *probs);
        for (int32_t i = x + 1; i < t.n; i++) {
            if (t.parent[i] != x) continue;
            assert_int_equal(t.token[i], c[t.rank[i]].token);
            assert_true(t.prob[i] == c[t.rank[i]].prob);
        }
    }
    /* The same without rows to keep. */
    spec_tree again = new_tree();
    args = args_for(d, n_vocab, draw, seed);
    args.depth_max = depth_max;
    test_ok(spec_builder_build(b, &again, &args), info.text);
    assert_same(&t, &again, info.text);
    assert_memory_equal(t.q_row, again.q_row, (size_t)t.n * sizeof *t.q_row);
    d->depth_max = 0;
    free(q);
    spec_tree_free(&t, NULL);
    spec_tree_free(&again, NULL);
}

static void slots(void **state)
{
    (void)state;
    test_random r = { 77 };
    for (int32_t i = 0; i < N_ELEMENTS(every); i++) {
        spec_builder *b = open_builder(every[i]);
        for (int32_t round = 0; round < 24; round++) {
            static const int32_t vocabularies[] = { 2, 3, 9, MOST_VOCAB };
            drafter d = random_drafter(&r);
            const uint64_t seed = (uint64_t)test_below(&r, 1000);
            const int32_t depth_max = test_below(&r, 3) ? 0 : 1 + test_below(&r, 4);
            check_build(b, &d, vocabularies[round % 4], round & 1, seed, depth_max);
        }
        spec_builder_close(b);
    }
}

/* A slot that two trees share holds the same token in both. */
static void shared_slots(void **state)
{
    (void)state;
    drafter d = { .seed = 4, .sharp = 8 };
    spec_tree a = new_tree(), b = new_tree();
    int32_t shared = 0;
    for (int32_t draw = 0; draw < 2; draw++)
        for (int32_t i = 0; i < N_ELEMENTS(every); i++)
            for (int32_t j = 0; j < i; j++) {
                grow_text(every[i], &d, 40, draw, 9, &a);
                grow_text(every[j], &d, 40, draw, 9, &b);
                if (a.kind != b.kind) continue;
                for (int32_t x = 1; x < a.n; x++) {
                    const int32_t y = at_slot(&b, &a, x);
                    if (y >= 0) assert_int_equal(a.token[x], b.token[y]);
                    shared += y >= 0;
                }
            }
    assert_true(shared > 1000);
    /* Another seed, or another step, is another draw. */
    spec_builder *c = open_builder("product:3,3,3");
    int32_t same[2] = { 0 };
    spec_build_args args = args_for(&d, 40, 1, 9);
    test_ok(spec_builder_build(c, &a, &args), "a tree");
    for (int32_t i = 0; i < 2; i++) {
        args = args_for(&d, 40, 1, 9);
        if (i == 0) args.seed++;
        else args.step++;
        test_ok(spec_builder_build(c, &b, &args), "another tree");
        for (int32_t x = 1; x < a.n && x < b.n; x++) same[i] += a.token[x] == b.token[x];
        assert_true(same[i] < a.n / 2);
    }
    spec_builder_close(c);
    spec_tree_free(&a, NULL);
    spec_tree_free(&b, NULL);
}

/* --------------------------------------------------------------------------------------- shapes --- */

static void check_parents(const char *text, const int32_t *parent, int32_t n)
{
    drafter d = { .seed = 11, .sharp = 2 };
    spec_tree t = new_tree();
    for (int32_t draw = 0; draw < 2; draw++) {
        grow_text(text, &d, MOST_VOCAB, draw, 5, &t);
        assert_int_equal(t.n, n);
        for (int32_t i = 1; i < n; i++) assert_int_equal(t.parent[i], parent[i]);
    }
    spec_tree_free(&t, NULL);
}

/* Nodes per layer of a product tree, and of every node its children. */
static void check_product(const char *text, const int32_t *width, int32_t n_layer, const int32_t *layer)
{
    drafter d = { .seed = 12, .sharp = 2 };
    spec_tree t = new_tree();
    grow_text(text, &d, MOST_VOCAB, 1, 5, &t);
    int32_t seen[8] = { 0 };
    for (int32_t i = 0; i < t.n; i++) {
        const int32_t depth = depth_of(&t, i);
        seen[depth]++;
        assert_int_equal(n_children(&t, i), depth < n_layer ? width[depth] : 0);
    }
    for (int32_t i = 0; i < n_layer; i++) assert_int_equal(seen[i + 1], layer[i]);
    spec_tree_free(&t, NULL);
}

static void shapes(void **state)
{
    (void)state;
    /* Layer by layer, parents as places in the layer before (algorithms.md 4.3). */
    static const int32_t a[] = { -1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 7 };
    static const int32_t d[] = { -1, 0, 0, 0, 0, 1, 1, 2, 5, 5, 6, 8, 8 };
    static const int32_t e[] = { -1, 0, 0, 0, 1, 1, 2, 4, 4, 5, 7, 7, 8, 10, 10, 10 };
    spec_builder *b;
    test_ok(spec_builder_open(&b, "static:A", NULL), "static:A");
    assert_int_equal(b->info.kind, SPEC_TREE_SAMPLED);
    spec_builder_close(b);
    check_parents("static:A", a, N_ELEMENTS(a));
    check_parents("static:D", d, N_ELEMENTS(d));
    check_parents("static:E", e, N_ELEMENTS(e));
    check_product("static:B", (const int32_t[]){ 4, 2, 2 }, 3, (const int32_t[]){ 4, 8, 16 });
    check_product("static:C", (const int32_t[]){ 3, 2, 1 }, 3, (const int32_t[]){ 3, 6, 6 });
    check_product("product:3,2,2,1,1", (const int32_t[]){ 3, 2, 2, 1, 1 }, 5, (const int32_t[]){ 3, 6, 12, 12, 12 });
    check_product("product:3,3,2,1", (const int32_t[]){ 3, 3, 2, 1 }, 4, (const int32_t[]){ 3, 9, 18, 18 });
    check_product("product:2,2,2,1,1,1", (const int32_t[]){ 2, 2, 2, 1, 1, 1 }, 6,
                  (const int32_t[]){ 2, 4, 8, 8, 8, 8 });
    check_product("chain:5", (const int32_t[]){ 1, 1, 1, 1, 1 }, 5, (const int32_t[]){ 1, 1, 1, 1, 1 });

    /* EAGLE's choices as paths of ranks. */
    static const char *const eagle[] = {
        "0", "1", "2", "3", "00", "01", "02", "10", "11", "20", "21", "30", "000", "001", "002", "010", "011", "020",
        "021", "100", "0000", "0001", "0002", "00000", "00001",
    };
    drafter dr = { .seed = 13, .sharp = 2 };
    spec_tree t = new_tree();
    grow_text("static:eagle", &dr, MOST_VOCAB, 1, 5, &t);
    assert_int_equal(t.n, 1 + N_ELEMENTS(eagle));
    for (int32_t i = 0; i < N_ELEMENTS(eagle); i++) {
        bool found = false;
        for (int32_t x = 1; x < t.n; x++) {
            int32_t rank[8];
            char text[9] = "";
            const int32_t n = ranks_to(&t, x, rank);
            for (int32_t j = 0; j < n; j++) text[j] = (char)('0' + rank[j]);
            found |= strcmp(text, eagle[i]) == 0;
        }
        assert_true(found);
    }

    /* A chain is the first children of a product tree. */
    spec_tree chain = new_tree();
    for (uint64_t seed = 0; seed < 50; seed++) {
        grow_text("chain:4", &dr, 30, 1, seed, &chain);
        grow_text("product:3,2,3,2", &dr, 30, 1, seed, &t);
        for (int32_t i = 0, x = 0; i < 5; i++) {
            assert_int_equal(chain.token[i], t.token[x]);
            for (int32_t y = 1; y < t.n && i < 4; y++)
                if (t.parent[y] == x && t.rank[y] == 0) {
                    x = y;
                    break;
                }
        }
    }
    spec_tree_free(&t, NULL);
    spec_tree_free(&chain, NULL);
}

/* A shape from a file. Its name is borrowed until the next call. */
static const char *shape_file(const char *text, size_t n)
{
    static char name[64];
    (void)snprintf(name, sizeof name, "test_builders_%ld.txt", (long)getpid());
    support_write(name, text, n);
    static char with_kind[80];
    (void)snprintf(with_kind, sizeof with_kind, "static:@%s", name);
    return with_kind;
}

static void files(void **state)
{
    (void)state;
    static const char good[] = "# a comment\n0\n 0 # another\r\n\n\t1\r\n1\n2";
    static const int32_t parent[] = { -1, 0, 0, 1, 1, 2 };
    const char *text = shape_file(good, sizeof good - 1);
    check_parents(text, parent, N_ELEMENTS(parent));
    static const struct {
        const char *text;
        size_t n;
        const char *says;
    } bad[] = {
        { "0\n2\n", 4, ":2: expected the parent of node 2" }, { "1\n", 2, ":1: expected the parent of node 1" },
        { "-1\n", 3, ":1:" }, { "0\nx\n", 4, ":2:" }, { "0 0\n", 4, ":1:" }, { "0\n\0" "0\n", 5, ":2:" },
        { "0\n99999999999999999999\n", 23, ":2:" }, { "0\n4294967296\n", 13, ":2:" }, { "0\n0x1\n", 6, ":2:" }, { "0\n\xff\n", 4, ":2:" },
        { "", 0, ": no node: expected lines" }, { "# 0\n\n", 5, ": no node: " },
    };
    spec_builder *b;
    for (int32_t i = 0; i < N_ELEMENTS(bad); i++) {
        assert_int_equal(spec_builder_open(&b, shape_file(bad[i].text, bad[i].n), NULL), SPEC_E_FORMAT);
        assert_null(b);
        if (!strstr(spec_last_error(), bad[i].says)) fail_msg("%s", spec_last_error());
    }
    static char many[4 * 1024];
    int32_t n = 0;
    while (n < 2 * 256) many[n++] = '0', many[n++] = '\n';
    assert_int_equal(spec_builder_open(&b, shape_file(many, (size_t)n), NULL), SPEC_E_FORMAT); /* 257 nodes */
    assert_int_equal(spec_builder_open(&b, shape_file(many, 2 * 65), NULL), SPEC_E_INVALID);   /* 65 children */
    for (int32_t i = n = 0; i < 64; i++) n += snprintf(many + n, 8, "%d\n", i);
    assert_int_equal(spec_builder_open(&b, shape_file(many, (size_t)n), NULL), SPEC_E_INVALID); /* 64 deep */
    text = shape_file("", 0);
    (void)remove(text + strlen("static:@"));
    assert_int_equal(spec_builder_open(&b, text, NULL), SPEC_E_IO);
    assert_int_equal(spec_builder_open(&b, "static:@.", NULL), SPEC_E_IO);
}

/* ----------------------------------------------------------------------------------------- texts --- */

static void texts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *form;
    } bad[] = {
        { "", "" }, { "Chain:3", "" }, { "chains:3", "" }, { "chai:3", "" }, { "none:1", "no numbers" },
        { "chain", "chain:K" }, { "chain:", "chain:K" }, { "chain:0", "chain:K" }, { "chain:64", "chain:K" },
        { "chain:-1", "chain:K" }, { "chain:+1", "chain:K" }, { "chain: 1", "chain:K" }, { "chain:1 ", "chain:K" },
        { "chain:1,", "chain:K" }, { "chain:1,2", "chain:K" }, { "chain:3x", "chain:K" },
        { "chain:4294967297", "chain:K" }, { "chain:99999999999999999999", "chain:K" }, { "static", "static:A|B" },
        { "static:F", "static:A|B" }, { "static:a", "static:A|B" }, { "product", "product:N1,N2" },
        { "product:", "product:N1,N2" }, { "product:3,,2", "product:N1,N2" }, { "product:,3", "product:N1,N2" },
        { "product:0", "product:N1,N2" }, { "product:2,0", "product:N1,N2" }, { "product:65", "product:N1,N2" },
        { "product:16,16", "product:N1,N2" }, { "product-repeat:300", "product-repeat:N1,N2" },
        { "beam:3", "beam:M,N" }, { "beam:3,4,5", "beam:M,N" }, { "beam:0,4", "beam:M,N" }, { "beam:4,0", "beam:M,N" },
        { "beam:65,1", "beam:M,N" }, { "beam:1,64", "beam:M,N" }, { "beam:16,16", "beam:M,N" },
        { "dyspec", "dyspec:N" }, { "dyspec:256", "dyspec:N" }, { "dyspec:1.5", "dyspec:N" },
        { "dyspec-threshold", "dyspec-threshold:T" }, { "dyspec-threshold:0", "dyspec-threshold:T" },
        { "dyspec-threshold:1.01", "dyspec-threshold:T" }, { "dyspec-threshold:-0.1", "dyspec-threshold:T" },
        { "dyspec-threshold:nan", "dyspec-threshold:T" }, { "dyspec-threshold:.", "dyspec-threshold:T" },
        { "dyspec-threshold:0.123456789012345", "dyspec-threshold:T" },
        { "dyspec-threshold:0.1,", "dyspec-threshold:T" }, { "dyspec-threshold:0.1,256", "dyspec-threshold:T" },
        { "dyspec-threshold:0.1;3", "dyspec-threshold:T" }, { "dyspec-threshold:1e", "dyspec-threshold:T" },
        { "dyspec-threshold:1e-23", "dyspec-threshold:T" }, { "dyspec-threshold:0.1,8,4", "dyspec-threshold:T" },
        { "dyspec-threshold:0.1,8,0,4", "dyspec-threshold:T" },
        { "dyspec-threshold:0.1,8,4,64", "dyspec-threshold:T" },
        { "dyspec-threshold:0.1,8,64,5", "dyspec-threshold:T" }, { "sequoia", "sequoia:N" },
        { "sequoia:256", "sequoia:N" }, { "sequoia:8,0", "sequoia:N" }, { "sequoia:8,64", "sequoia:N" },
        { "sequoia:8,2,3", "sequoia:N" }, { "eagle2:10,60", "eagle2:K,N,D" }, { "eagle2:0,60,6", "eagle2:K,N,D" },
        { "eagle2:65,60,1", "eagle2:K,N,D" }, { "eagle2:10,0,6", "eagle2:K,N,D" },
        { "eagle2:10,257,6", "eagle2:K,N,D" }, { "eagle2:10,60,0", "eagle2:K,N,D" },
        { "eagle2:10,60,64", "eagle2:K,N,D" }, { "eagle2:64,60,5", "eagle2:K,N,D" },
        { "eagle2:10,60,28", "eagle2:K,N,D" },
    };
    for (int32_t i = 0; i < N_ELEMENTS(bad); i++) {
        spec_builder *b = (spec_builder *)(uintptr_t)8;
        if (spec_builder_open(&b, bad[i].text, NULL) != SPEC_E_INVALID) fail_msg("\"%s\" was accepted", bad[i].text);
        assert_null(b);
        if (!strstr(spec_last_error(), bad[i].form)) fail_msg("\"%s\": %s", bad[i].text, spec_last_error());
    }
    spec_builder *b;
    assert_int_equal(spec_builder_open(&b, NULL, NULL), SPEC_E_INVALID);
    spec_builder_close(NULL);
    static const char *const good[] = {
        "chain:63", "product:63,3", "beam:64,3", "beam:1,63", "dyspec:255", "dyspec-threshold:1,255",
        "dyspec-threshold:.5", "dyspec-threshold:0.12345678901234",
        "dyspec-threshold:5E-2,255,63,5", "sequoia:255", "sequoia:255,63", "sequoia:255,1",
        "eagle2:64,256,1", "eagle2:25,256,7",
    };
    for (int32_t i = 0; i < N_ELEMENTS(good); i++) spec_builder_close(open_builder(good[i]));
}

/* Whose shape stands before anything is drawn. What a kind leaves out in the end is known by then alone. */
static void known_shapes(void **state)
{
    (void)state;
    static const struct { const char *text; bool known; } kinds[] = {
        { "chain:3", true },      { "product:2,2", true },   { "static:A", true },           { "sequoia:8", true },
        { "beam:3,3", false },    { "eagle2:3,2,1", false }, { "product-repeat:2,2", false }, { "dyspec:8", false },
        { "dyspec-threshold:0.1,8", false },
    };
    for (int32_t i = 0; i < N_ELEMENTS(kinds); i++) {
        spec_builder *b = open_builder(kinds[i].text);
        if (b->known_shape != kinds[i].known) fail_msg("%s", kinds[i].text);
        spec_builder_close(b);
    }
}

static void note_name(void *user, const char *name, const char *args, const char *help)
{
    char *all = user;
    assert_true(args && help && help[0]);
    (void)snprintf(all + strlen(all), 256 - strlen(all), "%s ", name);
}

static void list(void **state)
{
    (void)state;
    char all[256] = "";
    spec_builder_list(note_name, all);
    assert_string_equal(all, "none chain static product product-repeat beam dyspec dyspec-threshold sequoia eagle2 ");
}

/* ---------------------------------------------------------------------------------------- DySpec --- */

/* The method as it is written (4.5): one slot at a time, distributions at once; popped receives the values. */
static void plain_heap(const drafter *d, int32_t m, int32_t n_vocab, int32_t draw, uint64_t seed, spec_tree *t,
                       double *popped)
{
    typedef struct entry { double v, node_value, taken; int32_t node, rank, depth; bool gone; } entry;
    static entry heap[2 * MOST_NODES + 2];
    int32_t n = 1;
    heap[0] = (entry){ .v = 1, .node_value = 1 };
    t->n = 0;
    t->kind = draw ? SPEC_TREE_SAMPLED : SPEC_TREE_DETERMINISTIC;
    (void)spec_tree_add(t, -1, 1, 1.0f);
    while (t->n <= m) {
        int32_t best = -1;
        for (int32_t i = 0; i < n; i++)
            if (!heap[i].gone && (best < 0 || heap[i].v > heap[best].v ||
                                  (heap[i].v == heap[best].v && heap[i].depth < heap[best].depth)))
                best = i;
        if (best < 0) return;
        entry *e = &heap[best];
        e->gone = true;
        float probs[MOST_VOCAB];
        spec_candidate c[SPEC_MAX_CHILD];
        candidates_after(d, t, e->node, draw ? SPEC_DRAW_GUMBEL_TOPK : SPEC_DRAW_TOP, seed, n_vocab, SPEC_MAX_CHILD,
                         probs, c);
        if (e->rank == SPEC_MAX_CHILD || c[e->rank].token < 0 || e->depth == SPEC_MAX_DEPTH) {
            n = best == n - 1 ? n - 1 : n; /* no draw here: nothing follows */
            continue;
        }
        popped[t->n - 1] = e->v;
        const double s = (double)c[e->rank].prob;
        const int32_t child = spec_tree_add(t, e->node, c[e->rank].token, c[e->rank].prob);
        const double rest = e->node_value * (1.0 - (e->taken + s));
        if (rest > 0)
            heap[n++] = (entry){ .v = rest, .node_value = e->node_value, .taken = e->taken + s, .node = e->node,
                                 .rank = e->rank + 1, .depth = e->depth };
        heap[n++] = (entry){ .v = e->node_value * s, .node_value = e->node_value * s, .node = child,
                             .depth = e->depth + 1 };
    }
}

static void dyspec_heap(void **state)
{
    (void)state;
    test_random r = { 31 };
    spec_tree want = new_tree(), got = new_tree();
    int32_t rounds = 0, rows = 0, levels = 0;
    for (int32_t i = 0; i < 400; i++) {
        drafter d = random_drafter(&r);
        const int32_t m = i % 4 == 0 ? 64 : test_below(&r, 40), n_vocab = 2 + test_below(&r, 60),
                      draw = test_below(&r, 4) > 0;
        const uint64_t seed = (uint64_t)i;
        double popped[MOST_NODES];
        char text[32];
        (void)snprintf(text, sizeof text, "dyspec:%d", m);
        plain_heap(&d, m, n_vocab, draw, seed, &want, popped);
        grow_text(text, &d, n_vocab, draw, seed, &got);
        assert_same(&want, &got, text);
        /* A distribution's sum is 1 only within rounding, so that much a value may exceed the one before. */
        for (int32_t j = 1; j < want.n - 1; j++) assert_true(popped[j] <= popped[j - 1] * (1 + 1e-5) + 1e-12);
        if (m == 64 && d.sure == 0) rounds += d.n_call, rows += d.n_asked, levels += deepest(&got);
    }
    print_message("dyspec:64: %d rounds and %d distributions in trees %d deep, all taken together\n", rounds, rows,
                  levels);
    assert_true(rounds < 3 * levels); /* a few per level, not one per node */
    spec_tree_free(&want, NULL);
    spec_tree_free(&got, NULL);
}

/* With t the least value popped, the threshold's tree is the heap's. */
static void dyspec_equal(void **state)
{
    (void)state;
    test_random r = { 32 };
    spec_tree heap = new_tree(), level = new_tree();
    for (int32_t i = 0, n = 0; n < 500; i++) {
        drafter d = random_drafter(&r);
        const int32_t m = 1 + test_below(&r, 14), n_vocab = 2 + test_below(&r, 40);
        double popped[MOST_NODES] = { 0 }, least = 1.0;
        char text[64];
        plain_heap(&d, m + 1, n_vocab, 1, (uint64_t)i, &heap, popped);
        for (int32_t j = 0; j < m && j < heap.n - 1; j++) least = fmin(least, popped[j]);
        if (popped[m] >= least) continue; /* a tie: then m slots of value t or more are not these alone */
        n++;
        (void)snprintf(text, sizeof text, "dyspec:%d", m);
        grow_text(text, &d, n_vocab, 1, (uint64_t)i, &heap);
        (void)snprintf(text, sizeof text, "dyspec-threshold:0.5,%d,%d,%d", m, m, m);
        spec_builder *b = open_builder(text);
        for (int32_t j = 0; j < m; j++) b->levels[j].threshold = b->levels[j].next_threshold = least;
        grow(b, &d, n_vocab, 1, (uint64_t)i, &level);
        assert_same(&heap, &level, text);
        spec_builder_close(b);
    }
    spec_tree_free(&heap, NULL);
    spec_tree_free(&level, NULL);
}

/* A slot of a world of draws, and the sum of the best closed set of m slots: after a slot come its sibling and its
 * first child. Sets are enumerated by going through a list of open slots, taking each or passing it for good. */
typedef struct world {
    const drafter *d;
    spec_tree *t;
    int32_t n_vocab;
    uint64_t seed;
    double best;
} world;
typedef struct open_slot { double v, node_value, taken; int32_t node, rank; } open_slot;

static void take_slots(world *w, const open_slot *open, int32_t n, int32_t left, double sum)
{
    if (sum > w->best) w->best = sum;
    if (left == 0 || n == 0) return;
    take_slots(w, open, n - 1, left, sum); /* without the last one */
    const open_slot e = open[n - 1];
    float probs[MOST_VOCAB];
    spec_candidate c[SPEC_MAX_CHILD];
    candidates_after(w->d, w->t, e.node, SPEC_DRAW_GUMBEL_TOPK, w->seed, w->n_vocab, SPEC_MAX_CHILD, probs, c);
    if (c[e.rank].token < 0) return;
    open_slot next[16];
    memcpy(next, open, (size_t)(n - 1) * sizeof *next);
    const int32_t child = spec_tree_add(w->t, e.node, c[e.rank].token, c[e.rank].prob);
    w->t->rank[child] = e.rank;
    const double s = (double)c[e.rank].prob, taken = e.taken + s;
    next[n - 1] = (open_slot){ e.node_value * (1 - taken), e.node_value, taken, e.node, e.rank + 1 };
    next[n] = (open_slot){ e.node_value * s, e.node_value * s, 0, child, 0 };
    take_slots(w, next, n + 1, left - 1, sum + e.v);
    w->t->n--;
}

static void dyspec_brute(void **state)
{
    (void)state;
    test_random r = { 33 };
    spec_tree t = new_tree(), world_tree = new_tree();
    for (int32_t i = 0; i < 200; i++) {
        drafter d = { .seed = 1 + (uint64_t)i, .sharp = 1 + 3 * test_uniform(&r), .gone = test_below(&r, 2) * 0.3 };
        const int32_t m = 1 + test_below(&r, 6), n_vocab = 2 + test_below(&r, 2);
        char text[32];
        (void)snprintf(text, sizeof text, "dyspec:%d", m);
        grow_text(text, &d, n_vocab, 1, (uint64_t)i, &t);
        double sum = 0, value[8] = { 1 };
        for (int32_t x = 1; x < t.n; x++) {
            double before = 0;
            for (int32_t y = 1; y < t.n; y++)
                if (t.parent[y] == t.parent[x] && t.rank[y] < t.rank[x]) before += (double)t.prob[y];
            sum += value[t.parent[x]] * (1 - before);
            value[x] = value[t.parent[x]] * (double)t.prob[x];
        }
        world w = { &d, &world_tree, n_vocab, (uint64_t)i, 0 };
        world_tree.n = 0;
        (void)spec_tree_add(&world_tree, -1, 1, 1.0f);
        take_slots(&w, &(open_slot){ 1, 1, 0, 0, 0 }, 1, m, 0);
        assert_true(fabs(sum - w.best) < 1e-5);
    }
    spec_tree_free(&t, NULL);
    spec_tree_free(&world_tree, NULL);
}

/* The controller brings the mean size to 3/4 N, from thresholds far above and below. */
static void controller(void **state)
{
    (void)state;
    static const char *const texts_[] = { "dyspec-threshold:0.2,32,8,8", "dyspec-threshold:0.004,32,8,8" };
    for (int32_t i = 0; i < 2; i++) {
        drafter d = { .seed = 3, .sharp = 12 };
        spec_builder *b = open_builder(texts_[i]);
        spec_tree t = new_tree();
        double first = 0, last = 0;
        for (uint64_t step = 0; step < 400; step++) {
            d.seed = 1 + step;
            grow(b, &d, 50, 1, step, &t);
            spec_builder_observe(b, t.n, NULL, 0);
            if (step < 5) first += (t.n - 1) / 5.0;
            if (step >= 200) last += (t.n - 1) / 200.0;
        }
        print_message("%s: %.1f drafts in the first steps, %.1f in the last\n", texts_[i], first, last);
        assert_true(fabs(first - 24) > 3 && fabs(last - 24) < 1.5);
        /* Out of reach, it stays within its bounds. */
        const double t0 = i == 0 ? 0.2 : 0.004;
        for (int32_t step = 0; step < 1000; step++) spec_builder_observe(b, 1, NULL, 0);
        assert_true(b->levels[0].threshold >= t0 / 64 * (1 - 1e-12) && b->levels[0].threshold < t0 / 60);
        for (int32_t step = 0; step < 1000; step++) spec_builder_observe(b, 256, NULL, 0);
        assert_true(b->levels[1].next_threshold <= fmin(1.0, 64 * t0) &&
                    b->levels[1].next_threshold > fmin(0.9, 60 * t0) - 1e-12);
        spec_builder_close(b);
        spec_tree_free(&t, NULL);
    }
    /* One step: twice as many drafts as aimed at. A tree without a root is none. */
    spec_builder *b = open_builder("dyspec-threshold:0.1,32,8,8");
    spec_builder_observe(b, 0, NULL, 0);
    assert_true(b->levels[0].threshold == 0.1);
    spec_builder_observe(b, 1 + 48, NULL, 0);
    assert_true(fabs(b->levels[0].threshold - 0.1 * exp(0.25)) < 1e-12);
    spec_builder_close(b);
}

/* --------------------------------------------------------------------------------------- Sequoia --- */

/* The best expected emitted tokens of shapes of m nodes, by enumerating them as closed sets of slots. */
typedef struct open_child { double value; int32_t rank, depth; } open_child; /* value of the parent's path */

static double best_shape(const float *a, int32_t n_a, int32_t levels, const open_child *open, int32_t n, int32_t left)
{
    if (left == 0) return 0;
    if (n == 0) return -INFINITY;
    double best = best_shape(a, n_a, levels, open, n - 1, left);
    const open_child e = open[n - 1];
    if (e.rank < n_a && e.depth < levels) {
        open_child next[16];
        memcpy(next, open, (size_t)(n - 1) * sizeof *next);
        const double value = e.value * (double)a[e.rank];
        next[n - 1] = (open_child){ e.value, e.rank + 1, e.depth };
        next[n] = (open_child){ value, 0, e.depth + 1 };
        best = fmax(best, value + best_shape(a, n_a, levels, next, n + 1, left - 1));
    }
    return best;
}

/* Solves, and checks that the shape has that value. */
static double solve(const float *a, int32_t n_a, int32_t m, int32_t l, int32_t *n)
{
    int32_t parent[MOST_NODES];
    void *work = malloc(speci_sequoia_bytes(m, l, n_a));
    const double g = speci_sequoia(&(speci_sequoia_args){ a, n_a, m, l, NULL }, work, parent, n);
    double value[MOST_NODES] = { 1 }, sum = 1;
    int32_t depth[MOST_NODES] = { 1 }, child[MOST_NODES] = { 0 };
    for (int32_t i = 1; i < *n; i++) {
        assert_in_range(parent[i], 0, i - 1);
        depth[i] = depth[parent[i]] + 1;
        assert_true(depth[i] <= l && child[parent[i]] < n_a);
        value[i] = value[parent[i]] * (double)a[child[parent[i]]++];
        sum += value[i];
    }
    assert_true(fabs(sum - g) < 1e-9);
    free(work);
    return g;
}

static void sequoia(void **state)
{
    (void)state;
    static const float a[] = { 0.6f, 0.2f, 0.08f };
    static const struct { int32_t m, l; double g; } known[] = { { 4, 2, 1.88 }, { 4, 3, 2.16 }, { 5, 4, 2.376 },
                                                                { 6, 4, 2.496 }, { 8, 3, 2.528 }, { 8, 4, 2.696 } };
    int32_t n;
    for (int32_t i = 0; i < N_ELEMENTS(known); i++) {
        assert_true(fabs(solve(a, 3, known[i].m, known[i].l, &n) - known[i].g) < 1e-6);
        assert_int_equal(n, known[i].m);
    }
    assert_true(solve(a, 3, 8, 2, &n) > 1.879 && n == 4); /* no more find room */
    assert_true(solve(a, 3, 8, 1, &n) == 1 && n == 1);

    test_random r = { 6 };
    for (int32_t i = 0; i < 300; i++) {
        float b[8];
        const int32_t n_a = 1 + test_below(&r, 5), m = 1 + test_below(&r, 8), l = 1 + test_below(&r, 6);
        double left = 1;
        for (int32_t j = 0; j < n_a; j++) left -= (double)(b[j] = (float)(left * test_uniform(&r)));
        const double want = 1 + best_shape(b, n_a, l, &(open_child){ 1, 0, 1 }, 1, m - 1);
        const double got = solve(b, n_a, m, l, &n);
        if (want > 0) assert_true(n == m && fabs(got - want) < 1e-9);
        else assert_true(n < m);
    }
}

/* With costs: the best rate over all smaller problems, found by solving each. */
static void sequoia_costs(void **state)
{
    (void)state;
    test_random r = { 16 };
    int32_t n_smaller = 0;
    for (int32_t i = 0; i < 200; i++) {
        float a[4];
        double left = 1, best = 0, rate = 0;
        for (int32_t j = 0; j < 4; j++) left -= (double)(a[j] = (float)(left * test_uniform(&r)));
        const int32_t m = 2 + test_below(&r, 12), l = 2 + test_below(&r, 5);
        spec_cost_profile costs = { .struct_size = sizeof costs };
        spec_cost_table *tables[] = { &costs.target, &costs.draft };
        for (int32_t k = 0; k < 2; k++)
            for (int32_t j = 0; j < 4; j++) { /* up and down, as measured ones go */
                tables[k]->n_node[j] = 1 << (2 * j);
                tables[k]->ms[j] = (float)((k == 0 ? 1.0 : 0.2) + test_uniform(&r) * j);
                tables[k]->n = j + 1;
            }
        int32_t parent[MOST_NODES], n;
        void *work = malloc(speci_sequoia_bytes(m, l, 4));
        const double g = speci_sequoia(&(speci_sequoia_args){ a, 4, m, l, &costs }, work, parent, &n);
        for (int32_t lj = 2; lj <= l; lj++)
            for (int32_t mj = 2; mj <= m; mj++) {
                int32_t got;
                const double gj = solve(a, 4, mj, lj, &got);
                const double ms = (double)spec_cost_ms(&costs.target, mj) +
                                  (lj - 1) * (double)spec_cost_ms(&costs.draft, (mj - 2 + lj - 1) / (lj - 1));
                if (got != mj) continue;
                best = fmax(best, gj / ms);
                if (mj == n && fabs(gj - g) < 1e-9) rate = fmax(rate, gj / ms); /* what was found, as it was meant */
            }
        assert_true(n >= 2 && fabs(rate - best) < 1e-9 * best);
        n_smaller += n < m;
        free(work);
    }
    assert_in_range(n_smaller, 20, 199);
    /* Where more nodes bring nothing and cost nothing, there are none. */
    const spec_cost_profile flat = { .struct_size = sizeof flat, .target = { .n = 1, .n_node = { 1 }, .ms = { 1 } } };
    const float never[2] = { 0 };
    int32_t parent[MOST_NODES], n;
    void *work = malloc(speci_sequoia_bytes(9, 4, 2));
    (void)speci_sequoia(&(speci_sequoia_args){ never, 2, 9, 4, &flat }, work, parent, &n);
    assert_int_equal(n, 2);
    free(work);
}

/* The shape that sequoia:12,12 has after the same observation n times. Nothing is allocated for it, and what a session
 * planned with holds. */
static void shape_after(const int32_t *ranks, int32_t n_ranks, int32_t n, spec_tree *t)
{
    support_memory m = { 0 };
    const spec_allocator a = support_allocator(&m);
    spec_builder *b;
    drafter d = { .seed = 5, .sharp = 2 };
    test_ok(spec_builder_open(&b, "sequoia:12,12", &a), "sequoia");
    spec_builder_info info = { .struct_size = sizeof info }, after = info;
    test_ok(spec_builder_get_info(b, &info), "info");
    const int64_t n_call = m.n_call;
    assert_true(n_call > 0);
    for (int32_t i = 0; i < n; i++) spec_builder_observe(b, 13, ranks, n_ranks);
    assert_int_equal(m.n_call, n_call);
    test_ok(spec_builder_get_info(b, &after), "info");
    assert_memory_equal(&info, &after, sizeof info);
    grow(b, &d, 40, 1, 1, t);
    assert_int_equal(t->n, 13);
    spec_builder_close(b);
    assert_int_equal(m.n_block, 0);
}

/* Drafts that are always accepted make the shape a chain, rejected ones make it flat, and where second children are
 * accepted more often than first ones, more hangs below them. */
static void sequoia_observes(void **state)
{
    (void)state;
    static const int32_t all[] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }, none[] = { -1 }, second[] = { 1, -1 };
    spec_tree t = new_tree();
    shape_after(NULL, 0, 0, &t);
    const int32_t before = deepest(&t);
    shape_after(all, 12, 63, &t); /* not yet planned anew */
    assert_int_equal(deepest(&t), before);
    shape_after(all, 12, 1024, &t);
    assert_true(deepest(&t) > before + 3);
    shape_after(none, 1, 1024, &t);
    assert_true(deepest(&t) < before);
    shape_after(second, 2, 1024, &t);
    int32_t below[2] = { 0 };
    for (int32_t x = 1; x < t.n; x++) {
        int32_t rank[16];
        (void)ranks_to(&t, x, rank);
        if (rank[0] < 2) below[rank[0]]++;
    }
    assert_true(below[1] > below[0]);
    spec_tree_free(&t, NULL);
}

/* ------------------------------------------------------------------------------- beams and EAGLE-2 --- */

typedef struct extension { double value; int32_t beam, rank; } extension;

static bool better(const extension *x, const extension *y)
{
    if (x->value != y->value) return x->value > y->value;
    return x->beam != y->beam ? x->beam < y->beam : x->rank < y->rank;
}

/* Beam search with a full sort of all extensions; all: EAGLE-2's pool, where every extension is a node. */
static void plain_beam(const drafter *d, int32_t m, int32_t n_level, int32_t n_vocab, bool all, spec_tree *t)
{
    static extension list_[64 * MOST_VOCAB];
    static double value[SPECI_MAX_POOL];
    int32_t beam[64] = { 0 }, n_beam = 1;
    t->n = 0;
    t->kind = SPEC_TREE_DETERMINISTIC;
    (void)spec_tree_add(t, -1, 1, 1.0f);
    value[0] = 1;
    for (int32_t level = 0; level < n_level && n_beam > 0; level++) {
        int32_t n = 0, node[64][64];
        float probs[MOST_VOCAB], prob[64][64];
        int32_t token[64][64];
        for (int32_t f = 0; f < n_beam; f++) {
            spec_candidate c[SPEC_MAX_CHILD];
            candidates_after(d, t, beam[f], SPEC_DRAW_TOP, 0, n_vocab, m, probs, c);
            for (int32_t j = 0; j < m && c[j].token >= 0; j++) {
                list_[n++] = (extension){ value[beam[f]] * (double)c[j].prob, f, j };
                token[f][j] = c[j].token, prob[f][j] = c[j].prob, node[f][j] = -1;
            }
        }
        for (int32_t i = 1; i < n; i++)
            for (int32_t j = i; j > 0 && better(&list_[j], &list_[j - 1]); j--) {
                const extension x = list_[j];
                list_[j] = list_[j - 1], list_[j - 1] = x;
            }
        const int32_t next = n < m ? n : m;
        for (int32_t f = 0; f < n_beam; f++)
            for (int32_t j = 0; j < m; j++)
                for (int32_t i = 0; i < (all ? n : next); i++)
                    if (list_[i].beam == f && list_[i].rank == j) {
                        node[f][j] = spec_tree_add(t, beam[f], token[f][j], prob[f][j]);
                        value[node[f][j]] = list_[i].value;
                    }
        int32_t best[64];
        for (int32_t i = 0; i < next; i++) best[i] = node[list_[i].beam][list_[i].rank];
        /* In the order of the tree. */
        for (int32_t i = 0; i < next; i++)
            for (int32_t j = i; j > 0 && best[j] < best[j - 1]; j--) {
                const int32_t x = best[j];
                best[j] = best[j - 1], best[j - 1] = x;
            }
        memcpy(beam, best, sizeof beam);
        n_beam = next;
    }
}

static void beams(void **state)
{
    (void)state;
    test_random r = { 41 };
    spec_tree want = new_tree(), got = new_tree();
    for (int32_t i = 0; i < 200; i++) {
        drafter d = random_drafter(&r);
        const int32_t m = 1 + test_below(&r, 6), n = 1 + test_below(&r, 5), n_vocab = 2 + test_below(&r, 30);
        char text[32];
        (void)snprintf(text, sizeof text, "beam:%d,%d", m, n);
        plain_beam(&d, m, n, n_vocab, false, &want);
        grow_text(text, &d, n_vocab, test_below(&r, 2), 0, &got);
        assert_same(&want, &got, text);
        if (d.gone == 0 && d.sure == 0 && n_vocab >= m) assert_int_equal(got.n, 1 + m * n);
    }
    spec_tree_free(&want, NULL);
    spec_tree_free(&got, NULL);
}

/* All of one token, and more than that: a sum may be so far from 1. */
static spec_status more_than_sure(void *user, const spec_tree *tree, const int32_t *nodes, int32_t n, float *out, int32_t n_vocab)
{
    (void)user, (void)tree, (void)nodes;
    for (int32_t i = 0; i < n * n_vocab; i++) out[i] = i % n_vocab == 0 ? 1.0005f : 0.0f;
    return SPEC_OK;
}

static void eagle2(void **state)
{
    (void)state;
    test_random r = { 42 };
    spec_tree pool, got = new_tree();
    test_ok(spec_tree_alloc(&pool, SPECI_MAX_POOL, NULL), "spec_tree_alloc");
    for (int32_t i = 0; i < 300; i++) {
        drafter d = random_drafter(&r);
        const int32_t k = 1 + test_below(&r, 5), n = 1 + test_below(&r, 30), levels = 1 + test_below(&r, 5);
        const int32_t n_vocab = 2 + test_below(&r, 20);
        char text[64];
        (void)snprintf(text, sizeof text, "eagle2:%d,%d,%d", k, n, levels);
        plain_beam(&d, k, levels, n_vocab, true, &pool);
        double value[1024] = { 1 };
        static int32_t map[1024];
        uint8_t keep[1024];
        for (int32_t x = 1; x < pool.n; x++) value[x] = value[pool.parent[x]] * (double)pool.prob[x];
        for (int32_t x = 0; x < pool.n; x++) {
            int32_t before = 0;
            for (int32_t y = 1; y < pool.n; y++) {
                const int32_t dx = depth_of(&pool, x), dy = depth_of(&pool, y);
                before += value[y] > value[x] || (value[y] == value[x] && (dy < dx || (dy == dx && y < x)));
            }
            keep[x] = x == 0 || before < n - 1;
        }
        /* Closed under parents, ties or not: what is kept is what is left. */
        int32_t n_keep = 0;
        for (int32_t x = 0; x < pool.n; x++) {
            n_keep += keep[x];
            if (keep[x] && x > 0) assert_true(keep[pool.parent[x]]);
        }
        spec_tree_prune(&pool, map, keep, 0);
        assert_int_equal(pool.n, n_keep);
        grow_text(text, &d, n_vocab, test_below(&r, 2), 0, &got);
        assert_same(&pool, &got, text);
    }
    /* Distributions of one token: the shortest part of the chain stays. */
    drafter sure = { .seed = 2, .sharp = 1, .sure = 1 };
    grow_text("eagle2:4,4,6", &sure, 9, 0, 0, &got);
    assert_int_equal(got.n, 4);
    assert_int_equal(deepest(&got), 3);
    spec_builder *b = open_builder("eagle2:2,3,4");
    spec_build_args args = args_for(&sure, 9, 0, 0);
    args.probs = more_than_sure;
    test_ok(spec_builder_build(b, &got, &args), "spec_builder_build");
    assert_true(got.n == 3 && got.parent[1] == 0 && got.parent[2] == 1);
    assert_int_equal(b->info.n_row, 1 + 3 * 2);
    spec_builder_close(b);
    spec_tree_free(&pool, NULL);
    spec_tree_free(&got, NULL);
}

/* ----------------------------------------------------------------------------------- with repeats --- */

static void repeats(void **state)
{
    (void)state;
    spec_tree t = new_tree();
    int32_t n_repeat = 0;
    for (uint64_t seed = 0; seed < 100; seed++) {
        drafter d = { .seed = seed + 1, .sharp = 3 };
        grow_text("product-repeat:4,3", &d, 6, 1, seed, &t);
        assert_int_equal(n_children(&t, 0), 4);
        for (int32_t i = 1; i < t.n; i++) {
            bool repeat = false;
            for (int32_t j = 1; j < i; j++) repeat |= t.parent[j] == t.parent[i] && t.token[j] == t.token[i];
            n_repeat += repeat;
            if (depth_of(&t, i) == 1) assert_int_equal(n_children(&t, i), repeat ? 0 : 3);
        }
    }
    assert_true(n_repeat > 50);
    spec_tree_free(&t, NULL);
}

/* ------------------------------------------------------------------------------------------ errors --- */

static void probs_errors(void **state)
{
    (void)state;
    static const char *const kinds[] = { "product:2,2,2", "dyspec:12", "eagle2:3,9,3", "beam:3,3", "sequoia:9" };
    static const struct { fault fault; const char *says; } faults[] = {
        { NAN_PROBS, "nan for token 1" }, { NEGATIVE, "-0.5 for token 1" }, { INFINITE, "inf for token 1" },
        { LONG, "has the sum 1.001" }, { SHORT, "has the sum 0.998" }, { REFUSED, "tired" },
    };
    spec_tree t = new_tree(), was = new_tree();
    for (int32_t i = 0; i < N_ELEMENTS(kinds); i++)
        for (int32_t j = 0; j < N_ELEMENTS(faults); j++)
            for (int32_t call = 0; call < 2; call++) {
                drafter d = { .seed = 6, .sharp = 1, .fault = faults[j].fault, .fault_call = call };
                spec_builder *b = open_builder(kinds[i]);
                spec_build_args args = args_for(&d, 3, 1, 4);
                t.n = 0;
                (void)spec_tree_add(&t, -1, 5, 0.25f);
                test_ok(spec_tree_copy(&was, &t), "spec_tree_copy");
                assert_int_equal(spec_builder_build(b, &t, &args),
                                 faults[j].fault == REFUSED ? SPEC_E_ABORTED : SPEC_E_INVALID);
                if (!strstr(spec_last_error(), faults[j].says)) fail_msg("%s: %s", kinds[i], spec_last_error());
                if (call == 0 && faults[j].fault != REFUSED)
                    assert_non_null(strstr(spec_last_error(), "after node 0 "));
                if (call == 1) assert_null(strstr(spec_last_error(), "after node 0 "));
                assert_true(t.n == 1 && t.token[0] == 5 && t.prob[0] == 0.25f && t.q_row[0] == was.q_row[0]);
                d.fault = NO_FAULT; /* and it is as good as before */
                grow(b, &d, 3, 1, 4, &t);
                spec_builder_close(b);
            }
    spec_builder *b = open_builder("chain:3");
    drafter d = { .seed = 1, .sharp = 1 };
    spec_build_args args = args_for(&d, 5, 1, 4);
    t.cap = 3;
    assert_int_equal(spec_builder_build(b, &t, &args), SPEC_E_INVALID);
    t.cap = MOST_NODES;
    args.token = 5;
    assert_int_equal(spec_builder_build(b, &t, &args), SPEC_E_INVALID);
    args.token = 1, args.depth_max = -1;
    assert_int_equal(spec_builder_build(b, &t, &args), SPEC_E_INVALID);
    args.depth_max = 0, args.probs = NULL;
    assert_int_equal(spec_builder_build(b, &t, &args), SPEC_E_INVALID);
    assert_int_equal(spec_builder_build(b, &t, NULL), SPEC_E_INVALID);
    spec_builder_close(b);
    spec_tree_free(&t, NULL);
    spec_tree_free(&was, NULL);
}

static void no_memory(void **state)
{
    (void)state;
    spec_tree t = new_tree();
    for (int32_t i = 0; i < N_ELEMENTS(every); i++) {
        bool done = false;
        for (int32_t n = 1; !done; n++) {
            support_memory m = { .fail_at = n };
            const spec_allocator a = support_allocator(&m);
            drafter d = { .seed = 1, .sharp = 2 };
            spec_builder *b;
            t.n = 0;
            spec_status status = spec_builder_open(&b, every[i], &a);
            if (status == SPEC_OK) {
                const spec_build_args args = args_for(&d, 30, 1, 1);
                status = spec_builder_build(b, &t, &args);
            }
            spec_builder_close(b);
            assert_int_equal(m.n_block, 0);
            done = status == SPEC_OK;
            if (!done) assert_true(status == SPEC_E_NOMEM && t.n == 0);
            assert_true(n < 100);
        }
    }
    spec_tree_free(&t, NULL);
}

/* A tree with less room keeps its first nodes; whole slots with all that comes after them. */
static void less_room(void **state)
{
    (void)state;
    spec_builder *b = open_builder("product:3,2,2");
    drafter d = { .seed = 1, .sharp = 2 };
    spec_tree t = new_tree(), small = new_tree();
    grow(b, &d, 30, 1, 1, &t);
    const int32_t n = t.n;
    for (int32_t cap = 1; cap <= n; cap++) {
        grow(b, &d, 30, 1, 1, &t);
        small.cap = cap;
        test_ok(speci_builder_trim(b, &t, 0, &small), "speci_builder_trim");
        test_ok(spec_tree_check(&small, cap, 30), "what is left");
        assert_int_equal(small.n, cap);
        assert_int_equal(small.kind, SPEC_TREE_SAMPLED);
        for (int32_t i = 0; i < cap; i++) assert_true((small.q_row[i] >= 0) == (n_children(&small, i) > 0));
    }
    spec_builder_close(b);
    spec_tree_free(&t, NULL);
    spec_tree_free(&small, NULL);
}

/* -------------------------------------------------------------------------------- a builder of ours --- */

typedef enum slip {
    NO_SLIP, OTHER_TOKEN, FED_TWICE, FED_AGAIN, FED_NOBODY, FED_TOO_MANY, FED_TOO_FEW, BELOW_UNFED, TOO_DEEP, ROOT, SKIPPED, FAILS
} slip;

typedef struct own_builder { slip slip; int32_t n_candidate_row; } own_builder;

/* Grows a chain of the first candidates, as chain:3. */
static spec_status expand(void *user, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                        int32_t *n_feed, int32_t n_feed_max)
{
    own_builder *o = user;
    assert_int_equal(k, 2);
    assert_int_equal(n_feed_max, 3 - 1 - o->n_candidate_row);
    const int32_t last = tree->n - 1;
    assert_int_equal(tree->q_row[last], o->n_candidate_row++);
    const spec_candidate *c = candidates + (size_t)tree->q_row[last] * (size_t)k;
    if (o->slip == FAILS) return speci_fail(SPEC_E_ABORTED, "no");
    if (c->token < 0) return SPEC_OK;
    int32_t x = spec_tree_add(tree, last, o->slip == OTHER_TOKEN ? c[1].token : c->token, c->prob);
    if (o->slip == BELOW_UNFED) x = spec_tree_add(tree, x, c->token, c->prob);
    if (o->slip == SKIPPED) (void)spec_tree_add(tree, last, 11, c->prob);
    if (o->slip == ROOT) tree->token[0]++;
    if (o->slip == TOO_DEEP) (void)spec_tree_add(tree, x, c->token, c->prob);
    feed[0] = o->slip == FED_AGAIN ? 0 : o->slip == FED_NOBODY ? tree->n : x;
    *n_feed = n_feed_max > 0;
    if (o->slip == FED_TWICE) feed[1] = x, *n_feed = 2;
    if (o->slip == FED_TOO_MANY) *n_feed = n_feed_max + 1;
    if (o->slip == FED_TOO_FEW) *n_feed = -1;
    if (o->slip == NO_SLIP) tree->kind = SPEC_TREE_UNROLLED; /* which is not its business */
    return SPEC_OK;
}

static void own(void **state)
{
    (void)state;
    static const struct { slip slip; const char *says; } slips[] = {
        { OTHER_TOKEN, "its candidate is" }, { FED_TWICE, "fed before" }, { FED_AGAIN, "fed before" },
        { FED_NOBODY, "feeds node 2 of 2" }, { FED_TOO_MANY, "distributions; " }, { FED_TOO_FEW, "for -1 distributions" },
        { BELOW_UNFED, "not fed" },
        { ROOT, "changed the root" }, { SKIPPED, "has token 11" }, { FAILS, "no" },
    };
    own_builder o = { .slip = NO_SLIP };
    spec_builder_ops ops = { .struct_size = sizeof ops, .n_node = 4, .n_row = 3, .n_level = 3, .depth = 3, .k = 2,
                             .kind = SPEC_TREE_SAMPLED, .expand = expand, .user_data = &o };
    spec_builder *b;
    drafter d = { .seed = 9, .sharp = 2 };
    spec_tree t = new_tree(), chain = new_tree();
    test_ok(spec_builder_from_ops(&b, &ops, NULL), "spec_builder_from_ops");
    for (int32_t draw = 0; draw < 2; draw++) {
        o.n_candidate_row = 0;
        grow(b, &d, 10, draw, 3, &t);
        grow_text("chain:3", &d, 10, draw, 3, &chain);
        assert_same(&chain, &t, "a chain, host-driven");
        assert_int_equal(t.kind, draw ? SPEC_TREE_SAMPLED : SPEC_TREE_DETERMINISTIC);
    }
    for (int32_t i = 0; i < N_ELEMENTS(slips); i++) {
        o = (own_builder){ .slip = slips[i].slip };
        const spec_build_args args = args_for(&d, 10, 1, 3);
        t.n = 0;
        assert_int_equal(spec_builder_build(b, &t, &args), slips[i].slip == FAILS ? SPEC_E_ABORTED : SPEC_E_INVALID);
        if (!strstr(spec_last_error(), slips[i].says)) fail_msg("slip %d: %s", (int)slips[i].slip, spec_last_error());
        assert_int_equal(t.n, 0);
    }
    spec_builder_close(b);
    /* Chosen trees may take other tokens, but not grow deeper than said. */
    ops.depth = 1, ops.kind = SPEC_TREE_DETERMINISTIC;
    o = (own_builder){ .slip = TOO_DEEP };
    test_ok(spec_builder_from_ops(&b, &ops, NULL), "spec_builder_from_ops");
    const spec_build_args args = args_for(&d, 10, 1, 3);
    assert_int_equal(spec_builder_build(b, &t, &args), SPEC_E_INVALID);
    assert_non_null(strstr(spec_last_error(), "deep"));
    spec_builder_close(b);
    spec_tree_free(&t, NULL);
    spec_tree_free(&chain, NULL);
}

static void own_refused(void **state)
{
    (void)state;
    const spec_builder_ops good = { .struct_size = sizeof good, .n_node = 4, .n_row = 3, .n_level = 3, .depth = 1, .k = 2,
                                    .kind = SPEC_TREE_DETERMINISTIC, .expand = expand };
    spec_builder_ops ops = good;
    spec_builder *b;
    assert_int_equal(spec_builder_from_ops(&b, NULL, NULL), SPEC_E_INVALID);
    ops = good, ops.expand = NULL;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    ops = good, ops.n_node = 257;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    ops = good, ops.n_node = 0;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    ops = good, ops.k = 65;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    ops = good, ops.k = 0;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    ops = good, ops.depth = 64;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    ops = good, ops.n_row = 257;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    ops = good, ops.kind = SPEC_TREE_UNROLLED;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    ops = good, ops.kind = (spec_tree_kind)9;
    assert_int_equal(spec_builder_from_ops(&b, &ops, NULL), SPEC_E_INVALID);
    assert_null(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts),        cmocka_unit_test(list),         cmocka_unit_test(shapes),
        cmocka_unit_test(files),        cmocka_unit_test(slots),        cmocka_unit_test(shared_slots),
        cmocka_unit_test(dyspec_heap),  cmocka_unit_test(dyspec_equal), cmocka_unit_test(dyspec_brute),
        cmocka_unit_test(controller),   cmocka_unit_test(sequoia),      cmocka_unit_test(sequoia_observes),
        cmocka_unit_test(beams),        cmocka_unit_test(eagle2),       cmocka_unit_test(repeats),
        cmocka_unit_test(probs_errors),   cmocka_unit_test(no_memory),    cmocka_unit_test(less_room),
        cmocka_unit_test(own),          cmocka_unit_test(own_refused),  cmocka_unit_test(sequoia_costs),
        cmocka_unit_test(known_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
