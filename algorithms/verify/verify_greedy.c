/* verify_greedy.c - the greedy rule: the child that has the target's likeliest token, at temperature 0 (algorithms.md
 * 3.1). */
#include "algorithms/verify/verify.h"

static spec_status decide(void *arg, int32_t node, int32_t depth, int32_t *child, int32_t *token)
{
    const spec_verify_args *a = arg;
    const float *p = speci_verify_p(a, node);
    int32_t best = 0;
    (void)depth;
    for (int32_t i = 1; i < a->n_vocab; i++)
        if (p[i] > p[best]) best = i;
    *token = best;
    *child = speci_tree_child_with(a->tree, node, best);
    return SPEC_OK;
}

static spec_status walk(const spec_verify_args *a, int32_t *path, int32_t *n_path, int32_t *token)
{
    spec_verify_args copy = *a;
    return speci_verify_walk(decide, &copy, NULL, path, n_path, token);
}

const speci_verify_rule speci_verify_greedy = {
    .id = SPEC_VERIFY_GREEDY,
    .name = "greedy",
    .help = "follows the likeliest token; for every tree at temperature 0",
    .greedy = true,
    .auto_kinds = ~0u,
    .walk = walk,
    .device = &speci_verify_by_likeliest,
};
