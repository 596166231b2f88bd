/* algo_tree.c - draft trees as plain arrays. Node 0 is the root; parents come before their children. */
#include "algorithms/algo.h"

#include <string.h>

spec_status speci_tree_alloc(spec_tree *t, int32_t cap, const spec_allocator *a)
{
    *t = (spec_tree){ .cap = cap };
    t->token = speci_alloc(a, (size_t)cap, sizeof(int32_t));
    t->parent = speci_alloc(a, (size_t)cap, sizeof(int32_t));
    return t->token && t->parent ? SPEC_OK : SPEC_E_NOMEM;
}

void speci_tree_free(spec_tree *t, const spec_allocator *a)
{
    speci_free(a, t->token);
    speci_free(a, t->parent);
    *t = (spec_tree){ 0 };
}

void speci_tree_copy(spec_tree *to, const spec_tree *from)
{
    to->n = from->n;
    memcpy(to->token, from->token, (size_t)from->n * sizeof(int32_t));
    memcpy(to->parent, from->parent, (size_t)from->n * sizeof(int32_t));
}

void speci_tree_add(spec_tree *t, int32_t token, int32_t parent)
{
    t->token[t->n] = token;
    t->parent[t->n++] = parent;
}

bool speci_tree_equal(const spec_tree *a, const spec_tree *b)
{
    return a->n == b->n && memcmp(a->token, b->token, (size_t)a->n * sizeof(int32_t)) == 0 &&
           memcmp(a->parent, b->parent, (size_t)a->n * sizeof(int32_t)) == 0;
}

int32_t speci_tree_depth(const spec_tree *t, int32_t node)
{
    int32_t depth = 0;
    while ((node = t->parent[node]) >= 0) depth++;
    return depth;
}

spec_status speci_tree_check(const spec_tree *t, int32_t n_max)
{
    if (t->n < 1 || t->n > n_max)
        return speci_fail(SPEC_E_INVALID, "a tree of %d nodes; this session planned for 1 to %d", t->n, n_max);
    for (int32_t i = 0; i < t->n; i++) {
        if (i == 0 ? t->parent[0] != -1 : t->parent[i] < 0 || t->parent[i] >= i)
            return speci_fail(SPEC_E_INVALID, "node %d has parent %d; parents come before their children", i,
                              t->parent[i]);
        if (speci_tree_depth(t, i) > SPEC_MAX_DEPTH)
            return speci_fail(SPEC_E_INVALID, "node %d is deeper than %d", i, SPEC_MAX_DEPTH);
        for (int32_t j = 1; j < i; j++)
            if (t->parent[j] == t->parent[i] && t->token[j] == t->token[i])
                return speci_fail(SPEC_E_INVALID, "nodes %d and %d are siblings with the same token %d", j, i,
                                  t->token[i]);
    }
    return SPEC_OK;
}

void speci_tree_clip(spec_tree *t, int32_t depth, int32_t *map)
{
    int32_t n = 0;
    /* [0, n) is already the clipped tree; a dropped node maps to -1, and so do its descendants. */
    for (int32_t i = 0; i < t->n; i++) {
        const int32_t parent = i == 0 ? -1 : map[t->parent[i]];
        map[i] = -1;
        if (i > 0 && (parent < 0 || speci_tree_depth(t, parent) >= depth)) continue;
        map[i] = n;
        t->token[n] = t->token[i];
        t->parent[n++] = parent;
    }
    t->n = n;
}
