/* draft_png_grams.h - the n-grams of a living sequence: what most often followed a token in it. Internal. */
#ifndef SPEC_DRAFT_PNG_GRAMS_H
#define SPEC_DRAFT_PNG_GRAMS_H

#include "core/core.h"

/* A token and the n_draft tokens behind it. */
typedef struct png_gram {
    int32_t at;    /* where it begins, the last time that it stood there */
    int32_t count; /* 0: none */
} png_gram;

typedef struct png_grams {
    const spec_allocator *a;
    int32_t n_draft, n_row;
    png_gram *gram;        /* [cap_gram] a hash table of all of them */
    int32_t *token;        /* [cap_token] a hash table of those that they begin with: token + 1, 0 = free */
    png_gram *row;         /* [cap_token][n_row] the most frequent that begin so, the latest first where counts are equal */
    size_t cap_gram, cap_token, n_gram, n_token; /* caps are powers of two; at most half of them is in use */
    int32_t n_indexed;     /* places at which a gram begins that was counted */
} png_grams;

/* Takes room for a sequence of up to n ids below n_vocab, so that none is taken while it grows. E_NOMEM here and below: nothing was
 * lost. */
spec_status speci_png_grams_reserve(png_grams *g, const int32_t *ids, int32_t n, int32_t n_vocab);
/* Counts what ids [n] have more than the last time. */
spec_status speci_png_grams_catch_up(png_grams *g, const int32_t *ids, int32_t n);
/* The rows [n_row] of a token; those of count 0 are none. NULL: it has none. */
const png_gram *speci_png_grams_rows(const png_grams *g, int32_t token);
/* `to` has counted nothing, and becomes the same. */
spec_status speci_png_grams_copy(png_grams *to, const png_grams *from);
void speci_png_grams_free(png_grams *g);

#endif
