/* choose_source.c - how much of a source's drafts is accepted, in the text as it is at present.
 *
 * A text is code, then prose, then repeats itself. So a mean is taken over all asks since the text changed, as far as that can be
 * seen: of the latest few the share with an accepted node is then far from what it was before (the idea of ADWIN, Bifet and Gavalda
 * 2007, with blocks of asks in place of all windows). While nothing changes the mean is of many asks, and ways that differ little are
 * not taken for one another. Where little is known of a text, the mean of all texts stands for it: a text ends otherwise than the next
 * one begins, and both are like the whole. */
#include "algorithms/choose/choose.h"

#include <math.h>

/* Asks that the past reaches back, of which levels are counted, and that are held against the past: from the fourth on. They differ
 * by so many standard errors if the text has changed, the variance being LEAST_VARIANCE at least. So much is then left of what was
 * known of others. How well a source is known when a text begins: as by so many asks. */
static const double PAST = 512, LEVELS = 256, RECENT = 12, CHANGE = 3.5, LEAST_VARIANCE = 0.09, LEFT = 0.25, BEFORE = 4;
/* The mean of all texts is of so many asks, and counts as ALL_TEXTS of the present one. It begins as PRIOR asks of what is expected
 * beforehand: PRIOR_LEVELS levels, of which PRIOR_HIT have an accepted node where the source does not say. One draft that was rejected
 * does not end a drafter. */
static const double EVER = 512, ALL_TEXTS = 4, PRIOR = 3, PRIOR_LEVELS = 2, PRIOR_HIT = 0.4;
/* A source may be better than its mean by EXPLORATION / sqrt(asks) tokens, and worse by DOUBT: those of proposals differ by about one.
 * Asks of long ago say less: so much is left of them with each round, and a mean has no more than KEPT times as many. The constants
 * were chosen by simulated sessions of 256 to 4096 tokens, with passes that cost as on an H200 and on two cores, those of texts by
 * the tasks of docs/drafters-measured.md: half and twice of each but EXPLORATION change the speed there by less than 1 %. */
static const double EXPLORATION = 1, DOUBT = 0.5, SURE = 0.99, KEPT = 5;

void speci_asks_add(speci_asks *to, int32_t n_node, double n_accepted)
{
    to->n++;
    to->n_proposed += n_node > 0;
    to->n_node += n_node;
    to->n_hit += n_accepted > 0;
    to->n_accepted += n_accepted;
}

static void scale(speci_asks *a, double by)
{
    a->n *= by, a->n_proposed *= by, a->n_hit *= by, a->n_node *= by, a->n_accepted *= by;
}

static void add(speci_asks *to, const speci_asks *a)
{
    to->n += a->n, to->n_proposed += a->n_proposed, to->n_hit += a->n_hit;
    to->n_node += a->n_node, to->n_accepted += a->n_accepted;
}

static bool differs(const speci_asks *past, const speci_asks *recent)
{
    if (past->n == 0 || recent->n < 4) return false;
    const double share = past->n_hit / past->n, variance = fmax(share * (1 - share), LEAST_VARIANCE);
    return fabs(recent->n_hit / recent->n - share) > CHANGE * sqrt(variance * (1 / recent->n + 1 / past->n));
}

/* An accepted node is a hit of its level; a proposal that was not accepted to its end has a level without one. */
static void count_levels(speci_levels *l, int32_t depth, const speci_asks *a)
{
    const double keep = pow(1 - 1 / LEVELS, a->n), most = a->n_proposed * depth;
    l->n = l->n * keep + fmin(a->n_accepted + a->n_proposed, most);
    l->n_hit = l->n_hit * keep + a->n_accepted;
}

/* No more asks than their age allows. */
static void limit(speci_asks *a, double most)
{
    if (a->n > most) scale(a, most / a->n);
}

bool speci_source_update(speci_source *s, speci_levels *levels, const speci_asks *a)
{
    if (a->n == 0) return false;
    limit(&s->past, KEPT * (1 + s->n_sure));
    limit(&s->recent, 1 + s->n_sure);
    add(&s->recent, a);
    add(&s->ever, a);
    limit(&s->ever, EVER);
    s->n_sure += a->n;
    count_levels(levels, s->depth, a);
    const bool changed = differs(&s->past, &s->recent);
    if (!changed && s->recent.n < RECENT) return false;
    scale(&s->past, changed ? 0 : pow(1 - 1 / PAST, s->recent.n));
    add(&s->past, &s->recent);
    scale(&s->recent, 0);
    if (!changed) return false;
    s->n_sure = s->past.n;
    levels->n *= LEFT, levels->n_hit *= LEFT;
    return true;
}

void speci_source_begin(speci_source *s)
{
    scale(&s->past, 0);
    scale(&s->recent, 0);
    s->n_sure = fmin(s->n_sure, BEFORE);
}

void speci_source_age(speci_source *s, bool changed) { s->n_sure *= changed ? LEFT : SURE; }

double speci_levels_expect(const speci_source *s, const speci_levels *levels, int32_t depth)
{
    const double hit = s->hit > 0 ? s->hit : PRIOR_HIT;
    const double again = (levels->n_hit + PRIOR_LEVELS * hit) / (levels->n + PRIOR_LEVELS);
    double sum = 0, reached = 1;
    for (int32_t i = 0; i < depth; i++) sum += reached *= again;
    return sum;
}

/* All texts on average. Beforehand a tree is expected to be as large as it can be, and accepted level by level as the drafter's others
 * are. */
static speci_asks expect_ever(const speci_source *s, const speci_levels *levels)
{
    const double n = s->ever.n + PRIOR, n_proposed = s->ever.n_proposed + PRIOR;
    return (speci_asks){ .n = 1, .n_proposed = n_proposed / n, .n_node = (s->ever.n_node + PRIOR * s->n_node) / n,
                         .n_accepted = (s->ever.n_accepted + PRIOR * speci_levels_expect(s, levels, s->depth)) / n_proposed };
}

/* n_accepted of a proposal. At best all of it is accepted if nothing is known: what is known of the others counts as one ask at most. */
speci_prospect speci_source_expect(const speci_source *s, const speci_levels *levels, double n_sure_others)
{
    const speci_asks ever = expect_ever(s, levels);
    speci_asks a = s->past;
    add(&a, &s->recent);
    const double n = a.n + ALL_TEXTS, n_sure = s->n_sure + fmin(n_sure_others, 1);
    speci_prospect p = { .share = (a.n_proposed + ALL_TEXTS * ever.n_proposed) / n, .n_node = (a.n_node + ALL_TEXTS * ever.n_node) / n };
    p.n_accepted = p.share * (a.n_accepted + ALL_TEXTS * ever.n_accepted) / (a.n_proposed + ALL_TEXTS);
    p.n_accepted_least = fmax(p.n_accepted - DOUBT / sqrt(s->n_sure), 0);
    p.n_accepted_most = fmin(p.n_accepted + EXPLORATION / sqrt(n_sure), s->depth);
    return p;
}
