/* tree.h - draft trees as plain data: what the rooms of algorithms share beyond spec.h. Includes nothing of a
 * session. */
#ifndef SPEC_TREE_H
#define SPEC_TREE_H

#include "backends/spec_backend.h"
#include "core/core.h"

/* Were the siblings of such trees sampled from draft distributions? Then rules may verify them by those. */
bool speci_tree_sampled(spec_tree_kind kind);
/* Rows of draft distributions stay only where something was drawn from them: a node without children has none. */
void speci_tree_forget_rows(spec_tree *t);
int32_t speci_tree_depth(const spec_tree *t, int32_t node);
/* Does no node stand below the first level? */
bool speci_tree_is_flat(const spec_tree *t);
/* Same nodes at the same places? */
bool speci_tree_equal(const spec_tree *a, const spec_tree *b);
/* The child of `node` that comes after its child `before` in order of rank (-1: the first), or -1. Every rule verifies
 * siblings in this order. */
int32_t speci_tree_next_child(const spec_tree *t, int32_t node, int32_t before);
/* The first child of `node`, in that order, that has this token; or -1. */
int32_t speci_tree_child_with(const spec_tree *t, int32_t node, int32_t token);
/* The nodes level by level, siblings in that order: node [t->n], and the place there of each one's parent [t->n] (-1: root). */
void speci_tree_levels(const spec_tree *t, int32_t *node, int32_t *parent);

/* As spec_tree_union, without memory of its own: map [the larger of the two] receives where b's nodes are. */
spec_status speci_tree_union(spec_tree *out, int32_t *map, const spec_tree *a, const spec_tree *b);

/* Does sibling j stand before sibling i? */
static inline bool speci_tree_before(const spec_tree *t, int32_t j, int32_t i)
{
    return t->rank ? t->rank[j] < t->rank[i] : j < i;
}

#endif
