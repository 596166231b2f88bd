/* engine_profile.c - step costs of a session: passes of the target and of a drafter timed by their nodes, and what the choice
 * among ways to draft makes of them (algorithms.md 14). */
#include "algorithms/engine/engine.h"

/* A tree that branches everywhere: node i hangs below node (i - 1) / 2. */
static void binary_tree(spec_tree *t, int32_t n)
{
    t->n = 0;
    for (int32_t i = 0; i < n; i++) (void)spec_tree_add(t, i == 0 ? -1 : (i - 1) / 2, i == 0 ? 0 : i % 2, 1);
}

/* The sizes that are timed: powers of two, and n_max. 0: no more. */
static int32_t next_size(int32_t n, int32_t n_max)
{
    if (n >= n_max) return 0;
    return n > 0 && 2 * n > n_max ? n_max : n == 0 ? 1 : 2 * n;
}

/* Median milliseconds of a pass over `tree`; nothing of it is kept. */
static spec_status time_pass(spec_session *s, speci_exec *exec, int32_t seq, const spec_tree *tree, float *ms)
{
    double times[SPECI_TIMINGS];
    for (int32_t i = -2; i < SPECI_TIMINGS; i++) { /* two to warm up */
        const double start = s->now_ms();
        const speci_exec_input in = { .slot = seq, .tree = tree };
        SPEC_TRY(speci_exec_forward(exec, &in, 1, NULL, NULL));
        speci_exec_commit(exec, seq, NULL, 0);
        SPEC_TRY(s->ops->sync(s->queue));
        if (i >= 0) times[i] = s->now_ms() - start;
    }
    *ms = (float)speci_by_rank(times, SPECI_TIMINGS, SPECI_TIMINGS / 2);
    return SPEC_OK;
}

static spec_status time_passes(spec_session *s, speci_exec *exec, int32_t seq, int32_t n_max, spec_tree *tree,
                               spec_cost_table *out)
{
    out->n = 0;
    for (int32_t n = 0; (n = next_size(n, n_max)) > 0; out->n++) {
        binary_tree(tree, n);
        out->n_node[out->n] = n;
        SPEC_TRY(time_pass(s, exec, seq, tree, &out->ms[out->n]));
    }
    return SPEC_OK;
}

static spec_status warm_passes(speci_exec *exec, int32_t seq, int32_t n_max, spec_tree *tree)
{
    for (int32_t n = 0; (n = next_size(n, n_max)) > 0;) {
        binary_tree(tree, n);
        SPEC_TRY(speci_exec_warm(exec, seq, tree));
    }
    return SPEC_OK;
}

/* The first drafter whose passes can be timed. */
static speci_exec *timed_drafter(const spec_session *s, int32_t seq, int32_t *n_timed, int32_t *n_most)
{
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const speci_draft *d = &s->drafters.draft[k];
        if (d->kind->exec) return d->kind->exec(d, seq, n_timed, n_most);
    }
    return NULL;
}

/* With a sequence of one token. out NULL: passes are made ready and not timed. */
static spec_status measure_passes(spec_session *s, spec_tree *tree, spec_cost_profile *out)
{
    static const int32_t token = 0;
    int32_t seq, n_timed = 0, n_most = 0;
    SPEC_TRY(speci_sequence_add(s, &seq, &token, 1, NULL));
    spec_status status = speci_sequence_consume(s, seq, 0, NULL);
    speci_exec *drafter = timed_drafter(s, seq, &n_timed, &n_most);
    if (status == SPEC_OK)
        status = out ? time_passes(s, s->exec, seq, s->n_node, tree, &out->target)
                     : warm_passes(s->exec, seq, s->n_node, tree);
    if (status == SPEC_OK && drafter)
        status = out ? time_passes(s, drafter, seq, n_timed, tree, &out->draft) : warm_passes(drafter, seq, n_most, tree);
    speci_sequence_end(s, seq);
    return status;
}

static spec_status measure(spec_session *s, spec_cost_profile *out)
{
    spec_tree tree;
    const int32_t n_node = s->n_node > s->site.n_q + 64 ? s->n_node : s->site.n_q + 64;
    SPEC_TRY(spec_tree_alloc(&tree, n_node, s->a));
    spec_status status = measure_passes(s, &tree, NULL);
    if (status == SPEC_OK) status = measure_passes(s, &tree, out);
    spec_tree_free(&tree, s->a);
    for (int32_t i = 0; i < s->n_seq; i++) s->seqs[i].part = -1; /* the rows of their pass are gone */
    return status;
}

/* Builders that weigh costs are told. */
static spec_status give_costs(spec_session *s)
{
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const spec_drafter *d = s->drafters.draft[k].drafter;
        for (int32_t i = 0; i < d->n_builder; i++) SPEC_TRY(spec_builder_costs(d->builders[i], &s->profile));
    }
    return SPEC_OK;
}

spec_status spec_session_profile(spec_session *s, spec_cost_profile *out)
{
    ENGINE_ENTER(s);
    SPEC_NEED(out, "out");
    spec_cost_profile *p = &s->profile;
    if (p->target.n == 0) {
        const spec_status status = measure(s, p);
        if (status != SPEC_OK) {
            p->target.n = p->draft.n = 0;
            return status;
        }
        SPEC_TRY(give_costs(s));
    }
    return speci_params_write(out, p, sizeof *p, "spec_cost_profile");
}

/* --- for the choice --- */

/* A profile that was loaded may know of a drafter that is not here. */
static double draft_ms(const spec_session *s, const engine_way *w, int32_t n_seq)
{
    double ms = 0;
    for (int32_t k = 0; k < s->drafters.n; k++) {
        const speci_draft *d = &s->drafters.draft[k];
        if (!d->kind->exec || (w->drafter >= 0 && w->drafter != k)) continue;
        ms += speci_choice_draft_ms(speci_draft_builder(d, w->builder), &s->profile.draft, n_seq);
    }
    return ms;
}

static double step_ms(const void *session, int32_t arm, double n_node, int32_t n_seq)
{
    const spec_session *s = session;
    const double ms = (double)spec_cost_ms(&s->profile.target, (int32_t)(n_node * n_seq + 0.5));
    return arm > 0 ? ms + draft_ms(s, &s->ways[arm - 1], n_seq) : ms;
}

spec_status speci_profile_open(spec_session *s, spec_adapt adapt, const char *profile)
{
    s->profile.struct_size = sizeof s->profile;
    if (profile) {
        SPEC_TRY(spec_cost_load(&s->profile, profile));
        SPEC_TRY(give_costs(s));
    }
    SPEC_TRY(speci_choice_open(&s->choice, adapt, 1 + s->n_way, s->a));
    s->choice.cost = step_ms, s->choice.cost_arg = s;
    s->choice.counts_overhead = profile == NULL;
    if (s->choice.mode != SPEC_ADAPT_COST) return SPEC_OK;
    spec_cost_profile measured = { .struct_size = sizeof measured };
    return spec_session_profile(s, &measured);
}
