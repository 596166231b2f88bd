/* engine_proposal.c - what a session asks of its drafters, and what it tells them: ids that were committed, and what came of their
 * proposals. */
#include "algorithms/engine/engine.h"

/* --- ids --- */

/* Drafts have use as deep as the limit goes: behind a path one token more is emitted. */
speci_draft_seq speci_sequence_asked(spec_session *s, int32_t seq)
{
    engine_seq *q = &s->seqs[seq];
    const int32_t room = speci_max32(0, speci_min32(q->n_limit - q->n_ids - 1, s->n_node - 1));
    return (speci_draft_seq){ .seq = seq, .ids = q->ids, .n_ids = q->n_ids, .n_prompt = q->n_prompt,
                              .sampling = &q->request.p.sampling, .step = q->n_step, .depth_max = room,
                              .tree = &q->proposal.tree, .by = -1, .maker = q->proposal.maker };
}

void speci_sequence_tell(spec_session *s, const speci_draft_seq *ask)
{
    engine_seq *q = &s->seqs[ask->seq];
    for (int32_t k = 0; k < q->n_begun && q->n_told < q->n_ids; k++) {
        speci_draft *d = &s->drafters.draft[k];
        if (d->kind->committed) d->kind->committed(d, ask, q->n_ids - q->n_told);
    }
    q->n_told = q->n_ids;
}

/* --- proposals --- */

void speci_proposal_begin(engine_seq *q, uint64_t round)
{
    engine_proposal *p = &q->proposal;
    p->tree.n = 0, p->tree.kind = SPEC_TREE_DETERMINISTIC;
    (void)spec_tree_add(&p->tree, -1, q->ids[q->n_ids - 1], 1);
    p->round = round;
    p->arm = p->by = -1;
    p->asked = false;
    p->n_match = 0;
    p->builder = NULL;
    p->depth = 0;
}

spec_status speci_proposals_end(spec_session *s, const engine_round *r, spec_status status)
{
    for (int32_t i = 0; i < r->n; i++) {
        engine_seq *q = &s->seqs[r->seqs[i]];
        spec_tree *t = &q->proposal.tree;
        if (status != SPEC_OK) speci_proposal_begin(q, s->n_round);
        if (t->n <= s->n_node) continue;
        t->n = s->n_node;
        speci_tree_forget_rows(t);
    }
    return status;
}

spec_status speci_propose(spec_session *s, engine_round *r, int32_t way, int32_t n_ask)
{
    const speci_draft_way *w = &s->ways[way];
    int32_t n = 0;
    for (int32_t i = 0; i < n_ask; i++) {
        engine_proposal *p = &s->seqs[r->seqs[i]].proposal;
        speci_draft_seq *ask = &s->asked[n];
        *ask = speci_sequence_asked(s, r->seqs[i]);
        ask->least = w->least;
        p->arm = way;
        p->builder = w->only; /* it sees the steps without room for a draft, too */
        p->asked = ask->depth_max > 0;
        n += p->asked;
    }
    if (n == 0) return SPEC_OK;
    SPEC_TRY(speci_draft_enqueue(&s->drafters, w, s->asked, n, &r->pending));
    for (int32_t i = 0; i < n; i++) {
        engine_proposal *p = &s->seqs[s->asked[i].seq].proposal;
        p->by = s->asked[i].by, p->builder = s->asked[i].builder;
        p->depth = s->asked[i].depth_max, p->n_match = s->asked[i].n_match;
        p->repeats = s->seqs[s->asked[i].seq].repeats;
    }
    r->queued = r->pending != NULL;
    return SPEC_OK;
}

/* --- what came of them --- */

/* Tells the builder where on the path drafts were accepted: at which rank, or nowhere among a node's children. */
static void tell_builder(spec_builder *b, const engine_part *p)
{
    int32_t ranks[SPEC_MAX_DEPTH + 1], n = 0;
    for (int32_t i = 1; i < p->n_path; i++) ranks[n++] = p->tree.rank[p->path[i]];
    if (speci_tree_next_child(&p->tree, p->path[p->n_path - 1], -1) >= 0) ranks[n++] = -1;
    spec_builder_observe(b, p->tree.n, ranks, n);
}

/* What came of the drafts of drafter k: of `drafted` nodes in the tree and `accepted` ones on the path. */
static void count_drafts(spec_session *s, int32_t k, int32_t drafted, int32_t accepted)
{
    spec_drafter_stats *c = &s->drafters.draft[k].stats;
    c->n_drafted += drafted;
    c->n_accepted += accepted;
    c->n_proposed += drafted > 0;
}

/* A node of a union is the first drafter's that has proposed it. */
static void count_union(spec_session *s, const engine_part *p, const uint8_t *maker)
{
    for (int32_t k = 0; k < s->drafters.n; k++) {
        int32_t drafted = 0, accepted = 0;
        for (int32_t i = 1; i < p->tree.n; i++) drafted += maker[i] == k;
        for (int32_t i = 1; i < p->n_path; i++) accepted += maker[p->path[i]] == k;
        count_drafts(s, k, drafted, accepted);
    }
}

void speci_proposal_tell(spec_session *s, const engine_part *p)
{
    const engine_proposal *own = &s->seqs[p->seq].proposal;
    if (own->builder && own->builder->kind->observe) tell_builder(own->builder, p);
    if (own->by >= 0) count_drafts(s, own->by, p->tree.n - 1, p->n_path - 1);
    else if (own->maker) count_union(s, p, own->maker);
    if (p->round == s->outcome.round) speci_ways_tell(s, p);
}
