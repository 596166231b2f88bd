/* draft_trie.c - what followed the last tokens, by how often it did: in the sequence's own prompts, and in all that was emitted
 * with this drafter so far (algorithms.md 15; Lookahead of Zhao and others 2024).
 *
 * The past belongs to the drafter, so sequences share it, and sessions have it one after another. The prompts of a sequence are
 * counted for it alone, and a forked one shares them until it gets another. A gram lies within one prompt, or within what was
 * emitted between two. Both kinds of counts age, so memory has a bound that is given beforehand: half of it for the past, half in
 * equal parts for the sequences of a session. Unlike Lookahead's, grams are counted as soon as they are complete, not window by
 * window, and counts age by what was counted, not by how full the trie is: both make a step's work alike everywhere. */
#include "algorithms/draft/draft_trie.h"

enum { DEFAULT_NODE = 16, DEFAULT_DEPTH = 8, DEFAULT_MEGABYTE = 256, MEGABYTE_MOST = 65536, CAP_LEAST = 64 };

/* --- the object --- */

static spec_status refuse(const char *args)
{
    return speci_fail(SPEC_E_INVALID,
                      "the drafter \"trie\" is written trie:NODES,DEPTH,MEGABYTES (1 to %d, 2 to %d, 1 to %d), found \"%.60s\"",
                      SPECI_MAX_NODE - 1, SPECI_TRIE_DEPTH, MEGABYTE_MOST, args);
}

/* Grams that age so go with so many places. */
static uint32_t period_of(uint32_t cap) { return cap / 4; }

static spec_status open(spec_drafter *d, const char *args)
{
    int32_t v[3] = { DEFAULT_NODE, DEFAULT_DEPTH, DEFAULT_MEGABYTE };
    if (args[0] && speci_parse_counts(args, v, 3) < 1) return refuse(args);
    if (v[0] < 1 || v[0] >= SPECI_MAX_NODE || v[1] < 2 || v[1] > SPECI_TRIE_DEPTH || v[2] < 1 || v[2] > MEGABYTE_MOST)
        return refuse(args);
    speci_trie *t = speci_alloc(d->allocator, 1, sizeof *t);
    if (!t) return SPEC_E_NOMEM;
    d->own = t;
    d->n_draft = v[0];
    t->n_prompt_node = (int32_t)(((int64_t)v[2] << 19) / (int64_t)(sizeof(speci_trie_node) + sizeof(uint32_t)));
    return speci_trie_open(&t->past, (uint32_t)t->n_prompt_node, period_of((uint32_t)t->n_prompt_node), v[1], d->allocator);
}

static void close(spec_drafter *d)
{
    speci_trie *t = d->own;
    if (t) speci_trie_close(&t->past, d->allocator);
    speci_free(d->allocator, t);
}

/* --- in a session --- */

/* The prompts of a sequence, and of those that were forked from it. */
typedef struct trie_prompts {
    int32_t n_holder;
    speci_trie_counts counts;
} trie_prompts;

typedef struct trie_seq {
    trie_prompts *prompts; /* NULL: none, or there was no memory for them */
    speci_trie_cursor in_prompt, in_past;
    int32_t n_prompt;      /* what stands behind was emitted since the latest prompt */
} trie_seq;

typedef struct trie_draft {
    trie_seq *seqs; /* [n_seq] */
    uint32_t share; /* most places for the prompts of a sequence */
    speci_trie_proposer proposer;
} trie_draft;

static speci_trie_counts *past_of(const speci_draft *d) { return &((speci_trie *)d->drafter->own)->past; }
static trie_seq *seq_of(const speci_draft *d, int32_t seq) { return ((trie_draft *)d->state)->seqs + seq; }

static spec_status prepare(speci_draft *d)
{
    const spec_allocator *a = d->site->a;
    const speci_trie *t = d->drafter->own;
    const int32_t n_node = d->size.n_node < d->site->n_node ? d->size.n_node : d->site->n_node;
    trie_draft *s = speci_alloc(a, 1, sizeof *s);
    if (!s) return SPEC_E_NOMEM;
    d->state = s;
    s->share = (uint32_t)(t->n_prompt_node / d->site->n_seq);
    if (s->share < CAP_LEAST) s->share = CAP_LEAST;
    if (!(s->seqs = speci_alloc(a, (size_t)d->site->n_seq, sizeof *s->seqs))) return SPEC_E_NOMEM;
    return speci_trie_proposer_open(&s->proposer, n_node, a);
}

static spec_status attach(speci_draft *d)
{
    speci_trie_take_vocabulary(d->drafter->own, d->site->target);
    return SPEC_OK;
}

static void let_go(const speci_draft *d, trie_prompts *p)
{
    if (!p || --p->n_holder > 0) return;
    speci_trie_close(&p->counts, d->site->a);
    speci_free(d->site->a, p);
}

static void end(speci_draft *d, int32_t seq)
{
    let_go(d, seq_of(d, seq)->prompts);
    *seq_of(d, seq) = (trie_seq){ 0 };
}

static void detach(speci_draft *d)
{
    trie_draft *s = d->state;
    if (!s) return;
    for (int32_t i = 0; s->seqs && i < d->site->n_seq; i++) end(d, i);
    speci_trie_proposer_close(&s->proposer, d->site->a);
    speci_free(d->site->a, s->seqs);
    speci_free(d->site->a, s);
    d->state = NULL;
}

/* --- prompts --- */

/* Prompts that are the sequence's own, with room for the grams of n tokens more, as far as its share goes: new ones, or a copy of
 * those that it has, with as much room again, so that prompts behind one another are not copied each time. */
static spec_status own_prompts(const speci_draft *d, trie_seq *s, int32_t n)
{
    const spec_allocator *a = d->site->a;
    const uint32_t share = ((const trie_draft *)d->state)->share;
    const speci_trie_counts *old = s->prompts ? &s->prompts->counts : NULL;
    uint64_t need = 1 + (old ? old->n : 0) + (uint64_t)n * (uint64_t)past_of(d)->depth;
    if (old && s->prompts->n_holder == 1 && (old->cap >= need || old->cap == share)) return SPEC_OK;
    if (old) need *= 2;
    const uint32_t cap = need < share ? (uint32_t)need : share;
    trie_prompts *p = speci_alloc(a, 1, sizeof *p);
    if (!p) return SPEC_E_NOMEM;
    p->n_holder = 1;
    const spec_status status = old ? speci_trie_copy(&p->counts, old, cap, a)
                                   : speci_trie_open(&p->counts, cap, period_of(share), past_of(d)->depth, a);
    if (status != SPEC_OK) {
        speci_free(a, p);
        return status;
    }
    let_go(d, s->prompts);
    s->prompts = p;
    return SPEC_OK;
}

/* ids from `first` on are a prompt. Without memory for it the sequence goes on without any. */
static spec_status take_prompt(const speci_draft *d, const speci_draft_seq *q, int32_t first)
{
    trie_seq *s = seq_of(d, q->seq);
    s->n_prompt = q->n_ids;
    speci_trie_seek(past_of(d), &s->in_past, q->ids, q->n_ids);
    const spec_status status = own_prompts(d, s, q->n_ids - first);
    if (status != SPEC_OK) {
        let_go(d, s->prompts);
        s->prompts = NULL;
        return status;
    }
    speci_trie_seek(&s->prompts->counts, &s->in_prompt, q->ids, first);
    for (int32_t i = first; i < q->n_ids; i++) speci_trie_step(&s->prompts->counts, &s->in_prompt, q->ids, i, first);
    return SPEC_OK;
}

static spec_status prefill(speci_draft *d, const speci_draft_seq *q) { return take_prompt(d, q, 0); }

/* --- what is emitted --- */

static void take_emitted(const speci_draft *d, const speci_draft_seq *q, int32_t first)
{
    trie_seq *s = seq_of(d, q->seq);
    for (int32_t i = first; i < q->n_ids; i++) {
        speci_trie_step(past_of(d), &s->in_past, q->ids, i, s->n_prompt);
        if (s->prompts) speci_trie_step(&s->prompts->counts, &s->in_prompt, q->ids, i, i + 1);
    }
}

static void committed(speci_draft *d, const speci_draft_seq *q, int32_t n_new)
{
    const int32_t first = q->n_ids - n_new;
    if (first < q->n_prompt) (void)take_prompt(d, q, first);
    else take_emitted(d, q, first);
}

static spec_status fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    trie_seq *s = seq_of(d, to);
    *s = *seq_of(d, q->seq);
    if (s->prompts) s->prompts->n_holder++;
    return SPEC_OK;
}

static spec_status enqueue(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    (void)b;
    trie_draft *all = d->state;
    for (int32_t i = 0; i < n; i++) {
        trie_seq *s = seq_of(d, seqs[i].seq);
        speci_trie_place at = { .prompt = s->prompts ? &s->prompts->counts : NULL, .past = past_of(d) };
        speci_trie_refresh(at.past, &s->in_past, seqs[i].ids, seqs[i].n_ids);
        if (at.prompt) speci_trie_refresh(at.prompt, &s->in_prompt, seqs[i].ids, seqs[i].n_ids);
        at.in_prompt = s->in_prompt, at.in_past = s->in_past;
        speci_trie_propose(&all->proposer, &seqs[i], &at, d->site->target);
    }
    return SPEC_OK;
}

const speci_draft_kind speci_draft_trie = {
    .name = "trie", .args = "NODES,DEPTH,MEGABYTES",
    .help = "what followed up to DEPTH - 1 last tokens, by how often, in prompts and in all texts so far (16,8,256)",
    .open = open, .close = close, .check = speci_trie_check, .prepare = prepare, .attach = attach, .detach = detach, .prefill = prefill,
    .enqueue = enqueue, .committed = committed, .fork = fork, .end = end, .save_file = speci_trie_save,
    .load_file = speci_trie_load,
};
