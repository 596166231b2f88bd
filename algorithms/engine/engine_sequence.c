/* engine_sequence.c - sequences coming and going. */
#include "algorithms/engine/engine.h"

#include <limits.h>
#include <string.h>

spec_status speci_session_seq(const spec_session *s, int32_t seq, algo_seq **out)
{
    if (seq < 0 || seq >= s->n_seq || !s->seqs[seq].live)
        return speci_fail(SPEC_E_INVALID, "there is no sequence %d", seq);
    *out = &s->seqs[seq];
    return SPEC_OK;
}

spec_status speci_session_free_seq(const spec_session *s, int32_t *out)
{
    for (*out = 0; *out < s->n_seq; (*out)++)
        if (!s->seqs[*out].live) return SPEC_OK;
    return speci_fail(SPEC_E_FULL, "all %d sequences of the session are in use", s->n_seq);
}

void speci_sequence_admit(spec_session *s, int32_t seq)
{
    s->seqs[seq].live = true;
    if (s->drafter && s->drafter->ops.begin) s->drafter->ops.begin(s->drafter->ops.user_data, seq);
}

bool speci_is_eos(const spec_session *s, const algo_seq *q, int32_t token)
{
    for (int32_t i = 0; !q->ignore_eos && i < s->target->n_eos; i++)
        if (s->target->eos[i] == token) return true;
    return false;
}

int32_t speci_draft_room(const spec_session *s, const algo_seq *q)
{
    const int32_t room = q->n_limit == INT32_MAX ? s->n_node - 1 : q->n_limit - q->n_ids - 1;
    return room < 0 ? 0 : room < s->n_node - 1 ? room : s->n_node - 1;
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

static spec_status begin(spec_session *s, int32_t seq, const int32_t *ids, size_t n)
{
    algo_seq *q = &s->seqs[seq];
    const size_t cap = s->n_ctx ? (size_t)s->n_ctx : n + 1024;
    q->ids = speci_alloc(s->a, cap, sizeof *q->ids);
    if (!q->ids) return SPEC_E_NOMEM;
    q->cap_ids = (int32_t)cap;
    memcpy(q->ids, ids, n * sizeof *ids);
    q->n_ids = (int32_t)n;
    q->no_draft = speci_draft_outgrown(s, q->n_ids);
    speci_exec_begin(s->net, seq);
    const speci_prefill_hooks hooks = { .poll = speci_session_stopped, .arg = s };
    SPEC_TRY(speci_exec_prefill(s->net, seq, ids, n - 1, &hooks));
    if (!q->no_draft) SPEC_TRY(speci_draft_prefill(s, seq));
    return n > 1 ? s->ops->sync(s->queue) : SPEC_OK; /* no pass for one token: it waits for the first step */
}

void speci_sequence_end(spec_session *s, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    speci_exec_end(s->net, seq);
    if (s->draft_exec) speci_exec_end(s->draft_exec, seq);
    speci_free(s->a, q->ids);
    const algo_seq kept = { .draft = q->draft, .scored = q->scored, .fed = q->fed };
    *q = kept;
    q->draft.n = q->scored.n = q->fed.n = 0;
}

spec_status spec_sequence_add(spec_session *s, int32_t *seq, const int32_t *ids, size_t n,
                              const spec_sampling *sampling)
{
    const spec_sampling greedy = { 0 };
    SPEC_TRY(check_prompt(s, ids, n));
    SPEC_TRY(speci_sampling_check(sampling ? sampling : &greedy));
    int32_t i;
    SPEC_TRY(speci_session_free_seq(s, &i));
    algo_seq *q = &s->seqs[i];
    q->sampling = sampling ? *sampling : greedy;
    q->n_limit = s->n_ctx ? s->n_ctx : INT32_MAX;
    const spec_status status = begin(s, i, ids, n);
    if (status != SPEC_OK) {
        speci_sequence_end(s, i);
        return status;
    }
    speci_sequence_admit(s, i);
    *seq = i;
    return SPEC_OK;
}

spec_status spec_sequence_remove(spec_session *s, int32_t seq)
{
    algo_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (s->drafter && s->drafter->ops.end) s->drafter->ops.end(s->drafter->ops.user_data, seq);
    speci_sequence_end(s, seq);
    return SPEC_OK;
}

spec_status spec_sequence_ids(const spec_session *s, int32_t seq, const int32_t **ids, size_t *n)
{
    algo_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    *ids = q->ids;
    *n = (size_t)q->n_ids;
    return SPEC_OK;
}
