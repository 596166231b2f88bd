/* engine_sequence.c - sequences coming and going. */
#include "algorithms/engine/engine.h"

#include <limits.h>
#include <string.h>

spec_status speci_session_free_seq(const spec_session *s, int32_t *out)
{
    for (*out = 0; *out < s->n_seq; (*out)++)
        if (!s->seqs[*out].live) return SPEC_OK;
    return speci_fail(SPEC_E_FULL, "all %d sequences of the session are in use", s->n_seq);
}

static spec_status check_prompt(const spec_session *s, const int32_t *ids, size_t n)
{
    if (n < 1) return speci_fail(SPEC_E_INVALID, "a sequence needs at least one token to start from");
    if (n >= (size_t)(s->n_ctx ? s->n_ctx : INT32_MAX))
        return speci_fail(SPEC_E_FULL, "a prompt of %zu tokens does not fit a context of %d with room for one more", n,
                          s->n_ctx);
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= s->target->n_vocab)
            return speci_fail(SPEC_E_INVALID, "prompt token %zu is %d, not in the vocabulary of %d ids", i, ids[i],
                              s->target->n_vocab);
    return SPEC_OK;
}

spec_status speci_sampling_check(const spec_sampling *p)
{
    if (p->temperature >= 0 && p->top_k >= 0 && p->top_p >= 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1)
        return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "temperature %g, top-k %d, top-p %g, min-p %g: not negative, top-p and min-p "
                      "at most 1", (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p);
}

spec_status speci_sequence_take_ids(spec_session *s, engine_seq *q, const int32_t *ids, size_t n)
{
    const size_t cap = s->n_ctx ? (size_t)s->n_ctx : n + 1024;
    if (!(q->ids = speci_alloc(s->a, cap, sizeof *q->ids))) return SPEC_E_NOMEM;
    q->cap_ids = (int32_t)cap;
    memcpy(q->ids, ids, n * sizeof *ids);
    q->n_ids = (int32_t)n;
    return SPEC_OK;
}

static spec_status prefill(spec_session *s, int32_t seq, const int32_t *ids, size_t n)
{
    const speci_prefill_hooks hooks = { .poll = speci_session_stopped, .arg = s };
    SPEC_TRY(speci_sequence_take_ids(s, &s->seqs[seq], ids, n));
    speci_exec_begin(s->exec, seq);
    SPEC_TRY(speci_exec_prefill(s->exec, seq, ids, n - 1, &hooks));
    for (int32_t k = 0; k < s->drafters.n; k++) {
        speci_draft *d = &s->drafters.draft[k];
        const speci_draft_seq q = speci_sequence_asked(s, seq);
        if (d->kind->prefill) SPEC_TRY(d->kind->prefill(d, &q));
    }
    return n > 1 ? s->ops->sync(s->queue) : SPEC_OK; /* no pass for one token: it waits for the first step */
}

void speci_sequence_end(spec_session *s, int32_t seq)
{
    engine_seq *q = &s->seqs[seq];
    for (int32_t k = 0; k < s->drafters.n; k++)
        if (s->drafters.draft[k].kind->end) s->drafters.draft[k].kind->end(&s->drafters.draft[k], seq);
    for (int32_t i = 0; i < 2 && s->plain; i++) s->plain[2 * seq + i].n_part = 0; /* what runs ahead has no one to go to */
    speci_exec_end(s->exec, seq);
    speci_free(s->a, q->ids);
    const engine_seq kept = { .proposal.tree = q->proposal.tree, .part = -1 };
    *q = kept;
    q->proposal.tree.n = 0;
}

spec_status spec_sequence_add(spec_session *s, int32_t *seq, const int32_t *ids, size_t n,
                              const spec_sampling *sampling)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(seq, "seq");
    SPEC_NEED(ids || n == 0, "ids");
    const spec_sampling greedy = { 0 };
    SPEC_TRY(check_prompt(s, ids, n));
    SPEC_TRY(speci_sampling_check(sampling ? sampling : &greedy));
    int32_t i;
    SPEC_TRY(speci_session_free_seq(s, &i));
    engine_seq *q = &s->seqs[i];
    q->sampling = sampling ? *sampling : greedy;
    q->n_limit = s->n_ctx ? s->n_ctx : INT32_MAX;
    q->n_end = INT32_MAX;
    const spec_status status = prefill(s, i, ids, n);
    if (status != SPEC_OK) {
        speci_sequence_end(s, i);
        return status;
    }
    q->live = true;
    *seq = i;
    return SPEC_OK;
}

spec_status spec_sequence_remove(spec_session *s, int32_t seq)
{
    SPEC_NEED(s, "session");
    engine_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    speci_sequence_end(s, seq);
    return SPEC_OK;
}

spec_status spec_sequence_set_options(spec_session *s, int32_t seq, const spec_sequence_options *options)
{
    SPEC_NEED(s, "session");
    enum { TOP = sizeof s->step_logprobs->top_id / sizeof(int32_t) };
    spec_sequence_options o = { .struct_size = sizeof o };
    engine_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    SPEC_TRY(speci_params_read(&o, sizeof o, options, "spec_sequence_options"));
    if (o.n_predict < 0) return speci_fail(SPEC_E_INVALID, "n_predict is %d", o.n_predict);
    if (o.n_top < 0 || o.n_top > TOP || o.n_top > s->target->n_vocab)
        return speci_fail(SPEC_E_INVALID, "%d likeliest tokens; at most %d, and the %d ids there are", o.n_top, (int)TOP,
                          s->target->n_vocab);
    q->options = o;
    q->n_limit = s->n_ctx ? s->n_ctx : INT32_MAX;
    q->n_end = o.n_predict > 0 && o.n_predict < INT32_MAX - q->n_ids ? q->n_ids + o.n_predict : INT32_MAX;
    if (q->n_end < q->n_limit) q->n_limit = q->n_end;
    return SPEC_OK;
}

spec_status spec_sequence_ids(const spec_session *s, const int32_t **ids, size_t *n, int32_t seq)
{
    SPEC_NEED(s, "session");
    SPEC_NEED(ids, "ids");
    SPEC_NEED(n, "n");
    engine_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    *ids = q->ids;
    *n = (size_t)q->n_ids;
    return SPEC_OK;
}
