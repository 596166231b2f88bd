/* draft_ngram.c - prompt lookup: what followed the last tokens where they stood before (algorithms.md 15; Saxena 2023).
 *
 * The last n tokens are looked for earlier in the sequence, for n = N down to L; the tokens behind their first occurrence are
 * drafted, up to M of them and up to an end-of-text token. Each sequence has an index, which grows as tokens are committed; that of
 * a forked sequence shares its memory. */
#include "algorithms/draft/draft.h"
#include "algorithms/draft/draft_ngram_index.h"

enum { DEFAULT_N = 3, DEFAULT_M = 10, N_MOST = 16 };

typedef struct lengths {
    int32_t most, least; /* N, L: tokens of a match; least 0: nothing was said */
} lengths;

/* --- the object --- */

static spec_status open(spec_drafter *d, const char *args)
{
    int32_t v[3] = { DEFAULT_N, DEFAULT_M, 0 };
    const int32_t n = args[0] ? speci_parse_counts(args, v, 3) : 1;
    if (n < 1)
        return speci_fail(SPEC_E_INVALID, "the drafter \"ngram\" is written ngram:N,M,L, found \"%.60s\"", args);
    if (v[0] < 1 || v[0] > N_MOST || v[1] < 1 || v[1] > SPEC_MAX_DEPTH)
        return speci_fail(SPEC_E_INVALID, "the drafter \"ngram\" looks for 1 to %d tokens and drafts 1 to %d, found \"%.60s\"",
                          N_MOST, SPEC_MAX_DEPTH, args);
    if (n == 3 && (v[2] < 1 || v[2] > v[0]))
        return speci_fail(SPEC_E_INVALID, "the drafter \"ngram\" looks for %d to %d tokens in \"%.60s\"; need 1 <= L <= N", v[2],
                          v[0], args);
    lengths *own = speci_alloc(d->allocator, 1, sizeof *own);
    if (!own) return SPEC_E_NOMEM;
    *own = (lengths){ .most = v[0], .least = v[2] };
    d->own = own;
    d->n_draft = v[1];
    return SPEC_OK;
}

static void close(spec_drafter *d) { speci_free(d->allocator, d->own); }

/* --- in a session --- */

static lengths lengths_of(const speci_draft *d)
{
    const lengths *own = d->drafter->own;
    return *own;
}

static speci_ngram_index *index_of(const speci_draft *d, int32_t seq) { return (speci_ngram_index *)d->state + seq; }

static spec_status prepare(speci_draft *d)
{
    d->state = speci_alloc(d->site->a, (size_t)d->site->n_seq, sizeof(speci_ngram_index));
    return d->state ? SPEC_OK : SPEC_E_NOMEM;
}

static void end(speci_draft *d, int32_t seq) { speci_ngram_free(index_of(d, seq), d->site->a); }

static void detach(speci_draft *d)
{
    for (int32_t i = 0; d->state && i < d->site->n_seq; i++) end(d, i);
    speci_free(d->site->a, d->state);
    d->state = NULL;
}

/* What ends at the last id has nothing behind it yet, and is not in the index. */
static spec_status catch_up(speci_draft *d, const speci_draft_seq *q)
{
    return speci_ngram_extend(index_of(d, q->seq), q->ids, q->n_ids - 1, lengths_of(d).most, d->site->a);
}

/* Without memory the index is made anew when the sequence is drafted for. */
static void committed(speci_draft *d, const speci_draft_seq *q, int32_t n_new)
{
    (void)n_new;
    (void)catch_up(d, q);
}

static spec_status fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    return speci_ngram_share(index_of(d, to), index_of(d, q->seq), d->site->a);
}

/* The tokens behind `at`, as a chain below the root. */
static void propose(const speci_draft *d, const speci_draft_seq *q, int32_t at)
{
    const int32_t most = d->drafter->n_draft < q->depth_max ? d->drafter->n_draft : q->depth_max;
    for (int32_t i = 0; i < most && at + 1 + i < q->n_ids; i++) {
        const int32_t token = q->ids[at + 1 + i];
        if (speci_draft_ends_text(d->site->target, token)) return;
        (void)spec_tree_add(q->tree, i, token, 0);
    }
}

static void look_up(const speci_draft *d, speci_draft_seq *q)
{
    const lengths l = lengths_of(d);
    const int32_t wanted = speci_draft_least(q, l.least), least = wanted < l.most ? wanted : l.most;
    for (int32_t n = l.most < q->n_ids ? l.most : q->n_ids; n >= least && q->tree->n == 1; n--) {
        const int32_t at = speci_ngram_first(index_of(d, q->seq), q->ids, q->n_ids - 1, n, l.most);
        if (at >= 0) propose(d, q, at);
        q->n_match = n;
    }
}

static spec_status enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    (void)b;
    for (int32_t i = 0; i < n; i++) {
        SPEC_TRY(catch_up(d, &seqs[i]));
        look_up(d, &seqs[i]);
    }
    return SPEC_OK;
}

const speci_draft_kind speci_draft_ngram = {
    .name = "ngram", .args = "N,M,L",
    .help = "prompt lookup: what followed the last N tokens, or fewer down to L, before: up to M tokens (3,10,1)",
    .open = open, .close = close, .prepare = prepare, .detach = detach, .prefill = catch_up, .enqueue = enqueue,
    .committed = committed, .fork = fork, .end = end,
};
