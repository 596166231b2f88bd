/* engine_unseen.c - a drafted tree is scored before the host has seen it.
 *
 * Many builders grow a shape that is known beforehand, and only the tokens are found on the device. So the target's pass is
 * queued right behind the last level, its tokens taken from the tree where that stands (spec_step_block.grown), and the
 * device never waits for the host between a draft and its score. The host reads the tree while the target computes, or with
 * the verdict where that needs no tree (T = 0: the likeliest token of every node). A tree that turns out otherwise, since a
 * distribution had fewer candidates than there were places, is scored once more, as it is: nothing of the first pass is committed.
 * So trees, rules and draws are those of any other step, and so are the tokens. */
#include "algorithms/engine/engine.h"

/* --- which trees --- */

/* Does it grow all candidates of its places, and no place by their values? */
static bool fixed_level(const speci_level *l)
{
    return l->n_add <= 0 && l->threshold <= SPECI_NO_THRESHOLD && (l->n_next == 0 || l->next);
}

static bool fixed(const spec_builder *b)
{
    if (speci_builder_is_host_driven(b) || b->kind->keep) return false;
    for (int32_t i = 0; i < b->info.n_level; i++) {
        if (!fixed_level(&b->levels[i])) return false;
        if (b->levels[i].n_next == 0) return true; /* growth ends here, whatever levels there are behind it */
    }
    return false;
}

static bool all_greedy(const spec_session *s, const int32_t *seqs, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (s->seqs[seqs[i]].sampling.temperature != 0) return false;
    return true;
}

/* What verifies draws has to have the tree while the pass still runs. */
bool speci_unseen_fits(const spec_session *s, const spec_builder *b, const int32_t *seqs, int32_t n)
{
    return s->draft_exec && !s->joint && b && fixed(b) && b->info.n_node <= s->n_node && b->k <= s->target->n_vocab &&
           (s->ops->mark || all_greedy(s, seqs, n));
}

void speci_unseen_foresee(const spec_builder *b, int32_t depth_max, spec_tree *t)
{
    int32_t frontier[SPECI_MAX_NODE] = { 0 }, child[SPECI_MAX_NODE], n_place = 1;
    for (int32_t level = 0; level < depth_max && n_place > 0; level++) {
        const speci_level *l = &b->levels[level];
        const int32_t first = t->n;
        for (int32_t f = 0; f < n_place; f++) {
            const int32_t n = frontier[f] < 0 ? 0 : l->take ? l->take[f] : l->k;
            for (int32_t j = 0; j < n && t->n < b->n_pool; j++) {
                const int32_t x = spec_tree_add(t, frontier[f], j, 1); /* siblings differ */
                child[x] = f * l->k + j;
            }
        }
        n_place = l->n_next;
        for (int32_t i = 0; i < n_place; i++) {
            frontier[i] = -1;
            for (int32_t x = first; x < t->n; x++)
                if (child[x] == l->next[i]) frontier[i] = x;
        }
    }
}

/* --- the step --- */

/* Are the trees that were scored, by their shapes, the drafts? */
static bool as_foreseen(const spec_session *s, const int32_t *seqs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const spec_tree *scored = &s->seqs[seqs[i]].scored, *t = &s->seqs[seqs[i]].draft;
        if (scored->n != t->n) return false;
        for (int32_t x = 0; x < t->n; x++)
            if (scored->parent[x] != t->parent[x]) return false;
    }
    return true;
}

static void unscore(spec_session *s, const int32_t *seqs, int32_t n)
{
    for (int32_t i = 0; i < n; i++) (void)spec_rollback(s, seqs[i]);
}

/* The trees have come. *foreseen: the pass was over them; else it is forgotten. */
static spec_status see(spec_session *s, const int32_t *seqs, int32_t n, bool *foreseen)
{
    const spec_status status = speci_draft_see(s, seqs, n);
    *foreseen = status == SPEC_OK && as_foreseen(s, seqs, n);
    if (!*foreseen) unscore(s, seqs, n);
    for (int32_t i = 0; i < n && *foreseen; i++) speci_score_keep(s, &s->seqs[seqs[i]], &s->seqs[seqs[i]].draft);
    return status;
}

static spec_status score(spec_session *s, const int32_t *seqs, int32_t n)
{
    const speci_exec_feed feed = { .grown = s->grow.node, .ld_grown = s->grow.cap };
    return speci_score(s, seqs, n, s->step_trees, &feed);
}

/* T = 0: the tree comes with the verdict. */
static spec_status step_greedy(spec_session *s, const int32_t *seqs, int32_t n, bool *verified)
{
    SPEC_TRY(score(s, seqs, n));
    SPEC_TRY(speci_verify_enqueue(s, seqs, n, s->rule));
    SPEC_TRY(s->ops->sync(s->queue));
    return see(s, seqs, n, verified);
}

/* The tree comes while the target computes; what verifies it is queued then. */
static spec_status step_sampled(spec_session *s, const int32_t *seqs, int32_t n, bool *verified)
{
    uint64_t drafted;
    SPEC_TRY(s->ops->mark(s->queue, &drafted));
    SPEC_TRY(score(s, seqs, n));
    SPEC_TRY(s->ops->wait(s->queue, drafted));
    SPEC_TRY(see(s, seqs, n, verified));
    if (!*verified) return SPEC_OK;
    SPEC_TRY(speci_verify_enqueue(s, seqs, n, s->rule));
    return s->ops->sync(s->queue);
}

spec_status speci_unseen_step(spec_session *s, const int32_t *seqs, int32_t n, bool *verified)
{
    *verified = false;
    const spec_status status = all_greedy(s, seqs, n) ? step_greedy(s, seqs, n, verified) : step_sampled(s, seqs, n, verified);
    if (status != SPEC_OK) (void)speci_unseen_drop(s, seqs, n);
    return status;
}

spec_status speci_unseen_drop(spec_session *s, const int32_t *seqs, int32_t n)
{
    if (!s->unseen) return SPEC_OK;
    unscore(s, seqs, n);
    const spec_status synced = s->ops->sync(s->queue);
    const spec_status seen = speci_draft_see(s, seqs, n);
    return synced != SPEC_OK ? synced : seen;
}
