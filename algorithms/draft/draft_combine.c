/* draft_combine.c - several drafters in one session: the first that proposes, or the union of what they propose; and what came of that. */
#include "algorithms/draft/draft.h"

#include <string.h>

spec_builder *speci_draft_builder(const speci_draft *d, int32_t builder)
{
    const spec_drafter *o = d->drafter;
    if (o->n_builder == 0) return NULL;
    return o->builders[builder < o->n_builder ? builder : o->n_builder - 1];
}

speci_draft_way speci_draft_way_of(const speci_drafters *all, uint64_t drafters, int32_t builder, int32_t least)
{
    int32_t last = 0;
    while (drafters >> last > 1) last++;
    const bool alone = drafters == (uint64_t)1 << last;
    return (speci_draft_way){ .drafters = drafters, .builder = builder, .least = least, .last = last, .alone = alone,
                              .only = alone ? speci_draft_builder(&all->draft[last], builder) : NULL };
}

/* --- one of the session's list --- */

static spec_status ask(speci_drafters *all, int32_t k, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    speci_draft *d = &all->draft[k];
    d->grown = NULL;
    for (int32_t i = 0; i < n; i++) seqs[i].by = k, seqs[i].builder = b;
    if (n == 0 || (b && b->info.n_node < 2)) return SPEC_OK;
    const double start = speci_now_ms();
    const spec_status status = d->kind->enqueue(d, b, seqs, n);
    d->stats.n_asked += n;
    d->stats.us += 1e3 * (speci_now_ms() - start);
    return status;
}

spec_status speci_draft_take(speci_draft *d, spec_status status)
{
    const double start = speci_now_ms();
    d->grown = NULL;
    if (status == SPEC_OK) status = d->kind->read(d);
    if (status != SPEC_OK) d->kind->forget(d);
    d->stats.us += 1e3 * (speci_now_ms() - start);
    return status;
}

/* The trees are wanted now. */
static spec_status ask_now(speci_drafters *all, int32_t k, spec_builder *b, speci_draft_seq *seqs, int32_t n)
{
    speci_draft *d = &all->draft[k];
    SPEC_TRY(ask(all, k, b, seqs, n));
    if (!d->grown) return SPEC_OK;
    const double start = speci_now_ms();
    const spec_status status = d->site->ops->sync(d->site->queue);
    d->stats.us += 1e3 * (speci_now_ms() - start);
    return speci_draft_take(d, status);
}

/* --- the first that proposes --- */

/* A drafter is asked about the sequences for which none before it has proposed. */
static spec_status ask_first(speci_drafters *all, const speci_draft_way *way, speci_draft_seq *seqs, int32_t n)
{
    for (int32_t k = 0; k < all->n; k++) {
        if (!(way->drafters >> k & 1)) continue;
        const bool last = way->drafters >> k == 1;
        int32_t left = 0;
        for (int32_t i = 0; i < n; i++)
            if (seqs[i].tree->n == 1) all->asked[left++] = seqs[i];
        for (int32_t i = 0; i < left; i++) all->asked[i].in_front = !last;
        SPEC_TRY((last ? ask : ask_now)(all, k, speci_draft_builder(&all->draft[k], way->builder), all->asked, left));
        for (int32_t i = n - 1; i >= 0; i--) {
            if (seqs[i].by >= 0) continue;
            const speci_draft_seq *x = &all->asked[--left];
            if (!last && x->tree->n == 1) continue;
            seqs[i].by = k, seqs[i].builder = x->builder, seqs[i].depth_max = x->depth_max, seqs[i].n_match = x->n_match;
        }
    }
    return SPEC_OK;
}

/* --- the union --- */

/* Drafter k's nodes are those of the united tree that were not in q's before. */
static void name_makers(const speci_draft_seq *q, const spec_tree *united, int32_t k)
{
    int32_t at[SPECI_MAX_NODE] = { 0 };
    uint8_t before[SPECI_MAX_NODE];
    memcpy(before, q->maker, sizeof before);
    memset(q->maker, k, sizeof before);
    for (int32_t i = 1; i < q->tree->n; i++) {
        at[i] = speci_tree_child_with(united, at[q->tree->parent[i]], q->tree->token[i]);
        q->maker[at[i]] = before[i];
    }
}

/* The united tree is in place of q's. */
static void take_merged(speci_drafters *all, speci_draft_seq *q, int32_t k)
{
    for (int32_t i = 0; i < all->merged.n; i++) all->merged.q_row[i] = -1;
    name_makers(q, &all->merged, k);
    (void)spec_tree_copy(q->tree, &all->merged); /* has the same room */
}

/* Leaves that do not fit are left out, the last ones first. */
static void unite(speci_drafters *all, speci_draft_seq *q, spec_tree *other, int32_t k)
{
    int32_t map[SPECI_MAX_NODE];
    for (; other->n > 1; other->n--) {
        if (speci_tree_union(&all->merged, map, q->tree, other) != SPEC_OK) continue;
        take_merged(all, q, k);
        q->by = -1, q->builder = NULL;
        return;
    }
}

/* What one drafter alone has proposed stays as it made it, so that the rules that fit its kind remain: whether another proposes too
 * follows from what was known before anything was drawn (3.6). */
static void merge(speci_drafters *all, speci_draft_seq *q, const speci_draft_seq *asked, int32_t k)
{
    spec_tree *other = asked->tree;
    if (other->n < 2) return;
    if (q->tree->n > 1) {
        unite(all, q, other, k);
        return;
    }
    (void)spec_tree_copy(q->tree, other); /* has the same room */
    memset(q->maker, k, SPECI_MAX_NODE);
    q->by = k, q->builder = asked->builder;
}

/* Rows of draft distributions are there once: those of the drafter that was asked last. Without its rows a tree is no draw. So a
 * token stands but once among siblings: a tree that repeats some is united with itself. */
static spec_status forget_rows(speci_drafters *all, speci_draft_seq *q)
{
    spec_tree *t = q->tree;
    if (t->kind == SPEC_TREE_SAMPLED_IID) {
        int32_t map[SPECI_MAX_NODE];
        spec_status status;
        while ((status = speci_tree_union(&all->merged, map, t, t)) == SPEC_E_FULL) t->n--; /* the session would cut it, too */
        SPEC_TRY(status);
        take_merged(all, q, 0);
    }
    for (int32_t i = 0; i < t->n; i++) t->q_row[i] = -1;
    t->kind = SPEC_TREE_DETERMINISTIC;
    return SPEC_OK;
}

static spec_status ask_all(speci_drafters *all, int32_t builder, speci_draft_seq *seqs, int32_t n)
{
    for (int32_t k = 0; k < all->n; k++) {
        for (int32_t i = 0; i < n; i++) {
            all->asked[i] = seqs[i];
            all->asked[i].tree = &all->other[i];
            all->other[i].n = 0, all->other[i].kind = SPEC_TREE_DETERMINISTIC;
            (void)spec_tree_add(&all->other[i], -1, seqs[i].tree->token[0], 1);
        }
        SPEC_TRY(ask_now(all, k, speci_draft_builder(&all->draft[k], builder), all->asked, n));
        for (int32_t i = 0; i < n; i++) {
            if (all->draft[k].size.n_q > 0) SPEC_TRY(forget_rows(all, &seqs[i]));
            merge(all, &seqs[i], &all->asked[i], k);
        }
    }
    return SPEC_OK;
}

/* --- a way to draft --- */

spec_status speci_draft_enqueue(speci_drafters *all, const speci_draft_way *way, speci_draft_seq *seqs, int32_t n, speci_draft **pending)
{
    *pending = NULL;
    if (way->alone) SPEC_TRY(ask(all, way->last, way->only, seqs, n));
    else if (all->combine == SPEC_DRAFT_UNION) return ask_all(all, way->builder, seqs, n);
    else SPEC_TRY(ask_first(all, way, seqs, n));
    if (all->draft[way->last].grown) *pending = &all->draft[way->last];
    return SPEC_OK;
}

/* --- what came of them --- */

void speci_drafters_committed(speci_drafters *all, int32_t n, const speci_draft_seq *q, int32_t n_new)
{
    for (int32_t k = 0; k < n; k++) {
        speci_draft *d = &all->draft[k];
        if (d->kind->committed) d->kind->committed(d, q, n_new);
    }
}

/* Where on the path drafts were accepted: at which rank, or nowhere among a node's children. */
static void tell_builder(const speci_draft_outcome *o)
{
    int32_t ranks[SPEC_MAX_DEPTH + 1], n = 0;
    for (int32_t i = 1; i < o->n_path; i++) ranks[n++] = o->tree->rank[o->path[i]];
    if (speci_tree_next_child(o->tree, o->path[o->n_path - 1], -1) >= 0) ranks[n++] = -1;
    spec_builder_observe(o->builder, o->tree->n, ranks, n);
}

/* A node of a union is the first drafter's that has proposed it. */
void speci_drafters_tell(speci_drafters *all, const speci_draft_outcome *o)
{
    if (o->builder && o->builder->kind->observe) tell_builder(o);
    for (int32_t k = 0; k < all->n; k++) {
        spec_drafter_stats *c = &all->draft[k].stats;
        int32_t drafted = 0, accepted = 0;
        for (int32_t i = 1; i < o->tree->n; i++) drafted += o->by >= 0 ? o->by == k : o->maker && o->maker[i] == k;
        for (int32_t i = 1; i < o->n_path; i++) accepted += o->by >= 0 ? o->by == k : o->maker && o->maker[o->path[i]] == k;
        c->n_drafted += drafted;
        c->n_accepted += accepted;
        c->n_proposed += drafted > 0;
    }
}
