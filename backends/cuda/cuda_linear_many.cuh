/* cuda_linear_many.cuh - products of many rows in decode passes, near the speed of reading the weights (cuda_linear.cu tells what
 * is computed).
 *
 * A block makes M outputs of N rows for one, two, four or all parts of K; a warpgroup has up to 64 of the outputs, a warp 16.
 * Weights are the operand that the instruction takes from registers: a lane reads only what it copied itself to its
 * warp's ring. x is the operand from shared memory, in slabs of 64 k that the warps ask for by turns. Its k have to be in the
 * same order (cuda_wgmma.cuh), which is seen to once, since all blocks read x: by what makes it, where that can
 * (speci_cuda_arranged_for), else by a kernel of its own.
 *
 * Same order of the same sums as for few rows: the 8, 4, 2 or 1 blocks of a cluster share an output's parts, and wgmma's
 * sum of 16 k has the bits of mma.sync's.
 *
 * W names what weights are made of: elements of a 16-bit type (cuda_linear_many.cu), or blocks of Q8_0
 * (cuda_linear_many_q8.cu). It has
 *   type    of x
 *   STEP    uint4 that a warp copies of 64 k: two rows for each lane
 *   reader  how a lane asks for its part of the next 64 k, and a warpgroup multiplies them
 *   ways    in which a product may be divided */
#ifndef SPEC_CUDA_LINEAR_MANY_CUH
#define SPEC_CUDA_LINEAR_MANY_CUH

#include <array>
#include <type_traits>

#include "cuda_cluster.cuh"
#include "cuda_wgmma.cuh"

static __device__ __forceinline__ void copy_slab(uint4 *to, const uint4 *from, uint64_t *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "n"(SLAB * 16), "r"((uint32_t)__cvta_generic_to_shared(b))
                 : "memory");
}

/* PARTS of K: 1, 2, 4 or 8; RESIDENT blocks on a multiprocessor. Copies in flight: DEPTH of a warp's weights, SLABS of x. A warp
 * makes `share` of the 16 outputs that it has room for (with glu: of 8 gates and their ups), so that all multiprocessors have
 * alike; what its other registers hold is not looked at. */
template <typename W, int GROUPS, int N, int DEPTH, int SLABS, int RESIDENT, int PARTS, linear_more MORE>
static __global__ void __launch_bounds__(GROUPS * 128, RESIDENT)
linear_many_kernel(const spec_step_block *step, const void *w, int ld_w, const uint4 *x, int n_in, int share, linear_out o)
{
    typedef typename W::type T;
    constexpr int LAG = 2; /* steps that the slowest warp may be behind the first */
    constexpr int WARPS = GROUPS * 4, THREADS = WARPS * 32, STAGE = N / SLAB_ROWS * SLAB;
    constexpr int BLOCKS = LINEAR_PARTS / PARTS;  /* of the cluster */
    constexpr int PIECES = PARTS == 2 ? 2 : 1;    /* sums that a block makes: parts 2 and 3 are added to 0 and 1 one by one */
    constexpr int MINE = N / 8 / BLOCKS;          /* eights of rows that a block of it adds up and stores */
    constexpr bool NORMS = MORE != LINEAR_PLAIN, BEST = MORE == LINEAR_BEST, TWICE = MORE == LINEAR_SLABS;
    extern __shared__ __align__(128) char dynamic[];
    __shared__ uint64_t full[SLABS], empty[SLABS], met;
    __shared__ float factor[MINE * 8];
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const int block = (int)blockIdx.x, part0 = block * PARTS, part_end = part0 + PARTS;

    grid_release();
    if (tid < SLABS) {
        barrier_init(&full[tid], 1);
        barrier_init(&empty[tid], WARPS);
        if (tid == 0) barrier_init(&met, WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* for the copies */
    }
    __syncthreads();
    const int n_row = step->n_row_run, row0 = (int)blockIdx.y * N;
    const int half = o.n_out / 2, n_y = o.glu ? half : o.n_out, m_warp = ((int)blockIdx.z * WARPS + warp) * share;
    const int k0 = part_begin(n_in, part0), n_step = (part_begin(n_in, part_end) - k0) / 64;
    uint4 *const ring = (uint4 *)dynamic + warp * DEPTH * W::STEP;
    uint4 *const slabs = (uint4 *)dynamic + WARPS * DEPTH * W::STEP; /* [SLABS][N / 64] */

    /* A lane's two rows: two outputs side by side, with glu a gate and its up. */
    const int m = m_warp + (o.glu ? g : 2 * g), n_m = min(min(n_y, m_warp + share) - m, o.glu ? 1 : 2);
    const bool has[2] = { n_m > 0, n_m > (o.glu ? 0 : 1) };
    typename W::reader weights(w, ld_w, n_in, o, m, k0, lane);
#pragma unroll
    for (int s = 0; s < DEPTH; s++) {
        if (s < n_step && row0 < n_row) weights.copy(ring + s * W::STEP, has);
        copy_commit();
    }
    const int sends = __popc(__ballot_sync(0xffffffffu, has[0])); /* lanes, of this warp in each block */
    if (BLOCKS > 1 && lane == 0) barrier_expect(&met, sends * (N / 8 - MINE) * PIECES * 16);
    grid_wait();
    if (row0 >= n_row) return;

    const int n_slab = cuda_chunks(n_in) * (CUDA_CHUNK / 64); /* of a block of rows */
    const uint4 *const from_x = x + ((size_t)(row0 / 64) * n_slab + k0 / 64) * SLAB;
    auto copy_x = [&](int s) { /* of step s, when all have read what its slab has held */
        const int slab = s % SLABS, n = min(N, n_row - row0 + 63) / 64; /* blocks of rows that there are */
        if (s >= SLABS) barrier_wait(&empty[slab], s / SLABS - 1 & 1);
        barrier_expect(&full[slab], n * SLAB * 16);
#pragma unroll 1
        for (int i = 0; i < n; i++)
            copy_slab(slabs + slab * STAGE + i * SLAB, from_x + ((size_t)i * n_slab + s) * SLAB, &full[slab]);
    };
#pragma unroll 1
    for (int s = warp; s < min(SLABS, n_step) && lane == 0; s += WARPS) copy_x(s);
    __syncwarp();
    const int mine0 = row0 + block * MINE * 8; /* rows that it stores */
    if (MORE == LINEAR_NORMS || (NORMS && o.norm.squares))
        norm_factors<WARPS, 1>(o.norm, factor, mine0, min(MINE * 8, n_row - mine0));
    else if (NORMS && tid < MINE * 8) factor[tid] = 1.0f;

    float total[PIECES][N / 2];          /* of the parts of a half, */
    [[maybe_unused]] float front[N / 2]; /* and of the first four */
    int slot = 0, s = 0;
    for (int part = part0; part < part_end; part++) {
        float acc[N / 2];
#pragma unroll
        for (int e = 0; e < N / 2; e++) acc[e] = 0.0f;
        for (const int end = (part_begin(n_in, part + 1) - k0) / 64; s < end; s++) {
            const int slab = s % SLABS;
            if (lane == 0 && warp == s % WARPS && s >= LAG && s - LAG + SLABS < n_step) copy_x(s - LAG + SLABS);
            __syncwarp();
            copy_wait<DEPTH - 1>();
            barrier_wait(&full[slab], s / SLABS & 1);
            uint4 *const mine = ring + slot * W::STEP;
            weights.template multiply<N>(acc, mine, slabs + slab * STAGE, [&]() {
                if (s + DEPTH < n_step) weights.copy(mine, has);
                copy_commit();
            });
            if (lane == 0) barrier_arrive(&empty[slab]);
            slot = slot == DEPTH - 1 ? 0 : slot + 1;
        }
#pragma unroll
        for (int e = 0; e < N / 2; e++) {
            if (PIECES == 2 && part != part0) total[PIECES - 1][e] = acc[e];
            else total[0][e] = part % 4 == 0 || part == part0 ? acc[e] : total[0][e] + acc[e];
        }
        if constexpr (PARTS == LINEAR_PARTS) {
#pragma unroll
            for (int e = 0; e < N / 2 && part % 4 == 3; e++)
                part == 3 ? front[e] = total[0][e] : total[0][e] = front[e] + total[0][e];
        }
    }

    /* The sums of a thread go to the same thread of the block that stores them. */
    float4 *const sums = (float4 *)dynamic + tid; /* [BLOCKS][PIECES][MINE][THREADS], where weights and x were */
    if constexpr (BLOCKS == 1 || NORMS) __syncthreads();
    if constexpr (BLOCKS > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < PIECES * N / 8; i++) {
        const int n = i % (N / 8), piece = i / (N / 8);
        const float *const sum = total[piece] + n * 4;
        const float4 v = make_float4(sum[0], sum[1], sum[2], sum[3]);
        float4 *const to = sums + ((block * PIECES + piece) * MINE + n % MINE) * THREADS;
        if (BLOCKS == 1 || n / MINE == block) *to = v;
        else if (has[0]) cluster_send(to, v, &met, n / MINE);
    }
    /* Of every 8 rows lane (g, t) has rows 2t and 2t + 1. */
    const int row = mine0 + 2 * t;
    size_t at = (size_t)row * o.ld_y + m;
    float was[2][2] = {}; /* [row][output] */
    auto load_was = [&](int n) {
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (o.add && row + n * 8 + e / 2 < n_row && e % 2 < n_m)
                was[e / 2][e % 2] = ((const float *)o.y)[at + e / 2 * o.ld_y + e % 2];
    };
    load_was(0);
    if constexpr (BLOCKS > 1) barrier_wait(&met, 0);
#pragma unroll 1
    for (int n = 0; n < MINE; n++) {
        /* Not known to be the same each time: the compiler would copy the loop for every kind of output, 60 KB. */
        asm volatile("" : "+l"(o.bias), "+r"(o.act), "+r"(o.glu), "+r"(o.add), "+r"(o.y_type));
        float v[BLOCKS * PIECES][4]; /* [output][row] */
#pragma unroll
        for (int k = 0; k < BLOCKS * PIECES; k++) *(float4 *)v[k] = sums[(k * MINE + n) * THREADS];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (BLOCKS == 2) v[0][e] += v[1][e];
            if constexpr (BLOCKS * PIECES == LINEAR_PARTS) {
#pragma unroll
                for (int k = 1; k < 4; k++) v[0][e] += v[k][e], v[4][e] += v[4 + k][e];
                v[0][e] += v[4][e];
            }
        }
        unsigned long long best[2] = {}; /* of either row */
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (row + n * 8 + e / 2 >= n_row || e % 2 >= n_m) continue;
            const float f = !NORMS ? 1.0f : factor[n * 8 + 2 * t + e / 2];
            const float y = linear_put(
                o, at + e / 2 * o.ld_y + e % 2,
                linear_value(o, m + e % 2, f * v[0][e % 2 * 2 + e / 2], f * v[0][2 + e / 2]), was[e / 2][e % 2]);
            if (TWICE) put_arranged<T>(o.arranged, ORDER_SLABS, row + n * 8 + e / 2, m + e % 2, n_y, y);
            if (BEST) better(&best[e / 2], y, m + e % 2);
        }
        if (BEST) { /* of the warp, in place of sums that only this thread has read */
#pragma unroll
            for (int i = 0; i < 2; i++) best[i] = lanes_best<16, 4>(best[i]);
            if (g == 0) *(ulonglong2 *)(sums + n * THREADS) = make_ulonglong2(best[0], best[1]);
        }
        at += 8 * (size_t)o.ld_y;
        if (n + 1 < MINE) load_was(n + 1);
    }
    if (TWICE) slab_fence();
    if (BEST) {
        __syncthreads();
        if (tid >= MINE * 8 || mine0 + tid >= n_row) return;
        unsigned long long best = 0;
        for (int v = 0; v < WARPS; v++) {
            const float4 *const of_warp = (const float4 *)dynamic + tid / 8 * THREADS + v * 32 + tid % 8 / 2;
            best = max(best, ((const unsigned long long *)of_warp)[tid % 2]);
        }
        atomicMax(o.best + mine0 + tid, best);
    }
}

/* A way to divide a product: `warps` and n rows for a block; the `blocks` of a cluster share the parts of K. */
struct many_way {
    void (*kernel)(const spec_step_block *step, const void *w, int ld_w, const uint4 *x, int n_in, int share, linear_out o);
    int warps, n, blocks, resident, bytes, share;
};
template <typename W, linear_more MORE, int GROUPS, int N, int DEPTH, int SLABS, int RESIDENT, int PARTS> static many_way make_way()
{
    constexpr int bytes = (GROUPS * 4 * DEPTH * W::STEP + SLABS * (N / SLAB_ROWS) * SLAB) * 16;
    static_assert(N / 8 * (PARTS == 2 ? 2 : 1) * GROUPS * 128 * 16 <= bytes, "the sums take the place of weights and x");
    auto *kernel = linear_many_kernel<W, GROUPS, N, DEPTH, SLABS, RESIDENT, PARTS, MORE>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return { kernel, GROUPS * 4, N, LINEAR_PARTS / PARTS, RESIDENT, bytes, 0 };
}

/* The cheapest by the waves of blocks that a multiprocessor sees, each as long as the weights that it has room for, and as
 * 16 outputs of 4096 inputs for its start and end; and of blocks that have a multiprocessor for themselves as many as these waves
 * hold (measured on an H200, docs/performance.md). */
template <typename W, linear_more MORE>
static many_way find_way(const spec_queue *q, const spec_linear_args *a, const linear_out &o)
{
    const int rows = q->shape.rows, n_y = o.glu ? o.n_out / 2 : o.n_out, most = o.glu ? 8 : 16;
    many_way best = {};
    double least = 0.0;
    for (many_way w : W::template ways<MORE>()) {
        if (w.n > SLAB_ROWS && rows <= SLAB_ROWS) continue;
        const int at_once = w.blocks * clusters_at_once(q, w.kernel, w.blocks, w.warps * 32, w.bytes);
        auto waves_with = [&](int share) {
            return cuda_div_up((int64_t)cuda_div_up(n_y, w.warps * share) * w.blocks * cuda_div_up(rows, w.n), at_once);
        };
        const int waves = waves_with(most);
        const double cost = waves * ((double)w.warps * 16 * w.resident / w.blocks * a->n_in + 16.0 * 4096.0);
        if (best.kernel && cost >= least) continue;
        for (w.share = most; w.resident == 1 && w.share > 1 && waves_with(w.share - 1) == waves;) w.share--;
        best = w, least = cost;
    }
    return best;
}

template <typename W, linear_more MORE>
static spec_status multiply(spec_queue *q, const spec_linear_args *a, const linear_out &o, const uint16_t *slabs)
{
    const many_way way = find_way<W, MORE>(q, a, o);
    const dim3 grid((unsigned)way.blocks, (unsigned)cuda_div_up(q->shape.rows, way.n),
                    (unsigned)cuda_div_up(o.glu ? o.n_out / 2 : o.n_out, way.warps * way.share));
    return cuda_launch(q, "linear", way.kernel, grid, dim3((unsigned)way.warps * 32), (size_t)way.bytes, (unsigned)way.blocks,
                       q->d_step, a->w->data, a->w->ld, (const uint4 *)slabs, a->n_in, way.share, o);
}

template <typename W>
static spec_status linear_many(spec_queue *q, const spec_linear_args *a, linear_out o, bool aligned)
{
    const uint16_t *slabs;
    SPEC_TRY(speci_cuda_slabs_of(q, a, aligned, &slabs));
    if (o.best) return multiply<W, LINEAR_BEST>(q, a, o, slabs);
    o.arranged = speci_cuda_arranged_for(q, &a->y, o.glu ? o.n_out / 2 : o.n_out, slabs);
    if (o.arranged) return multiply<W, LINEAR_SLABS>(q, a, o, slabs);
    if constexpr (std::is_same_v<typename W::type, __nv_bfloat16>) /* no norm is deferred in float16 */
        if (a->squares) return multiply<W, LINEAR_NORMS>(q, a, o, slabs);
    return multiply<W, LINEAR_PLAIN>(q, a, o, slabs);
}

#endif
