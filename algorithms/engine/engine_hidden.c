/* engine_hidden.c - hidden rows of the target for the drafters that ask for them: which taps it keeps, and the rows of committed
 * tokens handed over, each once and in the order of positions.
 *
 * A prompt's rows are handed over chunk by chunk, those of a path when it is committed: before the next pass of their phase,
 * which writes where they stand. So no plain step runs ahead of its commit where a drafter has taps. */
#include "algorithms/engine/engine.h"

#include <string.h>

/* --- taps --- */

static int32_t find(const spec_session *s, const spec_tap *tap)
{
    int32_t i = 0;
    while (i < s->n_kept && (s->taps[i].where != tap->where || s->taps[i].layer != tap->layer)) i++;
    return i;
}

static spec_status add_drafter(spec_session *s, speci_draft *d)
{
    if (d->n_tap == 0) return SPEC_OK;
    if (!(d->hidden[0] = speci_alloc(s->a, 2 * (size_t)d->n_tap, sizeof *d->hidden[0]))) return SPEC_E_NOMEM;
    d->hidden[1] = d->hidden[0] + d->n_tap;
    for (int32_t i = 0; i < d->n_tap; i++)
        if (find(s, &d->taps[i]) == s->n_kept) s->taps[s->n_kept++] = d->taps[i];
    return SPEC_OK;
}

spec_status speci_hidden_plan(spec_session *s, const spec_tap *own, int32_t n_own)
{
    size_t n = 0;
    s->n_tap = s->n_kept = n_own;
    if (n_own < 0 || (n_own > 0 && !own)) return speci_fail(SPEC_E_INVALID, "a list of %d taps%s", n_own, own ? "" : ", which is NULL");
    for (int32_t k = 0; k < s->drafters.n; k++) n += (size_t)s->drafters.draft[k].n_tap;
    s->tells_hidden = n > 0;
    if (!(s->taps = speci_alloc(s->a, (size_t)n_own + n, sizeof *s->taps))) return SPEC_E_NOMEM;
    if (n_own > 0) memcpy(s->taps, own, (size_t)n_own * sizeof *own);
    for (int32_t k = 0; k < s->drafters.n; k++) SPEC_TRY(add_drafter(s, &s->drafters.draft[k]));
    return SPEC_OK;
}

void speci_hidden_attach(spec_session *s)
{
    for (int32_t k = 0; k < s->drafters.n; k++) {
        speci_draft *d = &s->drafters.draft[k];
        for (int32_t phase = 0; phase < 2; phase++)
            for (int32_t i = 0; i < d->n_tap; i++) d->hidden[phase][i] = s->exec->kind->tap(s->exec, phase, find(s, &d->taps[i]));
    }
}

/* --- rows --- */

static spec_status tell(spec_session *s, const speci_draft_seq *q, int32_t phase, const int32_t *row, int32_t first, int32_t n)
{
    for (int32_t k = 0; k < s->drafters.n; k++) {
        speci_draft *d = &s->drafters.draft[k];
        const speci_draft_hidden h = { .taps = d->hidden[phase], .row = row, .first = first, .n = n };
        if (d->n_tap > 0) SPEC_TRY(d->kind->hidden(d, q, &h));
    }
    return SPEC_OK;
}

spec_status speci_hidden_chunk(spec_session *s, const speci_draft_seq *q, int32_t first, int32_t n)
{
    return tell(s, q, SPEC_PHASE_PREFILL, NULL, first, n);
}

/* The path's ids are there already, and the pending one behind them. */
spec_status speci_hidden_path(spec_session *s, const speci_draft_seq *q, const engine_part *p)
{
    int32_t row[SPEC_MAX_DEPTH + 1];
    for (int32_t i = 0; i < p->n_path; i++) row[i] = p->first_row + p->path[i];
    return tell(s, q, SPEC_PHASE_DECODE, row, q->n_ids - 1 - p->n_path, p->n_path);
}
