/* cuda_scan_chunked_states.cuh - of the chunked scan on the matrix instruction (cuda_scan_chunked_matrix.cu): the state
 * in registers, chunks folded into it, and S C of rows. What is computed, the state and u x of a fold, is a float32:
 * two numbers of TF32, 22 bits. x, B and C are one, exactly. */
#ifndef SPEC_CUDA_SCAN_CHUNKED_STATES_CUH
#define SPEC_CUDA_SCAN_CHUNKED_STATES_CUH

#include "backends/cuda/scan/cuda_scan_chunked_tokens.cuh"

/* acc[16][8] += A[16][8] B[8][8] of TF32: the upper 19 bits of each are read. */
static __device__ __forceinline__ void mma1688(float acc[4], float a0, float a1, float a2, float a3, float b0, float b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
static __device__ __forceinline__ float upper(float v) { return __uint_as_float(__float_as_uint(v) & 0xffffe000u); }

/* A warp's part of a unit's state, as the instruction leaves sums: of tile i channels g, g + 8 and states 8 i + 2 t, +
 * 1. */
struct chunked_state {
    float v[CHUNKED_TILES][4];

    __device__ __forceinline__ void load(const float *memory, int ns)
    {
#pragma unroll
        for (int i = 0; i < 2 * CHUNKED_TILES; i++) {
            const float2 two = *(const float2 *)(memory + i % 2 * 8 * ns + i / 2 * 8);
            v[i / 2][i % 2 * 2] = two.x, v[i / 2][i % 2 * 2 + 1] = two.y;
        }
    }
    __device__ __forceinline__ void store(float *memory, int ns) const
    {
#pragma unroll
        for (int i = 0; i < 2 * CHUNKED_TILES; i++)
            *(float2 *)(memory + i % 2 * 8 * ns + i / 2 * 8) = make_float2(v[i / 2][i % 2 * 2], v[i / 2][i % 2 * 2 + 1]);
    }
};

/* Where a warp's part of the stored state is. */
template <typename K> static __device__ __forceinline__ float *chunked_stored(const chunked_block<K> &b)
{
    return b.a.state +
           ((size_t)b.s.slot * b.a.n_head * b.a.head_dim + b.channel0 + b.unit * CHUNKED_CHANNELS + b.g) * K::NS +
           b.part * CHUNKED_STATES + 2 * b.t;
}

/* The product of v over lanes 0 .. lane, in steps of d = 1, 2, 4, 8, 16; its order follows from the lane alone. */
static __device__ __forceinline__ float product_step(float v, int d, int lane)
{
    const float other = __shfl_up_sync(0xffffffffu, v, d);
    return lane >= d ? v * other : v;
}
static __device__ __forceinline__ float product_up_to(float v, int lane)
{
#pragma unroll
    for (int d = 1; d < 32; d *= 2) v = product_step(v, d, lane);
    return v;
}

template <typename K> struct chunked_states {
    typedef typename K::T T;
    const chunked_block<K> &b;
    const chunked_copies<K> &copies;
    const chunked_times<K> &times;
    const typename K::memory &shared;
    chunked_state &state;
    float *const memory; /* the stored one */
    int in_front;        /* chunks of committed tokens that are folded, and the state stored, before all else */
    bool stored;         /* the state in registers is the stored one */

    static __device__ __forceinline__ uint32_t first_rows(int n) { return n > 0 ? 0xffffffffu >> (32 - n) : 0u; }
    __device__ __forceinline__ int ancestor(int i, int up) const /* of node i: the one `up` levels above */
    {
        for (; up > 0 && i > 0; up--) i = shared.parent[i];
        return i;
    }

    /* P dt of a chunk's tokens, E of the chunk, and the tokens' indices; token k is at index_of(k). A head is a warp's. */
    template <typename IndexOf> __device__ __forceinline__ void weigh_chunk(IndexOf index_of) const
    {
        if (b.warp >= b.n_head) return;
        const int lane = b.lane, k = SPEC_CHUNK - 1 - lane % SPEC_CHUNK, index = index_of(k);
        const float2 v = shared.time[b.warp * b.grid.tokens + index];
        const float with = product_up_to(v.y, lane), before = __shfl_up_sync(0xffffffffu, with, 1);
        if (lane < SPEC_CHUNK) shared.fold[b.grid.heads + b.warp * SPEC_CHUNK + k] = (lane == 0 ? 1.0f : before) * v.x;
        if (lane == SPEC_CHUNK - 1) shared.fold[b.warp] = with;
        if (b.warp == 0 && lane < SPEC_CHUNK) shared.index[k] = (uint16_t)index;
    }
    /* Folds the chunk whose token k is at index_of(k). */
    template <typename IndexOf> __device__ __forceinline__ void fold(IndexOf index_of)
    {
        __syncthreads(); /* the chunk before has been read */
        weigh_chunk(index_of);
        __syncthreads();
        if (!b.has_state) return;
        const int h = b.head_of(b.unit);
        const float decay = shared.fold[h];
        const float *const u = shared.fold + b.grid.heads + h * SPEC_CHUNK;
#pragma unroll
        for (int i = 0; i < 4 * CHUNKED_TILES; i++) state.v[i / 4][i % 4] = decay * state.v[i / 4][i % 4];
#pragma unroll 1
        for (int k = b.t; k < SPEC_CHUNK; k += 8) {
            const int p0 = shared.index[k], p1 = shared.index[k + 4];
            const T *const x0 = shared.x + p0 * shared.x_ld + b.unit * CHUNKED_CHANNELS + b.g;
            const T *const x1 = shared.x + p1 * shared.x_ld + b.unit * CHUNKED_CHANNELS + b.g;
            const T *const b0 = shared.b + p0 * K::LD + b.part * CHUNKED_STATES + b.g;
            const T *const b1 = shared.b + p1 * K::LD + b.part * CHUNKED_STATES + b.g;
            const float v[4] = { u[k] * to_f32(x0[0]), u[k] * to_f32(x0[8]), u[k + 4] * to_f32(x1[0]),
                                 u[k + 4] * to_f32(x1[8]) };
            float high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; i++) high[i] = upper(v[i]), low[i] = v[i] - high[i];
#pragma unroll
            for (int i = 0; i < CHUNKED_TILES; i++) {
                const float c0 = to_f32(b0[i * 8]), c1 = to_f32(b1[i * 8]);
                mma1688(state.v[i], high[0], high[1], high[2], high[3], c0, c1);
                mma1688(state.v[i], low[0], low[1], low[2], low[3], c0, c1);
            }
        }
    }

    /* S C of those rows of the tile whose bits are set. */
    __device__ __forceinline__ void multiply(uint32_t rows) const
    {
        const T *const c = shared.c + b.part * CHUNKED_STATES + 2 * b.t;
        float *const sum = shared.sum + b.part * b.grid.tile_rows * shared.sum_ld + b.unit * CHUNKED_CHANNELS + b.g;
#pragma unroll 1
        for (int r0 = 0; r0 < (K::FEW ? 8 : b.grid.tile_rows); r0 += 8) {
            if (!(rows >> r0 & 0xff)) continue;
            const T *const from = c + min(r0 + b.g, b.grid.tile_rows - 1) * K::LD;
            float high[4] = {}, low[4] = {};
#pragma unroll
            for (int i = 0; i < CHUNKED_TILES; i++) { /* columns 2 t and 2 t + 1 of a tile are its k = t and t + 4 */
                const float2 two = unpack2<T>(*(const uint32_t *)(from + i * 8));
                const float *const v = state.v[i];
                const float u[4] = { upper(v[0]), upper(v[2]), upper(v[1]), upper(v[3]) };
                mma1688(high, u[0], u[1], u[2], u[3], two.x, two.y);
                mma1688(low, v[0] - u[0], v[2] - u[1], v[1] - u[2], v[3] - u[3], two.x, two.y);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int r = r0 + 2 * b.t + k % 2;
                if (rows >> r & 1) sum[r * shared.sum_ld + k / 2 * 8] = high[k] + low[k];
            }
        }
    }

    /* A chunk of committed tokens behind the first, over the one before. */
    __device__ __forceinline__ void bring_chunk(int w) const
    {
        __syncthreads(); /* the chunk before has been read */
        copies.recent(0, w * SPEC_CHUNK, SPEC_CHUNK);
        copies.path(0, w * SPEC_CHUNK, SPEC_CHUNK);
        if (b.warp < b.n_head && b.lane < SPEC_CHUNK)
            times.keep(b.warp, b.lane, times.known.dt_of(b.warp, w * SPEC_CHUNK + b.lane));
        scan_copies_wait();
        __syncthreads();
    }
    __device__ __forceinline__ void store() const
    {
        if (K::SPLIT) cluster_sync(); /* all blocks have read it */
        if (b.rank == 0 && b.has_state) state.store(memory, K::NS);
        if (K::SPLIT) cluster_sync(); /* and may read it again */
    }
    /* The state that node i needs: the stored one, n chunks on; and before, those of committed tokens are folded. */
    __device__ __forceinline__ void need(int i, int n)
    {
        if (b.has_state && !stored) state.load(memory, K::NS);
#pragma unroll 1
        for (int w = 0; w < in_front + n; w++) {
            const bool known = w < in_front;
            if (known && w > 0) bring_chunk(w);
            fold([&](int k) { /* of a tree: tokens that are left, then ancestors */
                const int j = (w - in_front) * SPEC_CHUNK + k;
                if (known || j < b.n_left) return known ? k : K::FIRST + j;
                return b.tree0 + ancestor(i, shared.depth[i] - (j - b.n_left));
            });
            if (w == in_front - 1) store();
        }
        in_front = 0, stored = n == 0;
    }
    /* What the state of row i is, of n_fed nodes in front and rows: how many chunks on, and the ancestor at which they
     * end. */
    __device__ __forceinline__ int state_of(int i) const
    {
        const int depth = shared.depth[i], folds = spec_chunk_folds(b.n_left + depth);
        const int last = folds * SPEC_CHUNK - 1 - b.n_left; /* its depth */
        return folds << 16 | (folds > 0 && last >= 0 ? ancestor(i, depth - last) + 1 : 0);
    }
    /* S C of n rows from row0 on: those that need the same state together. plain: all need the stored one as it is,
     * which is asked first, so that nothing that the others need is found in front. */
    __device__ __forceinline__ void multiply(int row0, int n, bool plain)
    {
        if (plain) {
            if (b.has_state) multiply(first_rows(n));
            return;
        }
        const int key = b.lane < n ? state_of(b.s.n_fed + row0 + b.lane) : 0; /* of this lane's row */
        uint32_t todo = first_rows(n);
        do { /* once if there are no rows */
            const int r = max(__ffs((int)todo) - 1, 0), wanted = __shfl_sync(0xffffffffu, key, r);
            const uint32_t rows = __ballot_sync(0xffffffffu, b.lane < n && key == wanted);
            if (in_front > 0 || !stored || wanted != 0) /* all warps agree */
                need(b.s.n_fed + row0 + r, wanted >> 16);
            todo &= ~rows;
            if (b.has_state) multiply(rows);
        } while (todo);
    }
};

#endif
