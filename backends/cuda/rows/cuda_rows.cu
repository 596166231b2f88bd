/* cuda_rows.cu - operations over rows of logits and distributions: arg-max, acceptance, log-probabilities; distributions and draws
 * have a file of their own (cuda_probs.cu). Rows f32 [n_vocab] at base + row * ld. Acceptance is done by a team of blocks per row
 * (cuda_select.cuh), arg-max by up to 16 blocks, log-probabilities by one; each row is treated alone. Sums are in double,
 * in an order that depends on the row's length only. Results are written to pinned host memory; sync() hands them out.
 * A call of more rows than a kernel's parameters hold, or the queue has room for results, is done in batches. */
#include <string.h>

#include "backends/cuda/rows/cuda_select.cuh"

enum { ROW_THREADS = 1024 };

static __device__ __forceinline__ unsigned long long block_max(unsigned long long v, unsigned long long *shared)
{
    v = lanes_best<16, 1>(v);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++) v = shared[w] > v ? shared[w] : v;
    __syncthreads();
    return v;
}

/* The row's largest rank over this thread's share. Four loads of four values each go ahead of the comparisons, so that
 * long rows are read as fast as memory is. A maximum does not depend on who finds it. */
static __device__ __forceinline__ unsigned long long row_best(const float *row, int n, int first, int stride)
{
    enum { AHEAD = 4 };
    const int n_quad = (uintptr_t)row % 16 == 0 ? n / 4 : 0;
    unsigned long long best = 0;
    for (int base = first; base < n_quad; base += AHEAD * stride) {
        float4 v[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (base + a * stride < n_quad) v[a] = __ldg((const float4 *)row + base + a * stride);
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int q = base + a * stride;
            if (q >= n_quad) break;
            better(&best, v[a].x, 4 * q), better(&best, v[a].y, 4 * q + 1);
            better(&best, v[a].z, 4 * q + 2), better(&best, v[a].w, 4 * q + 3);
        }
    }
    for (int i = 4 * n_quad + first; i < n; i += stride) better(&best, row[i], i);
    return best;
}

/* -------------------------------------------------------------------------------- arg-max --- */

static __device__ __forceinline__ void put_token(unsigned long long best, int r, int32_t *out, spec_step_node *next)
{
    const int token = best ? rank_id(best) : -1;
    out[r] = token;
    if (next) next[r].token = token;
}

/* The last block of a row to finish reads what the others found. A maximum does not depend on the order. */
static __global__ void __launch_bounds__(256)
argmax_kernel(const float *logits, int ld, int n, unsigned long long *part, unsigned int *count, int32_t *out,
              spec_step_node *next)
{
    __shared__ unsigned long long shared[32];
    __shared__ bool last;
    const int r = (int)blockIdx.y, n_part = (int)gridDim.x;
    const float *row = logits + (size_t)r * ld;
    const unsigned long long best =
        block_max(row_best(row, n, (int)(blockIdx.x * blockDim.x + threadIdx.x), n_part * (int)blockDim.x), shared);
    if (threadIdx.x == 0) {
        part[(size_t)r * CUDA_ARGMAX_PARTS + blockIdx.x] = best;
        __threadfence();
        last = atomicAdd(&count[r], 1u) == (unsigned)n_part - 1;
    }
    __syncthreads();
    if (!last || threadIdx.x != 0) return;
    __threadfence();
    unsigned long long all = 0;
    for (int i = 0; i < n_part; i++) {
        const unsigned long long p = ((volatile unsigned long long *)part)[(size_t)r * CUDA_ARGMAX_PARTS + i];
        all = p > all ? p : all;
    }
    put_token(all, r, out, next);
    count[r] = 0;
}

/* Where the head has found them, as the last kernel of its pass; the step has told where they go. */
static __global__ void tokens_kernel(const unsigned long long *best, const cuda_tokens *of_step)
{
    const int r = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    grid_begin();
    const cuda_tokens to = *of_step;
    if (r < to.n_row) put_token(best[r], r, to.token, to.next);
}

/* In place of a product that does not look for them, as one of its pass. */
static __global__ void __launch_bounds__(256)
best_kernel(const spec_step_block *step, const float *y, int ld, int n, unsigned long long *best)
{
    __shared__ unsigned long long shared[32];
    const int r = (int)blockIdx.y;
    grid_begin();
    if (r >= step->n_row_run) return;
    const unsigned long long found =
        block_max(row_best(y + (size_t)r * ld, n, (int)(blockIdx.x * blockDim.x + threadIdx.x),
                           (int)(gridDim.x * blockDim.x)), shared);
    if (threadIdx.x == 0) atomicMax(best + r, found);
}

/* Blocks of a row of n entries. */
static int argmax_parts(int n)
{
    const int parts = cuda_div_up(n, 4096);
    return parts < CUDA_ARGMAX_PARTS ? parts : CUDA_ARGMAX_PARTS;
}

spec_status speci_cuda_row_best(spec_queue *q, const spec_view *y, int32_t n, unsigned long long *best)
{
    return cuda_launch(q, "best", best_kernel, dim3((unsigned)argmax_parts(n), (unsigned)q->shape.rows), dim3(256), 0, 1,
                       q->d_step, (const float *)y->data, y->ld, n, best);
}

static spec_status check_row(spec_queue *q, const char *op, int32_t n_vocab, int32_t ld, int32_t n_row)
{
    if (n_vocab < 1 || ld < n_vocab || n_row < 0)
        return q->dev->host->fail(SPEC_E_INVALID, "cuda %s: %d rows of %d values, %d apart", op, n_row, n_vocab, ld);
    return SPEC_OK;
}
static int32_t batch_rows(int32_t left) { return left < ROW_BATCH ? left : ROW_BATCH; }

spec_status speci_cuda_argmax(spec_queue *q, const spec_argmax_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_row(q, "argmax", a->n_vocab, a->ld, a->n_row));
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        void *out;
        n = a->n_row - r < q->row_cap ? a->n_row - r : q->row_cap;
        SPEC_TRY(speci_cuda_result_room(q, (size_t)n * 4 + 16, 1));
        SPEC_TRY(speci_cuda_result(q, &out, a->host_out_token + r, (size_t)n * 4));
        spec_step_node *const next = a->next ? a->next + r : NULL;
        argmax_kernel<<<dim3((unsigned)argmax_parts(a->n_vocab), (unsigned)n), 256, 0, q->stream>>>(
            a->logits + (size_t)r * a->ld, a->ld, a->n_vocab, q->argmax_part, q->argmax_count, (int32_t *)out, next);
        SPEC_TRY(cuda_launched(q, "argmax"));
    }
    return SPEC_OK;
}

spec_status speci_cuda_tokens_of(spec_queue *q, const spec_argmax_args *a, cuda_tokens *out)
{
    void *token;
    SPEC_TRY(speci_cuda_result_room(q, (size_t)a->n_row * 4 + 16, 1));
    SPEC_TRY(speci_cuda_result(q, &token, a->host_out_token, (size_t)a->n_row * 4));
    *out = cuda_tokens{ (int32_t *)token, a->next, a->n_row };
    return SPEC_OK;
}

spec_status speci_cuda_tokens(spec_queue *q)
{
    const int rows = q->shape.rows, threads = rows < 256 ? rows : 256;
    return cuda_launch(q, "tokens", tokens_kernel, dim3((unsigned)cuda_div_up(rows, threads)), dim3((unsigned)threads), 0, 1,
                       (const unsigned long long *)q->best, q->d_tokens);
}

/* --------------------------------------------------------------------------------- accept --- */

/* A node's residual R is not stored: it is p taken through the rejections so far, entry by entry. So p and q are
 * only read, a rejection costs one reading of both, and its sums over the ranges also serve the draw. With 64 nodes
 * of 131072 tokens that is 64 MiB, about 16 us, for each candidate that all of them reject, and half as much
 * for the sum of q where another one follows the first (prediction for an H200). Where p is 0 q is not read. */
enum { ACCEPT_REJECTIONS = 1024 };

struct accept_rejection {
    int token;
    int n_out;      /* >= 0: begins again from p without the first n_out candidates, nothing else being left; -1: no */
    float weight;   /* of R: 1 but for whole trees */
    float d_scale;  /* D = q d_scale, without the tokens rejected before */
    float r_scale;  /* R = r_scale max(weight R - D, 0); of the last rejection it is kept apart */
};

struct accept_node {
    const float *p, *q; /* q NULL: point masses */
    const int32_t *candidate;
    const accept_rejection *past;
    int n_past;
    bool repeat;
    float r_scale, d_scale; /* of R and D as they are */
    double draft;           /* the sum of q over the tokens that are left in D; from the first rejection on */

    __device__ __forceinline__ accept_node(const float *p_, const float *q_, const int32_t *candidate_,
                                           const accept_rejection *past_, bool repeat_)
        : p(p_), q(q_), candidate(candidate_), past(past_), n_past(0), repeat(repeat_), r_scale(1.0f), d_scale(1.0f), draft(0.0)
    {
    }

    /* R[c] but for the last rejection's r_scale, of p[c] and q[c]. */
    __device__ __forceinline__ float residual(int c, float pc, float qc) const
    {
        float r = pc;
        bool out = false; /* of D */
        for (int s = 0; s < n_past; s++) {
            const accept_rejection x = past[s];
            if (x.n_out >= 0) {
                r = pc;
                for (int j = 0; j < x.n_out; j++) r = candidate[j] == c ? 0.0f : r;
            } else if (q) {
                const float d = out ? 0.0f : qc * x.d_scale;
                r = r * x.weight;
                r = r > d ? r - d : 0.0f;
            } else {
                r = c == x.token ? 0.0f : r;
            }
            r = r * x.r_scale;
            out = out || (c == x.token && !repeat);
        }
        return r;
    }
    __device__ __forceinline__ float operator()(int c) const
    {
        const float pc = p[c];
        return pc > 0.0f && n_past > 0 ? residual(c, pc, q ? q[c] : 0.0f) : pc;
    }
    __device__ __forceinline__ bool rejected(int c) const
    {
        for (int s = 0; s < n_past; s++)
            if (past[s].token == c) return true;
        return false;
    }
    /* R[y] and D[y] as they are. */
    __device__ __forceinline__ float left(int y) const { return (*this)(y) * r_scale; }
    __device__ __forceinline__ float drawn(int y) const
    {
        if (!q) return 1.0f;
        return !repeat && rejected(y) ? 0.0f : q[y] * d_scale;
    }
};

struct accept_shared {
    accept_rejection past[ACCEPT_REJECTIONS];
    team_parts<double> sums;
};

static __device__ double residual_ranges(team_parts<double> *sums, const accept_node &node, int n)
{
    return team_ranges(sums, node.p, node.q, n,
                       [&](int c, float pc, float qc) { return node.residual(c, pc, qc); });
}

static __device__ double plain_ranges(team_parts<double> *sums, const float *row, int n)
{
    return team_ranges(sums, row, NULL, n, [](int, float v, float) { return v; });
}

/* Only rounding leaves nothing after candidate j: R is p without the tokens so far; and where p has no others, p. */
static __device__ double accept_again(accept_shared *s, const accept_node &node, int n, int j)
{
    for (int n_out = j + 1;; n_out = 0) {
        __syncthreads();
        if (threadIdx.x == 0) s->past[node.n_past - 1].n_out = n_out;
        __syncthreads();
        const double left = residual_ranges(&s->sums, node, n);
        if (left > 0.0 || n_out == 0) return left;
    }
}

/* Candidate j is rejected; `more`: another may follow. Returns Z, the sum of max(weight R - D, 0); 0 where it is but
 * rounding. */
static __device__ double accept_reject(accept_shared *s, accept_node *node, int n, int j, float weight, bool more)
{
    const int y = node->candidate[j];
    const bool removes = node->q && !node->repeat && more;
    if (removes && node->n_past == 0) node->draft = plain_ranges(&s->sums, node->q, n);
    __syncthreads(); /* all threads have read the past */
    if (threadIdx.x == 0) {
        if (node->n_past > 0) s->past[node->n_past - 1].r_scale = node->r_scale;
        s->past[node->n_past] = accept_rejection{ y, -1, weight, node->d_scale, 1.0f };
    }
    __syncthreads();
    node->n_past++;
    double left = residual_ranges(&s->sums, *node, n);
    const double z = left >= 1e-12 ? left : 0.0;
    if (z == 0.0) left = accept_again(s, *node, n, j);
    node->r_scale = left >= 1e-12 ? (float)(1.0 / left) : 1.0f;
    if (!removes) return z;
    node->draft = node->draft - (double)node->q[y];
    /* However little is left: what is drawn next is drawn from it. Nothing: no further sibling can exist. */
    node->d_scale = node->draft > 0.0 ? (float)fmin(1.0 / node->draft, 3e38) : 0.0f;
    return z;
}

/* --- one node --- */

/* What nodes of a batch are about, as a parameter of the kernel, with up to MOST candidates of all of them. */
template <int MOST> struct accept_batch {
    const float *p, *q;
    int32_t ld_p, ld_q, n_vocab;
    bool repeat;
    int32_t *out_choice, *out_token;
    spec_step_node *next;
    int32_t p_row[ROW_BATCH], q_row[ROW_BATCH], first_candidate[ROW_BATCH + 1];
    float u_last[ROW_BATCH];
    int32_t candidate[MOST];
    float u[MOST];
};

template <int MOST>
static __device__ __forceinline__ void accept_write(const accept_batch<MOST> &a, int i, int choice, int token)
{
    a.out_choice[i] = choice, a.out_token[i] = token;
    if (a.next) a.next[i].token = token;
}

/* A team per node; see spec_accept_args. */
template <int MOST>
static __global__ void __launch_bounds__(TEAM_THREADS, 2) accept_kernel(const __grid_constant__ accept_batch<MOST> a)
{
    __shared__ accept_shared s;
    const int i = team_row(), first = a.first_candidate[i], count = a.first_candidate[i + 1] - first, n = a.n_vocab;
    const bool writes = team_block() == 0 && threadIdx.x == 0;
    accept_node node(a.p + (size_t)a.p_row[i] * a.ld_p, a.q_row[i] >= 0 ? a.q + (size_t)a.q_row[i] * a.ld_q : NULL,
                     a.candidate + first, s.past, a.repeat);
    row_begin();
    for (int j = 0; j < count; j++) { /* the same in all threads of the team */
        const int y = node.candidate[j];
        const float mass = node.drawn(y);
        if (mass == 0.0f) continue;
        if (a.u[first + j] * mass < node.left(y)) {
            if (writes) accept_write(a, i, j, y);
            return;
        }
        (void)accept_reject(&s, &node, n, j, 1.0f, j + 1 < count);
    }
    if (node.n_past == 0) (void)plain_ranges(&s.sums, node.p, n);
    if (team_block() != 0 || threadIdx.x >= 32) return;
    const int token = team_draw(&s.sums, node, n, a.u_last[i]);
    if (threadIdx.x == 0) accept_write(a, i, -1, token);
}

/* Nodes [r, r + n_row) of the call. */
template <int MOST> static spec_status accept_rows(spec_queue *q, const spec_accept_args *a, int32_t r, int32_t n_row)
{
    const int32_t c = a->host_first_candidate[r], m = a->host_first_candidate[r + n_row] - c;
    const size_t bytes = (size_t)n_row * 4;
    accept_batch<MOST> b = {};
    void *choice, *token;
    SPEC_TRY(speci_cuda_result_room(q, 2 * (bytes + 16), 2));
    SPEC_TRY(speci_cuda_result(q, &choice, a->host_out_choice + r, bytes));
    SPEC_TRY(speci_cuda_result(q, &token, a->host_out_token + r, bytes));
    b.p = a->p, b.q = a->q, b.ld_p = a->ld_p, b.ld_q = a->ld_q, b.n_vocab = a->n_vocab, b.repeat = a->repeat != 0;
    b.out_choice = (int32_t *)choice, b.out_token = (int32_t *)token, b.next = a->next ? a->next + r : NULL;
    memcpy(b.p_row, a->host_p_row + r, bytes), memcpy(b.q_row, a->host_q_row + r, bytes);
    memcpy(b.u_last, a->host_u_last + r, bytes);
    for (int32_t i = 0; i <= n_row; i++) b.first_candidate[i] = a->host_first_candidate[r + i] - c;
    if (m > 0) memcpy(b.candidate, a->host_candidate + c, (size_t)m * 4), memcpy(b.u, a->host_u + c, (size_t)m * 4);
    return team_launch(q, "accept", accept_kernel<MOST>, n_row, team_of(q, a->n_vocab), b);
}

static spec_status check_draft_row(spec_queue *q, const char *op, int32_t row, int32_t ld_q, int32_t n_vocab)
{
    if (row < 0 || ld_q >= n_vocab) return SPEC_OK;
    return q->dev->host->fail(SPEC_E_INVALID, "cuda %s: draft rows %d apart, need %d", op, ld_q, n_vocab);
}

spec_status speci_cuda_accept(spec_queue *q, const spec_accept_args *a)
{
    const spec_host *h = q->dev->host;
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_row(q, "accept", a->n_vocab, a->ld_p, a->n_row));
    for (int32_t i = 0; i < a->n_row; i++) {
        SPEC_TRY(check_draft_row(q, "accept", a->host_q_row[i], a->ld_q, a->n_vocab));
        if (a->host_first_candidate[i] < 0 || a->host_first_candidate[i + 1] < a->host_first_candidate[i] ||
            a->host_first_candidate[i + 1] > a->n_candidate)
            return h->fail(SPEC_E_INVALID, "cuda accept: candidates of row %d end at %d of %d", i,
                           a->host_first_candidate[i + 1], a->n_candidate);
        if (a->host_first_candidate[i + 1] - a->host_first_candidate[i] > ACCEPT_REJECTIONS)
            return h->fail(SPEC_E_INVALID, "cuda accept: %d candidates in row %d, at most %d are verified",
                           a->host_first_candidate[i + 1] - a->host_first_candidate[i], i, (int)ACCEPT_REJECTIONS);
    }
    for (int32_t j = 0; j < a->n_candidate; j++)
        if (a->host_candidate[j] < 0 || a->host_candidate[j] >= a->n_vocab)
            return h->fail(SPEC_E_INVALID, "cuda accept: candidate %d is token %d of %d", j, a->host_candidate[j],
                           a->n_vocab);
    enum { FEW = 128 }; /* candidates of most calls: less to launch with */
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        auto candidates = [&]() { return a->host_first_candidate[r + n] - a->host_first_candidate[r]; };
        n = batch_rows(a->n_row - r);
        while (candidates() > ACCEPT_REJECTIONS) n--;
        SPEC_TRY(candidates() <= FEW ? accept_rows<FEW>(q, a, r, n) : accept_rows<ACCEPT_REJECTIONS>(q, a, r, n));
    }
    return SPEC_OK;
}

/* --- whole trees --- */

/* With which probability a node's subtree is to accept follows from the rejections of candidates in front of it and of its
 * ancestors. A node's team does these once more, so that no team waits for another: one launch, and the longest row of
 * readings is that of one path. A chain has no candidate in front of another, and its rows are read once. */
template <int MOST> struct accept_tree_batch {
    const float *p, *q;
    int32_t ld_p, ld_q, n_vocab, n_row;
    float *out_prob;
    int32_t *out_token;
    int32_t p_row[MOST], q_row[MOST], parent[MOST], token[MOST];
    int32_t first[MOST]; /* the row's first candidate; n_row: it has none */
    float u_last[MOST];

    __device__ __forceinline__ int above(int i, int levels) const
    {
        while (levels-- > 0) i = parent[i];
        return i;
    }
    __device__ __forceinline__ int depth(int i) const
    {
        int d = 0;
        while ((i = parent[i]) >= 0) d++;
        return d;
    }
    __device__ __forceinline__ bool is_candidate(int c, int row) const { return c < n_row && parent[c] == row; }
    __device__ __forceinline__ accept_node node(int i, const accept_rejection *past) const
    {
        return accept_node(p + (size_t)p_row[i] * ld_p, q_row[i] >= 0 ? q + (size_t)q_row[i] * ld_q : NULL, token + first[i],
                           past, false);
    }
};

/* Rejects the candidates of row i in front of row `end`; w becomes what they leave of the row's. */
template <int MOST>
static __device__ void tree_reject(accept_shared *s, const accept_tree_batch<MOST> &a, accept_node *node, int i, int end, float *w)
{
    for (int c = a.first[i]; c < end && a.is_candidate(c, i) && *w > 0.0f; c++) { /* the same in all threads of the team */
        if (node->drawn(a.token[c]) == 0.0f) continue;
        const double z = accept_reject(s, node, a.n_vocab, c - a.first[i], *w, a.is_candidate(c + 1, i));
        *w = z > 0.0 ? (float)(z / (z + (1.0 - (double)*w))) : *w == 1.0f ? 1.0f : 0.0f;
    }
}

/* w of a candidate, of which R and D have so much. */
static __device__ __forceinline__ float tree_enter(float w, float left, float drawn)
{
    if (drawn == 0.0f || !(w * left > 0.0f)) return 0.0f;
    return fminf(w * left / drawn, 1.0f);
}

/* A team per row; see spec_accept_tree_args. */
template <int MOST>
static __global__ void __launch_bounds__(TEAM_THREADS, 2)
accept_tree_kernel(const __grid_constant__ accept_tree_batch<MOST> a)
{
    __shared__ accept_shared s;
    const int i = team_row(), depth = a.depth(i), n = a.n_vocab;
    float w = 1.0f;
    row_begin();
    for (int up = depth; up > 0; up--) {
        const int row = a.above(i, up), child = a.above(i, up - 1);
        accept_node node = a.node(row, s.past);
        tree_reject(&s, a, &node, row, child, &w);
        w = tree_enter(w, node.left(a.token[child]), node.drawn(a.token[child]));
    }
    accept_node node = a.node(i, s.past);
    tree_reject(&s, a, &node, i, a.n_row, &w);
    if (node.n_past == 0) (void)plain_ranges(&s.sums, node.p, n);
    if (team_block() != 0 || threadIdx.x >= 32) return;
    const int token = team_draw(&s.sums, node, n, a.u_last[i]);
    if (threadIdx.x == 0) a.out_prob[i] = w, a.out_token[i] = token;
}

/* Rows [r, r + n_row) of the call, which are whole trees. */
template <int MOST>
static spec_status accept_trees(spec_queue *q, const spec_accept_tree_args *a, int32_t r, int32_t n_row)
{
    const size_t bytes = (size_t)n_row * 4;
    accept_tree_batch<MOST> b = {};
    void *prob, *token;
    SPEC_TRY(speci_cuda_result_room(q, 2 * (bytes + 16), 2));
    SPEC_TRY(speci_cuda_result(q, &prob, a->host_out_prob + r, bytes));
    SPEC_TRY(speci_cuda_result(q, &token, a->host_out_token + r, bytes));
    b.p = a->p, b.q = a->q, b.ld_p = a->ld_p, b.ld_q = a->ld_q, b.n_vocab = a->n_vocab, b.n_row = n_row;
    b.out_prob = (float *)prob, b.out_token = (int32_t *)token;
    memcpy(b.p_row, a->host_p_row + r, bytes), memcpy(b.q_row, a->host_q_row + r, bytes);
    memcpy(b.token, a->host_token + r, bytes), memcpy(b.u_last, a->host_u_last + r, bytes);
    for (int32_t i = n_row - 1; i >= 0; i--) { /* a row's first candidate comes last */
        b.first[i] = b.first[i] > 0 ? b.first[i] : n_row;
        b.parent[i] = a->host_parent[r + i] < 0 ? -1 : a->host_parent[r + i] - r;
        if (b.parent[i] >= 0) b.first[b.parent[i]] = i;
    }
    return team_launch(q, "accept_tree", accept_tree_kernel<MOST>, n_row, team_of(q, a->n_vocab), b);
}

/* Behind the last row of the tree that begins at row r. */
static int32_t tree_end(const spec_accept_tree_args *a, int32_t r)
{
    do r++;
    while (r < a->n_row && a->host_parent[r] >= 0);
    return r;
}

static spec_status check_tree(spec_queue *q, const spec_accept_tree_args *a, int32_t r, int32_t end)
{
    const spec_host *h = q->dev->host;
    if (a->host_parent[r] >= 0 || end - r > SPEC_ACCEPT_TREE_ROWS)
        return h->fail(SPEC_E_INVALID, "cuda accept_tree: row %d begins a tree of %d rows, whose root has parent %d", r, end - r,
                       a->host_parent[r]);
    SPEC_TRY(check_draft_row(q, "accept_tree", a->host_q_row[r], a->ld_q, a->n_vocab));
    for (int32_t i = r + 1; i < end; i++) {
        const int32_t parent = a->host_parent[i];
        if (parent < r || parent >= i || parent < a->host_parent[i - 1] || a->host_q_row[parent] < 0)
            return h->fail(SPEC_E_INVALID, "cuda accept_tree: row %d is a candidate of row %d", i, parent);
        if (a->host_token[i] < 0 || a->host_token[i] >= a->n_vocab)
            return h->fail(SPEC_E_INVALID, "cuda accept_tree: row %d is token %d of %d", i, a->host_token[i], a->n_vocab);
        SPEC_TRY(check_draft_row(q, "accept_tree", a->host_q_row[i], a->ld_q, a->n_vocab));
    }
    return SPEC_OK;
}

spec_status speci_cuda_accept_tree(spec_queue *q, const spec_accept_tree_args *a)
{
    enum { FEW = 64 }; /* rows of most calls: less to launch with */
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_row(q, "accept_tree", a->n_vocab, a->ld_p, a->n_row));
    for (int32_t r = 0; r < a->n_row; r = tree_end(a, r)) SPEC_TRY(check_tree(q, a, r, tree_end(a, r)));
    for (int32_t r = 0, end; r < a->n_row; r = end) {
        end = tree_end(a, r);
        while (end < a->n_row && tree_end(a, end) - r <= SPEC_ACCEPT_TREE_ROWS) end = tree_end(a, end);
        SPEC_TRY(end - r <= FEW ? accept_trees<FEW>(q, a, r, end - r) : accept_trees<SPEC_ACCEPT_TREE_ROWS>(q, a, r, end - r));
    }
    return SPEC_OK;
}

/* -------------------------------------------------------------------------------- logprob --- */

enum { TOP_MAX = SPEC_MAX_CHILD };

/* Entries of a row of logits, for block_top: all numbers. */
struct logit_entry {
    const float *row;
    int n;
    __device__ __forceinline__ unsigned long long one(int i) const { return entry_rank(row[i], i); }
    __device__ __forceinline__ void pair(int p, unsigned long long *a, unsigned long long *b) const
    {
        *a = one(2 * p), *b = 2 * p + 1 < n ? one(2 * p + 1) : 0;
    }
};

struct logprob_batch { /* as a parameter of the kernel */
    int32_t row[ROW_BATCH], token[ROW_BATCH];
};

/* log p(y) = v[y] - max - log sum exp(v - max); one block per row. */
static __global__ void __launch_bounds__(ROW_THREADS)
logprob_kernel(const float *logits, int ld, int n, int n_top, const __grid_constant__ logprob_batch a, float *out_logprob,
               int32_t *out_top, float *out_top_logprob)
{
    __shared__ top_shared<ROW_THREADS> shared;
    __shared__ unsigned long long maxima[32];
    __shared__ double sums[32];
    const int i = (int)blockIdx.x, t = (int)threadIdx.x;
    const float *row = logits + (size_t)a.row[i] * ld;
    const unsigned long long best = block_max(row_best(row, n, t, ROW_THREADS), maxima);
    const float most = best ? rank_value(best) : -CUDART_INF_F;
    double sum = 0.0;
    for (int c = t; c < n; c += ROW_THREADS)
        if (!isnan(row[c])) sum += row[c] == most ? 1.0 : (double)expf(row[c] - most);
    const double log_sum = log(block_sum(sum, sums)) + (double)most;
    if (t == 0) out_logprob[i] = (float)((double)row[a.token[i]] - log_sum);
    if (n_top <= 0) return;
    const unsigned long long rank = block_top<ROW_THREADS>(logit_entry{ row, n }, 0, n, n_top, &shared);
    if (t >= n_top) return;
    out_top[(size_t)i * n_top + t] = rank ? rank_id(rank) : -1; /* -1: a row with fewer numbers */
    out_top_logprob[(size_t)i * n_top + t] = rank ? (float)((double)row[rank_id(rank)] - log_sum) : -CUDART_INF_F;
}

static spec_status logprob_rows(spec_queue *q, const spec_logprob_args *a, int32_t r, int32_t n_row)
{
    const size_t n = (size_t)n_row, n_top = (size_t)a->n_top;
    logprob_batch b = {};
    memcpy(b.row, a->host_row + r, n * 4), memcpy(b.token, a->host_token + r, n * 4);
    void *logprob, *top = NULL, *top_logprob = NULL;
    SPEC_TRY(speci_cuda_result_room(q, n * 4 * (1 + 2 * n_top) + 48, 3));
    SPEC_TRY(speci_cuda_result(q, &logprob, a->host_out_logprob + r, n * 4));
    if (n_top) {
        SPEC_TRY(speci_cuda_result(q, &top, a->host_out_top + (size_t)r * n_top, n * n_top * 4));
        SPEC_TRY(speci_cuda_result(q, &top_logprob, a->host_out_top_logprob + (size_t)r * n_top, n * n_top * 4));
    }
    logprob_kernel<<<(unsigned)n_row, ROW_THREADS, 0, q->stream>>>(a->logits, a->ld, a->n_vocab, a->n_top, b,
                                                                   (float *)logprob, (int32_t *)top,
                                                                   (float *)top_logprob);
    return cuda_launched(q, "logprob");
}

spec_status speci_cuda_logprob(spec_queue *q, const spec_logprob_args *a)
{
    const spec_host *h = q->dev->host;
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_row(q, "logprob", a->n_vocab, a->ld, a->n_row));
    if (a->n_top < 0 || a->n_top > TOP_MAX || a->n_top > a->n_vocab)
        return h->fail(SPEC_E_INVALID, "cuda logprob: the top %d of %d", a->n_top, a->n_vocab);
    for (int32_t i = 0; i < a->n_row; i++)
        if (a->host_token[i] < 0 || a->host_token[i] >= a->n_vocab)
            return h->fail(SPEC_E_INVALID, "cuda logprob: token %d of %d", a->host_token[i], a->n_vocab);
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        n = batch_rows(a->n_row - r);
        SPEC_TRY(logprob_rows(q, a, r, n));
    }
    return SPEC_OK;
}
