/* cuda_scan_chunked_near.cuh - of the chunked scan on the matrix instruction (cuda_scan_chunked_matrix.cu): which
 * tokens are near each row of a row tile (tile below), and their weights: the powers P dt, and C . B. */
#ifndef SPEC_CUDA_SCAN_CHUNKED_NEAR_CUH
#define SPEC_CUDA_SCAN_CHUNKED_NEAR_CUH

#include "backends/cuda/linear/cuda_linear.cuh"
#include "backends/cuda/scan/cuda_scan_chunked_states.cuh"

template <typename K> struct chunked_nears {
    typedef typename K::T T;
    const chunked_block<K> &b;
    const chunked_copies<K> &copies;
    const typename K::memory &shared;
    int x_bytes, dot_bytes; /* of a token */

    __device__ __forceinline__ chunked_nears(const chunked_block<K> &block, const chunked_copies<K> &of,
                                            const typename K::memory &memory)
        : b(block), copies(of), shared(memory)
    {
        x_bytes = shared.x_ld * (int)sizeof(T), dot_bytes = shared.dot_ld * 4;
    }

    /* C . B of 8 rows of the tile, from r0 on, and 16 tokens, from index j0 on. */
    __device__ __forceinline__ void multiply(int r0, int j0) const
    {
        const T *const from = shared.b + min(j0 + b.lane % 16, b.grid.tokens - 1) * K::LD + b.lane / 16 * 8;
        const uint32_t at = (uint32_t)__cvta_generic_to_shared(from);
        const T *const c = shared.c + min(r0 + b.g, b.grid.tile_rows - 1) * K::LD + 2 * b.t;
        float acc[2][4] = {};
#pragma unroll
        for (int k = 0; k < K::NS; k += 16) {
            uint32_t m[4];
            load_matrices(m, at + k * (int)sizeof(T));
            mma16816<T>(acc[k / 16 % 2], m[0], m[1], m[2], m[3], *(const uint32_t *)(c + k), *(const uint32_t *)(c + k + 8));
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int j = j0 + b.g + k / 2 * 8, r = r0 + 2 * b.t + k % 2;
            if (j < b.tree0 + b.n_tree && r < b.grid.tile_rows) shared.dot[j * shared.dot_ld + r] = acc[0][k] + acc[1][k];
        }
    }

    /* P dt of the tokens near row r of the tile, a lane to a token, for two heads: they hide each other's latency. */
    __device__ __forceinline__ void put_powers(int r, const int h[2], int index, int n_near) const
    {
        const int lane = b.lane;
        float2 v[2];
        float with[2];
#pragma unroll
        for (int k = 0; k < 2; k++) v[k] = shared.time[h[k] * b.grid.tokens + index], with[k] = v[k].y;
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
#pragma unroll
            for (int k = 0; k < 2; k++) with[k] = product_step(with[k], d, lane);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            const float before = __shfl_up_sync(0xffffffffu, with[k], 1);
            const int at = b.list_at(r, h[k]);
            chunked_near near;
            near.weight = lane < n_near ? (lane == 0 ? 1.0f : before) * v[k].x : 0.0f, near.index = index;
            shared.near[at * CHUNKED_LIST + CHUNKED_NEAR - 1 - lane] = near;
            if (lane == n_near - 1) shared.decay[at] = with[k];
        }
    }
    /* The tokens near row r of the tile, a node; a lane to a token, the newest in lane 0. */
    __device__ __forceinline__ void find(int r, int node) const
    {
        const int depth = shared.depth[node], n_near = spec_chunk_left(b.n_left + depth) + 1;
        int index = K::FIRST + b.n_left + depth - b.lane; /* of a token that is left */
#pragma unroll 1
        for (int k = 0, j = node; k <= depth && k < CHUNKED_NEAR; k++) {
            if (b.lane == k) index = b.tree0 + j;
            j = shared.parent[j];
        }
        if (b.lane >= n_near) index = b.none;
#pragma unroll 1
        for (int h0 = 0; h0 < b.n_head; h0 += 2) {
            const int h[2] = { h0, min(h0 + 1, b.n_head - 1) };
            put_powers(r, h, index, n_near);
        }
    }
    /* The most tokens that are near one of the tile's n rows. With few rows this takes longer than what it saves. */
    __device__ __forceinline__ int most(int row0, int n) const
    {
        if (K::V == 2) return b.n_left + b.n_tree;
        return __reduce_max_sync(
            0xffffffffu, b.lane < n ? spec_chunk_left(b.n_left + shared.depth[b.s.n_fed + row0 + b.lane]) + 1 : 0);
    }

    /* What a tile needs beside S C, and of the first one the tokens of a path and of a chain in front that later passes
     * find in the recent-token buffers: tasks of a warp, those that have no state first. A loop for each sort, since
     * what a loop needs is found in front of it. */
    __device__ __forceinline__ void run_tasks(int row0, int n, int task) const
    {
        const spec_step_seq &s = b.s;
        const int n_tile = (b.n_left + (K::SPLIT ? s.n_fed + row0 + n : b.n_tree) + 15) / 16, n_dot = (n + 7) / 8 * n_tile;
        const int kept = max(0, s.n_recent - b.first); /* tokens left that the buffers have */
        const int n_task = n + n_dot + (row0 == 0 ? b.n_left + s.n_advance - kept : 0);
#pragma unroll 1
        for (; task < n; task += b.n_warp) find(task, s.n_fed + row0 + task);
#pragma unroll 1
        for (; task < n + n_dot; task += b.n_warp) {
            int r0 = 0, tile = task - n;
            while (tile >= n_tile) tile -= n_tile, r0 += 8;
            multiply(r0, K::FIRST + tile * 16);
        }
#pragma unroll 1
        for (; task < n_task; task += b.n_warp) chunked_keep_recent(copies, shared, kept + task - n - n_dot);
    }

    /* Weights of the tile's row r, and how far x is: by the threads that use them, or by all before. */
    __device__ __forceinline__ float dot_of(int index, int r) const
    {
        return *(const float *)((const char *)(shared.dot + r) + index * dot_bytes);
    }
    __device__ __forceinline__ chunked_near weigh(chunked_near near, int r) const
    {
        return chunked_near{ near.weight * dot_of(near.index, r), near.index * x_bytes };
    }
    __device__ __forceinline__ void weigh_all(int n) const
    { /* with many rows a warp takes all heads of one, which have the same tokens */
        const int tasks = K::V == 2 ? n * b.n_head : n, heads = K::V == 2 ? 1 : b.n_head;
#pragma unroll 1
        for (int i = b.warp; i < tasks; i += b.n_warp) {
            int h = 0, r = i;
            while (r >= n) r -= n, h++;
            chunked_near *near = shared.near + b.list_at(r, h) * CHUNKED_LIST + b.lane;
            const int index = near->index;
            const float dot = dot_of(index, r);
#pragma unroll 1
            for (int k = 0; k < heads; k++, near += CHUNKED_LIST) *near = { near->weight * dot, index * x_bytes };
        }
    }
};

#endif
