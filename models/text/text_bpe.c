/* text_bpe.c - byte-pair encoding of one split: the best pair is joined until no pair is left.
 *
 * Symbols are a linked list over the text; candidate pairs lie in a heap, ordered by rank, then from left to right. A
 * pair that no longer exists when it is popped is passed over. n symbols: O(n log n), whatever the text. Before that
 * the symbols are cut into groups between which no merge is possible, so that a whole page without a pre-tokenizer
 * means many small heaps and not one large one: 1 MB of prose takes a tenth of the time.
 *
 * Two rules for which pairs may be joined:
 *     merges    (tokenizer.json)   a table of pairs of ids; rank = its place in the file
 *     spm       (tokenizer.model)  the joined text is a piece; rank by its score, the highest first
 * With spm, symbols may be characters that are no piece, which only a larger piece makes known; with merges, an
 * unknown character has become unk, bytes or nothing before the joining begins. */
#include <stdio.h>
#include <string.h>

#include "models/text/text_tokenizer.h"

typedef struct symbol {
    int32_t prev, next; /* -1 = none */
    uint32_t start, n;  /* bytes of the split; n = 0: was joined to its left neighbour */
    int32_t id;         /* -1 = not a piece (spm) */
    bool frozen;        /* spm: user-defined, takes part in no merge */
} symbol;

typedef struct candidate {
    uint32_t rank, left; /* index of the left symbol */
    int32_t id;          /* what the pair would become */
    uint32_t n;          /* bytes of both */
} candidate;

typedef struct encoder {
    const speci_bpe *bpe;
    const speci_vocab *vocab;
    const char *text;
    size_t n;
    speci_bpe_work *work;
    int32_t unk_pending; /* merges: bytes of unknown characters not yet in a symbol; 0 = none */
    uint32_t unk_start;
    bool after_unk; /* spm: the id put last is unk for an unknown character */
} encoder;

void speci_bpe_init(speci_bpe *bpe, const spec_allocator *a)
{
    *bpe = (speci_bpe){ .unk = -1, .merges = { .a = a } };
    bpe->user_defined.edges.a = bpe->user_defined.leaf.a = a;
    for (int b = 0; b < 256; b++) bpe->byte_id[b] = -1;
}

void speci_bpe_free(speci_bpe *bpe, const spec_allocator *a)
{
    speci_free(a, bpe->prefix);
    speci_free(a, bpe->suffix);
    speci_free(a, bpe->rank);
    speci_pairs_free(&bpe->merges);
    speci_trie_free(&bpe->user_defined);
}

void speci_bpe_find_bytes(speci_bpe *bpe, const speci_vocab *vocab)
{
    for (int b = 0; b < 256; b++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", (unsigned)b);
        bpe->byte_id[b] = speci_vocab_find(vocab, name, 6);
    }
}

/* ------------------------------------------------------------------------------ the symbols --- */

static symbol *symbols(const encoder *e)
{
    return (symbol *)(void *)e->work->symbols.data;
}
static size_t n_symbols(const encoder *e)
{
    return e->work->symbols.n / sizeof(symbol);
}

static spec_status put_symbol(encoder *e, size_t start, size_t n, int32_t id, bool frozen)
{
    int32_t index = (int32_t)n_symbols(e);
    symbol s = { index - 1, index + 1, (uint32_t)start, (uint32_t)n, id, frozen };
    return speci_buf_add(&e->work->symbols, &s, sizeof s);
}

static spec_status flush_unk(encoder *e)
{
    if (e->unk_pending == 0) return SPEC_OK;
    SPEC_TRY(put_symbol(e, e->unk_start, (size_t)e->unk_pending, e->bpe->unk, false));
    e->unk_pending = 0;
    return SPEC_OK;
}

/* A character that is not in the vocabulary, by the merges rule: `key` [n_key] is it with prefix and suffix. */
static spec_status put_unknown(encoder *e, size_t start, size_t n, const char *key, size_t n_key)
{
    const speci_bpe *bpe = e->bpe;
    if (bpe->byte_fallback) {
        bool all = true;
        for (size_t i = 0; i < n_key; i++) all = all && bpe->byte_id[(uint8_t)key[i]] >= 0;
        if (all) { /* a pending unk stays pending: the reference puts it after these bytes */
            for (size_t i = 0; i < n_key; i++) SPEC_TRY(put_symbol(e, start, 1, bpe->byte_id[(uint8_t)key[i]], false));
            return SPEC_OK;
        }
    }
    if (bpe->unk < 0) return SPEC_OK;
    if (!bpe->fuse_unk) SPEC_TRY(flush_unk(e));
    if (e->unk_pending == 0) e->unk_start = (uint32_t)start;
    e->unk_pending += (int32_t)n;
    return SPEC_OK;
}

/* The character's string in the vocabulary: with the prefix unless it is the first, the suffix if it is the last. */
static spec_status symbol_key(encoder *e, size_t start, size_t n, const char **key, size_t *n_key)
{
    const char *prefix = start > 0 ? e->bpe->prefix : NULL;
    const char *suffix = start + n == e->n ? e->bpe->suffix : NULL;
    *key = e->text + start;
    *n_key = n;
    if (!prefix && !suffix) return SPEC_OK;
    speci_buf *buf = &e->work->key;
    buf->n = 0;
    if (prefix) SPEC_TRY(speci_buf_add(buf, prefix, strlen(prefix)));
    SPEC_TRY(speci_buf_add(buf, e->text + start, n));
    if (suffix) SPEC_TRY(speci_buf_add(buf, suffix, strlen(suffix)));
    *key = buf->data;
    *n_key = buf->n;
    return SPEC_OK;
}

static spec_status split_for_merges(encoder *e)
{
    for (size_t i = 0, n; i < e->n; i += n) {
        const char *key;
        size_t n_key;
        n = speci_utf8_length(e->text + i, e->n - i);
        SPEC_TRY(symbol_key(e, i, n, &key, &n_key));
        int32_t id = speci_vocab_find(e->vocab, key, n_key);
        if (id < 0) {
            SPEC_TRY(put_unknown(e, i, n, key, n_key));
        } else {
            SPEC_TRY(flush_unk(e));
            SPEC_TRY(put_symbol(e, i, n, id, false));
        }
    }
    return flush_unk(e);
}

/* The piece that text [n] is, if it may come about by merging. */
static int32_t find_mergeable(const encoder *e, const char *text, size_t n)
{
    int32_t id = speci_vocab_find(e->vocab, text, n);
    return id >= 0 && e->bpe->rank[id] != UINT32_MAX ? id : -1;
}

static spec_status split_for_spm(encoder *e)
{
    for (size_t i = 0, n; i < e->n; i += n) {
        size_t index = 0;
        bool frozen = speci_trie_longest(&e->bpe->user_defined, e->text + i, e->n - i, &index, &n);
        int32_t id = (int32_t)index;
        if (!frozen) {
            n = speci_utf8_length(e->text + i, e->n - i);
            id = find_mergeable(e, e->text + i, n);
        }
        SPEC_TRY(put_symbol(e, i, n, id, frozen));
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------- the groups --- */

static size_t join_bit(int32_t left, int32_t right)
{
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    return (size_t)(h >> 46); /* 18 bits */
}

static void set_join(speci_bpe *bpe, int32_t left, int32_t right)
{
    size_t bit = join_bit(left, right);
    bpe->joins[bit / 64] |= (uint64_t)1 << bit % 64;
}

static int32_t first_char(const char *s)
{
    size_t len;
    return speci_utf8_decode(s, &len);
}

static int32_t last_char(const char *s, size_t n)
{
    return first_char(s + speci_utf8_before(s, n));
}

void speci_bpe_put_join(speci_bpe *bpe, const char *left, size_t n_left, const char *right, size_t n_right)
{
    if (n_left && n_right) set_join(bpe, last_char(left, n_left), first_char(right));
}

void speci_bpe_put_joins(speci_bpe *bpe, const char *piece, size_t n)
{
    for (size_t i = 0, len; i < n; i += len) {
        len = speci_utf8_length(piece + i, n - i);
        if (i > 0) set_join(bpe, last_char(piece, i), first_char(piece + i));
    }
}

/* The string that merges go by: the text itself, or (an unknown character, a byte) that of the id. */
static const char *symbol_string(const encoder *e, const symbol *s, size_t *n)
{
    if (!e->bpe->spm) return speci_vocab_string(e->vocab, s->id, n);
    *n = s->n;
    return e->text + s->start;
}

/* May anything ever join across the border of symbols i and i + 1? A merged symbol begins with the first character of
 * its leftmost part and ends with the last one of its rightmost part, so the border's characters decide. (With a
 * continuing_subword_prefix strings are not so simple: then nothing is cut.) */
static bool may_join(const encoder *e, size_t i)
{
    if (e->bpe->prefix) return true;
    size_t n_left, n_right;
    const char *left = symbol_string(e, symbols(e) + i, &n_left);
    const char *right = symbol_string(e, symbols(e) + i + 1, &n_right);
    if (n_left == 0 || n_right == 0) return true;
    size_t bit = join_bit(last_char(left, n_left), first_char(right));
    return e->bpe->joins[bit / 64] >> bit % 64 & 1;
}

/* --------------------------------------------------------------------------------- the heap --- */

static bool before(const candidate *x, const candidate *y)
{
    return x->rank != y->rank ? x->rank < y->rank : x->left < y->left;
}

/* Lets the element at `i` sink to its place. */
static void sift_down(candidate *heap, size_t n, size_t i)
{
    candidate moving = heap[i];
    for (;;) {
        size_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && before(&heap[child + 1], &heap[child])) child++;
        if (!before(&heap[child], &moving)) break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = moving;
}

static spec_status heap_push(speci_buf *buf, candidate c)
{
    SPEC_TRY(speci_buf_add(buf, &c, sizeof c));
    candidate *heap = (candidate *)(void *)buf->data;
    size_t i = buf->n / sizeof c - 1;
    while (i > 0 && before(&c, &heap[(i - 1) / 2])) {
        heap[i] = heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap[i] = c;
    return SPEC_OK;
}

static candidate heap_pop(speci_buf *buf)
{
    candidate *heap = (candidate *)(void *)buf->data;
    candidate top = heap[0];
    buf->n -= sizeof top;
    size_t n = buf->n / sizeof top;
    heap[0] = heap[n];
    if (n > 1) sift_down(heap, n, 0);
    return top;
}

/* ------------------------------------------------------------------------------- the merging --- */

/* May the symbol `left` and the one after it be joined, and to what? */
static bool find_merge(const encoder *e, int32_t left, candidate *c)
{
    if (left < 0) return false;
    const symbol *l = symbols(e) + left;
    if (l->next < 0) return false;
    const symbol *r = symbols(e) + l->next;
    c->left = (uint32_t)left;
    c->n = l->n + r->n;
    if (!e->bpe->spm) {
        const speci_pair *merge = speci_pairs_get(&e->bpe->merges, (uint32_t)l->id, (uint32_t)r->id);
        if (!merge) return false;
        c->rank = merge->rank;
        c->id = merge->id;
        return true;
    }
    if (l->frozen || r->frozen) return false;
    c->id = find_mergeable(e, e->text + l->start, c->n);
    if (c->id < 0) return false;
    c->rank = e->bpe->rank[c->id];
    return true;
}

/* Is a popped pair still there? If one of its halves has changed, it is another pair, or none. */
static bool still_there(const encoder *e, const candidate *c)
{
    const symbol *left = symbols(e) + c->left;
    if (left->n == 0 || left->next < 0) return false;
    if (e->bpe->spm) return left->n + symbols(e)[left->next].n == c->n; /* the same text, hence the same piece */
    candidate now;
    return find_merge(e, (int32_t)c->left, &now) && now.id == c->id;
}

static spec_status apply_merge(encoder *e, const candidate *c)
{
    if (!still_there(e, c)) return SPEC_OK;
    symbol *all = symbols(e), *left = all + c->left, *right = all + left->next;
    candidate next;
    left->n += right->n;
    left->id = c->id;
    left->next = right->next;
    right->n = 0;
    if (left->next >= 0) all[left->next].prev = (int32_t)c->left;
    if (find_merge(e, left->prev, &next)) SPEC_TRY(heap_push(&e->work->heap, next));
    if (find_merge(e, (int32_t)c->left, &next)) SPEC_TRY(heap_push(&e->work->heap, next));
    return SPEC_OK;
}

/* Merges symbols first .. end - 1, which are linked among themselves only. */
static spec_status merge_group(encoder *e, size_t first, size_t end)
{
    speci_buf *heap = &e->work->heap;
    heap->n = 0;
    for (size_t i = first; i + 1 < end; i++) {
        candidate c;
        if (find_merge(e, (int32_t)i, &c)) SPEC_TRY(speci_buf_add(heap, &c, sizeof c));
    }
    size_t n = heap->n / sizeof(candidate);
    for (size_t i = n / 2; i-- > 0;) sift_down((candidate *)(void *)heap->data, n, i);
    while (heap->n) {
        candidate c = heap_pop(heap);
        SPEC_TRY(apply_merge(e, &c));
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------- the result --- */

/* An spm symbol that is no piece: its bytes, or unk, of which neighbours become one. */
static spec_status put_unknown_symbol(encoder *e, const symbol *s, speci_buf *ids)
{
    if (e->bpe->byte_fallback) {
        for (uint32_t i = 0; i < s->n; i++) {
            int32_t id = e->bpe->byte_id[(uint8_t)e->text[s->start + i]];
            SPEC_TRY(speci_buf_add(ids, &id, sizeof id));
        }
        return SPEC_OK;
    }
    if (!e->after_unk && e->bpe->unk >= 0) SPEC_TRY(speci_buf_add(ids, &e->bpe->unk, sizeof e->bpe->unk));
    e->after_unk = true;
    return SPEC_OK;
}

static spec_status put_ids(encoder *e, size_t first, speci_buf *ids)
{
    for (int32_t i = (int32_t)first; i >= 0; i = symbols(e)[i].next) {
        const symbol *s = symbols(e) + i;
        if (s->id < 0) {
            SPEC_TRY(put_unknown_symbol(e, s, ids));
            continue;
        }
        SPEC_TRY(speci_buf_add(ids, &s->id, sizeof s->id));
        e->after_unk = false;
    }
    return SPEC_OK;
}

/* Group by group: cut, merge, emit. */
static spec_status encode_symbols(encoder *e, speci_buf *ids)
{
    size_t n = n_symbols(e);
    for (size_t first = 0, end; first < n; first = end) {
        end = first + 1;
        while (end < n && may_join(e, end - 1)) end++;
        symbols(e)[first].prev = -1;
        symbols(e)[end - 1].next = -1;
        SPEC_TRY(merge_group(e, first, end));
        SPEC_TRY(put_ids(e, first, ids));
    }
    return SPEC_OK;
}

spec_status speci_bpe_encode(const speci_bpe *bpe, const speci_vocab *vocab, const char *text, size_t n,
                             speci_bpe_work *work, speci_buf *ids)
{
    encoder e = { .bpe = bpe, .vocab = vocab, .text = text, .n = n, .work = work };
    if (bpe->ignore_merges) {
        int32_t id = speci_vocab_find(vocab, text, n);
        if (id >= 0) return speci_buf_add(ids, &id, sizeof id);
    }
    work->symbols.n = 0;
    SPEC_TRY(bpe->spm ? split_for_spm(&e) : split_for_merges(&e));
    return encode_symbols(&e, ids);
}
