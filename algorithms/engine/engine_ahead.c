/* engine_ahead.c - plain decoding one pass ahead: the pass over a token is queued before the host has read the token.
 *
 * On the device the token goes from where it is found to the root of the next step (spec_argmax_args.next),
 * so that the host reads it while the device computes what follows it. A pass that turns out not to be wanted (the text
 * ended, or another tree is scored) is dropped: the step applied only what was committed, and its own root never was.
 * For the same reason the sequence may be copied and saved meanwhile. Passes, rules and draws are those of any other
 * step, and so are the tokens. */
#include "algorithms/engine/engine.h"

/* --- when --- */

bool speci_ahead_planned(const spec_backend_ops *ops, const spec_drafter *d, const spec_session_params *p)
{
    return ops->mark && (!d || p->adapt != SPEC_ADAPT_OFF);
}

spec_status speci_ahead_open(spec_session *s)
{
    const spec_step_node root = { .parent = -1 };
    for (int32_t i = 0; i < s->n_seq; i++) SPEC_TRY(s->ops->upload(s->queue, s->next + i, &root, sizeof root));
    return SPEC_OK;
}

/* Where drafting is a choice, it is made a step before: by what was known then. */
static bool chooses_plain(const spec_session *s) { return !s->drafter || speci_adapt_choose(s, 1) < 0; }

bool speci_ahead_fits(const spec_session *s, int32_t seq)
{
    const algo_seq *q = &s->seqs[seq];
    if (!s->next || q->rows_wanted || (s->n_ctx > 0 && q->n_ids >= s->n_ctx)) return false;
    if (!q->ahead && !chooses_plain(s)) return false;
    return s->rule != SPEC_VERIFY_GREEDY || q->sampling.temperature == 0; /* else a rule that verify refuses */
}

/* --- the device's part --- */

/* Has the device draw the token at `position`, which follows the pass just queued: to the root of the sequence's next
 * step, and to *token. */
static spec_status draw_token(spec_session *s, int32_t seq, uint64_t position, int32_t *token)
{
    algo_seq *q = &s->seqs[seq];
    int32_t ld;
    const float *logits = speci_exec_logits(s->net, &ld);
    const int32_t row = 0, none = -1, first[2] = { 0, 0 };
    const float u = spec_uniform(q->sampling.seed, position, SPECI_DRAW_TARGET, 0);
    SPEC_TRY(s->ops->probs(s->queue, &(spec_probs_args){ .logits = logits, .ld = ld, .n_valid = ld, .probs = s->p,
                                                     .ld_probs = ld, .n_probs = ld, .n_row = 1, .host_src = &row,
                                                     .host_dst = &row, .host_sampling = &q->sampling }));
    return s->ops->accept(s->queue, &(spec_accept_args){ .p = s->p, .ld_p = ld, .n_vocab = ld, .n_row = 1,
                                                         .host_p_row = &row, .host_q_row = &none,
                                                         .host_first_candidate = first, .host_u_last = &u,
                                                         .host_out_choice = &q->next_choice, .host_out_token = token,
                                                         .next = s->next + seq });
}

/* Queues the step `n_ahead` (0 or 1) steps from now: the pass, what finds its token, a mark behind both. Nothing has
 * changed where the status is not E_DEVICE. */
static spec_status queue_step(spec_session *s, int32_t seq, int32_t n_ahead)
{
    algo_seq *q = &s->seqs[seq];
    int32_t token = q->ids[q->n_ids - 1], parent = -1;
    const spec_tree given = { .n = 1 - n_ahead, .cap = 1, .token = &token, .parent = &parent };
    const speci_exec_feed feed = { .nodes = s->next, .ld = 1 };
    const uint64_t step = q->n_step + (uint64_t)n_ahead;
    int32_t *const found = &q->next_token[step % 2];
    const speci_exec_tokens likeliest = { .token = found, .next = s->next + seq };
    const bool draws = q->sampling.temperature != 0;
    s->inputs[0] = (speci_exec_input){ .slot = seq, .tree = &given, .n_grown = n_ahead };
    SPEC_TRY(speci_exec_forward(s->net, s->inputs, 1, n_ahead ? &feed : NULL, draws ? NULL : &likeliest));
    for (int32_t i = 0; i < s->n_seq; i++) s->seqs[i].scored.n = 0; /* their rows are gone */
    spec_status status = draws ? draw_token(s, seq, (uint64_t)(q->n_ids + n_ahead), found) : SPEC_OK;
    if (status == SPEC_OK) status = s->ops->mark(s->queue, &q->next_mark);
    if (status != SPEC_OK) speci_exec_break(s->net, seq);
    q->ahead = status == SPEC_OK;
    return status;
}

/* --- the step --- */

/* The token of the step at `mark`, which may be the last: what was queued behind it goes on. */
static spec_status read_token(spec_session *s, int32_t seq, uint64_t mark, int32_t *token)
{
    const algo_seq *q = &s->seqs[seq];
    spec_status status = s->ops->wait(s->queue, mark);
    *token = q->next_token[q->n_step % 2];
    if (status == SPEC_OK && *token < 0)
        status = speci_fail(SPEC_E_DEVICE, "the logits of node 0 are not numbers");
    if (status != SPEC_OK) speci_exec_break(s->net, seq);
    return status;
}

spec_status speci_ahead_step(spec_session *s, int32_t seq, int32_t *token)
{
    const int32_t root = 0;
    algo_seq *q = &s->seqs[seq];
    if (!q->ahead) SPEC_TRY(queue_step(s, seq, 0));
    const uint64_t mark = q->next_mark;
    speci_exec_commit(s->net, seq, &root, 1);
    q->ahead = false;
    /* The last token that fits is followed by nothing. Nor is it worth an error if there is no room for a pass that
     * nobody has asked for yet. */
    const bool goes_on = q->n_ids + 1 < q->n_limit && chooses_plain(s);
    const spec_status status = goes_on ? queue_step(s, seq, 1) : SPEC_OK;
    if (status != SPEC_OK && status != SPEC_E_FULL) return status;
    return read_token(s, seq, mark, token);
}

void speci_ahead_drop(spec_session *s, int32_t seq)
{
    if (s->seqs[seq].ahead) speci_exec_commit(s->net, seq, NULL, 0);
    s->seqs[seq].ahead = false;
}
