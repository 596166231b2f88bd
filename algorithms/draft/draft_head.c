/* draft_head.c - a head on the target's hidden states as drafter (algorithms.md 16): a model (draft_model.c) that is fed each token
 * beside the target's hidden row of the position in front, and its own rows behind the root.
 *
 * So its ids are those of the sequence from the second on, and come with their rows. What it drafted it computed from its own rows: it is
 * never committed, but fed anew with the target's. Where rows are missing (a restored sequence without its part), its context begins with
 * the first that come. */
#include "algorithms/draft/draft_model.h"

#include <string.h>

enum { KEPT = SPECI_TOLD_ROWS / 2 /* rows that wait for a draft */ };

/* --- does it fit a target? --- */

spec_status speci_draft_head_check(const spec_drafter *d, const spec_model *target)
{
    const spec_model *m = d->own;
    if (m->backend != target->backend)
        return speci_fail(SPEC_E_INVALID, "the head %s is on backend %s, the target on %s: load both on one", m->path,
                          spec_backend_name(m->backend), spec_backend_name(target->backend));
    return speci_head_check(m, target);
}

/* --- in step with the sequence --- */

/* But for the executor's slot. */
void speci_draft_head_begin(model_draft *m, int32_t seq, int32_t first)
{
    model_seq *s = &m->seqs[seq];
    s->begun = true, s->outgrown = false;
    s->fed.n = s->n_fed = 0;
    s->first = first, s->n_told = s->n_ids = 0;
    memset(s->kept, 0, sizeof s->kept);
    s->half = s->rode_at = 0, s->rides = false;
}

/* Rows [from, from + n) of h, those of the ids behind the ones that were told. */
static spec_status keep_rows(model_draft *m, int32_t seq, const speci_draft_hidden *h, int32_t from, int32_t n)
{
    model_seq *s = &m->seqs[seq];
    for (int32_t k = 0; k < m->told.n_tap; k++)
        for (int32_t i = 0; i < n; i++)
            SPEC_TRY(speci_draft_told_add(m, speci_draft_told_row(m, k, seq, s->n_told + i),
                                          speci_draft_view_row(&h->taps[k], speci_hidden_row(h, from + i)), m->told.row_bytes[k]));
    s->n_told += n;
    return speci_draft_told_copy(m);
}

static void begin(model_draft *m, int32_t seq, int32_t first)
{
    m->exec->kind->begin(m->exec, seq);
    speci_draft_head_begin(m, seq, first);
}

/* Feeds what is kept, as chains, until it is all covered: behind it other rows have come. */
static spec_status feed_kept(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    for (;;) {
        speci_draft_commit_fed(m, seq);
        const int32_t base = m->exec->kind->n_past(m->exec, seq), left = s->n_told - base;
        if (left == 0) return SPEC_OK;
        for (int32_t i = 0; i < left && i < m->n_node && i <= SPEC_MAX_DEPTH; i++) (void)spec_tree_add(&s->fed, i - 1, s->ids[base + i], 0);
        s->n_given = s->fed.n;
        SPEC_TRY(speci_draft_feed(m, &seq, 1));
    }
}

typedef struct giving {
    model_draft *m;
    const speci_draft_hidden *h;
    int32_t first; /* the executor's position of h's first row */
} giving;

/* A prefill pass is about to read the rows of positions [first, first + n) of the executor. */
static spec_status give(void *arg, int32_t first, int32_t n)
{
    const giving *g = arg;
    for (int32_t k = 0; k < g->m->told.n_tap; k++) {
        const spec_view to = g->m->exec->kind->given(g->m->exec, k);
        for (int32_t i = 0; i < n; i++)
            SPEC_TRY(speci_draft_told_add(g->m, speci_draft_view_row(&to, i),
                                          speci_draft_view_row(&g->h->taps[k], speci_hidden_row(g->h, first - g->first + i)),
                                          g->m->told.row_bytes[k]));
    }
    return speci_draft_told_copy(g->m);
}

/* Rows of a prompt are applied as they come, but that in front of the pending token: its position is the root of a draft. Nothing stops
 * this between passes: the rows do not come again. The target's prefill can be stopped in front of its next chunk. */
static spec_status take_prompt(model_draft *m, const speci_draft_seq *q, const speci_draft_hidden *h)
{
    model_seq *s = &m->seqs[q->seq];
    const int32_t n = h->first + h->n == q->n_ids - 1 ? h->n - 1 : h->n;
    if (n > 0) {
        SPEC_TRY(feed_kept(m, q->seq));
        giving g = { m, h, s->n_told };
        const speci_prefill_hooks hooks = { .give = give, .arg = &g };
        SPEC_TRY(m->exec->kind->prefill(m->exec, q->seq, s->ids + s->n_told, (size_t)n, &hooks));
        s->n_told += n;
    }
    return keep_rows(m, q->seq, h, n, h->n - n);
}

static spec_status take_path(model_draft *m, int32_t seq, const speci_draft_hidden *h)
{
    speci_draft_commit_fed(m, seq);
    if (m->seqs[seq].n_told + h->n - m->exec->kind->n_past(m->exec, seq) > KEPT) SPEC_TRY(feed_kept(m, seq));
    return keep_rows(m, seq, h, 0, h->n);
}

spec_status speci_draft_head_hidden(speci_draft *d, const speci_draft_seq *q, const speci_draft_hidden *h)
{
    model_draft *m = d->state;
    model_seq *s = &m->seqs[q->seq];
    if (!s->begun) begin(m, q->seq, h->first);
    if (s->outgrown) return SPEC_OK;
    s->ids = q->ids + s->first + 1, s->n_ids = s->n_told + h->n;
    s->outgrown = m->n_ctx > 0 && s->n_ids > m->n_ctx;
    if (s->outgrown) return SPEC_OK;
    return h->row ? take_path(m, q->seq, h) : take_prompt(m, q, h);
}

/* Its rows were told before; or there are none: a prompt of one token, a sequence that was restored without them. */
spec_status speci_draft_head_prefill(speci_draft *d, const speci_draft_seq *q)
{
    model_draft *m = d->state;
    const model_seq *s = &m->seqs[q->seq];
    if (s->begun && (s->outgrown || s->first + s->n_told == q->n_ids - 1)) return SPEC_OK;
    begin(m, q->seq, q->n_ids - 1);
    return SPEC_OK;
}

spec_status speci_draft_head_fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    model_draft *m = d->state;
    const model_seq *from = &m->seqs[q->seq];
    model_seq *s = &m->seqs[to];
    speci_draft_head_begin(m, to, from->first);
    s->outgrown = from->outgrown;
    if (from->outgrown) return SPEC_OK;
    s->n_told = from->n_told;
    SPEC_TRY(m->exec->kind->copy(m->exec, q->seq, to));
    SPEC_TRY(speci_draft_chain_copy(m, q->seq, to));
    for (int32_t k = 0; k < m->told.n_tap; k++)
        for (int32_t i = m->exec->kind->n_past(m->exec, q->seq); i < from->n_told; i++)
            SPEC_TRY(speci_draft_told_add(m, speci_draft_told_row(m, k, to, i), speci_draft_told_row(m, k, q->seq, i),
                                          m->told.row_bytes[k]));
    return speci_draft_told_copy(m);
}
