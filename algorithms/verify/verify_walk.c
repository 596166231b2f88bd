/* verify_walk.c - the walk of rules that decide node by node (algorithms.md 3.5), and access to plain arrays. */
#include "algorithms/verify/verify.h"

spec_status speci_verify_walk(speci_verify_node_fn decide, void *arg, const speci_verify_item *x, int32_t *path, int32_t *n_path,
                              int32_t *token)
{
    *n_path = 0;
    for (int32_t node = 0, next; node >= 0; node = next) {
        const int32_t depth = (*n_path)++;
        path[depth] = node;
        SPEC_TRY(decide(arg, node, depth, &next, token));
        if (x && *token < 0) return speci_fail(SPEC_E_DEVICE, "the logits of node %d are not numbers", node);
        if (x && speci_has_id(x->eos, x->n_eos, *token)) next = -1;
    }
    return SPEC_OK;
}

const float *speci_verify_p(const spec_verify_args *a, int32_t node)
{
    return a->p + (size_t)node * (size_t)a->n_vocab;
}

int32_t speci_verify_q_row(const spec_verify_args *a, int32_t c)
{
    if (a->child_row) return a->child_row[c];
    return a->tree->q_row ? a->tree->q_row[a->tree->parent[c]] : -1;
}
