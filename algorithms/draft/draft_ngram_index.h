/* draft_ngram_index.h - where each n-gram of a growing text stands first. Internal.
 *
 * It takes 8 N bytes for each token of the text, grows by small pieces, and is never made anew: what a token costs does not
 * depend on the length of the text in front of it. Copies share their pieces until one of them writes. */
#ifndef SPEC_DRAFT_NGRAM_INDEX_H
#define SPEC_DRAFT_NGRAM_INDEX_H

#include "core/core.h"

struct speci_ngram_piece;

/* An array of 32-bit words in pieces. */
typedef struct speci_ngram_words {
    struct speci_ngram_piece **piece; /* [cap], n of them there */
    size_t n, cap;
} speci_ngram_words;

/* Zero to begin. A gram is the n tokens, 1 to N, that end at a position; its number is position * N + n - 1. Grams with one hash
 * are a chain, which begins at a bucket. */
typedef struct speci_ngram_index {
    speci_ngram_words head; /* [n_bucket] 1 + the first gram of the chain, 0 = none */
    speci_ngram_words next; /* [n_indexed * N] 1 + the gram behind this one in its chain, 0 = it is the last */
    uint32_t n_bucket;      /* n_indexed * N: hashing is linear, and a bucket is split when another is added */
    int32_t n_indexed;      /* positions that are in it as ends */
} speci_ngram_index;

/* The grams of up to n_most tokens that end at the positions up to n - 1 of ids. Where a gram stands again, the first place
 * stays. n_most is the same in all calls for an index. On error the index is empty. */
spec_status speci_ngram_extend(speci_ngram_index *x, const int32_t *ids, int32_t n, int32_t n_most, const spec_allocator *a);
/* Where the n tokens that end at `end` stand first: the position of the last of them, or -1. ids: the text of the index, and
 * perhaps more of it. */
int32_t speci_ngram_first(const speci_ngram_index *x, const int32_t *ids, int32_t end, int32_t n, int32_t n_most);
/* `to` is empty and becomes the same, of the same text. */
spec_status speci_ngram_share(speci_ngram_index *to, const speci_ngram_index *x, const spec_allocator *a);
void speci_ngram_free(speci_ngram_index *x, const spec_allocator *a);

#endif
