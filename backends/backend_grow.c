/* backend_grow.c - see backend_grow.h; what is computed stands at the operations in spec_backend.h. */
#include "backends/backend_grow.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

void speci_grow_begin(const spec_grow *g, int32_t slot, const spec_grow_node *root)
{
    int32_t *frontier = g->frontier + (size_t)slot * (size_t)g->cap_frontier;
    g->n[slot] = 1;
    g->node[(size_t)slot * (size_t)g->cap] = *root;
    for (int32_t i = 0; i < g->cap_frontier; i++) frontier[i] = i == 0 ? 0 : -1;
}

/* --- draws --- */

/* The k best of a row, best first: larger values, ties by smaller id. */
typedef struct best_list {
    float value[SPEC_MAX_CHILD];
    int32_t id[SPEC_MAX_CHILD];
    int32_t n, k;
} best_list;

/* Ids come in ascending order, so an equal value never passes one that is there. */
static void best_add(best_list *l, float value, int32_t id)
{
    if (l->n == l->k && !(value > l->value[l->k - 1])) return;
    int32_t i = l->n < l->k ? l->n++ : l->k - 1;
    for (; i > 0 && value > l->value[i - 1]; i--) l->value[i] = l->value[i - 1], l->id[i] = l->id[i - 1];
    l->value[i] = value, l->id[i] = id;
}

static void best_by_probs(best_list *l, const float *probs, int32_t n)
{
    for (int32_t i = 0; i < n; i++)
        if (probs[i] > 0.0f) best_add(l, probs[i], i);
}

static void best_by_race(best_list *l, const float *probs, int32_t n, uint64_t key)
{
    uint32_t w[4];
    for (int32_t i = 0; i < n; i += 2) {
        const bool second = i + 1 < n && probs[i + 1] > 0.0f;
        if (!(probs[i] > 0.0f) && !second) continue;
        spec_gumbel_words(key, (uint32_t)i / 2, w);
        if (probs[i] > 0.0f) best_add(l, spec_gumbel_value(probs[i], w[0], w[1]), i);
        if (second) best_add(l, spec_gumbel_value(probs[i + 1], w[2], w[3]), i + 1);
    }
}

static void draw_repeat(const float *probs, int32_t n, uint64_t key, int32_t k, spec_candidate *out)
{
    double total = 0.0;
    for (int32_t i = 0; i < n; i++) total += probs[i] > 0.0f ? (double)probs[i] : 0.0;
    for (int32_t j = 0; j < k; j++) {
        const double border = (double)spec_repeat_uniform(key, (uint32_t)j) * total;
        double sum = 0.0;
        out[j] = (spec_candidate){ .token = -1 };
        for (int32_t i = 0; i < n && !(sum > border); i++) {
            if (!(probs[i] > 0.0f)) continue;
            sum += (double)probs[i];
            out[j] = (spec_candidate){ .token = i, .prob = probs[i] };
        }
    }
}

void speci_draw_row(const float *probs, int32_t n_vocab, spec_draw_how how, uint64_t key, int32_t k, spec_candidate *out)
{
    if (how == SPEC_DRAW_REPEAT) {
        draw_repeat(probs, n_vocab, key, k, out);
        return;
    }
    best_list best = { .k = k };
    if (how == SPEC_DRAW_TOP) best_by_probs(&best, probs, n_vocab);
    else best_by_race(&best, probs, n_vocab, key);
    for (int32_t j = 0; j < k; j++)
        out[j] = j < best.n ? (spec_candidate){ .token = best.id[j], .prob = probs[best.id[j]] }
                            : (spec_candidate){ .token = -1 };
}

void speci_draw_one(const spec_draw_args *a, int32_t i)
{
    const float *probs = a->probs + (size_t)a->host_probs_row[i] * (size_t)a->ld;
    spec_candidate own[SPEC_MAX_CHILD], *out = own;
    uint64_t key = a->host_key ? a->host_key[i] : 0;
    bool there = true;
    if (a->grow) {
        const spec_grow *g = a->grow;
        const size_t slot = (size_t)a->host_slot[i], place = slot * (size_t)g->cap_frontier + (size_t)a->host_place[i];
        const int32_t node = a->host_key ? 0 : g->frontier[place];
        out = g->candidate + place * SPEC_MAX_CHILD;
        there = node >= 0;
        if (there && !a->host_key) key = g->node[slot * (size_t)g->cap + (size_t)node].key;
    }
    if (there) speci_draw_row(probs, a->n_vocab, a->how, key, a->k, out);
    else
        for (int32_t j = 0; j < a->k; j++) out[j] = (spec_candidate){ .token = -1 };
    for (int32_t j = 0; a->host_out && j < a->k; j++) a->host_out[(size_t)i * (size_t)a->k + (size_t)j] = out[j];
}

/* --- expansion --- */

/* A tree being expanded, and where its parts are. */
typedef struct expansion {
    const spec_expand_args *a;
    int32_t feed_base, first; /* first: number of the first node added */
    int32_t *n, *frontier;
    spec_grow_node *node;
    spec_step_node *feed;
    const spec_candidate *candidate; /* [n_place][SPEC_MAX_CHILD] */
} expansion;

/* The eligible candidates of place f: how many of its first ones. */
static int32_t n_eligible(const expansion *e, int32_t f)
{
    const spec_expand_args *a = e->a;
    const spec_candidate *c = e->candidate + (size_t)f * SPEC_MAX_CHILD;
    if (e->frontier[f] < 0) return 0;
    const double value = e->node[e->frontier[f]].value;
    const int32_t most = a->host_take && a->host_take[f] < a->k ? a->host_take[f] : a->k;
    double drawn = 0.0;
    int32_t j = 0;
    for (; j < most && c[j].token >= 0; j++) {
        if (!(value * (1.0 - drawn) >= a->threshold)) break;
        drawn += (double)c[j].prob;
    }
    return j;
}

static double value_of(const expansion *e, int32_t f, int32_t j)
{
    return e->node[e->frontier[f]].value * (double)e->candidate[(size_t)f * SPEC_MAX_CHILD + (size_t)j].prob;
}

/* How many eligible candidates come before (f, j) by value, ties by place and rank. */
static int32_t place_by_value(const expansion *e, int32_t f, int32_t j)
{
    const double value = value_of(e, f, j);
    int32_t before = 0;
    for (int32_t g = 0; g < e->a->n_place; g++) {
        const int32_t n = n_eligible(e, g);
        for (int32_t i = 0; i < n; i++) {
            const double other = value_of(e, g, i);
            before += other > value || (other == value && (g < f || (g == f && i < j)));
        }
    }
    return before;
}

/* Appends candidate j of place f. */
static void add_child(expansion *e, int32_t f, int32_t j)
{
    const int32_t x = e->frontier[f];
    const spec_candidate *c = e->candidate + (size_t)f * SPEC_MAX_CHILD + (size_t)j;
    e->node[(*e->n)++] = (spec_grow_node){ .key = spec_stream_child(e->node[x].key, j), .value = value_of(e, f, j),
                                           .token = c->token, .parent = x, .depth = e->node[x].depth + 1, .rank = j,
                                           .prob = c->prob, .fed = -1 };
}

static void add_children(expansion *e)
{
    const spec_expand_args *a = e->a;
    for (int32_t f = 0; f < a->n_place; f++) {
        const int32_t n = n_eligible(e, f);
        for (int32_t j = 0; j < n && *e->n < a->n_max; j++)
            if (a->n_add <= 0 || place_by_value(e, f, j) < a->n_add) add_child(e, f, j);
    }
}

/* Puts node x (-1: none) in place i of the next frontier. */
static void place(expansion *e, int32_t *next, int32_t i, int32_t x)
{
    const int32_t number = e->feed_base + i;
    next[i] = x;
    if (x < 0) {
        e->feed[number] = (spec_step_node){ .token = 0, .parent = 0, .depth = 1 };
        return;
    }
    spec_grow_node *n = &e->node[x];
    n->fed = number;
    e->feed[number] = (spec_step_node){ .token = e->a->feed_token ? e->a->feed_token[n->token] : n->token, .parent = e->node[n->parent].fed,
                                        .depth = e->node[0].fed + n->depth };
}

/* The node added for candidate `at` = f * k + j of the frontier `was`, or -1. */
static int32_t node_of_candidate(const expansion *e, const int32_t *was, int32_t at)
{
    if (at < 0 || at / e->a->k >= e->a->n_place) return -1;
    const int32_t x = was[at / e->a->k], j = at % e->a->k;
    for (int32_t i = e->first; i < *e->n && x >= 0; i++)
        if (e->node[i].parent == x && e->node[i].rank == j) return i;
    return -1;
}

/* Is added node x among the n_next of largest value? */
static bool is_next(const expansion *e, int32_t x)
{
    const double value = e->node[x].value;
    if (!(value >= e->a->next_threshold)) return false;
    int32_t before = 0;
    for (int32_t i = e->first; i < *e->n; i++)
        before += e->node[i].value > value || (e->node[i].value == value && i < x);
    return before < e->a->n_next;
}

static void make_frontier(expansion *e)
{
    const spec_expand_args *a = e->a;
    int32_t was[SPEC_MAX_FRONTIER], n = 0;
    for (int32_t f = 0; f < a->n_place; f++) was[f] = e->frontier[f];
    if (a->host_next) {
        for (int32_t i = 0; i < a->n_next; i++) place(e, e->frontier, i, node_of_candidate(e, was, a->host_next[i]));
        n = a->n_next;
    } else {
        for (int32_t x = e->first; x < *e->n && n < a->n_next; x++)
            if (is_next(e, x)) place(e, e->frontier, n++, x);
        while (n < a->n_next) place(e, e->frontier, n++, -1);
    }
    for (; n < a->grow->cap_frontier; n++) e->frontier[n] = -1;
}

void speci_expand_one(const spec_expand_args *a, int32_t i)
{
    const spec_grow *g = a->grow;
    const size_t slot = (size_t)a->host_slot[i];
    if (a->host_root) speci_grow_begin(g, a->host_slot[i], &a->host_root[i]);
    expansion e = { .a = a, .feed_base = a->host_feed_base[i], .n = g->n + slot,
                    .frontier = g->frontier + slot * (size_t)g->cap_frontier, .node = g->node + slot * (size_t)g->cap,
                    .feed = g->feed + slot * (size_t)g->cap_feed,
                    .candidate = g->candidate + slot * (size_t)g->cap_frontier * SPEC_MAX_CHILD };
    e.first = *e.n;
    add_children(&e);
    make_frontier(&e);
    if (!a->host_out_n) return;
    a->host_out_n[slot] = *e.n;
    memcpy(a->host_out_node + slot * (size_t)g->cap, e.node, (size_t)*e.n * sizeof *e.node);
}
