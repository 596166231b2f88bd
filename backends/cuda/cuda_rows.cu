/* cuda_rows.cu - operations over rows of logits and laws: arg-max, law, acceptance, log-probabilities. Rows f32
 * [n_vocab] at base + row * ld. Laws and acceptance are done by a team of blocks per row (cuda_select.cuh), arg-max
 * by up to 16 blocks, log-probabilities by one; each row is treated alone. Sums are in double or in fixed point, in
 * an order that depends on the row's length only. Results are written to pinned host memory; sync() hands them out.
 * A call of more rows than the queue has room for parameters and results is done in batches. */
#include "cuda_select.cuh"

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

/* Where the product has found them. */
static __global__ void token_kernel(const unsigned long long *best, int n_row, int32_t *out, spec_step_node *next)
{
    const int r = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (r < n_row) put_token(best[r], r, out, next);
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

spec_status speci_cuda_row_best(spec_queue *q, const spec_view *y, int32_t n, uint64_t *best)
{
    return cuda_launch(q, "best", best_kernel, dim3((unsigned)argmax_parts(n), (unsigned)q->shape.rows), dim3(256), 0, 1,
                       q->d_step, (const float *)y->data, y->ld, n, (unsigned long long *)best);
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
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        void *out;
        n = batch_rows(q, a->n_row - r);
        SPEC_TRY(speci_cuda_result_room(q, (size_t)n * 4 + 16, 1));
        SPEC_TRY(speci_cuda_result(q, &out, a->host_out_token + r, (size_t)n * 4));
        spec_step_node *const next = a->next ? a->next + r : NULL;
        if (a->best)
            token_kernel<<<(unsigned)cuda_div_up(n, 256), 256, 0, q->stream>>>((const unsigned long long *)a->best + r, n,
                                                                               (int32_t *)out, next);
        else
            argmax_kernel<<<dim3((unsigned)argmax_parts(a->n_vocab), (unsigned)n), 256, 0, q->stream>>>(
                a->logits + (size_t)r * a->ld, a->ld, a->n_vocab, q->argmax_part, q->argmax_count, (int32_t *)out, next);
        SPEC_TRY(cuda_launched(q, "argmax"));
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------------ law --- */

/* What a team's blocks do to a row of n values, and how often each value is read, of 131072 and 64 rows (prediction
 * for an H200, 132 SMs, about 4 TB/s from caches and memory together): the maximum; the histogram; the border's bin
 * gathered; the law written. Four readings and one writing of 32 MiB, 10 to 15 us each with the exponentials of the
 * second and the last: 60 us, where one block per row took nine readings at the speed of 64 SMs. */

/* Where teams of all blocks would not fit the device at once they have half of them: each of a team's steps waits for
 * all its blocks, so two rounds of them take nearly twice as long as one with longer slices. What a law is made of are
 * maxima and sums of integers, so the cut of the row changes no bit. */
static int law_team(const spec_queue *q, int n_row, int n)
{
    enum { PER_SM = 2 }; /* blocks */
    const int team = team_of(n);
    return team == TEAM && n_row * TEAM > PER_SM * q->dev->n_sm ? TEAM / 2 : team;
}
static __host__ __device__ __forceinline__ int law_slice_size(int n, int team)
{
    return (n + team * 32 - 1) / (team * 32) * 32;
}
static __device__ __forceinline__ team_slice law_slice(int n)
{
    const int size = law_slice_size(n, team_blocks()), first = team_block() * size;
    return team_slice{ min(first, n), min(first + size, n) };
}

/* Calls f(id, value) for the block's values, several of a thread loaded ahead. */
template <typename F> static __device__ __forceinline__ void slice_each(const float *row, team_slice part, F f)
{
    enum { AHEAD = 4 };
    for (int base = part.first + (int)threadIdx.x; base < part.end; base += AHEAD * TEAM_THREADS) {
        float v[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int i = base + a * TEAM_THREADS;
            v[a] = i < part.end ? __ldg(row + i) : 0.0f;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (base + a * TEAM_THREADS < part.end) f(base + a * TEAM_THREADS, v[a]);
    }
}

/* The team finds the rank from which on entries belong to the shortest prefix, in rank order, whose measure reaches a
 * target. The measure is a count, or a mass in fixed point (weights of at most 1, scaled by a power of two): integers,
 * so the order of atomics does not matter. The first histogram is over the distance from the maximum, which spreads
 * logits well. The entries of the bin that holds the border are gathered, and told apart by 8 bits of the rank at a
 * time.
 *
 * A bin of a block is two words, as shared memory adds no longer ones: mass = high 2^split + low. */
enum { BINS = 256, GATHERED = 2048 };

struct bin_span { /* of the entries of the border's bin */
    unsigned long long most, least; /* ranks */
    unsigned long long count;
};

struct law_shared {
    unsigned int high[BINS], low[BINS], count[BINS]; /* of the block's entries */
    unsigned long long mass[BINS];                   /* the team's */
    unsigned int entries[BINS];
    unsigned long long before, rest, in_mass; /* the border's bin: mass before it, share of the target, its mass */
    int bin;
    unsigned int in_bin;
    unsigned long long list[GATHERED];
    unsigned int n_list; /* entries of the bin in the block: beyond GATHERED they are looked up in the row */
    union {
        team_parts<unsigned long long> number;
        team_parts<bin_span> span;
    } parts;
};

/* A row and the entries of it that are left: rank >= least. */
struct law_row {
    const float *row;
    team_slice part;
    float top, inv_temperature;
    float inv_width; /* bins per unit of distance from the maximum; the last bin is all that lies beyond */
    float scale;     /* of masses, a power of two */
    int split;
    unsigned long long least;
    bool by_count;

    __device__ __forceinline__ float weight(float v) const
    {
        return v == top ? 1.0f : expf((v - top) * inv_temperature); /* -infinity below an infinite maximum: 0 */
    }
    __device__ __forceinline__ unsigned long long measure(float v) const
    {
        return by_count ? 1ull : __float2ull_rn(weight(v) * scale);
    }
    __device__ __forceinline__ int bin(float v) const
    {
        const float d = v == top ? 0.0f : (top - v) * inv_width;
        return d < (float)(BINS - 1) ? (int)d : BINS - 1; /* grows with the distance, also after rounding */
    }
    __device__ __forceinline__ bool has(unsigned long long rank) const { return rank && rank >= least; }
};

/* A thread's entries of one bin, added at once: rows of equal values do not queue for one address. */
struct bin_run {
    int bin;
    unsigned long long mass;
    unsigned int count;
    __device__ __forceinline__ void flush(law_shared *s, int split)
    {
        if (count == 0) return;
        const unsigned int high = (unsigned int)(mass >> split), low = (unsigned int)mass & ((1u << split) - 1);
        if (high) atomicAdd(&s->high[bin], high);
        if (low) atomicAdd(&s->low[bin], low);
        atomicAdd(&s->count[bin], count);
    }
    __device__ __forceinline__ void add(law_shared *s, int split, int b, unsigned long long m)
    {
        if (b != bin) flush(s, split), bin = b, mass = 0, count = 0;
        mass += m, count++;
    }
};

static __device__ void bins_clear(law_shared *s)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BINS; i += TEAM_THREADS) s->high[i] = s->low[i] = s->count[i] = 0;
    __syncthreads();
}

/* s->mass and s->entries: all blocks' bins together. */
static __device__ void bins_merge(law_shared *s, int split)
{
    const int i = (int)threadIdx.x;
    team_sync();
    if (i < BINS) {
        unsigned long long mass = 0;
        unsigned int count = 0;
#pragma unroll
        for (int b = 0; b < TEAM; b++) {
            const bool there = b < team_blocks();
            mass += (unsigned long long)(there ? team_peer(s->high, b)[i] : 0u) << split;
            mass += there ? team_peer(s->low, b)[i] : 0u;
            count += there ? team_peer(s->count, b)[i] : 0u;
        }
        s->mass[i] = mass, s->entries[i] = count;
    }
    team_sync();
}

static __device__ unsigned long long bins_total(const law_shared *s)
{
    unsigned long long sum = 0;
    for (int i = (int)threadIdx.x % 32; i < BINS; i += 32) sum += s->mass[i];
    for (int d = 16; d > 0; d >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    return sum;
}

/* The first warp: s->bin = the first bin, in ascending order, at which the running mass reaches `target`, and what is
 * known of it. If none does, the last one with mass; -1 if there is none. */
static __device__ void bins_find(law_shared *s, unsigned long long target)
{
    if (threadIdx.x < 32) {
        enum { PER = BINS / 32 };
        const int lane = (int)threadIdx.x;
        unsigned long long mine = 0;
        for (int i = 0; i < PER; i++) mine += s->mass[lane * PER + i];
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
            int b = lane * PER;
            while (run + s->mass[b] < target) run += s->mass[b++];
            s->bin = b, s->before = run, s->rest = target - run, s->in_mass = s->mass[b], s->in_bin = s->entries[b];
        }
        if (!reached && lane == 0) s->bin = -1;
    }
    __syncthreads();
}

/* The team's sum. */
static __device__ unsigned long long team_sum(law_shared *s, unsigned long long v)
{
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(0xffffffffu, v, d);
    team_gather(&s->parts.number, v, 0ull);
    return team_fold([&](int i) { return s->parts.number.all[i]; },
                     [](unsigned long long a, unsigned long long b) { return a + b; });
}

/* The border's bin `near`: its entries go to the list. */
static __device__ bin_span bin_gather(law_shared *s, const law_row &r, int near)
{
    const bin_span none = { 0, ~0ull, 0 };
    bin_span span = none;
    __syncthreads();
    if (threadIdx.x == 0) s->n_list = 0;
    __syncthreads();
    slice_each(r.row, r.part, [&](int i, float v) {
        const unsigned long long rank = entry_rank(v, i);
        if (!r.has(rank) || r.bin(v) != near) return;
        const unsigned int at = atomicAdd(&s->n_list, 1u); /* in any order */
        if (at < GATHERED) s->list[at] = rank;
        span.most = rank > span.most ? rank : span.most;
        span.least = rank < span.least ? rank : span.least;
        span.count++;
    });
    for (int d = 16; d > 0; d >>= 1) {
        const unsigned long long most = __shfl_xor_sync(0xffffffffu, span.most, d);
        const unsigned long long least = __shfl_xor_sync(0xffffffffu, span.least, d);
        span.most = most > span.most ? most : span.most;
        span.least = least < span.least ? least : span.least;
        span.count += __shfl_xor_sync(0xffffffffu, span.count, d);
    }
    team_gather(&s->parts.span, span, none);
    const bin_span *all = s->parts.span.all;
    auto larger = [](unsigned long long a, unsigned long long b) { return a > b ? a : b; };
    auto smaller = [](unsigned long long a, unsigned long long b) { return a < b ? a : b; };
    span.most = team_fold([&](int i) { return all[i].most; }, larger);
    span.least = team_fold([&](int i) { return all[i].least; }, smaller);
    span.count = team_fold([&](int i) { return all[i].count; },
                           [](unsigned long long a, unsigned long long b) { return a + b; });
    return span;
}

/* Calls f(value, rank) for the block's entries of bin `near`. */
template <typename F> static __device__ void bin_each(const law_shared *s, const law_row &r, int near, F f)
{
    if (s->n_list <= GATHERED) {
        for (int i = (int)threadIdx.x; i < (int)s->n_list; i += TEAM_THREADS) f(rank_value(s->list[i]), s->list[i]);
        return;
    }
    slice_each(r.row, r.part, [&](int i, float v) {
        const unsigned long long rank = entry_rank(v, i);
        if (r.has(rank) && r.bin(v) == near) f(v, rank);
    });
}

/* Narrows r->least to the prefix; returns its measure. With share > 0 the target is that share of all entries' mass,
 * else `target`. */
static __device__ unsigned long long select_prefix(law_shared *s, law_row *r, unsigned long long target, float share)
{
    bin_run run = { -1, 0, 0 }, far = { BINS - 1, 0, 0 };
    bins_clear(s);
    slice_each(r->row, r->part, [&](int i, float v) {
        if (!r->has(entry_rank(v, i))) return;
        const int b = r->bin(v);
        if (b < BINS - 1) run.add(s, r->split, b, r->measure(v));
        else far.mass += r->measure(v), far.count++; /* of most rows this is most of it */
    });
    run.flush(s, r->split);
    far.flush(s, r->split);
    bins_merge(s, r->split);
    if (share > 0.0f) target = (unsigned long long)ceil((double)share * (double)bins_total(s));
    bins_find(s, target);
    if (s->bin < 0) return 0; /* no mass at all */
    const int near = s->bin;
    unsigned long long measure = s->before, rest = s->rest;
    unsigned int left = s->in_bin;
    const bin_span span = bin_gather(s, *r, near);
    /* The border's rank, its bits from `known` on: at first what all entries of the bin have in common. */
    int known = span.most == span.least ? 0 : 64 - __clzll((long long)(span.most ^ span.least));
    unsigned long long prefix = known < 64 ? span.most >> known << known : 0;
    while (left > 1 && known > 0) {
        const int digit = known > 8 ? known - 8 : 0, mask = (1 << (known - digit)) - 1;
        run = bin_run{ -1, 0, 0 };
        bins_clear(s);
        bin_each(s, *r, near, [&](float v, unsigned long long rank) {
            if (known < 64 && rank >> known != prefix >> known) return;
            run.add(s, r->split, mask - (int)(rank >> digit & (unsigned)mask), r->measure(v));
        });
        run.flush(s, r->split);
        bins_merge(s, r->split);
        bins_find(s, rest);
        prefix |= (unsigned long long)(mask - s->bin) << digit;
        measure += s->before, rest = s->rest, left = s->in_bin;
        known = digit;
    }
    /* Of the entries that begin with the prefix, those of other bins come after this bin's last. */
    r->least = prefix > span.least ? prefix : span.least;
    measure += s->in_mass;
    __syncthreads();
    return measure;
}

/* The largest value's rank in the row, 0 = no numbers. */
static __device__ unsigned long long team_best(law_shared *s, const float *row, team_slice part)
{
    unsigned long long best = 0;
    slice_each(row, part, [&](int i, float v) {
        const unsigned long long rank = entry_rank(v, i);
        best = rank > best ? rank : best;
    });
    auto larger = [](unsigned long long a, unsigned long long b) { return a > b ? a : b; };
    for (int d = 16; d > 0; d >>= 1) best = larger(best, __shfl_xor_sync(0xffffffffu, best, d));
    team_gather(&s->parts.number, best, 0ull);
    return team_fold([&](int i) { return s->parts.number.all[i]; }, larger);
}

static __device__ law_row law_begin(const float *row, int n, float top, const spec_sampling &how)
{
    law_row r;
    r.row = row, r.part = law_slice(n), r.top = top, r.least = 1, r.by_count = false;
    const float temperature = fminf(fmaxf(how.temperature, 1e-30f), 1e30f);
    r.inv_temperature = 1.0f / temperature;
    /* Entries of less than half of (1 - p) / n of the largest one's weight, all together, have less than half of 1 - p
     * of the mass: top-p's border is not among them, but in the bins that tell entries apart. */
    const float reach = how.top_p > 0.0f && how.top_p < 1.0f ? logf(2.0f * (float)n / (1.0f - how.top_p)) : 32.0f;
    r.inv_width = (float)(BINS - 1) / (reach * temperature);
    /* Neither word of a bin overflows: entries 2^split < 2^32, and masses end at 2^(2 split). For 131072 values 16. It
     * is by half a team's slice for both; rows of smaller teams are so short that the 20 decides. */
    const unsigned int entries = (unsigned int)law_slice_size(n, TEAM / 2);
    r.split = min(31 - __clz((int)(0xffffffffu / entries)), 20);
    r.scale = exp2f((float)(2 * r.split));
    return r;
}

/* A team per row: temperature, top-k, top-p, min-p, softmax. */
static __global__ void __launch_bounds__(TEAM_THREADS, 2)
law_kernel(const float *logits, int ld, int n_valid, float *law, int ld_law, int n_law, const int32_t *src,
           const int32_t *dst, const spec_sampling *sampling)
{
    __shared__ law_shared shared;
    law_shared *s = &shared;
    const int i = team_row();
    const spec_sampling how = sampling[i];
    const float *row = logits + (size_t)src[i] * ld;
    float *out = law + (size_t)dst[i] * ld_law;

    const unsigned long long best = team_best(s, row, law_slice(n_valid));
    law_row r = law_begin(row, n_valid, best ? rank_value(best) : -CUDART_INF_F, how);
    const bool none = isinf(r.top) && r.top < 0.0f;
    auto weight = [&](int c, float v) {
        if (none || !r.has(entry_rank(v, c))) return 0.0f;
        const float w = r.weight(v);
        return how.min_p > 0.0f && w < how.min_p ? 0.0f : w; /* the largest weight is 1 */
    };
    const bool by_p = how.top_p > 0.0f && how.top_p < 1.0f;
    unsigned long long mass = 0;
    for (int by_count = 1; by_count >= 0; by_count--) { /* top-k, then top-p of what it leaves */
        if (by_count ? how.top_k <= 0 || how.top_k >= n_valid : !by_p) continue;
        r.by_count = by_count != 0;
        mass = select_prefix(s, &r, (unsigned long long)how.top_k, by_count ? 0.0f : how.top_p);
    }
    if (!by_p || how.min_p > 0.0f) {
        unsigned long long mine = 0;
        slice_each(row, r.part, [&](int c, float v) { mine += __float2ull_rn(weight(c, v) * r.scale); });
        mass = team_sum(s, mine);
    }
    const float inv = mass > 0 ? (float)((double)r.scale / (double)mass) : 0.0f;
    slice_each(row, r.part, [&](int c, float v) { out[c] = weight(c, v) * inv; });
    const int stride = team_blocks() * TEAM_THREADS;
    for (int c = n_valid + team_block() * TEAM_THREADS + (int)threadIdx.x; c < n_law; c += stride) out[c] = 0.0f;
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
        SPEC_TRY(team_launch(q, "law", law_kernel, n, law_team(q, n, a->n_valid), a->logits, a->ld, a->n_valid, a->law,
                             a->ld_law, a->n_law, src, dst, sampling));
    }
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------- accept --- */

/* A node's residual R is not stored: it is p taken through the rejections so far, entry by entry. So p and q are
 * only read, a rejection costs one reading of both, and its sums over the ranges also serve the draw. With 64 nodes
 * of 131072 tokens that is 64 MiB, about 16 us, for each candidate that all of them reject, and half as much
 * for the sum of q at the first (prediction for an H200). Where p is 0 q is not read. */
enum { ACCEPT_REJECTIONS = 1024 };

struct accept_rejection {
    int token;
    int n_out;      /* >= 0: begins again from p without the first n_out candidates, nothing else being left; -1: no */
    float d_scale;  /* D = q d_scale, without the tokens rejected before */
    float r_scale;  /* R = r_scale max(R - D, 0); of the last rejection it is kept apart */
};

struct accept_node {
    const float *p, *q; /* q NULL: point masses */
    const int32_t *candidate;
    const accept_rejection *past;
    int n_past;
    bool repeat;

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

/* Adds a rejection, `scale` being the r_scale of the one before; returns the sum of what is left of R. */
static __device__ double accept_reject(accept_shared *s, accept_node *node, int n, int j, float d_scale, float scale)
{
    __syncthreads(); /* all threads have read the past */
    if (threadIdx.x == 0) {
        if (node->n_past > 0) s->past[node->n_past - 1].r_scale = scale;
        s->past[node->n_past] = accept_rejection{ node->candidate[j], -1, d_scale, 1.0f };
    }
    __syncthreads();
    node->n_past++;
    double left = residual_ranges(&s->sums, *node, n);
    if (left >= 1e-12) return left;
    /* Only rounding leaves nothing: p without the tokens so far; and where p has no others, p. */
    for (int n_out = j + 1;; n_out = 0) {
        __syncthreads();
        if (threadIdx.x == 0) s->past[node->n_past - 1].n_out = n_out;
        __syncthreads();
        left = residual_ranges(&s->sums, *node, n);
        if (left > 0.0 || n_out == 0) return left;
    }
}

static __device__ __forceinline__ void accept_write(int32_t *out_choice, int32_t *out_token, spec_step_node *next, int i,
                                                    int choice, int token)
{
    out_choice[i] = choice, out_token[i] = token;
    if (next) next[i].token = token;
}

/* A team per node; see spec_accept_args. */
static __global__ void __launch_bounds__(TEAM_THREADS, 2)
accept_kernel(const float *p, int ld_p, const float *q, int ld_q, int n, bool repeat, const int32_t *p_row,
              const int32_t *q_row, const int32_t *first_candidate, const int32_t *candidate, const float *u,
              const float *u_last, int32_t *out_choice, int32_t *out_token, spec_step_node *next)
{
    __shared__ accept_shared s;
    const int i = team_row(), first = first_candidate[i] - first_candidate[0];
    const int count = first_candidate[i + 1] - first_candidate[i];
    const bool writes = team_block() == 0 && threadIdx.x == 0;
    accept_node node;
    node.p = p + (size_t)p_row[i] * ld_p;
    node.q = q_row[i] >= 0 ? q + (size_t)q_row[i] * ld_q : NULL;
    node.candidate = candidate + first, node.past = s.past, node.n_past = 0, node.repeat = repeat;
    float r_scale = 1.0f, d_scale = 1.0f;
    double draft = 0.0; /* the sum of q over the tokens that are left in D */
    for (int j = 0; j < count; j++) { /* the same in all threads of the team */
        const int y = node.candidate[j];
        const bool out = node.q && !repeat && node.rejected(y);
        const float mass = out ? 0.0f : node.q ? node.q[y] * d_scale : 1.0f, have = node(y) * r_scale;
        if (mass == 0.0f) continue;
        if (u[first + j] * mass < have) {
            if (writes) accept_write(out_choice, out_token, next, i, j, y);
            return;
        }
        if (node.q && !repeat && node.n_past == 0)
            draft = team_ranges(&s.sums, node.q, NULL, n, [](int, float qc, float) { return qc; });
        const double left = accept_reject(&s, &node, n, j, d_scale, r_scale);
        r_scale = left >= 1e-12 ? (float)(1.0 / left) : 1.0f;
        if (!node.q || repeat) continue;
        draft = draft - (double)node.q[y];
        if (draft <= 0.0) break; /* no further sibling can exist */
        d_scale = (float)fmin(1.0 / draft, 3e38); /* however little is left: what is drawn next is drawn from it */
    }
    if (node.n_past == 0) (void)team_ranges(&s.sums, node.p, NULL, n, [](int, float pc, float) { return pc; });
    if (team_block() != 0 || threadIdx.x >= 32) return;
    const int token = team_draw(&s.sums, node, n, u_last[i]);
    if (threadIdx.x == 0) accept_write(out_choice, out_token, next, i, -1, token);
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
    return team_launch(q, "accept", accept_kernel, n_row, team_of(a->n_vocab), a->p, a->ld_p, a->q, a->ld_q,
                       a->n_vocab, a->repeat != 0, p_row, q_row, first, candidate, u, u_last, (int32_t *)choice,
                       (int32_t *)token, a->next ? a->next + r : NULL);
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
        const int32_t most = q->row_cap < ACCEPT_REJECTIONS ? q->row_cap : ACCEPT_REJECTIONS;
        if (a->host_first_candidate[i + 1] - a->host_first_candidate[i] > most)
            return h->fail(SPEC_E_INVALID, "cuda accept: %d candidates in row %d, the queue was opened for %d",
                           a->host_first_candidate[i + 1] - a->host_first_candidate[i], i, most);
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

/* log p(y) = v[y] - max - log sum exp(v - max); one block per row. */
static __global__ void __launch_bounds__(ROW_THREADS)
logprob_kernel(const float *logits, int ld, int n, int n_top, const int32_t *rows, const int32_t *tokens,
               float *out_logprob, int32_t *out_top, float *out_top_logprob)
{
    __shared__ top_shared<ROW_THREADS> shared;
    __shared__ unsigned long long maxima[32];
    __shared__ double sums[32];
    const int i = (int)blockIdx.x, t = (int)threadIdx.x;
    const float *row = logits + (size_t)rows[i] * ld;
    const unsigned long long best = block_max(row_best(row, n, t, ROW_THREADS), maxima);
    const float most = best ? rank_value(best) : -CUDART_INF_F;
    double sum = 0.0;
    for (int c = t; c < n; c += ROW_THREADS)
        if (!isnan(row[c])) sum += row[c] == most ? 1.0 : (double)expf(row[c] - most);
    const double log_sum = log(block_sum(sum, sums)) + (double)most;
    if (t == 0) out_logprob[i] = (float)((double)row[tokens[i]] - log_sum);
    if (n_top <= 0) return;
    const unsigned long long rank = block_top<ROW_THREADS>(logit_entry{ row, n }, 0, n, n_top, &shared);
    if (t >= n_top) return;
    out_top[(size_t)i * n_top + t] = rank ? rank_id(rank) : -1; /* -1: a row with fewer numbers */
    out_top_logprob[(size_t)i * n_top + t] = rank ? (float)((double)row[rank_id(rank)] - log_sum) : -CUDART_INF_F;
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
