/* cuda_rows.cu - operations over rows of logits and laws: arg-max, law, acceptance, log-probabilities.
 * Rows f32 [n_vocab] at base + row * ld. A row is one thread block's (of arg-max: 16 blocks'), so rows run in parallel
 * and each is treated alone. Sums are in double or in fixed point, in an order that depends on the row's length only.
 * Results are written to pinned host memory; sync() hands them out. A call of more rows than the queue has room for
 * parameters and results is done in batches. */
#include "cuda.cuh"

enum { ROW_THREADS = 1024 };

/* Larger values have larger keys; NaN has none (0). */
static __device__ __forceinline__ uint32_t value_key(float v)
{
    if (isnan(v)) return 0u;
    v = v + 0.0f; /* -0 is 0 */
    const uint32_t b = __float_as_uint(v);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}
/* Ranks entries by (value descending, id ascending): the first has the largest rank. All ranks differ; 0 is no entry. */
static __device__ __forceinline__ unsigned long long entry_rank(float v, int id)
{
    const uint32_t key = value_key(v);
    return key ? (unsigned long long)key << 32 | (0xffffffffu - (uint32_t)id) : 0ull;
}
static __device__ __forceinline__ int rank_id(unsigned long long rank) { return (int)(0xffffffffu - (uint32_t)rank); }

static __device__ __forceinline__ unsigned long long block_max(unsigned long long v, unsigned long long *shared)
{
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) {
        const unsigned long long o = __shfl_xor_sync(0xffffffffu, v, d);
        v = o > v ? o : v;
    }
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
    v = shared[0];
    for (int w = 1; w < (int)blockDim.x / 32; w++) v = shared[w] > v ? shared[w] : v;
    __syncthreads();
    return v;
}

/* The row's largest rank over this thread's share. */
static __device__ __forceinline__ unsigned long long row_best(const float *row, int n, int first, int stride)
{
    unsigned long long best = 0;
#pragma unroll 4
    for (int i = first; i < n; i += stride) {
        const unsigned long long r = entry_rank(row[i], i);
        best = r > best ? r : best;
    }
    return best;
}

/* -------------------------------------------------------------------------------- arg-max --- */

/* The last block of a row to finish reads what the others found. A maximum does not depend on the order. */
static __global__ void __launch_bounds__(256)
argmax_kernel(const float *logits, int ld, int n, unsigned long long *part, unsigned int *count, int32_t *out)
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
    out[r] = all ? rank_id(all) : -1;
    count[r] = 0;
}

static spec_status check_row(spec_queue *q, const char *op, int32_t n_vocab, int32_t ld, int32_t n_row)
{
    if (n_vocab < 1 || ld < n_vocab || n_row < 0)
        return q->dev->host->fail(SPEC_E_INVALID, "cuda %s: %d rows of %d values, %d apart", op, n_row, n_vocab, ld);
    return SPEC_OK;
}
static int32_t batch_rows(const spec_queue *q, int32_t left) { return left < q->row_cap ? left : q->row_cap; }

spec_status speci_cuda_argmax(spec_queue *q, const spec_argmax_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_row(q, "argmax", a->n_vocab, a->ld, a->n_row));
    int parts = cuda_div_up(a->n_vocab, 4096);
    if (parts > CUDA_ARGMAX_PARTS) parts = CUDA_ARGMAX_PARTS;
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        void *out;
        n = batch_rows(q, a->n_row - r);
        SPEC_TRY(speci_cuda_result_room(q, (size_t)n * 4 + 16, 1));
        SPEC_TRY(speci_cuda_result(q, &out, a->host_out_token + r, (size_t)n * 4));
        argmax_kernel<<<dim3((unsigned)parts, (unsigned)n), 256, 0, q->stream>>>(
            a->logits + (size_t)r * a->ld, a->ld, a->n_vocab, q->argmax_part, q->argmax_count, (int32_t *)out);
        SPEC_TRY(cuda_launched(q, "argmax"));
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------- selection --- */

/* A block finds the rank from which on entries belong to the shortest prefix, in rank order, whose measure reaches a
 * target. The measure is a count, or a mass in fixed point (weights of at most 1, scaled by 2^shift): integers, so that
 * histograms may be filled by atomics. The first histogram is over the distance from the maximum, which spreads
 * logits well; the next ones are over 8 bits of the rank each, and see only the bin that holds the border. */
struct select_shared {
    unsigned long long mass[256];
    unsigned int count[256];
    unsigned long long rest, total;
    int bin;
    unsigned int in_bin;
};

/* Entries that are candidates: rank >= least. */
struct select_row {
    const float *row;
    int n;
    float top, inv_width; /* the maximum; bins per unit of distance */
    float temperature;
    unsigned long long least; /* entries of lower rank are out of it */
    bool by_count;
    double scale;             /* 2^shift */
    __device__ __forceinline__ float weight(float v) const
    {
        return isinf(top) ? (v == top ? 1.0f : 0.0f) : expf((v - top) / temperature);
    }
    __device__ __forceinline__ int distance_bin(float v) const
    {
        const float d = isinf(top) && v == top ? 0.0f : (top - v) * inv_width;
        return d < 255.0f ? (int)d : 255; /* grows with the distance, also after rounding */
    }
    __device__ __forceinline__ unsigned long long measure(float v) const
    {
        return by_count ? 1ull : (unsigned long long)((double)weight(v) * scale + 0.5);
    }
};

/* Adds the entries that `in` takes to the bins that `bin` says. A thread gathers runs of one bin before it adds them,
 * so that rows of equal values do not queue for one address. */
template <typename In, typename Bin>
static __device__ __forceinline__ void select_histogram(select_shared *s, const select_row &r, In in, Bin bin)
{
    for (int i = (int)threadIdx.x; i < 256; i += (int)blockDim.x) s->mass[i] = 0, s->count[i] = 0;
    __syncthreads();
    int held = -1;
    unsigned long long mass = 0;
    unsigned int count = 0;
    for (int i = (int)threadIdx.x; i < r.n; i += (int)blockDim.x) {
        const float v = r.row[i];
        const unsigned long long rank = entry_rank(v, i);
        if (rank == 0 || rank < r.least || !in(v, rank)) continue;
        const int b = bin(v, rank);
        if (b != held) {
            if (count) atomicAdd(&s->mass[held], mass), atomicAdd(&s->count[held], count);
            held = b, mass = 0, count = 0;
        }
        mass += r.measure(v), count++;
    }
    if (count) atomicAdd(&s->mass[held], mass), atomicAdd(&s->count[held], count);
    __syncthreads();
}

/* The first warp: s->bin = the first bin, in ascending order, at which the running mass reaches `target`; s->rest =
 * what of the target is left for that bin; s->total the mass of all bins. If no bin reaches it, the last one that is
 * not empty is taken whole. */
static __device__ void select_find(select_shared *s, unsigned long long target)
{
    if (threadIdx.x < 32) {
        const int lane = (int)threadIdx.x;
        unsigned long long mine = 0;
        for (int i = 0; i < 8; i++) mine += s->mass[lane * 8 + i];
        unsigned long long sum = mine;
        for (int d = 1; d < 32; d *= 2) {
            const unsigned long long o = __shfl_up_sync(0xffffffffu, sum, d);
            if (lane >= d) sum += o;
        }
        const unsigned long long total = __shfl_sync(0xffffffffu, sum, 31);
        if (target > total) target = total;
        if (target == 0) target = 1; /* at least one entry */
        const unsigned reached = __ballot_sync(0xffffffffu, sum >= target);
        if (reached && lane == __ffs((int)reached) - 1) {
            unsigned long long run = sum - mine;
            int b = lane * 8;
            while (run + s->mass[b] < target) run += s->mass[b++];
            s->bin = b, s->rest = target - run, s->in_bin = s->count[b], s->total = total;
        }
        if (!reached && lane == 0) s->bin = -1, s->total = total;
    }
    __syncthreads();
}

/* The least rank of the prefix; entries of at least this rank are in. Sets *total to the mass of all candidates. With
 * share > 0 the target is that share of the mass, else `target`. */
static __device__ unsigned long long select_rank(select_shared *s, const select_row &r, unsigned long long target,
                                                 float share)
{
    select_histogram(s, r, [](float, unsigned long long) { return true; },
                     [&](float v, unsigned long long) { return r.distance_bin(v); });
    if (share > 0.0f) {
        select_find(s, 1); /* for the total */
        target = (unsigned long long)ceil((double)share * (double)s->total);
        __syncthreads();
    }
    select_find(s, target);
    if (s->bin < 0) return r.least; /* no mass at all */
    const int near = s->bin;
    unsigned long long prefix = 0, rest = s->rest; /* the border's rank, as far as known: its bits from `known` on */
    unsigned int left = s->in_bin;
    int known = 64;
    auto inside = [&](float v, unsigned long long rank) {
        return r.distance_bin(v) == near && (known == 64 || rank >> known == prefix >> known);
    };
    while (left > 1 && known > 0) {
        const int digit = known - 8;
        __syncthreads();
        select_histogram(s, r, inside, [&](float, unsigned long long rank) { return 255 - (int)(rank >> digit & 255); });
        select_find(s, rest);
        prefix |= (unsigned long long)(255 - s->bin) << digit;
        left = s->in_bin, rest = s->rest;
        known = digit;
    }
    /* One entry is left in the bin: the border. */
    __syncthreads();
    for (int i = (int)threadIdx.x; i < r.n; i += (int)blockDim.x) {
        const unsigned long long rank = entry_rank(r.row[i], i);
        if (rank && rank >= r.least && inside(r.row[i], rank)) s->rest = rank;
    }
    __syncthreads();
    const unsigned long long border = s->rest;
    __syncthreads();
    return border;
}

/* ------------------------------------------------------------------------------------ law --- */

/* One block per row: temperature, top-k, top-p, min-p, softmax. */
static __global__ void __launch_bounds__(ROW_THREADS)
law_kernel(const float *logits, int ld, int n_valid, float *law, int ld_law, int n_law, const int32_t *src,
           const int32_t *dst, const spec_sampling *sampling)
{
    __shared__ select_shared shared;
    __shared__ unsigned long long maxima[32];
    __shared__ double sums[32];
    const int i = (int)blockIdx.x;
    const spec_sampling how = sampling[i];
    const float *row = logits + (size_t)src[i] * ld;
    float *out = law + (size_t)dst[i] * ld_law;

    const unsigned long long best = block_max(row_best(row, n_valid, (int)threadIdx.x, ROW_THREADS), maxima);
    select_row r;
    r.row = row, r.n = n_valid;
    r.top = best ? row[rank_id(best)] : -CUDART_INF_F;
    r.temperature = fmaxf(how.temperature, 1e-30f);
    r.inv_width = 8.0f / r.temperature;
    r.least = 1;
    int bits = 0;
    while (bits < 31 && (1 << bits) < n_valid) bits++;
    r.scale = exp2((double)(62 - bits));
    if (how.top_k > 0 && how.top_k < n_valid) {
        r.by_count = true;
        r.least = select_rank(&shared, r, (unsigned long long)how.top_k, 0.0f);
        __syncthreads();
    }
    if (how.top_p > 0.0f && how.top_p < 1.0f) {
        r.by_count = false;
        r.least = select_rank(&shared, r, 0, how.top_p);
        __syncthreads();
    }
    const bool none = !best || (isinf(r.top) && r.top < 0.0f);
    auto weight = [&](int c) {
        const float v = row[c];
        const unsigned long long rank = entry_rank(v, c);
        if (none || rank == 0 || rank < r.least) return 0.0f;
        const float w = r.weight(v);
        return how.min_p > 0.0f && w < how.min_p ? 0.0f : w; /* the largest weight is 1 */
    };
    double sum = 0.0;
    for (int c = (int)threadIdx.x; c < n_valid; c += ROW_THREADS) sum += (double)weight(c);
    sum = block_sum(sum, sums);
    const double inv = sum > 0.0 ? 1.0 / sum : 0.0;
    for (int c = (int)threadIdx.x; c < n_law; c += ROW_THREADS)
        out[c] = c < n_valid ? (float)((double)weight(c) * inv) : 0.0f;
}

spec_status speci_cuda_law(spec_queue *q, const spec_law_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_row(q, "law", a->n_valid, a->ld, a->n_row));
    if (a->n_law < a->n_valid || a->ld_law < a->n_law)
        return q->dev->host->fail(SPEC_E_INVALID, "cuda law: %d columns from %d values, rows %d apart", a->n_law,
                                  a->n_valid, a->ld_law);
    for (int32_t i = 0; i < a->n_row; i++)
        if (!(a->host_sampling[i].temperature > 0.0f))
            return q->dev->host->fail(SPEC_E_INVALID, "cuda law: temperature %g of row %d is not positive",
                                      (double)a->host_sampling[i].temperature, i);
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        n = batch_rows(q, a->n_row - r);
        const size_t m = (size_t)n;
        cuda_param p;
        SPEC_TRY(speci_cuda_param_begin(q, &p, m * (sizeof(spec_sampling) + 8)));
        const spec_sampling *sampling =
            (const spec_sampling *)speci_cuda_param_add(q, &p, a->host_sampling + r, m * sizeof(spec_sampling));
        const int32_t *src = (const int32_t *)speci_cuda_param_add(q, &p, a->host_src + r, m * 4);
        const int32_t *dst = (const int32_t *)speci_cuda_param_add(q, &p, a->host_dst + r, m * 4);
        SPEC_TRY(speci_cuda_param_end(q, &p));
        law_kernel<<<(unsigned)n, ROW_THREADS, 0, q->stream>>>(a->logits, a->ld, a->n_valid, a->law, a->ld_law,
                                                               a->n_law, src, dst, sampling);
        SPEC_TRY(cuda_launched(q, "law"));
    }
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------- accept --- */

/* The smallest i with v[i] > 0 and v[0] + ... + v[i] > u * total; the last positive one if rounding runs past the end;
 * -1 when nothing is positive. Halving by 32: each round, warp w sums the w-th part of the range that holds the
 * border. Every thread returns the same. */
static __device__ int row_draw(const float *v, int n, float u, double *sums)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    int begin = 0, end = n;
    double before = 0.0, target = -1.0;
    for (;;) {
        const int size = (end - begin + 31) / 32;
        const int b = min(begin + warp * size, end), e = min(b + size, end);
        double sum = 0.0;
        for (int i = b + lane; i < e; i += 32) sum += v[i] > 0.0f ? (double)v[i] : 0.0;
        sum = warp_sum(sum);
        __syncthreads();
        if (lane == 0) sums[warp] = sum;
        __syncthreads();
        if (target < 0.0) {
            double total = 0.0;
            for (int w = 0; w < 32; w++) total += sums[w];
            if (!(total > 0.0)) return -1;
            target = (double)u * total;
        }
        int part = -1, positive = -1;
        double run = before;
        for (int w = 0; w < 32 && part < 0; w++) {
            if (!(sums[w] > 0.0)) continue;
            positive = w;
            if (run + sums[w] > target) part = w;
            else run += sums[w];
        }
        if (part < 0) { /* rounding: the end of the last part that has any mass */
            part = positive;
            target = CUDART_INF;
        }
        if (part < 0) return -1;
        before = run;
        begin = min(begin + part * size, end);
        end = min(begin + size, end);
        if (size == 1) return begin;
    }
}

/* One block per node; see spec_accept_args. R and D live in the rows of p and q, R times r_scale and D times d_scale
 * being the laws. */
static __global__ void __launch_bounds__(ROW_THREADS)
accept_kernel(float *p, int ld_p, float *q, int ld_q, int n, const int32_t *p_row, const int32_t *q_row,
              const int32_t *first_candidate, const int32_t *candidate, const float *u, const float *u_last,
              int32_t *out_choice, int32_t *out_token)
{
    __shared__ double sums[32];
    const int i = (int)blockIdx.x, first = first_candidate[i] - first_candidate[0];
    const int count = first_candidate[i + 1] - first_candidate[i];
    float *r = p + (size_t)p_row[i] * ld_p;
    float *d = q_row[i] >= 0 ? q + (size_t)q_row[i] * ld_q : NULL;
    float r_scale = 1.0f, d_scale = 1.0f;
    for (int j = 0; j < count; j++) {
        const int y = candidate[first + j];
        const float mass = d ? d[y] * d_scale : 1.0f, have = r[y] * r_scale;
        if (mass == 0.0f) continue; /* the same for all threads */
        if (u[first + j] * mass < have) {
            if (threadIdx.x == 0) out_choice[i] = j, out_token[i] = y;
            return;
        }
        /* Rejected: R = norm(max(R - D, 0)), D[y] = 0, D = norm(D). First the sum: where rounding leaves nothing, R
         * only loses the rejected token. */
        double left = 0.0, draft = 0.0;
        for (int c = (int)threadIdx.x; c < n; c += ROW_THREADS) {
            const float rc = r[c] * r_scale, dc = d ? d[c] * d_scale : c == y ? 1.0f : 0.0f;
            left += d ? (rc > dc ? (double)(rc - dc) : 0.0) : c == y ? 0.0 : (double)rc;
            draft += c == y ? 0.0 : (double)dc;
        }
        left = block_sum(left, sums);
        draft = block_sum(draft, sums);
        const bool subtract = d && left >= 1e-12;
        double sum = left;
        if (d && !subtract) {
            sum = 0.0;
            for (int c = (int)threadIdx.x; c < n; c += ROW_THREADS) sum += c == y ? 0.0 : (double)(r[c] * r_scale);
            sum = block_sum(sum, sums);
        }
        for (int c = (int)threadIdx.x; c < n; c += ROW_THREADS) {
            const float rc = r[c] * r_scale, dc = subtract ? d[c] * d_scale : 0.0f;
            if (subtract) r[c] = rc > dc ? rc - dc : 0.0f;
            else r[c] = c == y && sum > 0.0 ? 0.0f : rc; /* the last token with any mass stays */
            if (d && c == y) d[c] = 0.0f;
        }
        r_scale = sum >= 1e-12 ? (float)(1.0 / sum) : 1.0f;
        d_scale = d && draft >= 1e-12 ? (float)((double)d_scale / draft) : d_scale;
        __syncthreads(); /* the rows are as all threads left them */
        if (d && draft <= 0.0) break; /* no further sibling can exist */
    }
    const int token = row_draw(r, n, u_last[i], sums);
    if (threadIdx.x == 0) out_choice[i] = -1, out_token[i] = token;
}

static spec_status accept_batch(spec_queue *q, const spec_accept_args *a, int32_t r, int32_t n_row)
{
    const int32_t c = a->host_first_candidate[r];
    const size_t n = (size_t)n_row, m = (size_t)(a->host_first_candidate[r + n_row] - c);
    cuda_param p;
    SPEC_TRY(speci_cuda_param_begin(q, &p, n * 16 + 4 + m * 8));
    const int32_t *p_row = (const int32_t *)speci_cuda_param_add(q, &p, a->host_p_row + r, n * 4);
    const int32_t *q_row = (const int32_t *)speci_cuda_param_add(q, &p, a->host_q_row + r, n * 4);
    const int32_t *first = (const int32_t *)speci_cuda_param_add(q, &p, a->host_first_candidate + r, (n + 1) * 4);
    const int32_t *candidate = (const int32_t *)speci_cuda_param_add(q, &p, a->host_candidate + c, m * 4);
    const float *u = (const float *)speci_cuda_param_add(q, &p, a->host_u + c, m * 4);
    const float *u_last = (const float *)speci_cuda_param_add(q, &p, a->host_u_last + r, n * 4);
    SPEC_TRY(speci_cuda_param_end(q, &p));
    void *choice, *token;
    SPEC_TRY(speci_cuda_result_room(q, 2 * (n * 4 + 16), 2));
    SPEC_TRY(speci_cuda_result(q, &choice, a->host_out_choice + r, n * 4));
    SPEC_TRY(speci_cuda_result(q, &token, a->host_out_token + r, n * 4));
    accept_kernel<<<(unsigned)n_row, ROW_THREADS, 0, q->stream>>>(a->p, a->ld_p, a->q, a->ld_q, a->n_vocab, p_row,
                                                                  q_row, first, candidate, u, u_last,
                                                                  (int32_t *)choice, (int32_t *)token);
    return cuda_launched(q, "accept");
}

spec_status speci_cuda_accept(spec_queue *q, const spec_accept_args *a)
{
    const spec_host *h = q->dev->host;
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_row(q, "accept", a->n_vocab, a->ld_p, a->n_row));
    for (int32_t i = 0; i < a->n_row; i++) {
        if (a->host_q_row[i] >= 0 && a->ld_q < a->n_vocab)
            return h->fail(SPEC_E_INVALID, "cuda accept: draft rows %d apart, need %d", a->ld_q, a->n_vocab);
        if (a->host_first_candidate[i] < 0 || a->host_first_candidate[i + 1] < a->host_first_candidate[i] ||
            a->host_first_candidate[i + 1] > a->n_candidate)
            return h->fail(SPEC_E_INVALID, "cuda accept: candidates of row %d end at %d of %d", i,
                           a->host_first_candidate[i + 1], a->n_candidate);
        if (a->host_first_candidate[i + 1] - a->host_first_candidate[i] > q->row_cap)
            return h->fail(SPEC_E_INVALID, "cuda accept: %d candidates in row %d, the queue was opened for %d",
                           a->host_first_candidate[i + 1] - a->host_first_candidate[i], i, q->row_cap);
    }
    for (int32_t j = 0; j < a->n_candidate; j++)
        if (a->host_candidate[j] < 0 || a->host_candidate[j] >= a->n_vocab)
            return h->fail(SPEC_E_INVALID, "cuda accept: candidate %d is token %d of %d", j, a->host_candidate[j],
                           a->n_vocab);
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        n = batch_rows(q, a->n_row - r);
        while (a->host_first_candidate[r + n] - a->host_first_candidate[r] > q->row_cap) n--;
        SPEC_TRY(accept_batch(q, a, r, n));
    }
    return SPEC_OK;
}

/* -------------------------------------------------------------------------------- logprob --- */

enum { TOP_MAX = 64 };

/* log p(y) = v[y] - max - log sum exp(v - max); one block per row. */
static __global__ void __launch_bounds__(ROW_THREADS)
logprob_kernel(const float *logits, int ld, int n, int n_top, const int32_t *rows, const int32_t *tokens,
               float *out_logprob, int32_t *out_top, float *out_top_logprob)
{
    __shared__ select_shared shared;
    __shared__ unsigned long long maxima[32], top[TOP_MAX];
    __shared__ double sums[32];
    __shared__ int n_found;
    const int i = (int)blockIdx.x;
    const float *row = logits + (size_t)rows[i] * ld;
    const unsigned long long best = block_max(row_best(row, n, (int)threadIdx.x, ROW_THREADS), maxima);
    select_row r;
    r.row = row, r.n = n, r.top = best ? row[rank_id(best)] : -CUDART_INF_F;
    r.temperature = 1.0f, r.inv_width = 8.0f, r.least = 1, r.by_count = true, r.scale = 1.0;
    double sum = 0.0;
    for (int c = (int)threadIdx.x; c < n; c += ROW_THREADS)
        if (!isnan(row[c])) sum += (double)r.weight(row[c]);
    const double log_sum = log(block_sum(sum, sums)) + (double)r.top;
    if (threadIdx.x == 0) out_logprob[i] = (float)((double)row[tokens[i]] - log_sum);
    if (n_top <= 0) return;

    if (threadIdx.x < TOP_MAX) top[threadIdx.x] = 0;
    if (threadIdx.x == 0) n_found = 0;
    const unsigned long long least = n_top < n ? select_rank(&shared, r, (unsigned long long)n_top, 0.0f) : 1;
    __syncthreads();
    for (int c = (int)threadIdx.x; c < n; c += ROW_THREADS) {
        const unsigned long long rank = entry_rank(row[c], c);
        if (rank == 0 || rank < least) continue;
        const int at = atomicAdd(&n_found, 1); /* in any order: sorted below */
        if (at < TOP_MAX) top[at] = rank;
    }
    __syncthreads();
    if ((int)threadIdx.x < TOP_MAX) { /* an entry's place is the number of entries before it */
        const unsigned long long mine = top[threadIdx.x];
        int place = 0;
        for (int k = 0; k < TOP_MAX; k++) place += top[k] > mine;
        if (mine && place < n_top) {
            const int id = rank_id(mine);
            out_top[(size_t)i * n_top + place] = id;
            out_top_logprob[(size_t)i * n_top + place] = (float)((double)row[id] - log_sum);
        }
        if ((int)threadIdx.x >= n_found && (int)threadIdx.x < n_top) { /* a row with fewer numbers */
            out_top[(size_t)i * n_top + threadIdx.x] = -1;
            out_top_logprob[(size_t)i * n_top + threadIdx.x] = -CUDART_INF_F;
        }
    }
}

static spec_status logprob_batch(spec_queue *q, const spec_logprob_args *a, int32_t r, int32_t n_row)
{
    const size_t n = (size_t)n_row, n_top = (size_t)a->n_top;
    cuda_param p;
    SPEC_TRY(speci_cuda_param_begin(q, &p, n * 8));
    const int32_t *rows = (const int32_t *)speci_cuda_param_add(q, &p, a->host_row + r, n * 4);
    const int32_t *tokens = (const int32_t *)speci_cuda_param_add(q, &p, a->host_token + r, n * 4);
    SPEC_TRY(speci_cuda_param_end(q, &p));
    void *logprob, *top = NULL, *top_logprob = NULL;
    SPEC_TRY(speci_cuda_result_room(q, n * 4 * (1 + 2 * n_top) + 48, 3));
    SPEC_TRY(speci_cuda_result(q, &logprob, a->host_out_logprob + r, n * 4));
    if (n_top) {
        SPEC_TRY(speci_cuda_result(q, &top, a->host_out_top + (size_t)r * n_top, n * n_top * 4));
        SPEC_TRY(speci_cuda_result(q, &top_logprob, a->host_out_top_logprob + (size_t)r * n_top, n * n_top * 4));
    }
    logprob_kernel<<<(unsigned)n_row, ROW_THREADS, 0, q->stream>>>(a->logits, a->ld, a->n_vocab, a->n_top, rows, tokens,
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
        n = batch_rows(q, a->n_row - r);
        SPEC_TRY(logprob_batch(q, a, r, n));
    }
    return SPEC_OK;
}
