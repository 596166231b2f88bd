/* verify_mss.c - multi-step speculative sampling, without and with replacement (algorithms.md 3.2).
 *
 * R is what is left of the target's distribution and D of the draft distribution at a node (verify_residual.c). While
 * candidates are verified the future output always has the distribution R, because
 *     D(y) min(1, R(y) / D(y)) + Z norm(max(R - D, 0))(y) = R(y),   Z = sum max(R - D, 0). */
#include "algorithms/verify/verify.h"

/* The accepted child of `node`, which has some; or -1, and *token is drawn from R. */
static int32_t accept(speci_residual *w, int32_t node, uint64_t position, int32_t *token)
{
    const uint64_t seed = w->a->seed;
    const spec_tree *t = w->a->tree;
    int32_t rank = 0;
    speci_residual_begin(w, node);
    for (int32_t c = speci_tree_next_child(t, node, -1); c >= 0; c = speci_tree_next_child(t, node, c), rank++) {
        const float *d = speci_residual_draft(w, c);
        const int32_t y = t->token[c];
        if (d[y] == 0) continue;
        if (spec_uniform(seed, position, SPECI_DRAW_ACCEPT, (uint32_t)rank) * d[y] < w->r[y]) return c;
        (void)speci_residual_reject(w, c, d, 1);
    }
    *token = spec_draw(w->r, (int32_t)w->n, spec_uniform(seed, position, SPECI_DRAW_RESIDUAL, 0));
    return -1;
}

/* A leaf has nothing to verify: what follows it is drawn as plain decoding would (3.5). */
static spec_status decide(void *arg, int32_t node, int32_t depth, int32_t *child, int32_t *token)
{
    speci_residual *w = arg;
    const bool leaf = speci_tree_next_child(w->a->tree, node, -1) < 0;
    *child = leaf ? speci_verify_naive_node(w->a, node, depth, token)
                  : accept(w, node, w->a->position + (uint64_t)depth, token);
    return SPEC_OK;
}

static spec_status walk(const spec_verify_args *a, bool repeat, int32_t *path, int32_t *n_path, int32_t *token)
{
    speci_residual w;
    SPEC_TRY(speci_residual_open(&w, a, repeat));
    const spec_status status = speci_verify_walk(decide, &w, NULL, path, n_path, token);
    speci_residual_close(&w);
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

const char *speci_verify_not_sampled_chain(spec_tree_kind kind, bool chain)
{
    const char *other = speci_verify_not_sampled(kind);
    return other || chain ? other : "would verify one draft after a node that has several";
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
