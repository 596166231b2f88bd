/* choose_adapt.c - which way to draft, or none: a session's choice (algorithms.md 13, 14).
 *
 * COST weighs the mean number of emitted tokens of each arm, as seen so far and with what it may be beyond that, against what
 * its step costs by the profile, and the overhead of its rounds: what they take beside the profile's passes (drafts of the
 * application's own, draws, acceptance, the host; less than nothing where steps run ahead). UCB lets a bandit weigh tokens
 * against measured time. */
#include "algorithms/choose/choose.h"

#include <math.h>
#include <string.h>

/* Pulls of every arm in the beginning; rounds that a choice stays. */
enum { WARM_UP_PULLS = 4, DWELL = 16 };
/* COST is a discounted UCB (Garivier and Moulines 2011): with each round the past of every arm weighs less, so that a mean
 * that is old or of few steps is uncertain, and pulled again. A mean of n steps may be EXPLORATION / sqrt(n) tokens too low;
 * emitted tokens of a step differ by about one. SWITCH_THRESHOLD: drafting that gains less than this over plain steps is not
 * worth the changes between them. All were chosen by runs of the small trained models on an H200. */
static const double DISCOUNT = 0.999, EXPLORATION = 1, SWITCH_THRESHOLD = 1.02;

/* --- what a step of an arm costs --- */

double speci_choice_draft_ms(const spec_builder *b, const spec_cost_table *t, int32_t n_seq)
{
    double ms = 0;
    if (t->n == 0) return 0;
    if (speci_builder_is_host_driven(b)) { /* about one pass per doubling of the tree, its nodes spread over them */
        int32_t n_pass = 1;
        while (1 << n_pass < b->info.n_node) n_pass++;
        return n_pass * (double)spec_cost_ms(t, n_seq * ((b->info.n_node + n_pass - 1) / n_pass));
    }
    for (int32_t l = 0; l < b->info.n_level; l++) {
        ms += spec_cost_ms(t, n_seq * (l == 0 ? 2 : b->levels[l].n_place)); /* the root comes with what was committed */
        if (b->levels[l].n_next == 0) break;
    }
    return ms;
}

static double pass_ms(const speci_choice *c, int32_t arm, int32_t n_seq)
{
    const speci_arm *a = &c->arms[arm];
    return c->cost(c->cost_arg, arm, arm == 0 || a->n_step == 0 ? 1 : a->n_node / a->n_step, n_seq);
}

/* The lower quartile of the latest, since what disturbs a round (a kernel is loaded, a pass captured) makes it longer; a first
 * round behind another arm's is left out. 0: not known. */
static double overhead_ms(const speci_arm *a)
{
    double ms[SPECI_OVERHEADS];
    const size_t n = a->n_overhead < SPECI_OVERHEADS ? (size_t)a->n_overhead : SPECI_OVERHEADS;
    if (n == 0) return 0;
    memcpy(ms, a->overhead, n * sizeof *ms);
    return speci_by_rank(ms, n, n / 4);
}

/* --- the choice --- */

static double emitted_tokens(const speci_arm *a, bool drafts)
{
    if (!drafts) return SWITCH_THRESHOLD; /* plain steps emit one token */
    return a->n_emitted / a->n_step + EXPLORATION / sqrt(a->n_step);
}

/* One arm stays for some rounds: a drafter that was not used has to catch up, and a plain step behind a tree does not run
 * ahead. */
static int32_t choose_by_cost(const speci_choice *c, int32_t n_seq)
{
    double emitted[SPEC_MAX_ARM], ms[SPEC_MAX_ARM];
    const int64_t chosen = c->n_round - (int64_t)WARM_UP_PULLS * c->n_arm; /* rounds */
    if (chosen < 0) return (int32_t)(c->n_round / WARM_UP_PULLS);
    if (chosen % DWELL != 0) return c->arm;
    for (int32_t i = 0; i < c->n_arm; i++) {
        const double passes = pass_ms(c, i, n_seq);
        emitted[i] = emitted_tokens(&c->arms[i], i > 0);
        ms[i] = fmax(passes + overhead_ms(&c->arms[i]), passes / 8); /* passes that were never seen may be overrated */
    }
    return spec_choose_rate(emitted, ms, c->n_arm);
}

int32_t speci_choice_arm(const speci_choice *c, int32_t n_seq)
{
    if (c->mode == SPEC_ADAPT_OFF) return c->n_arm > 1;
    return c->mode == SPEC_ADAPT_COST ? choose_by_cost(c, n_seq) : spec_bandit_choose(&c->bandit);
}

void speci_choice_update(speci_choice *c, int32_t arm, const speci_outcome *o)
{
    if (c->mode == SPEC_ADAPT_OFF) return;
    speci_arm *m = &c->arms[arm];
    if (c->counts_overhead && arm == c->arm)
        m->overhead[m->n_overhead++ % SPECI_OVERHEADS] = o->ms - pass_ms(c, arm, o->n_seq);
    c->arm = arm;
    for (int32_t i = 0; i < c->n_arm; i++)
        c->arms[i].n_step *= DISCOUNT, c->arms[i].n_emitted *= DISCOUNT, c->arms[i].n_node *= DISCOUNT;
    m->n_step += o->n_seq;
    m->n_emitted += o->n_emitted;
    m->n_node += o->n_node;
    c->n_round++;
    if (c->mode == SPEC_ADAPT_UCB) spec_bandit_update(&c->bandit, arm, o->n_emitted, o->ms);
}

spec_status speci_choice_open(speci_choice *c, spec_adapt mode, int32_t n_arm, const spec_allocator *a)
{
    c->mode = n_arm > 1 ? mode : SPEC_ADAPT_OFF;
    c->n_arm = n_arm;
    if (c->mode == SPEC_ADAPT_OFF) return SPEC_OK;
    if (n_arm > SPEC_MAX_ARM)
        return speci_fail(SPEC_E_INVALID, "%d ways to draft to choose from; at most %d", n_arm - 1, SPEC_MAX_ARM - 1);
    if (!(c->arms = speci_alloc(a, (size_t)n_arm, sizeof *c->arms))) return SPEC_E_NOMEM;
    return c->mode == SPEC_ADAPT_UCB ? spec_bandit_open(&c->bandit, n_arm, 1) : SPEC_OK;
}
