/* engine_calls.c - the four public calls of a step: stages of a round, each read before the next is enqueued; and what drops one
 * that runs ahead. */
#include "algorithms/engine/engine.h"

#include <string.h>

spec_status spec_draft(spec_session *s, const spec_tree **trees, const int32_t *seqs, int32_t n)
{
    ENGINE_ENTER(s);
    SPEC_NEED(seqs || n == 0, "seqs");
    SPEC_NEED(trees || n == 0, "trees");
    engine_round *r = &s->round;
    if (speci_session_stopped(s)) return speci_fail(SPEC_E_ABORTED, "stopped before drafting");
    SPEC_TRY(speci_session_check(s, seqs, n));
    SPEC_TRY(speci_round_begin(s, r, seqs, n));
    for (int32_t i = 0; i < n; i++) trees[i] = r->trees[i];
    SPEC_TRY(speci_draft_start(s, r));
    return speci_draft_read(s, r);
}

spec_status spec_score(spec_session *s, const int32_t *seqs, int32_t n, const spec_tree *const *trees)
{
    ENGINE_ENTER(s);
    SPEC_NEED(seqs || n == 0, "seqs");
    SPEC_NEED(trees || n == 0, "trees");
    engine_round *r = &s->round;
    if (speci_session_stopped(s)) return speci_fail(SPEC_E_ABORTED, "stopped before scoring");
    SPEC_TRY(speci_session_check(s, seqs, n));
    SPEC_TRY(speci_round_begin(s, r, seqs, n));
    for (int32_t i = 0; i < n; i++) r->trees[i] = trees[i];
    r->plain = r->root_on_device = false;
    r->pending = NULL;
    return speci_score_start(s, r);
}

/* The session's round with the part of this sequence alone. */
static spec_status part_of(spec_session *s, int32_t seq, engine_round *out)
{
    engine_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (q->part < 0) return speci_fail(SPEC_E_STATE, "nothing was scored for sequence %d", seq);
    *out = s->round;
    out->part += q->part;
    out->n_part = 1;
    return SPEC_OK;
}

spec_status spec_verify(spec_session *s, int32_t *path, int32_t *n_path, int32_t *token, int32_t seq, spec_verify_rule rule)
{
    ENGINE_ENTER(s);
    SPEC_NEED(path, "path");
    SPEC_NEED(n_path, "n_path");
    SPEC_NEED(token, "token");
    engine_round r;
    if (rule != SPEC_VERIFY_AUTO && !speci_verify_find(rule))
        return speci_fail(SPEC_E_INVALID, "there is no verification rule %d", (int)rule);
    SPEC_TRY(part_of(s, seq, &r));
    r.rule = rule == SPEC_VERIFY_AUTO ? s->rule : rule;
    SPEC_TRY(speci_verify_start(s, &r));
    SPEC_TRY(speci_verify_read(s, &r));
    *n_path = r.part->n_path, *token = r.part->token;
    memcpy(path, r.part->path, (size_t)*n_path * sizeof *path);
    return SPEC_OK;
}

static spec_status check_path(const spec_session *s, const spec_tree *t, const int32_t *path, int32_t n_path, int32_t token)
{
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

spec_status spec_commit(spec_session *s, int32_t seq, const int32_t *path, int32_t n_path, int32_t token)
{
    ENGINE_ENTER(s);
    SPEC_NEED(path, "path");
    engine_round r;
    SPEC_TRY(part_of(s, seq, &r));
    SPEC_TRY(check_path(s, &r.part->tree, path, n_path, token));
    memcpy(r.part->path, path, (size_t)n_path * sizeof *path);
    r.part->n_path = n_path, r.part->token = token;
    SPEC_TRY(speci_commit_start(s, &r));
    SPEC_TRY(speci_commit_read(s, &r));
    return r.told;
}

spec_status spec_rollback(spec_session *s, int32_t seq)
{
    ENGINE_ENTER(s);
    engine_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (q->part >= 0) speci_sequence_forget(s, seq); /* else a committed path may be pending, and stays */
    return SPEC_OK;
}

spec_status spec_draft_choice(const spec_session *s, int32_t *tree, int32_t seq)
{
    ENGINE_ENTER(s);
    SPEC_NEED(tree, "tree");
    engine_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    *tree = q->proposal.round ? q->proposal.arm : -1;
    return SPEC_OK;
}

spec_status spec_sequence_seed(spec_session *s, int32_t seq, uint64_t seed)
{
    ENGINE_ENTER(s);
    engine_seq *q = NULL;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    engine_round *flight = speci_flight(s, seq);
    if (flight) speci_round_drop(s, flight); /* its token was drawn by the old one */
    q->request.p.sampling.seed = seed;
    return SPEC_OK;
}
