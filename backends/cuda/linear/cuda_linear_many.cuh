/* cuda_linear_many.cuh - products of many rows in decode passes, near the speed of reading the weights (cuda_linear.cu tells what
 * is computed).
 *
 * A block makes M outputs of N rows for one, two, four or all parts of K; a warpgroup has up to 64 of the outputs, a warp 16,
 * and one, two or four teams of warpgroups share the parts of a block. Weights are the operand that the instruction takes from
 * registers: a lane reads only what it copied itself to its warp's ring. x is the operand from shared memory, in slabs of 64 k
 * that the warps of a team ask for by turns. Its k have to be in the same order (cuda_wgmma.cuh), which is seen to once, since
 * all blocks read x: by what makes it, where that can (speci_cuda_arranged_for), else by a kernel of its own.
 *
 * A step, one or two slabs long, is a chain of some 600 cycles: a wait, loads, the instruction, copies, an arrival. So products
 * whose blocks have few outputs want more teams, each with a shorter way through K, and long ones steps of two slabs
 * (clock stamps on an H200).
 *
 * Same order of the same sums as for few rows: the 8, 4, 2 or 1 blocks of a cluster, and the teams of a block, share an output's
 * parts, and wgmma's sum of 16 k has the bits of mma.sync's.
 *
 * W names what weights are made of: elements of a 16-bit type (cuda_linear_many.cu), or blocks of Q8_0
 * (cuda_linear_many_q8.cu) or of other types (cuda_linear_many_blocks.cu). It has
 *   type    of x
 *   finds_best  whether it looks for the largest of a row
 *   STEP    uint4 that a warp copies of 64 k: two rows for each lane
 *   reader  how a lane asks for its part of the next 64 k, and a warpgroup multiplies them
 *   ways    in which a product may be divided */
#ifndef SPEC_CUDA_LINEAR_MANY_CUH
#define SPEC_CUDA_LINEAR_MANY_CUH

#include <array>
#include <type_traits>

#include "backends/cuda/cuda_cluster.cuh"
#include "backends/cuda/linear/cuda_wgmma.cuh"

static __device__ __forceinline__ void copy_slabs(uint4 *to, const uint4 *from, int n, uint64_t *b)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "l"(from), "r"(n * SLAB * 16), "r"((uint32_t)__cvta_generic_to_shared(b))
                 : "memory");
}

/* Elements i and i + 1 of y, at once where `pairs` says that they lie so; with n == 1 the first alone. */
static __device__ __forceinline__ float2 linear_was2(const linear_out &o, size_t i, int n, bool pairs)
{
    const float *const y = (const float *)o.y + i;
    return n == 2 && pairs ? *(const float2 *)y : make_float2(y[0], n == 2 ? y[1] : 0.0f);
}
static __device__ __forceinline__ float2 linear_put2(const linear_out &o, size_t i, int n, bool pairs, float2 value, float2 was)
{
    if (n != 2 || !pairs)
        return make_float2(linear_put(o, i, value.x, was.x), n == 2 ? linear_put(o, i + 1, value.y, was.y) : 0.0f);
    const float2 y = make_float2(linear_scaled(o, value.x, was.x), linear_scaled(o, value.y, was.y));
    if (o.y_type == SPEC_DTYPE_F32) *(float2 *)((float *)o.y + i) = y;
    else if (o.y_type == SPEC_DTYPE_BF16) *(__nv_bfloat162 *)((__nv_bfloat16 *)o.y + i) = __floats2bfloat162_rn(y.x, y.y);
    else *(__half2 *)((__half *)o.y + i) = __floats2half2_rn(y.x, y.y);
    return y;
}

/* How a kernel divides its work. More is in flight, and steps are longer, where registers allow: what they do not hold goes
 * to memory, since shared memory leaves no L1. */
template <int GROUPS_, int TEAMS_, int N_, int DEPTH_, int SLABS_, int LENGTH_, int RESIDENT_, int PARTS_> struct many_form {
    enum {
        GROUPS = GROUPS_,     /* warpgroups of a team */
        TEAMS = TEAMS_,       /* of a block: each has its share of the block's parts */
        N = N_,               /* rows */
        DEPTH = DEPTH_,       /* steps of a warp's weights in flight, */
        SLABS = SLABS_,       /* and of a team's x */
        LENGTH = LENGTH_,     /* of a step, in slabs */
        RESIDENT = RESIDENT_, /* blocks on a multiprocessor */
        PARTS = PARTS_,       /* of K that a block has: 1, 2, 4 or 8 */

        BLOCKS = LINEAR_PARTS / PARTS, /* of the cluster */
        OWN = PARTS / TEAMS,           /* parts of a team */
        UNITS = BLOCKS * TEAMS,        /* teams that share an output */
        PIECES = OWN == 2 ? 2 : 1,     /* sums that a team makes: parts 2 and 3 are added to 0 and 1 one by one */
        WIDE = (N + SLAB_ROWS - 1) / SLAB_ROWS, /* slabs side by side */
        MINE = N / 8 / BLOCKS,         /* eights of rows that a block adds up and stores */
        WARPS = GROUPS * 4,            /* of a team */
        THREADS = WARPS * 32,
        ASIDE = OWN == LINEAR_PARTS ? N / 8 * THREADS : 0 /* float4: a block's sums of the first four parts, behind its slabs */
    };
};

/* A warp makes `share` of the 16 outputs that it has room for (with glu: of 8 gates and their ups); what its other registers
 * hold is not looked at. */
template <typename W, typename F, linear_more MORE>
static __global__ void __launch_bounds__(F::TEAMS * F::THREADS, F::RESIDENT)
linear_many_kernel(const spec_step_block *step, const void *w, int ld_w, const uint4 *x, int n_in, int share, linear_out o)
{
    typedef typename W::type T;
    constexpr int N = F::N, DEPTH = F::DEPTH, SLABS = F::SLABS, LENGTH = F::LENGTH, TEAMS = F::TEAMS, PARTS = F::PARTS;
    constexpr int BLOCKS = F::BLOCKS, OWN = F::OWN, UNITS = F::UNITS, PIECES = F::PIECES, MINE = F::MINE;
    constexpr int WARPS = F::WARPS, THREADS = F::THREADS;
    constexpr int STEP = LENGTH * W::STEP, STAGE = F::WIDE * LENGTH * SLAB; /* uint4: of a warp's weights, of x */
    constexpr int LAG = SLABS > 4 ? 2 : 1; /* steps that the slowest warp may be behind the first */
    constexpr bool NORMS = MORE != LINEAR_PLAIN, BEST = MORE == LINEAR_BEST, TWICE = MORE == LINEAR_SLABS;
    extern __shared__ __align__(128) char dynamic[];
    __shared__ uint64_t fulls[TEAMS][SLABS], empties[TEAMS][SLABS], met;
    __shared__ float factor[MINE * 8];
    const int team = TEAMS == 1 ? 0 : (int)threadIdx.x / THREADS, tid = (int)threadIdx.x - team * THREADS; /* of the team */
    const int warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    const int block = (int)blockIdx.x, part0 = block * PARTS + team * OWN, part_end = part0 + OWN;
    uint64_t *const full = fulls[team], *const empty = empties[team];

    /* --- 1: before the wait: barriers, and the first weights are on their way --- */
    grid_release();
    if (tid < SLABS) {
        barrier_init(&full[tid], 1);
        barrier_init(&empty[tid], WARPS);
        if (tid == 0 && team == 0) barrier_init(&met, TEAMS * WARPS);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); /* for the copies */
    }
    __syncthreads();
    const int n_row = step->n_row_run, row0 = (int)blockIdx.y * N;
    const int half = o.n_out / 2, n_y = o.glu ? half : o.n_out, m_warp = ((int)blockIdx.z * WARPS + warp) * share;
    const int k0 = part_begin(n_in, part0), n_step = (part_begin(n_in, part_end) - k0) / (64 * LENGTH);
    uint4 *const ring = (uint4 *)dynamic + (team * WARPS + warp) * DEPTH * STEP;
    uint4 *const slabs = (uint4 *)dynamic + TEAMS * WARPS * DEPTH * STEP + team * SLABS * STAGE; /* [SLABS][LENGTH][WIDE] */
    [[maybe_unused]] float4 *const aside = (float4 *)dynamic + TEAMS * (WARPS * DEPTH * STEP + SLABS * STAGE) + tid;

    /* A lane's two rows: two outputs side by side, with glu a gate and its up. */
    const int m = m_warp + (o.glu ? g : 2 * g), n_m = min(min(n_y, m_warp + share) - m, o.glu ? 1 : 2);
    const bool has[2] = { n_m > 0, n_m > (o.glu ? 0 : 1) };
    typename W::reader weights(w, ld_w, n_in, o, m, k0, lane);
    auto copy_w = [&](uint4 *to) {
#pragma unroll
        for (int i = 0; i < LENGTH; i++) weights.copy(to + i * W::STEP, has);
    };
#pragma unroll
    for (int s = 0; s < DEPTH; s++) {
        if (s < n_step && row0 < n_row) copy_w(ring + s * STEP);
        copy_commit();
    }
    const int sends = __popc(__ballot_sync(0xffffffffu, has[0])); /* lanes, of this warp in each block */
    if (BLOCKS > 1 && lane == 0) barrier_expect(&met, sends * (BLOCKS - 1) * MINE * PIECES * 16);
    grid_wait();
    if (row0 >= n_row) return;

    /* --- 2: behind the wait: the first slabs of x, the factors of a norm of x --- */
    const int n_slab = cuda_chunks(n_in) * (CUDA_CHUNK / 64); /* of a block of rows */
    const uint4 *const from_x = x + ((size_t)(row0 / 64) * n_slab + k0 / 64) * SLAB;
    auto copy_x = [&](int s) { /* of step s, when all have read what its slabs have held */
        const int slab = s % SLABS, n = min(F::WIDE, (n_row - row0 + 63) / 64); /* blocks of rows that there are */
        if (s >= SLABS) barrier_wait(&empty[slab], s / SLABS - 1 & 1);
        barrier_expect(&full[slab], n * LENGTH * SLAB * 16);
        constexpr int EACH = F::WIDE == 1 ? LENGTH : 1; /* that lie side by side */
#pragma unroll 1
        for (int i = 0; i < n; i++)
#pragma unroll
            for (int l = 0; l < LENGTH; l += EACH)
                copy_slabs(slabs + slab * STAGE + (l * F::WIDE + i) * SLAB,
                           from_x + ((size_t)i * n_slab + s * LENGTH + l) * SLAB, EACH, &full[slab]);
    };
#pragma unroll 1
    for (int s = warp; s < min(SLABS, n_step) && lane == 0; s += WARPS) copy_x(s);
    __syncwarp();
    const int mine0 = row0 + block * MINE * 8; /* rows that it stores */
    if (MORE == LINEAR_NORMS || (NORMS && o.norm.squares))
        norm_factors<TEAMS * WARPS, 1>(o.norm, factor, mine0, min(MINE * 8, n_row - mine0));
    else if (NORMS && threadIdx.x < MINE * 8) factor[threadIdx.x] = 1.0f;

    /* --- 3: the parts of K of this block and team, step after step --- */
    float total[PIECES][N / 2]; /* of the parts of a half */
    int slot = 0, s = 0;
    for (int part = part0; part < part_end; part++) {
        float acc[N / 2];
#pragma unroll
        for (int e = 0; e < N / 2; e++) acc[e] = 0.0f;
        for (const int end = (part_begin(n_in, part + 1) - k0) / (64 * LENGTH); s < end; s++) {
            const int slab = s % SLABS;
            if (lane == 0 && warp == s % WARPS && s >= LAG && s - LAG + SLABS < n_step) copy_x(s - LAG + SLABS);
            __syncwarp();
            copy_wait<DEPTH - 1>();
            barrier_wait(&full[slab], s / SLABS & 1);
            uint4 *const mine = ring + slot * STEP;
            weights.template multiply<N, LENGTH>(acc, mine, slabs + slab * STAGE, [&]() {
                if (s + DEPTH < n_step) copy_w(mine);
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
        if constexpr (F::ASIDE > 0) {
#pragma unroll
            for (int n = 0; n < N / 8 && part % 4 == 3; n++) {
                float *const sum = total[0] + n * 4;
                if (part == 3) {
                    aside[n * THREADS] = make_float4(sum[0], sum[1], sum[2], sum[3]);
                    continue;
                }
                const float4 first = aside[n * THREADS];
                sum[0] = first.x + sum[0], sum[1] = first.y + sum[1], sum[2] = first.z + sum[2], sum[3] = first.w + sum[3];
            }
        }
    }

    /* --- 4: the parts' sums meet in the block that stores them --- */
    /* The sums of a thread go to the same thread of the team that stores them: of block n / MINE, team n % TEAMS. */
    float4 *const sums = (float4 *)dynamic + tid; /* [BLOCKS][TEAMS][PIECES][MINE][THREADS], where weights and x were */
    if constexpr (BLOCKS == 1 || TEAMS > 1 || NORMS) __syncthreads();
    if constexpr (BLOCKS > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < PIECES * N / 8; i++) {
        const int n = i % (N / 8), piece = i / (N / 8);
        const float *const sum = total[piece] + n * 4;
        const float4 v = make_float4(sum[0], sum[1], sum[2], sum[3]);
        float4 *const to = sums + (((block * TEAMS + team) * PIECES + piece) * MINE + n % MINE) * THREADS;
        if (BLOCKS == 1 || n / MINE == block) *to = v;
        else if (has[0]) cluster_send(to, v, &met, n / MINE);
    }
    /* Of every 8 rows lane (g, t) has rows 2t and 2t + 1. */
    const int row = mine0 + 2 * t;
    size_t at = (size_t)(row + team * 8) * o.ld_y + m;
    const bool pairs = o.ld_y % 2 == 0 && (size_t)o.y % 8 == 0; /* m is even, without glu */
    float2 was[2] = {};                                         /* of either row */
    auto load_was = [&](int n) {
#pragma unroll
        for (int i = 0; i < 2; i++)
            if (o.add && n_m > 0 && row + n * 8 + i < n_row) was[i] = linear_was2(o, at + i * o.ld_y, n_m, pairs);
    };
    load_was(team);
    if constexpr (TEAMS > 1) __syncthreads();
    if constexpr (BLOCKS > 1) barrier_wait(&met, 0);
/* --- 5: outputs of eight rows after the other --- */
#pragma unroll 1
    for (int n = team; n < MINE; n += TEAMS) {
        /* Not known to be the same each time: the compiler would copy the loop for every kind of output, 60 KB. */
        asm volatile("" : "+l"(o.bias), "+r"(o.act), "+r"(o.glu), "+r"(o.add), "+r"(o.y_type));
        float v[UNITS * PIECES][4]; /* [output][row] */
#pragma unroll
        for (int k = 0; k < UNITS * PIECES; k++) *(float4 *)v[k] = sums[(k * MINE + n) * THREADS];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if constexpr (UNITS == 2) v[0][e] += v[1][e];
            if constexpr (UNITS * PIECES == LINEAR_PARTS) {
#pragma unroll
                for (int k = 1; k < 4; k++) v[0][e] += v[k][e], v[4][e] += v[4 + k][e];
                v[0][e] += v[4][e];
            }
        }
        unsigned long long best[2] = {}; /* of either row */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int r = row + n * 8 + i;
            if (r >= n_row || n_m <= 0) continue;
            const float f = !NORMS ? 1.0f : factor[n * 8 + 2 * t + i], a = f * v[0][i], b = f * v[0][2 + i];
            const float2 value = make_float2(linear_value(o, m, a, b), n_m == 2 ? linear_value(o, m + 1, b, 0.0f) : 0.0f);
            const float2 y = linear_put2(o, at + i * o.ld_y, n_m, pairs, value, was[i]);
            if (TWICE) put_arranged<T>(o.arranged, ORDER_SLABS, r, m, n_y, y.x);
            if (TWICE && n_m == 2) put_arranged<T>(o.arranged, ORDER_SLABS, r, m + 1, n_y, y.y);
            if (BEST) better(&best[i], y.x, m);
            if (BEST && n_m == 2) better(&best[i], y.y, m + 1);
        }
        if (BEST) { /* of the warp, in place of sums that only this thread has read */
#pragma unroll
            for (int i = 0; i < 2; i++) best[i] = lanes_best<16, 4>(best[i]);
            if (g == 0) *(ulonglong2 *)(sums + n * THREADS) = make_ulonglong2(best[0], best[1]);
        }
        at += TEAMS * 8 * (size_t)o.ld_y;
        if (n + TEAMS < MINE) load_was(n + TEAMS);
    }
    /* --- 6: the largest of each row --- */
    if (TWICE) slab_fence();
    if (BEST) {
        __syncthreads();
        if (team || tid >= MINE * 8 || mine0 + tid >= n_row) return;
        unsigned long long best = 0;
        for (int v = 0; v < WARPS; v++) {
            const float4 *const of_warp = (const float4 *)dynamic + tid / 8 * THREADS + v * 32 + tid % 8 / 2;
            best = max(best, ((const unsigned long long *)of_warp)[tid % 2]);
        }
        atomicMax(o.best + mine0 + tid, best);
    }
}

/* A way to divide a product: `warps` of a team and n rows for a block; the `blocks` of a cluster share the parts of K. */
struct many_way {
    void (*kernel)(const spec_step_block *step, const void *w, int ld_w, const uint4 *x, int n_in, int share, linear_out o);
    int warps, threads, n, blocks, resident, bytes, share;
};
template <typename W, linear_more MORE, typename F> static many_way make_way()
{
    constexpr int rings = F::TEAMS * F::WARPS * F::DEPTH * W::STEP, slabs = F::TEAMS * F::SLABS * F::WIDE * SLAB;
    constexpr int bytes = ((rings + slabs) * F::LENGTH + F::ASIDE) * 16;
    static_assert(F::UNITS * F::PIECES * F::MINE * F::THREADS * 16 <= bytes, "the sums take the place of weights and x");
    auto *kernel = linear_many_kernel<W, F, MORE>;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    return { kernel, F::WARPS, F::TEAMS * F::THREADS, F::N, F::BLOCKS, F::RESIDENT, bytes, 0 };
}
static dim3 many_grid(const many_way &w, int rows, int n_y)
{
    return dim3((unsigned)w.blocks, (unsigned)cuda_div_up(rows, w.n), (unsigned)cuda_div_up(n_y, w.warps * w.share));
}
static int many_blocks(const many_way &w, int rows, int n_y)
{
    const dim3 grid = many_grid(w, rows, n_y);
    return (int)(grid.x * grid.y * grid.z);
}

/* Sets the share of w's warps, and returns what w costs: the waves of blocks that a multiprocessor sees, each as long as the
 * weights that it has room for, and as 16 outputs of 4096 inputs for its start and end (a quarter more for each further block
 * beside it); with twice the rows half as long again, and twice (measured on an H200). Blocks that have all
 * of K, which take long, become as many as these waves hold; of others no more than need be: multiprocessors that are left over
 * begin with the next operation. */
static double fit_way(const spec_queue *q, const cuda_linear_args *a, int n_y, many_way *w)
{
    const int rows = q->shape.rows, less = a->glu ? 1 : 2; /* outputs are stored by two */
    const int at_once = w->blocks * clusters_at_once(q, w->kernel, w->blocks, w->threads, w->bytes);
    w->share = a->glu ? 8 : 16;
    const int blocks = many_blocks(*w, rows, n_y), waves = cuda_div_up(blocks, at_once);
    const int resident = min(w->resident, cuda_div_up((int64_t)blocks * w->resident, at_once));
    for (many_way other = *w; w->blocks == 1 && w->share > less; *w = other) {
        other.share -= less;
        if (cuda_div_up(many_blocks(other, rows, n_y), at_once) != waves) break;
    }
    const double weights = (double)w->warps * 16 * resident / w->blocks * a->n_in, ends = 4.0 * 4096.0 * (3 + resident);
    return waves * (w->n > SLAB_ROWS ? 1.5 * weights + 2.0 * ends : weights + ends);
}

/* Is w for so many rows? Others take another for less; and whatever the number, blocks of rows are whole slabs. */
static bool has_rows(const many_way &w, int rows) { return rows > w.n / 2 && (w.n >= SLAB_ROWS || rows <= w.n); }

/* The cheapest. */
template <typename W, linear_more MORE>
static many_way find_way(const spec_queue *q, const cuda_linear_args *a, int n_y)
{
    many_way best = {};
    double least = 0.0;
    for (many_way w : W::template ways<MORE>()) {
        if (!has_rows(w, q->shape.rows)) continue;
        const double cost = fit_way(q, a, n_y, &w);
        if (!best.kernel || cost < least) best = w, least = cost;
    }
    return best;
}

template <typename W, linear_more MORE>
static spec_status multiply(spec_queue *q, const cuda_linear_args *a, const linear_out &o, const uint16_t *slabs)
{
    const int n_y = o.glu ? o.n_out / 2 : o.n_out;
    const many_way way = find_way<W, MORE>(q, a, n_y);
    return cuda_launch(q, "linear", way.kernel, many_grid(way, q->shape.rows, n_y), dim3((unsigned)way.threads), (size_t)way.bytes,
                       (unsigned)way.blocks, q->d_step, a->w->data, a->w->ld, (const uint4 *)slabs, a->n_in, way.share, o);
}

template <typename W>
static spec_status linear_many(spec_queue *q, const cuda_linear_args *a, linear_out o, bool aligned, cuda_pass *pass)
{
    const uint16_t *slabs;
    SPEC_TRY(speci_cuda_slabs_of(q, a, pass, aligned, &slabs));
    if constexpr (W::finds_best)
        if (o.best) return multiply<W, LINEAR_BEST>(q, a, o, slabs);
    o.arranged = speci_cuda_arranged_for(q, pass, ORDER_SLABS, slabs);
    if (o.arranged) return multiply<W, LINEAR_SLABS>(q, a, o, slabs);
    if constexpr (std::is_same_v<typename W::type, __nv_bfloat16>) /* no norm is deferred in float16 */
        if (a->squares) return multiply<W, LINEAR_NORMS>(q, a, o, slabs);
    return multiply<W, LINEAR_PLAIN>(q, a, o, slabs);
}

#endif
