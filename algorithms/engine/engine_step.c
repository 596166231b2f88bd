/* engine_step.c - the step: draft, score, verify, commit; one packed pass for all sequences. */
#include "algorithms/engine/engine.h"
#include "core/core_half.h"

#include <limits.h>
#include <string.h>

/* Each sequence of a call once, all of them live. */
static spec_status check_seqs(const spec_session *s, const int32_t *seqs, int32_t n)
{
    algo_seq *q;
    if (n < 1 || n > s->n_seq) return speci_fail(SPEC_E_INVALID, "%d sequences; the session has %d", n, s->n_seq);
    for (int32_t i = 0; i < n; i++) {
        SPEC_TRY(speci_session_seq(s, seqs[i], &q));
        for (int32_t j = 0; j < i; j++)
            if (seqs[j] == seqs[i]) return speci_fail(SPEC_E_INVALID, "sequence %d is given twice", seqs[i]);
    }
    return SPEC_OK;
}

/* --- draft --- */

spec_status spec_draft(spec_session *s, const int32_t *seqs, int32_t n, const spec_tree **trees)
{
    SPEC_TRY(check_seqs(s, seqs, n));
    for (int32_t i = 0; i < n; i++) trees[i] = &s->seqs[seqs[i]].draft;
    return speci_draft(s, seqs, n, false);
}

/* --- score --- */

static spec_status check_tree(const spec_session *s, int32_t seq, const spec_tree *t)
{
    const algo_seq *q = &s->seqs[seq];
    SPEC_TRY(spec_tree_check(t, s->n_node, s->target->n_vocab));
    if (t->token[0] != q->ids[q->n_ids - 1])
        return speci_fail(SPEC_E_INVALID, "the root is token %d; the pending token of sequence %d is %d", t->token[0],
                          seq, q->ids[q->n_ids - 1]);
    if (s->n_ctx == 0) return SPEC_OK;
    if (q->n_ids >= s->n_ctx)
        return speci_fail(SPEC_E_FULL, "sequence %d has reached the context of %d tokens", seq, s->n_ctx);
    for (int32_t i = 0; i < t->n; i++)
        if (q->n_ids + speci_tree_depth(t, i) >= s->n_ctx)
            return speci_fail(SPEC_E_FULL, "node %d would stand behind the context of %d tokens", i, s->n_ctx);
    return SPEC_OK;
}

/* Do the tree's q rows name distributions that the drafter's latest proposal left on the device? */
static bool has_distributions(const spec_session *s, const algo_seq *q, const spec_tree *t)
{
    if (!speci_tree_sampled(t->kind) || !t->q_row || !s->q) return false;
    if (q->draft.n == 0 || q->draft_step != q->n_step) return false;
    for (int32_t i = 1; i < t->n; i++)
        if (t->q_row[t->parent[i]] < 0 || t->q_row[t->parent[i]] >= s->n_q) return false;
    return true;
}

void speci_score_keep(const spec_session *s, algo_seq *q, const spec_tree *t)
{
    (void)spec_tree_copy(&q->scored, t); /* fits: it was checked */
    spec_tree_ranks(t, q->scored.rank);
    q->scored_distributions = has_distributions(s, q, t);
    q->scored_draft = q->draft_step == q->n_step && speci_tree_equal(t, &q->draft);
}

/* Room for the ids that a commit of this tree can add: after score nothing need be allocated. */
static spec_status reserve_ids(const spec_session *s, algo_seq *q)
{
    if (q->n_ids + s->n_node + 1 <= q->cap_ids || s->n_ctx > 0) return SPEC_OK;
    if (q->cap_ids > INT32_MAX / 2) return speci_fail(SPEC_E_FULL, "a sequence of %d tokens is too long", q->n_ids);
    const size_t cap = 2 * (size_t)q->cap_ids + (size_t)s->n_node;
    int32_t *ids = speci_alloc(s->a, cap, sizeof *ids);
    if (!ids) return SPEC_E_NOMEM;
    memcpy(ids, q->ids, (size_t)q->n_ids * sizeof *ids);
    speci_free(s->a, q->ids);
    q->ids = ids;
    q->cap_ids = (int32_t)cap;
    return SPEC_OK;
}

spec_status speci_score(spec_session *s, const int32_t *seqs, int32_t n, const spec_tree *const *trees,
                        const speci_exec_feed *feed)
{
    bool greedy = false; /* is any of them? */
    for (int32_t i = 0; i < n; i++) {
        greedy = greedy || s->seqs[seqs[i]].sampling.temperature == 0;
        SPEC_TRY(check_tree(s, seqs[i], trees[i]));
        SPEC_TRY(reserve_ids(s, &s->seqs[seqs[i]]));
        speci_ahead_drop(s, seqs[i]);
        s->inputs[i] = (speci_exec_input){ .slot = seqs[i], .tree = trees[i] };
    }
    const speci_exec_tokens likeliest = { .token = s->best };
    SPEC_TRY(speci_exec_forward(s->net, s->inputs, n, feed, greedy ? &likeliest : NULL));
    /* The rows of this pass replace those of the one before, for every sequence. */
    for (int32_t i = 0; i < s->n_seq; i++) s->seqs[i].scored.n = 0;
    for (int32_t i = 0; i < n; i++) {
        algo_seq *q = &s->seqs[seqs[i]];
        speci_score_keep(s, q, trees[i]);
        q->first_row = speci_exec_first_row(s->net, i);
    }
    return SPEC_OK;
}

spec_status spec_score(spec_session *s, const int32_t *seqs, int32_t n, const spec_tree *const *trees)
{
    SPEC_TRY(check_seqs(s, seqs, n));
    return speci_score(s, seqs, n, trees, NULL);
}

/* --- verify, commit, rollback --- */

spec_status spec_verify(spec_session *s, int32_t seq, spec_verify_rule rule, int32_t *path, int32_t *n_path,
                        int32_t *token)
{
    algo_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    SPEC_TRY(speci_verify(s, &seq, 1, rule == SPEC_VERIFY_AUTO ? s->rule : rule, s->step_paths, n_path, token));
    memcpy(path, s->step_paths, (size_t)*n_path * sizeof *path);
    return SPEC_OK;
}

static spec_status check_path(const spec_session *s, const algo_seq *q, const int32_t *path, int32_t n_path,
                              int32_t token)
{
    const spec_tree *t = &q->scored;
    if (t->n == 0) return speci_fail(SPEC_E_STATE, "nothing was scored for this sequence");
    if (n_path < 1 || n_path > t->n || path[0] != 0)
        return speci_fail(SPEC_E_INVALID, "a path of %d nodes must begin at the root of a tree of %d", n_path, t->n);
    for (int32_t i = 1; i < n_path; i++)
        if (path[i] <= 0 || path[i] >= t->n || t->parent[path[i]] != path[i - 1])
            return speci_fail(SPEC_E_INVALID, "path entry %d is node %d, not a child of node %d", i, path[i],
                              path[i - 1]);
    if (token < 0 || token >= s->target->n_vocab)
        return speci_fail(SPEC_E_INVALID, "token %d is not in the vocabulary of %d ids", token, s->target->n_vocab);
    return SPEC_OK;
}

/* Tells the builder where on the path drafts were accepted: at which rank, or nowhere among a node's children. */
static void observe_accepted(spec_session *s, const algo_seq *q, const int32_t *path, int32_t n_path)
{
    if (!q->scored_draft || q->arm < 0 || s->drafter->n_builder == 0) return;
    int32_t ranks[SPEC_MAX_DEPTH + 1], n = 0;
    for (int32_t i = 1; i < n_path; i++) ranks[n++] = q->scored.rank[path[i]];
    if (speci_tree_children(&q->scored, path[n_path - 1], s->path) > 0) ranks[n++] = -1;
    spec_builder_observe(s->drafter->builders[q->arm], q->scored.n, ranks, n);
}

spec_status spec_commit(spec_session *s, int32_t seq, const int32_t *path, int32_t n_path, int32_t token)
{
    algo_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    SPEC_TRY(check_path(s, q, path, n_path, token));
    observe_accepted(s, q, path, n_path);
    speci_adapt_observe(s, q, q->scored_draft ? q->scored.n : 0, n_path);
    for (int32_t i = 1; i < n_path; i++) q->ids[q->n_ids++] = q->scored.token[path[i]];
    q->ids[q->n_ids++] = token;
    speci_exec_commit(s->net, seq, path, n_path);
    q->scored.n = 0;
    q->n_step++;
    return SPEC_OK;
}

spec_status spec_rollback(spec_session *s, int32_t seq)
{
    algo_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (q->scored.n > 0) speci_exec_commit(s->net, seq, NULL, 0); /* else a committed path may be pending */
    q->scored.n = 0;
    return SPEC_OK;
}

/* --- step --- */

static spec_stop stop_of(const spec_session *s, const algo_seq *q)
{
    if (speci_is_eos(s, q, q->ids[q->n_ids - 1])) return SPEC_STOP_EOS;
    if (s->n_ctx > 0 && q->n_ids >= s->n_ctx) return SPEC_STOP_CONTEXT;
    return SPEC_STOP_NONE;
}

/* Commits sequence i of the step and tells what came of it. */
static spec_status finish(spec_session *s, int32_t i, int32_t seq, spec_step_result *result)
{
    algo_seq *q = &s->seqs[seq];
    const int32_t *path = s->step_paths + (size_t)i * (size_t)s->n_node;
    const int32_t before = q->n_ids, n_drafted = q->scored.n - 1;
    SPEC_TRY(spec_commit(s, seq, path, s->step_n_path[i], s->step_token[i]));
    const int32_t n_tokens = q->n_ids - before;
    int32_t *tokens = s->step_ids + (size_t)i * (size_t)(s->n_node + 1);
    memcpy(tokens, q->ids + before, (size_t)n_tokens * sizeof *tokens);
    *result = (spec_step_result){ .tokens = tokens, .n_tokens = n_tokens, .n_drafted = n_drafted,
                                  .n_accepted = n_tokens - 1, .stop = stop_of(s, q), .tree = q->arm };
    return SPEC_OK;
}

/* Did the path leave the first children? */
static bool branched(const algo_seq *q, const int32_t *path, int32_t n_path)
{
    for (int32_t i = 1; i < n_path; i++)
        if (q->scored.rank[path[i]] > 0) return true;
    return false;
}

/* A plain step, after which the device is at work on the next one. */
static spec_status step_ahead(spec_session *s, int32_t seq, spec_step_result *result)
{
    algo_seq *q = &s->seqs[seq];
    const double start = speci_now_ms();
    SPEC_TRY(reserve_ids(s, q));
    SPEC_TRY(speci_ahead_step(s, seq, s->step_ids));
    if (s->drafter) speci_adapt_begin(s, -1, &seq, 1, start);
    speci_adapt_observe(s, q, 1, 1);
    q->ids[q->n_ids++] = s->step_ids[0];
    q->n_step++;
    *result = (spec_step_result){ .tokens = s->step_ids, .n_tokens = 1, .stop = stop_of(s, q), .tree = -1 };
    return SPEC_OK;
}

/* From the drafts, seen or not, to the verdict. */
static spec_status score_and_verify(spec_session *s, const int32_t *seqs, int32_t n)
{
    bool verified = false;
    if (speci_session_stopped(s)) {
        SPEC_TRY(speci_unseen_drop(s, seqs, n));
        return speci_fail(SPEC_E_ABORTED, "stopped after drafting");
    }
    if (s->unseen) SPEC_TRY(speci_unseen_step(s, seqs, n, &verified));
    if (verified) return speci_verify_read(s, seqs, n, s->step_paths, s->step_n_path, s->step_token);
    SPEC_TRY(speci_score(s, seqs, n, s->step_trees, NULL));
    return speci_verify(s, seqs, n, s->rule, s->step_paths, s->step_n_path, s->step_token);
}

spec_status spec_step(spec_session *s, const int32_t *seqs, int32_t n, spec_step_result *results)
{
    if (speci_session_stopped(s)) return speci_fail(SPEC_E_ABORTED, "stopped before a step");
    SPEC_TRY(check_seqs(s, seqs, n));
    if (n == 1 && speci_ahead_fits(s, seqs[0])) return step_ahead(s, seqs[0], results);
    for (int32_t i = 0; i < n; i++) s->step_trees[i] = &s->seqs[seqs[i]].draft;
    SPEC_TRY(speci_draft(s, seqs, n, true));
    SPEC_TRY(score_and_verify(s, seqs, n));
    for (int32_t i = 0; i < n; i++) {
        const bool b = branched(&s->seqs[seqs[i]], s->step_paths + (size_t)i * (size_t)s->n_node, s->step_n_path[i]);
        SPEC_TRY(finish(s, i, seqs[i], &results[i]));
        results[i].branched = b;
    }
    return SPEC_OK;
}

/* --- what was scored --- */

static spec_status check_node(const spec_session *s, int32_t seq, int32_t node, int32_t *row)
{
    algo_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (q->scored.n == 0) return speci_fail(SPEC_E_STATE, "nothing was scored for sequence %d", seq);
    if (node < 0 || node >= q->scored.n)
        return speci_fail(SPEC_E_INVALID, "node %d of a tree of %d", node, q->scored.n);
    *row = q->first_row + node;
    return SPEC_OK;
}

spec_status spec_node_logits(spec_session *s, int32_t seq, int32_t node, float *logits)
{
    int32_t row, ld;
    SPEC_TRY(check_node(s, seq, node, &row));
    const float *from = speci_exec_logits(s->net, &ld);
    SPEC_TRY(s->ops->download(s->queue, logits, from + (size_t)row * (size_t)ld, (size_t)ld * sizeof *logits));
    return s->ops->sync(s->queue);
}

spec_status spec_node_hidden(spec_session *s, int32_t seq, int32_t tap, int32_t node, float *hidden)
{
    int32_t row;
    SPEC_TRY(check_node(s, seq, node, &row));
    if (tap < 0 || tap >= s->n_tap) return speci_fail(SPEC_E_INVALID, "tap %d of %d that the session keeps", tap, s->n_tap);
    const spec_view v = speci_exec_tap(s->net, SPEC_PHASE_DECODE, tap);
    const size_t n = (size_t)s->target->dim, size = v.dtype == SPEC_DTYPE_F32 ? sizeof *hidden : sizeof(uint16_t);
    SPEC_TRY(s->ops->download(s->queue, hidden, (const char *)v.data + (size_t)row * (size_t)v.ld * size, n * size));
    SPEC_TRY(s->ops->sync(s->queue));
    for (size_t i = n; v.dtype != SPEC_DTYPE_F32 && i-- > 0;) { /* in place, from behind */
        uint16_t h;
        memcpy(&h, (const char *)hidden + i * sizeof h, sizeof h);
        hidden[i] = v.dtype == SPEC_DTYPE_BF16 ? speci_from_bf16(h) : speci_from_f16(h);
    }
    return SPEC_OK;
}

spec_status spec_node_probs(spec_session *s, int32_t seq, int32_t node, float *probs)
{
    int32_t row, ld, token;
    SPEC_TRY(check_node(s, seq, node, &row));
    const float *logits = speci_exec_logits(s->net, &ld);
    const spec_sampling *how = &s->seqs[seq].sampling;
    const int32_t first = 0;
    if (how->temperature == 0) {
        spec_argmax_args a = speci_exec_argmax(s->net, row, 1);
        a.host_out_token = &token;
        SPEC_TRY(s->ops->argmax(s->queue, &a));
        SPEC_TRY(s->ops->sync(s->queue));
        if (token < 0) return speci_fail(SPEC_E_DEVICE, "the logits of node %d are not numbers", node);
        memset(probs, 0, (size_t)ld * sizeof *probs);
        probs[token] = 1;
        return SPEC_OK;
    }
    SPEC_TRY(s->ops->probs(s->queue, &(spec_probs_args){ .logits = logits, .ld = ld, .n_valid = ld, .probs = s->p,
                                                     .ld_probs = ld, .n_probs = ld, .n_row = 1, .host_src = &row,
                                                     .host_dst = &first, .host_sampling = how }));
    SPEC_TRY(s->ops->download(s->queue, probs, s->p, (size_t)ld * sizeof *probs));
    return s->ops->sync(s->queue);
}

spec_status spec_draft_choice(const spec_session *s, int32_t seq, int32_t *tree)
{
    algo_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    *tree = q->draft.n > 0 && q->draft_step == q->n_step ? q->arm : -1;
    return SPEC_OK;
}

spec_status spec_draft_probs(spec_session *s, int32_t seq, int32_t q_row, float *probs)
{
    algo_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (!s->q || q->draft.n == 0 || q->draft_step != q->n_step || q_row < 0 || q_row >= s->n_q)
        return speci_fail(SPEC_E_STATE, "sequence %d has no draft distribution %d now", seq, q_row);
    const size_t row = (size_t)s->target->n_vocab, at = (size_t)seq * (size_t)s->n_q + (size_t)q_row;
    SPEC_TRY(s->ops->download(s->queue, probs, s->q + at * row, row * sizeof *probs));
    return s->ops->sync(s->queue);
}

spec_status speci_logprobs(spec_session *s, int32_t first_row, const int32_t *nodes, const int32_t *tokens, int32_t n,
                           float *logprob, int32_t *top_id, float *top_logprob, int32_t n_top)
{
    int32_t ld;
    const float *logits = speci_exec_logits(s->net, &ld);
    for (int32_t i = 0; i < n; i++) s->rows.src[i] = first_row + nodes[i];
    SPEC_TRY(s->ops->logprob(s->queue, &(spec_logprob_args){ .logits = logits, .ld = ld, .n_vocab = ld, .n_row = n,
                                                             .n_top = n_top, .host_row = s->rows.src,
                                                             .host_token = tokens, .host_out_logprob = logprob,
                                                             .host_out_top = top_id,
                                                             .host_out_top_logprob = top_logprob }));
    return s->ops->sync(s->queue);
}

spec_status spec_node_logprobs(spec_session *s, int32_t seq, int32_t node, int32_t token, float *logprob,
                               int32_t *top_id, float *top_logprob, int32_t n)
{
    int32_t row;
    SPEC_TRY(check_node(s, seq, node, &row));
    if (token < 0 || token >= s->target->n_vocab || n < 0 || n > 64 || n > s->target->n_vocab)
        return speci_fail(SPEC_E_INVALID, "token %d of %d ids, %d likeliest (at most 64)", token, s->target->n_vocab,
                          n);
    const int32_t root = 0;
    return speci_logprobs(s, row, &root, &token, 1, logprob, top_id, top_logprob, n);
}
