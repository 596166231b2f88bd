/* draft_combine.c - several drafters in one session: the first that proposes, or the union of what they propose. */
#include "algorithms/draft/draft.h"

#include <string.h>

spec_builder *speci_draft_builder(const speci_draft *d, int32_t builder)
{
    const spec_drafter *o = d->drafter;
    if (o->n_builder == 0) return NULL;
    return o->builders[builder < o->n_builder ? builder : o->n_builder - 1];
}

/* Of the session's list. */
static spec_status ask(speci_drafters *all, int32_t k, int32_t builder, speci_draft_seq *seqs, int32_t n)
{
    speci_draft *d = &all->draft[k];
    spec_builder *b = speci_draft_builder(d, builder);
    d->grown = NULL;
    if (n == 0 || (b && b->info.n_node < 2)) return SPEC_OK;
    for (int32_t i = 0; i < n; i++) seqs[i].by = k;
    return d->kind->enqueue(d, b, seqs, n);
}

/* The trees are wanted now. */
static spec_status ask_now(speci_drafters *all, int32_t k, int32_t builder, speci_draft_seq *seqs, int32_t n)
{
    speci_draft *d = &all->draft[k];
    SPEC_TRY(ask(all, k, builder, seqs, n));
    if (!d->grown) return SPEC_OK;
    const spec_status status = d->site->ops->sync(d->site->queue);
    d->grown = NULL;
    if (status == SPEC_OK) return d->kind->read(d);
    d->kind->forget(d);
    return status;
}

/* A drafter is asked about the sequences for which none before it has proposed. */
static spec_status ask_first(speci_drafters *all, int32_t builder, speci_draft_seq *seqs, int32_t n)
{
    for (int32_t k = 0; k < all->n; k++) {
        const bool last = k + 1 == all->n;
        int32_t left = 0;
        for (int32_t i = 0; i < n; i++)
            if (seqs[i].tree->n == 1) all->asked[left++] = seqs[i];
        SPEC_TRY(last ? ask(all, k, builder, all->asked, left) : ask_now(all, k, builder, all->asked, left));
        for (int32_t i = n - 1; i >= 0; i--) {
            const bool asked = seqs[i].by < 0;
            if (asked && (last || seqs[i].tree->n > 1)) seqs[i].by = k, seqs[i].depth_max = all->asked[left - 1].depth_max;
            if (asked) left--;
        }
    }
    return SPEC_OK;
}

/* Leaves that do not fit are left out, the last ones first. */
static void merge(speci_drafters *all, spec_tree *tree, spec_tree *other)
{
    for (; other->n > 1; other->n--) {
        if (spec_tree_union(&all->merged, NULL, tree, other) != SPEC_OK) continue;
        for (int32_t i = 0; i < all->merged.n; i++) all->merged.q_row[i] = -1;
        (void)spec_tree_copy(tree, &all->merged); /* has the same room */
        return;
    }
}

static spec_status ask_all(speci_drafters *all, int32_t builder, speci_draft_seq *seqs, int32_t n)
{
    SPEC_TRY(ask_now(all, 0, builder, seqs, n));
    for (int32_t k = 1; k < all->n; k++) {
        for (int32_t i = 0; i < n; i++) {
            all->asked[i] = seqs[i];
            all->asked[i].tree = &all->other[i];
            all->other[i].n = 0, all->other[i].kind = SPEC_TREE_DETERMINISTIC;
            (void)spec_tree_add(&all->other[i], -1, seqs[i].tree->token[0], 1);
        }
        SPEC_TRY(ask_now(all, k, builder, all->asked, n));
        for (int32_t i = 0; i < n; i++) merge(all, seqs[i].tree, &all->other[i]);
    }
    for (int32_t i = 0; i < n; i++) seqs[i].by = -1;
    return SPEC_OK;
}

spec_status speci_draft_enqueue(speci_drafters *all, int32_t drafter, int32_t builder, speci_draft_seq *seqs, int32_t n,
                                speci_draft **pending)
{
    spec_status status;
    int32_t last = drafter;
    *pending = NULL;
    for (int32_t i = 0; i < n; i++) seqs[i].by = -1;
    if (drafter >= 0) {
        status = ask(all, drafter, builder, seqs, n);
    } else if (all->combine == SPEC_DRAFT_UNION) {
        status = ask_all(all, builder, seqs, n);
        last = 0;
    } else {
        status = ask_first(all, builder, seqs, n);
        last = all->n - 1;
    }
    if (status == SPEC_OK && all->draft[last].grown) *pending = &all->draft[last];
    return status;
}
