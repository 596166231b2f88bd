/* algo_tree.h - what the files about trees share beyond algo.h. */
#ifndef SPEC_ALGO_TREE_H
#define SPEC_ALGO_TREE_H

#include "algorithms/algo.h"

/* Does sibling j stand before sibling i? */
static inline bool speci_tree_before(const spec_tree *t, int32_t j, int32_t i)
{
    return t->rank ? t->rank[j] < t->rank[i] : j < i;
}

#endif
