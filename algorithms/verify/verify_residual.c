/* verify_residual.c - what is left of a node's distributions while its candidates are rejected one after the other
 * (algorithms.md 3.2, 3.10), on plain arrays. Both are float32, their sums float64. Backends' accept and accept_tree are
 * tested against this file: the same sums, in the same order. */
#include <string.h>

#include "algorithms/verify/verify.h"

/* v = v / sum(v) where the sum is above `floor`; returns the sum before. */
static double normalise(float *v, size_t n, double floor)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += (double)v[i];
    for (size_t i = 0; sum > floor && i < n; i++) v[i] = (float)((double)v[i] / sum);
    return sum;
}

/* Takes token y, which was rejected, out of D. However little is left is still a distribution: a sure draft's next
 * sibling was drawn from what underflow spared. If nothing is left, D is zero and later siblings of this row are
 * skipped. */
static void remove_from_draft(speci_residual *w, int32_t y)
{
    w->d[y] = 0;
    (void)normalise(w->d, w->n, 0);
}

spec_status speci_residual_open(speci_residual *w, const spec_verify_args *a, bool repeat)
{
    *w = (speci_residual){ .a = a, .n = (size_t)a->n_vocab, .repeat = repeat };
    w->r = speci_alloc(a->allocator, 2 * w->n, sizeof *w->r);
    if (!w->r) return SPEC_E_NOMEM;
    w->d = w->r + w->n;
    return SPEC_OK;
}

void speci_residual_close(speci_residual *w)
{
    speci_free(w->a->allocator, w->r);
}

void speci_residual_begin(speci_residual *w, int32_t node)
{
    memcpy(w->r, speci_verify_p(w->a, node), w->n * sizeof *w->r);
    w->node = node;
    w->d_row = -1;
}

/* Siblings that were drawn from another row stay in D. */
const float *speci_residual_draft(speci_residual *w, int32_t c)
{
    const spec_tree *t = w->a->tree;
    const int32_t row = speci_verify_q_row(w->a, c);
    const float *q = w->a->q + (size_t)row * w->n;
    if (w->repeat) return q;
    if (row == w->d_row) return w->d;
    memcpy(w->d, q, w->n * sizeof *q);
    w->d_row = row;
    for (int32_t e = speci_tree_next_child(t, w->node, -1); e != c; e = speci_tree_next_child(t, w->node, e))
        if (speci_verify_q_row(w->a, e) == row && w->d[t->token[e]] > 0) remove_from_draft(w, t->token[e]);
    return w->d;
}

/* R is p without the candidates up to c (3.2), and p itself if they were all of it. */
static void begin_without(speci_residual *w, int32_t c)
{
    const spec_tree *t = w->a->tree;
    const float *p = speci_verify_p(w->a, w->node);
    memcpy(w->r, p, w->n * sizeof *p);
    for (int32_t e = speci_tree_next_child(t, w->node, -1); e >= 0; e = speci_tree_next_child(t, w->node, e)) {
        w->r[t->token[e]] = 0;
        if (e == c) break;
    }
    if (normalise(w->r, w->n, 0) == 0) memcpy(w->r, p, w->n * sizeof *p);
}

double speci_residual_reject(speci_residual *w, int32_t c, const float *d, float weight)
{
    const double nothing = 1e-12;
    for (size_t i = 0; i < w->n; i++) w->r[i] = weight * w->r[i] > d[i] ? weight * w->r[i] - d[i] : 0.0f;
    double left = normalise(w->r, w->n, nothing);
    if (!(left > nothing)) left = 0, begin_without(w, c);
    if (!w->repeat) remove_from_draft(w, w->a->tree->token[c]);
    return left;
}
