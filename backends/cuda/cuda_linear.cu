/* cuda_linear.cu - t = W x (+ bias); glu: t = act(t_gate) t_up, else t = act(t); y = scale t, or y += scale t.
 * W [n_out][ld] f32, bf16 or f16, rows padded with zeros to whole chunks; x [rows][n_in] of the same type;
 * y [rows][n_out] (n_out / 2 with glu) f32 or that type.
 *
 * Decode has own kernels, since a library changes its order of summation with the number of rows:
 *
 *   16 bit   W is the wide operand of the matrix instruction (m16n8k16, float32 accumulators), the rows of x the
 *            narrow one, padded to 8. The sums of 8 parts of K (cuda_linear.cuh), each in ascending order, 32 k at a
 *            time, make an element of the product: of one row of W and one of x, so no tiling and no division of the
 *            work changes a bit.
 *            Which k a lane's registers stand for is free as long as W and x agree: each lane takes 16 bytes, that is 8
 *            consecutive k, and these make two instructions.
 *            Three kernels: for up to 32 rows, for more (cuda_linear_many.cu), and for 17 to 32 rows of wide matrices
 *            (cuda_linear_part.cu). All begin to copy weights to shared memory before they wait for x, hence while the
 *            operations before them still run: that hides their latency.
 *            The first of them also makes what comes next, where that takes no more than its outputs: the terms of a
 *            deferred norm (cuda_norm.cuh), and up to 16 rows a convolution (cuda_conv.cuh).
 *   float32  One warp per output (two with glu), lanes stride K by 4 elements, fmaf, and a shuffle tree.
 *            This kernel can also do the 16-bit types (SPEC_CUDA_LINEAR_FMA=1): the readable twin of the other.
 *
 * Prefill uses cuBLAS (float32 sums, no TF32), then an epilogue over a float32 scratch where there is one to do; what
 * cuBLAS refuses runs through the decode kernels. */
#include <type_traits>

#include "cuda_linear.cuh"

#ifndef SPEC_CUDA_LINEAR_FMA
#define SPEC_CUDA_LINEAR_FMA 0
#endif

/* ------------------------------------------------------------------ 16 bit: matrix instruction --- */

enum {
    MMA_WARPS = LINEAR_PARTS,
    MMA_THREADS = MMA_WARPS * 32
};

/* --- few rows: weights streaming past ---
 * A block makes 16 outputs after 16 (with glu: 16 gates and their ups, MT 2) of NT tiles of 8 rows, a warp their sums for
 * one part of K; these meet in shared memory. Nothing else is shared: each lane reads only the weights that it copied to
 * its warp's ring. What it needs of x for a block of the ring is loaded to registers together with the block, that is
 * DEPTH blocks ahead: loads return in order, and one asked for later would wait for all the weights that were asked for
 * before it. X: how x lies; code for other ways would stand in the way of fetching the code that runs, as would what MORE adds.
 * With BEST each thread keeps the largest of its places of all tiles, and the block's largest go to memory at its end. With
 * CONV a tile's known inputs are on their way while the tile in front is multiplied, and the entities that are no rows are
 * divided among all blocks. */
enum few_x {
    X_ANY,  /* rows of any length, anywhere */
    X_ROWS, /* rows of whole blocks, at multiples of 16 bytes, as in most models */
    X_TILES /* such rows as tiles (cuda_linear.cuh); y goes to tiles as well where the product behind takes them */
};
template <int MT, int NT> struct few_block {
    enum { CHUNKS = MT == 1 && NT < 4 ? 4 : 2, SIZE = CHUNKS * MT * 2 * 32 /* uint4 */ };
    /* Blocks go on to their next tile, and read on while they add up. With glu each has one tile, whose sums take the
     * place of the rings: what is left is L1, which x of 32 rows needs. */
    enum { STAYS = MT == 1 };
};

/* Blocks that a multiprocessor has room for. */
static constexpr int few_blocks(int nt, int depth) { return nt == 1 && depth == 2 ? 3 : 2; }

template <typename T, int MT, int NT, int DEPTH, few_x X, linear_more MORE>
static __global__ void __launch_bounds__(MMA_THREADS, few_blocks(NT, DEPTH))
linear_few_kernel(const spec_step_block *step, const T *w, int ld_w, const T *x, int ld_x, int n_in, int aligned,
                  linear_out o, linear_extra<MORE> extra)
{
    constexpr int CHUNKS = few_block<MT, NT>::CHUNKS, BLOCK = few_block<MT, NT>::SIZE;
    constexpr int N = NT * 8, LD = MT * 16 + 4, K = CHUNKS * 32;
    constexpr bool STAYS = few_block<MT, NT>::STAYS, EARLY = MT == 1 && 16 * N <= MMA_THREADS;
    constexpr bool NORMS = MORE != LINEAR_PLAIN, NEXT = MORE == LINEAR_NORMS && MT == 1; /* of x; behind y */
    extern __shared__ __align__(16) char dynamic[];
    __shared__ float factor[N];
    __shared__ unsigned long long best[MORE == LINEAR_BEST ? 16 * N : 1]; /* by place in a tile: of one thread each */
    constexpr bool CONV = MORE == LINEAR_CONV;
    __shared__ __align__(16) char conv_memory[CONV ? sizeof(conv_rows<T, N>) : 16];
    conv_tiles<T, N> conv = { (conv_rows<T, N> *)conv_memory };
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    uint4 *ring = (uint4 *)dynamic + warp * DEPTH * BLOCK + lane;

    if (!extra.late) grid_release();
    const int row0 = (int)blockIdx.y * N;
    const bool rows = row0 == 0 || row0 < step->n_row_run; /* the first weights do not wait to be told */
    const int half = o.n_out / 2, m_end = o.glu ? half : o.n_out, tiles = (m_end + 15) / 16;
    const int k0 = part_begin(n_in, warp);
    const int n_block = rows ? (part_begin(n_in, warp + 1) - k0) / K : 0;
    const size_t stride = (size_t)gridDim.x * 16 * ld_w; /* from one of the block's tiles to the next */

    const uint64_t policy = read_once();
    const T *from[MT * 2];
#pragma unroll
    for (int i = 0; i < MT * 2; i++)
        from[i] = w + (size_t)((int)blockIdx.x * 16 + g + i % 2 * 8 + i / 2 * half) * ld_w + k0 + t * 8;
    auto copy_w = [&](int slot, size_t at) {
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int i = 0; i < MT * 2; i++) copy16(ring + slot * BLOCK + (c * MT * 2 + i) * 32, from[i] + at + c * 32, policy);
    };
    /* One block of the ring on its way at a time: what the kernels in front have still to read would queue behind more. */
#pragma unroll
    for (int s = 0; s < DEPTH; s++) {
        if (s < n_block) copy_w(s, (size_t)s * K);
        if constexpr (CONV)
            if (s == DEPTH - 1) conv.ask(extra.conv, extra.first, (int)blockIdx.x, 0);
        copy_commit();
        if constexpr (CONV)
            if (s == 0) conv.find(step, extra.conv, tid);
        if (s + 1 < DEPTH) copy_wait<0>();
    }
    const int n_row = step->n_row_run;
    if constexpr (CONV) {
        const int across = (extra.conv.n_channel + MMA_THREADS - 1) / MMA_THREADS;
#pragma unroll 1
        for (int i = (int)blockIdx.x; i < across * (CONV_PARTS + 1) * extra.seqs; i += (int)gridDim.x)
            conv_entity<T, 1>(step, extra.conv, 0, i / across, i % across * MMA_THREADS + tid);
    }
    grid_wait();
    if (row0 >= n_row) return copy_wait<0>();

    constexpr int PITCH = X == X_TILES ? TILE_ROWS : 1; /* from 32 k of a row to the next, in 64 bytes */
    const T *x_row[NT];
#pragma unroll
    for (int n = 0; n < NT; n++) { /* beyond the last row: not stored */
        const int row = min(row0 + n * 8 + g, n_row - 1);
        x_row[n] = x + (X == X_TILES ? tile_element(row, k0, n_in) : (size_t)row * ld_x + k0) + t * 8;
    }
    uint4 b[DEPTH][CHUNKS][NT];
    auto load_x = [&](int slot, int block) {
        const int left = n_in - k0 - t * 8 - block * K; /* columns from here on */
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int c = 0; c < CHUNKS; c++) {
                const T *at = x_row[n] + block * K * PITCH;
                b[slot][c][n] = X != X_ANY ? ((const uint4 *)at)[c * 4 * PITCH] : load_x8(at, c * 32, left, aligned);
            }
    };
#pragma unroll
    for (int s = 0; s < DEPTH; s++)
        if (s < n_block) load_x(s, s);
    if (extra.late) grid_release();
    if (NORMS && o.norm.squares) norm_factors<MMA_WARPS, NT == 1 ? 1 : 2>(o.norm, factor, row0, min(N, n_row - row0));

    for (int e = tid; MORE == LINEAR_BEST && e < 16 * N; e += MMA_THREADS) best[e] = 0;

    float *const sums = (float *)((uint4 *)dynamic + (STAYS ? MMA_WARPS * DEPTH * BLOCK : 0)); /* [warps][N][LD] */
    for (int tile = (int)blockIdx.x; tile < tiles; tile += (int)gridDim.x) {
        const bool more = tile + (int)gridDim.x < tiles;
        if constexpr (CONV)
            if (more) conv.ask(extra.conv, extra.first, tile + (int)gridDim.x, 1);
        const float next_weight = NEXT && o.next.weight ? o.next.weight[tile * 16 + tid % 16] : 0.0f;
        float was = 0.0f; /* what is added to, where a thread has one place */
        if (EARLY && o.add && tid < 16 * N && row0 + tid / 16 < n_row && tile * 16 + tid % 16 < m_end)
            was = ((const float *)o.y)[(size_t)(row0 + tid / 16) * o.ld_y + tile * 16 + tid % 16];
        float acc[MT][NT][4];
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) acc[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
        for (int block = 0; block < n_block; block += DEPTH) {
#pragma unroll
            for (int s = 0; s < DEPTH; s++) {
                if (block + s < n_block) {
                    copy_wait<DEPTH - 1>();
#pragma unroll
                    for (int c = 0; c < CHUNKS; c++) {
                        uint4 a[MT * 2];
#pragma unroll
                        for (int i = 0; i < MT * 2; i++) a[i] = ring[s * BLOCK + (c * MT * 2 + i) * 32];
#pragma unroll
                        for (int i = 0; i < MT; i++)
#pragma unroll
                            for (int n = 0; n < NT; n++) mma_chunk<T>(acc[i][n], a[2 * i], a[2 * i + 1], b[s][c][n]);
                    }
                    const bool same = block + s + DEPTH < n_block;
                    if (same || more) { /* the slot's next block, of this tile or the next */
                        const int next = same ? block + s + DEPTH : s;
                        copy_w(s, (same ? 0 : stride) + (size_t)next * K);
                        if (next != block + s) load_x(s, next); /* else the next tile's, which is there */
                    }
                }
                copy_commit();
            }
        }
#pragma unroll
        for (int i = 0; i < MT * 2; i++) from[i] += stride;

        /* Lane (g, t) holds outputs g and g + 8 of rows 2t and 2t + 1. */
        constexpr int WARP = N * LD;
        float *mine = sums + warp * WARP;
        if constexpr (CONV) { /* what conv.ask has asked for: DEPTH groups of weights or more are behind it, or none at all */
            if (n_block > 0) copy_wait<DEPTH>();
            else copy_wait_all();
        }
        __syncthreads(); /* the sums of the tile before have been read, or the rings */
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int n = 0; n < NT; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    mine[(n * 8 + 2 * t + e % 2) * LD + i * 16 + g + e / 2 * 8] = acc[i][n][e];
        auto half_sum = [&](const float *part) { return part[0] + part[WARP] + part[2 * WARP] + part[3 * WARP]; };
        auto sum = [&](const float *part) { return half_sum(part) + half_sum(part + 4 * WARP); };
        if constexpr (CONV) {
            const int r = tid / 16, m = tile * 16 + tid % 16, c = conv.channel(extra.conv, extra.first, tile);
            const bool there = tid < 16 * N && r < n_row && m < m_end;
            auto known = conv.known(extra.conv, tid, there && c >= 0);
            __syncthreads();
            float y = 0.0f;
            if (there) y = o.scale * linear_value(o, m, (o.norm.squares ? factor[r] : 1.0f) * sum(sums + r * LD + tid % 16), 0.0f);
            if (c >= 0) conv.store(extra.conv, known, c, tid, there, n_row == 1, y);
            if (there) store_any(o.y, o.y_type, (size_t)r * o.ld_y + m, y);
            conv.next();
            continue;
        }
        __syncthreads();
#pragma unroll 1
        for (int e = tid; e < 16 * N; e += MMA_THREADS) {
            const int m = tile * 16 + e % 16, r = e / 16;
            const bool there = row0 + r < n_row && m < m_end;
            const float *at = sums + r * LD + e % 16, of_row = NORMS && o.norm.squares ? factor[r] : 1.0f;
            float y = 0.0f;
            if (there && EARLY) {
                const float value = linear_value(o, m, of_row * sum(at), of_row * sum(at + (MT - 1) * 16));
                y = linear_put(o, (size_t)(row0 + r) * o.ld_y + m, value, was);
            } else if (there) {
                y = linear_store(o, row0 + r, m, of_row, sum(at), sum(at + (MT - 1) * 16));
            }
            if (NORMS) asm volatile("" : "+f"(y)); /* the compiler would copy the way here for products without a norm behind */
            if (NEXT && o.next.weight) norm_put<T>(o.next, row0 + r, m, y, next_weight, there);
            if constexpr (X == X_TILES) {
                if (there && o.arranged) put_arranged<T>(o.arranged, ORDER_TILES, row0 + r, m, m_end, y);
                if (NEXT && there && o.next.tiles)
                    put_arranged<T>(o.next.tiles, ORDER_TILES, row0 + r, m, m_end, y * next_weight);
            }
            if (MORE == LINEAR_BEST && there) better(&best[e], y, m);
        }
    }
#pragma unroll 1
    for (int e = tid; MORE == LINEAR_BEST && e < 16 * N; e += MMA_THREADS) {
        const unsigned long long found = lanes_best<8, 1>(best[e]);
        if (e % 16 == 0 && row0 + e / 16 < n_row) atomicMax(o.best + row0 + e / 16, found);
    }
}

template <typename T, int MT, int NT, int DEPTH, few_x X, linear_more MORE>
static spec_status launch_few_with(spec_queue *q, const spec_linear_args *a, const linear_out &o, int rows, bool aligned,
                                   const linear_extra<MORE> &extra = {})
{
    auto *kernel = linear_few_kernel<T, MT, NT, DEPTH, X, MORE>;
    constexpr bool STAYS = few_block<MT, NT>::STAYS;
    constexpr int RINGS = MMA_WARPS * DEPTH * few_block<MT, NT>::SIZE * 16, SUMS = MMA_WARPS * NT * 8 * (MT * 16 + 4) * 4;
    const size_t bytes = STAYS ? RINGS + SUMS : RINGS > SUMS ? RINGS : SUMS;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    const int tiles = cuda_div_up(o.n_out / MT, 16), room = STAYS ? few_blocks(NT, DEPTH) * q->dev->n_sm : tiles;
    const dim3 grid((unsigned)(tiles < room ? tiles : room), (unsigned)cuda_div_up(rows, NT * 8));
    return cuda_launch(q, "linear", kernel, grid, dim3(MMA_THREADS), bytes, 1, q->d_step, (const T *)a->w->data, a->w->ld,
                       (const T *)(X == X_TILES ? q->arranged_in.at : a->x.data), a->x.ld, a->n_in, (int)aligned, o, extra);
}

template <typename T, int MT, int NT, int DEPTH, few_x X>
static spec_status launch_few_deep(spec_queue *q, const spec_linear_args *a, const linear_out &o, int rows, bool aligned)
{
    if constexpr (MT == 1 && X != X_ANY)
        if (o.best) return launch_few_with<T, MT, NT, DEPTH, X, LINEAR_BEST>(q, a, o, rows, aligned);
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
        if (a->squares || o.next.weight)
            return launch_few_with<T, MT, NT, DEPTH, X, LINEAR_NORMS>(q, a, o, rows, aligned);
    return launch_few_with<T, MT, NT, DEPTH, X, LINEAR_PLAIN>(q, a, o, rows, aligned);
}

/* Copies in flight per warp: three where a part of K is as long as that; for more rows than 8 the registers allow two. */
static bool is_deep(const spec_linear_args *a) { return cuda_chunks(a->n_in) > 2 * LINEAR_PARTS; }
static int few_depth(const spec_linear_args *a, int nt) { return nt == 1 && is_deep(a) ? 3 : 2; }

/* Has the operation in front left x as tiles? */
static bool has_tiles(const spec_queue *q, const spec_linear_args *a)
{
    return q->arranged_in.of == a->x.data && q->shape.rows <= TILE_MOST;
}

template <typename T, int MT, int NT>
static spec_status launch_few(spec_queue *q, const spec_linear_args *a, const linear_out &o, int rows, bool aligned)
{
    constexpr int DEPTH = NT == 1 ? 3 : 2;
    if (!aligned || a->n_in % CUDA_CHUNK != 0) return launch_few_deep<T, MT, NT, 2, X_ANY>(q, a, o, rows, aligned);
    const bool deep = few_depth(a, NT) == DEPTH;
    if constexpr (NT < 4)
        if (has_tiles(q, a)) {
            linear_out also = o;
            if (!o.next.weight) also.arranged = speci_cuda_arranged_for(q, &a->y, o.glu ? o.n_out / 2 : o.n_out, q->arranged_in.at);
            return deep ? launch_few_deep<T, MT, NT, DEPTH, X_TILES>(q, a, also, rows, aligned)
                        : launch_few_deep<T, MT, NT, 2, X_TILES>(q, a, also, rows, aligned);
        }
    return deep ? launch_few_deep<T, MT, NT, DEPTH, X_ROWS>(q, a, o, rows, aligned)
                : launch_few_deep<T, MT, NT, 2, X_ROWS>(q, a, o, rows, aligned);
}

template <typename T>
static spec_status launch_mma(spec_queue *q, const spec_linear_args *a, const linear_out &o, int rows, bool aligned)
{
    if (speci_cuda_is_many(q, a)) return speci_cuda_linear_many(q, a, o, aligned);
    spec_status status = SPEC_OK;
    if (speci_cuda_linear_part(q, a, o, aligned, &status)) return status;
    if (rows > 16) return o.glu ? launch_few<T, 2, 4>(q, a, o, rows, aligned) : launch_few<T, 1, 4>(q, a, o, rows, aligned);
    if (rows > 8) return o.glu ? launch_few<T, 2, 2>(q, a, o, rows, aligned) : launch_few<T, 1, 2>(q, a, o, rows, aligned);
    return o.glu ? launch_few<T, 2, 1>(q, a, o, rows, aligned) : launch_few<T, 1, 1>(q, a, o, rows, aligned);
}

/* --------------------------------------------------------------------------- float32: FMA --- */

/* VEC consecutive elements from a 16-byte chunk. */
template <typename T> struct chunk16;
template <> struct chunk16<float> {
    enum { VEC = 4 };
    static __device__ __forceinline__ void unpack(float v[4], uint4 c)
    {
        v[0] = __uint_as_float(c.x), v[1] = __uint_as_float(c.y), v[2] = __uint_as_float(c.z), v[3] = __uint_as_float(c.w);
    }
};
template <typename T> struct chunk16 {
    enum { VEC = 8 };
    static __device__ __forceinline__ void unpack(float v[8], uint4 c)
    {
        const uint32_t w[4] = { c.x, c.y, c.z, c.w };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 f = unpack2<T>(w[i]);
            v[2 * i] = f.x, v[2 * i + 1] = f.y;
        }
    }
};

enum { FMA_WARPS = 4 };

/* A warp makes output m (MW 2: and m + n_out / 2, the up of a glu) of ROWS rows. Lane l takes the chunks l, l + 32, ...
 * of K in ascending order, one accumulator per output and row. */
template <typename T, int MW, int ROWS>
static __global__ void __launch_bounds__(FMA_WARPS * 32)
linear_fma_kernel(const spec_step_block *step, const T *__restrict__ w, int ld_w, const T *__restrict__ x, int ld_x,
                  int n_in, int aligned, linear_out o)
{
    constexpr int VEC = chunk16<T>::VEC, UNROLL = 4;
    grid_begin();
    const int n_row = step->n_row_run;
    const int row0 = (int)blockIdx.y * ROWS;
    if (row0 >= n_row) return;
    const int lane = (int)threadIdx.x % 32;
    const int m = (int)blockIdx.x * FMA_WARPS + (int)threadIdx.x / 32;
    if (m >= (MW == 2 ? o.n_out / 2 : o.n_out)) return;
    const T *w_row[MW];
#pragma unroll
    for (int i = 0; i < MW; i++) w_row[i] = w + (size_t)(m + i * (o.n_out / 2)) * ld_w;

    float acc[MW][ROWS];
#pragma unroll
    for (int i = 0; i < MW; i++)
#pragma unroll
        for (int r = 0; r < ROWS; r++) acc[i][r] = 0.0f;

    for (int k0 = lane * VEC; k0 < n_in; k0 += 32 * VEC * UNROLL) {
        uint4 c[UNROLL][MW];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
#pragma unroll
            for (int i = 0; i < MW; i++) {
                const int k = k0 + u * 32 * VEC;
                c[u][i] = make_uint4(0, 0, 0, 0);
                if (k < n_in) c[u][i] = load_weight16(w_row[i] + k);
            }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int k = k0 + u * 32 * VEC;
            if (k >= n_in) break;
            float wv[MW][VEC];
#pragma unroll
            for (int i = 0; i < MW; i++) chunk16<T>::unpack(wv[i], c[u][i]);
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (row0 + r >= n_row) break;
                const T *xr = x + (size_t)(row0 + r) * ld_x + k;
                float xv[VEC];
                if (aligned && k + VEC <= n_in) {
                    chunk16<T>::unpack(xv, *(const uint4 *)xr);
                } else {
#pragma unroll
                    for (int j = 0; j < VEC; j++) xv[j] = k + j < n_in ? to_f32(xr[j]) : 0.0f;
                }
#pragma unroll
                for (int i = 0; i < MW; i++)
#pragma unroll
                    for (int j = 0; j < VEC; j++) acc[i][r] = fmaf(wv[i][j], xv[j], acc[i][r]);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        if (row0 + r >= n_row) break;
        const float sum = warp_sum(acc[0][r]), factor = norm_factor(o.norm, row0 + r);
        const float up = MW == 2 ? warp_sum(acc[MW - 1][r]) : 0.0f;
        if (lane == 0) linear_store(o, row0 + r, m, factor, sum, up);
    }
}

template <typename T, int MW>
static spec_status launch_fma(spec_queue *q, const spec_linear_args *a, const linear_out &o, int rows, bool aligned)
{
    const int tile = rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8;
    auto *kernel = tile == 1   ? linear_fma_kernel<T, MW, 1>
                   : tile == 2 ? linear_fma_kernel<T, MW, 2>
                   : tile == 4 ? linear_fma_kernel<T, MW, 4>
                               : linear_fma_kernel<T, MW, 8>;
    const dim3 grid((unsigned)cuda_div_up(o.n_out / MW, FMA_WARPS), (unsigned)cuda_div_up(rows, tile));
    return cuda_launch(q, "linear", kernel, grid, dim3(FMA_WARPS * 32), 0, 1, q->d_step, (const T *)a->w->data, a->w->ld,
                       (const T *)a->x.data, a->x.ld, a->n_in, (int)aligned, o);
}

/* -------------------------------------------------------------------------------- prefill --- */

/* The epilogue over t [rows][n_out] in scratch. */
static __global__ void linear_epilogue_kernel(const spec_step_block *step, const float *t, int n_y, linear_out o)
{
    const int r = (int)blockIdx.y;
    grid_begin();
    if (r >= step->n_row_run) return;
    const float *row = t + (size_t)r * o.n_out;
    for (int m = (int)(blockIdx.x * blockDim.x + threadIdx.x); m < n_y; m += (int)(gridDim.x * blockDim.x))
        linear_store(o, r, m, 1.0f, row[m], o.glu ? row[m + n_y] : 0.0f);
}

static cudaDataType_t blas_type(spec_dtype t)
{
    return t == SPEC_DTYPE_F32 ? CUDA_R_32F : t == SPEC_DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* cuBLAS is column-major: there W is [n_in][n_out] to be transposed, x [n_in][rows], y [n_out][rows]. */
static cublasStatus_t linear_gemm(spec_queue *q, const spec_linear_args *a, void *y, cudaDataType_t y_type, int ld_y,
                                  float alpha, float beta)
{
    const cublasHandle_t blas = q->dev->blas;
    const cudaDataType_t type = blas_type(a->w->dtype);
    std::lock_guard<std::mutex> lock(q->dev->blas_lock);
    cublasStatus_t s = cublasSetStream(blas, q->stream);
    if (s == CUBLAS_STATUS_SUCCESS) s = cublasSetWorkspace(blas, q->blas_workspace, q->blas_bytes); /* the stream resets it */
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    return cublasGemmEx(blas, CUBLAS_OP_T, CUBLAS_OP_N, a->n_out, q->n_row_run, a->n_in, &alpha, a->w->data, type, a->w->ld,
                        a->x.data, type, a->x.ld, &beta, y, y_type, ld_y, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

/* Returns false where the library does not take the case; the decode kernels then do it. */
static bool linear_blas(spec_queue *q, const spec_linear_args *a, const linear_out &o, spec_status *status)
{
    const int rows = q->n_row_run;
    const bool direct = !a->bias && !a->glu && a->act == SPEC_ACT_NONE;
    if (!q->blas_bytes || (!direct && (size_t)rows * a->n_out > q->linear_floats)) return false;
    const cublasStatus_t s =
        direct ? linear_gemm(q, a, a->y.data, blas_type(a->y.dtype), a->y.ld, a->scale, a->add ? 1.0f : 0.0f)
               : linear_gemm(q, a, q->linear_scratch, CUDA_R_32F, a->n_out, 1.0f, 0.0f);
    if (s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE) {
        (void)cudaGetLastError();
        return false;
    }
    if (s != CUBLAS_STATUS_SUCCESS) {
        *status = q->dev->host->fail(SPEC_E_DEVICE, "cuda linear: cuBLAS: %s", cublasGetStatusString(s));
        return true;
    }
    if (!direct) {
        const int n_y = a->glu ? a->n_out / 2 : a->n_out;
        const int blocks = cuda_div_up(n_y, 1024);
        *status = cuda_launch(q, "linear prefill", linear_epilogue_kernel, dim3((unsigned)blocks, (unsigned)rows), dim3(256),
                              0, 1, q->d_step, q->linear_scratch, n_y, o);
        return true;
    }
    *status = cuda_launched(q, "linear prefill");
    return true;
}

size_t speci_cuda_linear_floats(const spec_linear_args *a, const spec_plan *plan)
{
    if (a->w && a->w->q8) return speci_cuda_q8_floats(a, plan);
    if (plan->phase != SPEC_PHASE_PREFILL) return speci_cuda_arranged_floats(a, plan);
    if (!a->bias && !a->glu && a->act == SPEC_ACT_NONE) return 0;
    return (size_t)plan->n_row_max * (size_t)a->n_out;
}

/* ------------------------------------------------------------------------------- launcher --- */

spec_status speci_cuda_check_linear(spec_device *dev, const spec_linear_args *a)
{
    if (a->n_in < 1 || a->n_out < 1 || (a->glu && a->n_out % 2))
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: weight of %d x %d%s", a->n_out, a->n_in,
                               a->glu ? " with glu" : "");
    if (a->act < SPEC_ACT_NONE || a->act > SPEC_ACT_RELU)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: activation %d is not known", (int)a->act);
    if (!cuda_is_float(a->x.dtype) || (a->y.dtype != SPEC_DTYPE_F32 && a->y.dtype != a->x.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: x is type %d, y is type %d", (int)a->x.dtype,
                               (int)a->y.dtype);
    if (a->add && a->y.dtype != SPEC_DTYPE_F32)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: what is added to must be f32");
    if (a->w && (a->w->n_in != a->n_in || a->w->n_out != a->n_out))
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: weight is %d x %d, expected %d x %d", a->w->n_out,
                               a->w->n_in, a->n_out, a->n_in);
    if (a->w && a->w->dtype != a->x.dtype)
        return dev->host->fail(SPEC_E_INVALID, "cuda linear: weight is type %d, x is type %d", (int)a->w->dtype,
                               (int)a->x.dtype);
    if (a->best && (a->glu || a->add || a->y.dtype != SPEC_DTYPE_F32))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: the largest of rows that are added to, glu or not f32");
    if (a->squares && (a->n_in % SPEC_SQUARES || a->x.dtype == SPEC_DTYPE_F16))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda linear: a deferred norm of %d columns, x of type %d", a->n_in,
                               (int)a->x.dtype);
    return SPEC_OK;
}

static bool linear_aligned(const spec_linear_args *a)
{
    return cuda_aligned(a->x.data, 16) && (size_t)a->x.ld * cuda_size(a->x.dtype) % 16 == 0;
}

/* Are the kernels those of 16-bit weights, with x as in most models (X_ROWS)? What they do besides they do there. */
static bool has_whole(const spec_queue *q, const spec_linear_args *a)
{
    return !SPEC_CUDA_LINEAR_FMA && q->shape.phase == SPEC_PHASE_DECODE && !a->w->q8 && cuda_size(a->w->dtype) == 2 &&
           linear_aligned(a) && a->n_in % CUDA_CHUNK == 0;
}

size_t speci_cuda_order_floats(const spec_linear_args *a, int rows)
{
    const int block = rows > LINEAR_FEW ? (int)SLAB_ROWS : (int)TILE_ROWS;
    return (size_t)cuda_div_up(rows, block) * block * (size_t)cuda_chunks(a->n_in) * CUDA_CHUNK / 2;
}
size_t speci_cuda_arranged_floats(const spec_linear_args *a, const spec_plan *plan)
{
    const bool some = plan->phase == SPEC_PHASE_DECODE && cuda_size(a->x.dtype) == 2 && plan->n_row_max >= TILE_LEAST;
    return some ? speci_cuda_order_floats(a, plan->n_row_max) : 0;
}

uint16_t *speci_cuda_arranged_for(spec_queue *q, const spec_view *y, int n, const uint16_t *read)
{
    const spec_linear_args *const next = q->next;
    const int other = read == q->arranged[0], rows = q->shape.rows;
    if (!next || !next->w || next->w->q8 || next->x.data != y->data || next->x.ld != y->ld || next->x.dtype != y->dtype ||
        next->n_in != n || n % CUDA_CHUNK != 0 || q->arranged_floats[other] < speci_cuda_order_floats(next, q->n_row_run))
        return NULL;
    const bool tiles = rows >= TILE_LEAST && rows <= TILE_MOST && has_whole(q, next);
    if (!tiles && (q->shape.phase != SPEC_PHASE_DECODE || !speci_cuda_is_many(q, next))) return NULL;
    q->arranged_out.of = y->data, q->arranged_out.at = q->arranged[other];
    return q->arranged_out.at;
}

static spec_status multiply(spec_queue *q, const spec_linear_args *a, const linear_out &o)
{
    spec_status status = SPEC_OK;
    if (a->w->q8) return speci_cuda_linear_q8(q, a);
    if (q->shape.phase == SPEC_PHASE_PREFILL && linear_blas(q, a, o, &status)) return status;
    const int rows = q->shape.rows;
    const bool aligned = linear_aligned(a);
    return cuda_by_dtype(a->w->dtype, [&](auto tag) {
        using T = decltype(tag);
        if constexpr (sizeof(T) == 4 || SPEC_CUDA_LINEAR_FMA)
            return o.glu ? launch_fma<T, 2>(q, a, o, rows, aligned) : launch_fma<T, 1>(q, a, o, rows, aligned);
        else
            return launch_mma<T>(q, a, o, rows, aligned);
    });
}

spec_status speci_cuda_linear(spec_queue *q, const spec_linear_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "linear"));
    SPEC_TRY(speci_cuda_check_linear(q->dev, a));
    if (!a->w) return q->dev->host->fail(SPEC_E_INVALID, "cuda linear: no weight");
    if (q->shape.phase == SPEC_PHASE_PREFILL && a->squares)
        return q->dev->host->fail(SPEC_E_INVALID, "cuda linear: a deferred norm in a prefill pass");
    linear_out o = linear_out_of(a);
    const bool within = a->best && has_whole(q, a); /* else the rows are read again */
    if (within) o.best = (unsigned long long *)a->best;
    SPEC_TRY(multiply(q, a, o));
    return a->best && !within ? speci_cuda_row_best(q, &a->y, a->n_out, a->best) : SPEC_OK;
}

/* The kernel for few rows can do a deferred norm of y. */
bool speci_cuda_linear_norm(spec_queue *q, const spec_linear_args *a, const spec_norm_args *norm, spec_status *status)
{
    if (SPEC_CUDA_LINEAR_FMA || q->shape.phase != SPEC_PHASE_DECODE || q->shape.rows > LINEAR_FEW || !a->w || a->w->q8 ||
        a->x.dtype != SPEC_DTYPE_BF16 || !a->add || !norm_follows(norm, &a->y, a->n_out, a->x.dtype))
        return false;
    if ((*status = cuda_enter_op(q, "linear")) != SPEC_OK || (*status = speci_cuda_check_linear(q->dev, a)) != SPEC_OK ||
        (*status = speci_cuda_check_norm(q->dev, norm)) != SPEC_OK)
        return true;
    linear_out o = linear_out_of(a);
    o.next = norm_out_of(norm);
    if (has_tiles(q, a)) o.next.tiles = speci_cuda_arranged_for(q, &norm->y, norm->dim, q->arranged_in.at);
    *status = launch_mma<__nv_bfloat16>(q, a, o, q->shape.rows, linear_aligned(a));
    return true;
}

/* --- and the convolution of what it makes --- */

template <typename T, few_x X>
static spec_status launch_conv(spec_queue *q, const spec_linear_args *a, const linear_extra<LINEAR_CONV> &extra)
{
    const int rows = q->shape.rows;
    const linear_out o = linear_out_of(a);
    if (rows > 8) return launch_few_with<T, 1, 2, 2, X>(q, a, o, rows, true, extra);
    return few_depth(a, 1) == 3 ? launch_few_with<T, 1, 1, 3, X>(q, a, o, rows, true, extra)
                                : launch_few_with<T, 1, 1, 2, X>(q, a, o, rows, true, extra);
}
template <typename T>
static spec_status launch_conv(spec_queue *q, const spec_linear_args *a, const linear_extra<LINEAR_CONV> &extra)
{
    return has_tiles(q, a) ? launch_conv<T, X_TILES>(q, a, extra) : launch_conv<T, X_ROWS>(q, a, extra);
}

/* Are the convolution's inputs whole tiles of y? */
static bool conv_follows(const spec_linear_args *a, const spec_conv_args *conv, int *first)
{
    const ptrdiff_t bytes = (const char *)conv->u.data - (const char *)a->y.data, size = (ptrdiff_t)cuda_size(a->y.dtype);
    *first = (int)(bytes / size);
    return conv->u.dtype == a->y.dtype && conv->u.ld == a->y.ld && bytes >= 0 && bytes < a->n_out * size &&
           *first % CONV_TILE == 0 && conv->n_channel % CONV_TILE == 0 && *first + conv->n_channel <= a->n_out;
}

/* Is a kernel for both faster? Measured, not reasoned (docs/performance.md): where the blocks of all tiles are resident at
 * once, two on each multiprocessor or more, they end together, and what the scan does before its wait stands alone, where a
 * convolution between would hide it; likewise what stands before a scan of more than four rows that is not next, in large
 * models. */
static bool conv_pays(const spec_queue *q, const spec_linear_args *a, bool scan_next)
{
    const int rows = q->shape.rows, nt = rows > 8 ? 2 : 1, tiles = cuda_div_up(a->n_out, 16), n_sm = q->dev->n_sm;
    if (is_deep(a) && rows > 4 && !scan_next) return false;
    return tiles < 2 * n_sm || tiles > few_blocks(nt, few_depth(a, nt)) * n_sm;
}

/* The kernel for few rows has up to 16 in one tile, so whoever stores a channel's inputs has all of them. */
bool speci_cuda_linear_conv(spec_queue *q, const spec_linear_args *a, const spec_conv_args *conv, bool scan_next, spec_status *status)
{
    linear_extra<LINEAR_CONV> extra = { *conv, 0, q->shape.seqs, !scan_next && q->shape.rows > 2 };
    if (!a->w || !has_whole(q, a) || q->shape.rows > 16 || a->glu || a->add || a->best || conv->dtype != a->x.dtype ||
        conv->width != CONV_WIDTH_MAX || !cuda_aligned(conv->weight, 16) || !cuda_aligned(conv->bias, 16) ||
        !cuda_aligned(conv->window, 16) || !cuda_aligned(conv->cache, 16) || !conv_follows(a, conv, &extra.first) ||
        !conv_pays(q, a, scan_next))
        return false;
    if ((*status = cuda_enter_op(q, "linear")) != SPEC_OK || (*status = speci_cuda_check_linear(q->dev, a)) != SPEC_OK ||
        (*status = speci_cuda_check_conv(q->dev, conv)) != SPEC_OK)
        return true;
    *status = a->x.dtype == SPEC_DTYPE_BF16 ? launch_conv<__nv_bfloat16>(q, a, extra) : launch_conv<__half>(q, a, extra);
    return true;
}
