/* cpu_accept.c - which candidates of rows are accepted: at a node (multi-step speculative sampling), and in whole trees (traversal).
 * Each row is one task. Sums over a row are in double, in ascending order of ids. */
#include "backends/cpu/cpu_rows.h"

/* --- draws and residual distributions --- */

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

/* --- at a node --- */

typedef struct accept_job {
    spec_queue *q;
    const spec_accept_args *a;
} accept_job;

/* Multi-step speculative sampling at one node (spec_accept_args). R and D are copies, made at the first rejection. */
static void accept_row(void *arg, int32_t i)
{
    const accept_job *job = arg;
    const spec_accept_args *a = job->a;
    int32_t n = a->n_vocab, first = a->host_first_candidate[i], count = a->host_first_candidate[i + 1] - first;
    const int32_t *tokens = a->host_candidate + first;
    const float *u = a->host_u + first, *p = cpu_row_at(a->p, a->host_p_row[i], a->ld_p);
    const float *q = a->host_q_row[i] >= 0 ? cpu_row_at(a->q, a->host_q_row[i], a->ld_q) : NULL;
    const float *r = p, *d = q;
    row_scratch t = speci_cpu_row_scratch(job->q, (size_t)n);
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
    CPU_TRY(speci_cpu_check_rows(q, "accept", a->n_vocab, a->ld_p));
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

/* --- in whole trees --- */

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
    const float *p = cpu_row_at(a->p, a->host_p_row[i], a->ld_p);
    const int32_t n = a->n_vocab;
    memcpy(t->a, p, (size_t)n * sizeof *t->a);
    memcpy(t->b, cpu_row_at(a->q, a->host_q_row[i], a->ld_q), (size_t)n * sizeof *t->b);
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
    row_scratch t = speci_cpu_row_scratch(job->q, (size_t)a->n_vocab);
    float w = a->host_parent[i] < 0 ? 1.0f : a->host_out_prob[i];
    if (end > first) w = reject_candidates(a, i, first, end, &t, w);
    const float *r = end > first ? t.a : cpu_row_at(a->p, a->host_p_row[i], a->ld_p);
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
    CPU_TRY(speci_cpu_check_rows(q, "accept_tree", a->n_vocab, a->ld_p));
    CPU_TRY(check_tree_rows(q, a));
    for (int32_t i = 0; i < a->n_row; i++) n_level = cpu_max(n_level, level_of(a, i) + 1);
    for (int32_t level = 0; level < n_level; level++) {
        accept_tree_job job = { q, a, level };
        speci_cpu_parallel(q->dev->pool, a->n_row, accept_tree_row, &job);
    }
    return SPEC_OK;
}
