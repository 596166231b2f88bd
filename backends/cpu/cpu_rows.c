/* cpu_rows.c - operations over rows of logits: arg-max, distribution, log-probabilities; acceptance: cpu_accept.c.
 * Each row is one task. Sums over a row are in double, in ascending order of ids or of rank. */
#include <math.h>

#include "backends/cpu/cpu_rows.h"

size_t speci_cpu_rows_scratch(size_t n_vocab)
{
    return n_vocab * (2 * sizeof(float) + sizeof(int32_t));
}

row_scratch speci_cpu_row_scratch(spec_queue *q, size_t n)
{
    row_scratch s = { .slot = speci_cpu_scratch_take(q) };
    s.a = (float *)(void *)s.slot;
    s.b = s.a + n;
    s.ids = (int32_t *)(void *)(s.b + n);
    return s;
}

spec_status speci_cpu_check_rows(const spec_queue *q, const char *op, int32_t n_vocab, int32_t ld)
{
    if (n_vocab < 1 || ld < n_vocab)
        return q->dev->host->fail(SPEC_E_INVALID, "%s: rows of %d values, %d apart", op, n_vocab, ld);
    if ((size_t)n_vocab > q->row_vocab)
        return q->dev->host->fail(SPEC_E_INVALID, "%s: rows of %d values, but the queue was opened for %zu", op,
                                  n_vocab, q->row_vocab);
    return SPEC_OK;
}

/* --- arg-max --- */

/* The smallest id of the largest value, -1 if none is a number. */
static int32_t largest(const cpu_loops *loops, const float *v, int32_t n)
{
    const float m = loops->max(v, (size_t)n);
    for (int32_t i = 0; i < n; i++)
        if (v[i] == m) return i;
    return -1;
}

typedef struct argmax_job {
    const spec_queue *q;
    const spec_argmax_args *a;
} argmax_job;

static void argmax_row(void *arg, int32_t row)
{
    const argmax_job *job = arg;
    const spec_argmax_args *a = job->a;
    const int32_t token = largest(job->q->dev->loops, cpu_row_at(a->logits, row, a->ld), a->n_vocab);
    a->host_out_token[row] = token;
    if (a->next) a->next[row].token = token;
}

spec_status speci_cpu_argmax(spec_queue *q, const spec_argmax_args *a)
{
    if (a->n_vocab < 1 || a->ld < a->n_vocab)
        return q->dev->host->fail(SPEC_E_INVALID, "argmax: rows of %d values, %d apart", a->n_vocab, a->ld);
    argmax_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, a->n_row, argmax_row, &job);
    return SPEC_OK;
}

/* --- ranking: a heap of ids by (value descending, id ascending) --- */

static bool before(const float *v, int32_t i, int32_t j)
{
    return v[i] > v[j] || (v[i] == v[j] && i < j);
}

static void sift_down(const float *v, int32_t *heap, int32_t n, int32_t i)
{
    int32_t id = heap[i];
    for (int32_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(v, heap[child + 1], heap[child])) child++;
        if (!before(v, heap[child], id)) break;
        heap[i] = heap[child];
    }
    heap[i] = id;
}

/* heap = the ids of [0, n) whose value is a number and at least `floor_`; returns how many. */
static int32_t heap_make(const float *v, int32_t n, float floor_, int32_t *heap)
{
    int32_t count = 0;
    for (int32_t i = 0; i < n; i++)
        if (v[i] >= floor_) heap[count++] = i;
    for (int32_t i = count / 2; i-- > 0;) sift_down(v, heap, count, i);
    return count;
}

/* Moves the first of the heap's n ids to heap[n - 1]. */
static int32_t heap_pop(const float *v, int32_t *heap, int32_t n)
{
    int32_t id = heap[0];
    heap[0] = heap[n - 1];
    heap[n - 1] = id;
    if (n > 1) sift_down(v, heap, n - 1, 0);
    return id;
}

/* --- distribution --- */

typedef struct probs_job {
    spec_queue *q;
    const spec_probs_args *a;
} probs_job;

/* The logits below this cannot be in the shortest prefix of mass >= top_p: all of them together have less than
 * 1 - top_p of the mass. (The factor 0.5 keeps rounding away from the border.) */
static float top_p_floor(const spec_sampling *s, float m, double total, int32_t n)
{
    double least = 0.5 * (1.0 - (double)s->top_p) * total / (double)n;
    if (m == INFINITY) return m; /* all that is finite has no mass */
    return least > 1e-30 ? (float)((double)m + (double)s->temperature * log(least) - 1e-3 * fabs((double)m)) : -INFINITY;
}

/* Sets e to 0 outside the top-k and top-p sets; returns the mass that is left. v logits, e = exp((v - m) / T). */
static double truncate(float *e, const float *v, int32_t n, float m, double total, const spec_sampling *s,
                       const row_scratch *t)
{
    bool by_k = s->top_k > 0 && s->top_k < n, by_p = s->top_p > 0.0f && s->top_p < 1.0f;
    if (!by_k && !by_p) return total;
    float floor_ = by_k ? -INFINITY : top_p_floor(s, m, total, n);
    int32_t count = heap_make(v, n, floor_, t->ids), left = count;
    int32_t most = by_k ? cpu_min(s->top_k, count) : count;
    double mass = 0.0, kept = 0.0;
    if (by_k) { /* the mass of the k largest, which top-p is a share of */
        for (; count - left < most; left--) mass += (double)e[heap_pop(v, t->ids, left)];
    } else {
        mass = total;
    }
    float *out = t->b;
    memset(out, 0, (size_t)n * sizeof *out);
    for (int32_t rank = 0; rank < most; rank++) { /* rank r lies at ids[count - 1 - r] */
        if (!by_k) (void)heap_pop(v, t->ids, left--);
        int32_t id = t->ids[count - 1 - rank];
        out[id] = e[id];
        kept += (double)e[id];
        if (by_p && kept >= (double)s->top_p * mass) break;
    }
    memcpy(e, out, (size_t)n * sizeof *e);
    return kept;
}

/* Drops p < min_p max p; e's largest entry is 1. */
static double drop_min_p(float *e, int32_t n, float min_p, double total)
{
    if (!(min_p > 0.0f)) return total;
    double kept = 0.0;
    for (int32_t i = 0; i < n; i++) {
        if (e[i] < min_p) e[i] = 0.0f;
        kept += (double)e[i];
    }
    return kept;
}

/* softmax of logits / T over what top-k, then top-p, then min-p leave   (algorithms.md 2.1) */
static void probs_row(void *arg, int32_t i)
{
    const probs_job *job = arg;
    const spec_probs_args *a = job->a;
    const cpu_loops *loops = job->q->dev->loops;
    const spec_sampling *s = &a->host_sampling[i];
    const float *v = cpu_row_at(a->logits, a->host_src[i], a->ld);
    float *probs = a->probs + (size_t)a->host_dst[i] * (size_t)a->ld_probs;
    int32_t n = a->n_valid;
    row_scratch t = speci_cpu_row_scratch(job->q, (size_t)n);
    float m = loops->max(v, (size_t)n);
    double total = loops->exps(t.a, v, m, s->temperature, (size_t)n);
    total = truncate(t.a, v, n, m, total, s, &t);
    total = drop_min_p(t.a, n, s->min_p, total);
    if (m == -INFINITY) total = 0.0;
    for (int32_t j = 0; j < n; j++) probs[j] = total > 0.0 ? (float)((double)t.a[j] / total) : 0.0f;
    memset(probs + n, 0, (size_t)(a->n_probs - n) * sizeof *probs);
    speci_cpu_scratch_give(job->q, t.slot);
}

spec_status speci_cpu_probs(spec_queue *q, const spec_probs_args *a)
{
    const spec_host *h = q->dev->host;
    CPU_TRY(speci_cpu_check_rows(q, "distribution", a->n_valid, a->ld));
    if (a->n_probs < a->n_valid || a->ld_probs < a->n_probs)
        return h->fail(SPEC_E_INVALID, "distribution: %d columns from %d values, rows %d apart", a->n_probs, a->n_valid, a->ld_probs);
    for (int32_t i = 0; i < a->n_row; i++)
        if (!(a->host_sampling[i].temperature > 0.0f))
            return h->fail(SPEC_E_INVALID, "distribution: temperature %g of row %d is not positive",
                           (double)a->host_sampling[i].temperature, i);
    probs_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, a->n_row, probs_row, &job);
    return SPEC_OK;
}

/* --- log-probabilities --- */

typedef struct logprob_job {
    spec_queue *q;
    const spec_logprob_args *a;
} logprob_job;

/* log p(y) = v[y] - m - log sum exp(v - m) */
static void logprob_row(void *arg, int32_t i)
{
    const logprob_job *job = arg;
    const spec_logprob_args *a = job->a;
    const cpu_loops *loops = job->q->dev->loops;
    const float *v = cpu_row_at(a->logits, a->host_row[i], a->ld);
    float m = loops->max(v, (size_t)a->n_vocab);
    double log_sum = log(loops->exps(NULL, v, m, 1.0f, (size_t)a->n_vocab)) + (double)m;
    a->host_out_logprob[i] = (float)((double)v[a->host_token[i]] - log_sum);
    if (a->n_top == 0) return;
    row_scratch t = speci_cpu_row_scratch(job->q, (size_t)a->n_vocab);
    int32_t count = heap_make(v, a->n_vocab, -INFINITY, t.ids);
    for (int32_t k = 0; k < a->n_top; k++) {
        int32_t id = k < count ? heap_pop(v, t.ids, count - k) : -1;
        a->host_out_top[i * a->n_top + k] = id;
        a->host_out_top_logprob[i * a->n_top + k] = id >= 0 ? (float)((double)v[id] - log_sum) : -INFINITY;
    }
    speci_cpu_scratch_give(job->q, t.slot);
}

spec_status speci_cpu_logprob(spec_queue *q, const spec_logprob_args *a)
{
    const spec_host *h = q->dev->host;
    CPU_TRY(speci_cpu_check_rows(q, "logprob", a->n_vocab, a->ld));
    if (a->n_top < 0 || a->n_top > 64 || a->n_top > a->n_vocab)
        return h->fail(SPEC_E_INVALID, "logprob: the top %d of %d", a->n_top, a->n_vocab);
    for (int32_t i = 0; i < a->n_row; i++)
        if (a->host_token[i] < 0 || a->host_token[i] >= a->n_vocab)
            return h->fail(SPEC_E_INVALID, "logprob: token %d of %d", a->host_token[i], a->n_vocab);
    logprob_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, a->n_row, logprob_row, &job);
    return SPEC_OK;
}
