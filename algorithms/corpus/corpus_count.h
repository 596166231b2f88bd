/* corpus_count.h - what a corpus table keeps, from sorted windows. Internal.
 *
 * In sorted windows all that begin with a context stand together, and within them all that go on with a continuation. So each
 * order needs the continuations of one context at a time. */
#ifndef SPEC_CORPUS_COUNT_H
#define SPEC_CORPUS_COUNT_H

#include "algorithms/corpus/corpus.h"

/* The most frequent continuations of a context: [n], most frequent first, earlier ones first where that is equal. */
typedef struct corpus_best {
    int32_t n;
    struct {
        uint64_t count;
        uint8_t tokens[SPECI_CORPUS_MAX_DRAFT * SPECI_CORPUS_TOKEN];
    } row[SPECI_CORPUS_MAX_ROW];
} corpus_best;

typedef struct corpus_order {
    speci_scratch nodes, rows;
    uint64_t n_node, n_row;
    uint64_t first;      /* nodes of the next order when this context began: its first one there */
    uint64_t count;      /* of the continuation that is being counted */
    corpus_best best;    /* of the context that is being counted */
} corpus_order;

/* A token's most frequent next tokens, [n_row] for each: the first of them, of count 0 where there is none. */
typedef struct corpus_next {
    uint32_t token, count;
} corpus_next;

typedef struct corpus_counts {
    const spec_allocator *a;
    speci_corpus_shape shape;
    corpus_order orders[SPECI_CORPUS_MAX_ORDER]; /* the extension order is the last */
    corpus_next *next;   /* [n_vocab][n_row] */
    uint64_t n_pair;     /* of the pair of tokens that is being counted */
    corpus_best pairs;
    uint8_t last[(SPECI_CORPUS_MAX_CONTEXT + SPECI_CORPUS_MAX_DRAFT) * SPECI_CORPUS_TOKEN];
    bool begun;          /* is there a last window? */
} corpus_counts;

/* Sections are kept in files without a name in the folder of `beside`. speci_corpus_counts_close frees all, also after an
 * error. */
spec_status speci_corpus_counts_open(corpus_counts *c, const speci_corpus_shape *shape, const char *beside,
                                     const spec_allocator *a);
void speci_corpus_counts_close(corpus_counts *c);
/* The next window, [n_context + n_draft] tokens, and at how many places it stands. */
spec_status speci_corpus_counts_add(corpus_counts *c, const uint8_t *window, uint64_t count);
/* There are no more: ends the sections, and makes the extension order. */
spec_status speci_corpus_counts_end(corpus_counts *c);

#endif
