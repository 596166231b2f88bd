/* cuda_probs.cu - distributions of rows of logits, and the candidates that are drawn from distributions. A team of blocks has a row
 * (cuda_select.cuh); each row is treated alone. Sums are in fixed point or in double, in an order that depends on the row's
 * length only. The few candidates of a distribution that is made for them are found by the kernel that makes it. What rows are
 * about travels as a parameter of the kernel; a call of more rows than that holds is done in batches. */
#include "backends/cuda/rows/cuda_select.cuh"

/* ------------------------------------------------------------------------------------ distribution --- */

/* What a team's blocks do to a row of n values, and how often each value is read, of 131072 and 64 rows (prediction
 * for an H200, 132 SMs, about 4 TB/s from caches and memory together): the maximum; the histogram; the border's bin
 * gathered; the distribution written. Four readings and one writing of 32 MiB, 10 to 15 us each with the exponentials of the
 * second and the last: 60 us, where one block per row took nine readings at the speed of 64 SMs. */

/* Four values in a row, which a thread takes at once: thread t of a block has quads t, t + TEAM_THREADS, ... of its slice.
 * These kernels run once a pass, so what they take is above all the code that they have to fetch: loops stay loops. */
enum { QUAD = 4 };

/* Where teams of all blocks would not fit the device at once they have half of them: each of a team's steps waits for
 * all its blocks, so two rounds of them take nearly twice as long as one with longer slices. What a distribution is made of are
 * maxima and sums of integers, so the cut of the row changes no bit. Nor has a team more blocks than it has quads for. */
static int probs_team(const spec_queue *q, int n_row, int n, int per_sm)
{
    if (!cuda_has_clusters(q->dev)) return 1;
    const int team = min(max(team_of(q, n), 2), max(cuda_div_up(n, QUAD * TEAM_THREADS), 2)); /* messages need a cluster */
    return team == TEAM && n_row * TEAM > per_sm * q->dev->n_sm ? TEAM / 2 : team;
}
static int probs_slice_size(int n, int team) { return (n + team * 32 - 1) / (team * 32) * 32; }

static __device__ __forceinline__ int quad_first(team_slice part, int thread, int q)
{
    return part.first + QUAD * (thread + q * TEAM_THREADS);
}

/* Calls f(id, value) for the block's values. */
template <typename F> static __device__ __forceinline__ void slice_each(const float *row, team_slice part, F f)
{
    const bool aligned = (uintptr_t)row % 16 == 0;
    auto load = [&](int i) {
        if (aligned && i + QUAD <= part.end) return __ldg((const float4 *)(row + i));
        float v[QUAD];
#pragma unroll
        for (int j = 0; j < QUAD; j++) v[j] = i + j < part.end ? __ldg(row + i + j) : 0.0f;
        return make_float4(v[0], v[1], v[2], v[3]);
    };
    int i = quad_first(part, (int)threadIdx.x, 0);
    float4 next = load(i);
#pragma unroll 1
    for (; i < part.end; i += QUAD * TEAM_THREADS) {
        const float4 v = next;
        next = load(i + QUAD * TEAM_THREADS);
        f(i, v.x);
        if (i + 1 < part.end) f(i + 1, v.y);
        if (i + 2 < part.end) f(i + 2, v.z);
        if (i + 3 < part.end) f(i + 3, v.w);
    }
}

/* The largest of a thread's values of the slice, all loads on their way before one is looked at; NaN: not there. */
static __device__ __forceinline__ float slice_most(const float *row, team_slice part)
{
    enum { AHEAD = 4 };
    const int n_quad = (uintptr_t)row % 16 == 0 ? (part.end - part.first) / QUAD : 0, t = (int)threadIdx.x;
    const float4 *quad = (const float4 *)(row + part.first);
    float most = -CUDART_INF_F;
#pragma unroll 1
    for (int q = t; q < n_quad; q += AHEAD * TEAM_THREADS) {
        float4 v[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) v[a] = __ldg(quad + min(q + a * TEAM_THREADS, n_quad - 1));
#pragma unroll
        for (int a = 0; a < AHEAD; a++) most = fmaxf(most, fmaxf(fmaxf(v[a].x, v[a].y), fmaxf(v[a].z, v[a].w)));
    }
#pragma unroll 1
    for (int i = part.first + QUAD * n_quad + t; i < part.end; i += TEAM_THREADS) most = fmaxf(most, __ldg(row + i));
    return most;
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

struct probs_shared {
    unsigned int high[BINS], low[BINS], count[BINS]; /* of the block's entries */
    unsigned long long mass[BINS];                   /* the team's */
    unsigned int entries[BINS];
    unsigned long long before, rest, in_mass; /* the border's bin: mass before it, share of the target, its mass */
    int bin;
    unsigned int in_bin;
    unsigned long long list[GATHERED];
    unsigned int n_list;       /* entries of the bin in the block: beyond GATHERED they are looked up in the row */
    team_mail most, sum;       /* opened before, posted once a row */
    team_parts<bin_span> span; /* gathered with a team_sync() in between */
};

/* A row and the entries of it that are left: rank >= least. */
struct probs_row {
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
        const float w = expf((v - top) * inv_temperature); /* -infinity below an infinite maximum: 0 */
        return v == top ? 1.0f : w;
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
    __device__ __forceinline__ void flush(probs_shared *s, int split)
    {
        if (count == 0) return;
        const unsigned int high = (unsigned int)(mass >> split), low = (unsigned int)mass & ((1u << split) - 1);
        if (high) atomicAdd(&s->high[bin], high);
        if (low) atomicAdd(&s->low[bin], low);
        atomicAdd(&s->count[bin], count);
    }
    __device__ __forceinline__ void add(probs_shared *s, int split, int b, unsigned long long m)
    {
        if (b != bin) flush(s, split), bin = b, mass = 0, count = 0;
        mass += m, count++;
    }
};

static __device__ void bins_clear(probs_shared *s)
{
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BINS; i += TEAM_THREADS) s->high[i] = s->low[i] = s->count[i] = 0;
    __syncthreads();
}

/* s->mass and s->entries: all blocks' bins together. */
static __device__ void bins_merge(probs_shared *s, int split)
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

/* Of a warp's numbers, together below 2^56: sums of 24 bits and of the rest, which fit a word each. Masses of a row end at
 * entries 2^(2 split), at most 2^54. */
static __device__ __forceinline__ unsigned long long warp_total(unsigned long long v)
{
    const unsigned high = __reduce_add_sync(0xffffffffu, (unsigned)(v >> 24));
    const unsigned low = __reduce_add_sync(0xffffffffu, (unsigned)v & 0xffffffu);
    return ((unsigned long long)high << 24) + low;
}

static __device__ unsigned long long bins_total(const probs_shared *s)
{
    unsigned long long sum = 0;
    for (int i = (int)threadIdx.x % 32; i < BINS; i += 32) sum += s->mass[i];
    return warp_total(sum);
}

/* The first warp: s->bin = the first bin, in ascending order, at which the running mass reaches `target`, and what is
 * known of it. If none does, the last one with mass; -1 if there is none. */
static __device__ void bins_find(probs_shared *s, unsigned long long target)
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

/* The border's bin `near`: its entries go to the list. */
static __device__ bin_span bin_gather(probs_shared *s, const probs_row &r, int near)
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
    team_gather(&s->span, span, none);
    const bin_span *all = s->span.all;
    auto larger = [](unsigned long long a, unsigned long long b) { return a > b ? a : b; };
    auto smaller = [](unsigned long long a, unsigned long long b) { return a < b ? a : b; };
    span.most = team_fold([&](int i) { return all[i].most; }, larger);
    span.least = team_fold([&](int i) { return all[i].least; }, smaller);
    span.count = team_fold([&](int i) { return all[i].count; },
                           [](unsigned long long a, unsigned long long b) { return a + b; });
    return span;
}

/* Calls f(value, rank) for the block's entries of bin `near`. */
template <typename F> static __device__ void bin_each(const probs_shared *s, const probs_row &r, int near, F f)
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
static __device__ unsigned long long select_prefix(probs_shared *s, probs_row *r, unsigned long long target, float share)
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

/* The row's largest value; -infinity if there is none. */
static __device__ __forceinline__ float team_most(probs_shared *s, const float *row, team_slice part)
{
    return key_value((unsigned)team_post(&s->most, value_key(slice_most(row, part)), [](unsigned long long v) {
        return (unsigned long long)__reduce_max_sync(0xffffffffu, (unsigned)v);
    }));
}

/* What rows of a batch are about, as a parameter of a kernel; of a row all in one place, which is one trip to it. */
struct probs_how {
    int32_t src, dst;
    float inv_temperature, top_p, min_p;
    int32_t top_k;
};
struct probs_batch {
    const float *logits;
    float *probs;
    int32_t ld, n_valid, ld_probs, n_probs;
    int32_t slice; /* values of a block */
    int32_t split; /* of masses, see probs_shared */
    probs_how how[ROW_BATCH];
};

struct probs_narrowed {
    unsigned long long mass, least;
};
/* The row's entries by top-k, then by top-p of what that leaves; mass: of those that are left, 0 if it is not known. */
static __device__ __noinline__ probs_narrowed probs_narrow(probs_shared *s, probs_row r, probs_how how, int n)
{
    const bool by_k = how.top_k > 0 && how.top_k < n, by_p = how.top_p > 0.0f && how.top_p < 1.0f;
    /* Entries of less than half of (1 - p) / n of the largest one's weight, all together, have less than half of 1 - p
     * of the mass: top-p's border is not among them, but in the bins that tell entries apart. */
    const float reach = by_p ? logf(2.0f * (float)n / (1.0f - how.top_p)) : 32.0f;
    r.inv_width = (float)(BINS - 1) * r.inv_temperature / reach;
    unsigned long long mass = 0;
    for (int by_count = 1; by_count >= 0; by_count--) {
        if (by_count ? !by_k : !by_p) continue;
        r.by_count = by_count != 0;
        mass = select_prefix(s, &r, (unsigned long long)how.top_k, by_count ? 0.0f : how.top_p);
    }
    team_sync(); /* peers have read what this has left */
    return probs_narrowed{ by_p ? mass : 0, r.least };
}

/* Row i, all of its entries. */
static __device__ __forceinline__ probs_row probs_begin(probs_shared *s, const probs_batch &a, int i)
{
    probs_row r;
    const int first = team_block() * a.slice;
    r.row = a.logits + (size_t)a.how[i].src * a.ld;
    r.part = team_slice{ min(first, a.n_valid), min(first + a.slice, a.n_valid) };
    r.top = team_most(s, r.row, r.part);
    r.inv_temperature = a.how[i].inv_temperature, r.inv_width = 0.0f;
    r.split = a.split, r.scale = __int_as_float((127 + 2 * a.split) << 23);
    r.least = 1, r.by_count = false;
    return r;
}

/* A row's distribution, entry by entry. */
struct probs_values {
    probs_row r;
    float border; /* entries are larger, or as large with an id up to border_id; no NaN is */
    unsigned border_id;
    float min_p, inv;

    __device__ __forceinline__ float weight(int id, float logit) const
    {
        const float w = r.weight(logit); /* the largest is 1 */
        return (logit > border || (logit == border && (unsigned)id <= border_id)) && w >= min_p ? w : 0.0f;
    }
    __device__ __forceinline__ float at(int id, float logit) const { return weight(id, logit) * inv; }
};

/* The mail of a row's distribution. */
static __device__ __forceinline__ void probs_open(probs_shared *s)
{
    mail_open(&s->most.come, team_blocks() * 8), mail_open(&s->sum.come, team_blocks() * 8);
}

/* The distribution of row i of the batch, by its team: temperature, top-k, top-p, min-p, softmax. */
static __device__ __forceinline__ probs_values probs_of(probs_shared *s, const probs_batch &a, int i)
{
    const probs_how &how = a.how[i];
    probs_values l;
    l.r = probs_begin(s, a, i);
    l.min_p = how.min_p, l.border_id = 0xffffffffu;
    const bool has_any = l.r.top > -CUDART_INF_F;
    l.border = has_any ? -CUDART_INF_F : CUDART_INF_F; /* infinity: no entry has a distribution */
    unsigned long long mass = 0;
    if ((how.top_k > 0 && how.top_k < a.n_valid) || (how.top_p > 0.0f && how.top_p < 1.0f)) {
        const probs_narrowed left = probs_narrow(s, l.r, how, a.n_valid);
        mass = left.mass;
        if (has_any && left.least > 1) l.border = rank_value(left.least), l.border_id = (unsigned)rank_id(left.least);
    }
    if (mass == 0 || how.min_p > 0.0f) {
        unsigned long long mine = 0;
        slice_each(l.r.row, l.r.part, [&](int c, float v) { mine += __float2ull_rn(l.weight(c, v) * l.r.scale); });
        mass = team_post(&s->sum, mine, warp_total);
    }
    l.inv = mass > 0 ? l.r.scale / (float)mass : 0.0f;
    return l;
}

static __device__ __forceinline__ float *probs_place(const probs_batch &a, int i)
{
    return a.probs + (size_t)a.how[i].dst * a.ld_probs;
}
/* Columns without an entry. */
static __device__ __forceinline__ void probs_end(const probs_batch &a, int i)
{
    const int stride = team_blocks() * TEAM_THREADS;
#pragma unroll 1
    for (int c = a.n_valid + team_block() * TEAM_THREADS + (int)threadIdx.x; c < a.n_probs; c += stride) probs_place(a, i)[c] = 0.0f;
}

/* The block's part of it, to memory. */
static __device__ __forceinline__ void probs_write(const probs_values &l, const probs_batch &a, int i)
{
    float *out = probs_place(a, i);
    slice_each(l.r.row, l.r.part, [&](int c, float v) { out[c] = l.at(c, v); });
    probs_end(a, i);
}

enum { PROBS_PER_SM = 2, PROBS_DRAW_PER_SM = 1 }; /* blocks; the latter's values would not fit 64 registers */

static __global__ void __launch_bounds__(TEAM_THREADS, PROBS_PER_SM) probs_kernel(const __grid_constant__ probs_batch a)
{
    __shared__ probs_shared s;
    if (threadIdx.x == 0) probs_open(&s);
    team_mail_opened();
    row_begin();
    probs_write(probs_of(&s, a, team_row()), a, team_row());
}

static spec_status check_probs(spec_queue *q, const spec_probs_args *a)
{
    const spec_host *h = q->dev->host;
    if (a->n_valid < 1 || a->ld < a->n_valid || a->n_row < 0 || a->n_probs < a->n_valid || a->ld_probs < a->n_probs)
        return h->fail(SPEC_E_INVALID, "cuda distribution: %d rows of %d columns from %d values, rows %d and %d apart", a->n_row,
                       a->n_probs, a->n_valid, a->ld_probs, a->ld);
    for (int32_t i = 0; i < a->n_row; i++)
        if (!(a->host_sampling[i].temperature > 0.0f))
            return h->fail(SPEC_E_INVALID, "cuda distribution: temperature %g of row %d is not positive",
                           (double)a->host_sampling[i].temperature, i);
    return SPEC_OK;
}

/* Rows [first, first + n) of the call, for teams of so many blocks. */
static probs_batch batch_of(const spec_probs_args *a, int32_t first, int32_t n, int team)
{
    probs_batch b = {};
    b.logits = a->logits, b.probs = a->probs, b.ld = a->ld, b.n_valid = a->n_valid, b.ld_probs = a->ld_probs, b.n_probs = a->n_probs;
    /* Neither word of a bin overflows: entries 2^split < 2^32, and masses end at 2^(2 split). For 131072 values 16. It
     * is by half a team's slice for both; rows of smaller teams are so short that the 20 decides. */
    const int64_t entries = probs_slice_size(a->n_valid, min(team, TEAM / 2));
    b.slice = probs_slice_size(a->n_valid, team);
    while (b.split < 20 && entries << (b.split + 1) <= 0xffffffffll) b.split++;
    for (int32_t i = 0; i < n; i++) {
        const spec_sampling *s = &a->host_sampling[first + i];
        const float t = s->temperature < 1e-30f ? 1e-30f : s->temperature > 1e30f ? 1e30f : s->temperature;
        b.how[i] = probs_how{ a->host_src[first + i], a->host_dst[first + i], 1.0f / t, s->top_p, s->min_p, s->top_k };
    }
    return b;
}

spec_status speci_cuda_probs(spec_queue *q, const spec_probs_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_probs(q, a));
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        n = min(a->n_row - r, (int32_t)ROW_BATCH);
        const int team = probs_team(q, n, a->n_valid, PROBS_PER_SM);
        SPEC_TRY(team_launch(q, "distribution", probs_kernel, n, team, batch_of(a, r, n, team)));
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------------ draw --- */

/* What the rows of a draw belong to, and where their candidates go. */
struct draw_batch {
    const float *probs;
    int32_t ld, n_vocab, k;
    bool grows, given; /* of trees: `slot` and `place`; given: `key` */
    spec_grow g;
    spec_candidate *out; /* [row][k] or NULL */
    struct {
        int32_t probs_row, slot, place;
        uint64_t key;
    } of[ROW_BATCH];
};
struct draw_row {
    uint64_t key;
    bool there;                /* false: the place has no node */
    spec_candidate *own, *out; /* either may be NULL */
};

static __device__ draw_row row_of(const draw_batch &a, int i)
{
    draw_row r;
    r.out = a.out ? a.out + (size_t)i * a.k : NULL;
    r.own = NULL, r.there = true, r.key = a.of[i].key;
    if (!a.grows) return r;
    const size_t slot = (size_t)a.of[i].slot, place = slot * (size_t)a.g.cap_frontier + (size_t)a.of[i].place;
    r.own = a.g.candidate + place * SPEC_MAX_CHILD;
    if (a.given) return r;
    const int32_t node = a.g.frontier[place];
    r.there = node >= 0;
    r.key = r.there ? a.g.node[slot * (size_t)a.g.cap + (size_t)node].key : 0;
    return r;
}
static __device__ __forceinline__ const float *probs_row_of(const draw_batch &a, int i)
{
    return a.probs + (size_t)a.of[i].probs_row * a.ld;
}

/* token -1: none. */
static __device__ __forceinline__ void candidate_put(const draw_row &r, int j, int token, float prob)
{
    spec_candidate c;
    c.token = token, c.prob = token >= 0 ? prob : 0.0f;
    if (r.own) r.own[j] = c;
    if (r.out) r.out[j] = c;
}
static __device__ __forceinline__ void candidate_of(const draw_row &r, int j, const float *probs, int token)
{
    candidate_put(r, j, token, token >= 0 ? probs[token] : 0.0f);
}

/* The rank of entry i with distribution l among candidates: by distribution, or by its value in the race. */
template <bool RACE>
static __device__ __forceinline__ unsigned long long candidate_rank(float l, int i, uint32_t high, uint32_t low)
{
    if (!(l > 0.0f)) return 0;
    return entry_rank(RACE ? spec_gumbel_value(l, high, low) : l, i);
}
/* Of entries i and i + 1, i even: a block of random words serves both. */
template <bool RACE>
static __device__ __forceinline__ void candidate_ranks(uint64_t key, int i, float first, float second,
                                                       unsigned long long *a, unsigned long long *b)
{
    uint32_t w[4] = { 0, 0, 0, 0 };
    if (RACE && (first > 0.0f || second > 0.0f)) spec_gumbel_words(key, (uint32_t)i / 2, w);
    *a = candidate_rank<RACE>(first, i, w[0], w[1]), *b = candidate_rank<RACE>(second, i + 1, w[2], w[3]);
}

/* --- many candidates: the distribution again, from memory --- */

/* Entries of a distribution for block_top. Pairs are looked at together; the few that are looked at again have theirs made again,
 * which saves 4 bytes per entry of all rows. */
template <bool RACE> struct probs_entry {
    const float *probs;
    int n;
    uint64_t key;
    __device__ __forceinline__ void pair(int p, unsigned long long *a, unsigned long long *b) const
    {
        candidate_ranks<RACE>(key, 2 * p, probs[2 * p], 2 * p + 1 < n ? probs[2 * p + 1] : 0.0f, a, b);
    }
    __device__ __forceinline__ unsigned long long one(int i) const
    {
        unsigned long long a, b;
        pair(i / 2, &a, &b);
        return i % 2 ? b : a;
    }
};

struct draw_shared {
    top_shared<TEAM_THREADS> top;
    unsigned long long best[SPEC_MAX_CHILD]; /* of the block's slice */
};
static_assert(TEAM * SPEC_MAX_CHILD <= TEAM_THREADS, "the slices' best are sorted one per thread");

/* TOP and RACE: a team per row. Every block finds the k best of its slice, the first one the k best of those. */
template <bool RACE>
static __global__ void __launch_bounds__(TEAM_THREADS, 2) draw_best_kernel(const __grid_constant__ draw_batch a)
{
    __shared__ draw_shared s;
    const int t = (int)threadIdx.x, b = team_block();
    row_begin();
    const draw_row r = row_of(a, team_row());
    if (!r.there) { /* the same in all blocks */
        if (b == 0 && t < a.k) candidate_put(r, t, -1, 0.0f);
        return;
    }
    const team_slice part = slice_of(a.n_vocab);
    probs_entry<RACE> entry;
    entry.probs = probs_row_of(a, team_row()), entry.n = a.n_vocab, entry.key = r.key;
    unsigned long long rank = block_top<TEAM_THREADS>(entry, part.first, part.end, a.k, &s.top);
    if (t < SPEC_MAX_CHILD) s.best[t] = t < a.k ? rank : 0;
    team_sync();
    if (b == 0) {
        const int peer = t / SPEC_MAX_CHILD;
        if (team_blocks() > 1) {
            rank = peer < team_blocks() ? team_peer(s.best, peer)[t % SPEC_MAX_CHILD] : 0ull;
            rank = block_sort<TEAM_THREADS>(rank, s.top.sort);
        }
        if (t < a.k) candidate_of(r, t, entry.probs, rank ? rank_id(rank) : -1);
    }
    team_sync();
}

/* REPEAT: a team per row, a warp per draw. */
static __global__ void __launch_bounds__(TEAM_THREADS, 2) draw_repeat_kernel(const __grid_constant__ draw_batch a)
{
    __shared__ team_parts<double> sums;
    const float *probs = probs_row_of(a, team_row());
    const int warp = team_block() * TEAM_WARPS + (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    row_begin();
    const draw_row r = row_of(a, team_row());
    if (!r.there) {
        if (warp == 0)
            for (int j = lane; j < a.k; j += 32) candidate_put(r, j, -1, 0.0f);
        return;
    }
    (void)team_ranges(&sums, probs, NULL, a.n_vocab, [](int, float l, float) { return l; });
    for (int j = warp; j < a.k; j += team_blocks() * TEAM_WARPS) {
        const int token = team_draw(&sums, [&](int i) { return probs[i]; }, a.n_vocab,
                                    spec_repeat_uniform(r.key, (uint32_t)j));
        if (lane == 0) candidate_of(r, j, probs, token);
    }
}

/* --- few candidates: found by the kernel that makes the distribution --- */

enum { DRAW_FEW = 16 }; /* at most; a thread of the first block for each that a team's blocks name */
static_assert(TEAM * DRAW_FEW <= TEAM_THREADS, "DRAW_FEW");

/* Entries of the distribution that is being made, as candidates, in groups: the quads of a thread. */
template <bool RACE> struct made_groups {
    const probs_values *l;
    uint64_t key;
    __device__ __forceinline__ unsigned long long of(int g, int j) const
    {
        const int i = quad_first(l->r.part, g, j / QUAD) + j % QUAD, even = i & ~1;
        if (i >= l->r.part.end) return 0;
        unsigned long long a, b;
        const float p = l->at(i, __ldg(l->r.row + i));
        candidate_ranks<RACE>(key, even, i == even ? p : 0.0f, i == even ? 0.0f : p, &a, &b);
        return i == even ? a : b;
    }
};

/* The block's part of the distribution goes to out; returns the largest rank of the thread's candidates. */
template <bool RACE>
static __device__ __forceinline__ unsigned long long made_write(const probs_values &l, float *out, uint64_t key)
{
    const team_slice part = l.r.part;
    const float *row = l.r.row;
    unsigned long long best = 0;
#pragma unroll 1
    for (int h = 0;; h++) {
        const int i = quad_first(part, (int)threadIdx.x, h / 2) + h % 2 * 2;
        if (i >= part.end) return best;
        const bool two = i + 1 < part.end;
        const float v = __ldg(row + i), w = two ? __ldg(row + i + 1) : 0.0f;
        const float p = l.at(i, v), q = two ? l.at(i + 1, w) : 0.0f;
        unsigned long long a, b;
        out[i] = p;
        if (two) out[i + 1] = q;
        candidate_ranks<RACE>(key, i, p, q, &a, &b);
        best = a > best ? a : best;
        best = b > best ? b : best;
    }
}

struct made_shared {
    probs_shared probs;
    top_shared<TEAM_THREADS> top;
    uint64_t come; /* the blocks' lists have come to the first block */
    unsigned long long list[TEAM * DRAW_FEW];
};

/* TOP and RACE, at most DRAW_FEW of each row. */
template <bool RACE>
static __global__ void __launch_bounds__(TEAM_THREADS, PROBS_DRAW_PER_SM)
probs_draw_kernel(const __grid_constant__ probs_batch distributions, const __grid_constant__ draw_batch a)
{
    __shared__ made_shared s;
    const int t = (int)threadIdx.x, b = team_block(), k = a.k, n = team_blocks() * k;
    if (t == 0) probs_open(&s.probs), mail_open(&s.come, n * 8);
    team_mail_opened();
    row_begin();
    const draw_row r = row_of(a, team_row());
    const probs_values l = probs_of(&s.probs, distributions, team_row());
    unsigned long long best = made_write<RACE>(l, probs_place(distributions, team_row()), r.key);
    const int per = QUAD * ((distributions.slice + QUAD * TEAM_THREADS - 1) / (QUAD * TEAM_THREADS));
    best = top_of_groups<TEAM_THREADS>(made_groups<RACE>{ &l, r.key }, r.there ? best : 0, per, k, &s.top);
    if (t < k) mail_send(&s.list[b * k + t], best, &s.come, 0);
    probs_end(distributions, team_row());
    if (b != 0) return;
    mail_wait(&s.come);
    if (t >= n) return;
    /* The k best of all blocks: each counts those in front of it, and those that are none are behind all others. */
    best = s.list[t];
    int before = 0;
#pragma unroll 4
    for (int i = 0; i < n; i++) before += s.list[i] > best || (s.list[i] == best && i < t);
    const int id = best ? rank_id(best) : -1;
    if (before < k) candidate_put(r, before, id, !RACE ? rank_value(best) : id >= 0 ? l.at(id, l.r.row[id]) : 0.0f);
}

/* --- */

/* `first`: of the call. */
static spec_status batch_of(spec_queue *q, draw_batch *b, const spec_draw_args *a, int32_t first, int32_t n)
{
    *b = draw_batch();
    b->probs = a->probs, b->ld = a->ld, b->n_vocab = a->n_vocab, b->k = a->k, b->grows = a->grow != NULL;
    b->given = a->host_key != NULL;
    if (a->grow) b->g = *a->grow;
    for (int32_t i = 0; i < n; i++) {
        b->of[i].probs_row = a->host_probs_row[first + i];
        if (a->grow) b->of[i].slot = a->host_slot[first + i], b->of[i].place = a->host_place[first + i];
        if (a->host_key) b->of[i].key = a->host_key[first + i];
    }
    if (!a->host_out) return SPEC_OK;
    const size_t bytes = (size_t)n * (size_t)a->k * sizeof(spec_candidate);
    void *out;
    SPEC_TRY(speci_cuda_result_room(q, bytes + 16, 1));
    SPEC_TRY(speci_cuda_result(q, &out, a->host_out + (size_t)first * (size_t)a->k, bytes));
    b->out = (spec_candidate *)out;
    return SPEC_OK;
}

static spec_status check_draw(spec_queue *q, const spec_draw_args *a)
{
    const spec_host *h = q->dev->host;
    if (a->k < 1 || a->k > SPEC_MAX_CHILD || a->n_vocab < 1 || a->ld < a->n_vocab)
        return h->fail(SPEC_E_INVALID, "cuda draw: %d candidates of %d values, rows %d apart", a->k, a->n_vocab, a->ld);
    if (a->distributions && a->distributions->n_row != a->n_row)
        return h->fail(SPEC_E_INVALID, "cuda draw: %d rows, of %d distributions", a->n_row, a->distributions->n_row);
    if (a->grow) SPEC_TRY(speci_cuda_check_slots(q, "draw", a->grow, a->host_slot, a->n_row));
    for (int32_t i = 0; a->grow && i < a->n_row; i++)
        if (a->host_place[i] < 0 || a->host_place[i] >= a->grow->cap_frontier)
            return h->fail(SPEC_E_INVALID, "cuda draw: place %d of a frontier of %d", a->host_place[i],
                           a->grow->cap_frontier);
    return a->distributions ? check_probs(q, a->distributions) : SPEC_OK;
}

spec_status speci_cuda_draw(spec_queue *q, const spec_draw_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    SPEC_TRY(check_draw(q, a));
    const bool together = a->distributions && a->how != SPEC_DRAW_REPEAT && a->k <= DRAW_FEW;
    if (a->distributions && !together) SPEC_TRY(speci_cuda_probs(q, a->distributions));
    void (*kernel)(draw_batch) = draw_repeat_kernel;
    if (a->how == SPEC_DRAW_TOP) kernel = draw_best_kernel<false>;
    else if (a->how == SPEC_DRAW_GUMBEL_TOPK) kernel = draw_best_kernel<true>;
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        n = min(a->n_row - r, (int32_t)ROW_BATCH);
        const int team = together ? probs_team(q, n, a->distributions->n_valid, PROBS_DRAW_PER_SM) : team_of(q, a->n_vocab);
        draw_batch b;
        SPEC_TRY(batch_of(q, &b, a, r, n));
        if (together)
            SPEC_TRY(team_launch(q, "draw", a->how == SPEC_DRAW_TOP ? probs_draw_kernel<false> : probs_draw_kernel<true>, n,
                                 team, batch_of(a->distributions, r, n, team), b));
        else
            SPEC_TRY(team_launch(q, "draw", kernel, n, team, b));
    }
    return SPEC_OK;
}
