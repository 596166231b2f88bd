/* draft_trie.h - the parts of the drafter "trie": draft_trie.c (the drafter), draft_trie_counts.c (what occurred how often),
 * draft_trie_propose.c (trees out of counts), draft_trie_file.c (the past as a file). Internal. */
#ifndef SPEC_DRAFT_TRIE_H
#define SPEC_DRAFT_TRIE_H

#include "algorithms/draft/draft.h"
#include "algorithms/draft/draft_trie_counts.h"

enum { SPECI_TRIE_LOOK = 16 }; /* followers of a gram that are looked at, those that were counted last */

/* The object. Its past is what all its sessions have emitted so far, of one vocabulary. */
typedef struct speci_trie {
    speci_trie_counts past;
    int32_t n_prompt_node; /* places for the prompts of live sequences, of all of a session together */
    int32_t n_vocab;       /* of the target that it serves, or served last; 0 = none yet */
    uint64_t vocabulary;   /* a checksum of its pieces; 0 = it has no tokenizer */
} speci_trie;

/* Is the target's vocabulary that of the past? E_INVALID. */
spec_status speci_trie_check(const spec_drafter *d, const spec_model *target);
void speci_trie_take_vocabulary(speci_trie *t, const spec_model *target);
spec_status speci_trie_save(const spec_drafter *d, const char *path);
/* All of it, or nothing has changed. */
spec_status speci_trie_load(spec_drafter *d, const char *path);

/* --- trees (draft_trie_propose.c) --- */

/* A gram of the two tries that may become a node. */
typedef struct speci_trie_candidate {
    double score;
    uint32_t order;           /* of equal scores the one that was found first */
    uint32_t prompt, past;    /* nodes, 0 = it has none there */
    int32_t token, parent, depth; /* parent: node of the tree */
} speci_trie_candidate;

typedef struct speci_trie_proposer {
    speci_trie_candidate *heap; /* [cap_heap], the best in front */
    int32_t n_heap, n_node;     /* n_node: most nodes of a tree, root included */
    uint32_t n_found;
    spec_tree tree;             /* as it is found: the best first */
    int32_t *order, *scratch;   /* [n_node], [3 n_node] */
} speci_trie_proposer;
spec_status speci_trie_proposer_open(speci_trie_proposer *p, int32_t n_node, const spec_allocator *a);
void speci_trie_proposer_close(speci_trie_proposer *p, const spec_allocator *a);

/* Where a sequence stands in the counts of its own prompt (NULL: none), and in those of the past. */
typedef struct speci_trie_place {
    const speci_trie_counts *prompt, *past;
    speci_trie_cursor in_prompt, in_past;
} speci_trie_place;

/* Fills q->tree, which is its root alone, depth first. No node deeper than q->depth_max, none that ends a text of the target. */
void speci_trie_propose(speci_trie_proposer *p, speci_draft_seq *q, const speci_trie_place *at, const spec_model *target);

#endif
