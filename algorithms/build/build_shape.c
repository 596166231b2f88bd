/* build_shape.c - what kinds need to open: numbers out of text, and levels for fixed shapes. */
#include "algorithms/build/build.h"

#include <string.h>

/* ------------------------------------------------------------------------------------- numbers --- */

int32_t speci_parse_counts(const char *args, int32_t *out, int32_t cap)
{
    for (int32_t n = 0; n < cap; n++) {
        if (*args < '0' || *args > '9') return -1;
        int32_t value = 0;
        for (; *args >= '0' && *args <= '9'; args++) {
            value = 10 * value + (*args - '0');
            if (value > 100000) return -1;
        }
        out[n] = value;
        if (*args == 0) return n + 1;
        if (*args++ != ',') return -1;
    }
    return -1;
}

/* Digits at *s times 10^-(digits after the point); at most 15 digits count. False without a digit. */
static bool parse_decimal(const char **s, double *out)
{
    double value = 0.0, unit = 1.0;
    bool point = false;
    int32_t n = 0;
    for (;; (*s)++) {
        if (**s == '.' && !point) {
            point = true;
            continue;
        }
        if (**s < '0' || **s > '9') break;
        if (++n > 15) return false;
        value = 10.0 * value + (double)(**s - '0');
        if (point) unit *= 10.0;
    }
    *out = value / unit; /* both are exact below 2^53, so this is the nearest double */
    return n > 0;
}

bool speci_parse_real(const char *s, double *out, const char **end)
{
    if (!parse_decimal(&s, out)) return false;
    if (*s == 'e' || *s == 'E') {
        s++;
        const bool down = *s == '-';
        if (*s == '-' || *s == '+') s++;
        if (*s < '0' || *s > '9') return false;
        int32_t e = 0;
        for (; *s >= '0' && *s <= '9'; s++) e = e < 1000 ? 10 * e + (*s - '0') : e;
        if (e > 22) return false;
        double ten = 1.0;
        while (e-- > 0) ten *= 10.0;
        *out = down ? *out / ten : *out * ten;
    }
    *end = s;
    return true;
}

/* -------------------------------------------------------------------------------------- levels --- */

spec_status speci_builder_levels(spec_builder *b, int32_t n_level, bool with_places)
{
    b->info.n_level = n_level;
    b->levels = speci_alloc(b->allocator, (size_t)n_level, sizeof *b->levels);
    if (!b->levels) return SPEC_E_NOMEM;
    if (with_places) {
        b->places = speci_alloc(b->allocator, 2 * (size_t)b->info.n_node, sizeof *b->places);
        if (!b->places) return SPEC_E_NOMEM;
    }
    return SPEC_OK;
}

/* A shape's nodes: how many children, at which depth, which rank, and where in the frontier of their level (-1:
 * leaves). */
typedef struct shape {
    const int32_t *parent;
    int32_t n, *n_child, *depth, *rank, *place;
} shape;

static void measure(shape *s)
{
    memset(s->n_child, 0, (size_t)s->n * sizeof *s->n_child);
    s->depth[0] = s->rank[0] = 0;
    for (int32_t i = 1; i < s->n; i++) {
        s->rank[i] = s->n_child[s->parent[i]]++;
        s->depth[i] = s->depth[s->parent[i]] + 1;
    }
}

/* The level from depth d to d + 1, places and nexts at `at`; returns what is behind them. A frontier's places stand in
 * the order of their candidates, parents' places first. */
static int32_t *make_level(const shape *s, int32_t d, speci_level *l, const speci_level *before, int32_t *at)
{
    *l = (speci_level){ .n_place = before ? before->n_next : 1, .take = at,
                       .threshold = SPECI_NO_THRESHOLD };
    for (int32_t i = 0; i < s->n; i++) {
        if (s->depth[i] != d || s->n_child[i] == 0) continue;
        l->take[s->place[i]] = s->n_child[i];
        if (s->n_child[i] > l->k) l->k = s->n_child[i];
    }
    l->next = at + l->n_place;
    /* By parent's place, then rank: the order that growing makes. */
    for (int32_t f = 0; f < l->n_place; f++)
        for (int32_t i = 1; i < s->n; i++) {
            if (s->depth[i] != d + 1 || s->n_child[i] == 0 || s->place[s->parent[i]] != f) continue;
            s->place[i] = l->n_next;
            l->next[l->n_next++] = f * l->k + s->rank[i];
        }
    return l->next + l->n_next;
}

void speci_builder_shape(spec_builder *b, const int32_t *parent, int32_t n, int32_t *scratch)
{
    shape s = { .parent = parent, .n = n, .n_child = scratch, .depth = scratch + n, .rank = scratch + 2 * n,
                .place = scratch + 3 * n };
    measure(&s);
    s.place[0] = 0;
    int32_t *at = b->places;
    spec_builder_info *info = &b->info;
    info->depth = info->n_row = info->n_level = b->k = 0;
    if (n == 1) return;
    do {
        speci_level *l = &b->levels[info->n_level];
        at = make_level(&s, info->n_level, l, info->n_level ? l - 1 : NULL, at);
        info->n_row += l->n_place;
        if (l->k > b->k) b->k = l->k;
        info->depth = ++info->n_level;
    } while (b->levels[info->n_level - 1].n_next > 0);
}

spec_status speci_builder_static(spec_builder *b, const char *args, const int32_t *parent, int32_t n)
{
    int32_t scratch[4 * SPECI_MAX_NODE], deepest = 0, widest = 0;
    if (n < 1 || n > SPECI_MAX_NODE) return speci_builder_refuse(b, args, "there can be 1 to 256 nodes, root included");
    shape s = { .parent = parent, .n = n, .n_child = scratch, .depth = scratch + n, .rank = scratch + 2 * n };
    measure(&s);
    for (int32_t i = 0; i < n; i++) {
        if (s.depth[i] > deepest) deepest = s.depth[i];
        if (s.n_child[i] > widest) widest = s.n_child[i];
    }
    if (deepest > SPEC_MAX_DEPTH) return speci_builder_refuse(b, args, "nodes can be 63 deep");
    if (widest > SPEC_MAX_CHILD) return speci_builder_refuse(b, args, "a node can have 64 children");
    b->info.n_node = n;
    SPEC_TRY(speci_builder_levels(b, deepest, true));
    speci_builder_shape(b, parent, n, scratch);
    return SPEC_OK;
}

/* -------------------------------------------------------------------------------- known shapes --- */

/* Does it grow all candidates of its places, and no place by their values? */
static bool is_fixed(const speci_level *l)
{
    return l->n_add <= 0 && l->threshold <= SPECI_NO_THRESHOLD && (l->n_next == 0 || l->next);
}

bool speci_builder_has_known_shape(const spec_builder *b)
{
    if (speci_builder_is_host_driven(b) || b->kind->keep) return false;
    for (int32_t i = 0; i < b->info.n_level; i++) {
        if (!is_fixed(&b->levels[i])) return false;
        if (b->levels[i].n_next == 0) return true; /* growth ends here, whatever levels there are behind it */
    }
    return false;
}

void speci_builder_known_shape(const spec_builder *b, int32_t depth_max, spec_tree *t)
{
    int32_t frontier[SPECI_MAX_NODE] = { 0 }, child[SPECI_MAX_NODE], n_place = 1;
    t->n = 1;
    for (int32_t level = 0; level < depth_max && n_place > 0; level++) {
        const speci_level *l = &b->levels[level];
        const int32_t first = t->n;
        for (int32_t f = 0; f < n_place; f++) {
            const int32_t n = frontier[f] < 0 ? 0 : l->take ? l->take[f] : l->k;
            for (int32_t j = 0; j < n && t->n < b->n_pool; j++) child[spec_tree_add(t, frontier[f], -1, 1)] = f * l->k + j;
        }
        n_place = l->n_next;
        for (int32_t i = 0; i < n_place; i++) {
            frontier[i] = -1;
            for (int32_t x = first; x < t->n; x++)
                if (child[x] == l->next[i]) frontier[i] = x;
        }
    }
}
