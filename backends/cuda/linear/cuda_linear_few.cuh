/* cuda_linear_few.cuh - products of few rows in decode passes: weights streaming past (cuda_linear.cu tells what is computed).
 *
 * W names what weights are made of: elements of a 16-bit type (cuda_linear.cu), blocks of Q8_0 (cuda_linear_q8.cu), or others
 * (cuda_linear_blocks.cu). It has
 *   type               of x
 *   deep_glu           products with glu may have three copies in flight
 *   unpacks            a lane unpacks weights, which takes registers, and longer than reading them
 *   reader<MT, CHUNKS> of MT strips of 16 outputs: how a lane asks for its part of a block of the ring, CHUNKS times 32 k of
 *                      each strip, and multiplies it. SIZE: uint4 of a block
 * What is asked for and how it is summed is the reader's; which blocks when, x, and what becomes of the sums, is here. */
#ifndef SPEC_CUDA_LINEAR_FEW_CUH
#define SPEC_CUDA_LINEAR_FEW_CUH

#include <type_traits>

#include "backends/cuda/linear/cuda_linear.cuh"

enum {
    MMA_WARPS = LINEAR_PARTS,
    MMA_THREADS = MMA_WARPS * 32
};

/* A block makes 16 outputs after 16 (with glu: 16 gates and their ups, MT 2) of NT tiles of 8 rows, a warp their sums for
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
template <typename W, int MT, int NT> struct few_block {
    enum { CHUNKS = MT == 1 && NT < 4 ? 4 : 2 };
    /* Blocks go on to their next tile, and read on while they add up. With glu each has one tile, whose sums take the
     * place of the rings: what is left is L1, which x of 32 rows needs. What unpacks 8 rows has nothing to gain from L1. */
    enum { STAYS = MT == 1 || (NT == 1 && W::unpacks) };
};

/* Blocks that a multiprocessor has room for. A third leaves too few registers to unpack with. */
template <typename W> static constexpr int few_blocks(int nt, int depth) { return nt == 1 && depth == 2 && !W::unpacks ? 3 : 2; }

/* Entities of the convolution that are no rows (cuda_conv.cuh): a block takes MMA_THREADS channels of one at a time, so many across; and
 * how many that are in all. */
static __host__ __device__ __forceinline__ int conv_across(const linear_extra<LINEAR_CONV> &extra)
{
    return (extra.conv.n_channel + MMA_THREADS - 1) / MMA_THREADS;
}
static __device__ __forceinline__ int conv_entities(const linear_extra<LINEAR_CONV> &extra)
{
    return conv_across(extra) * extra.seqs * (extra.parts + 1);
}

template <typename W, int MT, int NT, int DEPTH, few_x X, linear_more MORE>
static __global__ void __launch_bounds__(MMA_THREADS, few_blocks<W>(NT, DEPTH))
linear_few_kernel(const spec_step_block *step, const void *w, int ld_w, const typename W::type *x, int ld_x, int n_in, int aligned,
                  linear_out o, linear_extra<MORE> extra)
{
    typedef typename W::type T;
    typedef typename W::template reader<MT, few_block<W, MT, NT>::CHUNKS> reader;
    constexpr int CHUNKS = few_block<W, MT, NT>::CHUNKS, BLOCK = reader::SIZE;
    constexpr int N = NT * 8, LD = MT * 16 + 4, K = CHUNKS * 32;
    constexpr bool STAYS = few_block<W, MT, NT>::STAYS, EARLY = MT == 1 && 16 * N <= MMA_THREADS;
    constexpr bool NORMS = MORE != LINEAR_PLAIN, NEXT = MORE == LINEAR_NORMS && MT == 1; /* of x; behind y */
    extern __shared__ __align__(16) char dynamic[];
    __shared__ float factor[N];
    __shared__ unsigned long long best[MORE == LINEAR_BEST ? 16 * N : 1]; /* by place in a tile: of one thread each */
    constexpr bool CONV = MORE == LINEAR_CONV;
    constexpr bool REST = CONV && NT > 1; /* entries by conv_rest: they hide behind fewer rows, whose code is shorter without it */
    __shared__ __align__(16) char conv_memory[CONV ? sizeof(conv_rows<T, N>) : 16];
    conv_tiles<T, N> conv = { (conv_rows<T, N> *)conv_memory };
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, g = lane / 4, t = lane % 4;
    uint4 *const ring = (uint4 *)dynamic + warp * DEPTH * BLOCK;

    /* --- 1: before the wait: the first weights are on their way, and the convolution's known inputs --- */
    if (!extra.late) grid_release();
    const int row0 = (int)blockIdx.x * N;
    const bool rows = row0 == 0 || row0 < step->n_row_run; /* the first weights do not wait to be told */
    const int half = o.n_out / 2, m_end = o.glu ? half : o.n_out, tiles = (m_end + 15) / 16;
    const int k0 = part_begin(n_in, warp);
    const int n_block = rows ? (part_begin(n_in, warp + 1) - k0) / K : 0;
    reader weights(w, ld_w, n_in, half, k0, lane);
    /* One block of the ring on its way at a time: what the kernels in front have still to read would queue behind more. */
    if constexpr (!REST) {
#pragma unroll
        for (int s = 0; s < DEPTH; s++) {
            if (s < n_block) weights.copy(ring + s * BLOCK, s, false);
            if constexpr (CONV)
                if (s == DEPTH - 1) conv.ask(extra.conv, extra.first, (int)blockIdx.y, 0);
            copy_commit();
            if constexpr (CONV)
                if (s == 0) conv.find(step, extra.conv, NULL, 0, tid);
            if (s + 1 < DEPTH) copy_wait<0>();
        }
    } else {
        if (n_block > 0) weights.copy(ring, 0, false);
        copy_commit();
        /* What an entry asks for is on its way while the rows' ancestors are found. */
        const int across = conv_across(extra), entities = conv_entities(extra);
        conv_rest<T> rest = { step, extra.conv, extra.ancestors, extra.parts, extra.seqs };
        int i = (int)blockIdx.y, turn = 0;
        rest.ask(i / across, turn, i % across * MMA_THREADS + tid);
        conv.find(step, extra.conv, extra.ancestors, extra.seqs, tid);
#pragma unroll
        for (int s = 1; s < DEPTH; s++) { /* the rows' inputs, which are few, wait for no weights but those that wait */
            if (s < n_block) {
                copy_wait<0>();
                weights.copy(ring + s * BLOCK, s, false);
            }
            if (s == DEPTH - 1) conv.ask(extra.conv, extra.first, (int)blockIdx.y, 0);
            copy_commit();
        }
        for (;;) {
            rest.put(i % across * MMA_THREADS + tid);
            turn++;
            if (!rest.more) i += (int)gridDim.y, turn = 0;
            if (i >= entities) break;
            rest.ask(i / across, turn, i % across * MMA_THREADS + tid);
        }
    }
    const int n_row = step->n_row_run;
    if constexpr (CONV && !REST) {
        const int across = conv_across(extra), entities = conv_entities(extra);
#pragma unroll 1
        for (int i = (int)blockIdx.y; i < entities; i += (int)gridDim.y)
            conv_entity<T, 1>(step, extra.conv, 0, extra.parts, i / across, i % across * MMA_THREADS + tid);
    }
    grid_wait();
    if (row0 >= n_row) return copy_wait<0>();

    /* --- 2: behind the wait: x to registers, the factors of a norm of x --- */
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

    /* --- 3: tile after tile --- */
    float *const sums = (float *)((uint4 *)dynamic + (STAYS ? MMA_WARPS * DEPTH * BLOCK : 0)); /* [warps][N][LD] */
    for (int tile = (int)blockIdx.y; tile < tiles; tile += (int)gridDim.y) {
        const bool more = tile + (int)gridDim.y < tiles;
        if constexpr (CONV)
            if (more) conv.ask(extra.conv, extra.first, tile + (int)gridDim.y, 1);
        const float next_weight = NEXT && o.next.weight ? o.next.weight[tile * 16 + tid % 16] : 0.0f;
        float was = 0.0f; /* what is added to, where a thread has one place */
        if (EARLY && o.add && tid < 16 * N && row0 + tid / 16 < n_row && tile * 16 + tid % 16 < m_end)
            was = ((const float *)o.y)[(size_t)(row0 + tid / 16) * o.ld_y + tile * 16 + tid % 16];
        /* --- 3a: a part of K for each warp, weights streaming through its ring --- */
        float acc[MT][NT][4];
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) acc[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f;
        for (int block = 0; block < n_block; block += DEPTH) {
#pragma unroll
            for (int s = 0; s < DEPTH; s++) {
                if (block + s < n_block) {
                    copy_wait<DEPTH - 1>();
                    weights.multiply(acc, ring + s * BLOCK, b[s]);
                    const bool same = block + s + DEPTH < n_block;
                    if (same || more) { /* the slot's next block, of this tile or the next */
                        const int next = same ? block + s + DEPTH : s;
                        weights.copy(ring + s * BLOCK, next, !same);
                        if (next != block + s) load_x(s, next); /* else the next tile's, which is there */
                    }
                }
                copy_commit();
            }
        }
        weights.go_on();

        /* --- 3b: the parts' sums meet in shared memory --- */
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
        /* --- 3c: outputs of a tile, and what is made behind them: convolution, norm, the largest --- */
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
/* --- 4: the largest of each row --- */
#pragma unroll 1
    for (int e = tid; MORE == LINEAR_BEST && e < 16 * N; e += MMA_THREADS) {
        const unsigned long long found = lanes_best<8, 1>(best[e]);
        if (e % 16 == 0 && row0 + e / 16 < n_row) atomicMax(o.best + row0 + e / 16, found);
    }
}

/* An entry of the convolution takes as long as all else that a block does before it waits. Where a tree may have many nodes fed before,
 * each block gets one, if there are enough. */
static int conv_parts(const linear_extra<LINEAR_CONV> &extra, int rows, int blocks)
{
    const int each = conv_across(extra) * extra.seqs, most = blocks / each - 1;
    return rows > CONV_FEW * extra.seqs && most > CONV_PARTS ? most : (int)CONV_PARTS;
}

template <typename W, int MT, int NT, int DEPTH, few_x X, linear_more MORE>
static spec_status launch_few_with(spec_queue *q, const cuda_linear_args *a, const linear_out &o, int rows, bool aligned,
                                   const cuda_pass *pass, linear_extra<MORE> extra = {})
{
    typedef typename W::type T;
    auto *kernel = linear_few_kernel<W, MT, NT, DEPTH, X, MORE>;
    constexpr bool STAYS = few_block<W, MT, NT>::STAYS;
    constexpr int BLOCK = W::template reader<MT, few_block<W, MT, NT>::CHUNKS>::SIZE;
    constexpr int RINGS = MMA_WARPS * DEPTH * BLOCK * 16, SUMS = MMA_WARPS * NT * 8 * (MT * 16 + 4) * 4;
    const size_t bytes = STAYS ? RINGS + SUMS : RINGS > SUMS ? RINGS : SUMS;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    const int tiles = cuda_div_up(o.n_out / MT, 16), turns = cuda_div_up(rows, NT * 8);
    const int room = STAYS ? max(1, few_blocks<W>(NT, DEPTH) * q->dev->n_sm / turns) : tiles;
    const dim3 grid((unsigned)turns, (unsigned)(tiles < room ? tiles : room)); /* blocks with the same weights side by side */
    if constexpr (MORE == LINEAR_CONV) extra.parts = conv_parts(extra, rows, (int)grid.y);
    return cuda_launch(q, "linear", kernel, grid, dim3(MMA_THREADS), bytes, 1, q->d_step, a->w->data, a->w->ld,
                       (const T *)(X == X_TILES ? pass->in.at : a->x.data), a->x.ld, a->n_in, (int)aligned, o, extra);
}

template <typename W, int MT, int NT, int DEPTH, few_x X>
static spec_status launch_few_deep(spec_queue *q, const cuda_linear_args *a, const linear_out &o, int rows, bool aligned,
                                   const cuda_pass *pass)
{
    if constexpr (MT == 1 && X != X_ANY)
        if (o.best) return launch_few_with<W, MT, NT, DEPTH, X, LINEAR_BEST>(q, a, o, rows, aligned, pass);
    if constexpr (std::is_same_v<typename W::type, __nv_bfloat16>)
        if (a->squares || o.next.weight)
            return launch_few_with<W, MT, NT, DEPTH, X, LINEAR_NORMS>(q, a, o, rows, aligned, pass);
    return launch_few_with<W, MT, NT, DEPTH, X, LINEAR_PLAIN>(q, a, o, rows, aligned, pass);
}

/* Copies in flight per warp: three where a part of K is as long as that (of Q8_0 with glu two are faster, measured); for more
 * rows than 8 the registers allow two, and so does a device with less shared memory than a block of three takes. */
enum { FEW_DEEP_BYTES = 102 << 10 };
static bool is_deep(const cuda_linear_args *a) { return cuda_chunks(a->n_in) > 2 * LINEAR_PARTS; }
template <typename W> static int few_depth(const spec_queue *q, const cuda_linear_args *a, int nt)
{
    const bool room = q->dev->shared_most >= FEW_DEEP_BYTES;
    return nt == 1 && room && is_deep(a) && (W::deep_glu || !a->glu) ? 3 : 2;
}

/* Has the operation in front left x as tiles? */
static bool has_tiles(const cuda_pass *pass, const spec_linear_args *a)
{
    return pass->in.of == a->x.data && pass->in.order == ORDER_TILES;
}

template <typename W, int MT, int NT>
static spec_status launch_few(spec_queue *q, const cuda_linear_args *a, const linear_out &o, int rows, bool aligned, cuda_pass *pass)
{
    constexpr int DEPTH = NT == 1 ? 3 : 2;
    if (!aligned || a->n_in % CUDA_CHUNK != 0) return launch_few_deep<W, MT, NT, 2, X_ANY>(q, a, o, rows, aligned, pass);
    const bool deep = few_depth<W>(q, a, NT) == DEPTH;
    if (has_tiles(pass, a)) {
        linear_out also = o;
        if (!o.next.weight) also.arranged = speci_cuda_arranged_for(q, pass, ORDER_TILES, pass->in.at);
        return deep ? launch_few_deep<W, MT, NT, DEPTH, X_TILES>(q, a, also, rows, aligned, pass)
                    : launch_few_deep<W, MT, NT, 2, X_TILES>(q, a, also, rows, aligned, pass);
    }
    return deep ? launch_few_deep<W, MT, NT, DEPTH, X_ROWS>(q, a, o, rows, aligned, pass)
                : launch_few_deep<W, MT, NT, 2, X_ROWS>(q, a, o, rows, aligned, pass);
}

template <typename W>
static spec_status linear_few(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass)
{
    const int rows = q->shape.rows;
    if (rows > 16) return o.glu ? launch_few<W, 2, 4>(q, a, o, rows, aligned, pass) : launch_few<W, 1, 4>(q, a, o, rows, aligned, pass);
    if (rows > 8) return o.glu ? launch_few<W, 2, 2>(q, a, o, rows, aligned, pass) : launch_few<W, 1, 2>(q, a, o, rows, aligned, pass);
    return o.glu ? launch_few<W, 2, 1>(q, a, o, rows, aligned, pass) : launch_few<W, 1, 1>(q, a, o, rows, aligned, pass);
}

/* --- and the convolution of what it makes --- */

template <typename W, few_x X>
static spec_status launch_conv(spec_queue *q, const cuda_linear_args *a, const linear_extra<LINEAR_CONV> &extra, const cuda_pass *pass)
{
    const int rows = q->shape.rows;
    const linear_out o = linear_out_of(a);
    if (rows > 8) return launch_few_with<W, 1, 2, 2, X>(q, a, o, rows, true, pass, extra);
    return few_depth<W>(q, a, 1) == 3 ? launch_few_with<W, 1, 1, 3, X>(q, a, o, rows, true, pass, extra)
                                : launch_few_with<W, 1, 1, 2, X>(q, a, o, rows, true, pass, extra);
}
template <typename W>
static spec_status linear_few_conv(spec_queue *q, const cuda_linear_args *a, const linear_extra<LINEAR_CONV> &extra, const cuda_pass *pass)
{
    return has_tiles(pass, a) ? launch_conv<W, X_TILES>(q, a, extra, pass) : launch_conv<W, X_ROWS>(q, a, extra, pass);
}

#endif
