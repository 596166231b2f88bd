/* build_arrays.c - growing a tree on plain arrays: distributions from a callback, draws and expansions by the host's
 * form of the operations that backends have (backends/backend_grow.h). */
#include "algorithms/build/build.h"

#include <math.h>
#include <string.h>

/* A build: what is asked for, and memory for it. */
typedef struct growth {
    spec_builder *b;
    spec_build_args args;
    spec_tree_kind kind;        /* of the tree */
    spec_tree *pool;            /* the tree so far */
    float *distributions;       /* [rows of a round][n_vocab] where args.q is NULL */
    int32_t *zero, *place;      /* [n_row]: zeros; 0, 1, 2, ... */
    int32_t *node, *asked;      /* [n_row]: nodes of a round, -1 = none; without those */
    spec_candidate *candidate;  /* [n_row][k] host-driven */
    spec_grow grow;             /* by levels: one slot */
} growth;

/* ------------------------------------------------------------------------------- distributions --- */

static spec_status check_probs(const float *probs, int32_t n_vocab, int32_t node)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (!(probs[i] >= 0.0f) || isinf(probs[i]))
            return speci_fail(
                SPEC_E_INVALID,
                "the draft distribution after node %d has %g for token %d; it must be finite and not negative", node,
                (double)probs[i], i);
        sum += (double)probs[i];
    }
    if (!(fabs(sum - 1.0) <= 1e-3))
        return speci_fail(SPEC_E_INVALID, "the draft distribution after node %d has the sum %g; a distribution's is 1",
                          node, sum);
    return SPEC_OK;
}

/* The distributions after g->node [n] become rows base .. base + n - 1, all asked for at once; rows of places without a
 * node stay what they are. distributions: where row `base` is. */
static spec_status ask(growth *g, int32_t n, int32_t base, float **distributions)
{
    const int32_t n_vocab = g->args.n_vocab;
    const size_t width = (size_t)n_vocab;
    int32_t m = 0;
    for (int32_t i = 0; i < n; i++)
        if (g->node[i] >= 0) g->asked[m++] = g->node[i];
    *distributions = g->args.q ? g->args.q + (size_t)base * width : g->distributions;
    if (m == 0) return SPEC_OK;
    const uint64_t before = speci_n_failure();
    const spec_status status = g->args.probs(g->args.user_data, g->pool, g->asked, m, *distributions, n_vocab);
    SPEC_TRY(speci_callback_status(status, before, "probs", "the caller"));
    for (int32_t i = 0; i < m; i++) SPEC_TRY(check_probs(*distributions + (size_t)i * width, n_vocab, g->asked[i]));
    /* From the last one on, each to its place, which is not before where it is. */
    for (int32_t i = n - 1; i >= 0 && m > 0; i--)
        if (g->node[i] >= 0 && --m < i)
            memmove(*distributions + (size_t)i * width, *distributions + (size_t)m * width,
                    width * sizeof **distributions);
    return SPEC_OK;
}

static bool too_deep(const growth *g, int32_t depth) { return g->args.depth_max > 0 && depth >= g->args.depth_max; }

/* -------------------------------------------------------------------------------------- levels --- */

static spec_status grow_level(growth *g, const speci_level *l, int32_t base)
{
    const spec_builder *b = g->b;
    float *distributions;
    SPEC_TRY(speci_builder_take(g->b, g->kind, g->grow.node, g->grow.n[0])); /* distributions are asked with the tree so far */
    memcpy(g->node, g->grow.frontier, (size_t)l->n_place * sizeof *g->node);
    SPEC_TRY(ask(g, l->n_place, base, &distributions));
    const spec_draw_args draw = { .probs = distributions, .ld = g->args.n_vocab, .n_vocab = g->args.n_vocab,
                                  .n_row = l->n_place, .k = l->k, .how = speci_builder_how[g->kind],
                                  .host_probs_row = g->place, .grow = &g->grow, .host_slot = g->zero,
                                  .host_place = g->place };
    for (int32_t i = 0; i < l->n_place; i++) speci_draw_one(&draw, i);
    const int32_t feed_base = base + l->n_place; /* a node's number among those fed is its row */
    const spec_expand_args expand = { .grow = &g->grow, .n = 1, .host_slot = g->zero, .host_feed_base = &feed_base,
                                      .n_place = l->n_place, .k = l->k, .host_take = l->take, .threshold = l->threshold,
                                      .n_add = l->n_add, .n_max = b->n_pool, .n_next = l->n_next, .host_next = l->next,
                                      .next_threshold = l->next_threshold };
    speci_expand_one(&expand, 0);
    return SPEC_OK;
}

static spec_status grow_by_levels(growth *g)
{
    const spec_grow_node root = { .key = spec_stream_root(g->args.seed, g->args.step), .value = 1.0,
                                  .token = g->args.token, .parent = -1, .prob = 1.0f };
    speci_grow_begin(&g->grow, 0, &root);
    int32_t base = 0;
    for (int32_t i = 0; i < g->b->info.n_level && !too_deep(g, i); i++) {
        const speci_level *l = &g->b->levels[i];
        SPEC_TRY(grow_level(g, l, base));
        base += l->n_place;
        if (l->n_next == 0) break;
    }
    return speci_builder_take(g->b, g->kind, g->grow.node, g->grow.n[0]);
}

/* --------------------------------------------------------------------------------- host-driven --- */

/* Candidates behind the nodes of a round, whose rows begin at base. Behind those at the greatest depth there are
 * none. */
static spec_status candidates_of(growth *g, int32_t n, int32_t base)
{
    const spec_builder *b = g->b;
    float *distributions;
    for (int32_t i = 0; i < n; i++)
        if (too_deep(g, speci_tree_depth(g->pool, g->node[i]))) g->node[i] = -1;
    SPEC_TRY(ask(g, n, base, &distributions));
    for (int32_t i = 0; i < n; i++) {
        spec_candidate *out = g->candidate + (size_t)(base + i) * (size_t)b->k;
        for (int32_t j = 0; j < b->k; j++) out[j] = (spec_candidate){ .token = -1 };
        if (g->node[i] >= 0)
            speci_draw_row(distributions + (size_t)i * (size_t)g->args.n_vocab, g->args.n_vocab,
                           speci_builder_how[g->kind],
                           speci_builder_key(g->pool, g->node[i], g->args.seed, g->args.step), b->k, out);
    }
    return SPEC_OK;
}

static spec_status grow_by_host(growth *g)
{
    speci_builder_begin(g->pool, g->kind, g->args.token);
    int32_t n = 1, base = 0;
    g->node[0] = 0;
    for (int32_t i = 0; i < g->b->info.n_level && n > 0; i++) {
        SPEC_TRY(candidates_of(g, n, base));
        base += n;
        SPEC_TRY(speci_builder_expand(g->b, g->pool, g->args.n_vocab, g->candidate, g->node, &n));
    }
    return SPEC_OK;
}

/* -------------------------------------------------------------------------------------- memory --- */

/* Places of the widest round. */
static int32_t widest(const spec_builder *b)
{
    int32_t n = 1;
    if (b->host_driven) return b->info.n_row;
    for (int32_t i = 0; i < b->info.n_level; i++)
        if (b->levels[i].n_place > n) n = b->levels[i].n_place;
    return n;
}

static void *take(const growth *g, size_t n, size_t size, bool *ok)
{
    void *p = *ok ? speci_alloc(g->b->allocator, n, size) : NULL;
    *ok = p != NULL;
    return p;
}

static spec_status open_growth(growth *g)
{
    const spec_builder *b = g->b;
    const size_t rows = (size_t)b->info.n_row + 1, wide = (size_t)widest(b), pool = (size_t)b->n_pool;
    bool ok = true;
    g->zero = take(g, rows, sizeof *g->zero, &ok);
    g->place = take(g, rows, sizeof *g->place, &ok);
    g->node = take(g, rows, sizeof *g->node, &ok);
    g->asked = take(g, rows, sizeof *g->asked, &ok);
    if (!g->args.q) g->distributions = take(g, wide * (size_t)g->args.n_vocab, sizeof *g->distributions, &ok);
    if (b->host_driven) g->candidate = take(g, rows * (size_t)b->k, sizeof *g->candidate, &ok);
    spec_grow *grow = &g->grow;
    *grow = (spec_grow){ .n_slot = 1, .cap = b->n_pool, .cap_frontier = (int32_t)wide, .cap_feed = (int32_t)rows };
    if (!b->host_driven) {
        grow->n = take(g, 1, sizeof *grow->n, &ok);
        grow->frontier = take(g, wide, sizeof *grow->frontier, &ok);
        grow->node = take(g, pool, sizeof *grow->node, &ok);
        grow->feed = take(g, rows, sizeof *grow->feed, &ok);
        grow->candidate = take(g, wide * SPEC_MAX_CHILD, sizeof *grow->candidate, &ok);
    }
    for (size_t i = 0; i < rows && ok; i++) g->place[i] = (int32_t)i;
    return ok ? SPEC_OK : SPEC_E_NOMEM;
}

static void close_growth(growth *g)
{
    void *const parts[] = { g->zero, g->place, g->node, g->asked, g->distributions, g->candidate, g->grow.n,
                            g->grow.frontier, g->grow.node, g->grow.feed, g->grow.candidate };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) speci_free(g->b->allocator, parts[i]);
}

/* --------------------------------------------------------------------------------------- build --- */

static spec_status check_args(const spec_builder *b, const spec_build_args *args, const spec_tree *tree)
{
    if (!args->probs) return speci_fail(SPEC_E_INVALID, "a tree is to be built without distributions");
    if (args->n_vocab < 1 || args->token < 0 || args->token >= args->n_vocab)
        return speci_fail(SPEC_E_INVALID, "the root has token %d; the vocabulary has %d", args->token, args->n_vocab);
    if (args->depth_max < 0) return speci_fail(SPEC_E_INVALID, "depth_max is %d", args->depth_max);
    if (!tree->token || !tree->parent || tree->cap < b->info.n_node)
        return speci_fail(SPEC_E_INVALID, "the tree has room for %d nodes; \"%s\" needs %d", tree->cap, b->text,
                          b->info.n_node);
    return SPEC_OK;
}

static spec_status build(growth *g, spec_tree *tree)
{
    if (g->b->host_driven) SPEC_TRY(grow_by_host(g));
    else SPEC_TRY(grow_by_levels(g));
    return speci_builder_trim(g->b, g->pool, g->args.depth_max, tree);
}

spec_status spec_builder_build(spec_builder *builder, spec_tree *tree, const spec_build_args *args)
{
    if (!args) return speci_fail(SPEC_E_INVALID, "a tree is to be built without distributions");
    growth g = { .b = builder, .args = { .struct_size = sizeof g.args } };
    SPEC_TRY(speci_params_read(&g.args, sizeof g.args, args, "spec_build_args"));
    SPEC_TRY(check_args(builder, &g.args, tree));
    g.pool = &builder->pool;
    g.kind = g.args.draw ? builder->info.kind : SPEC_TREE_DETERMINISTIC;
    spec_status status = open_growth(&g);
    if (status == SPEC_OK) status = build(&g, tree);
    close_growth(&g);
    return status;
}
