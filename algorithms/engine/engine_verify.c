/* engine_verify.c - a session's sequences as the verification room sees them: which rule walks which scored tree, and
 * where its distributions and results are (algorithms.md 3). */
#include "algorithms/engine/engine.h"

/* The rule that a sequence is verified by; NULL: there is no such rule. At T = 0 all rules are one, and after a root
 * alone the target decides under any. */
static const speci_verify_rule *rule_for(const algo_seq *q, spec_verify_rule rule)
{
    const float temperature = q->sampling.temperature;
    const spec_tree_kind kind = q->scored_distributions ? q->scored.kind : SPEC_TREE_DETERMINISTIC;
    const speci_verify_rule *r = speci_verify_resolve(rule, kind, temperature);
    if (!r || (temperature > 0 && (r->greedy || q->scored.n > 1))) return r;
    return speci_verify_resolve(SPEC_VERIFY_AUTO, SPEC_TREE_DETERMINISTIC, temperature);
}

static spec_status check_rule(const algo_seq *q, spec_verify_rule rule)
{
    if (q->scored.n == 0) return speci_fail(SPEC_E_STATE, "nothing was scored for this sequence");
    const speci_verify_rule *r = rule_for(q, rule);
    if (!r) return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)rule);
    SPEC_TRY(spec_verify_is_lossless(&q->scored, r->id, q->sampling.temperature));
    if (r->uses_draft_probs && !q->scored_distributions)
        return speci_fail(SPEC_E_INVALID,
                          "%s needs the distributions that the tree was drawn from, and the session has none "
                          "of it: verify it by %s, or with spec_verify_probs",
                          r->name, spec_verify_rule_name(SPEC_VERIFY_NAIVE));
    return SPEC_OK;
}

static speci_verify_batch batch_of(const spec_session *s)
{
    const algo_rows *r = &s->rows;
    int32_t ld;
    const float *logits = speci_exec_logits(s->net, &ld);
    return (speci_verify_batch){
        .ops = s->ops, .queue = s->queue, .logits = logits, .p = s->p, .q = s->q, .n_vocab = ld,
        .rows = { .src = r->src, .dst = r->dst, .q_row = r->q_row, .choice = r->choice, .token = r->token,
                  .u_last = r->u_last, .sampling = r->sampling, .candidate = r->candidate, .u = r->u,
                  .first = r->first },
    };
}

/* Puts the items of seqs [n] into the batch, in their order. */
static void link_items(spec_session *s, const int32_t *seqs, int32_t n, speci_verify_batch *b)
{
    for (int32_t i = n - 1; i >= 0; i--) {
        speci_verify_item *x = &s->seqs[seqs[i]].verified;
        x->next = b->items;
        b->items = x;
    }
}

static void describe(spec_session *s, int32_t seq, spec_verify_rule rule)
{
    algo_seq *q = &s->seqs[seq];
    q->verified = (speci_verify_item){ .rule = rule_for(q, rule), .tree = &q->scored, .sampling = &q->sampling,
                                       .position = (uint64_t)q->n_ids, .logits_row = q->first_row,
                                       .q_row = seq * s->n_q, .likeliest = s->best + q->first_row,
                                       .eos = s->target->eos, .n_eos = q->ignore_eos ? 0 : s->target->n_eos };
}

spec_status speci_verify_enqueue(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule)
{
    for (int32_t i = 0; i < n; i++) {
        algo_seq *q;
        SPEC_TRY(speci_session_seq(s, seqs[i], &q));
        SPEC_TRY(check_rule(q, rule));
        describe(s, seqs[i], rule);
    }
    speci_verify_batch b = batch_of(s);
    link_items(s, seqs, n, &b);
    return speci_verify_batch_enqueue(&b);
}

spec_status speci_verify_read(spec_session *s, const int32_t *seqs, int32_t n, int32_t *paths, int32_t *n_path,
                              int32_t *token)
{
    speci_verify_batch b = batch_of(s);
    link_items(s, seqs, n, &b);
    for (int32_t i = 0; i < n; i++) {
        speci_verify_item *x = &s->seqs[seqs[i]].verified;
        x->path = paths + (size_t)i * (size_t)s->n_node;
        x->n_path = &n_path[i];
        x->token = &token[i];
    }
    return speci_verify_batch_walk(&b);
}

spec_status speci_verify(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule, int32_t *paths,
                         int32_t *n_path, int32_t *token)
{
    SPEC_TRY(speci_verify_enqueue(s, seqs, n, rule));
    SPEC_TRY(s->ops->sync(s->queue));
    return speci_verify_read(s, seqs, n, paths, n_path, token);
}
