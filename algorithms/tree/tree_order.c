/* tree_order.c - orders of a tree's nodes, and what layers need to know of a tree: ancestors as bits, the
 * convolution's window, blocks of the mask (algorithms.md 5, 7.1). */
#include "algorithms/tree/tree.h"

#include <string.h>

void spec_tree_masks(const spec_tree *tree, uint32_t *bits)
{
    if (!tree || !bits) return;
    const size_t words = ((size_t)tree->n + 31) / 32;
    for (int32_t i = 0; i < tree->n; i++) {
        uint32_t *row = bits + (size_t)i * words;
        if (i == 0) memset(row, 0, words * sizeof *row);
        else memcpy(row, bits + (size_t)tree->parent[i] * words, words * sizeof *row);
        row[i / 32] |= 1u << (i % 32);
    }
}

void spec_tree_conv_ancestors(const spec_tree *tree, int32_t *anc, int32_t width)
{
    if (!tree || !anc) return;
    for (int32_t i = 0; i < tree->n; i++) {
        int32_t x = i, *row = anc + (size_t)i * (size_t)(width - 1);
        /* Beyond the root (-1) numbers go on downwards: -1 is the newest stored entry, -2 the one before. */
        for (int32_t k = 0; k < width - 1; k++) row[k] = x = x >= 0 ? tree->parent[x] : x - 1;
    }
}

/* Children of every node as a list: first [n], next [n] (-1 = end). */
typedef struct child_lists {
    const spec_tree *tree;
    int32_t *first, *next;
    const int32_t *size; /* of subtrees, or NULL: by rank alone */
} child_lists;

/* Does sibling a, which has the smaller number, come before b? */
static bool comes_before(const child_lists *l, int32_t a, int32_t b)
{
    if (l->size && l->size[a] != l->size[b]) return l->size[a] > l->size[b];
    return speci_tree_before(l->tree, a, b);
}

static void make_lists(child_lists *l)
{
    for (int32_t i = 0; i < l->tree->n; i++) l->first[i] = l->next[i] = -1;
    for (int32_t i = 1; i < l->tree->n; i++) {
        int32_t *at = &l->first[l->tree->parent[i]];
        while (*at >= 0 && comes_before(l, *at, i)) at = &l->next[*at];
        l->next[i] = *at;
        *at = i;
    }
}

void spec_tree_order(const spec_tree *tree, int32_t *order, spec_tree_order_kind how, int32_t *scratch)
{
    if (!tree || !order) return;
    const int32_t n = tree->n;
    int32_t *size = scratch + 2 * (size_t)n;
    if (how == SPEC_ORDER_HEAVY_PATH) {
        for (int32_t i = 0; i < n; i++) size[i] = 1;
        for (int32_t i = n - 1; i > 0; i--) size[tree->parent[i]] += size[i];
    }
    child_lists l = { .tree = tree, .first = scratch, .next = scratch + n,
                      .size = how == SPEC_ORDER_HEAVY_PATH ? size : NULL };
    make_lists(&l);
    int32_t x = 0;
    for (int32_t i = 0; i < n; i++) {
        order[i] = x;
        if (l.first[x] >= 0) {
            x = l.first[x];
            continue;
        }
        while (x > 0 && l.next[x] < 0) x = tree->parent[x];
        x = l.next[x]; /* -1 after the last node */
    }
}

void speci_tree_levels(const spec_tree *t, int32_t *node, int32_t *parent)
{
    int32_t n = 1;
    node[0] = 0, parent[0] = -1;
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = -1; (c = speci_tree_next_child(t, node[i], c)) >= 0; n++) node[n] = c, parent[n] = i;
}

/* Is order [n] one of all nodes, parents first? */
static spec_status check_order(const spec_tree *tree, const int32_t *order)
{
    for (int32_t i = 0; i < tree->n; i++) {
        const int32_t x = order[i];
        if (x < 0 || x >= tree->n)
            return speci_fail(SPEC_E_INVALID, "place %d of the order is node %d of %d", i, x, tree->n);
        bool parent = x == 0;
        for (int32_t j = 0; j < i; j++) {
            if (order[j] == x)
                return speci_fail(SPEC_E_INVALID, "places %d and %d of the order are both node %d", j, i, x);
            parent |= order[j] == tree->parent[x];
        }
        if (!parent)
            return speci_fail(SPEC_E_INVALID, "place %d of the order is node %d, before its parent %d", i, x,
                              tree->parent[x]);
    }
    return SPEC_OK;
}

spec_status spec_tree_permute(const spec_tree *tree, spec_tree *out, const int32_t *order)
{
    SPEC_NEED(tree, "tree");
    SPEC_NEED(order, "order");
    SPEC_NEED(out, "out");
    if (!out->rank) return speci_fail(SPEC_E_INVALID, "a permuted tree needs room for ranks");
    if (tree->n > out->cap)
        return speci_fail(SPEC_E_FULL, "a tree of %d nodes does not fit one with room for %d", tree->n, out->cap);
    SPEC_TRY(check_order(tree, order));
    int32_t *place = out->rank; /* of a node in the new order, for a while */
    for (int32_t i = 0; i < tree->n; i++) place[order[i]] = i;
    for (int32_t i = 0; i < tree->n; i++) {
        const int32_t x = order[i];
        out->token[i] = tree->token[x];
        out->parent[i] = x == 0 ? -1 : place[tree->parent[x]];
        if (out->prob) out->prob[i] = tree->prob ? tree->prob[x] : 0.0f;
        if (out->q_row) out->q_row[i] = tree->q_row ? tree->q_row[x] : -1;
    }
    for (int32_t i = 0; i < tree->n; i++) {
        int32_t before = 0;
        for (int32_t j = 1; j < tree->n && !tree->rank && i > 0; j++)
            before += out->parent[j] == out->parent[i] && order[j] < order[i];
        out->rank[i] = tree->rank ? tree->rank[order[i]] : before;
    }
    out->n = tree->n;
    out->kind = tree->kind;
    return SPEC_OK;
}

/* Blocks of columns, of the 64 from `first` on, that rows [begin, end) touch, as bits. A node whose parent is a row too
 * adds nothing beyond what its parent adds. */
static uint64_t blocks_of_rows(const spec_tree *t, int32_t block, int32_t begin, int32_t end, int32_t first)
{
    uint64_t touched = 0;
    for (int32_t i = begin; i < end; i++)
        for (int32_t x = i; x >= 0; x = t->parent[x]) {
            const int32_t b = x / block - first;
            if (b < 0 || (x < i && x >= begin)) break;
            if (b < 64) touched |= (uint64_t)1 << b;
        }
    return touched;
}

int64_t spec_tree_blocks(const spec_tree *tree, int32_t block)
{
    if (!tree) return 0;
    int64_t n = 0;
    if (block < 1) return 0;
    for (int32_t begin = 0; begin < tree->n; begin += block) {
        const int32_t end = tree->n - begin < block ? tree->n : begin + block;
        for (int32_t first = 0; first <= begin / block; first += 64)
            for (uint64_t t = blocks_of_rows(tree, block, begin, end, first); t; t &= t - 1) n++;
    }
    return n;
}
