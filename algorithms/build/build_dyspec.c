/* build_dyspec.c - DySpec's heap tree (algorithms.md 4.5, DS Alg. 1 corrected): N times, the slot that verification is
 * likeliest to reach is sampled. Slot j of node x is "the draw of x's child number j". Its value is
 * v = value(x) (1 - sum of prob of the children before it), where value(x) is the product of prob along the path to x.
 *
 * Popping a slot needs the distribution after its node, and asking for one distribution at a time would take N rounds.
 * So a round goes on past nodes without a distribution, as far as N slots: what it meets there is likely to be wanted,
 * so nodes are added and distributions asked for ahead. When no distribution is awaited any more, the N best slots are
 * all there. The pops are then repeated over what has grown, and the rest goes, by slot value, with later siblings and
 * descendants, so that siblings stay draws (3.2, 4.6). */
#include "algorithms/build/build.h"

typedef struct slot {
    double value, node_value, taken; /* of the slot; of its node; prob of the node's children before it */
    int32_t node, rank, depth;
} slot;

/* Slots by value. Each pop pushes two, so ends with 2 pops + 1. */
typedef struct slots {
    slot at[2 * SPECI_MAX_NODE]; /* in the order in which they were pushed */
    int32_t heap[2 * SPECI_MAX_NODE], n, n_pushed;
} slots;

/* Ties: smaller depth, then earlier insertion. */
static bool before(const slots *s, int32_t a, int32_t b)
{
    const slot *x = &s->at[a], *y = &s->at[b];
    if (x->value != y->value) return x->value > y->value;
    if (x->depth != y->depth) return x->depth < y->depth;
    return a < b;
}

static void swap(slots *s, int32_t i, int32_t j)
{
    const int32_t t = s->heap[i];
    s->heap[i] = s->heap[j];
    s->heap[j] = t;
}

static void push(slots *s, slot x)
{
    if (!(x.value > 0.0)) return; /* the draw before took all of the distribution */
    s->at[s->n_pushed] = x;
    s->heap[s->n] = s->n_pushed++;
    for (int32_t i = s->n++; i > 0 && before(s, s->heap[i], s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(s, i, (i - 1) / 2);
}

static bool pop(slots *s, slot *out)
{
    if (s->n == 0) return false;
    *out = s->at[s->heap[0]];
    s->heap[0] = s->heap[--s->n];
    for (int32_t i = 0, child; (child = 2 * i + 1) < s->n; i = child) {
        if (child + 1 < s->n && before(s, s->heap[child + 1], s->heap[child])) child++;
        if (!before(s, s->heap[child], s->heap[i])) break;
        swap(s, i, child);
    }
    return true;
}

/* The slots that a draw opens: the next one of its node, and the first one of the child. */
static void push_after(slots *s, const slot *x, int32_t child, float prob)
{
    const double taken = x->taken + (double)prob, value = x->node_value * (double)prob;
    push(s, (slot){ .value = x->node_value * (1.0 - taken), .node_value = x->node_value, .taken = taken,
                    .node = x->node, .rank = x->rank + 1, .depth = x->depth });
    push(s, (slot){ .value = value, .node_value = value, .node = child, .depth = x->depth + 1 });
}

static const slot first_slot = { .value = 1.0, .node_value = 1.0 };

static int32_t find_child(const spec_tree *t, int32_t node, int32_t rank)
{
    for (int32_t i = node + 1; i < t->n; i++)
        if (t->parent[i] == node && t->rank[i] == rank) return i;
    return -1;
}

static int32_t n_fed(const spec_tree *t)
{
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) n += t->q_row[i] >= 0;
    return n;
}

static spec_status expand(void *builder, spec_tree *tree, const spec_candidate *candidates, int32_t k, int32_t *feed,
                          int32_t *n_feed, int32_t n_feed_max)
{
    const spec_builder *b = builder;
    const int32_t n_draft = b->info.n_node - 1, n_row = n_fed(tree);
    int32_t n_sure = 0; /* draws of the tree to come; those behind a distribution that is awaited may not be */
    slots s = { .n = 0 };
    slot x;
    *n_feed = 0;
    push(&s, first_slot);
    for (int32_t n = 0; n < n_draft && pop(&s, &x);) {
        if (x.depth >= b->info.depth) continue;
        if (tree->q_row[x.node] < 0) {
            /* Each distribution that is sure to be wanted comes with a draw, so there are rows for all of them. */
            const bool room = *n_feed == 0 || n_row + *n_feed + n_draft - n_sure <= b->info.n_row;
            if (room && *n_feed < n_feed_max) feed[(*n_feed)++] = x.node;
            n++;
            continue;
        }
        const spec_candidate *c =
            x.rank < k ? &candidates[(size_t)tree->q_row[x.node] * (size_t)k + (size_t)x.rank] : NULL;
        if (!c || c->token < 0) continue;
        n++;
        int32_t child = find_child(tree, x.node, x.rank);
        const bool sure = *n_feed == 0;
        n_sure += sure;
        if (child < 0 && (sure || tree->n + n_draft - n_sure < b->n_pool))
            child = spec_tree_add(tree, x.node, c->token, c->prob);
        if (child >= 0) push_after(&s, &x, child, c->prob);
    }
    return SPEC_OK;
}

static void keep_popped(const spec_builder *b, const spec_tree *pool, uint8_t *keep)
{
    slots s = { .n = 0 };
    slot x;
    for (int32_t i = 1; i < pool->n; i++) keep[i] = 0;
    push(&s, first_slot);
    for (int32_t n = 1; n < b->info.n_node && pop(&s, &x);) {
        const int32_t child = find_child(pool, x.node, x.rank);
        if (child < 0) continue;
        n++;
        keep[child] = 1;
        push_after(&s, &x, child, pool->prob[child]);
    }
}

static spec_status open(spec_builder *b, const char *args)
{
    int32_t n;
    if (speci_parse_counts(args, &n, 1) != 1) return speci_builder_refuse(b, args, NULL);
    if (n >= SPECI_MAX_NODE) return speci_builder_refuse(b, args, "N is at most 255");
    b->info.kind = SPEC_TREE_SAMPLED;
    b->info.n_node = 1 + n;
    b->n_pool = 1 + 2 * n;
    b->info.n_row = 1 + n + n / 2 < SPECI_MAX_NODE ? 1 + n + n / 2 : SPECI_MAX_NODE;
    b->info.n_level = b->info.n_row;
    b->info.depth = n < SPEC_MAX_DEPTH ? n : SPEC_MAX_DEPTH;
    b->k = n < 1 ? 1 : n < SPEC_MAX_CHILD ? n : SPEC_MAX_CHILD;
    return SPEC_OK;
}

const speci_builder_kind speci_build_dyspec = { .name = "dyspec", .args = "N",
                                              .help = "N drafts where reaching them is likeliest (heap)", .open = open,
                                              .keep = keep_popped, .expand = expand };
