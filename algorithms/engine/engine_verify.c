/* engine_verify.c - walking a scored tree by a rule that keeps the target's distribution (algorithms.md 3).
 *
 * The device verifies every node at once (arg-max, or accept); the walk from the root is then a look-up. A position's
 * draws are keyed by (seed, position, purpose), so that it is decided once, whatever the tree. */
#include "algorithms/engine/engine.h"

/* The rule that a sequence is verified by. At T = 0 all rules are one. */
static spec_verify_rule rule_for(const algo_seq *q, spec_verify_rule rule)
{
    if (q->sampling.temperature == 0) return SPEC_VERIFY_GREEDY;
    if (q->scored.n == 1) return rule == SPEC_VERIFY_GREEDY ? rule : SPEC_VERIFY_NAIVE;
    return speci_verify_resolve(rule, q->scored_distributions ? q->scored.kind : SPEC_TREE_DETERMINISTIC, q->sampling.temperature);
}

static bool by_distributions(spec_verify_rule rule) { return rule >= SPEC_VERIFY_CHAIN; }

static spec_status check_rule(const algo_seq *q, spec_verify_rule rule)
{
    if (q->scored.n == 0) return speci_fail(SPEC_E_STATE, "nothing was scored for this sequence");
    if (rule < SPEC_VERIFY_AUTO || rule > SPEC_VERIFY_MSS_REPEAT)
        return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)rule);
    const spec_verify_rule how = rule_for(q, rule);
    SPEC_TRY(spec_verify_is_lossless(&q->scored, how, q->sampling.temperature));
    if (by_distributions(how) && !q->scored_distributions)
        return speci_fail(SPEC_E_INVALID, "%s needs the distributions that the tree was drawn from, and the session has none of "
                          "it: verify it by %s, or with spec_verify_distributions", spec_verify_rule_name(how),
                          spec_verify_rule_name(SPEC_VERIFY_NAIVE));
    return SPEC_OK;
}

/* An accept call under construction: its rows begin at `row` and its candidates at `candidate` of the session's arrays. */
typedef struct accept_call {
    spec_accept_args args;
    int32_t row, candidate;
} accept_call;

static accept_call begin_call(spec_session *s, int32_t row, int32_t candidate, bool repeat)
{
    algo_rows *r = &s->rows;
    const int32_t ld = s->target->n_vocab;
    int32_t *first = r->first + row + (repeat ? 1 : 0); /* each call has one entry more than rows */
    first[0] = 0;
    return (accept_call){ .row = row, .candidate = candidate,
                          .args = { .p = s->p, .q = s->q, .ld_p = ld, .ld_q = ld, .n_vocab = ld, .repeat = repeat,
                                    .host_p_row = r->dst + row, .host_q_row = r->q_row + row,
                                    .host_first_candidate = first, .host_candidate = r->candidate + candidate,
                                    .host_u = r->u + candidate, .host_u_last = r->u_last + row,
                                    .host_out_choice = r->choice + row, .host_out_token = r->token + row } };
}

/* Adds the nodes of sequence seq to a call. */
static void add_nodes(spec_session *s, algo_seq *q, int32_t seq, spec_verify_rule rule, accept_call *call)
{
    algo_rows *r = &s->rows;
    spec_accept_args *a = &call->args;
    const spec_tree *t = &q->scored;
    int32_t *first = r->first + (a->host_first_candidate - r->first), *children = s->path;
    q->first_verified = call->row + a->n_row;
    for (int32_t node = 0; node < t->n; node++) {
        const int32_t k = call->row + a->n_row++;
        /* the position of the token that follows this node; the root stands at n_ids - 1 */
        const uint64_t position = (uint64_t)(q->n_ids + speci_tree_depth(t, node));
        const int32_t n = by_distributions(rule) ? speci_tree_children(t, node, children) : 0;
        r->src[k] = q->first_row + node;
        r->dst[k] = k;
        r->q_row[k] = n > 0 ? seq * s->n_q + t->q_row[node] : -1;
        r->sampling[k] = q->sampling;
        for (int32_t j = 0; j < n; j++) {
            const int32_t c = call->candidate + a->n_candidate++;
            r->candidate[c] = t->token[children[j]];
            r->u[c] = spec_uniform(q->sampling.seed, position, SPECI_DRAW_ACCEPT, (uint32_t)j);
        }
        first[a->n_row] = a->n_candidate;
        r->u_last[k] = spec_uniform(q->sampling.seed, position, n > 0 ? SPECI_DRAW_RESIDUAL : SPECI_DRAW_TARGET, 0);
    }
}

/* Distributions of all nodes of the sequences that sample, and one accept for trees without, one for trees with repeats. */
static spec_status accept_sampled(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule)
{
    accept_call calls[2];
    calls[0] = begin_call(s, 0, 0, false);
    for (int32_t repeat = 0; repeat < 2; repeat++) {
        if (repeat) calls[1] = begin_call(s, calls[0].args.n_row, calls[0].args.n_candidate, true);
        for (int32_t i = 0; i < n; i++) {
            algo_seq *q = &s->seqs[seqs[i]];
            const spec_verify_rule how = rule_for(q, rule);
            if (how == SPEC_VERIFY_GREEDY || (how == SPEC_VERIFY_MSS_REPEAT) != (repeat != 0)) continue;
            add_nodes(s, q, seqs[i], how, &calls[repeat]);
        }
    }
    const int32_t n_row = calls[1].row + calls[1].args.n_row;
    if (n_row == 0) return SPEC_OK;
    int32_t ld;
    const float *logits = speci_exec_logits(s->net, &ld);
    SPEC_TRY(s->ops->probs(s->queue, &(spec_probs_args){ .logits = logits, .ld = ld, .n_valid = ld, .probs = s->p,
                                                     .ld_probs = ld, .n_probs = ld, .n_row = n_row,
                                                     .host_src = s->rows.src, .host_dst = s->rows.dst,
                                                     .host_sampling = s->rows.sampling }));
    for (int32_t i = 0; i < 2; i++)
        if (calls[i].args.n_row > 0) SPEC_TRY(s->ops->accept(s->queue, &calls[i].args));
    return SPEC_OK;
}

static int32_t child_with(const spec_tree *t, int32_t node, int32_t token)
{
    for (int32_t c = node + 1; c < t->n; c++)
        if (t->parent[c] == node && t->token[c] == token) return c;
    return -1;
}

/* choice [n], token [n] of the tree's nodes; choice NULL where nodes were verified by their token alone. */
static spec_status walk(const spec_session *s, const algo_seq *q, const int32_t *choice, const int32_t *token,
                        int32_t *path, int32_t *n_path, int32_t *next)
{
    const spec_tree *t = &q->scored;
    int32_t node = 0;
    path[0] = 0, *n_path = 1;
    for (;;) {
        const bool accepted = choice && choice[node] >= 0;
        int32_t child;
        if (accepted) {
            (void)speci_tree_children(t, node, s->path);
            child = s->path[choice[node]];
        } else {
            child = child_with(t, node, token[node]);
        }
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

spec_status speci_verify_enqueue(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule)
{
    for (int32_t i = 0; i < n; i++) {
        algo_seq *q;
        SPEC_TRY(speci_session_seq(s, seqs[i], &q));
        SPEC_TRY(check_rule(q, rule));
    }
    return accept_sampled(s, seqs, n, rule);
}

spec_status speci_verify_read(const spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule, int32_t *paths,
                              int32_t *n_path, int32_t *token)
{
    for (int32_t i = 0; i < n; i++) {
        const algo_seq *q = &s->seqs[seqs[i]];
        const spec_verify_rule how = rule_for(q, rule);
        const int32_t *tokens = how == SPEC_VERIFY_GREEDY ? s->best + q->first_row : s->rows.token + q->first_verified;
        SPEC_TRY(walk(s, q, by_distributions(how) ? s->rows.choice + q->first_verified : NULL, tokens,
                      paths + (size_t)i * (size_t)s->n_node, &n_path[i], &token[i]));
    }
    return SPEC_OK;
}

spec_status speci_verify(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule, int32_t *paths,
                         int32_t *n_path, int32_t *token)
{
    SPEC_TRY(speci_verify_enqueue(s, seqs, n, rule));
    SPEC_TRY(s->ops->sync(s->queue));
    return speci_verify_read(s, seqs, n, rule, paths, n_path, token);
}
