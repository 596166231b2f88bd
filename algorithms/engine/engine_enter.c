/* engine_enter.c - one call at a time: a session is in no second call while it is in one, be that of another thread or of a callback
 * of the first; and what spec_session_cancel has ended is over with the call that it ended. */
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
