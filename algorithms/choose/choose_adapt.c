/* choose_adapt.c - which tree to draft, or none: a session's choice among its drafter's builders (algorithms.md 13, 14).
 *
 * Arm 0 does not speculate; arm 1 + i is builder i. COST weighs the mean number of emitted tokens of each arm, as seen so
 * far and with what it may be beyond that, against what its step costs by the profile, and what its rounds take beside the
 * profile's passes (drafts of the application's own, draws, acceptance, the host; less than nothing where steps go ahead);
 * UCB lets a bandit weigh tokens against measured time. */
#include "algorithms/engine/engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP_PULLS = 4, DWELL = 16, REPEATS = 5 };
/* COST is a discounted UCB (Garivier and Moulines 2011): with each round the past of every arm weighs less, so that a mean
 * that is old or of few steps is doubted, and tried again. A mean of n steps may be DOUBT / sqrt(n) tokens too low; emitted
 * tokens of a step differ by about one. SWITCH_THRESHOLD: drafting that gains less than this over plain steps is not worth the
 * changes between them. Measured: docs/performance.md. */
static const double DISCOUNT = 0.999, EXPLORATION = 1, SWITCH_THRESHOLD = 1.02;

static int32_t n_arm(const spec_session *s)
{
    const int32_t n = s->drafter ? s->drafter->n_builder : 0;
    return 1 + (n > 0 ? n : s->drafter != NULL);
}

/* --- the profile --- */

static int compare_ms(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The one that `rank` others are not above. Sorts. */
static double by_rank(double *ms, size_t n, size_t rank)
{
    qsort(ms, n, sizeof *ms, compare_ms);
    return ms[rank];
}

/* A tree that branches everywhere: node i hangs below node (i - 1) / 2. */
static void binary_tree(spec_tree *t, int32_t n, int32_t token)
{
    t->n = 0;
    for (int32_t i = 0; i < n; i++) (void)spec_tree_add(t, i == 0 ? -1 : (i - 1) / 2, i == 0 ? token : i % 2, 1);
}

/* Median milliseconds of a pass of `net` over `tree` for slot `seq`; nothing of it is kept. */
static spec_status time_pass(spec_session *s, speci_exec *net, int32_t seq, const spec_tree *tree, float *ms)
{
    double times[REPEATS];
    for (int32_t i = -2; i < REPEATS; i++) { /* two to warm up */
        const double start = speci_now_ms();
        const speci_exec_input in = { .slot = seq, .tree = tree };
        SPEC_TRY(speci_exec_forward(net, &in, 1, NULL, NULL));
        speci_exec_commit(net, seq, NULL, 0);
        SPEC_TRY(s->ops->sync(s->queue));
        if (i >= 0) times[i] = speci_now_ms() - start;
    }
    *ms = (float)by_rank(times, REPEATS, REPEATS / 2);
    return SPEC_OK;
}

/* Sizes of passes: powers of two, and the largest. */
static int32_t size_behind(int32_t n, int32_t n_max) { return n < n_max && 2 * n > n_max ? n_max : 2 * n; }

static spec_status warm_net(spec_session *s, speci_exec *net, int32_t seq, int32_t n_max, spec_tree *tree)
{
    for (int32_t n = 1; n <= n_max; n = size_behind(n, n_max)) {
        binary_tree(tree, n, s->seqs[seq].ids[0]);
        SPEC_TRY(speci_exec_warm(net, seq, tree));
    }
    return SPEC_OK;
}

static spec_status time_net(spec_session *s, speci_exec *net, int32_t seq, int32_t n_max, spec_tree *tree, spec_cost_table *out)
{
    out->n = 0;
    for (int32_t n = 1; n <= n_max; n = size_behind(n, n_max)) {
        binary_tree(tree, n, s->seqs[seq].ids[0]);
        out->n_node[out->n] = n;
        SPEC_TRY(time_pass(s, net, seq, tree, &out->ms[out->n]));
        out->n++;
    }
    return SPEC_OK;
}

/* Both nets, made ready (out NULL) or timed, with a sequence of one token. No level of a draft is as large as a pass that
 * catches up may be: that is made ready alone. */
static spec_status measure_nets(spec_session *s, spec_tree *tree, spec_cost_profile *out)
{
    static const int32_t token = 0;
    int32_t seq;
    SPEC_TRY(spec_sequence_add(s, &seq, &token, 1, NULL));
    spec_status status = out ? time_net(s, s->net, seq, s->n_node, tree, &out->target) : warm_net(s, s->net, seq, s->n_node, tree);
    if (status == SPEC_OK && s->draft_exec && !s->seqs[seq].no_draft)
        status = out ? time_net(s, s->draft_exec, seq, s->n_q + 1, tree, &out->draft)
                     : warm_net(s, s->draft_exec, seq, s->draft_node, tree);
    (void)spec_sequence_remove(s, seq);
    return status;
}

static spec_status measure(spec_session *s, spec_cost_profile *out)
{
    spec_tree tree;
    SPEC_TRY(spec_tree_alloc(&tree, s->n_node > s->draft_node ? s->n_node : s->draft_node, s->a));
    spec_status status = measure_nets(s, &tree, NULL);
    if (status == SPEC_OK) status = measure_nets(s, &tree, out);
    spec_tree_free(&tree, s->a);
    for (int32_t i = 0; i < s->n_seq; i++) s->seqs[i].scored.n = 0; /* the rows of their pass are gone */
    return status;
}

/* Builders that weigh costs are told. */
static spec_status give_costs(spec_session *s)
{
    for (int32_t i = 0; s->drafter && i < s->drafter->n_builder; i++)
        SPEC_TRY(spec_builder_costs(s->drafter->builders[i], &s->adapt.profile));
    return SPEC_OK;
}

spec_status spec_session_profile(spec_session *s, spec_cost_profile *out)
{
    spec_cost_profile *p = &s->adapt.profile;
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

/* --- what a step of an arm costs --- */

static double draft_ms(const spec_session *s, int32_t arm, int32_t n_seq)
{
    const spec_cost_table *t = &s->adapt.profile.draft;
    if (arm == 0 || t->n == 0 || !s->draft_exec) return 0; /* a loaded profile may know of a drafter that is not here */
    const spec_builder *b = s->drafter->builders[arm - 1];
    double ms = 0;
    if (speci_builder_is_host_driven(b)) { /* about one look per doubling of the tree, its nodes spread over them */
        int32_t n_candidate_row = 1;
        while (1 << n_candidate_row < b->info.n_node) n_candidate_row++;
        return n_candidate_row * (double)spec_cost_ms(t, n_seq * ((b->info.n_node + n_candidate_row - 1) / n_candidate_row));
    }
    for (int32_t l = 0; l < b->info.n_level; l++) {
        ms += spec_cost_ms(t, n_seq * (l == 0 ? 2 : b->levels[l].n_place)); /* the root comes with what was committed */
        if (b->levels[l].n_next == 0) break;
    }
    return ms;
}

static double step_ms(const spec_session *s, int32_t arm, int32_t n_seq)
{
    const algo_arm *a = &s->adapt.arms[arm];
    const double n_node = arm == 0 || a->n_step == 0 ? 1 : a->n_node / a->n_step;
    return spec_cost_ms(&s->adapt.profile.target, (int32_t)(n_node * n_seq + 0.5)) + draft_ms(s, arm, n_seq);
}

/* What the arm's rounds take beside its passes, the first behind another arm's left out: the lower quartile of the latest,
 * since what disturbs a round (a kernel is loaded, a pass captured) makes it longer. 0: not known. */
static double overhead_ms(const algo_arm *a)
{
    double ms[ALGO_OVERHEAD];
    const size_t n = a->n_overhead < ALGO_OVERHEAD ? (size_t)a->n_overhead : ALGO_OVERHEAD;
    if (n == 0) return 0;
    memcpy(ms, a->overhead, n * sizeof *ms);
    return by_rank(ms, n, n / 4);
}

/* --- choice --- */

static double emitted_tokens(const algo_arm *a, bool drafts)
{
    if (!drafts) return SWITCH_THRESHOLD; /* plain steps emit one token */
    return a->n_emitted / a->n_step + EXPLORATION / sqrt(a->n_step);
}

/* Every arm is used a few times first. Then one stays for some rounds: a drafter that was not used has to catch up, and a
 * plain step behind a tree is not ahead. */
static int32_t choose_by_cost(const spec_session *s, int32_t n_seq)
{
    const int32_t n = n_arm(s);
    double emitted[SPEC_MAX_ARM], ms[SPEC_MAX_ARM];
    const int64_t chosen = s->adapt.n_round - (int64_t)WARM_UP_PULLS * n; /* rounds */
    if (chosen < 0) return (int32_t)(s->adapt.n_round / WARM_UP_PULLS);
    if (chosen % DWELL != 0) return s->adapt.arm;
    for (int32_t i = 0; i < n; i++) {
        const algo_arm *a = &s->adapt.arms[i];
        const double passes = step_ms(s, i, n_seq);
        emitted[i] = emitted_tokens(a, i > 0);
        ms[i] = fmax(passes + overhead_ms(a), passes / 8); /* passes that were never seen may be overrated */
    }
    return spec_choose_rate(emitted, ms, n);
}

int32_t speci_adapt_choose(const spec_session *s, int32_t n_seq)
{
    if (s->adapt.mode == SPEC_ADAPT_OFF) return 0;
    return (s->adapt.mode == SPEC_ADAPT_COST ? choose_by_cost(s, n_seq) : spec_bandit_choose(&s->adapt.bandit)) - 1;
}

void speci_adapt_begin(spec_session *s, int32_t builder, const int32_t *seqs, int32_t n, double start)
{
    algo_adapt *a = &s->adapt;
    for (int32_t i = 0; i < s->n_seq; i++) s->seqs[i].in_round = false;
    for (int32_t i = 0; i < n; i++) {
        algo_seq *q = &s->seqs[seqs[i]];
        q->arm = builder;
        q->in_round = true;
    }
    a->start = start;
    a->n_seq = n, a->n_done = 0;
    a->n_emitted = a->n_node = 0;
}

/* A round is over: builder `arm` - 1 drafted for all of its sequences. */
static void update_arm(spec_session *s, int32_t arm, double ms)
{
    algo_adapt *a = &s->adapt;
    algo_arm *m = &a->arms[arm];
    if (a->measured && arm == a->arm) m->overhead[m->n_overhead++ % ALGO_OVERHEAD] = ms - step_ms(s, arm, a->n_seq);
    a->arm = arm;
    for (int32_t i = 0, n = n_arm(s); i < n; i++)
        a->arms[i].n_step *= DISCOUNT, a->arms[i].n_emitted *= DISCOUNT, a->arms[i].n_node *= DISCOUNT;
    m->n_step += a->n_done;
    m->n_emitted += a->n_emitted;
    m->n_node += a->n_node;
    a->n_round++;
    if (a->mode == SPEC_ADAPT_UCB) spec_bandit_update(&a->bandit, arm, a->n_emitted, ms);
}

void speci_adapt_observe(spec_session *s, algo_seq *q, int32_t n_node, int32_t n_emitted)
{
    algo_adapt *a = &s->adapt;
    const bool counts = a->mode != SPEC_ADAPT_OFF && q->in_round && n_node > 0;
    q->in_round = false;
    if (!counts) return;
    a->n_done++;
    a->n_emitted += n_emitted;
    a->n_node += n_node;
    if (a->n_done == a->n_seq) update_arm(s, q->arm + 1, speci_now_ms() - a->start);
}

/* --- open --- */

spec_status speci_adapt_open(spec_session *s, spec_adapt mode, const char *profile)
{
    algo_adapt *a = &s->adapt;
    a->profile.struct_size = sizeof a->profile;
    if (profile) {
        SPEC_TRY(spec_cost_load(&a->profile, profile));
        SPEC_TRY(give_costs(s));
    }
    a->mode = s->drafter && s->n_node > 1 ? mode : SPEC_ADAPT_OFF;
    if (a->mode == SPEC_ADAPT_OFF) return SPEC_OK;
    const int32_t n = n_arm(s);
    if (!(a->arms = speci_alloc(s->a, (size_t)n, sizeof *a->arms))) return SPEC_E_NOMEM;
    if (a->mode == SPEC_ADAPT_UCB) return spec_bandit_open(&a->bandit, n, 1);
    a->measured = profile == NULL;
    spec_cost_profile measured = { .struct_size = sizeof measured };
    return spec_session_profile(s, &measured);
}
