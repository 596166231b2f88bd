/* build_sequoia.c - Sequoia's optimal shape (algorithms.md 4.7): of all shapes with m nodes, the one with the most
 * expected emitted tokens when child b of a node is the accepted one with probability a[b], whatever the node.
 *
 * Until acceptance is known, a[b] = 0.5 (b + 1)^-1.8: half of the first children, and a power law as Sequoia
 * measured. Observed acceptance replaces it: the prior weighs as much as 32 observations of a rank. The shape is
 * planned anew after 64, 128, 256, ... steps, between steps, in memory taken at the start. Where step costs are known,
 * it has as many nodes and levels, of those asked for, as give the most tokens per time. */
#include "algorithms/build/build.h"

#include <math.h>

enum { RANKS = 32, PRIOR = 32, FIRST_PLAN = 64 };

/* --- the dynamic program --- */

/* F(m, l, b) for m nodes, l levels, root included, and exactly b children of the root; G(m, l) = max over b. */
typedef struct table {
    const float *a;
    int32_t m, l, n_a;
    double *f, *g;      /* [m + 1][l + 1][n_a + 1], [m + 1][l + 1] */
    int16_t *y, *b;     /* of the largest: [as f], [as g] */
} table;

static size_t at_g(const table *t, int32_t m, int32_t l) { return (size_t)m * (size_t)(t->l + 1) + (size_t)l; }

static size_t at_f(const table *t, int32_t m, int32_t l, int32_t b)
{
    return at_g(t, m, l) * (size_t)(t->n_a + 1) + (size_t)b;
}

size_t speci_sequoia_bytes(int32_t m, int32_t l, int32_t n_a)
{
    const size_t g = (size_t)(m + 1) * (size_t)(l + 1), f = g * (size_t)(n_a + 1);
    return (f + g) * (sizeof(double) + sizeof(int16_t));
}

/* F(m, l, b) = max over 1 <= y < m of F(y, l, b - 1) + a_b G(m - y, l - 1): y nodes with the children before the
 * last. */
static void solve_f(table *t, int32_t m, int32_t l, int32_t b)
{
    double best = -INFINITY;
    int16_t best_y = 0;
    for (int32_t y = b; y < m; y++) {
        const double value = t->f[at_f(t, y, l, b - 1)] + (double)t->a[b - 1] * t->g[at_g(t, m - y, l - 1)];
        if (value > best) best = value, best_y = (int16_t)y;
    }
    t->f[at_f(t, m, l, b)] = best;
    t->y[at_f(t, m, l, b)] = best_y;
}

static void solve(table *t)
{
    for (int32_t l = 0; l <= t->l; l++)
        for (int32_t m = 0; m <= t->m; m++) {
            double *g = &t->g[at_g(t, m, l)];
            *g = -INFINITY;
            for (int32_t b = 0; b <= t->n_a; b++) {
                double *f = &t->f[at_f(t, m, l, b)];
                *f = m == 1 && l > 0 && b == 0 ? 1.0 : -INFINITY;
                if (l > 1 && b > 0 && m > b) solve_f(t, m, l, b);
                if (*f > *g) *g = *f, t->b[at_g(t, m, l)] = (int16_t)b;
            }
        }
}

/* The shape of G(m, l), breadth first. */
static void trace(const table *t, int32_t m, int32_t l, int32_t *parent)
{
    int32_t size[SPECI_MAX_NODE], level[SPECI_MAX_NODE], child[RANKS], n = 1;
    size[0] = m, level[0] = l, parent[0] = -1;
    for (int32_t x = 0; x < n; x++) {
        const int32_t n_child = t->b[at_g(t, size[x], level[x])];
        for (int32_t b = n_child, left = size[x]; b > 0; b--) {
            const int32_t y = t->y[at_f(t, left, level[x], b)];
            child[b - 1] = left - y;
            left = y;
        }
        for (int32_t b = 0; b < n_child; b++, n++) parent[n] = x, size[n] = child[b], level[n] = level[x] - 1;
    }
}

static double step_ms(const spec_cost_profile *costs, int32_t m, int32_t l)
{
    const double draft = l > 1 ? (l - 1) * (double)spec_cost_ms(&costs->draft, (m - 2 + l - 1) / (l - 1)) : 0.0;
    return (double)spec_cost_ms(&costs->target, m) + draft;
}

/* Of *m nodes in *l levels, the fewer that pay best (4.7); at least one draft. */
static void choose_size(const table *t, const spec_cost_profile *costs, int32_t *m, int32_t *l)
{
    const int32_t m_max = *m, l_max = *l;
    double best = -1.0;
    for (int32_t j = 2; j <= l_max; j++)
        for (int32_t i = 2; i <= m_max; i++) {
            const double rate = t->g[at_g(t, i, j)] / step_ms(costs, i, j);
            if (rate > best) best = rate, *m = i, *l = j;
        }
}

double speci_sequoia(const speci_sequoia_args *args, void *work, int32_t *parent, int32_t *n)
{
    int32_t m = args->m, l = args->l;
    const size_t g = (size_t)(m + 1) * (size_t)(l + 1), f = g * (size_t)(args->n_a + 1);
    table t = { .a = args->a, .m = m, .l = l, .n_a = args->n_a, .f = work };
    t.g = t.f + f;
    t.y = (int16_t *)(void *)(t.g + g);
    t.b = t.y + f;
    solve(&t);
    if (args->costs) choose_size(&t, args->costs, &m, &l);
    while (m > 1 && t.g[at_g(&t, m, l)] == -INFINITY) m--; /* fewer than m nodes find room in l levels */
    trace(&t, m, l, parent);
    *n = m;
    return t.g[at_g(&t, m, l)];
}

/* --- the builder --- */

typedef struct sequoia {
    int32_t m, l, n_a, n_step, next_plan;
    float a[RANKS];
    double hit[RANKS], seen[RANKS]; /* observations of a child of rank b: accepted; nodes that had one */
    int32_t parent[SPECI_MAX_NODE], n;
    int32_t scratch[4 * SPECI_MAX_NODE];
    spec_cost_profile costs;        /* target.n == 0: not known, the shape is as large as asked for */
    void *work;                     /* behind this struct */
} sequoia;

static double prior(int32_t rank) { return 0.5 * pow((double)(rank + 1), -1.8); }

static void plan(spec_builder *b)
{
    sequoia *s = b->own;
    for (int32_t i = 0; i < s->n_a; i++) s->a[i] = (float)((PRIOR * prior(i) + s->hit[i]) / (PRIOR + s->seen[i]));
    const speci_sequoia_args args = { .a = s->a, .n_a = s->n_a, .m = s->m, .l = s->l,
                                      .costs = s->costs.target.n > 0 ? &s->costs : NULL };
    (void)speci_sequoia(&args, s->work, s->parent, &s->n);
    speci_builder_shape(b, s->parent, s->n, s->scratch);
    /* What others were told when it opened holds for every plan. */
    b->info.n_row = s->m > 1 ? s->m - 1 : 0;
    b->info.n_level = b->info.depth = s->l - 1;
    b->k = s->n_a;
}

static spec_status open(spec_builder *b, const char *args)
{
    int32_t number[2] = { 0, 0 };
    const int32_t count = speci_parse_counts(args, number, 2), n = number[0];
    if (count < 1) return speci_builder_refuse(b, args, NULL);
    if (n >= SPECI_MAX_NODE || (count == 2 && (number[1] < 1 || number[1] > SPEC_MAX_DEPTH)))
        return speci_builder_refuse(b, args, "N is at most 255, DEPTH 1 to 63");
    int32_t depth = count == 2 ? number[1] : speci_usual_depth(n);
    if (depth > n) depth = n;
    const int32_t n_a = n < 1 ? 1 : n < RANKS ? n : RANKS;
    const size_t head = (sizeof(sequoia) + 63) / 64 * 64;
    sequoia *s = speci_alloc(b->allocator, head + speci_sequoia_bytes(n + 1, depth + 1, n_a), 1);
    if (!s) return SPEC_E_NOMEM;
    b->own = s;
    *s = (sequoia){ .m = n + 1, .l = depth + 1, .n_a = n_a, .next_plan = FIRST_PLAN, .work = (char *)s + head };
    b->info.kind = SPEC_TREE_SAMPLED;
    b->info.n_node = n + 1;
    SPEC_TRY(speci_builder_levels(b, depth, true));
    plan(b);
    b->info.n_node = s->n; /* fewer than asked for when they do not fit DEPTH; then so in every plan */
    return SPEC_OK;
}

/* Node by node along the accepted path of the shape: which ranks were there, and which was accepted. */
static void observe(spec_builder *b, int32_t n_node, const int32_t *ranks, int32_t n)
{
    sequoia *s = b->own;
    (void)n_node;
    for (int32_t i = 0, x = 0; i < n && x >= 0; i++) {
        int32_t n_child = 0, next = -1;
        for (int32_t j = x + 1; j < s->n; j++) {
            if (s->parent[j] != x) continue;
            if (n_child == ranks[i]) next = j;
            s->seen[n_child++] += 1.0;
        }
        if (next >= 0) s->hit[ranks[i]] += 1.0;
        x = next;
    }
    if (++s->n_step < s->next_plan) return;
    s->next_plan = s->next_plan < (1 << 20) ? 2 * s->next_plan : s->n_step + (1 << 20);
    plan(b);
}

static void costs(spec_builder *b, const spec_cost_profile *profile)
{
    sequoia *s = b->own;
    s->costs = *profile;
    plan(b);
}

const speci_builder_kind speci_build_sequoia = { .name = "sequoia", .args = "N[,DEPTH]",
                                               .help = "the best shape of N drafts for measured acceptance",
                                               .open = open,
                                               .observe = observe,
                                               .costs = costs };
