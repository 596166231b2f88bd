/* tree_merge.c - trees from trees: pruned and united. */
#include "algorithms/tree/tree.h"

#include <string.h>

/* Siblings of i that stand before it and are dropped, or (dropped false) that stay: map says which, -1 = dropped. */
static int32_t n_before(const spec_tree *t, const int32_t *map, int32_t i, bool dropped)
{
    int32_t n = 0;
    for (int32_t j = t->parent[i] + 1; j < t->n && i > 0; j++)
        n += t->parent[j] == t->parent[i] && speci_tree_before(t, j, i) && (map[j] < 0) == dropped;
    return n;
}

/* map: 0 = stays, -1 = is dropped for its own sake or for that of siblings or ancestors. Is any? */
static bool choose(const spec_tree *t, const uint8_t *keep, bool with_siblings, int32_t *map)
{
    bool any = false;
    for (int32_t i = 0; i < t->n; i++) {
        map[i] = i == 0 || keep[i] ? 0 : -1;
        any |= map[i] < 0;
    }
    /* One pass does: what comes after a sibling dropped here also comes after the one dropped for its own sake. */
    for (int32_t i = 1; i < t->n && any; i++)
        if (map[t->parent[i]] < 0 || (with_siblings && n_before(t, map, i, true) > 0)) map[i] = -1;
    return any;
}

void spec_tree_prune(spec_tree *tree, int32_t *map, const uint8_t *keep, int by_slot)
{
    if (!tree || !keep) return;
    const bool sampled = speci_tree_sampled(tree->kind);
    const bool any = choose(tree, keep, sampled && by_slot, map);
    /* Ranks close ranks: from the old ones, so all of them before anything moves. */
    for (int32_t i = 0; i < tree->n && tree->rank; i++)
        if (map[i] >= 0) map[i] = any ? n_before(tree, map, i, false) : tree->rank[i];
    int32_t n = 0;
    for (int32_t i = 0; i < tree->n; i++) {
        if (map[i] < 0) continue;
        if (tree->rank) tree->rank[n] = map[i];
        tree->token[n] = tree->token[i];
        tree->parent[n] = i == 0 ? -1 : map[tree->parent[i]];
        if (tree->prob) tree->prob[n] = tree->prob[i];
        if (tree->q_row) tree->q_row[n] = tree->q_row[i];
        map[i] = n++;
    }
    tree->n = n;
    if (sampled && !by_slot) tree->kind = SPEC_TREE_DETERMINISTIC;
    if (tree->q_row) speci_tree_forget_rows(tree);
}

/* --- union --- */

/* Adds what `from` has and `out` has not; map [from->n]. */
static spec_status merge(spec_tree *out, const spec_tree *from, int32_t *map)
{
    map[0] = out->n > 0 ? 0 : spec_tree_add(out, -1, from->token[0], 1.0f);
    if (map[0] < 0) return speci_fail(SPEC_E_FULL, "the united tree has no room for a root");
    for (int32_t i = 1; i < from->n; i++) {
        const int32_t parent = map[from->parent[i]];
        map[i] = speci_tree_child_with(out, parent, from->token[i]);
        if (map[i] < 0) map[i] = spec_tree_add(out, parent, from->token[i], from->prob ? from->prob[i] : 0.0f);
        if (map[i] < 0) return speci_fail(SPEC_E_FULL, "the united tree has more than %d nodes", out->cap);
    }
    return SPEC_OK;
}

spec_status speci_tree_union(spec_tree *out, int32_t *map, const spec_tree *a, const spec_tree *b)
{
    if (out == a || out == b) return speci_fail(SPEC_E_INVALID, "a tree cannot be united into itself");
    if (a->n < 1 || b->n < 1 || a->token[0] != b->token[0])
        return speci_fail(SPEC_E_INVALID,
                          "only trees with the same root can be united: %d nodes from token %d, %d from %d", a->n,
                          a->n > 0 ? a->token[0] : -1, b->n, b->n > 0 ? b->token[0] : -1);
    out->n = 0;
    out->kind = SPEC_TREE_DETERMINISTIC;
    spec_status status = merge(out, a, map);
    if (status == SPEC_OK) status = merge(out, b, map);
    if (status != SPEC_OK) out->n = 0; /* no half of a union */
    return status;
}

spec_status spec_tree_union(spec_tree *out, int32_t *map_b, const spec_tree *a, const spec_tree *b)
{
    SPEC_NEED(a, "a");
    SPEC_NEED(b, "b");
    SPEC_NEED(out, "out");
    int32_t *map = speci_alloc(NULL, (size_t)speci_max32(1, speci_max32(a->n, b->n)), sizeof *map);
    if (!map) return SPEC_E_NOMEM;
    const spec_status status = speci_tree_union(out, map, a, b);
    if (status == SPEC_OK && map_b) memcpy(map_b, map, (size_t)b->n * sizeof *map);
    speci_free(NULL, map);
    return status;
}
