/* cpu_rows.c - operations over rows of logits and distributions: arg-max, distribution, acceptance, log-probabilities.
 * Each row is one task. Sums over a row are in double, in ascending order of ids or of rank. */
#include <math.h>

#include "backends/cpu/cpu.h"

/* A slot's scratch in a row operation: two rows of float and one of ids. */
typedef struct row_scratch {
    uint8_t *slot;
    float *a, *b;
    int32_t *ids;
} row_scratch;

size_t speci_cpu_rows_scratch(size_t n_vocab)
{
    return n_vocab * (2 * sizeof(float) + sizeof(int32_t));
}

static row_scratch scratch_take(spec_queue *q, size_t n)
{
    row_scratch s = { .slot = speci_cpu_scratch_take(q) };
    s.a = (float *)(void *)s.slot;
    s.b = s.a + n;
    s.ids = (int32_t *)(void *)(s.b + n);
    return s;
}

static spec_status check_vocab(const spec_queue *q, const char *op, int32_t n_vocab, int32_t ld)
{
    if (n_vocab < 1 || ld < n_vocab)
        return q->dev->host->fail(SPEC_E_INVALID, "%s: rows of %d values, %d apart", op, n_vocab, ld);
    if ((size_t)n_vocab > q->row_vocab)
        return q->dev->host->fail(SPEC_E_INVALID, "%s: rows of %d values, but the queue was opened for %zu", op,
                                  n_vocab, q->row_vocab);
    return SPEC_OK;
}

static const float *row_at(const float *base, int32_t row, int32_t ld)
{
    return base + (size_t)row * (size_t)ld;
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
    const int32_t token = largest(job->q->dev->loops, row_at(a->logits, row, a->ld), a->n_vocab);
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
    const float *v = row_at(a->logits, a->host_src[i], a->ld);
    float *probs = a->probs + (size_t)a->host_dst[i] * (size_t)a->ld_probs;
    int32_t n = a->n_valid;
    row_scratch t = scratch_take(job->q, (size_t)n);
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
    CPU_TRY(check_vocab(q, "distribution", a->n_valid, a->ld));
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

/* --- acceptance --- */

typedef struct accept_job {
    spec_queue *q;
    const spec_accept_args *a;
} accept_job;

/* The smallest i with v[i] > 0 and v[0] + ... + v[i] > u total; the last positive one if rounding runs past the end. */
static int32_t draw(const float *v, int32_t n, float u)
{
    double total = 0.0, sum = 0.0;
    int32_t last = -1;
    for (int32_t i = 0; i < n; i++) total += (double)v[i];
    for (int32_t i = 0; i < n; i++) {
        if (!(v[i] > 0.0f)) continue;
        sum += (double)v[i];
        last = i;
        if (sum > (double)u * total) return i;
    }
    return last;
}

/* v = v / sum(v); returns the sum before, and leaves v alone where that is not above `least`. */
static double normalise(float *v, int32_t n, double least)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) sum += (double)v[i];
    if (!(sum > least)) return sum;
    for (int32_t i = 0; i < n; i++) v[i] = (float)((double)v[i] / sum);
    return sum;
}

/* R = norm(max(weight R - D, 0)); where nothing is left, which only rounding can do: p without the rejected tokens,
 * or, where that is nothing, p. Returns the sum before it was normalised, 0 where it is but rounding.
 * d NULL: D is the point mass at y. */
static double reject(float *r, const float *d, const float *p, float weight, int32_t n, const int32_t *tokens,
                     int32_t n_rejected)
{
    for (int32_t i = 0; d && i < n; i++) r[i] = weight * r[i] > d[i] ? weight * r[i] - d[i] : 0.0f;
    if (!d) r[tokens[n_rejected - 1]] = 0.0f;
    const double left = normalise(r, n, 1e-12);
    if (left > 1e-12) return left;
    memcpy(r, p, (size_t)n * sizeof *r);
    for (int32_t j = 0; j < n_rejected; j++) r[tokens[j]] = 0.0f;
    if (!(normalise(r, n, 0.0) > 0.0)) memcpy(r, p, (size_t)n * sizeof *r);
    return 0.0;
}

/* Multi-step speculative sampling at one node (spec_accept_args). R and D are copies, made at the first rejection. */
static void accept_row(void *arg, int32_t i)
{
    const accept_job *job = arg;
    const spec_accept_args *a = job->a;
    int32_t n = a->n_vocab, first = a->host_first_candidate[i], count = a->host_first_candidate[i + 1] - first;
    const int32_t *tokens = a->host_candidate + first;
    const float *u = a->host_u + first, *p = row_at(a->p, a->host_p_row[i], a->ld_p);
    const float *q = a->host_q_row[i] >= 0 ? row_at(a->q, a->host_q_row[i], a->ld_q) : NULL;
    const float *r = p, *d = q;
    row_scratch t = scratch_take(job->q, (size_t)n);
    a->host_out_choice[i] = -1;
    for (int32_t j = 0; j < count; j++) {
        int32_t y = tokens[j];
        float mass = d ? d[y] : 1.0f;
        if (mass == 0.0f) continue;
        if (u[j] * mass < r[y]) {
            a->host_out_choice[i] = j;
            a->host_out_token[i] = y;
            break;
        }
        if (r == p) {
            memcpy(t.a, p, (size_t)n * sizeof *t.a);
            if (q) memcpy(t.b, q, (size_t)n * sizeof *t.b);
            r = t.a;
            d = q ? t.b : NULL;
        }
        (void)reject(t.a, d, p, 1.0f, n, tokens, j + 1);
        if (!q || a->repeat) continue;
        t.b[y] = 0.0f;
        if (!(normalise(t.b, n, 0.0) > 0.0)) break; /* no further sibling can exist */
    }
    if (a->host_out_choice[i] < 0) a->host_out_token[i] = draw(r, n, a->host_u_last[i]);
    if (a->next) a->next[i].token = a->host_out_token[i];
    speci_cpu_scratch_give(job->q, t.slot);
}

spec_status speci_cpu_accept(spec_queue *q, const spec_accept_args *a)
{
    CPU_TRY(check_vocab(q, "accept", a->n_vocab, a->ld_p));
    for (int32_t i = 0; i < a->n_row; i++)
        if (a->host_q_row[i] >= 0 && a->ld_q < a->n_vocab)
            return q->dev->host->fail(SPEC_E_INVALID, "accept: draft rows %d apart, need %d", a->ld_q, a->n_vocab);
    for (int32_t j = 0; j < a->n_candidate; j++)
        if (a->host_candidate[j] < 0 || a->host_candidate[j] >= a->n_vocab)
            return q->dev->host->fail(SPEC_E_INVALID, "accept: candidate %d is token %d of %d", j,
                                      a->host_candidate[j], a->n_vocab);
    accept_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, a->n_row, accept_row, &job);
    return SPEC_OK;
}

/* --- acceptance in whole trees --- */

typedef struct accept_tree_job {
    spec_queue *q;
    const spec_accept_tree_args *a;
    int32_t level;
} accept_tree_job;

static int32_t level_of(const spec_accept_tree_args *a, int32_t i)
{
    int32_t level = 0;
    while ((i = a->host_parent[i]) >= 0) level++;
    return level;
}

/* The first candidate of row i, or behind the rows of its tree. Those that follow it there have parent i. */
static int32_t first_candidate(const spec_accept_tree_args *a, int32_t i)
{
    int32_t c = i + 1;
    while (c < a->n_row && a->host_parent[c] >= 0 && a->host_parent[c] < i) c++;
    return c;
}

static float min_one(float x)
{
    if (!(x > 0.0f)) return 0.0f;
    return x < 1.0f ? x : 1.0f;
}

/* Rejects the candidates [first, end) of row i one after the other. Each finds its w where its own result will stand. */
static float reject_candidates(const spec_accept_tree_args *a, int32_t i, int32_t first, int32_t end, const row_scratch *t,
                               float w)
{
    const float *p = row_at(a->p, a->host_p_row[i], a->ld_p);
    const int32_t n = a->n_vocab;
    memcpy(t->a, p, (size_t)n * sizeof *t->a);
    memcpy(t->b, row_at(a->q, a->host_q_row[i], a->ld_q), (size_t)n * sizeof *t->b);
    for (int32_t c = first; c < end; c++) {
        const int32_t y = a->host_token[c];
        const float mass = t->b[y];
        a->host_out_prob[c] = mass > 0.0f ? min_one(w * t->a[y] / mass) : 0.0f;
        if (mass == 0.0f || w == 0.0f) continue;
        const double z = reject(t->a, t->b, p, w, n, a->host_token + first, c - first + 1);
        w = z > 0.0 ? (float)(z / (z + (1.0 - (double)w))) : w == 1.0f ? 1.0f : 0.0f;
        t->b[y] = 0.0f;
        (void)normalise(t->b, n, 0.0); /* nothing: no further sibling can exist */
    }
    return w;
}

/* See spec_accept_tree_args. */
static void accept_tree_row(void *arg, int32_t i)
{
    const accept_tree_job *job = arg;
    const spec_accept_tree_args *a = job->a;
    if (level_of(a, i) != job->level) return;
    const int32_t first = first_candidate(a, i);
    int32_t end = first;
    while (end < a->n_row && a->host_parent[end] == i) end++;
    row_scratch t = scratch_take(job->q, (size_t)a->n_vocab);
    float w = a->host_parent[i] < 0 ? 1.0f : a->host_out_prob[i];
    if (end > first) w = reject_candidates(a, i, first, end, &t, w);
    const float *r = end > first ? t.a : row_at(a->p, a->host_p_row[i], a->ld_p);
    a->host_out_prob[i] = w;
    a->host_out_token[i] = draw(r, a->n_vocab, a->host_u_last[i]);
    speci_cpu_scratch_give(job->q, t.slot);
}

static spec_status check_tree_rows(const spec_queue *q, const spec_accept_tree_args *a)
{
    const spec_host *h = q->dev->host;
    for (int32_t i = 0, root = 0; i < a->n_row; i++) {
        const int32_t parent = a->host_parent[i];
        if (parent < 0) root = i;
        if (a->host_q_row[i] >= 0 && a->ld_q < a->n_vocab)
            return h->fail(SPEC_E_INVALID, "accept_tree: draft rows %d apart, need %d", a->ld_q, a->n_vocab);
        if (i - root >= SPEC_ACCEPT_TREE_ROWS)
            return h->fail(SPEC_E_INVALID, "accept_tree: the tree that begins at row %d has more than %d rows", root,
                           SPEC_ACCEPT_TREE_ROWS);
        if (i == root ? parent >= 0 : parent < root || parent >= i || parent < a->host_parent[i - 1] || a->host_q_row[parent] < 0)
            return h->fail(SPEC_E_INVALID, "accept_tree: row %d is a candidate of row %d", i, parent);
        if (i > root && (a->host_token[i] < 0 || a->host_token[i] >= a->n_vocab))
            return h->fail(SPEC_E_INVALID, "accept_tree: row %d is token %d of %d", i, a->host_token[i], a->n_vocab);
    }
    return SPEC_OK;
}

/* Level by level: the rows of one are tasks of their own. */
spec_status speci_cpu_accept_tree(spec_queue *q, const spec_accept_tree_args *a)
{
    int32_t n_level = 0;
    CPU_TRY(check_vocab(q, "accept_tree", a->n_vocab, a->ld_p));
    CPU_TRY(check_tree_rows(q, a));
    for (int32_t i = 0; i < a->n_row; i++) n_level = cpu_max(n_level, level_of(a, i) + 1);
    for (int32_t level = 0; level < n_level; level++) {
        accept_tree_job job = { q, a, level };
        speci_cpu_parallel(q->dev->pool, a->n_row, accept_tree_row, &job);
    }
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
    const float *v = row_at(a->logits, a->host_row[i], a->ld);
    float m = loops->max(v, (size_t)a->n_vocab);
    double log_sum = log(loops->exps(NULL, v, m, 1.0f, (size_t)a->n_vocab)) + (double)m;
    a->host_out_logprob[i] = (float)((double)v[a->host_token[i]] - log_sum);
    if (a->n_top == 0) return;
    row_scratch t = scratch_take(job->q, (size_t)a->n_vocab);
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
    CPU_TRY(check_vocab(q, "logprob", a->n_vocab, a->ld));
    if (a->n_top < 0 || a->n_top > 64 || a->n_top > a->n_vocab)
        return h->fail(SPEC_E_INVALID, "logprob: the top %d of %d", a->n_top, a->n_vocab);
    for (int32_t i = 0; i < a->n_row; i++)
        if (a->host_token[i] < 0 || a->host_token[i] >= a->n_vocab)
            return h->fail(SPEC_E_INVALID, "logprob: token %d of %d", a->host_token[i], a->n_vocab);
    logprob_job job = { q, a };
    speci_cpu_parallel(q->dev->pool, a->n_row, logprob_row, &job);
    return SPEC_OK;
}
