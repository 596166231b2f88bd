/* own_prefill.c - a prompt, in pieces: between two of them it can be stopped. */
#include "models/own/own.h"

static spec_status check_ids(const own_exec *own, const own_seq *s, const int32_t *ids, size_t n)
{
    const int32_t n_vocab = own->base.model->n_vocab;
    if (n > (size_t)(INT32_MAX - s->n_past)) return speci_fail(SPEC_E_FULL, "a prompt of %zu tokens is too long", n);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_vocab)
            return speci_fail(SPEC_E_INVALID, "token %d is not in the vocabulary of %d ids", ids[i], n_vocab);
    return SPEC_OK;
}

/* Where it fails, whatever the status, the sequence is ended. */
static spec_status give(own_exec *own, own_seq *s, const int32_t *ids, int32_t n)
{
    const uint64_t before = speci_n_failure();
    const spec_status status = own->app->prefill(own->app->user_data, s->seq, ids, (size_t)n);
    s->broken = status != SPEC_OK;
    SPEC_TRY(speci_own_told(own, "prefill", before, status));
    s->n_past += n;
    return SPEC_OK;
}

spec_status speci_own_prefill(speci_exec *exec, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks)
{
    own_exec *own = exec->state;
    own_seq *s = &own->seqs[slot];
    const speci_prefill_hooks none = { 0 }, *h = hooks ? hooks : &none;
    SPEC_TRY(speci_own_ready(own, slot));
    SPEC_TRY(check_ids(own, s, ids, n));
    const int32_t end = (int32_t)n, enough = h->n_least > 0 && h->n_least < end ? h->n_least : end;
    for (int32_t i = 0; i < enough;) {
        const int32_t n_fed = own->piece < end - i ? own->piece : end - i;
        if (h->poll && h->poll(h->arg)) return speci_fail(SPEC_E_ABORTED, "stopped after %d of %zu prompt tokens", i, n);
        SPEC_TRY(give(own, s, ids + i, n_fed));
        if (h->chunk) SPEC_TRY(h->chunk(h->arg, s->n_past - n_fed, n_fed));
        i += n_fed;
    }
    return SPEC_OK;
}
