/* engine_prompt.c - the ids of a sequence, and its prompt on its way into states and caches: at once, or in parts. */
#include "algorithms/engine/engine.h"

#include <string.h>

/* --- ids --- */

spec_status speci_sequence_room(const spec_session *s, engine_seq *q, size_t n)
{
    const size_t need = s->n_ctx ? (size_t)s->n_ctx : (size_t)q->n_ids + n + (size_t)s->n_node + 1;
    if (need <= (size_t)q->cap_ids) return SPEC_OK;
    if (need > INT32_MAX / 2 && !s->n_ctx) return speci_fail(SPEC_E_FULL, "a sequence of %zu tokens is too long", need);
    const size_t cap = s->n_ctx ? need : need + need / 2 + 1024;
    int32_t *ids = speci_alloc(s->a, cap, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    if (q->n_ids > 0) memcpy(ids, q->ids, (size_t)q->n_ids * sizeof *ids);
    speci_free(s->a, q->ids);
    q->ids = ids;
    q->cap_ids = (int32_t)cap;
    return SPEC_OK;
}

spec_status speci_sequence_take_ids(const spec_session *s, engine_seq *q, const int32_t *ids, size_t n)
{
    SPEC_TRY(speci_sequence_room(s, q, n));
    memcpy(q->ids + q->n_ids, ids, n * sizeof *ids);
    q->n_ids += (int32_t)n;
    return SPEC_OK;
}

/* --- prompts --- */

static int32_t prompt_left(const spec_session *s, int32_t seq)
{
    return s->seqs[seq].n_ids - 1 - s->exec->kind->n_past(s->exec, seq);
}

void speci_sequence_end_drafters(spec_session *s, int32_t seq)
{
    for (int32_t k = 0; k < s->drafters.n; k++)
        if (s->drafters.draft[k].kind->end) s->drafters.draft[k].kind->end(&s->drafters.draft[k], seq);
    speci_watch_forget(s, seq);
}

/* Drafters begin with a sequence, or see its next prompt as committed. One that could not begin does so with the next step. */
static spec_status tell_prompt(spec_session *s, int32_t seq)
{
    engine_seq *q = &s->seqs[seq];
    const speci_draft_seq ask = speci_sequence_asked(s, seq);
    speci_sequence_tell(s, &ask);
    for (; q->n_begun < s->drafters.n; q->n_begun++) {
        speci_draft *d = &s->drafters.draft[q->n_begun];
        const spec_status status = d->kind->prefill ? d->kind->prefill(d, &ask) : SPEC_OK;
        if (status != SPEC_OK && q->live && d->kind->end) d->kind->end(d, seq);
        SPEC_TRY(status);
    }
    return SPEC_OK;
}

/* A sequence whose prompt is on its way. */
typedef struct consumer {
    spec_session *s;
    int32_t seq;
    bool lost; /* drafters did not take the rows of a pass, which do not come again */
} consumer;

static bool poll(void *arg) { return speci_session_stopped(((consumer *)arg)->s); }

static spec_status tell_chunk(void *arg, int32_t first, int32_t n)
{
    consumer *c = arg;
    const speci_draft_seq ask = speci_sequence_asked(c->s, c->seq);
    const spec_status status = speci_hidden_chunk(c->s, &ask, first, n);
    c->lost = status != SPEC_OK;
    return status;
}

spec_status speci_sequence_consume(spec_session *s, int32_t seq, int32_t n_most, int32_t *n_done)
{
    engine_seq *q = &s->seqs[seq];
    if (n_done) *n_done = 0;
    const int32_t left = prompt_left(s, seq);
    consumer c = { s, seq, false };
    const speci_prefill_hooks hooks = { .poll = poll, .chunk = s->tells_hidden ? tell_chunk : NULL, .arg = &c, .n_least = n_most };
    const spec_status status = s->exec->kind->prefill(s->exec, seq, q->ids + q->n_ids - 1 - left, (size_t)left, &hooks);
    if (c.lost) s->exec->kind->break_seq(s->exec, seq);
    SPEC_TRY(status);
    if (n_done) *n_done = left - prompt_left(s, seq);
    if (prompt_left(s, seq) > 0) return SPEC_OK;
    SPEC_TRY(tell_prompt(s, seq));
    q->consuming = false;
    return n_most == 0 && left > 0 ? s->ops->sync(s->queue) : SPEC_OK; /* no pass for one token: it waits for the first step */
}
