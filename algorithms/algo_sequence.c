/* algo_sequence.c - sequences coming and going. */
#include "algorithms/algo.h"

#include <limits.h>
#include <string.h>

spec_status speci_session_seq(const spec_session *s, int32_t seq, algo_seq **out)
{
    if (seq < 0 || seq >= s->n_seq || !s->seqs[seq].live)
        return speci_fail(SPEC_E_INVALID, "there is no sequence %d", seq);
    *out = &s->seqs[seq];
    return SPEC_OK;
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

static spec_status check_sampling(const spec_sampling *p)
{
    if (p->temperature >= 0 && p->top_k >= 0 && p->top_p >= 0 && p->top_p <= 1 && p->min_p >= 0 && p->min_p <= 1)
        return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "temperature %g, top-k %d, top-p %g, min-p %g: not negative, top-p and min-p "
                      "at most 1", (double)p->temperature, p->top_k, (double)p->top_p, (double)p->min_p);
}

/* ids with the drafter's stand-ins for tokens that it does not know */
static spec_status prefill_drafter(spec_session *s, int32_t seq, const algo_seq *q)
{
    const int32_t n_known = s->drafter->model->n_vocab;
    int32_t *ids = speci_alloc(s->a, (size_t)q->n_ids, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < q->n_ids; i++) ids[i] = q->ids[i] < n_known ? q->ids[i] : 0;
    const spec_status status =
        speci_net_prefill(s->draft_net, seq, ids, (size_t)q->n_ids - 1, speci_session_stopped, s);
    speci_free(s->a, ids);
    return status;
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
    q->no_draft = !s->draft_net || (s->draft_ctx > 0 && q->n_ids >= s->draft_ctx);
    SPEC_TRY(speci_net_begin(s->net, seq));
    SPEC_TRY(speci_net_prefill(s->net, seq, ids, n - 1, speci_session_stopped, s));
    if (!q->no_draft) {
        SPEC_TRY(speci_net_begin(s->draft_net, seq));
        SPEC_TRY(prefill_drafter(s, seq, q));
    }
    return s->ops->sync(s->queue);
}

static void end(spec_session *s, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    speci_net_end(s->net, seq);
    if (s->draft_net) speci_net_end(s->draft_net, seq);
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
    SPEC_TRY(check_sampling(sampling ? sampling : &greedy));
    int32_t i = 0;
    while (i < s->n_seq && s->seqs[i].live) i++;
    if (i == s->n_seq) return speci_fail(SPEC_E_FULL, "all %d sequences of the session are in use", s->n_seq);
    algo_seq *q = &s->seqs[i];
    q->sampling = sampling ? *sampling : greedy;
    q->n_limit = s->n_ctx ? s->n_ctx : INT32_MAX;
    const spec_status status = begin(s, i, ids, n);
    if (status != SPEC_OK) {
        end(s, i);
        return status;
    }
    q->live = true;
    if (s->drafter && s->drafter->ops.begin) s->drafter->ops.begin(s->drafter->ops.user_data, i);
    *seq = i;
    return SPEC_OK;
}

spec_status spec_sequence_remove(spec_session *s, int32_t seq)
{
    algo_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (s->drafter && s->drafter->ops.end) s->drafter->ops.end(s->drafter->ops.user_data, seq);
    end(s, seq);
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
