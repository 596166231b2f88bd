/* tree.c - draft trees as plain arrays. Node 0 is the root; parents come before their children. See also
 * tree_order.c (orders, what layers need of a tree) and tree_merge.c (prune, union). */
#include "algorithms/tree/tree.h"

#include <string.h>

enum { MOST_NODES = 1 << 20 }; /* a thousand times what any pass takes: more is a number that went wrong */

spec_status spec_tree_alloc(spec_tree *tree, int32_t cap, const spec_allocator *allocator)
{
    SPEC_NEED(tree, "tree");
    *tree = (spec_tree){ .n = 0 };
    if (cap < 1 || cap > MOST_NODES) return speci_fail(SPEC_E_INVALID, "a tree with room for %d nodes; it needs 1 to %d", cap, MOST_NODES);
    const size_t n = (size_t)cap;
    spec_tree t = { .cap = cap, .token = speci_alloc(allocator, n, sizeof *t.token) };
    t.parent = t.token ? speci_alloc(allocator, n, sizeof *t.parent) : NULL;
    t.rank = t.parent ? speci_alloc(allocator, n, sizeof *t.rank) : NULL;
    t.prob = t.rank ? speci_alloc(allocator, n, sizeof *t.prob) : NULL;
    t.q_row = t.prob ? speci_alloc(allocator, n, sizeof *t.q_row) : NULL;
    if (!t.q_row) {
        spec_tree_free(&t, allocator);
        return SPEC_E_NOMEM;
    }
    *tree = t;
    return SPEC_OK;
}

void spec_tree_free(spec_tree *tree, const spec_allocator *allocator)
{
    if (!tree) return;
    speci_free(allocator, tree->token);
    speci_free(allocator, tree->parent);
    speci_free(allocator, tree->rank);
    speci_free(allocator, tree->prob);
    speci_free(allocator, tree->q_row);
    *tree = (spec_tree){ .n = 0 };
}

/* Do siblings stand in the order of their ranks, so that nothing is lost without them? */
static bool ranks_are_places(const spec_tree *t)
{
    for (int32_t i = 1; i < t->n && t->rank; i++)
        for (int32_t j = 1; j < i; j++)
            if (t->parent[j] == t->parent[i] && !speci_tree_before(t, j, i)) return false;
    return true;
}

spec_status spec_tree_copy(spec_tree *to, const spec_tree *from)
{
    SPEC_NEED(to, "to");
    SPEC_NEED(from, "from");
    if (from->n > to->cap)
        return speci_fail(SPEC_E_FULL, "a tree of %d nodes does not fit one with room for %d", from->n, to->cap);
    if (!to->rank && !ranks_are_places(from))
        return speci_fail(SPEC_E_INVALID, "the copy has no room for ranks, and siblings do not stand in their order");
    const size_t bytes = (size_t)from->n * sizeof(int32_t);
    memcpy(to->token, from->token, bytes);
    memcpy(to->parent, from->parent, bytes);
    if (to->rank) spec_tree_ranks(from, to->rank);
    /* What `from` does not tell is not left over from an earlier tree. */
    for (int32_t i = 0; i < from->n && to->prob; i++) to->prob[i] = from->prob ? from->prob[i] : 0.0f;
    for (int32_t i = 0; i < from->n && to->q_row; i++) to->q_row[i] = from->q_row ? from->q_row[i] : -1;
    to->n = from->n;
    to->kind = from->kind;
    return SPEC_OK;
}

int32_t spec_tree_add(spec_tree *tree, int32_t parent, int32_t token, float prob)
{
    if (!tree) return -1;
    const int32_t i = tree->n;
    if (i >= tree->cap || parent >= i || (i == 0 ? parent != -1 : parent < 0)) return -1;
    if (tree->rank) {
        tree->rank[i] = 0;
        for (int32_t j = 1; j < i; j++) tree->rank[i] += tree->parent[j] == parent;
    }
    tree->token[i] = token;
    tree->parent[i] = parent;
    if (tree->prob) tree->prob[i] = prob;
    if (tree->q_row) tree->q_row[i] = -1;
    return tree->n++;
}

/* Is node i's depth at most `most`? Its parents are known to come before it. */
static bool depth_within(const spec_tree *t, int32_t i, int32_t most)
{
    for (; most >= 0 && i > 0; most--) i = t->parent[i];
    return most >= 0;
}

/* Node i against its siblings: tokens, and ranks that are 0 to (siblings - 1), each once. */
static spec_status check_siblings(const spec_tree *t, int32_t i)
{
    int32_t n = 0;
    for (int32_t j = t->parent[i] + 1; j < t->n; j++) {
        if (t->parent[j] != t->parent[i]) continue;
        n++;
        if (j >= i) continue;
        if (t->token[j] == t->token[i] && t->kind != SPEC_TREE_SAMPLED_IID && t->kind != SPEC_TREE_UNROLLED)
            return speci_fail(SPEC_E_INVALID, "nodes %d and %d are siblings with the same token %d", j, i, t->token[i]);
        if (t->rank && t->rank[j] == t->rank[i])
            return speci_fail(SPEC_E_INVALID, "nodes %d and %d are siblings with the same rank %d", j, i, t->rank[i]);
    }
    if (t->rank && (t->rank[i] < 0 || t->rank[i] >= n))
        return speci_fail(SPEC_E_INVALID, "node %d has rank %d, but %d siblings have ranks 0 to %d", i, t->rank[i], n,
                          n - 1);
    return SPEC_OK;
}

spec_status spec_tree_check(const spec_tree *tree, int32_t n_max, int32_t n_vocab)
{
    if (!tree || !tree->token || !tree->parent)
        return speci_fail(SPEC_E_INVALID, "a tree without tokens or parents");
    if (tree->n < 1 || tree->n > n_max)
        return speci_fail(SPEC_E_INVALID, "a tree of %d nodes; 1 to %d are planned for", tree->n, n_max);
    if (tree->kind < SPEC_TREE_DETERMINISTIC || tree->kind > SPEC_TREE_UNROLLED)
        return speci_fail(SPEC_E_INVALID, "a tree of kind %d, which is none", (int)tree->kind);
    for (int32_t i = 0; i < tree->n; i++) {
        if (i == 0 ? tree->parent[0] != -1 : tree->parent[i] < 0 || tree->parent[i] >= i)
            return speci_fail(SPEC_E_INVALID, "node %d has parent %d; parents come before their children", i,
                              tree->parent[i]);
        if (tree->token[i] < 0 || tree->token[i] >= n_vocab)
            return speci_fail(SPEC_E_INVALID, "node %d has token %d; the vocabulary has %d", i, tree->token[i],
                              n_vocab);
        if (!depth_within(tree, i, SPEC_MAX_DEPTH))
            return speci_fail(SPEC_E_INVALID, "node %d is deeper than %d", i, SPEC_MAX_DEPTH);
    }
    if (tree->rank && tree->rank[0] != 0)
        return speci_fail(SPEC_E_INVALID, "node 0 has rank %d; the root's is 0", tree->rank[0]);
    for (int32_t i = 1; i < tree->n; i++) SPEC_TRY(check_siblings(tree, i));
    return SPEC_OK;
}

void spec_tree_depths(const spec_tree *tree, int32_t *depth)
{
    if (!tree || !depth) return;
    for (int32_t i = 0; i < tree->n; i++) depth[i] = i == 0 ? 0 : depth[tree->parent[i]] + 1;
}

void spec_tree_ranks(const spec_tree *tree, int32_t *rank)
{
    if (!tree || !rank) return;
    for (int32_t i = 0; i < tree->n; i++) {
        int32_t j = i - 1; /* the sibling before it */
        while (!tree->rank && j > 0 && tree->parent[j] != tree->parent[i]) j--;
        rank[i] = tree->rank ? tree->rank[i] : j > 0 ? rank[j] + 1 : 0;
    }
}

/* ---------------------------------------------------------------------- as sessions call them --- */

bool speci_tree_sampled(spec_tree_kind kind) { return kind == SPEC_TREE_SAMPLED || kind == SPEC_TREE_SAMPLED_IID; }

void speci_tree_forget_rows(spec_tree *t)
{
    for (int32_t i = 0; i < t->n; i++) t->q_row[i] = -2 - t->q_row[i]; /* -1 stays, rows become less: unclaimed */
    for (int32_t i = 1; i < t->n; i++) {
        int32_t *row = &t->q_row[t->parent[i]];
        if (*row < -1) *row = -2 - *row;
    }
    for (int32_t i = 0; i < t->n; i++)
        if (t->q_row[i] < -1) t->q_row[i] = -1;
}

bool speci_tree_is_flat(const spec_tree *t)
{
    for (int32_t i = 1; i < t->n; i++)
        if (t->parent[i] != 0) return false;
    return true;
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

int32_t speci_tree_next_child(const spec_tree *t, int32_t node, int32_t before)
{
    int32_t next = -1;
    for (int32_t c = before >= 0 && !t->rank ? before + 1 : node + 1; c < t->n; c++) {
        if (t->parent[c] != node) continue;
        if (!t->rank) return c;
        if (before >= 0 && t->rank[c] <= t->rank[before]) continue;
        if (next < 0 || t->rank[c] < t->rank[next]) next = c;
    }
    return next;
}

int32_t speci_tree_child_with(const spec_tree *t, int32_t node, int32_t token)
{
    int32_t found = -1;
    for (int32_t c = node + 1; c < t->n; c++)
        if (t->parent[c] == node && t->token[c] == token && (found < 0 || speci_tree_before(t, c, found))) found = c;
    return found;
}
