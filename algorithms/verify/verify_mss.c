/* verify_mss.c - multi-step speculative sampling, without and with replacement (algorithms.md 3.2).
 *
 * R is what is left of the target's distribution and D of the draft distribution at a node; both are float32, their
 * sums float64. While candidates are verified the future output always has the distribution R, because
 *     D(y) min(1, R(y) / D(y)) + Z norm(max(R - D, 0))(y) = R(y),   Z = sum max(R - D, 0).
 * Backends' accept is tested against this file: the same sums, in the same order, by the same draws. */
#include "algorithms/verify/verify.h"

#include <string.h>

typedef struct residuals {
    const spec_verify_args *a;
    size_t n; /* entries of a distribution */
    float *r, *d;
    int32_t d_row; /* d is what is left of this row of q, -1 = nothing yet */
    bool repeat;   /* siblings were drawn with replacement: D stays q */
} residuals;

/* v = v / sum(v) where the sum is above `floor`; returns the sum before. */
static double normalise(float *v, size_t n, double floor)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)v[i];
    for (size_t i = 0; sum > floor && i < n; i++) v[i] = (float)((double)v[i] / sum);
    return sum;
}

/* Takes token y, which was rejected, out of D. However little is left is still a distribution: a sure draft's next
 * sibling was drawn from what underflow spared. If nothing is left, D is zero and later siblings of this row are
 * skipped. */
static void remove_from_draft(residuals *w, int32_t y)
{
    w->d[y] = 0;
    (void)normalise(w->d, w->n, 0);
}

/* D for candidate c of `node`: its row without the rejected siblings that were drawn from the same row. */
static const float *draft_probs(residuals *w, int32_t node, int32_t c)
{
    const spec_tree *t = w->a->tree;
    const int32_t row = speci_verify_q_row(w->a, c);
    const float *q = w->a->q + (size_t)row * w->n;
    if (w->repeat) return q;
    if (row == w->d_row) return w->d;
    memcpy(w->d, q, w->n * sizeof *q);
    w->d_row = row;
    for (int32_t e = speci_tree_next_child(t, node, -1); e != c; e = speci_tree_next_child(t, node, e))
        if (speci_verify_q_row(w->a, e) == row && w->d[t->token[e]] > 0) remove_from_draft(w, t->token[e]);
    return w->d;
}

/* R = norm(max(R - D, 0)) after candidate c was rejected. Where that is nothing, which only rounding can do, R is p
 * without the candidates so far (3.2), and p itself if they were all of it. */
static void reject(residuals *w, int32_t node, int32_t c, const float *d)
{
    const double nothing = 1e-12;
    const spec_tree *t = w->a->tree;
    const float *p = speci_verify_p(w->a, node);
    for (size_t i = 0; i < w->n; i++) w->r[i] = w->r[i] > d[i] ? w->r[i] - d[i] : 0.0f;
    if (normalise(w->r, w->n, nothing) > nothing) return;
    memcpy(w->r, p, w->n * sizeof *p);
    for (int32_t e = speci_tree_next_child(t, node, -1); e >= 0; e = speci_tree_next_child(t, node, e)) {
        w->r[t->token[e]] = 0;
        if (e == c) break;
    }
    if (normalise(w->r, w->n, 0) == 0) memcpy(w->r, p, w->n * sizeof *p);
}

/* The accepted child of `node`, which has some; or -1, and *token is drawn from R. */
static int32_t accept(residuals *w, int32_t node, uint64_t position, int32_t *token)
{
    const uint64_t seed = w->a->seed;
    const spec_tree *t = w->a->tree;
    int32_t rank = 0;
    memcpy(w->r, speci_verify_p(w->a, node), w->n * sizeof *w->r);
    w->d_row = -1;
    for (int32_t c = speci_tree_next_child(t, node, -1); c >= 0; c = speci_tree_next_child(t, node, c), rank++) {
        const float *d = draft_probs(w, node, c);
        const int32_t y = t->token[c];
        if (d[y] == 0) continue;
        if (spec_uniform(seed, position, SPECI_DRAW_ACCEPT, (uint32_t)rank) * d[y] < w->r[y]) return c;
        reject(w, node, c, d);
        if (!w->repeat) remove_from_draft(w, y);
    }
    *token = spec_draw(w->r, (int32_t)w->n, spec_uniform(seed, position, SPECI_DRAW_RESIDUAL, 0));
    return -1;
}

/* A leaf has nothing to verify: what follows it is drawn as plain decoding would (3.5). */
static spec_status decide(void *arg, int32_t node, int32_t depth, int32_t *child, int32_t *token)
{
    residuals *w = arg;
    const bool leaf = speci_tree_next_child(w->a->tree, node, -1) < 0;
    *child = leaf ? speci_verify_naive_node(w->a, node, depth, token)
                  : accept(w, node, w->a->position + (uint64_t)depth, token);
    return SPEC_OK;
}

static spec_status walk(const spec_verify_args *a, bool repeat, int32_t *path, int32_t *n_path, int32_t *token)
{
    residuals w = { .a = a, .n = (size_t)a->n_vocab, .repeat = repeat };
    w.r = speci_alloc(a->allocator, 2 * w.n, sizeof *w.r);
    if (!w.r) return SPEC_E_NOMEM;
    w.d = w.r + w.n;
    const spec_status status = speci_verify_walk(decide, &w, path, n_path, token);
    speci_free(a->allocator, w.r);
    return status;
}

spec_status speci_verify_mss_walk(const spec_verify_args *a, int32_t *path, int32_t *n_path, int32_t *token)
{
    return walk(a, false, path, n_path, token);
}

static spec_status walk_repeat(const spec_verify_args *a, int32_t *path, int32_t *n_path, int32_t *token)
{
    return walk(a, true, path, n_path, token);
}

const char *speci_verify_not_sampled(spec_tree_kind kind)
{
    if (kind == SPEC_TREE_DETERMINISTIC)
        return "would divide by the draft probability of nodes that are no draws from it";
    if (kind == SPEC_TREE_UNROLLED) return "would verify a prefix that paths share once for each of them";
    return NULL;
}

static const char *objection(spec_tree_kind kind, bool chain)
{
    (void)chain;
    return speci_verify_not_sampled(kind);
}

static const char *objection_repeat(spec_tree_kind kind, bool chain)
{
    if (kind != SPEC_TREE_SAMPLED || chain) return speci_verify_not_sampled(kind);
    return "would verify a sibling as if those before it could have been drawn again";
}

const speci_verify_rule speci_verify_mss = {
    .id = SPEC_VERIFY_MSS,
    .name = "mss",
    .help = "multi-step speculative sampling without replacement; for sampled trees",
    .uses_draft_probs = true,
    .auto_kinds = 1u << SPEC_TREE_SAMPLED,
    .objection = objection,
    .walk = speci_verify_mss_walk,
    .device = &speci_verify_by_accept,
};

const speci_verify_rule speci_verify_mss_repeat = {
    .id = SPEC_VERIFY_MSS_REPEAT,
    .name = "mss-repeat",
    .help = "the same with replacement; for trees sampled i.i.d., and for sampled chains",
    .uses_draft_probs = true,
    .auto_kinds = 1u << SPEC_TREE_SAMPLED_IID,
    .objection = objection_repeat,
    .walk = walk_repeat,
    .device = &speci_verify_by_accept_repeat,
};
