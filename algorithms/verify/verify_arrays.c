/* verify_arrays.c - verification on plain arrays (algorithms.md 3): which rule keeps the distribution of which tree, and the
 * walk by each rule. What backends do is tested against it: the same sums, in the same order, by the same draws.
 *
 * R is what is left of the target's distribution and D of the draft distribution at a node; both are float32, their sums float64. While
 * candidates are verified the future output always has the distribution R, because
 *     D(y) min(1, R(y) / D(y)) + Z norm(max(R - D, 0))(y) = R(y),   Z = sum max(R - D, 0). */
#include "algorithms/verify/verify.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- the table --- */

static const char *const rule_names[] = { "auto", "greedy", "naive", "chain", "mss", "mss-repeat" };
enum { N_RULE = sizeof rule_names / sizeof *rule_names };

const char *spec_verify_rule_name(spec_verify_rule rule)
{
    return (uint32_t)rule < N_RULE ? rule_names[rule] : "unknown rule";
}

spec_verify_rule speci_verify_resolve(spec_verify_rule rule, spec_tree_kind kind, float temperature)
{
    if (rule != SPEC_VERIFY_AUTO) return rule;
    if (temperature == 0) return SPEC_VERIFY_GREEDY;
    if (!speci_tree_sampled(kind)) return SPEC_VERIFY_NAIVE;
    return kind == SPEC_TREE_SAMPLED ? SPEC_VERIFY_MSS : SPEC_VERIFY_MSS_REPEAT;
}

/* Has no node two children? Parents come first, so each node's parent is then the one before it. */
static bool is_chain(const spec_tree *t)
{
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] != i - 1) return false;
    return true;
}

/* What `rule` would do wrong; NULL if nothing. The table of 3.6. */
static const char *objection(spec_verify_rule rule, spec_tree_kind kind, bool chain, float temperature)
{
    if (temperature == 0)
        return rule == SPEC_VERIFY_GREEDY ? NULL : "would draw, where the likeliest token is the only answer";
    if (rule == SPEC_VERIFY_GREEDY) return "would always emit the likeliest token instead of drawing from the distribution";
    if (rule == SPEC_VERIFY_NAIVE) return NULL;
    if (kind == SPEC_TREE_DETERMINISTIC)
        return "would divide by the draft's probability of nodes that were chosen, not drawn by it";
    if (kind == SPEC_TREE_UNROLLED) return "would verify a prefix that paths share once for each of them";
    if (rule == SPEC_VERIFY_CHAIN && !chain) return "would verify one draft after a node that has several";
    if (rule == SPEC_VERIFY_MSS_REPEAT && kind == SPEC_TREE_SAMPLED && !chain)
        return "would verify a sibling as if those before it could have been drawn again";
    return NULL;
}

static void list_fitting(char *out, size_t cap, spec_tree_kind kind, bool chain, float temperature)
{
    size_t n = 0;
    for (int rule = SPEC_VERIFY_GREEDY; rule < N_RULE && n < cap; rule++)
        if (!objection((spec_verify_rule)rule, kind, chain, temperature))
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", rule_names[rule]);
}

spec_status spec_verify_is_lossless(const spec_tree *tree, spec_verify_rule rule, float temperature)
{
    static const char *const kinds[] = { "chosen", "drawn", "drawn with repeats", "unrolled" };
    if (!tree || tree->n < 1 || !tree->parent) return speci_fail(SPEC_E_INVALID, "verification needs a tree");
    if ((uint32_t)tree->kind >= sizeof kinds / sizeof *kinds)
        return speci_fail(SPEC_E_INVALID, "there is no kind of tree %d", (int)tree->kind);
    if ((uint32_t)rule >= N_RULE) return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)rule);
    if (!(temperature >= 0)) return speci_fail(SPEC_E_INVALID, "temperature %g", (double)temperature);
    const bool chain = is_chain(tree);
    const char *wrong = objection(speci_verify_resolve(rule, tree->kind, temperature), tree->kind, chain, temperature);
    if (!wrong) return SPEC_OK;
    char fitting[64];
    list_fitting(fitting, sizeof fitting, tree->kind, chain, temperature);
    return speci_fail(SPEC_E_INVALID, "%s verification %s; for a %s %s at temperature %g: %s", rule_names[rule], wrong,
                      chain ? "chain" : "tree", kinds[tree->kind], (double)temperature, fitting);
}

/* ----------------------------------------------------------------------------------- the distributions --- */

typedef struct walk {
    const spec_verify_args *a;
    const spec_tree *t;
    spec_verify_rule rule;
    size_t n; /* entries of a distribution */
    float *r, *d;
    int32_t d_row; /* d is what is left of this row, -1 = nothing yet */
} walk;

static bool uses_draft_probs(spec_verify_rule rule)
{
    return rule == SPEC_VERIFY_CHAIN || rule == SPEC_VERIFY_MSS || rule == SPEC_VERIFY_MSS_REPEAT;
}

/* The row of q that node c (not the root) was drawn from; -1 = the tree does not say. */
static int32_t row_of(const walk *w, int32_t c)
{
    if (w->a->child_row) return w->a->child_row[c];
    return w->t->q_row ? w->t->q_row[w->t->parent[c]] : -1;
}

static spec_status check_probs(const float *probs, size_t n, const char *whose, int32_t node, int32_t row)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        if (!(probs[i] >= 0) || isinf(probs[i]))
            return speci_fail(SPEC_E_INVALID, "%s distribution, node %d, row %d: entry %zu is %g; probabilities are >= 0", whose,
                              node, row, i, (double)probs[i]);
        sum += (double)probs[i];
    }
    if (fabs(sum - 1) <= 1e-3) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "%s distribution, node %d, row %d: the sum is %g, not 1", whose, node, row, sum);
}

static bool seen_before(const walk *w, int32_t c)
{
    for (int32_t e = 1; e < c; e++)
        if (row_of(w, e) == row_of(w, c)) return true;
    return false;
}

static spec_status check_distributions(const walk *w)
{
    for (int32_t i = 0; i < w->t->n; i++) SPEC_TRY(check_probs(w->a->p + (size_t)i * w->n, w->n, "the target's", i, i));
    if (!uses_draft_probs(w->rule)) return SPEC_OK;
    for (int32_t c = 1; c < w->t->n; c++) {
        const int32_t row = row_of(w, c);
        if (row < 0 || !w->a->q)
            return speci_fail(SPEC_E_INVALID, "%s verification needs the draft distribution that node %d was drawn from: %s",
                              rule_names[w->rule], c, w->a->q ? "its row is not known" : "q is NULL");
        if (seen_before(w, c)) continue;
        SPEC_TRY(check_probs(w->a->q + (size_t)row * w->n, w->n, "the draft's", c, row));
    }
    return SPEC_OK;
}

/* ----------------------------------------------------------------------------------- the walk --- */

/* v = v / sum(v) where the sum is above `floor`; returns the sum before. */
static double normalise(float *v, size_t n, double floor)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)v[i];
    for (size_t i = 0; sum > floor && i < n; i++) v[i] = (float)((double)v[i] / sum);
    return sum;
}

/* Takes token y, which was rejected, out of D. However little is left is still a distribution: a sure draft's next sibling was
 * drawn from what underflow spared. If nothing is left, D is zero and later siblings of this row are skipped. */
static void remove_from_draft(walk *w, int32_t y)
{
    w->d[y] = 0;
    (void)normalise(w->d, w->n, 0);
}

/* D for candidate c of `node`: its row without the rejected siblings that were drawn from the same row. */
static const float *draft_probs(walk *w, int32_t node, int32_t c)
{
    const int32_t row = row_of(w, c);
    const float *q = w->a->q + (size_t)row * w->n;
    if (w->rule == SPEC_VERIFY_MSS_REPEAT) return q;
    if (row == w->d_row) return w->d;
    memcpy(w->d, q, w->n * sizeof *q);
    w->d_row = row;
    for (int32_t e = speci_tree_next_child(w->t, node, -1); e != c; e = speci_tree_next_child(w->t, node, e))
        if (row_of(w, e) == row && w->d[w->t->token[e]] > 0) remove_from_draft(w, w->t->token[e]);
    return w->d;
}

/* R = norm(max(R - D, 0)) after candidate c was rejected. Where that is nothing, which only rounding can do, R is p
 * without the candidates so far (3.2), and p itself if they were all of it. */
static void reject(walk *w, int32_t node, int32_t c, const float *d)
{
    const double nothing = 1e-12;
    const float *p = w->a->p + (size_t)node * w->n;
    for (size_t i = 0; i < w->n; i++) w->r[i] = w->r[i] > d[i] ? w->r[i] - d[i] : 0.0f;
    if (normalise(w->r, w->n, nothing) > nothing) return;
    memcpy(w->r, p, w->n * sizeof *p);
    for (int32_t e = speci_tree_next_child(w->t, node, -1); e >= 0; e = speci_tree_next_child(w->t, node, e)) {
        w->r[w->t->token[e]] = 0;
        if (e == c) break;
    }
    if (normalise(w->r, w->n, 0) == 0) memcpy(w->r, p, w->n * sizeof *p);
}

/* Chain and multi-step sampling (3.1, 3.2): the accepted child, or -1 and *token, drawn from R. */
static int32_t accept(walk *w, int32_t node, uint64_t position, int32_t *token)
{
    const uint64_t seed = w->a->seed;
    int32_t rank = 0;
    memcpy(w->r, w->a->p + (size_t)node * w->n, w->n * sizeof *w->r);
    w->d_row = -1;
    for (int32_t c = speci_tree_next_child(w->t, node, -1); c >= 0; c = speci_tree_next_child(w->t, node, c), rank++) {
        const float *d = draft_probs(w, node, c);
        const int32_t y = w->t->token[c];
        if (d[y] == 0) continue;
        if (spec_uniform(seed, position, SPECI_DRAW_ACCEPT, (uint32_t)rank) * d[y] < w->r[y]) return c;
        reject(w, node, c, d);
        if (w->rule != SPEC_VERIFY_MSS_REPEAT) remove_from_draft(w, y);
    }
    *token = spec_draw(w->r, (int32_t)w->n, spec_uniform(seed, position, SPECI_DRAW_RESIDUAL, 0));
    return -1;
}

static int32_t likeliest(const float *probs, size_t n)
{
    size_t best = 0;
    for (size_t i = 1; i < n; i++)
        if (probs[i] > probs[best]) best = i;
    return (int32_t)best;
}

/* Greedy and naive (3.4): the token comes from the target alone, and *token says which; the child that equals it. */
static int32_t follow(const walk *w, int32_t node, uint64_t position, int32_t *token)
{
    const float *p = w->a->p + (size_t)node * w->n;
    if (w->rule == SPEC_VERIFY_GREEDY)
        *token = likeliest(p, w->n);
    else
        *token = spec_draw(p, (int32_t)w->n, spec_uniform(w->a->seed, position, SPECI_DRAW_TARGET, 0));
    int32_t c = speci_tree_next_child(w->t, node, -1);
    while (c >= 0 && w->t->token[c] != *token) c = speci_tree_next_child(w->t, node, c);
    return c;
}

/* A leaf has nothing to verify: what follows it is drawn as plain decoding would (3.5). */
static void walk_tree(walk *w, int32_t *path, int32_t *n_path, int32_t *token)
{
    *n_path = 0;
    for (int32_t node = 0; node >= 0;) {
        const uint64_t position = w->a->position + (uint64_t)*n_path; /* of the token after the node */
        const bool verified = uses_draft_probs(w->rule) && speci_tree_next_child(w->t, node, -1) >= 0;
        path[(*n_path)++] = node;
        node = verified ? accept(w, node, position, token) : follow(w, node, position, token);
    }
}

static spec_status check_args(const spec_verify_args *a)
{
    if (!a->tree || !a->p) return speci_fail(SPEC_E_INVALID, "verification needs a tree and the target's distributions p");
    if (a->n_vocab < 1) return speci_fail(SPEC_E_INVALID, "distributions over %d ids", a->n_vocab);
    SPEC_TRY(spec_tree_check(a->tree, a->tree->n, a->n_vocab));
    return spec_verify_is_lossless(a->tree, a->rule, a->temperature);
}

spec_status spec_verify_distributions(const spec_verify_args *args, int32_t *path, int32_t *n_path, int32_t *token)
{
    spec_verify_args a = { .struct_size = sizeof a };
    SPEC_TRY(speci_params_read(&a, sizeof a, args, "spec_verify_args"));
    SPEC_TRY(check_args(&a));
    walk w = { .a = &a, .t = a.tree, .n = (size_t)a.n_vocab };
    w.rule = speci_verify_resolve(a.rule, a.tree->kind, a.temperature);
    SPEC_TRY(check_distributions(&w));
    if (uses_draft_probs(w.rule)) {
        w.r = speci_alloc(a.allocator, 2 * w.n, sizeof *w.r);
        if (!w.r) return SPEC_E_NOMEM;
        w.d = w.r + w.n;
    }
    walk_tree(&w, path, n_path, token);
    speci_free(a.allocator, w.r);
    return SPEC_OK;
}
