/* algo_tree.h - what the files about trees share. */
#ifndef SPEC_ALGO_TREE_H
#define SPEC_ALGO_TREE_H

#include "algorithms/algo.h"

/* Does sibling j stand before sibling i? */
static inline bool speci_tree_before(const spec_tree *t, int32_t j, int32_t i)
{
    return t->rank ? t->rank[j] < t->rank[i] : j < i;
}

static inline int32_t speci_depth_of(const spec_tree *t, int32_t node)
{
    int32_t depth = 0;
    for (; node > 0; node = t->parent[node]) depth++;
    return depth;
}

#endif
