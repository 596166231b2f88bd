/* net_prefill.c - prefill passes: a prompt, in chunks. */
#include "models/net/net.h"

/* Rows of the first pass over n tokens: the smallest that takes all of them, or half of it where more rows than two of
 * the smallest passes have would stay empty; else the largest. Of n alone: a prompt is cut alike wherever it is fed. */
static int32_t pass_rows(const net_shape *s, int32_t n)
{
    int32_t rows = s->chunk_least;
    while (rows < s->chunk && rows < n) rows *= 2;
    return rows - n > 2 * s->chunk_least ? rows / 2 : rows;
}

static spec_status prefill_pass(net_exec *net, int32_t slot, const int32_t *ids, int32_t n, int32_t rows)
{
    net_seq *s = &net->seqs[slot];
    speci_net_describe_prefill(net, slot, ids, n, rows);
    const spec_status status = speci_net_run(net, SPEC_PHASE_PREFILL, NULL);
    s->broken = status != SPEC_OK;
    SPEC_TRY(status);
    s->parity ^= 1;
    s->n_past += n;
    return SPEC_OK;
}

spec_status speci_net_prefill(speci_exec *exec, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks)
{
    net_exec *net = exec->state;
    const speci_prefill_hooks none = { 0 }, *h = hooks ? hooks : &none;
    net_seq *s = &net->seqs[slot];
    if (n == 0) return SPEC_OK;
    if (n > (size_t)(INT32_MAX - s->n_past - s->n_path)) return speci_fail(SPEC_E_FULL, "a prompt of %zu tokens is too long", n);
    SPEC_TRY(speci_net_check_tokens(net, ids, n));
    SPEC_TRY(speci_net_reserve(net, s, s->n_past + s->n_path + (int32_t)n));
    SPEC_TRY(speci_net_settle(net, slot)); /* a pass of this kind reads states alone */
    const int32_t end = (int32_t)n, enough = h->n_least > 0 && h->n_least < end ? h->n_least : end;
    for (int32_t i = 0; i < enough;) {
        const int32_t rows = pass_rows(&net->shape, end - i), n_fed = rows < end - i ? rows : end - i;
        if (h->poll && h->poll(h->arg)) return speci_fail(SPEC_E_ABORTED, "stopped after %d of %zu prompt tokens", i, n);
        if (h->give) SPEC_TRY(h->give(h->arg, s->n_past, n_fed));
        SPEC_TRY(prefill_pass(net, slot, ids + i, n_fed, rows));
        if (h->chunk) SPEC_TRY(h->chunk(h->arg, s->n_past - n_fed, n_fed));
        i += n_fed;
    }
    return SPEC_OK;
}
