/* draft_follow.c - a drafter's executor in step with the sequence (algorithms.md 10.2): its ids, what of them it was fed, and what of that
 * is committed by now.
 *
 * With another vocabulary the sequence is kept in the drafter's ids, which are only ever appended to: a recurrent state cannot be taken
 * back. A prompt is encoded as one text, each emitted token on its own, so that an accepted token is fed by the id that drafted it. */
#include "algorithms/draft/draft_model.h"

enum { PROMPT = SPEC_MAX_DEPTH + 1 /* tokens that one step can emit: more at once are a prompt */ };

/* --- ids --- */

/* The target's: of one that the drafter has no row for, any other. */
static spec_status take_ids(model_draft *m, speci_translation *x, const int32_t *ids, int32_t n)
{
    SPEC_TRY(speci_buf_reserve(&x->ids, (size_t)n * sizeof *ids));
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = ids[i] < m->model->n_vocab ? ids[i] : 0;
        SPEC_TRY(speci_buf_add(&x->ids, &id, sizeof id));
    }
    x->n_from += n;
    return SPEC_OK;
}

spec_status speci_draft_follow(model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    const int32_t *ids = q->ids + s->own.n_from, n = q->n_ids - s->own.n_from;
    const bool prompt = s->own.n_from == 0 || n > PROMPT;
    int32_t n_own;
    if (m->is_head) speci_draft_head_see(m, q, s->n_told);
    if (m->is_head || s->outgrown || n == 0) return SPEC_OK;
    if (!m->vocab.map) SPEC_TRY(take_ids(m, &s->own, ids, n));
    else SPEC_TRY(speci_translate(&s->own, m->vocab.map, ids, n, prompt || m->vocab.by_text));
    (void)speci_translated(&s->own, &n_own);
    s->outgrown = m->n_ctx > 0 && n_own > m->n_ctx;
    return SPEC_OK;
}

spec_status speci_draft_begin(model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    s->begun = true, s->outgrown = false;
    s->fed.n = s->n_fed = 0;
    s->own.ids.n = 0, s->own.n_from = s->own.n_held = 0;
    SPEC_TRY(speci_buf_reserve(&s->own.ids, (size_t)speci_draft_room_of(m, q) * sizeof(int32_t)));
    if (m->vocab.map) SPEC_TRY(speci_translation_begin(&s->own, m->vocab.map));
    return speci_draft_follow(m, q);
}

/* --- what was fed --- */

void speci_draft_commit_fed(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    int32_t n_ids, n = 0;
    const int32_t *ids = speci_draft_ids(m, seq, &n_ids), base = m->exec->kind->n_past(m->exec, seq);
    if (s->n_fed == 0 || s->rides) { /* a path that is pending stays so */
        s->fed.n = s->n_fed = 0, s->rides = false;
        return;
    }
    spec_tree fed = s->fed;
    fed.n = m->is_head ? s->n_given : s->n_fed;
    int32_t node = base < n_ids && fed.token[0] == ids[base] ? 0 : -1;
    for (; node >= 0 && base + n < n_ids - 1; node = speci_tree_child_with(&fed, node, ids[base + n])) m->path[n++] = node;
    m->exec->kind->commit(m->exec, seq, m->path, n);
    s->fed.n = s->n_fed = 0;
}

/* --- what is to be fed --- */

/* Where an engine of the application's fails in it, its sequence is ended: another one begins with all ids. */
spec_status speci_draft_consume(model_draft *m, int32_t seq)
{
    const speci_draft_site *site = m->d->site;
    const speci_prefill_hooks hooks = { .poll = site->stopped, .arg = site->stopped_arg };
    int32_t n;
    const int32_t *ids = speci_draft_ids(m, seq, &n), first = m->exec->kind->n_past(m->exec, seq);
    const spec_status status = m->exec->kind->prefill(m->exec, seq, ids + first, first < n - 1 ? (size_t)(n - 1 - first) : 0, &hooks);
    if (status == SPEC_OK || status == SPEC_E_ABORTED || status == SPEC_E_DEVICE) return status;
    m->exec->kind->end(m->exec, seq);
    m->exec->kind->begin(m->exec, seq);
    return status;
}

/* May `left` committed tokens stand in front of the draft, in one pass with them? */
static bool fits_chain(const model_draft *m, int32_t left)
{
    const spec_builder_info *tree = &m->b->info;
    return left <= m->n_chain && left + tree->n_row - 1 <= m->n_node && left + tree->depth - 2 <= SPEC_MAX_DEPTH;
}

/* More than fit (a caller's own trees can leave many) are fed first, a whole prompt that was appended as one. */
spec_status speci_draft_catch_up(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    int32_t n_ids;
    const int32_t *ids = speci_draft_ids(m, seq, &n_ids);
    if (!m->is_head && n_ids - m->exec->kind->n_past(m->exec, seq) > PROMPT) SPEC_TRY(speci_draft_consume(m, seq));
    for (;;) {
        const int32_t base = m->exec->kind->n_past(m->exec, seq), left = n_ids - base;
        const bool fits = fits_chain(m, left);
        const int32_t n = fits ? left : speci_min32(left - 1, speci_min32(m->n_node, SPEC_MAX_DEPTH));
        for (int32_t i = 0; i < n; i++) spec_tree_add(&s->fed, i - 1, ids[base + i], 0);
        s->n_given = n;
        if (fits) return SPEC_OK;
        SPEC_TRY(speci_draft_feed(m, &seq, 1));
        speci_draft_commit_fed(m, seq);
    }
}
