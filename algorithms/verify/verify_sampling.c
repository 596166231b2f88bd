/* verify_sampling.c - the distribution of the next token on plain arrays (algorithms.md 2): temperature, top-k, top-p,
 * min-p, softmax. Backends compute the same on the device. */
#include "algorithms/verify/verify.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Ids by descending logit, ties by ascending id: a heap sort, since qsort has no argument for the logits. */
static bool before(const float *x, int32_t a, int32_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); }

static void sift(const float *x, int32_t *heap, int32_t n, int32_t i)
{
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(x, heap[child], heap[child + 1])) child++;
        if (!before(x, heap[i], heap[child])) return;
        const int32_t t = heap[i];
        heap[i] = heap[child], heap[child] = t;
    }
}

static void sort_ids(const float *x, int32_t *ids, int32_t n)
{
    for (int32_t i = 0; i < n; i++) ids[i] = i;
    for (int32_t i = n / 2 - 1; i >= 0; i--) sift(x, ids, n, i);
    for (int32_t end = n - 1; end > 0; end--) {
        const int32_t t = ids[0];
        ids[0] = ids[end], ids[end] = t;
        sift(x, ids, end, 0);
    }
}

static spec_status check(const float *logits, int32_t n, const spec_sampling *s)
{
    if (n < 1) return speci_fail(SPEC_E_INVALID, "a distribution over %d ids", n);
    if (!(s->temperature >= 0) || s->top_k < 0 || !(s->top_p >= 0) || !(s->min_p >= 0))
        return speci_fail(SPEC_E_INVALID, "temperature %g, top-k %d, top-p %g, min-p %g: none may be negative",
                          (double)s->temperature, s->top_k, (double)s->top_p, (double)s->min_p);
    for (int32_t i = 0; i < n; i++)
        if (isnan(logits[i])) return speci_fail(SPEC_E_INVALID, "logit %d is not a number", i);
    return SPEC_OK;
}

spec_status spec_probs(float *probs, const float *logits, int32_t n_vocab, const spec_sampling *s, int32_t *ids)
{
    SPEC_NEED(probs, "probs");
    SPEC_NEED(logits, "logits");
    SPEC_TRY(check(logits, n_vocab, s));
    sort_ids(logits, ids, n_vocab);
    if (isinf(logits[ids[0]])) return speci_fail(SPEC_E_INVALID, "the largest logit is %g", (double)logits[ids[0]]);
    memset(probs, 0, (size_t)n_vocab * sizeof *probs);
    if (s->temperature == 0.0f) {
        probs[ids[0]] = 1.0f;
        return SPEC_OK;
    }

    int32_t n = s->top_k > 0 && s->top_k < n_vocab ? s->top_k : n_vocab;
    double sum = 0;
    for (int32_t i = 0; i < n; i++) {
        probs[ids[i]] = expf((logits[ids[i]] - logits[ids[0]]) / s->temperature);
        sum += probs[ids[i]];
    }
    int32_t kept = n;
    if (s->top_p > 0 && s->top_p < 1) {
        double mass = 0;
        for (kept = 0; kept < n && mass < (double)s->top_p * sum; kept++) mass += probs[ids[kept]];
    }
    /* exp(0) = 1 is the largest entry, so min-p compares with itself. */
    while (kept > 1 && probs[ids[kept - 1]] < s->min_p) kept--;
    double total = 0;
    for (int32_t i = 0; i < kept; i++) total += probs[ids[i]];
    for (int32_t i = 0; i < n; i++) probs[ids[i]] = i < kept ? (float)(probs[ids[i]] / total) : 0.0f;
    return SPEC_OK;
}

int32_t spec_draw(const float *probs, int32_t n_vocab, float u)
{
    if (!probs) return 0;
    double total = 0, sum = 0;
    for (int32_t i = 0; i < n_vocab; i++) total += probs[i];
    int32_t last = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        if (!(probs[i] > 0)) continue;
        sum += probs[i], last = i;
        if (sum > (double)u * total) return i;
    }
    return last;
}
