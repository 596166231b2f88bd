/* draft_ngram.c - prompt lookup: what followed the last tokens where they stood before (algorithms.md 15; Saxena 2023).
 *
 * The last n tokens are looked for earlier in the sequence, for n = N down to 1; the tokens behind their first occurrence are
 * drafted, up to M of them and up to an end-of-text token. The index is one hash table per sequence, of the ends of the first
 * occurrences; it grows with the sequence, so a step costs what it has added. */
#include "algorithms/draft/draft.h"

enum { DEFAULT_N = 3, DEFAULT_M = 10, N_MOST = 16, CAP_LEAST = 256 };

/* --- the object --- */

static spec_status open(spec_drafter *d, const char *args)
{
    int32_t v[2] = { DEFAULT_N, DEFAULT_M };
    if (args[0] && speci_parse_counts(args, v, 2) < 1)
        return speci_fail(SPEC_E_INVALID, "the drafter \"ngram\" is written ngram:N,M, found \"%.60s\"", args);
    if (v[0] < 1 || v[0] > N_MOST || v[1] < 1 || v[1] > SPEC_MAX_DEPTH)
        return speci_fail(SPEC_E_INVALID, "the drafter \"ngram\" looks for 1 to %d tokens and drafts 1 to %d, found \"%.60s\"",
                          N_MOST, SPEC_MAX_DEPTH, args);
    int32_t *n = speci_alloc(d->allocator, 1, sizeof *n);
    if (!n) return SPEC_E_NOMEM;
    *n = v[0];
    d->own = n;
    d->n_draft = v[1];
    return SPEC_OK;
}

static void close(spec_drafter *d) { speci_free(d->allocator, d->own); }

/* --- the index of a sequence --- */

typedef struct ngram_entry {
    int32_t n;   /* tokens; 0 = free */
    int32_t end; /* position of the last of them, where they stand first */
} ngram_entry;

typedef struct ngram_index {
    ngram_entry *entry; /* [cap], a power of two, at most half of it in use */
    size_t cap, used;
    int32_t n_indexed;  /* ids that are in it as ends */
} ngram_index;

static size_t hash_of(const int32_t *ids, int32_t n)
{
    uint64_t h = (uint64_t)n;
    for (int32_t i = 0; i < n; i++) h = (h ^ (uint32_t)ids[i]) * 0x9e3779b97f4a7c15u;
    return (size_t)(h ^ h >> 32);
}

/* The entry of the n tokens that end at `end`, or the free one where it would be. */
static ngram_entry *find(const ngram_index *x, const int32_t *ids, int32_t end, int32_t n)
{
    const int32_t *gram = ids + end + 1 - n;
    for (size_t at = hash_of(gram, n);; at++) {
        ngram_entry *e = &x->entry[at & (x->cap - 1)];
        bool same = e->n == n || e->n == 0;
        for (int32_t i = 0; i < n && same && e->n; i++) same = ids[e->end + 1 - n + i] == gram[i];
        if (same) return e;
    }
}

static spec_status reserve(ngram_index *x, size_t used, const int32_t *ids, const spec_allocator *a)
{
    size_t cap = x->cap ? x->cap : CAP_LEAST;
    while (cap < 2 * used) cap *= 2;
    if (cap == x->cap) return SPEC_OK;
    ngram_index larger = { .cap = cap };
    if (!(larger.entry = speci_alloc(a, cap, sizeof *larger.entry))) return SPEC_E_NOMEM;
    for (size_t i = 0; i < x->cap; i++)
        if (x->entry[i].n) *find(&larger, ids, x->entry[i].end, x->entry[i].n) = x->entry[i];
    speci_free(a, x->entry);
    x->entry = larger.entry, x->cap = cap;
    return SPEC_OK;
}

/* Tokens that end at the last id have nothing behind them yet, and are not in the index. */
static spec_status catch_up(ngram_index *x, const speci_draft_seq *q, int32_t n_max, const spec_allocator *a)
{
    if (q->n_ids < 2) return SPEC_OK;
    SPEC_TRY(reserve(x, (size_t)n_max * (size_t)q->n_ids, q->ids, a));
    for (; x->n_indexed < q->n_ids - 1; x->n_indexed++)
        for (int32_t n = 1; n <= n_max && n <= x->n_indexed + 1; n++) {
            ngram_entry *e = find(x, q->ids, x->n_indexed, n);
            if (e->n == 0) *e = (ngram_entry){ n, x->n_indexed };
        }
    return SPEC_OK;
}

/* --- in a session --- */

static int32_t n_max_of(const speci_draft *d)
{
    const int32_t *n = d->drafter->own;
    return *n;
}

static spec_status prepare(speci_draft *d)
{
    d->state = speci_alloc(d->site->a, (size_t)d->site->n_seq, sizeof(ngram_index));
    return d->state ? SPEC_OK : SPEC_E_NOMEM;
}

static void end(speci_draft *d, int32_t seq)
{
    ngram_index *x = (ngram_index *)d->state + seq;
    speci_free(d->site->a, x->entry);
    *x = (ngram_index){ 0 };
}

static void detach(speci_draft *d)
{
    for (int32_t i = 0; d->state && i < d->site->n_seq; i++) end(d, i);
    speci_free(d->site->a, d->state);
    d->state = NULL;
}

static spec_status prefill(speci_draft *d, const speci_draft_seq *q)
{
    return catch_up((ngram_index *)d->state + q->seq, q, n_max_of(d), d->site->a);
}

/* The tokens behind `at`, as a chain below the root. */
static void propose(const speci_draft *d, const speci_draft_seq *q, int32_t at)
{
    int32_t most = d->drafter->n_draft < q->depth_max ? d->drafter->n_draft : q->depth_max;
    if (most > d->site->n_node - 1) most = d->site->n_node - 1;
    for (int32_t i = 0; i < most && at + 1 + i < q->n_ids; i++) {
        const int32_t token = q->ids[at + 1 + i];
        if (speci_draft_ends_text(d->site->target, token)) return;
        (void)spec_tree_add(q->tree, i, token, 0);
    }
}

static void look_up(const speci_draft *d, const speci_draft_seq *q)
{
    const ngram_index *x = (const ngram_index *)d->state + q->seq;
    const int32_t n_max = n_max_of(d);
    for (int32_t n = n_max < q->n_ids ? n_max : q->n_ids; n > 0 && x->cap > 0 && q->tree->n == 1; n--) {
        const ngram_entry *e = find(x, q->ids, q->n_ids - 1, n);
        if (e->n) propose(d, q, e->end);
    }
}

static spec_status enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    (void)b;
    for (int32_t i = 0; i < n; i++) {
        SPEC_TRY(prefill(d, &seqs[i]));
        look_up(d, &seqs[i]);
    }
    return SPEC_OK;
}

/* The copy's index is made when it drafts. */
const speci_draft_kind speci_draft_ngram = {
    .name = "ngram", .args = "N,M", .help = "prompt lookup: what followed the last N tokens before, up to M tokens (3,10)",
    .open = open, .close = close, .prepare = prepare, .detach = detach, .prefill = prefill, .enqueue = enqueue, .end = end,
};
