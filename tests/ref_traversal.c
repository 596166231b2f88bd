/* ref_traversal.c - see ref_traversal.h. */
#include "tests/ref_traversal.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "tests/support_statistics.h"

/* Does sibling a come before sibling b? */
static bool before(const ref_tree *t, int32_t a, int32_t b, ref_fault fault)
{
    const double qa = t->q[a][t->token[a]], qb = t->q[b][t->token[b]];
    if (fault == REF_SORTED && qa != qb) return qa > qb;
    return a < b;
}

/* The first child of u that is still there, or -1. */
static int32_t first_child(const ref_tree *t, int32_t u, const bool *gone, ref_fault fault)
{
    int32_t first = -1;
    for (int32_t c = u + 1; c < t->n; c++)
        if (t->parent[c] == u && !gone[c] && (first < 0 || before(t, c, first, fault))) first = c;
    return first;
}

/* s for child c: what it was drawn from, without the siblings in front of it. */
static void draft_of(double *s, const ref_tree *t, int32_t c, const bool *gone, ref_fault fault)
{
    memcpy(s, t->q[c], (size_t)t->v * sizeof *s);
    for (int32_t e = t->parent[c] + 1; e < t->n && fault != REF_REPLACEMENT; e++)
        if (t->parent[e] == t->parent[c] && gone[e] && t->q[e] == t->q[c]) s[t->token[e]] = 0;
    (void)probs_normalise(s, t->v);
}

/* Child x of u is deleted: b = z / Z, w = Z / (Z + 1 - w). */
static void delete_child(double *b, double *w, const double *s, int32_t v, double weight)
{
    double z = 0, left[REF_V];
    for (int32_t i = 0; i < v; i++) z += left[i] = fmax(weight * b[i] - s[i], 0);
    for (int32_t i = 0; i < v && z > 0; i++) b[i] = left[i] / z;
    *w = z + 1 - *w > 0 ? z / (z + 1 - *w) : 1;
}

void ref_traversal(ref_leaves *out, const ref_tree *t, ref_fault fault)
{
    static _Thread_local double b[REF_NODES][REF_V];
    double w[REF_NODES] = { 1 };
    bool gone[REF_NODES] = { false }, seen[REF_NODES] = { true };
    for (int32_t u = 0; u < t->n; u++) memcpy(b[u], t->p[u], (size_t)t->v * sizeof **b);
    out->n = 0;
    while (!gone[0]) {
        double s[REF_V];
        int32_t v = 0;
        for (int32_t c; (c = first_child(t, v, gone, fault)) >= 0; v = c, seen[c] = true) {
            const int32_t x = t->token[c];
            draft_of(s, t, c, gone, fault);
            if (!seen[c]) w[c] = s[x] > 0 ? fmin((fault == REF_WEIGHT_LOST ? 1 : w[v]) * b[v][x] / s[x], 1) : 0;
        }
        out->node[out->n] = v;
        out->accept[out->n] = v == 0 ? 1 : w[v];
        memcpy(out->b[out->n++], fault == REF_BONUS_OF_P ? t->p[v] : b[v], (size_t)t->v * sizeof **b);
        if (v > 0) {
            const int32_t u = t->parent[v];
            draft_of(s, t, v, gone, fault);
            /* A token that was already rejected is no draw of its own. */
            if (s[t->token[v]] > 0) delete_child(b[u], &w[u], s, t->v, fault == REF_RESIDUAL_OF_P ? 1 : w[u]);
        }
        gone[v] = true;
    }
}

void ref_traversal_ends(double *ends, const ref_leaves *leaves, ref_fault fault)
{
    double reach = 1;
    if (fault == REF_STOP_AT_FIRST) {
        for (int32_t i = leaves->n - 1; i >= 0; i--) {
            reach *= leaves->accept[i];
            ends[i] = reach * (i > 0 ? 1 - leaves->accept[i - 1] : 1);
        }
        return;
    }
    for (int32_t i = 0; i < leaves->n; i++) {
        ends[i] = reach * leaves->accept[i];
        reach *= 1 - leaves->accept[i];
    }
}

static int32_t depth_of(const ref_tree *t, int32_t node)
{
    int32_t depth = 0;
    for (; node > 0; node = t->parent[node]) depth++;
    return depth;
}

double ref_traversal_accepted(const ref_tree *t)
{
    static ref_leaves leaves;
    double ends[REF_NODES], sum = 0;
    ref_traversal(&leaves, t, REF_RIGHT);
    ref_traversal_ends(ends, &leaves, REF_RIGHT);
    for (int32_t i = 0; i < leaves.n; i++) sum += ends[i] * depth_of(t, leaves.node[i]);
    return sum;
}

/* Drafts that are accepted below u. */
static double mss_below(const ref_tree *t, int32_t u)
{
    double r[REF_V], s[REF_V], reach = 1, sum = 0;
    bool gone[REF_NODES] = { false };
    memcpy(r, t->p[u], (size_t)t->v * sizeof *r);
    for (int32_t c; reach > 0 && (c = first_child(t, u, gone, REF_RIGHT)) >= 0; gone[c] = true) {
        const int32_t x = t->token[c];
        draft_of(s, t, c, gone, REF_RIGHT);
        if (!(s[x] > 0)) continue;
        const double accept = fmin(1, r[x] / s[x]);
        if (accept > 0) sum += reach * accept * (1 + mss_below(t, c));
        reach *= 1 - accept;
        for (int32_t i = 0; i < t->v; i++) r[i] = fmax(r[i] - s[i], 0);
        (void)probs_normalise(r, t->v);
    }
    return sum;
}

double ref_mss_accepted(const ref_tree *t) { return mss_below(t, 0); }
