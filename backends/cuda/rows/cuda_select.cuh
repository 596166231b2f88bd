/* cuda_select.cuh - what the operations over rows of the vocabulary share: the team of thread blocks that works on a row,
 * the k largest entries (in the order of cuda_rank.cuh), draws by cumulated mass.
 *
 * A row is one team's: a cluster of up to TEAM blocks, which see each other's shared memory. A row's entries are cut
 * in TEAM_RANGES contiguous ranges, one per warp of a full team, in order: a block has the ranges of its warps, its
 * slice. A short row has a smaller team, without the blocks whose slices would be empty. The cut depends on the row's
 * length alone, and so does the order of every sum: a lane adds its entries of a range ascending, a warp its lanes, the
 * team its ranges, each by a fixed tree.
 *
 * A device without clusters has teams of one block, whose warps have a range each.
 *
 * What the host says of the rows travels as a parameter of the kernel, of ROW_BATCH rows at most. */
#ifndef SPEC_CUDA_SELECT_CUH
#define SPEC_CUDA_SELECT_CUH

#include <cooperative_groups.h>

#include "backends/cuda/cuda_cluster.cuh"
#include "backends/cuda/rows/cuda_rank.cuh"

enum {
    TEAM = SPEC_CUDA_CLUSTERS ? 8 : 1, /* most blocks of a row; the most that every device with clusters allows */
    TEAM_THREADS = 512,                /* of a block */
    TEAM_WARPS = TEAM_THREADS / 32,
    TEAM_CUT = TEAM * TEAM_WARPS,                  /* ranges of a row */
    TEAM_RANGES = TEAM_CUT < 32 ? 32 : TEAM_CUT,   /* places for them: whole warps */
    ROW_BATCH = 64                     /* rows of a launch */
};

/* The beginning of an operation over rows: as grid_begin(), but what runs behind it, of which some reads trees before it
 * waits (expand), is let be when all before this one has ended. */
static __device__ __forceinline__ void row_begin(void)
{
    grid_wait();
    grid_release();
}

/* ------------------------------------------------------------------------------------ the team --- */

static __device__ __forceinline__ int team_block(void) { return cluster_rank(); }
static __device__ __forceinline__ int team_blocks(void) { return cluster_size(); }
/* The row that the team works on. */
static __device__ __forceinline__ int team_row(void) { return cluster_id(); }
/* All threads of the team: what they wrote to any memory before is seen after. No block ends before its shared memory
 * was read: the last access to a peer's is followed by one of these. */
#if SPEC_CUDA_CLUSTERS
static __device__ __forceinline__ void team_sync(void) { cooperative_groups::this_cluster().sync(); }
/* Block b's object at the place that p, in shared memory, has in this block. */
template <typename T> static __device__ __forceinline__ const T *team_peer(T *p, int b)
{
    return cooperative_groups::this_cluster().map_shared_rank(p, b);
}
#else
static __device__ __forceinline__ void team_sync(void) { __syncthreads(); }
template <typename T> static __device__ __forceinline__ const T *team_peer(T *p, int) { return p; }
#endif

/* Entries of a range; whole lines of 128 bytes. */
static __host__ __device__ __forceinline__ int range_size(int n)
{
    return (n + TEAM_CUT * 32 - 1) / (TEAM_CUT * 32) * 32;
}

/* A block's part of n entries. */
struct team_slice {
    int first, end;
};
static __device__ __forceinline__ team_slice slice_of(int n)
{
    const int size = range_size(n) * TEAM_WARPS, first = team_block() * size;
    return team_slice{ min(first, n), min(first + size, n) };
}

/* Blocks of the team of a row of n entries. */
static inline int team_of(const spec_queue *q, int n)
{
    return cuda_has_clusters(q->dev) ? cuda_div_up(n, range_size(n) * TEAM_WARPS) : 1;
}

/* Runs a kernel, which begins with row_begin(), with a team of so many blocks for each of n_row rows. */
template <typename... P, typename... A>
static spec_status team_launch(spec_queue *q, const char *op, void (*kernel)(P...), int n_row, int team, A... args)
{
    return cuda_launch(q, op, kernel, dim3((unsigned)(n_row * team)), dim3(TEAM_THREADS), 0, (unsigned)team, args...);
}

/* One value of every warp of the team. */
template <typename T> struct team_parts {
    T warp[TEAM_WARPS], all[TEAM_RANGES];
};
/* s->all = every warp's value, in all blocks; v: this warp's, known to its lane 0; none: of ranges without a warp. Peers
 * may still read s->warp: until the next team_sync() it is theirs. */
template <typename T> static __device__ void team_gather(team_parts<T> *s, T v, T none)
{
    const int t = (int)threadIdx.x, b = t / TEAM_WARPS;
    if (t % 32 == 0) s->warp[t / 32] = v;
    team_sync();
    if (t < TEAM_RANGES) s->all[t] = b < team_blocks() ? team_peer(s->warp, b)[t % TEAM_WARPS] : none;
    __syncthreads();
}
/* get(0) to get(TEAM_RANGES - 1) put together by op, which commutes: the same in every thread. */
template <typename Get, typename Op> static __device__ auto team_fold(Get get, Op op) -> decltype(get(0))
{
    enum { PER = TEAM_RANGES / 32 };
    const int lane = (int)threadIdx.x % 32;
    auto v = get(lane * PER);
#pragma unroll
    for (int i = 1; i < PER; i++) v = op(v, get(lane * PER + i));
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, d));
    return v;
}

/* What the blocks of a team tell all of them once a row, a number each. It comes by messages that a barrier of the receiver
 * counts: a barrier of the cluster orders all memory of the device, and takes as long. */
struct team_mail {
    uint64_t come;
    unsigned long long from[TEAM], warp[TEAM_WARPS];
};
#if SPEC_CUDA_CLUSTERS
/* By one thread; then team_mail_opened() by all. `bytes` will come. */
static __device__ __forceinline__ void mail_open(uint64_t *come, int bytes)
{
    barrier_init(come, 1);
    barrier_expect(come, bytes);
}
static __device__ __forceinline__ void team_mail_opened(void)
{
    asm volatile("fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed.aligned; barrier.cluster.wait.aligned;" ::
                     : "memory");
}
static __device__ __forceinline__ void mail_send(unsigned long long *to, unsigned long long v, uint64_t *come, int block)
{
    const float2 bits = make_float2(__uint_as_float((unsigned)v), __uint_as_float((unsigned)(v >> 32)));
    cluster_send((float2 *)to, bits, come, block);
}
static __device__ __forceinline__ void mail_wait(uint64_t *come) { barrier_wait(come, 0); }
#else
static __device__ __forceinline__ void mail_open(uint64_t *, int) {}
static __device__ __forceinline__ void team_mail_opened(void) {}
static __device__ __forceinline__ void mail_send(unsigned long long *to, unsigned long long v, uint64_t *, int) { *to = v; }
static __device__ __forceinline__ void mail_wait(uint64_t *) { __syncthreads(); }
#endif

/* v of all threads of the team put together: over_warp(v) puts those of a warp together. */
template <typename Over>
static __device__ __forceinline__ unsigned long long team_post(team_mail *m, unsigned long long v, Over over_warp)
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    v = over_warp(v);
    if (lane == 0) m->warp[warp] = v;
    __syncthreads();
    if (warp == 0) {
        v = over_warp(lane < TEAM_WARPS ? m->warp[lane] : 0);
        if (lane < team_blocks()) mail_send(&m->from[team_block()], v, &m->come, lane);
    }
    mail_wait(&m->come);
    return over_warp(lane < team_blocks() ? m->from[lane] : 0);
}

/* --------------------------------------------------------------------------- the largest entries --- */

/* Bitonic sort of one value per thread of a block of N: thread i receives the i-th largest. buf [N]; the block may
 * use it again after its next barrier. */
template <int N> static __device__ __noinline__ unsigned long long block_sort(unsigned long long v, unsigned long long *buf)
{
    const int t = (int)threadIdx.x;
    for (int size = 2; size <= N; size *= 2) {
        for (int stride = size / 2; stride > 0; stride /= 2) {
            unsigned long long o;
            if (stride < 32) {
                o = __shfl_xor_sync(0xffffffffu, v, stride);
            } else {
                __syncthreads();
                buf[t] = v;
                __syncthreads();
                o = buf[t ^ stride];
            }
            const bool largest_first = (t & size) == 0, first = (t & stride) == 0;
            v = largest_first == first ? (o > v ? o : v) : (o < v ? o : v);
        }
    }
    return v;
}

/* best[0 .. k) = the k largest of list[0 .. n), best first; 0 where there are no more. The numbers but 0 differ. Eight lanes
 * count what is in front of one. By a block of N threads; begins and ends with a barrier. */
template <int N>
static __device__ __forceinline__ void few_largest(const unsigned long long *list, int n, int k, unsigned long long *best)
{
    enum { LANES = 8, AT_ONCE = N / LANES };
    const int t = (int)threadIdx.x;
    if (t < k) best[t] = 0;
    __syncthreads();
#pragma unroll 1
    for (int e0 = 0; e0 < n; e0 += AT_ONCE) {
        const int e = e0 + t / LANES;
        const unsigned long long mine = e < n ? list[e] : 0;
        int before = 0;
#pragma unroll 1
        for (int i = t % LANES; i < n; i += LANES) before += list[i] > mine;
#pragma unroll
        for (int d = 1; d < LANES; d *= 2) before += __shfl_xor_sync(0xffffffffu, before, d);
        if (t % LANES == 0 && mine && before < k) best[before] = mine;
    }
    __syncthreads();
}

template <int N> struct top_shared {
    unsigned long long sort[N], list[N], border;
    unsigned long long warp[N / 32], best[SPEC_MAX_CHILD];
    int group[N];
    int n_group, n_list;
};

/* A number that k of a block's N reach, if so many are not 0: the k-th largest of them, or of the warps' maxima. */
template <int N> static __device__ __forceinline__ unsigned long long top_border(unsigned long long v, int k, top_shared<N> *s)
{
    enum { WARPS = N / 32 };
    const int t = (int)threadIdx.x, lane = t % 32;
    if (k <= WARPS) {
        v = warp_best(v);
        if (lane == 0) s->warp[t / 32] = v;
        __syncthreads();
        const unsigned long long mine = lane < WARPS ? s->warp[lane] : 0;
        int before = 0;
#pragma unroll 4
        for (int w = 0; w < WARPS; w++) before += s->warp[w] > mine;
        return ~warp_best(lane < WARPS && before < k ? ~mine : 0);
    }
    v = block_sort<N>(v, s->sort);
    if (t == k - 1) s->border = v;
    __syncthreads();
    return s->border;
}

/* The k <= SPEC_MAX_CHILD largest ranks of a block's entries: thread i < k receives the i-th, 0 = there is none. Thread t
 * has looked at group t of them: `best` is the largest there. So entries are looked at once, and those groups again whose
 * largest reaches a border that k entries do. per: entries of a group at most; entry.of(g, j): the rank of its j-th, 0: not
 * there. */
template <int N, typename Entry>
static __device__ __forceinline__ unsigned long long top_of_groups(const Entry &entry, unsigned long long best, int per, int k,
                                                                   top_shared<N> *s)
{
    enum { CHUNK = N - SPEC_MAX_CHILD, COUNTED = 64 };
    const int t = (int)threadIdx.x;
    if (t == 0) s->n_group = 0, s->n_list = 0;
    unsigned long long border = top_border(best, k, s);
    if (best && best >= border) s->group[atomicAdd(&s->n_group, 1)] = t; /* in any order */
    __syncthreads();

    const int m = s->n_group * per;
    int n = 0; /* in the list, the same in all threads */
#pragma unroll 1
    for (int base = 0; base < m; base += CHUNK) {
        const int e = base + t;
        unsigned long long r = 0;
        if (t < CHUNK && e < m) r = entry.of(s->group[e / per], e % per);
        int more = __syncthreads_count(r && r >= border);
        if (n + more > N) { /* keep the k largest; then there is room for a chunk */
            const unsigned long long sorted = block_sort<N>(t < n ? s->list[t] : 0ull, s->sort);
            __syncthreads();
            if (t < k) s->list[t] = sorted;
            if (t == k - 1) s->border = sorted;
            if (t == 0) s->n_list = k;
            __syncthreads();
            border = s->border;
            n = k;
            more = __syncthreads_count(r && r >= border);
        }
        if (r && r >= border) s->list[atomicAdd(&s->n_list, 1)] = r; /* in any order: ordered below */
        n += more;
    }
    __syncthreads();
    if (n > COUNTED) return block_sort<N>(t < n ? s->list[t] : 0ull, s->sort);
    few_largest<N>(s->list, n, k, s->best);
    return t < k ? s->best[t] : 0;
}

/* Entries [first, end), first even, in groups: every N-th pair. */
template <int N, typename Entry> struct pair_groups {
    const Entry *entry;
    int first, end;
    __device__ __forceinline__ unsigned long long of(int g, int j) const
    {
        const int i = first + 2 * (g + j / 2 * N) + j % 2;
        return i < end ? entry->one(i) : 0;
    }
};

/* The k largest ranks of entries [first, end), first even, by one block of N threads. Entry: pair(p, &a, &b) gives the ranks
 * of entries 2 p and 2 p + 1 (b: 0 beyond the end), one(i) that of entry i, 0 for entries that are out of it. Where there
 * are no more entries than threads, they are sorted. */
template <int N, typename Entry>
static __device__ unsigned long long block_top(const Entry &entry, int first, int end, int k, top_shared<N> *s)
{
    const int t = (int)threadIdx.x, n_pair = (end - first + 1) / 2;
    if (end - first <= N) return block_sort<N>(first + t < end ? entry.one(first + t) : 0ull, s->sort);
    unsigned long long best = 0;
#pragma unroll 2
    for (int p = t; p < n_pair; p += N) {
        unsigned long long a, b;
        entry.pair(first / 2 + p, &a, &b);
        best = a > best ? a : best;
        best = b > best ? b : best;
    }
    return top_of_groups<N>(pair_groups<N, Entry>{ &entry, first, end }, best, 2 * ((n_pair + N - 1) / N), k, s);
}

/* ------------------------------------------------------------------------- draws by cumulated mass --- */

/* The sums over the warps' ranges of value(c, row[c], other[c]), in `sums`; returns the total. value is not
 * negative, and 0 where row[c] is: there `other` (or NULL) is not read. */
template <typename Value>
static __device__ double team_ranges(team_parts<double> *sums, const float *row, const float *other, int n,
                                     const Value &value)
{
    enum { AHEAD = 4 };
    const int size = range_size(n), lane = (int)threadIdx.x % 32;
    const int first = (team_block() * TEAM_WARPS + (int)threadIdx.x / 32) * size, end = min(first + size, n);
    double sum = 0.0;
    for (int base = first + lane; base < end; base += 32 * AHEAD) {
        float v[AHEAD], w[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) v[a] = base + a * 32 < end ? __ldg(row + base + a * 32) : 0.0f;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) w[a] = other && v[a] > 0.0f ? __ldg(other + base + a * 32) : 0.0f;
#pragma unroll
        for (int a = 0; a < AHEAD; a++)
            if (v[a] > 0.0f) sum += (double)value(base + a * 32, v[a], w[a]);
    }
    team_gather(sums, warp_sum(sum), 0.0);
    team_sync(); /* for the next call, or the end */
    return team_fold([&](int i) { return sums->all[i]; }, [](double x, double y) { return x + y; });
}

/* Inclusive sums over the lanes of a warp. */
static __device__ __forceinline__ double warp_scan(double v)
{
    const int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const double o = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v = o + v;
    }
    return v;
}

/* By one warp: the first id of a range [first, end) with value(id) > 0 at which the mass from `run` on exceeds
 * `border`; the last id with a value where rounding runs past the end; -1 if there is none. */
template <typename Value>
static __device__ int range_find(const Value &value, int first, int end, double run, double border)
{
    enum { AHEAD = 8 }; /* values loaded before the first is needed */
    const int lane = (int)threadIdx.x % 32;
    int last = -1;
    for (int base = first; base < end; base += 32 * AHEAD) {
        float v[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const int i = base + a * 32 + lane;
            v[a] = i < end ? value(i) : 0.0f;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            const double sum = run + warp_scan(v[a] > 0.0f ? (double)v[a] : 0.0);
            const unsigned here = __ballot_sync(0xffffffffu, v[a] > 0.0f);
            const unsigned hit = __ballot_sync(0xffffffffu, v[a] > 0.0f && sum > border);
            if (hit) return base + a * 32 + __ffs((int)hit) - 1;
            if (here) last = base + a * 32 + 31 - __clz((int)here);
            run = __shfl_sync(0xffffffffu, sum, 31);
        }
    }
    return last;
}

/* By one warp: the smallest id with value(id) > 0 and value(0) + ... + value(id) > u total, the ranges' sums being in
 * s->all; the last one with a value where rounding runs past the end; -1 when nothing has a value. */
template <typename Value>
static __device__ int team_draw(const team_parts<double> *s, const Value &value, int n, float u)
{
    enum { PER = TEAM_RANGES / 32 };
    const int lane = (int)threadIdx.x % 32, size = range_size(n);
    double mine = 0.0;
    for (int i = 0; i < PER; i++) mine = mine + s->all[lane * PER + i];
    const double upto = warp_scan(mine), total = __shfl_sync(0xffffffffu, upto, 31);
    if (!(total > 0.0)) return -1;
    const double upto_last = __shfl_up_sync(0xffffffffu, upto, 1);
    double border = (double)u * total, run = lane ? upto_last : 0.0, before = 0.0;
    int hit = -1, last = -1;
    for (int i = 0; i < PER; i++) {
        const double range = s->all[lane * PER + i];
        if (!(range > 0.0)) continue;
        last = lane * PER + i;
        if (hit < 0 && run + range > border) hit = last, before = run;
        run = run + range;
    }
    const unsigned hits = __ballot_sync(0xffffffffu, hit >= 0), any = __ballot_sync(0xffffffffu, last >= 0);
    int range = __shfl_sync(0xffffffffu, hit, hits ? __ffs((int)hits) - 1 : 0);
    before = __shfl_sync(0xffffffffu, before, hits ? __ffs((int)hits) - 1 : 0);
    if (!hits) { /* rounding: the end of the last range with a value */
        range = __shfl_sync(0xffffffffu, last, 31 - __clz((int)any));
        border = CUDART_INF;
    }
    return range_find(value, range * size, min((range + 1) * size, n), before, border);
}

#endif
