/* tree_unroll.c - a tree as chains side by side: what an engine without a tree pass scores. For comparisons only. */
#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/tree/tree.h"

static bool is_leaf(const spec_tree *t, int32_t x)
{
    for (int32_t i = x + 1; i < t->n; i++)
        if (t->parent[i] == x) return false;
    return true;
}

static void copy_node(spec_tree *out, int32_t to, const spec_tree *tree, int32_t x, int32_t parent, int32_t rank,
                      int32_t *leaf)
{
    out->token[to] = tree->token[x];
    out->parent[to] = parent;
    if (out->rank) out->rank[to] = rank;
    if (out->prob) out->prob[to] = tree->prob ? tree->prob[x] : 0.0f;
    if (out->q_row) out->q_row[to] = tree->q_row ? tree->q_row[x] : -1;
    if (leaf) leaf[to] = x;
}

spec_status spec_tree_unroll(const spec_tree *tree, spec_tree *out, int32_t *leaf)
{
    SPEC_NEED(tree, "tree");
    SPEC_NEED(out, "out");
    if (out == tree) return speci_fail(SPEC_E_INVALID, "a tree cannot be unrolled into itself");
    if (tree->n < 1) return speci_fail(SPEC_E_INVALID, "a tree without a root cannot be unrolled");
    int64_t n = 1;
    for (int32_t i = 1; i < tree->n; i++) n += is_leaf(tree, i) ? speci_tree_depth(tree, i) : 0;
    if (n > out->cap)
        return speci_fail(SPEC_E_FULL, "unrolled, the tree has %lld nodes; there is room for %d", (long long)n,
                          out->cap);
    copy_node(out, 0, tree, 0, -1, 0, leaf);
    int32_t chains = 0, end = 1;
    for (int32_t i = 1; i < tree->n; i++) {
        if (!is_leaf(tree, i)) continue;
        const int32_t first = end;
        end += speci_tree_depth(tree, i);
        for (int32_t to = end - 1, x = i; x > 0; x = tree->parent[x], to--)
            copy_node(out, to, tree, x, to == first ? 0 : to - 1, to == first ? chains : 0, leaf);
        chains++;
    }
    out->n = (int32_t)n;
    out->kind = SPEC_TREE_UNROLLED;
    return SPEC_OK;
}
