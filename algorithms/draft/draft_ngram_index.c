/* draft_ngram_index.c - where each n-gram of a growing text stands first: linear hashing (Litwin 1980) in arrays that grow by
 * pieces. */
#include "algorithms/draft/draft_ngram_index.h"

#include <string.h>

enum { PIECE = 512, PIECES_LEAST = 16 }; /* words; places for pieces */

/* --- words in pieces --- */

typedef struct speci_ngram_piece {
    uint32_t n_holder; /* indexes that have it; a writer has it alone */
    uint32_t word[PIECE];
} piece;

static uint32_t word_of(const speci_ngram_words *w, uint32_t i) { return w->piece[i / PIECE]->word[i % PIECE]; }

static piece *own_copy(piece *shared, const spec_allocator *a)
{
    piece *own = speci_alloc(a, 1, sizeof *own);
    if (!own) return NULL;
    memcpy(own->word, shared->word, sizeof own->word);
    own->n_holder = 1;
    shared->n_holder--;
    return own;
}

static spec_status set_word(speci_ngram_words *w, uint32_t i, uint32_t value, const spec_allocator *a)
{
    piece **p = &w->piece[i / PIECE];
    if ((*p)->n_holder > 1) {
        piece *own = own_copy(*p, a);
        if (!own) return SPEC_E_NOMEM;
        *p = own;
    }
    (*p)->word[i % PIECE] = value;
    return SPEC_OK;
}

static spec_status places_for(speci_ngram_words *w, size_t n, const spec_allocator *a)
{
    size_t cap = w->cap ? w->cap : PIECES_LEAST;
    while (cap < n) cap *= 2;
    if (cap == w->cap) return SPEC_OK;
    piece **larger = speci_alloc(a, cap, sizeof *larger);
    if (!larger) return SPEC_E_NOMEM;
    if (w->n) memcpy((void *)larger, (const void *)w->piece, w->n * sizeof *larger);
    speci_free(a, (void *)w->piece);
    w->piece = larger, w->cap = cap;
    return SPEC_OK;
}

/* Room for n words; new ones are 0. */
static spec_status reserve(speci_ngram_words *w, uint32_t n, const spec_allocator *a)
{
    const size_t n_piece = ((size_t)n + PIECE - 1) / PIECE;
    SPEC_TRY(places_for(w, n_piece, a));
    for (; w->n < n_piece; w->n++) {
        if (!(w->piece[w->n] = speci_alloc(a, 1, sizeof(piece)))) return SPEC_E_NOMEM;
        w->piece[w->n]->n_holder = 1;
    }
    return SPEC_OK;
}

static spec_status share(speci_ngram_words *to, const speci_ngram_words *w, const spec_allocator *a)
{
    SPEC_TRY(places_for(to, w->n, a));
    for (; to->n < w->n; to->n++) {
        to->piece[to->n] = w->piece[to->n];
        to->piece[to->n]->n_holder++;
    }
    return SPEC_OK;
}

static void release(speci_ngram_words *w, const spec_allocator *a)
{
    for (size_t i = 0; i < w->n; i++)
        if (--w->piece[i]->n_holder == 0) speci_free(a, w->piece[i]);
    speci_free(a, (void *)w->piece);
    *w = (speci_ngram_words){ 0 };
}

/* --- grams --- */

/* The hash of a gram, from its last token backwards: that of one token more is one step further. */
static uint64_t hash_on(uint64_t h, int32_t token) { return (h ^ (uint32_t)token) * 0x9e3779b97f4a7c15u; }

static uint64_t hash_of(const int32_t *ids, int32_t end, int32_t n)
{
    uint64_t h = 0;
    for (int32_t i = 0; i < n; i++) h = hash_on(h, ids[end - i]);
    return h;
}

/* Of n buckets, n >= 1: the hash's last bits, one fewer where these name a bucket that is not there yet. */
static uint32_t bucket_of(uint64_t h, uint32_t n)
{
    const uint32_t mask = n > 1 ? UINT32_MAX >> __builtin_clz(n - 1) : 0, at = (uint32_t)(h >> 32) & mask;
    return at < n ? at : at & mask >> 1;
}

static bool same_tokens(const int32_t *a, const int32_t *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (a[-i] != b[-i]) return false;
    return true;
}

/* The position where the gram of hash h is found, or -1. */
static int32_t find(const speci_ngram_index *x, const int32_t *ids, int32_t end, int32_t n, uint64_t h, int32_t n_most)
{
    const uint32_t most = (uint32_t)n_most;
    for (uint32_t g = word_of(&x->head, bucket_of(h, x->n_bucket)); g > 0; g = word_of(&x->next, g - 1)) {
        const int32_t at = (int32_t)((g - 1) / most);
        if ((int32_t)((g - 1) % most) == n - 1 && same_tokens(ids + at, ids + end, n)) return at;
    }
    return -1;
}

/* Gram g becomes the first of its chain. */
static spec_status link_gram(speci_ngram_index *x, uint32_t g, uint32_t bucket, const spec_allocator *a)
{
    SPEC_TRY(set_word(&x->next, g, word_of(&x->head, bucket), a));
    return set_word(&x->head, bucket, g + 1, a);
}

/* One bucket more: it takes what is its own from the one that stood for it. */
static spec_status add_bucket(speci_ngram_index *x, const int32_t *ids, uint32_t n_most, const spec_allocator *a)
{
    const uint32_t added = x->n_bucket++;
    if (added == 0) return SPEC_OK;
    const uint32_t old = added & UINT32_MAX >> 1 >> __builtin_clz(added);
    uint32_t g = word_of(&x->head, old);
    if (g == 0) return SPEC_OK;
    SPEC_TRY(set_word(&x->head, old, 0, a));
    while (g > 0) {
        const uint32_t next = word_of(&x->next, g - 1);
        const uint64_t h = hash_of(ids, (int32_t)((g - 1) / n_most), (int32_t)((g - 1) % n_most) + 1);
        SPEC_TRY(link_gram(x, g - 1, bucket_of(h, x->n_bucket), a));
        g = next;
    }
    return SPEC_OK;
}

/* From the shortest gram on: where one is new, so are the longer ones. */
static spec_status add_end(speci_ngram_index *x, const int32_t *ids, int32_t end, int32_t n_most, const spec_allocator *a)
{
    const int32_t most = n_most < end + 1 ? n_most : end + 1;
    bool is_new = false;
    uint64_t h = 0;
    for (int32_t n = 1; n <= most; n++) {
        h = hash_on(h, ids[end + 1 - n]);
        if (!is_new) is_new = find(x, ids, end, n, h, n_most) < 0;
        if (is_new)
            SPEC_TRY(link_gram(x, (uint32_t)end * (uint32_t)n_most + (uint32_t)n - 1, bucket_of(h, x->n_bucket), a));
    }
    return SPEC_OK;
}

/* All buckets first: a long prompt then splits empty ones. */
static spec_status extend(speci_ngram_index *x, const int32_t *ids, int32_t n, int32_t n_most, const spec_allocator *a)
{
    const uint32_t n_gram = (uint32_t)n * (uint32_t)n_most;
    SPEC_TRY(reserve(&x->head, n_gram, a));
    SPEC_TRY(reserve(&x->next, n_gram, a));
    while (x->n_bucket < n_gram) SPEC_TRY(add_bucket(x, ids, (uint32_t)n_most, a));
    for (; x->n_indexed < n; x->n_indexed++) SPEC_TRY(add_end(x, ids, x->n_indexed, n_most, a));
    return SPEC_OK;
}

/* --- the index --- */

spec_status speci_ngram_extend(speci_ngram_index *x, const int32_t *ids, int32_t n, int32_t n_most, const spec_allocator *a)
{
    const int64_t longest = (int64_t)(UINT32_MAX - 1) / n_most; /* grams have numbers of 32 bits */
    if (n > longest) n = (int32_t)longest;
    if (n <= x->n_indexed) return SPEC_OK;
    const spec_status status = extend(x, ids, n, n_most, a);
    if (status != SPEC_OK) speci_ngram_free(x, a);
    return status;
}

int32_t speci_ngram_first(const speci_ngram_index *x, const int32_t *ids, int32_t end, int32_t n, int32_t n_most)
{
    return x->n_bucket > 0 ? find(x, ids, end, n, hash_of(ids, end, n), n_most) : -1;
}

spec_status speci_ngram_share(speci_ngram_index *to, const speci_ngram_index *x, const spec_allocator *a)
{
    spec_status status = share(&to->head, &x->head, a);
    if (status == SPEC_OK) status = share(&to->next, &x->next, a);
    to->n_bucket = x->n_bucket, to->n_indexed = x->n_indexed;
    if (status != SPEC_OK) speci_ngram_free(to, a);
    return status;
}

void speci_ngram_free(speci_ngram_index *x, const spec_allocator *a)
{
    release(&x->head, a);
    release(&x->next, a);
    *x = (speci_ngram_index){ 0 };
}
