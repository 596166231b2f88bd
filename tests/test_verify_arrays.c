/* test_verify_arrays.c - verification on plain arrays: the rules as exact probabilities (algorithms.md 3.8), the
 * library's walk against them by statistics and draw by draw, the table of 3.6, and what is refused. Also the
 * distribution of logits, and the draw from it. */
#include "tests/test.h"

#include <math.h>
#include <stdio.h>

#include "algorithms/engine/engine.h"
#include "tests/ref_ops.h"
#include "tests/support_distribution.h"
#include "tests/support_statistics.h"

enum { MAX_V = 6, MAX_K = 4 };

/* ------------------------------------------------------------------ the rules as probabilities --- */

/* What of k candidates, in draw order, is proposed. */
typedef enum proposal {
    ALONE,        /* sampled without replacement */
    REPEATED,     /* sampled independently */
    MERGED,       /* sampled independently, duplicates removed */
    TOP,          /* the likeliest of q */
    SORTED,       /* sampled without replacement, then sorted by falling q */
    STOPPED,      /* two, and more only where the second one's q is not small */
    DROPPED_LAST, /* the third is dropped where its own q is small */
    DROPPED       /* each is dropped where its own q is small */
} proposal;

typedef enum exact_rule {
    WITHOUT, /* multi-step sampling without replacement */
    WITH,    /* with replacement */
    POINT,   /* each candidate verified by the point mass at it (3.4) */
    LAST_P,  /* bug: WITHOUT, but the last draw is from p */
    ROOT_Q   /* bug: WITHOUT, verified by sqrt(q), normalised */
} exact_rule;

static const double SMALL = 0.20;

/* One node: p, and the draft distribution of each candidate, q [n_row][v]; row [k]. Summed over all proposals: */
typedef struct node_distributions {
    int32_t v, k, n_row;
    double p[MAX_V], q[MAX_K][MAX_V];
    proposal how;
    exact_rule rule;
    double probs[MAX_V], accepted;
} node_distributions;

/* A uniform accepts y with probability min(1, R(y) / D(y)). */
static void verify_exactly(node_distributions *t, const int32_t *y, int32_t k, double weight)
{
    double r[MAX_V], d[MAX_K][MAX_V];
    memcpy(r, t->p, sizeof r);
    memcpy(d, t->q, sizeof d);
    for (int32_t j = 0; t->rule == ROOT_Q && j < t->n_row; j++) {
        for (int32_t i = 0; i < t->v; i++) d[j][i] = sqrt(d[j][i]);
        probs_normalise(d[j], t->v);
    }
    for (int32_t j = 0; j < k; j++) {
        double *dj = d[j % t->n_row], point[MAX_V] = { 0 };
        point[y[j]] = 1;
        if (t->rule == POINT) dj = point;
        if (dj[y[j]] == 0) continue;
        const double accept = fmin(1, r[y[j]] / dj[y[j]]);
        t->probs[y[j]] += weight * accept;
        t->accepted += weight * accept;
        weight *= 1 - accept;
        if (weight < 1e-18) return;
        for (int32_t i = 0; i < t->v; i++) r[i] = fmax(r[i] - dj[i], 0);
        probs_normalise(r, t->v);
        if (t->rule == WITH || t->rule == POINT) continue;
        dj[y[j]] = 0;
        probs_normalise(dj, t->v);
    }
    for (int32_t i = 0; i < t->v; i++) t->probs[i] += weight * (t->rule == LAST_P ? t->p[i] : r[i]);
}

/* Which of the draws y [k] are proposed; q: the distribution of all. */
static int32_t filter(proposal how, const double *q, int32_t *y, int32_t k)
{
    int32_t n = 0;
    for (int32_t j = 0; j < k; j++) {
        bool keep = true;
        for (int32_t i = 0; how == MERGED && i < n; i++) keep = keep && y[i] != y[j];
        if (how == STOPPED && j >= 2) keep = q[y[1]] >= SMALL;
        if (how == DROPPED_LAST && j == 2) keep = q[y[2]] >= SMALL;
        if (how == DROPPED) keep = q[y[j]] >= SMALL;
        if (keep) y[n++] = y[j];
    }
    for (int32_t i = 1; how == SORTED && i < n; i++)
        for (int32_t j = i; j > 0 && q[y[j]] > q[y[j - 1]]; j--) {
            const int32_t swap = y[j];
            y[j] = y[j - 1], y[j - 1] = swap;
        }
    return n;
}

static bool independent(proposal how)
{
    return how == REPEATED || how == MERGED;
}

/* The distribution that candidate j is drawn from, given those before it; false where nothing is left. */
static bool draw_probs(const node_distributions *t, const int32_t *y, int32_t j, double *probs)
{
    memcpy(probs, t->q[j % t->n_row], sizeof t->q[0]);
    for (int32_t i = j % t->n_row; i < j && !independent(t->how); i += t->n_row) probs[y[i]] = 0;
    return probs_normalise(probs, t->v) > 0;
}

/* All draws y[j..k) with their probability. */
static void enumerate(node_distributions *t, int32_t *y, int32_t j, double weight)
{
    double probs[MAX_V];
    if (j < t->k && draw_probs(t, y, j, probs)) {
        for (int32_t i = 0; i < t->v; i++) {
            y[j] = i;
            if (probs[i] > 0) enumerate(t, y, j + 1, weight * probs[i]);
        }
        return;
    }
    int32_t kept[MAX_K];
    memcpy(kept, y, sizeof kept);
    verify_exactly(t, kept, filter(t->how, t->q[0], kept, j), weight);
}

static int32_t take_top(const double *q, int32_t v, int32_t k, int32_t *y)
{
    int32_t n = 0;
    for (; n < k; n++) {
        y[n] = -1;
        for (int32_t i = 0; i < v; i++) {
            bool free = q[i] > 0;
            for (int32_t j = 0; j < n; j++) free = free && y[j] != i;
            if (free && (y[n] < 0 || q[i] > q[y[n]])) y[n] = i;
        }
        if (y[n] < 0) break;
    }
    return n;
}

static void solve(node_distributions *t)
{
    int32_t y[MAX_K];
    memset(t->probs, 0, sizeof t->probs);
    t->accepted = 0;
    if (t->how == TOP)
        verify_exactly(t, y, take_top(t->q[0], t->v, t->k, y), 1);
    else
        enumerate(t, y, 0, 1);
}

/* Total variation between the emitted distribution and p. */
static double distance(const node_distributions *t)
{
    double sum = 0;
    for (int32_t i = 0; i < t->v; i++) sum += fabs(t->probs[i] - t->p[i]);
    return sum / 2;
}

static void test_fixture(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        proposal how;
        exact_rule rule;
        double accepted, distance; /* accepted -1: no number is given */
    } cases[] = {
        { "without replacement", ALONE, WITHOUT, 0.99348, 0 },
        { "with replacement", REPEATED, WITH, 0.93002, 0 },
        { "the three likeliest, naive", TOP, POINT, 0.60, 0 },
        { "duplicates skipped", REPEATED, WITHOUT, -1, 0 },
        { "duplicates removed", MERGED, WITHOUT, -1, 0 },
        { "sampled, naive", ALONE, POINT, -1, 0 },
        { "stopped by the second", STOPPED, WITHOUT, -1, 0 },
        { "bug: sorted by q", SORTED, WITHOUT, 0.9893, 0.34654 },
        { "bug: the three likeliest verified by p/q", TOP, WITHOUT, -1, 0.51333 },
        { "bug: replacement rule on draws without", ALONE, WITH, -1, 0.00652 },
        { "bug: replacement rule, duplicates removed", MERGED, WITH, -1, 0.00338 },
        { "bug: third dropped for its own q", DROPPED_LAST, WITHOUT, -1, 0.01980 },
        { "bug: each dropped for its own q", DROPPED, WITHOUT, -1, 0.29415 },
        { "bug: last draw from p", ALONE, LAST_P, -1, 0.00489 },
        { "bug: verified by the root of q", ALONE, ROOT_Q, -1, 0.06261 },
    };
    for (int32_t i = 0; i < N_ELEMENTS(cases); i++) {
        node_distributions t = { .v = 5, .k = 3, .n_row = 1, .p = { .22, .08, .30, .25, .15 },
                        .q = { { .30, .24, .20, .16, .10 } }, .how = cases[i].how, .rule = cases[i].rule };
        solve(&t);
        const double bar = cases[i].distance == 0 ? 1e-12 : 0.5e-5;
        const double accepted_bar = cases[i].how == SORTED ? 0.5e-4 : 0.5e-5; /* its digits */
        if (!(fabs(distance(&t) - cases[i].distance) < bar))
            fail_msg("%s: distance %.7f, not %.5f", cases[i].name, distance(&t), cases[i].distance);
        if (cases[i].accepted >= 0 && !(fabs(t.accepted - cases[i].accepted) < accepted_bar))
            fail_msg("%s: accepted %.7f, not %.5f", cases[i].name, t.accepted, cases[i].accepted);
    }
}

/* About a third of the entries are zero, never all. */
static void random_probs(test_random *r, double *probs, int32_t v)
{
    do
        for (int32_t i = 0; i < v; i++) probs[i] = test_below(r, 3) == 0 ? 0 : pow(test_uniform(r), 2);
    while (probs_normalise(probs, v) <= 0);
}

static void test_random_distributions(void **state)
{
    (void)state;
    static const struct {
        proposal how;
        exact_rule rule;
        bool several; /* drafters, each with its own distribution */
    } right[] = {
        { ALONE, WITHOUT, false },   { REPEATED, WITH, false }, { REPEATED, WITHOUT, false },
        { MERGED, WITHOUT, false },  { TOP, POINT, false },     { ALONE, POINT, false },
        { STOPPED, WITHOUT, false }, { REPEATED, WITH, true },  { ALONE, WITHOUT, true },
    };
    test_random r = { 5 };
    for (int32_t i = 0; i < 300; i++) {
        node_distributions t = { .v = 2 + test_below(&r, MAX_V - 1), .k = 1 + test_below(&r, MAX_K) };
        random_probs(&r, t.p, t.v);
        for (int32_t j = 0; j < MAX_K; j++) random_probs(&r, t.q[j], t.v);
        for (int32_t c = 0; c < N_ELEMENTS(right); c++) {
            t.how = right[c].how, t.rule = right[c].rule;
            t.n_row = right[c].several ? 1 + test_below(&r, MAX_K) : 1;
            solve(&t);
            if (!(distance(&t) < 1e-12)) fail_msg("distributions %d, rule %d: distance %g", i, c, distance(&t));
        }
    }
}

/* ------------------------------------------------------------------------- trees that are sampled --- */

/* A first-order world: context 0 is the start, 1 + a is after token a. */
enum { N_CONTEXT = 1 + MAX_V, MAX_NODE = 1 + MAX_K + MAX_K * MAX_K };

typedef struct world {
    int32_t v;
    double p[N_CONTEXT][MAX_V], q[MAX_K][N_CONTEXT][MAX_V]; /* q of drafter d after a context */
    float q_rows[MAX_K * N_CONTEXT * MAX_V];                 /* row d * N_CONTEXT + context, of v entries */
} world;

typedef struct shape {
    const char *name;
    int32_t v, k0, k1; /* children of the root, and of each of them */
    proposal how;
    int32_t n_drafter;
    spec_tree_kind kind;
    spec_verify_rule rule;
    bool shuffled, root_q; /* nodes stand in another order; q is handed over as sqrt(q), normalised */
} shape;

static void world_make(world *w, test_random *r, const shape *s)
{
    w->v = s->v;
    for (int32_t c = 0; c < N_CONTEXT; c++) {
        random_probs(r, w->p[c], w->v);
        for (int32_t d = 0; d < MAX_K; d++) {
            double given[MAX_V];
            random_probs(r, w->q[d][c], w->v);
            for (int32_t i = 0; i < w->v; i++) given[i] = s->root_q ? sqrt(w->q[d][c][i]) : w->q[d][c][i];
            probs_normalise(given, w->v);
            for (int32_t i = 0; i < w->v; i++) w->q_rows[(d * N_CONTEXT + c) * w->v + i] = (float)given[i];
        }
    }
}

static int32_t draw(test_random *r, const double *probs, int32_t v)
{
    double u = test_uniform(r);
    int32_t last = -1;
    for (int32_t i = 0; i < v; i++) {
        if (!(probs[i] > 0)) continue;
        last = i;
        if ((u -= probs[i]) < 0) break;
    }
    return last;
}

static int32_t propose(const world *w, test_random *r, const shape *s, int32_t context, int32_t k, int32_t *y)
{
    node_distributions t = { .v = w->v, .k = k, .n_row = s->n_drafter, .how = s->how };
    double probs[MAX_V];
    int32_t n = 0;
    for (int32_t d = 0; d < MAX_K; d++) memcpy(t.q[d], w->q[d][context], sizeof t.q[d]);
    if (s->how == TOP) return take_top(t.q[0], t.v, k, y);
    for (; n < k && draw_probs(&t, y, n, probs); n++) y[n] = draw(r, probs, t.v);
    return filter(s->how, t.q[0], y, n);
}

typedef struct sampled_tree {
    int32_t token[MAX_NODE], parent[MAX_NODE], rank[MAX_NODE], q_row[MAX_NODE], child_row[MAX_NODE];
    float p[MAX_NODE * MAX_V];
    spec_tree tree;
} sampled_tree;

static void tree_open(sampled_tree *t, spec_tree_kind kind)
{
    t->tree = (spec_tree){ .n = 0, .cap = MAX_NODE, .token = t->token, .parent = t->parent, .rank = t->rank,
                           .q_row = t->q_row, .kind = kind };
}

static int32_t context_of(const sampled_tree *t, int32_t node)
{
    return node == 0 ? 0 : 1 + t->token[node];
}

static void tree_add(sampled_tree *t, const world *w, int32_t parent, int32_t token, int32_t rank, int32_t drafter)
{
    const int32_t i = t->tree.n++;
    t->token[i] = token, t->parent[i] = parent, t->rank[i] = rank;
    t->q_row[i] = context_of(t, i);
    t->child_row[i] = parent < 0 ? -1 : drafter * N_CONTEXT + context_of(t, parent);
    for (int32_t v = 0; v < w->v; v++) t->p[i * w->v + v] = (float)w->p[context_of(t, i)][v];
}

static void tree_draw(sampled_tree *t, const world *w, test_random *r, const shape *s)
{
    int32_t y[MAX_K];
    tree_open(t, s->kind);
    tree_add(t, w, -1, 0, 0, 0);
    const int32_t n = propose(w, r, s, 0, s->k0, y);
    for (int32_t j = 0; j < n; j++) tree_add(t, w, 0, y[j], j, j % s->n_drafter);
    for (int32_t node = 1; node <= n; node++) {
        const int32_t m = propose(w, r, s, context_of(t, node), s->k1, y);
        for (int32_t j = 0; j < m; j++) tree_add(t, w, node, y[j], j, j % s->n_drafter);
    }
}

/* The same tree with its nodes in a random topological order. */
static void tree_shuffle(sampled_tree *out, const sampled_tree *t, const world *w, test_random *r)
{
    int32_t place[MAX_NODE];
    bool done[MAX_NODE] = { false };
    tree_open(out, t->tree.kind);
    while (out->tree.n < t->tree.n) {
        const int32_t i = test_below(r, t->tree.n);
        if (done[i] || (i > 0 && !done[t->parent[i]])) continue;
        done[i] = true, place[i] = out->tree.n;
        const int32_t parent = i == 0 ? -1 : place[t->parent[i]];
        tree_add(out, w, parent, t->token[i], t->rank[i], t->child_row[i] < 0 ? 0 : t->child_row[i] / N_CONTEXT);
    }
}

static spec_verify_args args_of(const sampled_tree *t, const world *w, const shape *s, uint64_t seed, uint64_t position)
{
    return (spec_verify_args){ .struct_size = sizeof(spec_verify_args), .tree = &t->tree, .n_vocab = w->v, .p = t->p,
                               .q = w->q_rows, .child_row = s->n_drafter > 1 ? t->child_row : NULL, .rule = s->rule,
                               .temperature = 1, .seed = seed, .position = position };
}

/* Emitted tokens [3]; how many. */
static int32_t emit(const spec_verify_args *a, int32_t *out)
{
    int32_t path[SPEC_MAX_DEPTH + 1], n = 0, token = -1;
    if (spec_verify_probs(path, &n, &token, a) != SPEC_OK) fail_msg("%s", spec_last_error());
    assert_int_equal(path[0], 0);
    for (int32_t i = 1; i < n; i++) {
        assert_int_equal(a->tree->parent[path[i]], path[i - 1]);
        out[i - 1] = a->tree->token[path[i]];
    }
    out[n - 1] = token;
    return n;
}

/* ----------------------------------------------------------------------------------- statistics --- */

enum { N_DRAW = 40000, N_WORLD = 4, MAX_CELL = MAX_V * MAX_V * MAX_V };

/* P(chi-square >= what was seen); cells that expect less than 8 are pooled. */
static double chi_p(const double *p, const int32_t *count, int32_t n_cell, int32_t n_draw)
{
    double x = 0, rest_p = 0, rest = 0;
    int32_t cells = 0;
    for (int32_t i = 0; i < n_cell; i++) {
        const double expect = p[i] * n_draw;
        if (p[i] == 0 && count[i] > 0) return 0;
        if (expect < 8) {
            rest_p += p[i], rest += count[i];
            continue;
        }
        x += (count[i] - expect) * (count[i] - expect) / expect;
        cells++;
    }
    if (rest_p * n_draw > 1) x += pow(rest - rest_p * n_draw, 2) / (rest_p * n_draw), cells++;
    return cells > 1 ? support_gamma_q(0.5 * (cells - 1), 0.5 * x) : 1;
}

/* The distributions of the first node of a world as the exact rules see them. A first draft is accepted as often by traversal as
 * by multi-step sampling: each subtree has its share. */
static void root_distributions(node_distributions *t, const world *w, const shape *s)
{
    *t = (node_distributions){ .v = w->v, .k = s->k0, .n_row = s->n_drafter, .how = s->how };
    memcpy(t->p, w->p[0], sizeof t->p);
    for (int32_t d = 0; d < MAX_K; d++) memcpy(t->q[d], w->q[d][0], sizeof t->q[d]);
    const spec_verify_rule r = speci_verify_resolve(s->rule, s->kind, false, 1, NULL)->id;
    t->rule = r == SPEC_VERIFY_NAIVE ? POINT : r == SPEC_VERIFY_MSS_REPEAT ? WITH : WITHOUT;
    solve(t);
}

/* The joint distribution of three tokens (what a step left open is drawn plainly), and how often a draft is
 * accepted. */
static void sample(const shape *s, uint64_t seed, double *p_joint, double *p_accept)
{
    static int32_t count[MAX_CELL];
    static double p[MAX_CELL];
    int32_t accepted[2] = { 0 };
    test_random r = { seed };
    world w;
    node_distributions exact;
    world_make(&w, &r, s);
    root_distributions(&exact, &w, s);
    memset(count, 0, sizeof count);
    for (int32_t i = 0; i < N_DRAW; i++) {
        sampled_tree t, other;
        int32_t y[3];
        tree_draw(&t, &w, &r, s);
        if (s->shuffled) tree_shuffle(&other, &t, &w, &r);
        const spec_verify_args a = args_of(s->shuffled ? &other : &t, &w, s, seed, (uint64_t)i * 4);
        int32_t n = emit(&a, y);
        accepted[n == 1]++;
        for (; n < 3; n++) y[n] = draw(&r, w.p[1 + y[n - 1]], w.v);
        count[(y[0] * w.v + y[1]) * w.v + y[2]]++;
    }
    for (int32_t i = 0; i < w.v * w.v * w.v; i++) {
        const int32_t a = i / w.v / w.v, b = i / w.v % w.v, c = i % w.v;
        p[i] = w.p[0][a] * w.p[1 + a][b] * w.p[1 + b][c];
    }
    *p_joint = chi_p(p, count, w.v * w.v * w.v, N_DRAW);
    *p_accept = chi_p((const double[]){ exact.accepted, 1 - exact.accepted }, accepted, 2, N_DRAW);
}

static const shape right[] = {
    { "chain", 6, 1, 1, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_CHAIN, false, false },
    { "chain by mss-repeat", 5, 1, 1, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS_REPEAT, false, false },
    { "mss", 6, 3, 2, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, false, false },
    { "mss, four of six", 6, 4, 1, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, false, false },
    { "mss, shuffled", 6, 3, 3, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, true, false },
    { "mss, duplicates removed", 5, 4, 2, MERGED, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, false, false },
    { "mss, duplicates skipped", 5, 3, 2, REPEATED, 1, SPEC_TREE_SAMPLED_IID, SPEC_VERIFY_MSS, true, false },
    { "mss, stopped by the second", 6, 3, 3, STOPPED, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, false, false },
    { "mss-repeat", 6, 3, 2, REPEATED, 1, SPEC_TREE_SAMPLED_IID, SPEC_VERIFY_MSS_REPEAT, false, false },
    { "three drafters, mss-repeat", 6, 3, 3, REPEATED, 3, SPEC_TREE_SAMPLED_IID, SPEC_VERIFY_MSS_REPEAT, true, false },
    { "two drafters, mss-repeat", 6, 4, 2, REPEATED, 2, SPEC_TREE_SAMPLED_IID, SPEC_VERIFY_MSS_REPEAT, false, false },
    { "two drafters, four draws, mss", 6, 4, 2, ALONE, 2, SPEC_TREE_SAMPLED_IID, SPEC_VERIFY_MSS, true, false },
    { "naive on the likeliest", 6, 3, 2, TOP, 1, SPEC_TREE_DETERMINISTIC, SPEC_VERIFY_AUTO, false, false },
    { "naive on draws", 6, 3, 2, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_NAIVE, true, false },
    { "block", 6, 1, 1, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_BLOCK, false, false },
    { "traversal", 6, 3, 2, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_TRAVERSAL, false, false },
    { "traversal, four of six, shuffled", 6, 4, 2, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_AUTO, true, false },
    { "traversal, duplicates removed", 5, 4, 2, MERGED, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_TRAVERSAL, false, false },
    { "traversal, duplicates skipped", 5, 3, 2, REPEATED, 1, SPEC_TREE_SAMPLED_IID, SPEC_VERIFY_TRAVERSAL, true, false },
    { "traversal, stopped by the second", 6, 3, 3, STOPPED, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_TRAVERSAL, false, false },
    { "two drafters, four draws, traversal", 6, 4, 2, ALONE, 2, SPEC_TREE_SAMPLED_IID, SPEC_VERIFY_TRAVERSAL, true, false },
};

static void test_statistics(void **state)
{
    (void)state;
    const double bar = 0.001 / (2 * N_WORLD * N_ELEMENTS(right));
    int32_t n_bad = 0;
    for (int32_t i = 0; i < N_WORLD * N_ELEMENTS(right); i++) {
        const shape *s = &right[i / N_WORLD];
        double joint, accept;
        sample(s, (uint64_t)(i + 1), &joint, &accept);
        if (joint > bar && accept > bar) continue;
        print_error("  %s: joint p = %.3g, acceptance p = %.3g\n", s->name, joint, accept);
        n_bad++;
    }
    if (n_bad) fail_msg("%d statistics under %g", n_bad, bar);
}

/* Trees that are not what they are said to be: in one of as many worlds the same statistics must see it. */
static void test_statistics_see(void **state)
{
    (void)state;
    static const shape wrong[] = {
        { "sorted by q", 6, 3, 2, SORTED, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, false, false },
        { "the likeliest, as if sampled", 6, 3, 2, TOP, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, false, false },
        { "each dropped for its own q", 6, 3, 2, DROPPED, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, false, false },
        { "verified by the root of q", 6, 3, 2, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_MSS, false, true },
        { "sorted by q, by traversal", 6, 3, 2, SORTED, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_TRAVERSAL, false, false },
        { "the likeliest, by traversal", 6, 3, 2, TOP, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_TRAVERSAL, false, false },
        { "each dropped for its own q, by traversal", 6, 3, 2, DROPPED, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_TRAVERSAL, false, false },
        { "the root of q, by block", 6, 1, 1, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_BLOCK, false, true },
        { "sampled without, verified with replacement", 6, 4, 4, ALONE, 1, SPEC_TREE_SAMPLED_IID, SPEC_VERIFY_MSS_REPEAT,
          false, false },
    };
    for (int32_t i = 0; i < N_ELEMENTS(wrong); i++) {
        double least = 1, joint, accept;
        for (int32_t k = 0; k < N_WORLD; k++) {
            sample(&wrong[i], (uint64_t)(1001 + i * N_WORLD + k), &joint, &accept);
            least = fmin(least, joint);
        }
        if (!(least < 1e-9)) fail_msg("%s was not seen: p = %g", wrong[i].name, least);
    }
}

/* ------------------------------------------------------------------------------- draw by draw --- */

static double uniform_of(const spec_verify_args *a, uint64_t position, uint32_t purpose, int32_t rank)
{
    return (double)spec_uniform(a->seed, position, purpose, (uint32_t)rank);
}

static int32_t draw_at(const double *probs, int32_t v, double u)
{
    double sum = 0;
    int32_t last = -1;
    for (int32_t i = 0; i < v; i++) {
        if (!(probs[i] > 0)) continue;
        sum += probs[i], last = i;
        if (sum > u) break;
    }
    return last;
}

/* The walk in double, by the keys that are promised; siblings as tree_draw placed them, in order. Child or -1. */
static int32_t reference_verify(const sampled_tree *t, const world *w, const shape *s, const spec_verify_args *a,
                               int32_t node, uint64_t position, int32_t *token)
{
    double r[MAX_V], d[MAX_K][MAX_V];
    int32_t rank = 0, child = -1;
    const int32_t context = context_of(t, node);
    memcpy(r, w->p[context], sizeof r);
    for (int32_t i = 0; i < MAX_K; i++) memcpy(d[i], w->q[i][context], sizeof d[i]);
    for (int32_t c = t->tree.n - 1; c > node; c--)
        if (t->parent[c] == node) child = c; /* the first one */
    if (child < 0 || s->rule == SPEC_VERIFY_NAIVE) {
        *token = draw_at(r, w->v, uniform_of(a, position, SPECI_DRAW_TARGET, 0));
        for (; child >= 0 && child < t->tree.n; child++)
            if (t->parent[child] == node && t->token[child] == *token) return child;
        return -1;
    }
    for (; child < t->tree.n; child++) {
        if (t->parent[child] != node) continue;
        double *dj = d[rank % s->n_drafter];
        const int32_t y = t->token[child], j = rank++;
        if (dj[y] == 0) continue;
        if (uniform_of(a, position, SPECI_DRAW_ACCEPT, j) * dj[y] < r[y]) return child;
        for (int32_t i = 0; i < w->v; i++) r[i] = fmax(r[i] - dj[i], 0);
        probs_normalise(r, w->v);
        if (s->rule == SPEC_VERIFY_MSS_REPEAT) continue;
        dj[y] = 0;
        probs_normalise(dj, w->v);
    }
    *token = draw_at(r, w->v, uniform_of(a, position, SPECI_DRAW_RESIDUAL, 0));
    return -1;
}

static void test_draws(void **state)
{
    (void)state;
    test_random r = { 77 };
    for (int32_t i = 0; i < 20000; i++) {
        shape s = right[i % N_ELEMENTS(right)];
        s.rule = speci_verify_resolve(s.rule, s.kind, false, 1, NULL)->id;
        if (s.rule >= SPEC_VERIFY_BLOCK) s.rule = SPEC_VERIFY_MSS; /* whole paths: test_verify_exact.c */
        world w;
        sampled_tree t, other;
        int32_t got[3], want[3], n = 0, token = -1;
        world_make(&w, &r, &s);
        tree_draw(&t, &w, &r, &s);
        spec_verify_args a = args_of(&t, &w, &s, (uint64_t)i << 33, (uint64_t)i * 1000003u);
        for (int32_t node = 0; (node = reference_verify(&t, &w, &s, &a, node, a.position + (uint64_t)n, &token)) >= 0;)
            want[n++] = t.token[node];
        want[n++] = token;
        assert_int_equal(emit(&a, got), n);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        /* Ranks by place are the same; so are nodes in another place. */
        t.tree.rank = NULL;
        assert_int_equal(emit(&a, got), n);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
        tree_shuffle(&other, &t, &w, &r);
        a = args_of(&other, &w, &s, a.seed, a.position);
        assert_int_equal(emit(&a, got), n);
        assert_memory_equal(got, want, (size_t)n * sizeof *got);
    }
}

static bool emits_alike(spec_verify_args a, spec_verify_rule one, spec_verify_rule other)
{
    int32_t first[3], second[3];
    a.rule = one;
    const int32_t n = emit(&a, first);
    a.rule = other;
    return emit(&a, second) == n && memcmp(first, second, (size_t)n * sizeof *first) == 0;
}

/* Of sampled trees AUTO verifies those of one level by multi-step sampling, others by traversal, draw for draw. */
static void test_auto(void **state)
{
    (void)state;
    const shape s = { "auto", 6, 3, 2, ALONE, 1, SPEC_TREE_SAMPLED, SPEC_VERIFY_AUTO, false, false };
    int32_t n_unlike[2] = { 0 };
    test_random r = { 91 };
    for (int32_t i = 0; i < 1000; i++) {
        world w;
        sampled_tree t;
        world_make(&w, &r, &s);
        tree_draw(&t, &w, &r, &s);
        for (int32_t flat = 0; flat < 2; flat++) {
            while (flat && t.parent[t.tree.n - 1] > 0) t.tree.n--;
            assert_int_equal(speci_tree_is_flat(&t.tree), flat);
            const spec_verify_args a = args_of(&t, &w, &s, (uint64_t)i + 1, (uint64_t)i * 4);
            assert_true(emits_alike(a, SPEC_VERIFY_AUTO, flat ? SPEC_VERIFY_MSS : SPEC_VERIFY_TRAVERSAL));
            n_unlike[flat] += !emits_alike(a, SPEC_VERIFY_MSS, SPEC_VERIFY_TRAVERSAL);
        }
    }
    assert_true(n_unlike[0] > 0 && n_unlike[1] > 0);
}

static void test_greedy(void **state)
{
    (void)state;
    /* 0 -> 2, 1; 1 -> 0, 2; a tie at the root goes to the smallest id */
    int32_t token[] = { 0, 2, 1, 0, 2 }, parent[] = { -1, 0, 0, 2, 2 }, path[64], n = 0, next = -1;
    const float p[] = { .2f, .4f, .4f, 1, 0, 0, .1f, .1f, .8f, 0, 1, 0, .5f, .5f, 0 };
    const spec_tree tree = { .n = 5, .cap = 5, .token = token, .parent = parent, .kind = SPEC_TREE_SAMPLED };
    spec_verify_args a = { .struct_size = sizeof a, .tree = &tree, .n_vocab = 3, .p = p };
    for (int32_t rule = SPEC_VERIFY_AUTO; rule <= SPEC_VERIFY_GREEDY; rule++) {
        a.rule = (spec_verify_rule)rule;
        assert_int_equal(spec_verify_probs(path, &n, &next, &a), SPEC_OK);
        assert_int_equal(n, 3);
        assert_memory_equal(path, ((int32_t[]){ 0, 2, 4 }), 3 * sizeof *path);
        assert_int_equal(next, 0);
    }
}

/* ------------------------------------------------------------------------------ on the brink --- */

/* One node with two children, tokens 0 and 1, sampled from q [v]. */
typedef struct pair {
    int32_t token[3], parent[3], q_row[3];
    float p[9];
    spec_tree tree;
    spec_verify_args a;
} pair;

static void pair_make(pair *t, const float *p, const float *q)
{
    *t = (pair){ .token = { 0, 0, 1 }, .parent = { -1, 0, 0 }, .q_row = { 0, -1, -1 } };
    for (int32_t i = 0; i < 9; i++) t->p[i] = p[i % 3];
    t->tree = (spec_tree){ .n = 3, .cap = 3, .token = t->token, .parent = t->parent, .q_row = t->q_row,
                           .kind = SPEC_TREE_SAMPLED };
    t->a = (spec_verify_args){ .struct_size = sizeof t->a, .tree = &t->tree, .n_vocab = 3, .p = t->p, .q = q,
                               .rule = SPEC_VERIFY_MSS, .temperature = 1 };
}

static const spec_verify_rule dividing[] = { SPEC_VERIFY_MSS, SPEC_VERIFY_TRAVERSAL };

/* A draft so sure of token 0 that all else is 1e-14: its second draw is token 1 for certain, so D there is 1. */
static void test_sure_draft(void **state)
{
    (void)state;
    enum { N = 100000 };
    const float p[] = { .2f, .3f, .5f }, q[] = { 1, 1e-14f, 0 };
    for (int32_t rule = 0; rule < N_ELEMENTS(dividing); rule++) {
        int32_t count[3] = { 0 };
        pair t;
        pair_make(&t, p, q);
        t.a.rule = dividing[rule];
        for (int32_t i = 0; i < N; i++) {
            int32_t y[3];
            t.a.position = (uint64_t)i * 2;
            emit(&t.a, y);
            count[y[0]]++;
        }
        assert_true(chi_p((const double[]){ .2, .3, .5 }, count, 3, N) > 1e-4);
    }
}

/* The uniform of this position is zero: even so a token that the target cannot emit is not accepted (3.1). */
static void test_zero_uniform(void **state)
{
    (void)state;
    const float p[] = { 0, .5f, .5f }, q[] = { .5f, .5f, 0 };
    static const struct {
        spec_verify_rule rule;
        uint64_t position;
        uint32_t purpose, index;
    } zeros[] = { { SPEC_VERIFY_MSS, 59984198, SPECI_DRAW_ACCEPT, 0 }, { SPEC_VERIFY_TRAVERSAL, 20412532, SPECI_DRAW_NODE, 1 } };
    for (int32_t i = 0; i < N_ELEMENTS(zeros); i++) {
        int32_t y[3];
        pair t;
        pair_make(&t, p, q);
        t.a.rule = zeros[i].rule, t.a.seed = 1, t.a.position = zeros[i].position;
        assert_true(spec_uniform(t.a.seed, t.a.position, zeros[i].purpose, zeros[i].index) == 0);
        emit(&t.a, y);
        assert_int_not_equal(y[0], 0);
    }
}

/* Rounding rejects the only token there is: R is nothing, and so is p without it. */
static void test_nothing_left(void **state)
{
    (void)state;
    const float p[] = { 0, 0, 1 }, q[] = { 0, 0, 1.0009f };
    for (int32_t rule = 0; rule < N_ELEMENTS(dividing); rule++) {
        int32_t n_rejected = 0;
        pair t;
        pair_make(&t, p, q);
        t.a.rule = dividing[rule];
        t.token[1] = 2;
        for (int32_t i = 0; i < 20000; i++) {
            int32_t y[3] = { -1, -1, -1 };
            t.a.position = (uint64_t)i * 2;
            n_rejected += emit(&t.a, y) == 1;
            assert_int_equal(y[0], 2);
        }
        assert_true(n_rejected > 0);
    }
}

/* Rounding leaves nothing of R while a later candidate may still be right: then R is p without the candidates so far (3.2). */
static void test_nothing_left_yet(void **state)
{
    (void)state;
    const float p[] = { .5f, .5f, 0 }, q[] = { .50045f, .50045f, 0 };
    for (int32_t rule = 0; rule < N_ELEMENTS(dividing); rule++) {
        int32_t n_rejected = 0;
        pair t;
        pair_make(&t, p, q);
        t.a.rule = dividing[rule];
        for (int32_t i = 0; i < 20000; i++) {
            int32_t y[3] = { -1, -1, -1 };
            t.a.position = (uint64_t)i * 2;
            assert_int_equal(emit(&t.a, y), 2);
            n_rejected += y[0] == 1;
        }
        assert_true(n_rejected > 0 && n_rejected < 200);
    }
}

/* However little is left of R above rounding, it is what is drawn from. */
static void test_little_left(void **state)
{
    (void)state;
    const float p[] = { 1, 1e-8f, 1e-8f }, q[] = { 1, 2e-8f, 0 };
    for (int32_t rule = 0; rule < N_ELEMENTS(dividing); rule++) {
        int32_t n_rejected = 0;
        pair t;
        pair_make(&t, p, q);
        t.a.rule = dividing[rule];
        t.token[1] = 1, t.token[2] = 0;
        for (int32_t i = 0; i < 100; i++) {
            int32_t y[3] = { -1, -1, -1 };
            t.a.position = (uint64_t)i * 2;
            (void)emit(&t.a, y);
            assert_int_not_equal(y[0], 0);
            n_rejected += y[0] == 2;
        }
        assert_true(n_rejected > 20 && n_rejected < 80);
    }
}

/* ------------------------------------------------------------------------------------ the table --- */

static void check_listed(void *n_listed, spec_verify_rule rule, const char *name, const char *help)
{
    assert_int_equal(rule, (*(int32_t *)n_listed)++);
    assert_string_equal(name, spec_verify_rule_name(rule));
    assert_true(strlen(help) > 0);
}

enum { N_RULE = SPEC_VERIFY_TRAVERSAL + 1 };

static void test_table(void **state)
{
    (void)state;
    /* Rows of 3.6: a tree sampled and then sorted, one pruned by a node's own probability, or one from a table is
     * deterministic. */
    static const struct {
        spec_tree_kind kind;
        bool chain;
        float temperature;
        bool fits[N_RULE]; /* auto, greedy, naive, chain, mss, mss-repeat, block, traversal */
    } rows[] = {
        { SPEC_TREE_SAMPLED, true, 1, { 1, 0, 1, 1, 1, 1, 1, 1 } },
        { SPEC_TREE_SAMPLED, false, 1, { 1, 0, 1, 0, 1, 0, 0, 1 } },
        { SPEC_TREE_SAMPLED_IID, true, 1, { 1, 0, 1, 1, 1, 1, 1, 1 } },
        { SPEC_TREE_SAMPLED_IID, false, .1f, { 1, 0, 1, 0, 1, 1, 0, 1 } },
        { SPEC_TREE_DETERMINISTIC, true, 1, { 1, 0, 1, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_DETERMINISTIC, false, 2, { 1, 0, 1, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_UNROLLED, true, 1, { 1, 0, 1, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_UNROLLED, false, 1, { 1, 0, 1, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_UNROLLED, false, 0, { 1, 1, 0, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_SAMPLED, true, 0, { 1, 1, 0, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_SAMPLED, false, 0, { 1, 1, 0, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_SAMPLED_IID, true, 0, { 1, 1, 0, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_SAMPLED_IID, false, 0, { 1, 1, 0, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_DETERMINISTIC, true, 0, { 1, 1, 0, 0, 0, 0, 0, 0 } },
        { SPEC_TREE_DETERMINISTIC, false, 0, { 1, 1, 0, 0, 0, 0, 0, 0 } },
    };
    int32_t token[] = { 0, 0, 1, 2 }, chain[] = { -1, 0, 1, 2 }, branches[] = { -1, 0, 0, 1 }, q_row[] = { 0, 0, 0, 0 };
    const float distributions[] = { .5f, .25f, .25f, .5f, .25f, .25f, .5f, .25f, .25f, .5f, .25f, .25f };
    for (int32_t i = 0; i < N_ELEMENTS(rows); i++)
        for (int32_t rule = 0; rule < N_RULE; rule++) {
            const spec_tree tree = { .n = 4, .cap = 4, .token = token, .parent = rows[i].chain ? chain : branches,
                                     .q_row = q_row, .kind = rows[i].kind };
            const spec_status want = rows[i].fits[rule] ? SPEC_OK : SPEC_E_INVALID;
            if (spec_verify_is_lossless(&tree, (spec_verify_rule)rule, rows[i].temperature) != want)
                fail_msg("row %d: %s", i, spec_verify_rule_name((spec_verify_rule)rule));
            /* What fits runs, and what does not fit does not. */
            const spec_verify_args a = { .struct_size = sizeof a, .tree = &tree, .n_vocab = 3, .p = distributions, .q = distributions,
                                         .rule = (spec_verify_rule)rule, .temperature = rows[i].temperature };
            int32_t path[64], n, next;
            assert_int_equal(spec_verify_probs(path, &n, &next, &a), want);
        }
    const spec_tree tree = { .n = 4, .cap = 4, .token = token, .parent = branches, .kind = SPEC_TREE_SAMPLED };
    assert_int_equal(spec_verify_is_lossless(&tree, SPEC_VERIFY_MSS_REPEAT, 1), SPEC_E_INVALID);
    assert_non_null(strstr(spec_last_error(), "mss-repeat verification would verify a sibling"));
    assert_non_null(strstr(spec_last_error(), "temperature 1: naive, mss, traversal"));
    assert_int_equal(spec_verify_is_lossless(&tree, SPEC_VERIFY_CHAIN, 0), SPEC_E_INVALID);
    assert_non_null(strstr(spec_last_error(), "temperature 0: greedy"));
    assert_int_equal(spec_verify_is_lossless(&tree, (spec_verify_rule)N_RULE, 1), SPEC_E_INVALID);
    assert_int_equal(spec_verify_is_lossless(&tree, (spec_verify_rule)-1, 1), SPEC_E_INVALID);
    assert_int_equal(spec_verify_is_lossless(&tree, SPEC_VERIFY_AUTO, -1), SPEC_E_INVALID);
    assert_int_equal(spec_verify_is_lossless(&tree, SPEC_VERIFY_AUTO, NAN), SPEC_E_INVALID);
    assert_int_equal(spec_verify_is_lossless(NULL, SPEC_VERIFY_AUTO, 1), SPEC_E_INVALID);
    static const char *const names[] = { "auto", "greedy", "naive", "chain", "mss", "mss-repeat", "block", "traversal" };
    for (int32_t rule = 0; rule < N_RULE; rule++)
        assert_string_equal(spec_verify_rule_name((spec_verify_rule)rule), names[rule]);
    assert_string_equal(spec_verify_rule_name((spec_verify_rule)N_RULE), "unknown rule");
    int32_t n_listed = 0;
    spec_verify_rule_list(check_listed, &n_listed);
    assert_int_equal(n_listed, N_RULE);
}

/* ------------------------------------------------------------------------------------- refused --- */

static void refuse(const pair *t, spec_status want, const char *says)
{
    int32_t path[64], n = -7, token = -7;
    memset(path, 0x55, sizeof path);
    assert_int_equal(spec_verify_probs(path, &n, &token, &t->a), want);
    if (!strstr(spec_last_error(), says)) fail_msg("\"%s\" does not say \"%s\"", spec_last_error(), says);
    assert_int_equal(n, -7);
    assert_int_equal(token, -7);
    for (int32_t i = 0; i < N_ELEMENTS(path); i++) assert_int_equal(path[i], 0x55555555);
}

/* The allocation that fails, counted down in *user. */
static void *no_memory(void *user, size_t bytes, size_t align)
{
    int32_t *left = user;
    return (*left)-- > 0 ? speci_malloc.alloc(NULL, bytes, align) : NULL;
}

static const float refused_p[] = { .2f, .3f, .5f }, refused_q[] = { .5f, .25f, .25f }; /* both are good */

static void test_refused_values(void **state)
{
    (void)state;
    const float *const p = refused_p, *const good = refused_q;
    const float bad[][3] = {
        { .5f, NAN, .5f }, { .5f, -.25f, .75f }, { INFINITY, 0, 0 }, { .5f, .25f, .248f }, { 0, 0, 0 },
    };
    const char *const says[] = { "entry 1 is nan", "entry 1 is -0.25", "entry 0 is inf", "sum is 0.998", "sum is 0," };
    pair t;
    for (int32_t i = 0; i < N_ELEMENTS(bad); i++) {
        pair_make(&t, p, bad[i]);
        refuse(&t, SPEC_E_INVALID, says[i]);
        refuse(&t, SPEC_E_INVALID, "draft's distribution, node 1, row 0");
        for (int32_t node = 0; node < 3; node++) {
            pair_make(&t, p, good);
            memcpy(t.p + 3 * node, bad[i], sizeof bad[i]);
            char where[64];
            snprintf(where, sizeof where, "target's distribution, node %d", node);
            refuse(&t, SPEC_E_INVALID, says[i]);
            refuse(&t, SPEC_E_INVALID, where);
            t.a.rule = SPEC_VERIFY_NAIVE;
            refuse(&t, SPEC_E_INVALID, where);
        }
    }
}

static void test_refused_rows(void **state)
{
    (void)state;
    const float *const p = refused_p, *const good = refused_q;
    pair t;
    pair_make(&t, p, NULL);
    refuse(&t, SPEC_E_INVALID, "q is NULL");
    t.a.rule = SPEC_VERIFY_AUTO;
    refuse(&t, SPEC_E_INVALID, "q is NULL");
    pair_make(&t, p, good), t.tree.q_row = NULL;
    refuse(&t, SPEC_E_INVALID, "row is not known");
    pair_make(&t, p, good), t.q_row[0] = -1;
    refuse(&t, SPEC_E_INVALID, "row is not known");
    const int32_t rows[] = { -1, 0, -1 };
    pair_make(&t, p, good), t.a.child_row = rows;
    refuse(&t, SPEC_E_INVALID, "node 2");
    const int32_t two_rows[] = { -1, 0, 1 };
    const float second_bad[] = { .5f, .25f, .25f, .5f, .25f, .5f };
    pair_make(&t, p, second_bad), t.a.child_row = two_rows;
    refuse(&t, SPEC_E_INVALID, "draft's distribution, node 2, row 1");
}

static void test_refused_arguments(void **state)
{
    (void)state;
    const float *const p = refused_p, *const good = refused_q;
    pair t;
    pair_make(&t, p, good), t.tree.kind = SPEC_TREE_DETERMINISTIC;
    refuse(&t, SPEC_E_INVALID, "deterministic");
    pair_make(&t, p, good), t.tree.kind = (spec_tree_kind)4;
    refuse(&t, SPEC_E_INVALID, "kind 4");
    pair_make(&t, p, good), t.a.rule = SPEC_VERIFY_MSS_REPEAT;
    refuse(&t, SPEC_E_INVALID, "naive, mss");
    pair_make(&t, p, good), t.token[2] = 3;
    refuse(&t, SPEC_E_INVALID, "");
    pair_make(&t, p, good), t.token[2] = 0;
    refuse(&t, SPEC_E_INVALID, "");
    pair_make(&t, p, good), t.parent[1] = 2;
    refuse(&t, SPEC_E_INVALID, "");
    pair_make(&t, p, good), t.a.n_vocab = 0;
    refuse(&t, SPEC_E_INVALID, "0 ids");
    pair_make(&t, p, good), t.a.p = NULL;
    refuse(&t, SPEC_E_INVALID, "distributions p");
    pair_make(&t, p, good), t.a.struct_size = 0;
    refuse(&t, SPEC_E_INVALID, "struct_size");
}

static void test_no_memory(void **state)
{
    (void)state;
    pair t;
    int32_t left;
    const spec_allocator few = { .alloc = no_memory, .free = speci_malloc.free, .user_data = &left };
    pair_make(&t, refused_p, refused_q), t.a.allocator = &few, left = 0;
    refuse(&t, SPEC_E_NOMEM, "");
    for (int32_t n = 0; n < 3; n++) {
        left = n, t.a.rule = SPEC_VERIFY_TRAVERSAL;
        refuse(&t, SPEC_E_NOMEM, "");
    }
}

/* ---------------------------------------------------------------------- distributions of logits --- */

enum { N_LOGIT = 300 };

/* spec_probs against the formula; ids at the edge of a set are decided by sums, in float or double. */
static void compare_probs(const double *logits, const spec_sampling *how)
{
    float x[N_LOGIT], probs[N_LOGIT];
    double want[N_LOGIT], sum = 0;
    int32_t scratch[N_LOGIT], n_other = 0;
    for (int32_t i = 0; i < N_LOGIT; i++) x[i] = (float)logits[i];
    ref_probs(want, logits, N_LOGIT, how);
    test_ok(spec_probs(probs, x, N_LOGIT, how, scratch), "distribution");
    for (int32_t i = 0; i < N_LOGIT; i++) {
        sum += (double)probs[i];
        n_other += fabs((double)probs[i] - want[i]) > 1e-5;
    }
    if (n_other > 0 || fabs(sum - 1) > 1e-5)
        fail_msg("T %g, k %d, p %g, min-p %g: %d entries differ, the sum is %g", (double)how->temperature, how->top_k,
                 (double)how->top_p, (double)how->min_p, n_other, sum);
    for (double u = 0; u < 1; u += 1.0 / 64) { /* the same distribution: any float is a double */
        for (int32_t i = 0; i < N_LOGIT; i++) want[i] = (double)probs[i];
        assert_int_equal(spec_draw(probs, N_LOGIT, (float)u), ref_draw(want, N_LOGIT, u));
    }
}

static void test_distributions_of_logits(void **state)
{
    (void)state;
    static const spec_sampling hows[] = {
        { 1, 0, 0, 0, 0 },         { 0.3f, 0, 0, 0, 0 },   { 2.5f, 0, 0, 0, 0 },         { 1, 1, 0, 0, 0 },
        { 0.8f, 20, 0, 0, 0 },     { 1, 500, 0, 0, 0 },    { 1, 0, 0.9f, 0, 0 },         { 1, 0, 0.01f, 0, 0 },
        { 1, 0, 1, 0, 0 },         { 1, 0, 0, 0.1f, 0 },   { 1.3f, 50, 0.8f, 0.05f, 0 }, { 1, 0, 0, 1, 0 },
    };
    test_random random = { 77 };
    for (int32_t i = 0; i < N_ELEMENTS(hows); i++)
        for (int32_t step = 0; step < 2; step++) { /* with ties, too */
            double *logits = test_values(&random, N_LOGIT, 6.0);
            for (int32_t k = 0; k < N_LOGIT; k++) logits[k] = step ? nearbyint(logits[k]) : (double)(float)logits[k];
            for (int32_t k = 0; k < N_LOGIT && i % 3 == 1; k += 7) logits[k] = -INFINITY; /* never */
            compare_probs(logits, &hows[i]);
            free(logits);
        }
    const float logits[] = { -1, 2, 0.5f, 2 };
    float probs[4];
    int32_t scratch[4];
    const spec_sampling greedy = { .temperature = 0, .top_k = 3 };
    test_ok(spec_probs(probs, logits, 4, &greedy, scratch), "distribution");
    assert_true(probs[0] == 0 && probs[1] == 1 && probs[2] == 0 && probs[3] == 0);
    const float equal[] = { 1, 1, 1, 1 };
    const spec_sampling half = { .temperature = 1, .top_p = 0.5f }; /* which two of them have, and exactly */
    test_ok(spec_probs(probs, equal, 4, &half, scratch), "distribution");
    assert_true(probs[0] == 0.5f && probs[1] == 0.5f && probs[2] == 0 && probs[3] == 0);
    assert_int_equal(spec_draw(probs, 4, 1), 1); /* a number that is too large draws the last token that can be */
}

static void refuse_probs(const float logits[3], int32_t n, spec_sampling how, const char *says)
{
    float probs[3];
    int32_t scratch[3];
    assert_int_equal(spec_probs(probs, logits, n, &how, scratch), SPEC_E_INVALID);
    if (!strstr(spec_last_error(), says)) fail_msg("\"%s\" does not say \"%s\"", spec_last_error(), says);
}

static void test_distributions_refused(void **state)
{
    (void)state;
    const float good[] = { 1, 2, 3 }, nan[] = { 1, NAN, 3 }, most[] = { 1, INFINITY, 3 },
                none[] = { -INFINITY, -INFINITY, -INFINITY };
    const spec_sampling how = { .temperature = 1 };
    refuse_probs(good, 0, how, "0 ids");
    refuse_probs(nan, 3, how, "logit 1 is not a number");
    refuse_probs(most, 3, how, "the largest logit is inf");
    refuse_probs(none, 3, how, "the largest logit is -inf");
    refuse_probs(good, 3, (spec_sampling){ .temperature = -1 }, "temperature -1");
    refuse_probs(good, 3, (spec_sampling){ .temperature = NAN }, "temperature nan");
    refuse_probs(good, 3, (spec_sampling){ .temperature = 1, .top_k = -2 }, "top-k -2");
    refuse_probs(good, 3, (spec_sampling){ .temperature = 1, .top_p = NAN }, "top-p nan");
    refuse_probs(good, 3, (spec_sampling){ .temperature = 1, .min_p = -0.5f }, "min-p -0.5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixture),        cmocka_unit_test(test_random_distributions), cmocka_unit_test(test_statistics),
        cmocka_unit_test(test_statistics_see), cmocka_unit_test(test_draws),       cmocka_unit_test(test_auto),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_sure_draft),     cmocka_unit_test(test_zero_uniform), cmocka_unit_test(test_nothing_left),
        cmocka_unit_test(test_nothing_left_yet), cmocka_unit_test(test_little_left),
        cmocka_unit_test(test_table),          cmocka_unit_test(test_refused_values), cmocka_unit_test(test_refused_rows),
        cmocka_unit_test(test_refused_arguments), cmocka_unit_test(test_no_memory),     cmocka_unit_test(test_distributions_refused),
        cmocka_unit_test(test_distributions_of_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
