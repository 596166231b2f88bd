/* draft_trie_counts.h - how often each gram of up to `depth` tokens occurred: a trie in a fixed number of places. Internal.
 *
 * Ageing   Each occurrence counts 2. After `period` of them all counts are halved, and grams whose count comes to 0 are gone: what
 *          occurred within the last period is still there. With period = cap / 4 the places suffice: behind a halving counts sum
 *          up to two periods at most, each of the next period's occurrences takes one place, and the places of what is gone are
 *          free again before a quarter of the places more is asked for.
 * Time     Halving is lazy: a node knows the age of its count. A sweep frees places, a few nodes for each token. So nothing here
 *          takes longer where there is more of it. */
#ifndef SPEC_DRAFT_TRIE_COUNTS_H
#define SPEC_DRAFT_TRIE_COUNTS_H

#include "core/core.h"

enum { SPECI_TRIE_DEPTH = 16, SPECI_TRIE_OCCURRENCE = 2 }; /* most tokens of a gram; what counts are counted in */

/* A gram: the tokens from below the root down to it. It counts at least as much as any gram below it. */
typedef struct speci_trie_node {
    int32_t token;          /* -1: a free place */
    uint32_t parent, child; /* child: the one that was counted last. The root, node 0, lists none */
    uint32_t next, prev;    /* siblings that were counted before and after this one */
    uint32_t chain;         /* the next node of its hash, or the next free place */
    uint32_t count, age;    /* its count at that age of all */
} speci_trie_node;

/* Where a node is meant, 0 is none. */
typedef struct speci_trie_counts {
    speci_trie_node *node; /* [cap], of which [0, n) have been used */
    uint32_t *head;        /* [cap] first nodes of hashes */
    uint32_t cap, n, free; /* free: the first free place among the n */
    uint32_t age;          /* how often all counts were halved */
    uint32_t n_counted, period; /* occurrences since then, and when it will be again */
    uint32_t hand;         /* the node that the sweep comes to next; 0: it is over */
    int32_t depth;
    uint64_t n_change;     /* occurrences and halvings so far */
} speci_trie_counts;

/* Where a text stands in a trie. */
typedef struct speci_trie_cursor {
    uint64_t n_change;                 /* of the trie, when these were looked up: after another change they are not good */
    uint32_t at[SPECI_TRIE_DEPTH + 1]; /* at[n]: the gram of the last n tokens of the text; at[0], the root, is 0 */
} speci_trie_cursor;

/* Room for cap nodes, the root included. */
spec_status speci_trie_open(speci_trie_counts *t, uint32_t cap, uint32_t period, int32_t depth, const spec_allocator *a);
/* The same with room for cap nodes, at least as many. */
spec_status speci_trie_copy(speci_trie_counts *t, const speci_trie_counts *from, uint32_t cap, const spec_allocator *a);
void speci_trie_close(speci_trie_counts *t, const spec_allocator *a);

uint32_t speci_trie_value(const speci_trie_counts *t, uint32_t node); /* its count now; 0: it is gone */
uint32_t speci_trie_find(const speci_trie_counts *t, uint32_t parent, int32_t token);
/* Adds to a count of the gram `token` below parent, which is there, and returns its node; 0: there was no room. */
uint32_t speci_trie_count(speci_trie_counts *t, uint32_t parent, int32_t token, uint32_t amount);

/* The cursor goes on to the token ids[end], from the one before it. Grams that begin at ids[first] or behind it are counted, where
 * the gram of all their tokens but the last is there: the longest ones first. Then counts may age. */
void speci_trie_step(speci_trie_counts *t, speci_trie_cursor *c, const int32_t *ids, int32_t end, int32_t first);
/* The cursor stands behind ids [n], where it stood, unless others have changed the trie since. */
void speci_trie_refresh(const speci_trie_counts *t, speci_trie_cursor *c, const int32_t *ids, int32_t n);
/* The cursor stands behind ids [n], wherever it stood. */
void speci_trie_seek(const speci_trie_counts *t, speci_trie_cursor *c, const int32_t *ids, int32_t n);

#endif
