/* engine_access.c - a session from outside: how a call enters it and finds its sequences, and what its drafters are told of one.
 *
 * One call at a time: a session is in no second call while it is in one, be that of another thread or of a callback of the first. What
 * spec_session_cancel has ended is over with the call that it ended. */
#include "algorithms/engine/engine.h"

/* --- calls --- */

spec_session *speci_session_enter(const spec_session *session)
{
    spec_session *s = (spec_session *)(uintptr_t)session;
    if (!atomic_flag_test_and_set(&s->in_call)) return s;
    (void)speci_fail(SPEC_E_STATE, "the session is in a call already: of another thread, or the one that has called back");
    return NULL;
}

void speci_session_leave(spec_session *const *entered)
{
    spec_session *s = *entered;
    if (!s) return;
    if (s->was_cancelled) atomic_store(&s->cancelled, 0);
    s->was_cancelled = false;
    atomic_flag_clear(&s->in_call);
    if (s->closes) s->closes(s);
}

bool speci_session_stopped(void *session)
{
    spec_session *s = session;
    if (atomic_load(&s->cancelled)) return s->was_cancelled = true;
    return s->abort && s->abort(s->abort_user_data);
}

void spec_session_cancel(spec_session *s)
{
    if (s) atomic_store(&s->cancelled, 1);
}

spec_status speci_session_seq(const spec_session *s, int32_t seq, engine_seq **out)
{
    if (seq < 0 || seq >= s->n_seq || !s->seqs[seq].live)
        return speci_fail(SPEC_E_INVALID, "there is no sequence %d", seq);
    *out = &s->seqs[seq];
    return SPEC_OK;
}

spec_status speci_session_check(const spec_session *s, const int32_t *seqs, int32_t n)
{
    engine_seq *q = NULL;
    if (n < 1 || n > s->n_seq) return speci_fail(SPEC_E_INVALID, "%d sequences; the session has %d", n, s->n_seq);
    for (int32_t i = 0; i < n; i++) {
        SPEC_TRY(speci_session_seq(s, seqs[i], &q));
        for (int32_t j = 0; j < i; j++)
            if (seqs[j] == seqs[i]) return speci_fail(SPEC_E_INVALID, "sequence %d is given twice", seqs[i]);
    }
    return SPEC_OK;
}

/* --- drafters --- */

/* Drafts have use as deep as the limit goes: behind a path one token more is emitted. */
speci_draft_seq speci_sequence_asked(spec_session *s, int32_t seq)
{
    engine_seq *q = &s->seqs[seq];
    const int32_t room = speci_max32(0, speci_min32(q->n_limit - q->n_ids - 1, s->n_node - 1));
    return (speci_draft_seq){ .seq = seq, .ids = q->ids, .n_ids = q->n_ids, .n_prompt = q->n_prompt,
                              .sampling = &q->request.p.sampling, .step = q->n_step, .depth_max = room,
                              .tree = &q->proposal.tree, .by = -1, .maker = q->proposal.maker };
}

void speci_sequence_tell(spec_session *s, const speci_draft_seq *ask)
{
    engine_seq *q = &s->seqs[ask->seq];
    if (q->n_told < q->n_ids) speci_drafters_committed(&s->drafters, q->n_begun, ask, q->n_ids - q->n_told);
    q->n_told = q->n_ids;
}
