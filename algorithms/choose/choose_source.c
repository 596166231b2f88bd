/* choose_source.c - how much of a source's drafts is accepted, in the text as it is at present.
 *
 * A text is code, then prose, then repeats itself. So a mean is taken over all asks since the text changed, as far as it can be
 * seen to have: the mean of the latest few is then far from the other one (the idea of ADWIN, Bifet and Gavalda 2007, with two
 * discounted means in place of all windows). While nothing changes the mean is of many asks, and ways that differ little are not
 * taken for one another. */
#include "algorithms/choose/choose.h"

#include <math.h>

/* Asks that the two means reach back, and of which levels are counted. A change: the means differ by so many standard errors of
 * the shorter one; so much is left of what was before. */
static const double RECENT = 16, ALL = 512, LEVELS = 256, CHANGE = 3, LEFT = 0.25;
/* A source may be better than its mean by EXPLORATION / sqrt(asks) tokens: those of proposals differ by about one. Asks of long
 * ago say less: so much is left of them with each round. What is expected beforehand counts as PRIOR asks. All were chosen by
 * simulated sessions of 256 to 4096 tokens, with passes that cost as on an H200 and on two cores. */
static const double EXPLORATION = 1, SURE = 0.99, PRIOR = 3;

void speci_asks_add(speci_asks *to, int32_t n_node, double n_accepted)
{
    to->n++;
    to->n_proposed += n_node > 0;
    to->n_node += n_node;
    to->n_accepted += n_accepted;
    to->n_square += n_accepted * n_accepted;
}

static void scale(speci_asks *a, double by)
{
    a->n *= by, a->n_proposed *= by, a->n_node *= by, a->n_accepted *= by, a->n_square *= by;
}

static void take(speci_asks *to, const speci_asks *a, double window)
{
    scale(to, pow(1 - 1 / window, a->n));
    to->n += a->n, to->n_proposed += a->n_proposed, to->n_node += a->n_node;
    to->n_accepted += a->n_accepted, to->n_square += a->n_square;
}

/* A variance of next to nothing is that of a few asks that came out alike. */
static bool differs(const speci_asks *all, const speci_asks *recent)
{
    const double mean = all->n_accepted / all->n, now = recent->n_accepted / recent->n;
    const double variance = fmax(all->n_square / all->n - mean * mean, 0.1);
    return recent->n > 3 && fabs(now - mean) > CHANGE * sqrt(variance / recent->n);
}

/* An accepted node is a hit of its level; a proposal that was not accepted to its end has a level without one. */
static void count_levels(speci_levels *l, int32_t depth, const speci_asks *a)
{
    const double keep = pow(1 - 1 / LEVELS, a->n), most = a->n_proposed * depth;
    l->n = l->n * keep + fmin(a->n_accepted + a->n_proposed, most);
    l->n_hit = l->n_hit * keep + a->n_accepted;
}

bool speci_source_update(speci_source *s, speci_levels *levels, const speci_asks *a)
{
    if (a->n == 0) return false;
    take(&s->all, a, ALL);
    take(&s->recent, a, RECENT);
    count_levels(levels, s->depth, a);
    s->n_sure += a->n;
    if (!differs(&s->all, &s->recent)) return false;
    scale(&s->recent, LEFT);
    s->all = s->recent;
    return true;
}

void speci_source_age(speci_source *s, bool changed) { s->n_sure *= changed ? LEFT : SURE; }

double speci_levels_expect(const speci_levels *levels, int32_t depth)
{
    double sum = 0, reached = 1;
    if (levels->n == 0) return 0;
    for (int32_t i = 0; i < depth; i++) sum += reached *= levels->n_hit / levels->n;
    return sum;
}

/* Beforehand a tree is expected to be as large as it can be, and accepted level by level as the drafter's others are. At best all
 * of a tree is accepted of which nothing is known. */
speci_prospect speci_source_expect(const speci_source *s, const speci_levels *levels)
{
    const speci_asks *a = &s->all;
    const double n = a->n + PRIOR, n_sure = s->n_sure + (levels->n > 0);
    speci_prospect p = { .share = (a->n_proposed + PRIOR) / n, .n_node = (a->n_node + PRIOR * s->n_node) / n };
    p.n_accepted = (a->n_accepted + PRIOR * p.share * speci_levels_expect(levels, s->depth)) / n;
    p.n_accepted_most = n_sure > 0 ? fmin(p.n_accepted + EXPLORATION / sqrt(n_sure), s->depth) : s->depth;
    return p;
}
