/* test_verify_exact.c - block and traversal verification (algorithms.md 3.9, 3.10) by exact enumeration: all trees that can be
 * drawn, all paths that can be accepted, all that can follow. Then the library's float form against the reference. */
#include "tests/test.h"

#include <math.h>
#include <stdio.h>

#include "algorithms/verify/verify.h"
#include "tests/ref_traversal.h"
#include "tests/support_statistics.h"

enum { MAX_V = 4, MAX_SLOT = 12, MAX_DEPTH = 7, MAX_DRAFTER = 3, MAX_CONTEXT = 21845 + 4096 }; /* 4^0 + ... + 4^7 */

/* A context is what was emitted since the root, a number: after context c, token x makes v c + 1 + x. */
typedef struct world {
    int32_t v, depth, n_context;
    double p[MAX_CONTEXT][MAX_V], q[MAX_DRAFTER][MAX_CONTEXT][MAX_V];
} world;

/* What may be drawn: slots, parents first, siblings in draw order. */
typedef struct shape {
    int32_t n, parent[MAX_SLOT];
} shape;

/* How a tree is drawn in a shape. */
typedef enum drawing {
    WITHOUT,  /* replacement: the rule's own */
    REPEATED, /* with replacement: a token may come again */
    SEVERAL,  /* siblings from two drafters in turn, each without replacement */
    ADAPTIVE, /* a slot is left out, with what is below it, for what was drawn before it: branch by branch, */
    LEVELS,   /* and level by level, so also for what its later siblings were */
    OWN_TOKEN /* bug: a node is dropped for its own token's probability */
} drawing;

/* --- worlds --- */

/* A third of the entries are zero, never all. */
static void patchy(test_random *r, double *probs, int32_t v)
{
    do
        for (int32_t i = 0; i < v; i++) probs[i] = test_below(r, 3) == 0 ? 0 : pow(test_uniform(r), 2);
    while (probs_normalise(probs, v) <= 0);
}

/* Softmax of logits of deviation 1.35. */
static void dense(test_random *r, double *probs, int32_t v)
{
    for (int32_t i = 0; i < v; i++)
        probs[i] = exp(1.35 * sqrt(-2 * log(1 - test_uniform(r))) * cos(2 * 3.14159265358979324 * test_uniform(r)));
    (void)probs_normalise(probs, v);
}

static world *make_world(test_random *r, int32_t v, int32_t depth, void (*make)(test_random *, double *, int32_t))
{
    world *w = malloc(sizeof *w);
    assert_non_null(w);
    *w = (world){ .v = v, .depth = depth, .n_context = 1 };
    for (int32_t d = 0, level = 1; d < depth; d++) level *= v, w->n_context += level;
    assert_true(w->n_context <= MAX_CONTEXT);
    for (int32_t c = 0; c < w->n_context; c++) {
        make(r, w->p[c], v);
        for (int32_t d = 0; d < MAX_DRAFTER; d++) make(r, w->q[d][c], v);
    }
    return w;
}

/* --- all trees of a shape --- */

typedef struct enumeration {
    const world *w;
    const shape *s;
    drawing how;
    ref_fault fault;
    int32_t drafter[MAX_SLOT];               /* of each slot */
    int32_t token[MAX_SLOT], context[MAX_SLOT]; /* token -1: the slot is empty */
    double *emitted;                         /* [n_context]: the probability that just this is emitted */
    double accepted, mss;                    /* drafts on average */
} enumeration;

/* The slots that were filled, as a tree. */
static void make_tree(ref_tree *t, const enumeration *e, int32_t *parent, int32_t *token, int32_t *context)
{
    int32_t place[MAX_SLOT];
    *t = (ref_tree){ .v = e->w->v, .parent = parent, .token = token };
    for (int32_t i = 0; i < e->s->n; i++) {
        if (i > 0 && e->token[i] < 0) continue;
        const int32_t x = place[i] = t->n++;
        parent[x] = i == 0 ? -1 : place[e->s->parent[i]];
        token[x] = i == 0 ? 0 : e->token[i];
        context[x] = e->context[i];
        t->p[x] = e->w->p[context[x]];
        t->q[x] = i == 0 ? NULL : e->w->q[e->drafter[i]][context[parent[x]]];
    }
}

static void verify_tree(enumeration *e, double weight)
{
    static ref_leaves leaves;
    ref_tree t;
    int32_t parent[MAX_SLOT], token[MAX_SLOT], context[MAX_SLOT];
    double ends[REF_NODES];
    make_tree(&t, e, parent, token, context);
    ref_traversal(&leaves, &t, e->fault);
    ref_traversal_ends(ends, &leaves, e->fault);
    for (int32_t i = 0; i < leaves.n; i++)
        for (int32_t x = 0; x < t.v; x++)
            e->emitted[t.v * context[leaves.node[i]] + 1 + x] += weight * ends[i] * leaves.b[i][x];
    if (e->fault != REF_RIGHT) return;
    e->accepted += weight * ref_traversal_accepted(&t);
    e->mss += weight * ref_mss_accepted(&t);
}

/* Is slot i left out for what was drawn in the slots before it? */
static bool left_out(const enumeration *e, int32_t i)
{
    int32_t sum = 0;
    for (int32_t j = 1; j < i; j++) sum += e->token[j] * (j + 1);
    return (e->how == ADAPTIVE || e->how == LEVELS) && i > 1 && sum % 3 == 1;
}

/* What slot i is drawn from; false: nothing is left, or its parent is empty. */
static bool draft_of(double *d, const enumeration *e, int32_t i)
{
    const int32_t up = e->s->parent[i];
    if (up > 0 && e->token[up] < 0) return false;
    memcpy(d, e->w->q[e->drafter[i]][e->context[up]], sizeof *d * MAX_V);
    for (int32_t j = 1; j < i && e->how != REPEATED; j++)
        if (e->s->parent[j] == up && e->token[j] >= 0 && e->drafter[j] == e->drafter[i]) d[e->token[j]] = 0;
    return probs_normalise(d, e->w->v) > 0;
}

static void fill_slot(enumeration *e, int32_t i, double weight)
{
    double d[MAX_V];
    if (i == e->s->n) {
        verify_tree(e, weight);
        return;
    }
    e->token[i] = -1;
    if (left_out(e, i) || !draft_of(d, e, i)) {
        fill_slot(e, i + 1, weight);
        return;
    }
    for (int32_t x = 0; x < e->w->v; x++) {
        const double *q = e->w->q[e->drafter[i]][e->context[e->s->parent[i]]];
        if (!(d[x] > 0)) continue;
        e->token[i] = e->how == OWN_TOKEN && q[x] < 0.2 ? -1 : x;
        e->context[i] = e->w->v * e->context[e->s->parent[i]] + 1 + x;
        fill_slot(e, i + 1, weight * d[x]);
    }
}

/* Total variation between texts as long as the deepest path and one token more, what a step left open being drawn from the
 * target, and the target's texts. */
static double distance(const world *w, const double *emitted)
{
    static double text[MAX_CONTEXT], want[MAX_CONTEXT];
    double sum = 0;
    int32_t first = w->n_context;
    text[0] = 0, want[0] = 1;
    for (int32_t c = 1; c < w->n_context; c++) {
        const int32_t up = (c - 1) / w->v, x = (c - 1) % w->v;
        text[c] = emitted[c] + text[up] * w->p[up][x];
        want[c] = want[up] * w->p[up][x];
    }
    for (int32_t d = 0, level = 1; d < w->depth; d++) level *= w->v, first = w->n_context - level;
    for (int32_t c = first; c < w->n_context; c++) sum += fabs(text[c] - want[c]);
    return sum / 2;
}

/* Returns the distance. accepted, mss: may be NULL. */
static double enumerate(const world *w, const shape *s, drawing how, ref_fault fault, double *accepted, double *mss)
{
    static double emitted[MAX_CONTEXT];
    enumeration e = { .w = w, .s = s, .how = how, .fault = fault, .emitted = emitted };
    memset(emitted, 0, sizeof emitted);
    for (int32_t i = 1; i < s->n; i++)
        for (int32_t j = 1; j < i && how == SEVERAL; j++)
            if (s->parent[j] == s->parent[i]) e.drafter[i] = !e.drafter[j]; /* in turn */
    fill_slot(&e, 1, 1);
    if (accepted) *accepted = e.accepted, *mss = e.mss;
    return distance(w, emitted);
}

/* --- shapes --- */

static int32_t depth_of(const shape *s)
{
    int32_t deepest = 0, depth[MAX_SLOT] = { 0 };
    for (int32_t i = 1; i < s->n; i++) {
        depth[i] = depth[s->parent[i]] + 1;
        if (depth[i] > deepest) deepest = depth[i];
    }
    return deepest;
}

/* Calls each for every ordered tree of n nodes; `on_path` [depth + 1]: where the next node may hang. */
static void each_shape(shape *s, int32_t n, const int32_t *on_path, int32_t depth, void (*each)(const shape *, void *), void *user)
{
    if (s->n == n) {
        each(s, user);
        return;
    }
    const int32_t i = s->n++;
    for (int32_t up = 0; up <= depth; up++) {
        int32_t path[MAX_SLOT];
        memcpy(path, on_path, sizeof path);
        s->parent[i] = path[up], path[up + 1] = i;
        each_shape(s, n, path, up + 1, each, user);
    }
    s->n--;
}

static void all_shapes(int32_t n_most, void (*each)(const shape *, void *), void *user)
{
    const int32_t root[MAX_SLOT] = { 0 };
    for (int32_t n = 1; n <= n_most; n++) {
        shape s = { .n = 1, .parent = { -1 } };
        each_shape(&s, n, root, 0, each, user);
    }
}

/* The same shape, its slots level by level. */
static shape by_levels(const shape *s)
{
    shape out = { .n = 1, .parent = { -1 } };
    int32_t from[MAX_SLOT] = { 0 };
    for (int32_t i = 0; i < out.n; i++)
        for (int32_t c = from[i] + 1; c < s->n; c++)
            if (s->parent[c] == from[i]) from[out.n] = c, out.parent[out.n++] = i;
    return out;
}

/* Every node of level i has width[i] children. */
static shape product(const int32_t *width)
{
    shape s = { .n = 1, .parent = { -1 } };
    for (int32_t level = 0, begin = 0; width[level] > 0; level++) {
        const int32_t end = s.n;
        for (int32_t up = begin; up < end; up++)
            for (int32_t j = 0; j < width[level]; j++) s.parent[s.n++] = up;
        begin = end;
    }
    return s;
}

/* Is the subtree of b, slot for slot, in that of its sibling a? */
static bool contains(const shape *s, int32_t a, int32_t b)
{
    int32_t child = a;
    for (int32_t c = b + 1; c < s->n; c++) {
        if (s->parent[c] != b) continue;
        do child++;
        while (child < s->n && s->parent[child] != a);
        if (child >= s->n || !contains(s, child, c)) return false;
    }
    return true;
}

/* Has each sibling below it whatever its later ones have? */
static bool is_nested(const shape *s)
{
    for (int32_t b = 1; b < s->n; b++)
        for (int32_t a = 1; a < b; a++)
            if (s->parent[a] == s->parent[b] && !contains(s, a, b)) return false;
    return true;
}

/* --- the rules are exact --- */

typedef struct tally {
    test_random random;
    int32_t n_shape, n_case;
    double worst;
    /* Accepted drafts more than by multi-step sampling: the least where siblings are nested, and of the others. */
    double least_nested, least, most, sum;
    int32_t n_other;
} tally;

static void check_shape(const shape *s, void *user)
{
    static const drawing hows[] = { WITHOUT, REPEATED, SEVERAL, ADAPTIVE, LEVELS };
    const shape levels = by_levels(s);
    tally *t = user;
    t->n_shape++;
    for (int32_t v = 2; v <= MAX_V; v++) {
        world *w = make_world(&t->random, v, depth_of(s) + 1, t->n_case % 2 ? patchy : dense);
        for (int32_t i = 0; i < N_ELEMENTS(hows); i++) {
            double accepted, mss;
            const double error = enumerate(w, hows[i] == LEVELS ? &levels : s, hows[i], REF_RIGHT, &accepted, &mss);
            if (!(error < 1e-12))
                fail_msg("shape %d of %d nodes, %d tokens, drawing %d: distance %g", t->n_shape, s->n, v, (int)hows[i], error);
            t->worst = fmax(t->worst, error);
            t->n_case++;
            if (is_nested(s) && hows[i] < ADAPTIVE) {
                t->least_nested = fmin(t->least_nested, accepted - mss);
                continue;
            }
            t->least = fmin(t->least, accepted - mss), t->most = fmax(t->most, accepted - mss);
            t->sum += accepted - mss, t->n_other++;
        }
        free(w);
    }
}

/* Never less than multi-step sampling holds where each sibling has below it what later ones have (chains, products). Where a
 * later one is deeper, what the earlier one takes more may cost more than it brings. */
static void test_every_shape(void **state)
{
    (void)state;
    tally t = { .random = { 3 }, .least = 1, .least_nested = 1 };
    all_shapes(7, check_shape, &t);
    print_message("  %d shapes, %d enumerations: at most %.2g from the target. Accepted drafts more than by multi-step sampling: "
                  "%.2g at least where siblings are nested, else %.3f to %.3f, %.4f on average\n", t.n_shape, t.n_case, t.worst,
                  t.least_nested, t.least, t.most, t.sum / t.n_other);
    assert_int_equal(t.n_shape, 1 + 1 + 2 + 5 + 14 + 42 + 132);
    assert_true(t.least_nested > -1e-12);
}

/* --- the figures of 3.10 --- */

typedef struct mean {
    double sum, squares;
    int32_t n;
} mean;

static void add(mean *m, double x) { m->sum += x, m->squares += x * x, m->n++; }

/* The figures are means of 40 pairs that are not given: the difference of two means, in their standard deviations. */
static double deviations(const mean *m, double figure)
{
    const double x = m->sum / m->n, variance = m->squares / m->n - x * x;
    return fabs(x - figure) / sqrt(variance * (1.0 / 40 + 1.0 / m->n));
}

static void test_figures(void **state)
{
    static const struct {
        const char *name;
        int32_t width[5], n_world;
        double mss, traversal;
    } figures[] = {
        { "chain of 2", { 1, 1 }, 200, 0.831, 0.872 },  { "chain of 3", { 1, 1, 1 }, 200, 1.007, 1.104 },
        { "(2,1)", { 2, 1 }, 200, 1.218, 1.271 },       { "(2,2)", { 2, 2 }, 200, 1.434, 1.469 },
        { "(2,2,1)", { 2, 2, 1 }, 25, 1.830, 1.936 },   { "(1,1,2)", { 1, 1, 2 }, 100, 1.068, 1.166 },
    };
    test_random r = { 8 };
    (void)state;
    for (int32_t i = 0; i < N_ELEMENTS(figures); i++) {
        const shape s = product(figures[i].width);
        mean by_mss = { 0 }, more = { 0 };
        for (int32_t k = 0; k < figures[i].n_world; k++) {
            double accepted, mss;
            world *w = make_world(&r, 3, depth_of(&s) + 1, dense);
            assert_true(enumerate(w, &s, WITHOUT, REF_RIGHT, &accepted, &mss) < 1e-12);
            add(&by_mss, mss), add(&more, accepted - mss);
            free(w);
        }
        print_message("  %-10s MSS %.3f, traversal %.3f more; the figures: %.3f, %.3f\n", figures[i].name,
                      by_mss.sum / by_mss.n, more.sum / more.n, figures[i].mss, figures[i].traversal - figures[i].mss);
        assert_true(deviations(&by_mss, figures[i].mss) < 4);
        assert_true(deviations(&more, figures[i].traversal - figures[i].mss) < 4);
    }
}

/* --- the wrong ones are not --- */

static void test_wrong_variants(void **state)
{
    static const struct {
        const char *name;
        ref_fault fault;
        drawing how;
        int32_t width[5];
    } wrong[] = {
        { "block: stops at the first failure", REF_STOP_AT_FIRST, WITHOUT, { 1, 1, 1 } },
        { "siblings sorted again", REF_SORTED, WITHOUT, { 2, 1 } },
        { "residual from p alone, chain", REF_RESIDUAL_OF_P, WITHOUT, { 1, 1, 1 } },
        { "residual from p alone", REF_RESIDUAL_OF_P, WITHOUT, { 2, 2 } },
        { "the parent's weight is lost", REF_WEIGHT_LOST, WITHOUT, { 1, 1 } },
        { "bonus from p", REF_BONUS_OF_P, WITHOUT, { 2, 1 } },
        { "rejected tokens stay in the draft", REF_REPLACEMENT, WITHOUT, { 2, 1 } },
        { "dropped for its own token", REF_RIGHT, OWN_TOKEN, { 2, 1 } },
    };
    (void)state;
    for (int32_t i = 0; i < N_ELEMENTS(wrong); i++) {
        const shape s = product(wrong[i].width);
        test_random r = { 21 };
        double worst = 0;
        for (int32_t k = 0; k < 10; k++) {
            world *w = make_world(&r, 3, depth_of(&s) + 1, dense);
            assert_true(enumerate(w, &s, WITHOUT, REF_RIGHT, NULL, NULL) < 1e-12);
            worst = fmax(worst, enumerate(w, &s, wrong[i].how, wrong[i].fault, NULL, NULL));
            free(w);
        }
        print_message("  %-36s distance %.3f\n", wrong[i].name, worst);
        if (!(worst > 1e-3)) fail_msg("%s: distance %g", wrong[i].name, worst);
    }
}

/* --- the library's form --- */

enum { WIDE_V = 24, MOST_NODES = 150, ROUNDS = 3000 };

/* A random tree as the library takes it, its nodes in a random topological order; and as the reference does. */
typedef struct sampled {
    int32_t n, token[MOST_NODES], parent[MOST_NODES], rank[MOST_NODES], q_row[MOST_NODES], child_row[MOST_NODES];
    int32_t place[MOST_NODES]; /* of a node of ref */
    float p[MOST_NODES * WIDE_V], q[2 * MOST_NODES * WIDE_V]; /* q: rows 2 node, 2 node + 1 of two drafters */
    double rows[3 * MOST_NODES][WIDE_V];
    int32_t ref_parent[MOST_NODES], ref_token[MOST_NODES];
    ref_tree ref;
    spec_tree tree;
} sampled;

/* A row of float32 in both forms. */
static const double *make_row(double *row, float *out, test_random *r, int32_t v)
{
    (test_below(r, 2) ? patchy : dense)(r, row, v);
    for (int32_t i = 0; i < v; i++) row[i] = (double)(out[i] = (float)row[i]);
    return row;
}

/* A token of q without those of the siblings that were drawn from it; -1: there is none. */
static int32_t draw_child(const ref_tree *t, test_random *r, int32_t up, const double *q)
{
    double d[WIDE_V], u = test_uniform(r);
    int32_t last = -1;
    memcpy(d, q, (size_t)t->v * sizeof *d);
    for (int32_t c = up + 1; c < t->n; c++)
        if (t->parent[c] == up && t->q[c] == q) d[t->token[c]] = 0;
    if (!(probs_normalise(d, t->v) > 0)) return -1;
    for (int32_t i = 0; i < t->v && u >= 0; i++)
        if (d[i] > 0) last = i, u -= d[i];
    return last;
}

static void draw_tree(sampled *s, test_random *r, int32_t v, int32_t n, int32_t n_drafter)
{
    ref_tree *t = &s->ref;
    *t = (ref_tree){ .v = v, .parent = s->ref_parent, .token = s->ref_token };
    while (n-- > 0) {
        const int32_t x = t->n, up = x == 0 ? -1 : test_below(r, 3) ? x - 1 : test_below(r, x);
        const double *q = x == 0 ? NULL : s->rows[3 * up + 1 + test_below(r, n_drafter)];
        int32_t depth = 0;
        for (int32_t a = up; a >= 0; a = s->ref_parent[a]) depth++;
        const int32_t token = x == 0 ? 0 : depth > SPEC_MAX_DEPTH ? -1 : draw_child(t, r, up, q);
        if (token < 0) continue;
        s->ref_parent[x] = up, s->ref_token[x] = token;
        t->q[x] = q, t->n++;
        t->p[x] = make_row(s->rows[3 * x], s->p + x * v, r, v);
        for (int32_t d = 0; d < 2; d++) (void)make_row(s->rows[3 * x + 1 + d], s->q + (2 * x + d) * v, r, v);
    }
}

/* Nodes in an order of their own: p moves with them, rows of q stay. */
static void place_tree(sampled *s, test_random *r)
{
    static float p[MOST_NODES * WIDE_V];
    const ref_tree *t = &s->ref;
    bool done[MOST_NODES] = { false };
    memcpy(p, s->p, sizeof p);
    for (s->n = 0; s->n < t->n;) {
        const int32_t x = test_below(r, t->n), at = s->n, up = x > 0 ? t->parent[x] : -1;
        if (done[x] || (x > 0 && !done[up])) continue;
        done[x] = true, s->place[x] = at, s->n++;
        s->token[at] = t->token[x], s->parent[at] = x > 0 ? s->place[up] : -1;
        s->rank[at] = 0;
        for (int32_t c = up + 1; c < x; c++) s->rank[at] += x > 0 && t->parent[c] == up;
        s->q_row[at] = 2 * x;
        s->child_row[at] = x == 0 ? -1 : 2 * up + (t->q[x] == s->rows[3 * up + 2]);
        memcpy(s->p + at * t->v, p + x * t->v, (size_t)t->v * sizeof *p);
    }
    s->tree = (spec_tree){ .n = s->n, .cap = MOST_NODES, .token = s->token, .parent = s->parent, .rank = s->rank,
                           .q_row = s->q_row, .kind = SPEC_TREE_SAMPLED };
}

/* Numbers level by level: fewer ancestors first, then by the number of the parent, then in draw order. */
static void number_nodes(int32_t *number, const ref_tree *t)
{
    int32_t depth[MOST_NODES] = { 0 }, n = 0;
    for (int32_t x = 1; x < t->n; x++) depth[x] = depth[t->parent[x]] + 1;
    number[0] = n++;
    for (int32_t level = 1; n < t->n; level++)
        for (int32_t first = 0, up; first < n; first++) { /* parents by number */
            for (up = 0; up < t->n && !(depth[up] == level - 1 && number[up] == first); up++) {}
            for (int32_t x = 1; x < t->n && up < t->n; x++)
                if (t->parent[x] == up) number[x] = n++;
        }
}

static int32_t draw_at(const double *probs, int32_t v, double u)
{
    double sum = 0;
    int32_t last = -1;
    for (int32_t i = 0; i < v && (last < 0 || sum <= u); i++)
        if (probs[i] > 0) last = i, sum += probs[i];
    return last;
}

/* Where the reference ends, and by which token, by the keys that are promised; `nudge` moves its uniforms. */
static int32_t reference_end(const sampled *s, const spec_verify_args *a, double nudge, int32_t *token)
{
    static ref_leaves leaves;
    int32_t number[MOST_NODES], i = 0, depth = 0;
    number_nodes(number, &s->ref);
    ref_traversal(&leaves, &s->ref, REF_RIGHT);
    while (leaves.node[i] > 0 && (double)spec_uniform(a->seed, a->position, SPECI_DRAW_NODE, (uint32_t)number[leaves.node[i]]) *
                                         (1 + nudge) >= leaves.accept[i])
        i++;
    bool leaf = true;
    for (int32_t c = 1; c < s->ref.n; c++) leaf = leaf && s->ref.parent[c] != leaves.node[i];
    for (int32_t x = leaves.node[i]; x > 0; x = s->ref.parent[x]) depth++;
    const double u = (double)spec_uniform(a->seed, a->position + (uint64_t)depth, leaf ? SPECI_DRAW_TARGET : SPECI_DRAW_RESIDUAL, 0);
    *token = draw_at(leaves.b[i], s->ref.v, u * (1 + nudge));
    return leaves.node[i];
}

/* Trees of up to 150 nodes, any shape, one drafter or two. A draw within rounding of a border could go either way: such
 * cases are left out. */
static void test_against_reference(void **state)
{
    static sampled s;
    test_random r = { 99 };
    int32_t n_checked = 0, n_deep = 0;
    (void)state;
    for (int32_t i = 0; i < ROUNDS; i++) {
        const int32_t n_drafter = 1 + i % 2;
        draw_tree(&s, &r, 2 + test_below(&r, WIDE_V - 1), i % 10 == 0 ? MOST_NODES : 1 + test_below(&r, 12), n_drafter);
        place_tree(&s, &r);
        if (n_drafter > 1) s.tree.kind = SPEC_TREE_SAMPLED_IID; /* two of them may name the same token */
        bool chain = true;
        for (int32_t x = 1; x < s.n; x++) chain = chain && s.parent[x] == x - 1;
        const spec_verify_args a = { .struct_size = sizeof a, .tree = &s.tree, .n_vocab = s.ref.v, .p = s.p, .q = s.q,
                                     .child_row = s.child_row, .temperature = 1, .seed = (uint64_t)i << 31,
                                     .rule = chain ? SPEC_VERIFY_BLOCK : SPEC_VERIFY_TRAVERSAL, .position = (uint64_t)i * 977 };
        int32_t path[SPEC_MAX_DEPTH + 1], n_path, token, want, low, high;
        const int32_t end = reference_end(&s, &a, 0, &want);
        if (end != reference_end(&s, &a, -1e-3, &low) || end != reference_end(&s, &a, 1e-3, &high) || low != want || high != want)
            continue;
        test_ok(spec_verify_probs(path, &n_path, &token, &a), "spec_verify_probs");
        if (path[n_path - 1] != s.place[end] || token != want)
            fail_msg("case %d: %d nodes, %d tokens: node %d, token %d; expected %d, %d", i, s.n, s.ref.v, path[n_path - 1], token,
                     s.place[end], want);
        for (int32_t k = 1; k < n_path; k++) assert_int_equal(s.parent[path[k]], path[k - 1]);
        n_checked++, n_deep += n_path > 2;
    }
    print_message("  %d of %d cases compared, %d of them accept two drafts or more\n", n_checked, ROUNDS, n_deep);
    assert_true(n_checked > ROUNDS * 9 / 10 && n_deep > ROUNDS / 10);
}

/* --- on the brink --- */

/* Draws a tree, changes it and verifies it. Returns how many drafts were accepted; most: the length of the path along first
 * siblings. */
static int32_t verify_drawn(sampled *s, test_random *r, uint64_t position, void (*change)(sampled *), int32_t *most, int32_t *token)
{
    int32_t path[SPEC_MAX_DEPTH + 1], n_path;
    draw_tree(s, r, 2 + test_below(r, 6), 1 + test_below(r, 12), 1);
    change(s);
    place_tree(s, r);
    const spec_verify_args a = { .struct_size = sizeof a, .tree = &s->tree, .n_vocab = s->ref.v, .p = s->p, .q = s->q,
                                 .rule = SPEC_VERIFY_TRAVERSAL, .temperature = 1, .seed = 7, .position = position };
    test_ok(spec_verify_probs(path, &n_path, token, &a), "spec_verify_probs");
    for (int32_t x = *most = 0, first; ; x = first, (*most)++) {
        for (first = x + 1; first < s->ref.n && s->ref.parent[first] != x; first++) {}
        if (first == s->ref.n) return n_path - 1;
    }
}

static void make_equal(sampled *s)
{
    for (int32_t x = 0; x < s->ref.n; x++)
        memcpy(s->p + x * s->ref.v, s->q + 2 * x * s->ref.v, (size_t)s->ref.v * sizeof *s->p);
}

/* A target that wants nothing of what was drafted: a token that no draft distribution has. */
static void make_disjoint(sampled *s)
{
    for (int32_t x = 0; x < s->ref.n; x++)
        for (int32_t i = 0; i < s->ref.v; i++) s->p[x * s->ref.v + i] = i == s->ref.v - 1;
    for (int32_t x = 1; x < s->ref.n; x++)
        if (s->ref_token[x] == s->ref.v - 1) s->ref.n = x; /* with all that was drawn later */
}

/* Z = 0 and w = 1 at every node: the path along first siblings is accepted to its end. */
static void test_equal_distributions(void **state)
{
    static sampled s;
    test_random r = { 5 };
    (void)state;
    for (int32_t i = 0; i < 2000; i++) {
        int32_t most, token;
        const int32_t n = verify_drawn(&s, &r, (uint64_t)i * 100, make_equal, &most, &token);
        assert_int_equal(n, most);
    }
}

static void test_disjoint_distributions(void **state)
{
    static sampled s;
    test_random r = { 6 };
    (void)state;
    for (int32_t i = 0; i < 2000; i++) {
        int32_t most, token;
        assert_int_equal(verify_drawn(&s, &r, (uint64_t)i * 100, make_disjoint, &most, &token), 0);
        assert_int_equal(token, s.ref.v - 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_shape),
        cmocka_unit_test(test_figures),
        cmocka_unit_test(test_wrong_variants),
        cmocka_unit_test(test_against_reference),
        cmocka_unit_test(test_equal_distributions),
        cmocka_unit_test(test_disjoint_distributions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
