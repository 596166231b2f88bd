/* draft_again.c - a head whose rows are a chain drafts once more from those that a rejection has left (algorithms.md 17.5, 17.6). A row
 * speaks of a place of the text, whatever stands in front of it. So behind the newest token the rows of the chain before, from that place
 * on, give a tree of the same builder; its best nodes join the fresh one, and one pass of the target verifies both. The union is
 * deterministic; trees that are drawn get none. */
#include "algorithms/draft/draft_model.h"

/* Rows of the chain before that speak of what follows the newest token; *first: the first of them. 0: too few. */
static int32_t rows_left(const model_draft *m, const model_seq *s, int32_t *first)
{
    const int32_t before = s->half ^ 1, left = s->kept[before].n - (s->ask.n_ids - s->kept[before].at);
    *first = s->kept[before].n - left;
    return s->kept[before].n > 0 && *first > 0 && left > m->d->drafter->resample_left ? left : 0;
}

/* The sequences that get more: their trees are to grow from those rows. Returns how many. */
static int32_t begin(model_draft *m)
{
    int32_t n = 0;
    for (int32_t i = 0; i < m->n_drafting; i++) {
        const int32_t seq = m->drafting[i];
        model_seq *s = &m->seqs[seq];
        int32_t first;
        const int32_t left = rows_left(m, s, &first);
        if (left == 0 || speci_builder_samples(m->b, speci_draft_samples(s))) continue;
        spec_tree *t = &m->chain.again[seq];
        t->n = 0, t->kind = SPEC_TREE_DETERMINISTIC;
        (void)spec_tree_add(t, -1, s->ask.tree->token[0], 1);
        s->row_half = s->half ^ 1, s->row = first;
        s->fed.n = s->place + 1, s->n_fed = s->place; /* the numbers of the fresh tree's nodes once more */
        if (left < s->depth) s->depth = left;
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
        if (spec_tree_union(merged, NULL, fresh, again) != SPEC_OK || merged->n > fresh->cap) continue;
        if (merged->n == fresh->n) return SPEC_OK;
        for (int32_t i = 0; i < merged->n; i++) merged->q_row[i] = -1;
        return spec_tree_copy(fresh, merged);
    }
    return SPEC_OK;
}

static spec_status take(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    spec_tree *fresh = s->ask.tree;
    s->ask.tree = &m->chain.again[seq];
    const spec_status status = speci_draft_take_tree(m, seq);
    s->ask.tree = fresh;
    SPEC_TRY(status);
    keep_best(m, &m->chain.again[seq], m->d->drafter->n_resample);
    return unite(m, seq);
}

spec_status speci_draft_again(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    SPEC_TRY(site->ops->sync(site->queue));
    SPEC_TRY(speci_draft_grow_read(m));
    const int32_t n = m->n_active = begin(m);
    if (n == 0) return SPEC_OK;
    SPEC_TRY(speci_draft_grow_levels(m)); /* which shortens the list, in order of depth */
    SPEC_TRY(site->ops->sync(site->queue));
    for (int32_t i = 0; i < m->n_drafting; i++)
        if (m->seqs[m->drafting[i]].row > 0) SPEC_TRY(take(m, m->drafting[i]));
    return SPEC_OK;
}
