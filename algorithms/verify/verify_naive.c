/* verify_naive.c - the naive rule (algorithms.md 3.4): one draw from the target, then the child that equals it. The
 * tree has no influence on the token, so the rule keeps the distribution for every tree. */
#include "algorithms/verify/verify.h"

int32_t speci_verify_naive_node(const spec_verify_args *a, int32_t node, int32_t depth, int32_t *token)
{
    const float u = spec_uniform(a->seed, a->position + (uint64_t)depth, SPECI_DRAW_TARGET, 0);
    *token = spec_draw(speci_verify_p(a, node), a->n_vocab, u);
    return speci_tree_child_with(a->tree, node, *token);
}

static spec_status decide(void *arg, int32_t node, int32_t depth, int32_t *child, int32_t *token)
{
    *child = speci_verify_naive_node(arg, node, depth, token);
    return SPEC_OK;
}

static spec_status walk(const spec_verify_args *a, int32_t *path, int32_t *n_path, int32_t *token)
{
    spec_verify_args copy = *a;
    return speci_verify_walk(decide, &copy, NULL, path, n_path, token);
}

const speci_verify_rule speci_verify_naive = {
    .id = SPEC_VERIFY_NAIVE,
    .name = "naive",
    .help = "draws from the target and follows the child that equals the draw; for every tree",
    .auto_kinds = 1u << SPEC_TREE_DETERMINISTIC | 1u << SPEC_TREE_UNROLLED,
    .walk = walk,
    .device = &speci_verify_by_accept,
};
