/* algo_verify.c - walking a scored tree by a rule that keeps the target's law (algorithms.md 3).
 *
 * The device judges every node at once (arg-max, or accept); the walk from the root is then a look-up. A position's
 * draws are keyed by (seed, position, purpose), so that it is decided once, whatever the tree. */
#include "algorithms/algo.h"

static spec_verify_rule rule_for(const algo_seq *q, spec_verify_rule rule)
{
    if (q->sampling.temperature == 0) return SPEC_VERIFY_GREEDY;
    if (rule == SPEC_VERIFY_AUTO) return q->scored_drawn ? SPEC_VERIFY_MSS : SPEC_VERIFY_NAIVE;
    return rule;
}

static spec_status check_rule(const algo_seq *q, spec_verify_rule rule)
{
    if (q->scored.n == 0) return speci_fail(SPEC_E_STATE, "nothing was scored for this sequence");
    if (rule < SPEC_VERIFY_AUTO || rule > SPEC_VERIFY_MSS)
        return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)rule);
    if (rule == SPEC_VERIFY_GREEDY && q->sampling.temperature != 0)
        return speci_fail(SPEC_E_INVALID, "greedy verification at temperature %g would change the law",
                          (double)q->sampling.temperature);
    return SPEC_OK;
}

/* Adds the nodes of q to the accept call under construction. */
static void add_nodes(spec_session *s, const algo_seq *q, int32_t seq, spec_verify_rule rule, spec_accept_args *a)
{
    algo_rows *r = &s->rows;
    const spec_tree *t = &q->scored;
    for (int32_t node = 0; node < t->n; node++) {
        const int32_t k = a->n_row++;
        /* the position of the token that follows this node; the root stands at n_ids - 1 */
        const uint64_t position = (uint64_t)(q->n_ids + speci_tree_depth(t, node));
        r->src[k] = q->first_row + node;
        r->q_row[k] = q->scored_drawn ? seq * s->n_draft + node : -1;
        r->sampling[k] = q->sampling;
        r->first[k] = a->n_candidate;
        for (int32_t c = node + 1; rule == SPEC_VERIFY_MSS && c < t->n; c++) {
            if (t->parent[c] != node) continue;
            const int32_t rank = a->n_candidate - r->first[k];
            r->candidate[a->n_candidate] = t->token[c];
            r->u[a->n_candidate++] = spec_uniform(q->sampling.seed, position, ALGO_DRAW_ACCEPT, (uint32_t)rank);
        }
        const bool judged = a->n_candidate > r->first[k];
        if (!judged) r->q_row[k] = -1;
        r->u_last[k] = spec_uniform(q->sampling.seed, position, judged ? ALGO_DRAW_RESIDUAL : ALGO_DRAW_TARGET, 0);
    }
    r->first[a->n_row] = a->n_candidate;
}

/* Laws of the nodes into p, draft laws copied (accept consumes them), one accept over all nodes. */
static spec_status judge_sampled(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule)
{
    algo_rows *r = &s->rows;
    int32_t ld;
    const float *logits = speci_net_logits(s->net, &ld);
    spec_accept_args a = { .p = s->p, .q = s->q_work, .ld_p = ld, .ld_q = ld, .n_vocab = ld, .host_p_row = r->src,
                           .host_q_row = r->q_row, .host_first_candidate = r->first, .host_candidate = r->candidate,
                           .host_u = r->u, .host_u_last = r->u_last, .host_out_choice = r->choice,
                           .host_out_token = r->token };
    bool drawn = false;
    for (int32_t i = 0; i < n; i++) {
        const algo_seq *q = &s->seqs[seqs[i]];
        const spec_verify_rule how = rule_for(q, rule);
        if (how == SPEC_VERIFY_GREEDY) continue;
        add_nodes(s, q, seqs[i], how, &a);
        drawn = drawn || (how == SPEC_VERIFY_MSS && q->scored_drawn);
    }
    if (a.n_row == 0) return SPEC_OK;
    SPEC_TRY(s->ops->law(s->queue, &(spec_law_args){ .logits = logits, .ld = ld, .n_valid = ld, .law = s->p,
                                                     .ld_law = ld, .n_law = ld, .n_row = a.n_row, .host_src = r->src,
                                                     .host_dst = r->src, .host_sampling = r->sampling }));
    if (drawn) SPEC_TRY(s->ops->copy(s->queue, s->q_work, s->q, s->q_bytes));
    return s->ops->accept(s->queue, &a);
}

static int32_t child_with(const spec_tree *t, int32_t node, int32_t token)
{
    for (int32_t c = node + 1; c < t->n; c++)
        if (t->parent[c] == node && t->token[c] == token) return c;
    return -1;
}

static int32_t nth_child(const spec_tree *t, int32_t node, int32_t rank)
{
    for (int32_t c = node + 1; c < t->n; c++)
        if (t->parent[c] == node && rank-- == 0) return c;
    return -1;
}

/* choice [n], token [n] of the tree's nodes; choice NULL where nodes were judged by their token alone. */
static spec_status walk(const spec_session *s, const algo_seq *q, const int32_t *choice, const int32_t *token,
                        int32_t *path, int32_t *n_path, int32_t *next)
{
    const spec_tree *t = &q->scored;
    int32_t node = 0;
    path[0] = 0, *n_path = 1;
    for (;;) {
        const bool accepted = choice && choice[node] >= 0;
        const int32_t child = accepted ? nth_child(t, node, choice[node]) : child_with(t, node, token[node]);
        const int32_t emitted = accepted ? t->token[child] : token[node];
        if (emitted < 0) return speci_fail(SPEC_E_DEVICE, "the logits of node %d are not numbers", node);
        /* A rejected candidate cannot be drawn again: a child found by the residual's token has p > 0 there only by
         * rounding, and following it would be wrong. So the walk follows token matches under greedy and naive only. */
        if (child < 0 || (choice && !accepted) || speci_is_eos(s, q, emitted)) {
            *next = emitted;
            return SPEC_OK;
        }
        node = path[(*n_path)++] = child;
    }
}

spec_status speci_verify(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule, int32_t *paths,
                         int32_t *n_path, int32_t *token)
{
    int32_t ld, end = 0;
    const float *logits = speci_net_logits(s->net, &ld);
    bool greedy = false;
    for (int32_t i = 0; i < n; i++) {
        algo_seq *q;
        SPEC_TRY(speci_session_seq(s, seqs[i], &q));
        SPEC_TRY(check_rule(q, rule));
        if (q->sampling.temperature != 0) continue;
        greedy = true;
        if (q->first_row + q->scored.n > end) end = q->first_row + q->scored.n;
    }
    SPEC_TRY(judge_sampled(s, seqs, n, rule));
    if (greedy)
        SPEC_TRY(s->ops->argmax(s->queue, &(spec_argmax_args){ .logits = logits, .ld = ld, .n_vocab = ld,
                                                               .n_row = end, .host_out_token = s->best }));
    SPEC_TRY(s->ops->sync(s->queue));
    for (int32_t i = 0, k = 0; i < n; i++) {
        const algo_seq *q = &s->seqs[seqs[i]];
        const spec_verify_rule how = rule_for(q, rule);
        const bool g = how == SPEC_VERIFY_GREEDY;
        SPEC_TRY(walk(s, q, how == SPEC_VERIFY_MSS ? s->rows.choice + k : NULL,
                      g ? s->best + q->first_row : s->rows.token + k, paths + (size_t)i * (size_t)s->n_node, &n_path[i],
                      &token[i]));
        if (!g) k += q->scored.n;
    }
    return SPEC_OK;
}
