/* build_threshold.c - DySpec's threshold tree (algorithms.md 4.6, DS Alg. 2 corrected): level by level, every draw
 * that verification reaches with probability t or more. With t the last value that the heap tree (build_dyspec.c)
 * pops, the two are the same tree.
 *
 * Levels and places are fixed beforehand, so that the device grows the tree alone: WIDTH places from the second level
 * on, DEPTH levels. Without them, from N: 2 + log2 N levels (DS: below 10 at 64 nodes) of N / 8 places. Where a level
 * has more nodes of value t or more than places, the best are expanded; that is decided before anything below them is
 * sampled.
 *
 * Between steps a controller moves t so that trees have 3/4 N drafts on average (DS: 552 of 768): t <- t exp(eta
 * (drafts / (3/4 N) - 1)), eta = 0.25, within a factor of 64 of T and at most 1. */
#include "algorithms/build/build.h"

#include <math.h>

typedef struct controller {
    double t, least, most, target;
} controller;

typedef struct numbers {
    double t;
    int32_t n, width, depth;
} numbers;

static int32_t at_most(int32_t n, int32_t most) { return n < most ? n : most; }

static bool parse(const char *args, numbers *x)
{
    int32_t number[3] = { 64, 0, 0 }, n = 0;
    const char *end;
    if (!speci_parse_real(args, &x->t, &end)) return false;
    if (*end == ',') n = speci_parse_counts(end + 1, number, 3);
    else if (*end) return false;
    if (n < 0 || n == 2) return false;
    x->n = number[0];
    const int32_t levels = speci_usual_depth(x->n);
    x->depth = n == 3 ? number[2] : levels;
    x->width = n == 3 ? number[1] : at_most((x->n + 7) / 8, (SPECI_MAX_NODE - 1) / (levels - 1));
    if (x->width < 1 && n != 3) x->width = 1;
    return true;
}

static void set(spec_builder *b, double t)
{
    for (int32_t i = 0; i < b->info.n_level; i++) b->levels[i].threshold = b->levels[i].next_threshold = t;
}

static spec_status open(spec_builder *b, const char *args)
{
    numbers x;
    if (!parse(args, &x)) return speci_builder_refuse(b, args, NULL);
    if (!(x.t > 0.0 && x.t <= 1.0) || x.n >= SPECI_MAX_NODE || x.width < 1 || x.depth < 1 || x.depth > SPEC_MAX_DEPTH ||
        x.width * (x.depth - 1) >= SPECI_MAX_NODE)
        return speci_builder_refuse(b, args, "T is above 0 and at most 1, N at most 255, DEPTH 1 to 63, "
                                             "WIDTH (DEPTH - 1) at most 255");
    controller *c = speci_alloc(b->allocator, 1, sizeof *c);
    if (!c) return SPEC_E_NOMEM;
    *c = (controller){ .t = x.t, .least = x.t / 64.0, .most = fmin(64.0 * x.t, 1.0), .target = 0.75 * (double)x.n };
    b->own = c;
    b->info.kind = SPEC_TREE_SAMPLED;
    b->info.n_node = 1 + x.n;
    b->info.n_row = 1 + x.width * (x.depth - 1);
    b->info.depth = x.depth;
    b->k = at_most(x.n > 0 ? x.n : 1, SPEC_MAX_CHILD);
    SPEC_TRY(speci_builder_levels(b, x.depth, false));
    for (int32_t i = 0; i < x.depth; i++)
        b->levels[i] =
            (speci_level){ .n_place = i == 0 ? 1 : x.width, .k = b->k, .n_next = i < x.depth - 1 ? x.width : 0 };
    set(b, x.t);
    return SPEC_OK;
}

static void observe(spec_builder *b, int32_t n_node, const int32_t *ranks, int32_t n)
{
    (void)ranks, (void)n;
    controller *c = b->own;
    if (!(c->target > 0.0)) return;
    c->t *= exp(0.25 * ((double)(n_node - 1) / c->target - 1.0));
    c->t = fmin(fmax(c->t, c->least), c->most);
    set(b, c->t);
}

const speci_builder_kind speci_build_dyspec_threshold = {
    .name = "dyspec-threshold", .args = "T[,N[,WIDTH,DEPTH]]",
    .help = "all draws reached with probability T, at most N (64), in DEPTH levels of WIDTH nodes", .open = open,
    .observe = observe };
