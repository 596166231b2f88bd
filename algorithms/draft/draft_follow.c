/* draft_follow.c - a drafter's executor in step with the sequence (algorithms.md 10.2): its ids, what of them it was fed, and what of that
 * is committed by now.
 *
 * With another vocabulary the sequence is kept in the drafter's ids, which are only ever appended to: a recurrent state cannot be taken
 * back. A prompt is encoded as one text, each emitted token on its own, so that an accepted token is fed by the id that drafted it. */
#include "algorithms/draft/draft_model.h"

/* --- ids --- */

/* The target's. */
static spec_status take_ids(const model_draft *m, speci_translation *x, const int32_t *ids, int32_t n)
{
    SPEC_TRY(speci_buf_reserve(&x->ids, (size_t)n * sizeof *ids));
    for (int32_t i = 0; i < n; i++) {
        const int32_t id = speci_draft_feed_id(m, ids[i]);
        SPEC_TRY(speci_buf_add(&x->ids, &id, sizeof id));
    }
    x->n_from += n;
    return SPEC_OK;
}

spec_status speci_draft_follow(model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    const int32_t *ids = q->ids + s->own.n_from, n = q->n_ids - s->own.n_from;
    const bool prompt = s->own.n_from == 0 || n > m->n_step_most;
    if (m->is_head) s->ids = q->ids + s->first + 1, s->n_ids = s->n_told;
    if (m->is_head || s->outgrown || n == 0) return SPEC_OK;
    const spec_status status = m->vocab.map ? speci_translate(&s->own, m->vocab.map, ids, n, prompt || m->vocab.by_text)
                                            : take_ids(m, &s->own, ids, n);
    /* After an error, too: they may have moved. */
    s->ids = speci_buf_ids(&s->own.ids), s->n_ids = (int32_t)speci_buf_n_ids(&s->own.ids);
    s->outgrown = m->n_ctx > 0 && s->n_ids > m->n_ctx;
    return status;
}

spec_status speci_draft_begin(model_draft *m, const speci_draft_seq *q)
{
    model_seq *s = &m->seqs[q->seq];
    s->begun = true, s->outgrown = false;
    s->fed.n = s->n_fed = 0;
    s->own.ids.n = 0, s->own.n_from = s->own.n_held = s->n_ids = 0;
    SPEC_TRY(speci_buf_reserve(&s->own.ids, (size_t)speci_draft_room_of(m, q) * sizeof(int32_t)));
    if (m->vocab.map) SPEC_TRY(speci_translation_begin(&s->own, m->vocab.map));
    return speci_draft_follow(m, q);
}

/* --- what was fed --- */

/* Of what was fed the nodes that are now committed, to `path`; returns how many. */
static int32_t n_accepted(const model_draft *m, int32_t seq, int32_t *path)
{
    const model_seq *s = &m->seqs[seq];
    const int32_t base = m->exec->kind->n_past(m->exec, seq);
    int32_t n = 0;
    spec_tree fed = s->fed;
    if (s->n_fed == 0 || s->rides) return 0;
    fed.n = m->is_head ? s->n_given : s->n_fed;
    int32_t node = base < s->n_ids && fed.token[0] == s->ids[base] ? 0 : -1;
    for (; node >= 0 && base + n < s->n_ids - 1; node = speci_tree_child_with(&fed, node, s->ids[base + n])) path[n++] = node;
    return n;
}

/* With nothing fed a path that is pending stays so. */
void speci_draft_commit_fed(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    if (s->n_fed > 0 && !s->rides) m->exec->kind->commit(m->exec, seq, m->path, n_accepted(m, seq, m->path));
    s->fed.n = s->n_fed = 0, s->rides = false;
}

/* --- what is to be fed --- */

/* Where an engine of the application's fails in it, its sequence is ended: another one begins with all ids. */
spec_status speci_draft_consume(model_draft *m, int32_t seq)
{
    const speci_draft_site *site = m->d->site;
    const model_seq *s = &m->seqs[seq];
    const speci_prefill_hooks hooks = { .poll = site->stopped, .arg = site->stopped_arg };
    const int32_t first = m->exec->kind->n_past(m->exec, seq), n = speci_max32(s->n_ids - 1 - first, 0);
    const spec_status status = m->exec->kind->prefill(m->exec, seq, s->ids + first, (size_t)n, &hooks);
    if (status == SPEC_OK || status == SPEC_E_ABORTED || status == SPEC_E_DEVICE) return status;
    m->exec->kind->end(m->exec, seq);
    m->exec->kind->begin(m->exec, seq);
    return status;
}

/* Of `left` committed tokens the pass in front of a draft by this builder takes so many; 0: they fit into one pass with it. */
static int32_t n_behind(const model_draft *m, const spec_builder *b, int32_t left)
{
    const spec_builder_info *tree = &b->info;
    const bool fit = left <= m->n_chain && left + tree->n_row - 1 <= m->n_node && left + tree->depth - 2 <= SPEC_MAX_DEPTH;
    return fit ? 0 : speci_min32(left - 1, speci_min32(m->n_node, SPEC_MAX_DEPTH));
}

/* Chains of what the executor has not seen of these sequences, or as much of it as the next pass takes. Those that are still behind then
 * come first, in m->behind; how many. */
static int32_t lay_chains(model_draft *m, const int32_t *seqs, int32_t n)
{
    int32_t n_left = 0;
    for (int32_t i = 0; i < n; i++) {
        const int32_t seq = seqs[i];
        model_seq *s = &m->seqs[seq];
        const int32_t base = m->exec->kind->n_past(m->exec, seq), left = s->n_ids - base, behind = n_behind(m, m->b, left);
        s->n_given = behind > 0 ? behind : left;
        for (int32_t k = 0; k < s->n_given; k++) spec_tree_add(&s->fed, k - 1, s->ids[base + k], 0);
        if (behind > 0) m->behind[n_left++] = seq;
    }
    return n_left;
}

/* More than fit (steps without a draft leave many, a caller's own trees too) are fed first, those of all sequences together; a whole
 * prompt that was appended as one. */
spec_status speci_draft_catch_up(model_draft *m)
{
    for (int32_t i = 0; i < m->n_active; i++) {
        const int32_t seq = m->active[i];
        if (m->seqs[seq].n_ids - m->exec->kind->n_past(m->exec, seq) > m->n_step_most) SPEC_TRY(speci_draft_consume(m, seq));
    }
    for (int32_t n = lay_chains(m, m->active, m->n_active); n > 0; n = lay_chains(m, m->behind, n)) {
        SPEC_TRY(speci_draft_feed(m, m->behind, n));
        for (int32_t i = 0; i < n; i++) speci_draft_commit_fed(m, m->behind[i]);
    }
    return SPEC_OK;
}

/* Of `left` ids those that were fed and are committed by now. What a head was given is; its ids are there only while it is told rows. */
static int32_t n_covered(const model_draft *m, int32_t seq, int32_t left)
{
    const model_seq *s = &m->seqs[seq];
    if (!m->is_head) return n_accepted(m, seq, m->path);
    return s->n_fed > 0 && !s->rides ? speci_min32(s->n_given, left - 1) : 0;
}

/* As speci_draft_catch_up() would. */
speci_draft_lag speci_draft_lag_of(const speci_draft *d, const spec_builder *b, const int32_t *seqs, int32_t n)
{
    const model_draft *m = d->state;
    speci_draft_lag lag = { 0 };
    int32_t n_shared = 0;
    for (int32_t i = 0; i < n; i++) {
        const model_seq *s = &m->seqs[seqs[i]];
        if (s->outgrown || !s->begun) continue;
        int32_t n_pass = 0, left = s->n_ids - m->exec->kind->n_past(m->exec, seqs[i]);
        left -= n_covered(m, seqs[i], left);
        if (left > m->n_step_most) lag.n_pass++, lag.n_row += left - 1, left = 1;
        for (int32_t k; (k = n_behind(m, b, left)) > 0; left -= k) n_pass++, lag.n_row += k;
        n_shared = speci_max32(n_shared, n_pass);
    }
    lag.n_pass += n_shared;
    return lag;
}
