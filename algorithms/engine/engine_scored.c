/* engine_scored.c - what can be asked of a scored tree and of a proposal: copies from the device. */
#include "algorithms/engine/engine.h"

#include <string.h>

/* The model's own logits after the part's root. */
static const float *raw_logits(const spec_session *s, const engine_part *p)
{
    const size_t ld = (size_t)s->exec->n_logit;
    return p->raw_row >= 0 ? s->adjuster.raw + (size_t)p->raw_row * ld : s->exec->logits + (size_t)p->first_row * ld;
}

static spec_status find_part(const spec_session *s, int32_t seq, int32_t node, const engine_part **out)
{
    engine_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (q->part < 0) return speci_fail(SPEC_E_STATE, "nothing was scored for sequence %d", seq);
    const engine_part *p = *out = &s->round.part[q->part];
    if (node < 0 || node >= p->tree.n) return speci_fail(SPEC_E_INVALID, "node %d of a tree of %d", node, p->tree.n);
    return SPEC_OK;
}

static spec_status find_row(const spec_session *s, int32_t seq, int32_t node, int32_t *row)
{
    const engine_part *p;
    SPEC_TRY(find_part(s, seq, node, &p));
    *row = p->first_row + node;
    return SPEC_OK;
}

spec_status spec_node_logits(spec_session *s, float *logits, int32_t seq, int32_t node)
{
    ENGINE_ENTER(s);
    SPEC_NEED(logits, "logits");
    const size_t ld = (size_t)s->exec->n_logit;
    const engine_part *p;
    SPEC_TRY(find_part(s, seq, node, &p));
    const float *from = raw_logits(s, p);
    SPEC_TRY(s->ops->download(s->queue, logits, from + (size_t)node * ld, ld * sizeof *logits));
    return s->ops->sync(s->queue);
}

spec_status spec_node_hidden(spec_session *s, float *hidden, int32_t seq, int32_t tap, int32_t node)
{
    ENGINE_ENTER(s);
    SPEC_NEED(hidden, "hidden");
    int32_t row;
    SPEC_TRY(find_row(s, seq, node, &row));
    if (tap < 0 || tap >= s->n_tap) return speci_fail(SPEC_E_INVALID, "tap %d of %d that the session keeps", tap, s->n_tap);
    const spec_view v = s->exec->kind->tap(s->exec, SPEC_PHASE_DECODE, tap);
    const speci_draft_hidden h = { .taps = &v, .row = &row, .n = 1 };
    SPEC_TRY(speci_hidden_download(&s->site, hidden, &h, 0, 0, 1));
    SPEC_TRY(s->ops->sync(s->queue));
    speci_hidden_widen(hidden, (size_t)s->target->dim, v.dtype);
    return SPEC_OK;
}

/* All on the arg-max. */
static spec_status greedy_probs(spec_session *s, int32_t row, int32_t node, float *probs)
{
    int32_t token;
    spec_argmax_args a = speci_exec_argmax(s->exec, row, 1);
    a.host_out_token = &token;
    SPEC_TRY(s->ops->argmax(s->queue, &a));
    SPEC_TRY(s->ops->sync(s->queue));
    if (token < 0) return speci_fail(SPEC_E_DEVICE, "the logits of node %d are not numbers", node);
    memset(probs, 0, (size_t)a.n_vocab * sizeof *probs);
    probs[token] = 1;
    return SPEC_OK;
}

spec_status spec_node_probs(spec_session *s, float *probs, int32_t seq, int32_t node)
{
    ENGINE_ENTER(s);
    SPEC_NEED(probs, "probs");
    int32_t row;
    SPEC_TRY(find_row(s, seq, node, &row));
    const int32_t ld = s->exec->n_logit;
    const spec_sampling *how = &s->seqs[seq].request.p.sampling;
    const int32_t first = 0;
    if (how->temperature == 0) return greedy_probs(s, row, node, probs);
    SPEC_TRY(s->ops->probs(s->queue, &(spec_probs_args){ .logits = s->exec->logits, .ld = ld, .n_valid = ld, .probs = s->p,
                                                         .ld_probs = ld, .n_probs = ld, .n_row = 1, .host_src = &row,
                                                         .host_dst = &first, .host_sampling = how }));
    SPEC_TRY(s->ops->download(s->queue, probs, s->p, (size_t)ld * sizeof *probs));
    return s->ops->sync(s->queue);
}

spec_status spec_draft_probs(spec_session *s, float *probs, int32_t seq, int32_t q_row)
{
    ENGINE_ENTER(s);
    SPEC_NEED(probs, "probs");
    engine_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (!s->site.q || q->proposal.round == 0 || q_row < 0 || q_row >= s->site.n_q)
        return speci_fail(SPEC_E_STATE, "sequence %d has no draft distribution %d now", seq, q_row);
    const size_t row = (size_t)s->target->n_vocab, at = (size_t)seq * (size_t)s->site.n_q + (size_t)q_row;
    SPEC_TRY(s->ops->download(s->queue, probs, s->site.q + at * row, row * sizeof *probs));
    return s->ops->sync(s->queue);
}

spec_status speci_logprobs(spec_session *s, const engine_part *p, const int32_t *tokens, int32_t n, spec_logprob *out, int32_t n_top)
{
    enum { TOP = sizeof out->top_id / sizeof *out->top_id };
    const int32_t ld = s->exec->n_logit;
    int32_t id[(SPEC_MAX_DEPTH + 1) * TOP];
    float logprob[SPEC_MAX_DEPTH + 1], top[(SPEC_MAX_DEPTH + 1) * TOP];
    const float *logits = raw_logits(s, p);
    SPEC_TRY(s->ops->logprob(s->queue, &(spec_logprob_args){ .logits = logits, .ld = ld, .n_vocab = ld, .n_row = n,
                                                             .n_top = n_top, .host_row = p->path, .host_token = tokens,
                                                             .host_out_logprob = logprob, .host_out_top = id,
                                                             .host_out_top_logprob = top }));
    SPEC_TRY(s->ops->sync(s->queue));
    for (int32_t i = 0; i < n; i++) {
        out[i] = (spec_logprob){ .logprob = logprob[i], .n_top = n_top };
        memcpy(out[i].top_id, id + i * n_top, (size_t)n_top * sizeof *id);
        memcpy(out[i].top_logprob, top + i * n_top, (size_t)n_top * sizeof *top);
    }
    return SPEC_OK;
}

spec_status spec_node_logprobs(spec_session *s, float *logprob, int32_t *top_id, float *top_logprob, int32_t seq,
                               int32_t node, int32_t token, int32_t n)
{
    ENGINE_ENTER(s);
    SPEC_NEED(logprob, "logprob");
    SPEC_NEED((top_id && top_logprob) || n == 0, "top_id and top_logprob");
    const int32_t ld = s->exec->n_logit;
    const engine_part *p;
    SPEC_TRY(find_part(s, seq, node, &p));
    if (token < 0 || token >= s->target->n_vocab || n < 0 || n > 64 || n > s->target->n_vocab)
        return speci_fail(SPEC_E_INVALID, "token %d of %d ids, %d likeliest (at most 64)", token, s->target->n_vocab,
                          n);
    const float *logits = raw_logits(s, p);
    SPEC_TRY(s->ops->logprob(s->queue, &(spec_logprob_args){ .logits = logits, .ld = ld, .n_vocab = ld, .n_row = 1,
                                                             .n_top = n, .host_row = &node, .host_token = &token,
                                                             .host_out_logprob = logprob, .host_out_top = top_id,
                                                             .host_out_top_logprob = top_logprob }));
    return s->ops->sync(s->queue);
}
