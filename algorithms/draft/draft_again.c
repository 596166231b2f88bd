/* draft_again.c - a head whose rows are a chain drafts once more from those that a rejection has left (algorithms.md 17.5, 17.6). A row
 * speaks of a place of the text, whatever stands in front of it. So behind the newest token the rows of the chain before, from that place
 * on, give a tree of the same builder, verified in one pass of the target with fresh ones:
 *   of the same sequence    its best nodes join the fresh tree. The union is deterministic; trees that are drawn get none
 *   of other sequences      it stands in place of the fresh tree (rides), of any builder, and the sequence is not fed in that step.
 *                           Its rows serve so once; then there is a new chain */
#include "algorithms/draft/draft_model.h"

/* Rows of the chain in this half that speak of what follows the newest token; *first: the first of them. 0: too few. */
static int32_t rows_left(const model_draft *m, const model_seq *s, int32_t half, int32_t *first)
{
    const int32_t left = s->kept[half].n - (s->ask.n_ids - s->kept[half].at);
    *first = s->kept[half].n - left;
    return s->kept[half].n > 0 && *first > 0 && left > m->d->drafter->resample_left ? left : 0;
}

/* Levels are to take these rows. */
static void take_rows(model_seq *s, int32_t half, int32_t first, int32_t left)
{
    s->row_half = half, s->row = first;
    if (left < s->depth) s->depth = left;
}

/* --- in place of a fresh tree --- */

/* Is every draft of this builder one from chains, whatever stands in front? */
static bool may_ride(const model_draft *m)
{
    return m->chain.n_level > 0 && !m->chain.off && !m->b->host_driven && m->n_chain + 2 * m->b->info.depth <= SPEC_MAX_DEPTH;
}

static bool wants_to_ride(const model_draft *m, const model_seq *s)
{
    int32_t first;
    return (s->rode_at == 0 || s->rode_at == s->ask.n_ids) && rows_left(m, s, s->half, &first) > 0;
}

/* Half of the sequences at most: beside the drafts of the others. Those that wait for their turn come first in the next one. */
void speci_draft_choose_riders(model_draft *m)
{
    if (!may_ride(m)) return;
    m->n_active = 0;
    for (int32_t i = m->n_drafting - 1, n = 0; i >= 0; i--) {
        model_seq *s = &m->seqs[m->drafting[i]];
        s->rides = n < m->n_drafting / 2 && wants_to_ride(m, s);
        n += s->rides;
    }
    for (int32_t i = 0; i < m->n_drafting; i++)
        if (!m->seqs[m->drafting[i]].rides) m->active[m->n_active++] = m->drafting[i];
}

/* In `fed` stands a root for the levels alone: the executor is not fed. */
void speci_draft_join_riders(model_draft *m, speci_draft_seq *seqs, int32_t n)
{
    for (int32_t i = 0; i < m->n_drafting; i++) {
        model_seq *s = &m->seqs[m->drafting[i]];
        int32_t first;
        if (!s->rides) continue;
        const int32_t left = rows_left(m, s, s->half, &first), root = s->ask.tree->token[0];
        take_rows(s, s->half, first, left);
        s->rode_at = s->ask.n_ids;
        s->fed.n = 0;
        s->place = spec_tree_add(&s->fed, spec_tree_add(&s->fed, -1, root, 1), root, 1);
        s->n_fed = s->place;
        m->active[m->n_active++] = m->drafting[i];
    }
    for (int32_t i = 0; i < n; i++)
        if (m->seqs[seqs[i].seq].rides) seqs[i].depth_max = m->seqs[seqs[i].seq].depth;
}

/* --- beside a fresh tree --- */

/* The sequences that get more: their trees are to grow from the rows of the chain before. Returns how many. */
static int32_t begin(model_draft *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_drafting; i++) {
        const int32_t seq = m->drafting[i];
        model_seq *s = &m->seqs[seq];
        int32_t first = 0;
        const int32_t left = s->rides ? 0 : rows_left(m, s, s->half ^ 1, &first);
        s->again.grows = left > 0 && s->kind == SPEC_TREE_DETERMINISTIC;
        if (!s->again.grows) continue;
        spec_tree *t = &m->chain.again[seq];
        t->n = 0, t->kind = SPEC_TREE_DETERMINISTIC;
        (void)spec_tree_add(t, -1, s->ask.tree->token[0], 1);
        s->again.n_fed = s->n_fed, s->again.depth = s->depth;
        take_rows(s, s->half ^ 1, first, left);
        s->n_fed = s->place; /* the numbers of the fresh tree's nodes once more */
        m->active[n++] = seq;
    }
    return n;
}

/* Of a tree the n nodes of the largest values; of equal ones the earlier, which is never deeper. */
static void keep_best(model_draft *m, spec_tree *t, int32_t n)
{
    double value[SPECI_MAX_NODE] = { 1 };
    uint8_t keep[SPECI_MAX_NODE] = { 1 };
    for (int32_t i = 1; i < t->n; i++) value[i] = value[t->parent[i]] * (double)(t->prob[i] < 1 ? t->prob[i] : 1);
    for (; n > 0; n--) {
        int32_t best = 0;
        for (int32_t i = 1; i < t->n; i++)
            if (!keep[i] && (best == 0 || value[i] > value[best])) best = i;
        keep[best] = 1;
    }
    spec_tree_prune(t, m->path, keep, 0);
}

/* Nodes that do not fit are left out, the last ones first. */
static spec_status unite(model_draft *m, int32_t seq)
{
    spec_tree *fresh = m->seqs[seq].ask.tree, *again = &m->chain.again[seq], *merged = &m->chain.merged;
    for (; again->n > 1; again->n--) {
        if (speci_tree_union(merged, m->path, fresh, again) != SPEC_OK || merged->n > fresh->cap) continue;
        if (merged->n == fresh->n) return SPEC_OK;
        for (int32_t i = 0; i < merged->n; i++) merged->q_row[i] = -1;
        return spec_tree_copy(fresh, merged);
    }
    return SPEC_OK;
}

/* The tree that grew second, into chain.again. */
static spec_status take_second(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    spec_tree *fresh = s->ask.tree;
    s->ask.tree = &m->chain.again[seq];
    const spec_status status = speci_draft_take_tree(m, seq, &m->chain.grown);
    s->ask.tree = fresh;
    return status;
}

/* The root's place stands in `fed` behind all that it was fed; the nodes of either tree stand above. */
static spec_status take(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    if (!s->again.grows) return speci_draft_take_tree(m, seq, &m->grown);
    SPEC_TRY(take_second(m, seq));
    s->fed.n = s->place + 1, s->n_fed = s->again.n_fed, s->depth = s->again.depth;
    SPEC_TRY(speci_draft_take_tree(m, seq, &m->grown));
    keep_best(m, &m->chain.again[seq], m->d->drafter->n_resample);
    return unite(m, seq);
}

/* Both growths are queued before either is read. */
spec_status speci_draft_again(model_draft *m, bool *taken)
{
    const speci_draft_site *site = m->d->site;
    m->n_active = begin(m);
    if (m->n_active == 0) return SPEC_OK;
    *taken = true;
    SPEC_TRY(speci_draft_grow(m, &m->chain.grown)); /* which shortens the list, in order of depth */
    SPEC_TRY(site->ops->sync(site->queue));
    for (int32_t i = 0; i < m->n_drafting; i++) SPEC_TRY(take(m, m->drafting[i]));
    return SPEC_OK;
}
