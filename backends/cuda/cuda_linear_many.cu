/* cuda_linear_many.cu - products of 16-bit weights and more than 32 rows, near the speed of reading the weights.
 *
 * A block makes M outputs of N rows for one, four or all parts of K; a warpgroup has 64 of the outputs, a warp 16.
 * Weights are the operand that the instruction takes from registers: a lane reads only what it copied itself to its
 * warp's ring, 16 bytes that make two instructions, as for few rows (cuda_linear.cu). x is the operand from shared
 * memory, in slabs of 64 k that the warps ask for by turns. Its k have to be in the same order (cuda_wgmma.cuh), which is
 * seen to once, since all blocks read x: by what makes it, where that can (speci_cuda_arranged_for), else by a kernel of its own.
 *
 * Same order of the same sums as for few rows: the 8, 2 or 1 blocks of a cluster share an output's parts, and wgmma's
 * sum of 16 k has the bits of mma.sync's. */
#include <type_traits>

#include "cuda_cluster.cuh"
#include "cuda_wgmma.cuh"

/* A thread takes the chunk of a row. */
template <typename T>
static __global__ void __launch_bounds__(4 * SLAB_ROWS)
linear_arrange_kernel(const spec_step_block *step, const T *x, int ld_x, int n_in, int aligned, uint4 *slabs)
{
    grid_release();
    const int n_row = step->n_row_run, r = (int)threadIdx.x % SLAB_ROWS, row = (int)blockIdx.y * SLAB_ROWS + r;
    const int chunk = (int)(blockIdx.x * 4 + threadIdx.x / SLAB_ROWS);
    grid_wait();
    if ((int)blockIdx.y * SLAB_ROWS >= n_row) return;
    const T *from = x + (size_t)row * ld_x;
    uint4 u[4] = {};
    if (aligned && chunk * 32 + 32 <= n_in && row < n_row) {
#pragma unroll
        for (int t = 0; t < 4; t++) u[t] = ((const uint4 *)from)[chunk * 4 + t];
    } else if (row < n_row) {
#pragma unroll
        for (int t = 0; t < 4; t++) u[t] = load_x8(from, chunk * 32 + t * 8, n_in, false);
    }
    uint4 *const to = slabs + ((size_t)blockIdx.y * gridDim.x * 4 + chunk) * (4 * SLAB_ROWS) + r;
    to[0 * SLAB_ROWS] = make_uint4(u[0].x, u[1].x, u[2].x, u[3].x);
    to[1 * SLAB_ROWS] = make_uint4(u[0].y, u[1].y, u[2].y, u[3].y);
    to[2 * SLAB_ROWS] = make_uint4(u[0].z, u[1].z, u[2].z, u[3].z);
    to[3 * SLAB_ROWS] = make_uint4(u[0].w, u[1].w, u[2].w, u[3].w);
    slab_fence();
}

static __device__ __forceinline__ void copy_slab(uint4 *to, const uint4 *from, uint64_t *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "n"(SLAB * 16), "r"((uint32_t)__cvta_generic_to_shared(b))
                 : "memory");
}

/* PARTS of K: 1, 4 or 8; RESIDENT blocks on a multiprocessor. Copies in flight: DEPTH of a warp's weights, SLABS of x. */
template <int RESIDENT> struct many_slabs {
    enum { N = RESIDENT == 3 ? 4 : 6, LAG = 2 /* steps that the slowest warp may be behind the first */ };
};

template <typename T, int GROUPS, int N, int DEPTH, int RESIDENT, int PARTS, linear_more MORE>
static __global__ void __launch_bounds__(GROUPS * 128, RESIDENT)
linear_many_kernel(const spec_step_block *step, const T *w, int ld_w, const uint4 *x, int n_in, linear_out o)
{
    constexpr int SLABS = many_slabs<RESIDENT>::N, LAG = many_slabs<RESIDENT>::LAG;
    constexpr int WARPS = GROUPS * 4, THREADS = WARPS * 32, STAGE = N / 64 * SLAB;
    constexpr int BLOCKS = LINEAR_PARTS / PARTS;  /* of the cluster */
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
        if (tid == 0) {
            barrier_init(&met, 1);
            barrier_expect(&met, (N / 8 - MINE) * THREADS * 16);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* for the copies */
    }
    __syncthreads();
    const int n_row = step->n_row_run, row0 = (int)blockIdx.y * N;
    const int half = o.n_out / 2, per_warp = o.glu ? 8 : 16, m_end = o.glu ? half : o.n_out;
    const int m_warp = ((int)blockIdx.z * WARPS + warp) * per_warp;
    const int k0 = part_begin(n_in, part0), n_step = (part_begin(n_in, part_end) - k0) / 64;
    uint4 *const ring = (uint4 *)dynamic + warp * DEPTH * 128 + lane; /* [DEPTH][2 chunks][2 rows][32 lanes] */
    uint4 *const slabs = (uint4 *)dynamic + WARPS * DEPTH * 128;      /* [SLABS][N / 64] */

    /* A lane's two rows: two outputs side by side, with glu a gate and its up. */
    const int m = m_warp + (o.glu ? g : 2 * g);
    const T *from = w + (size_t)(min(m_warp, m_end - 1) + m - m_warp) * ld_w + k0 + t * 8;
    const size_t second = (size_t)(o.glu ? half : 1) * ld_w;
    const uint64_t policy = read_once();
    auto copy_w = [&](int slot) {
#pragma unroll
        for (int i = 0; i < 4; i++) copy16(ring + slot * 128 + i * 32, from + i / 2 * 32 + i % 2 * second, policy);
        from += 64;
    };
#pragma unroll
    for (int s = 0; s < DEPTH; s++) {
        if (s < n_step && row0 < n_row) copy_w(s);
        copy_commit();
    }
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

    float total[N / 2];                  /* of the parts of a half, */
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
            uint4 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) v[i] = ring[slot * 128 + i * 32];
            wgmma_begin();
#pragma unroll
            for (int c = 0; c < 2; c++)
                wgmma_chunk<T, N, SLAB_ROWS>(acc, v[2 * c], v[2 * c + 1], slabs + slab * STAGE + c * (SLAB / 2));
            wgmma_end();
            if (s + DEPTH < n_step) copy_w(slot);
            copy_commit();
            wgmma_wait<0>(acc);
            if (lane == 0) barrier_arrive(&empty[slab]);
            slot = slot == DEPTH - 1 ? 0 : slot + 1;
        }
#pragma unroll
        for (int e = 0; e < N / 2; e++) total[e] = part % 4 == 0 || part == part0 ? acc[e] : total[e] + acc[e];
        if constexpr (PARTS == LINEAR_PARTS) {
#pragma unroll
            for (int e = 0; e < N / 2 && part % 4 == 3; e++)
                part == 3 ? front[e] = total[e] : total[e] = front[e] + total[e];
        }
    }

    /* The sums of a thread go to the same thread of the block that stores them. */
    float4 *const sums = (float4 *)dynamic + tid; /* [BLOCKS][MINE][THREADS], where weights and x were */
    if constexpr (BLOCKS == 1 || NORMS) __syncthreads();
    if constexpr (BLOCKS > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#pragma unroll
    for (int n = 0; n < N / 8; n++) {
        const float4 v = make_float4(total[n * 4], total[n * 4 + 1], total[n * 4 + 2], total[n * 4 + 3]);
        float4 *const to = sums + (block * MINE + n % MINE) * THREADS;
        if (BLOCKS == 1 || n / MINE == block) *to = v;
        else cluster_send(to, v, &met, n / MINE);
    }
    /* Of every 8 rows lane (g, t) has rows 2t and 2t + 1. */
    const int row = mine0 + 2 * t, n_m = min(m_end - m, o.glu ? 1 : 2);
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
        float v[BLOCKS][4]; /* [output][row] */
#pragma unroll
        for (int k = 0; k < BLOCKS; k++) *(float4 *)v[k] = sums[(k * MINE + n) * THREADS];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (BLOCKS == 2) v[0][e] += v[1][e];
            if constexpr (BLOCKS == 8) {
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
            if (TWICE) put_arranged<T>(o.arranged, ORDER_SLABS, row + n * 8 + e / 2, m + e % 2, m_end, y);
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

/* A way to divide a product: m outputs and n rows for a block; the `blocks` of a cluster share the parts of K. */
template <typename T> struct many_way {
    void (*kernel)(const spec_step_block *step, const T *w, int ld_w, const uint4 *x, int n_in, linear_out o);
    int m, n, blocks, resident, threads, bytes;
};
template <typename T, linear_more MORE, int GROUPS, int N, int DEPTH, int RESIDENT, int PARTS> static many_way<T> make_way()
{
    constexpr int M = GROUPS * 64, bytes = (GROUPS * 4 * DEPTH * 128 + many_slabs<RESIDENT>::N * (N / 64) * SLAB) * 16;
    static_assert(N / 8 * GROUPS * 128 * 16 <= bytes, "the sums take the place of weights and x");
    auto *kernel = linear_many_kernel<T, GROUPS, N, DEPTH, RESIDENT, PARTS, MORE>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return { kernel, M, N, LINEAR_PARTS / PARTS, RESIDENT, GROUPS * 128, bytes };
}

/* The cheapest by the waves of blocks that a multiprocessor sees, each as long as the weights that it reads, and as
 * 16 outputs of 4096 inputs for its start and end (measured on an H200, docs/performance.md). */
template <typename T, linear_more MORE>
static many_way<T> find_way(const spec_queue *q, const spec_linear_args *a, const linear_out &o)
{
    const many_way<T> ways[] = { make_way<T, MORE, 2, 64, 4, 2, 1>(), make_way<T, MORE, 2, 64, 2, 3, 1>(),
                                 make_way<T, MORE, 2, 64, 4, 2, 4>(), make_way<T, MORE, 3, 64, 6, 1, 4>(),
                                 make_way<T, MORE, 3, 64, 6, 1, 8>(), make_way<T, MORE, 3, 128, 5, 1, 1>(),
                                 make_way<T, MORE, 3, 128, 5, 1, 4>() };
    const many_way<T> *best = NULL;
    double least = 0.0;
    for (const many_way<T> &w : ways) {
        if (w.n > SLAB_ROWS && q->shape.rows <= SLAB_ROWS) continue;
        const int64_t blocks = (int64_t)cuda_div_up(o.n_out, w.m) * w.blocks * cuda_div_up(q->shape.rows, w.n);
        const double wave = (double)w.m * w.resident / w.blocks * a->n_in + 16.0 * 4096.0;
        const int at_once = w.blocks * clusters_at_once(q, w.kernel, w.blocks, w.threads, w.bytes);
        const double cost = cuda_div_up(blocks, at_once) * wave;
        if (!best || cost < least) best = &w, least = cost;
    }
    return *best;
}

bool speci_cuda_is_many(const spec_queue *q, const spec_linear_args *a)
{
    /* The queue was opened for the operation, or it does without scratch. */
    return cuda_size(a->x.dtype) == 2 && !a->w->q8 && q->shape.rows > LINEAR_FEW &&
           q->linear_floats >= speci_cuda_order_floats(a, q->n_row_run);
}

template <typename T, linear_more MORE>
static spec_status multiply(spec_queue *q, const spec_linear_args *a, const linear_out &o, const uint16_t *slabs)
{
    const int rows = q->shape.rows;
    const many_way<T> way = find_way<T, MORE>(q, a, o);
    const dim3 grid((unsigned)way.blocks, (unsigned)cuda_div_up(rows, way.n),
                    (unsigned)cuda_div_up(o.n_out, way.m)); /* with glu half of both */
    return cuda_launch(q, "linear", way.kernel, grid, dim3((unsigned)way.threads), (size_t)way.bytes, (unsigned)way.blocks,
                       q->d_step, (const T *)a->w->data, a->w->ld, (const uint4 *)slabs, a->n_in, o);
}

template <typename T>
static spec_status linear_many(spec_queue *q, const spec_linear_args *a, linear_out o, bool aligned)
{
    const dim3 chunks((unsigned)cuda_chunks(a->n_in), (unsigned)cuda_div_up(q->shape.rows, SLAB_ROWS));
    const bool arranged = q->arranged_in.of == a->x.data;
    uint16_t *const slabs = arranged ? q->arranged_in.at : q->arranged[0];
    if (!arranged)
        SPEC_TRY(cuda_launch(q, "linear", linear_arrange_kernel<T>, chunks, dim3(4 * SLAB_ROWS), 0, 1, q->d_step,
                             (const T *)a->x.data, a->x.ld, a->n_in, (int)aligned, (uint4 *)slabs));
    if (o.best) return multiply<T, LINEAR_BEST>(q, a, o, slabs);
    o.arranged = speci_cuda_arranged_for(q, &a->y, o.glu ? o.n_out / 2 : o.n_out, slabs);
    if (o.arranged) return multiply<T, LINEAR_SLABS>(q, a, o, slabs);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) /* no norm is deferred in float16 */
        if (a->squares) return multiply<T, LINEAR_NORMS>(q, a, o, slabs);
    return multiply<T, LINEAR_PLAIN>(q, a, o, slabs);
}

spec_status speci_cuda_linear_many(spec_queue *q, const spec_linear_args *a, const linear_out &o, bool aligned)
{
    return a->w->dtype == SPEC_DTYPE_F16 ? linear_many<__half>(q, a, o, aligned) : linear_many<__nv_bfloat16>(q, a, o, aligned);
}
