/* engine_enter.c - what a call begins with. One call at a time: a session is in no second call while it is in one, be that of another
 * thread or of a callback of the first. What spec_session_cancel has ended is over with the call that it ended. The call's sequences
 * are there. */
#include "algorithms/engine/engine.h"

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
