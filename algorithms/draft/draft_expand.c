/* draft_expand.c - trees that a model grows for a host-driven builder: candidates come to the host after each pass, and the
 * builder's expand callback names the nodes to ask about next (algorithms.md 4, 10). */
#include "algorithms/draft/draft_model.h"

/* Candidates that the builder has been told of sequence seq: [n_q][k]. */
static spec_candidate *seen_by(const model_draft *m, int32_t seq)
{
    return m->seen + (size_t)seq * (size_t)m->d->site->n_q * (size_t)m->d->size.n_candidate;
}

static int32_t node_of_row(const spec_tree *t, int32_t row)
{
    int32_t node = 0;
    while (t->q_row[node] != row) node++;
    return node;
}

/* Could the node that `row` stands behind have children? */
static bool is_open(const model_seq *q, int32_t row)
{
    return speci_tree_depth(q->ask.tree, node_of_row(q->ask.tree, row)) < q->depth;
}

/* Puts the sequences whose builder last named an open node in front; returns how many. */
static int32_t bring_forward(model_draft *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_active; i++) {
        const int32_t seq = m->active[i];
        const model_seq *q = &m->seqs[seq];
        int32_t row = q->n_seen;
        while (row < q->n_row && !is_open(q, row)) row++;
        if (row == q->n_row) continue;
        m->active[i] = m->active[n];
        m->active[n++] = seq;
    }
    return n;
}

/* The candidates just drawn, to their rows; behind a node that is not open there are none. */
static void take_candidates(model_draft *m)
{
    const size_t k = (size_t)m->b->k;
    const spec_candidate *from = m->drawn;
    for (int32_t i = 0; i < m->n_active; i++) {
        model_seq *q = &m->seqs[m->active[i]];
        for (; q->n_seen < q->n_row; q->n_seen++) {
            const bool open = is_open(q, q->n_seen);
            spec_candidate *to = seen_by(m, m->active[i]) + (size_t)q->n_seen * k;
            for (size_t j = 0; j < k; j++) to[j] = open ? from[j] : (spec_candidate){ .token = -1 };
            from += open ? k : 0;
        }
    }
}

/* One pass over what was named, its distributions, and their candidates. */
static spec_status expand_pass(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    const int32_t n = bring_forward(m);
    int32_t n_row = 0;
    if (site->stopped(site->stopped_arg)) return speci_fail(SPEC_E_ABORTED, "stopped while drafting");
    for (int32_t i = 0; i < n; i++) m->feed_base[i] = m->seqs[m->active[i]].n_fed;
    if (n > 0) SPEC_TRY(speci_draft_feed(m, m->active, n));
    for (int32_t i = 0; i < n; i++) {
        const int32_t seq = m->active[i];
        const model_seq *q = &m->seqs[seq];
        const spec_tree *t = q->ask.tree;
        const int32_t end = m->exec->first_row[i] + q->n_fed - m->feed_base[i];
        for (int32_t row = q->n_seen; row < q->n_row; row++) {
            if (!is_open(q, row)) continue;
            m->rows.key[n_row] = speci_builder_key(t, node_of_row(t, row), q->ask.sampling->seed, q->ask.step);
            speci_draft_add_row(m, &n_row, end - (q->n_row - row), seq, row, 0);
        }
    }
    if (n_row > 0) {
        SPEC_TRY(speci_draft_rows(m, n_row, m->b->k, NULL, true, m->drawn));
        SPEC_TRY(site->ops->sync(site->queue));
    }
    take_candidates(m);
    return SPEC_OK;
}

/* Asks the builder, and puts what it names below the chain: node x of the draft is node n_chain - 1 + q_row[x] there. One that
 * is not open keeps its place by another token, since there may be no position for it. */
static spec_status expand(model_draft *m, int32_t seq, int32_t *n_feed)
{
    model_seq *q = &m->seqs[seq];
    const spec_tree *t = q->ask.tree;
    SPEC_TRY(speci_builder_expand(m->b, q->ask.tree, m->vocab.n_q_column, seen_by(m, seq), m->path, n_feed));
    for (int32_t i = 0; i < *n_feed; i++) {
        const int32_t x = m->path[i];
        if (is_open(q, t->q_row[x]))
            (void)spec_tree_add(&q->fed, q->n_chain - 1 + t->q_row[t->parent[x]], speci_draft_feed_id(m, t->token[x]), 0);
        else
            (void)spec_tree_add(&q->fed, 0, 0, 0);
    }
    q->n_row += *n_feed;
    return SPEC_OK;
}

/* A builder may add nodes ahead of knowing that they belong to the tree: what its kind keeps is decided at the end. */
static spec_status finish(model_draft *m, int32_t seq)
{
    model_seq *q = &m->seqs[seq];
    SPEC_TRY(spec_tree_copy(&m->b->pool, q->ask.tree));
    return speci_builder_trim(m->b, &m->b->pool, q->depth, q->ask.tree);
}

spec_status speci_draft_expand(model_draft *m)
{
    for (int32_t i = 0; i < m->n_active; i++) {
        model_seq *q = &m->seqs[m->active[i]];
        q->n_chain = q->fed.n;
        q->n_row = 1, q->n_seen = 0;
        speci_builder_begin(q->ask.tree, q->kind, q->ask.tree->token[0]);
    }
    for (int32_t round = 0; round < m->b->info.n_level && m->n_active > 0; round++) {
        SPEC_TRY(expand_pass(m));
        int32_t kept = 0;
        for (int32_t i = 0; i < m->n_active; i++) {
            int32_t n_feed;
            SPEC_TRY(expand(m, m->active[i], &n_feed));
            if (n_feed > 0) m->active[kept++] = m->active[i];
        }
        m->n_active = kept;
    }
    for (int32_t i = 0; i < m->n_drafting; i++) SPEC_TRY(finish(m, m->drafting[i]));
    return SPEC_OK;
}
