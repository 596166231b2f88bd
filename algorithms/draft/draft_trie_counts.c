/* draft_trie_counts.c - how often each gram occurred: nodes of a trie in a pool, found by a hash of parent and token. */
#include "algorithms/draft/draft_trie_counts.h"

#include <string.h>

enum { SWEPT = 4 }; /* nodes per occurrence that may have been counted: the sweep is over within a quarter of all places */

/* --- the pool --- */

spec_status speci_trie_open(speci_trie_counts *t, uint32_t cap, uint32_t period, int32_t depth, const spec_allocator *a)
{
    *t = (speci_trie_counts){ .cap = cap, .n = 1, .period = period, .depth = depth };
    t->node = speci_alloc(a, cap, sizeof *t->node);
    t->head = speci_alloc(a, cap, sizeof *t->head);
    if (t->node && t->head) return SPEC_OK;
    speci_trie_close(t, a);
    return SPEC_E_NOMEM;
}

void speci_trie_close(speci_trie_counts *t, const spec_allocator *a)
{
    speci_free(a, t->node);
    speci_free(a, t->head);
    *t = (speci_trie_counts){ 0 };
}

static uint32_t *head_of(const speci_trie_counts *t, uint32_t parent, int32_t token)
{
    uint64_t h = ((uint64_t)parent << 32 | (uint32_t)token) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    return &t->head[(h >> 32) * t->cap >> 32];
}

static void link_hash(speci_trie_counts *t, uint32_t x)
{
    uint32_t *head = head_of(t, t->node[x].parent, t->node[x].token);
    t->node[x].chain = *head;
    *head = x;
}

static void unlink_hash(speci_trie_counts *t, uint32_t x)
{
    uint32_t *at = head_of(t, t->node[x].parent, t->node[x].token);
    while (*at != x) at = &t->node[*at].chain;
    *at = t->node[x].chain;
}

spec_status speci_trie_copy(speci_trie_counts *t, const speci_trie_counts *from, uint32_t cap, const spec_allocator *a)
{
    speci_trie_counts copy;
    SPEC_TRY(speci_trie_open(&copy, cap, from->period, from->depth, a));
    memcpy(copy.node, from->node, from->n * sizeof *copy.node);
    copy.n = from->n, copy.free = from->free, copy.age = from->age, copy.n_counted = from->n_counted, copy.hand = from->hand;
    copy.n_change = from->n_change;
    for (uint32_t x = 1; x < copy.n; x++)
        if (copy.node[x].token >= 0) link_hash(&copy, x);
    *t = copy;
    return SPEC_OK;
}

/* --- siblings, the one that was counted last in front --- */

static void link_sibling(speci_trie_counts *t, uint32_t x)
{
    speci_trie_node *node = &t->node[x], *parent = &t->node[node->parent];
    if (node->parent == 0) return;
    node->prev = 0, node->next = parent->child;
    if (node->next) t->node[node->next].prev = x;
    parent->child = x;
}

static void unlink_sibling(speci_trie_counts *t, uint32_t x)
{
    const speci_trie_node *node = &t->node[x];
    if (node->parent == 0) return;
    if (node->prev) t->node[node->prev].next = node->next;
    else t->node[node->parent].child = node->next;
    if (node->next) t->node[node->next].prev = node->prev;
}

/* --- counts --- */

uint32_t speci_trie_value(const speci_trie_counts *t, uint32_t x)
{
    const uint32_t behind = t->age - t->node[x].age;
    return behind < 32 ? t->node[x].count >> behind : 0;
}

static void refresh(speci_trie_counts *t, uint32_t x)
{
    t->node[x].count = speci_trie_value(t, x);
    t->node[x].age = t->age;
}

/* It may be one that is gone, and whose place is not free yet. */
static uint32_t look_up(const speci_trie_counts *t, uint32_t parent, int32_t token)
{
    uint32_t x = *head_of(t, parent, token);
    while (x && (t->node[x].parent != parent || t->node[x].token != token)) x = t->node[x].chain;
    return x;
}

uint32_t speci_trie_find(const speci_trie_counts *t, uint32_t parent, int32_t token)
{
    const uint32_t x = look_up(t, parent, token);
    return x && speci_trie_value(t, x) ? x : 0;
}

static uint32_t add_node(speci_trie_counts *t, uint32_t parent, int32_t token)
{
    uint32_t x = t->free;
    if (x) t->free = t->node[x].chain;
    else if (t->n < t->cap) x = t->n++;
    else return 0;
    t->node[x] = (speci_trie_node){ .token = token, .parent = parent };
    link_hash(t, x);
    link_sibling(t, x);
    return x;
}

/* A halving between a token and the next may have left a gram with less than the one below it. */
static void raise_above(speci_trie_counts *t, uint32_t x)
{
    for (uint32_t p = t->node[x].parent; p; p = t->node[p].parent) {
        if (speci_trie_value(t, p) >= t->node[x].count) return;
        t->node[p].count = t->node[x].count, t->node[p].age = t->age;
    }
}

uint32_t speci_trie_count(speci_trie_counts *t, uint32_t parent, int32_t token, uint32_t amount)
{
    uint32_t x = look_up(t, parent, token);
    if (!x && !(x = add_node(t, parent, token))) return 0;
    if (parent && t->node[parent].child != x) {
        unlink_sibling(t, x);
        link_sibling(t, x);
    }
    refresh(t, x);
    t->node[x].count += amount;
    raise_above(t, x);
    return x;
}

/* --- ageing --- */

/* The places of a node that is gone and has no child, and of those above it of which the same is true then. */
static void release(speci_trie_counts *t, uint32_t x)
{
    while (x && t->node[x].child == 0 && speci_trie_value(t, x) == 0) {
        const uint32_t parent = t->node[x].parent;
        unlink_hash(t, x);
        unlink_sibling(t, x);
        t->node[x].token = -1;
        t->node[x].chain = t->free;
        t->free = x;
        x = parent;
    }
}

static void sweep(speci_trie_counts *t, uint32_t n)
{
    for (; n > 0 && t->hand; n--) {
        const uint32_t x = t->hand;
        t->hand = x + 1 < t->n ? x + 1 : 0;
        if (t->node[x].token < 0) continue;
        refresh(t, x);
        release(t, x);
    }
}

static void grow_older(speci_trie_counts *t)
{
    sweep(t, SWEPT * (uint32_t)t->depth);
    if (t->n_counted < t->period) return;
    sweep(t, t->n); /* it is over by now */
    t->n_counted = 0;
    t->age++, t->n_change++;
    t->hand = t->n > 1;
}

/* --- a text --- */

void speci_trie_seek(const speci_trie_counts *t, speci_trie_cursor *c, const int32_t *ids, int32_t n)
{
    *c = (speci_trie_cursor){ .n_change = t->n_change };
    for (int32_t k = 1; k <= t->depth && k <= n; k++) {
        uint32_t x = speci_trie_find(t, 0, ids[n - k]);
        for (int32_t i = n - k + 1; i < n && x; i++) x = speci_trie_find(t, x, ids[i]);
        c->at[k] = x;
    }
}

void speci_trie_refresh(const speci_trie_counts *t, speci_trie_cursor *c, const int32_t *ids, int32_t n)
{
    if (c->n_change != t->n_change) speci_trie_seek(t, c, ids, n);
}

void speci_trie_step(speci_trie_counts *t, speci_trie_cursor *c, const int32_t *ids, int32_t end, int32_t first)
{
    speci_trie_refresh(t, c, ids, end);
    for (int32_t k = t->depth < end + 1 ? t->depth : end + 1; k > 0; k--) {
        const uint32_t parent = k > 1 ? c->at[k - 1] : 0;
        c->at[k] = 0;
        if (k > 1 && !parent) continue;
        if (end + 1 - k < first) {
            c->at[k] = speci_trie_find(t, parent, ids[end]);
        } else if ((c->at[k] = speci_trie_count(t, parent, ids[end], SPECI_TRIE_OCCURRENCE)) != 0) {
            t->n_counted++, t->n_change++;
        }
    }
    c->n_change = t->n_change;
    grow_older(t);
}
