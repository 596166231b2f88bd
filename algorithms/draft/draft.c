/* draft.c - the drafter's proposal for each sequence: which tree to build, and by whom. */
#include "algorithms/engine/engine.h"

#include <string.h>

static void begin_draft(algo_seq *q)
{
    q->draft.n = 0;
    q->draft.kind = SPEC_TREE_DETERMINISTIC;
    (void)spec_tree_add(&q->draft, -1, q->ids[q->n_ids - 1], 1);
    q->draft.q_row[0] = -1;
    q->draft_step = q->n_step;
    q->arm = -1;
    q->scored_distributions = q->scored_draft = false; /* what was scored was of an earlier draft */
}

/* Rows of distributions only where children were drawn or chosen; and no more nodes than the session planned for. What is left out
 * are the last slots, whatever they hold. */
static void end_draft(const spec_session *s, algo_seq *q)
{
    spec_tree *t = &q->draft;
    if (t->n > s->n_node) t->n = s->n_node;
    int32_t *has_child = s->path;
    for (int32_t i = 0; i < t->n; i++) has_child[i] = 0;
    for (int32_t i = 1; i < t->n; i++) has_child[t->parent[i]] = 1;
    for (int32_t i = 0; i < t->n; i++)
        if (!has_child[i]) t->q_row[i] = -1;
}

/* --- an application's drafter --- */

/* Drops the nodes for which there is no room. */
static void clip(spec_session *s, algo_seq *q)
{
    uint8_t keep[SPECI_MAX_NODE];
    const int32_t room = speci_draft_room(s, q);
    spec_tree_depths(&q->draft, s->path);
    for (int32_t i = 0; i < q->draft.n; i++) keep[i] = s->path[i] <= room;
    spec_tree_prune(&q->draft, keep, 1, s->path);
}

static spec_status draft_by_ops(spec_session *s, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    const spec_drafter_ops *ops = &s->drafter->ops;
    spec_tree own = { .n = 1, .cap = s->n_node, .token = q->draft.token, .parent = q->draft.parent };
    SPEC_TRY(ops->draft(ops->user_data, seq, q->ids, (size_t)q->n_ids, &own));
    if (own.n < 1 || own.n > own.cap || own.token != q->draft.token || own.parent != q->draft.parent ||
        own.token[0] != q->ids[q->n_ids - 1])
        return speci_fail(SPEC_E_INVALID, "the application's drafter changed the root or overran its tree");
    q->draft.n = own.n;
    for (int32_t i = 0; i < own.n; i++) q->draft.prob[i] = i == 0, q->draft.q_row[i] = -1;
    SPEC_TRY(spec_tree_check(&own, s->n_node, s->target->n_vocab));
    spec_tree_ranks(&own, q->draft.rank);
    clip(s, q);
    return SPEC_OK;
}

typedef struct distributions_call {
    const spec_session *s;
    int32_t seq;
} distributions_call;

static spec_status ask_distributions(void *user_data, const spec_tree *tree, const int32_t *nodes, int32_t n, float *distributions,
                            int32_t n_vocab)
{
    const distributions_call *c = user_data;
    const algo_seq *q = &c->s->seqs[c->seq];
    const spec_drafter_ops *ops = &c->s->drafter->ops;
    return ops->distributions(ops->user_data, c->seq, q->ids, (size_t)q->n_ids, tree, nodes, n, distributions, n_vocab);
}

/* The library's builder over the application's distributions, which then go to the device for verification. */
static spec_status draft_by_distributions(spec_session *s, spec_builder *b, int32_t seq)
{
    algo_seq *q = &s->seqs[seq];
    const int32_t room = speci_draft_room(s, q);
    if (room == 0) return SPEC_OK;
    distributions_call call = { s, seq };
    const spec_build_args args = { .struct_size = sizeof args, .token = q->ids[q->n_ids - 1],
                                   .n_vocab = s->target->n_vocab, .distributions = ask_distributions, .user_data = &call,
                                   .draw = q->sampling.temperature > 0, .seed = q->sampling.seed, .step = q->n_step,
                                   .q = s->host_q, .depth_max = room };
    SPEC_TRY(spec_builder_build(b, &args, &q->draft));
    const size_t row = (size_t)s->target->n_vocab, n = (size_t)s->n_q * row;
    return s->ops->upload(s->queue, s->q + (size_t)seq * n, s->host_q, (size_t)b->info.n_row * row * sizeof(float));
}

/* --- */

static spec_status draft_all(spec_session *s, spec_builder *b, const int32_t *seqs, int32_t n)
{
    if (s->draft_exec) return speci_grow(s, b, seqs, n, s->unseen != NULL);
    for (int32_t i = 0; i < n; i++) {
        const spec_status status = b ? draft_by_distributions(s, b, seqs[i]) : draft_by_ops(s, seqs[i]);
        if (status != SPEC_OK) return speci_fail(status, "drafting for sequence %d: %s", seqs[i], spec_last_error());
    }
    return SPEC_OK;
}

/* Leaves the drafts of seqs as they are to be: after an error, of the roots alone. */
static spec_status end_drafts(spec_session *s, const int32_t *seqs, int32_t n, spec_status status)
{
    for (int32_t i = 0; i < n; i++) {
        if (status != SPEC_OK) begin_draft(&s->seqs[seqs[i]]);
        else end_draft(s, &s->seqs[seqs[i]]);
    }
    return status;
}

static spec_status draft_by(spec_session *s, int32_t arm, const int32_t *seqs, int32_t n, bool unseen)
{
    spec_builder *b = s->drafter->n_builder > 0 ? s->drafter->builders[arm] : NULL;
    if (b && b->info.n_node < 2) return SPEC_OK;
    s->unseen = unseen && speci_unseen_fits(s, b, seqs, n) ? b : NULL;
    const spec_status status = draft_all(s, b, seqs, n);
    if (status == SPEC_OK && s->unseen) {
        for (int32_t i = 0; i < n; i++) speci_unseen_foresee(b, s->depth[seqs[i]], &s->seqs[seqs[i]].draft);
        return SPEC_OK;
    }
    s->unseen = NULL;
    return end_drafts(s, seqs, n, status);
}

spec_status speci_draft(spec_session *s, const int32_t *seqs, int32_t n, bool unseen)
{
    const double start = speci_now_ms();
    for (int32_t i = 0; i < n; i++) begin_draft(&s->seqs[seqs[i]]);
    if (!s->drafter || s->n_node == 1) return SPEC_OK;
    const int32_t arm = speci_adapt_choose(s, n);
    if (arm >= 0) SPEC_TRY(draft_by(s, arm, seqs, n, unseen));
    speci_adapt_begin(s, arm, seqs, n, start);
    return SPEC_OK;
}

spec_status speci_draft_see(spec_session *s, const int32_t *seqs, int32_t n)
{
    spec_builder *const b = s->unseen;
    s->unseen = NULL;
    for (int32_t i = 0; i < n; i++) s->seqs[seqs[i]].draft.n = 1; /* the roots, below which the trees are taken */
    return end_drafts(s, seqs, n, speci_grow_take(s, b));
}
