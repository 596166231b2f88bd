/* choose_adapt.c - which way to draft, or none: a session's choice, for all its sequences together (algorithms.md 12, 13, 14).
 *
 * COST takes the arm of most tokens per time. Tokens: what its sources are expected to bring (choose_source.c). Time: what step costs
 * say of its passes, times what its latest rounds took to what they say of those. Another arm is tried where it may be better, as far as
 * credit goes: each millisecond earns a part of itself, and a trial pays what it has lost against the best arm (a conservative bandit:
 * Wu, Shariff, Lattimore and Szepesvari 2016). So trials slow decoding down by that part at most, but for what disturbs them, and an arm
 * that cannot pay with all its drafts accepted is never tried. A reserve does the same against plain decoding: it grows by what drafting
 * gains, and a way to draft that is little known is not taken where one round may lose more than that. Of several sequences a trial asks
 * drafts for as many as that allows, half of them or a quarter and so on: what they bring is known of all then.
 * What drafters from text would propose is known before the choice (engine_watch.c). Then the arms of a round differ by what their first
 * proposal is expected to bring, and nothing has to be tried to know of it.
 * UCB lets a bandit weigh tokens against measured time: one for each load, which halves its past now and then. */
#include "algorithms/choose/choose.h"

#include <math.h>
#include <string.h>

/* The part of its time that trials may lose. Credit in plain rounds: in the beginning, at least when the text has changed, and at
 * most; nor is it ever less than minus that, since what disturbed one round was not the arm's. Likewise the reserve. */
static const double TRIALS = 0.0075, CREDIT = 2, CHANGE_CREDIT = 2, MOST_CREDIT = 4;
static const double RESERVE = 0.75, MOST_RESERVE = 100, LEAST_RESERVE = -1;
/* A way to draft that is so much faster than plain decoding at best may lose all of the reserve; others a part in proportion. Of that a
 * trial with some of the sequences may lose SOME_ASKED: others follow if it was of use. It may always lose LEAST_TRIAL of a plain round, if
 * the reserve is four times that: few asks say little, and what was unlucky is tried again. */
static const double WHOLE_RESERVE = 2, SOME_ASKED = 0.25, LEAST_TRIAL = 0.1;
/* So much drafting has to gain over plain steps, and an arm over the best one so far, to be worth the change. */
static const double PLAIN_THRESHOLD = 1.02, SWITCH_THRESHOLD = 1.01;
/* An arm that was the best stays so for a part of what it may be better: to leave it costs trials, if it was only bad luck. */
static const double LOYALTY = 0.15;
/* A round of so many times what was expected was disturbed; one of so many times the lower quartile does not count beside others. */
static const double DISTURBED = 2, MUCH_LONGER = 1.25;
/* Rounds of a bandit after which its past is halved. Rounds of an arm that say little about its time. Plain rounds
 * of several sequences for which it holds that nothing else is better: one sequence runs ahead, and the device does not wait. Each time
 * that it still holds at this load they are twice as many, up to the most. */
enum { BANDIT_WINDOW = 256, FEW = 3, PLAIN_ROUNDS = 4, MOST_PLAIN_ROUNDS = 16 };
/* Rounds of an arm at a load in which its passes are new: a device that captures passes does so when it meets one again. */
enum { FIRST = 2 };

/* --- what a round takes --- */

double speci_choice_draft_ms(const spec_builder *b, const spec_cost_table *t, double n_seq)
{
    double ms = 0;
    if (t->n == 0) return 0;
    if (b->host_driven) { /* about one pass per doubling of the tree, its nodes spread over them */
        int32_t n_pass = 1;
        while (1 << n_pass < b->info.n_node) n_pass++;
        return n_pass * speci_cost_ms(t, n_seq * ((b->info.n_node + n_pass - 1) / n_pass));
    }
    for (int32_t l = 0; l < b->info.n_level; l++) {
        ms += speci_cost_ms(t, n_seq * (l == 0 ? 2 : b->levels[l].n_place)); /* the root comes with what was committed */
        if (b->levels[l].n_next == 0) break;
    }
    return ms;
}

int32_t speci_choice_load(int32_t n_seq)
{
    int32_t load = 0;
    while (n_seq >> (load + 1) > 0 && load < SPECI_LOADS - 1) load++;
    return load;
}

static double target_ms(const speci_choice *c, int32_t n_seq, double n_row) { return c->costs.target(c->costs.arg, n_seq, n_row); }

/* Of `n_seq` sequences on average, which may be less than one. What all sequences of a round cost is asked again and again: it is known
 * from a choice to the next, for a builder may make its trees larger or smaller in between. */
static double draft_ms(const speci_choice *c, int32_t source, double n_seq)
{
    speci_source *s = &c->sources[source];
    if (n_seq < 1) return n_seq * draft_ms(c, source, 1);
    if (s->known_n_seq != n_seq) s->known_n_seq = n_seq, s->known_ms = c->costs.draft(c->costs.arg, source, n_seq);
    return s->known_ms;
}

/* What the step costs say of a round that was. */
static double round_ms(const speci_choice *c, const speci_outcome *o)
{
    double ms = target_ms(c, o->n_seq, o->n_row);
    for (int32_t i = 0; i < c->n_source; i++)
        if (o->asks[i].n > 0) ms += draft_ms(c, i, o->asks[i].n);
    return ms;
}

/* The lower quartile of the latest, since what disturbs a round (a kernel is loaded, a pass captured) makes it longer. With few of
 * them `usual` counts as one. */
static double lower_quartile(const speci_ratios *r, int32_t n, double usual)
{
    double ratio[SPECI_RATIOS] = { 0 };
    const int32_t few = n < SPECI_RATIOS;
    for (int32_t i = 0; i < n + few; i++) { /* in order */
        const double one = i < n ? r->ratio[i] : usual;
        int32_t k = i;
        for (; k > 0 && ratio[k - 1] > one; k--) ratio[k] = ratio[k - 1];
        ratio[k] = one;
    }
    return ratio[(n + few) / 4];
}

/* The mean of those that are not much longer than that: a quartile would favour the arm whose rounds differ most. */
static double ratio_of(const speci_ratios *r, double usual)
{
    const int32_t n = r->n < SPECI_RATIOS ? (int32_t)r->n : SPECI_RATIOS;
    if (n == 0) return usual;
    const double quartile = lower_quartile(r, n, usual);
    double sum = 0, n_summed = 0;
    for (int32_t i = 0; i < n; i++)
        if (r->ratio[i] <= MUCH_LONGER * quartile) sum += r->ratio[i], n_summed++;
    return n_summed > 0 ? sum / n_summed : quartile;
}

/* At worst, where there are few: they are as those behind them will be, but for one that was disturbed. */
static double worst_ratio(const speci_ratios *r, double usual)
{
    double least = DISTURBED * usual;
    for (int32_t i = 0; i < r->n; i++) least = fmin(least, r->ratio[i]);
    return r->n == 0 ? usual : fmax(least, usual);
}

/* An arm that was not used at this load is taken to be as plain rounds are. */
static double usual_ratio(const speci_choice *c, int32_t load) { return ratio_of(&c->arms[0].loads[load], 1); }

/* A first round behind another arm's is left out, unless there are few: a drafter that was not used has to catch up, and a plain
 * step behind a tree does not run ahead. */
static void keep_ratio(speci_choice *c, int32_t arm, const speci_outcome *o)
{
    speci_ratios *r = &c->arms[arm].loads[speci_choice_load(o->n_seq)];
    const double ms = round_ms(c, o), took = fmax(o->ms - (arm > 0 ? c->once_ms : 0), 0);
    if (c->costs.measured && (arm == c->arm || r->n < FEW) && ms > 0) r->ratio[r->n++ % SPECI_RATIOS] = took / ms;
}

/* --- what an arm is worth --- */

/* A round of an arm: tokens of a sequence, and the time of all. once_ms: what it takes more now, but not when it is asked again. */
typedef struct arm_prospect {
    double n_emitted, n_emitted_least, n_emitted_most, ms, ms_most, once_ms;
} arm_prospect;

/* The pass of one sequence is either with a tree or without; that of many is over about as many rows as there are on average. */
static double pass_ms(const speci_choice *c, int32_t n_seq, double share, double n_node)
{
    const double average = target_ms(c, n_seq, n_seq * (1 + n_node));
    if (share <= 0 || share >= 1) return average;
    const double apart = share * target_ms(c, n_seq, n_seq * (1 + n_node / share)) + (1 - share) * target_ms(c, n_seq, n_seq);
    return average + (apart - average) / n_seq;
}

/* It is known which sequences get a proposal, and what comes of one is as ever. That is known without a trial. */
static speci_prospect with_seen(speci_prospect p, const speci_asks *seen)
{
    if (seen->n == 0) return p;
    const double share = seen->n_proposed / seen->n, by = share / p.share;
    p.n_node = seen->n_node / seen->n;
    p.n_accepted = fmin(p.n_accepted * by, p.n_node), p.n_accepted_most = p.n_accepted;
    p.n_accepted_least = fmin(p.n_accepted_least * by, p.n_node);
    p.share = share;
    return p;
}

static void expect_sources(const speci_choice *c, speci_prospect *sources)
{
    double n_sure[SPECI_MAX_SOURCE] = { 0 }; /* by kin */
    for (int32_t i = 0; i < c->n_source; i++) n_sure[c->sources[i].kin] += c->sources[i].n_sure;
    for (int32_t i = 0; i < c->n_source; i++) {
        const speci_source *s = &c->sources[i];
        sources[i] = with_seen(speci_source_expect(s, &c->levels[s->kin], n_sure[s->kin] - s->n_sure), &s->seen);
    }
}

/* The sources that an arm asks, one after the other, as long as there are sequences without a proposal: the first of `rest`, which
 * loses it; -1: no more. */
static int32_t next_asked(uint64_t *rest, double left)
{
    if (*rest == 0 || left <= 0) return -1;
    const int32_t i = __builtin_ctzll(*rest);
    *rest &= *rest - 1;
    return i;
}

/* Are its passes new to the device at this load? Without measured rounds nobody counts the first ones. */
static bool has_new_passes(const speci_choice *c, int32_t arm, int32_t n_seq)
{
    return arm > 0 && c->costs.measured && c->costs.first && c->arms[arm].loads[speci_choice_load(n_seq)].n < FIRST;
}

/* A drafter that was not used for some rounds is fed their tokens first. With one sequence these are few, and its passes are made ready
 * beforehand: what it comes to all the same is paid with credit. */
static double once_ms(const speci_choice *c, int32_t source, int32_t n_seq, int32_t n_ask, bool is_new)
{
    if (n_seq == 1) return 0;
    return (c->costs.lag ? c->costs.lag(c->costs.arg, source, n_ask, is_new) : 0) +
           (is_new ? c->costs.first(c->costs.arg, source, n_ask) : 0);
}

/* Of n_seq sequences, with drafts for n_ask of them. */
static arm_prospect expect(const speci_choice *c, int32_t arm, int32_t n_seq, int32_t n_ask, const speci_prospect *sources, double usual)
{
    arm_prospect p = { .n_emitted = 1, .n_emitted_least = 1, .n_emitted_most = 1 };
    double n_node = 0, share = 0, left = (double)n_ask / n_seq; /* of the sequences */
    const bool is_new = has_new_passes(c, arm, n_seq);
    uint64_t rest = c->arms[arm].sources;
    for (int32_t i; (i = next_asked(&rest, left)) >= 0; left *= 1 - sources[i].share) {
        p.n_emitted += left * sources[i].n_accepted;
        p.n_emitted_least += left * sources[i].n_accepted_least;
        p.n_emitted_most += left * sources[i].n_accepted_most;
        p.ms += draft_ms(c, i, left * n_seq), p.once_ms += once_ms(c, i, n_seq, n_ask, is_new);
        n_node += left * sources[i].n_node;
        share += left * sources[i].share;
    }
    const double ms = p.ms + pass_ms(c, n_seq, share, n_node);
    const speci_ratios *ratios = &c->arms[arm].loads[speci_choice_load(n_seq)];
    p.ms = ms * ratio_of(ratios, usual), p.ms_most = ratios->n < FEW ? ms * worst_ratio(ratios, usual) : p.ms;
    if (is_new && n_seq > 1) p.once_ms += c->costs.first(c->costs.arg, -1, n_seq);
    return p;
}

/* --- by cost --- */

/* How often an arm asks each of the sources, for a sequence. */
static void list_asked(const speci_choice *c, int32_t arm, const speci_prospect *sources, double *asked)
{
    double left = 1;
    uint64_t rest = c->arms[arm].sources;
    memset(asked, 0, (size_t)c->n_source * sizeof *asked);
    for (int32_t i; (i = next_asked(&rest, left)) >= 0; left *= 1 - sources[i].share) asked[i] = left;
}

/* What a round of the arm may bring at best. What the best arm asks anyway needs no trial to be known. */
static double most_emitted(const speci_choice *c, int32_t arm, const speci_prospect *sources, const double *asked_anyway)
{
    double n = 1, left = 1;
    uint64_t rest = c->arms[arm].sources;
    for (int32_t i; (i = next_asked(&rest, left)) >= 0; left *= 1 - sources[i].share)
        n += left * (sources[i].n_accepted + (1 - asked_anyway[i]) * (sources[i].n_accepted_most - sources[i].n_accepted));
    return n;
}

/* Is there credit for what a trial of the arm is expected to lose against the best one? */
static bool affords(const speci_choice *c, const arm_prospect *p, int32_t n_seq)
{
    const double lost = p->ms + p->once_ms - n_seq * p->n_emitted / c->best_rate;
    return c->credit >= fmin(lost / c->plain_ms, MOST_CREDIT);
}

/* What a round may lose against a plain one with an arm of which that is expected: its part of the reserve. */
static double may_lose(const speci_choice *c, const arm_prospect *p, const arm_prospect *plain)
{
    const double gain = p->n_emitted_most * plain->ms / p->ms - 1, part = fmax(fmin(gain / WHOLE_RESERVE, 1), 0);
    return part * fmax(c->reserve, 0);
}

/* A round of one sequence loses little and says little: credit alone bounds those. */
static bool is_safe(const arm_prospect *p, const arm_prospect *plain, int32_t n_seq, double most_lost)
{
    const double lost = (p->ms_most + p->once_ms) / plain->ms - p->n_emitted_least;
    return n_seq == 1 || fmin(lost, MOST_RESERVE) <= most_lost;
}

/* For how many sequences a trial of the arm asks: all, where that is expected to gain; else half of them and so on; 0: no trial. p: with
 * all; becomes what is expected of the trial. */
static int32_t asks_of(const speci_choice *c, int32_t arm, arm_prospect *p, const arm_prospect *plain, const speci_prospect *sources,
                       int32_t n_seq)
{
    const double usual = usual_ratio(c, speci_choice_load(n_seq));
    const double all = may_lose(c, p, plain), some = fmax(SOME_ASKED * all, fmin(LEAST_TRIAL, SOME_ASKED * c->reserve));
    const bool gains = p->n_emitted * plain->ms > p->ms; /* in the rounds behind it, too */
    int32_t n_ask = n_seq;
    while (n_ask > 0 && !(affords(c, p, n_seq) && is_safe(p, plain, n_seq, n_ask == n_seq && gains ? all : some)))
        if ((n_ask /= 2) > 0) *p = expect(c, arm, n_seq, n_ask, sources, usual);
    return n_ask;
}

/* The arm that may be better than the best one by most, or that one. p: of all arms; becomes what is expected of the trial. */
static int32_t choose_trial(speci_choice *c, arm_prospect *p, const speci_prospect *sources, int32_t n_seq)
{
    int32_t arm = c->best;
    double most = c->best_rate * PLAIN_THRESHOLD, asked_anyway[SPECI_MAX_SOURCE];
    list_asked(c, c->best, sources, asked_anyway);
    for (int32_t i = 0; i < c->n_arm; i++) {
        const double rate = n_seq * most_emitted(c, i, sources, asked_anyway) / p[i].ms;
        const int32_t n_ask = i != c->best && rate > most ? asks_of(c, i, &p[i], &p[0], sources, n_seq) : 0;
        if (n_ask > 0) arm = i, most = rate, c->n_ask = n_ask;
    }
    return arm;
}

/* Tokens of a sequence per time, as arms are held against one another. */
static double rate_of(const speci_choice *c, int32_t arm, const arm_prospect *p)
{
    const bool stays = arm == c->best;
    const double n = p->n_emitted + (stays && arm > 0 ? LOYALTY * (p->n_emitted_most - p->n_emitted) : 0);
    return n / p->ms * (arm == 0 ? PLAIN_THRESHOLD : 1) * (stays ? SWITCH_THRESHOLD : 1);
}

/* The first round of each load is a plain one, which tells how far step costs are right. */
static int32_t choose_by_cost(speci_choice *c, int32_t n_seq)
{
    speci_prospect sources[SPECI_MAX_SOURCE];
    arm_prospect p[SPECI_MAX_CHOICE];
    double best_rate = 0;
    int32_t best = 0;
    const double usual = usual_ratio(c, speci_choice_load(n_seq));
    expect_sources(c, sources);
    for (int32_t i = 0; i < c->n_source; i++) c->sources[i].known_n_seq = 0;
    for (int32_t i = 0; i < c->n_arm; i++) {
        p[i] = expect(c, i, n_seq, n_seq, sources, usual);
        const double rate = rate_of(c, i, &p[i]);
        if (rate > best_rate && is_safe(&p[i], &p[0], n_seq, may_lose(c, &p[i], &p[0]))) best = i, best_rate = rate;
    }
    c->best = best;
    c->best_rate = n_seq * p[best].n_emitted / p[best].ms;
    c->plain_ms = p[0].ms;
    const bool first = c->n_round == 0 || (c->costs.measured && c->arms[0].loads[speci_choice_load(n_seq)].n == 0);
    const int32_t arm = first ? 0 : choose_trial(c, p, sources, n_seq);
    c->once_ms = p[arm].once_ms, c->expected_ms = p[arm].ms + p[arm].once_ms;
    return arm;
}

/* What disturbed a trial was not the arm's. */
static void pay(speci_choice *c, int32_t arm, const speci_outcome *o)
{
    const double ms = c->costs.measured ? o->ms : round_ms(c, o);
    const double lost = arm != c->best ? fmin(ms, DISTURBED * c->expected_ms) - o->n_emitted / c->best_rate : 0;
    if (!(c->plain_ms > 0)) return;
    c->credit = fmax(fmin(c->credit + (TRIALS * ms - lost) / c->plain_ms, MOST_CREDIT), -MOST_CREDIT);
    const double gained = arm > 0 ? o->n_emitted / o->n_seq - ms / c->plain_ms : 0;
    c->reserve = fmax(fmin(c->reserve + TRIALS * ms / c->plain_ms + gained, MOST_RESERVE), LEAST_RESERVE);
}

/* --- the choice --- */

static int32_t plain_rounds(int32_t last) { return last == 0 ? PLAIN_ROUNDS : last < MOST_PLAIN_ROUNDS ? 2 * last : MOST_PLAIN_ROUNDS; }

int32_t speci_choice_arm(speci_choice *c, int32_t n_seq)
{
    if (c->mode == SPEC_ADAPT_COST && c->next_n_seq == n_seq) return c->next;
    c->n_ask = n_seq;
    if (c->mode == SPEC_ADAPT_OFF) return c->n_arm > 1;
    if (c->mode == SPEC_ADAPT_UCB) return spec_bandit_choose(&c->bandit[speci_choice_load(n_seq)]);
    const int32_t load = speci_choice_load(n_seq);
    if (load != c->plain_load) c->plain_load = load, c->n_plain_last = 0;
    c->next = choose_by_cost(c, n_seq), c->next_n_seq = n_seq;
    c->n_plain = n_seq > 1 && c->next == 0 && c->best == 0 ? plain_rounds(c->n_plain_last) : 0;
    c->n_plain_last = c->n_plain;
    return c->next;
}

static void halve(spec_bandit *b)
{
    if (b->n_round < BANDIT_WINDOW) return;
    b->n_round = 0;
    for (int32_t k = 0; k < b->n_arm; k++) {
        b->n_pull[k] = (b->n_pull[k] + 1) / 2, b->n_round += b->n_pull[k];
        b->tokens[k] /= 2, b->ms[k] /= 2;
    }
}

/* Where the text has changed, what is known of other sources is old. */
static void take_asks(speci_choice *c, int32_t source, const speci_asks *a)
{
    speci_source *s = &c->sources[source];
    if (!speci_source_update(s, &c->levels[s->kin], a)) return;
    for (int32_t i = 0; i < c->n_source; i++)
        if (i != source) speci_source_age(&c->sources[i], true);
    c->credit = fmax(c->credit, CHANGE_CREDIT);
}

void speci_choice_begin(speci_choice *c)
{
    for (int32_t i = 0; i < c->n_source; i++) speci_source_begin(&c->sources[i]);
    speci_choice_unsee(c);
}

void speci_choice_unsee(speci_choice *c)
{
    for (int32_t i = 0; i < c->n_source; i++) c->sources[i].seen = (speci_asks){ 0 };
    c->next_n_seq = 0;
}

void speci_choice_see(speci_choice *c, int32_t source, int32_t n_node)
{
    speci_asks_add(&c->sources[source].seen, n_node, 0);
    c->next_n_seq = 0;
}

void speci_choice_watch(speci_choice *c, int32_t source, int32_t n_node, int32_t n_matched)
{
    speci_asks a = { 0 };
    speci_asks_add(&a, n_node, n_matched);
    take_asks(c, source, &a);
}

void speci_choice_update(speci_choice *c, int32_t arm, const speci_outcome *o)
{
    if (c->mode == SPEC_ADAPT_OFF) return;
    if (c->mode == SPEC_ADAPT_UCB) {
        spec_bandit *b = &c->bandit[speci_choice_load(o->n_seq)];
        spec_bandit_update(b, arm, o->n_emitted, o->ms);
        halve(b);
        return;
    }
    pay(c, arm, o);
    keep_ratio(c, arm, o);
    for (int32_t i = 0; i < c->n_source; i++) {
        speci_source_age(&c->sources[i], false);
        take_asks(c, i, &o->asks[i]);
    }
    c->arm = arm;
    c->n_round++;
    if (c->n_plain > 0 && arm == 0) c->n_plain--;
    else c->next_n_seq = 0;
}

spec_status speci_choice_open(speci_choice *c, spec_adapt mode)
{
    c->mode = c->n_arm > 1 ? mode : SPEC_ADAPT_OFF;
    const int32_t most = c->mode == SPEC_ADAPT_UCB ? SPEC_MAX_ARM : SPECI_MAX_CHOICE;
    c->credit = CREDIT, c->reserve = RESERVE;
    if (c->mode == SPEC_ADAPT_OFF) return SPEC_OK;
    if (c->n_arm > most || c->n_source > SPECI_MAX_SOURCE)
        return speci_fail(SPEC_E_INVALID, "%d ways to draft to choose from; at most %d", c->n_arm - 1, most - 1);
    for (int32_t i = 0; i < SPECI_LOADS && c->mode == SPEC_ADAPT_UCB; i++) SPEC_TRY(spec_bandit_open(&c->bandit[i], c->n_arm, 1));
    return SPEC_OK;
}
