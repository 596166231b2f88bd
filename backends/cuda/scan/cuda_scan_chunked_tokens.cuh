/* cuda_scan_chunked_tokens.cuh - of the chunked scan on the matrix instruction (cuda_scan_chunked_matrix.cu): x, B and
 * dt of tokens, from where earlier passes and this one left them to shared memory, and of committed ones to the
 * recent-token buffers. */
#ifndef SPEC_CUDA_SCAN_CHUNKED_TOKENS_CUH
#define SPEC_CUDA_SCAN_CHUNKED_TOKENS_CUH

#include "backends/cuda/scan/cuda_scan_chunked_block.cuh"

/* Committed tokens have numbers, from the first that the stored state does not cover: the recent ones, in their
 * buffers, and behind them those of the path, in replay_y and the other half of the caches. Held are, from index held0
 * on, a chunk to fold, if there is one, then those that are left; the chunks in between come later
 * (chunked_states.need). What takes tokens from number k0 on to `index` skips them as well. */
template <typename K> struct chunked_numbers {
    const chunked_block<K> &b;
    int half, other; /* entry 0 of the caches' halves */
    int oldest, entry0; /* of the recent-token buffers: the entry of number 0 in the slot's, which begin at entry0 */
    int held0, n_held, between;

    __device__ __forceinline__ explicit chunked_numbers(const chunked_block<K> &block) : b(block)
    {
        const spec_scan_args &a = b.a;
        const spec_step_seq &s = b.s;
        const int n_known = s.n_recent + s.n_replay;
        half = scan_half<int>(s, s.parity, a.n_node), other = half + (s.parity ? -a.n_node : a.n_node);
        oldest = s.n_past - n_known; /* modulo the buffers' length: the quotient is found, or one less */
        oldest -= (int)__umulhi((uint32_t)oldest, b.grid.recent_magic) * a.n_recent_max;
        oldest -= oldest < a.n_recent_max ? 0 : a.n_recent_max;
        entry0 = s.slot * a.n_recent_max;
        held0 = b.n_fold > 0 ? 0 : K::FIRST, n_held = b.n_left + K::FIRST - held0;
        between = max(b.first - SPEC_CHUNK, 0);
    }
    __device__ __forceinline__ int entry_of(int k) const /* of the recent-token buffers */
    {
        const int e = oldest + k;
        return entry0 + (e < b.a.n_recent_max ? e : e - b.a.n_recent_max);
    }
    __device__ __forceinline__ int number_of(int k0, int i) const { return k0 + i + (i < SPEC_CHUNK ? 0 : between); }
    __device__ __forceinline__ float dt_of(int h, int k) const
    {
        const int j = k - b.s.n_recent, own = b.head0 + h;
        return j < 0 ? b.a.recent_dt[(size_t)entry_of(k) * b.a.n_head + own]
                     : b.a.cache_dt[(size_t)(other + spec_step_paths(b.step)[b.s.first_path + j]) * b.a.n_head + own];
    }
};

/* x and B of tokens, a warp to a token: 16 bytes a lane, the first ones' of B. */
template <typename K> struct chunked_copies {
    typedef typename K::T T;
    const chunked_block<K> &b;
    const chunked_numbers<K> &known;
    bool has_b, has_x, has; /* has this lane 16 bytes of B, of x, of either? */
    int x_lane, x_head, x_block, b_block, col;
    uint32_t to_ld, to; /* bytes, in shared memory */
    T *buffer;
    int buffer_ld;
    const T *replay;

    __device__ __forceinline__ chunked_copies(const chunked_block<K> &block, const chunked_numbers<K> &numbers,
                                             const typename K::memory &shared)
        : b(block), known(numbers)
    {
        const spec_scan_args &a = b.a;
        has_b = b.lane < K::NS / 8, x_lane = b.lane - K::NS / 8;
        const int x_unit = min(max(x_lane, 0) / 2, b.n_unit - 1);
        x_head = b.head0 + b.head_of(x_unit);
        has_x = x_lane >= 0 && x_lane < 2 * b.n_unit, has = has_b || has_x;
        x_block = b.grid.x_rep.of(x_head), b_block = b.grid.b_rep.of(b.first_head);
        const int x_col = x_block * a.head_dim + (b.unit0 + x_unit) * CHUNKED_CHANNELS - (x_head - b.first_head) * a.head_dim +
                          x_lane % 2 * 8;
        col = has_b ? b_block * K::NS + b.lane * 8 : x_col;
        to_ld = (has_b ? K::LD : shared.x_ld) * (uint32_t)sizeof(T);
        to = (uint32_t)__cvta_generic_to_shared(has_b ? shared.b + b.lane * 8 : shared.x + max(x_lane, 0) * 8);
        buffer = (T *)(has_b ? a.recent_b : a.recent_x) + col, buffer_ld = has_b ? b.grid.b_width : b.grid.x_width;
        replay = (const T *)a.replay_y + (size_t)b.n_seq * 2 * a.n_node * a.replay_ld +
                 (has_b ? a.replay_b_col : a.replay_x_col) + col;
    }

    /* Of n known tokens, from number k0 on to `index`: recent ones, those of the path. */
    __device__ __forceinline__ void recent(int index, int k0, int n) const
    {
#pragma unroll 1
        for (int i = b.warp; i < n; i += b.n_warp) {
            const int k = known.number_of(k0, i);
            if (has && k < b.s.n_recent)
                scan_copy16(to + (index + i) * to_ld, buffer + (size_t)known.entry_of(k) * buffer_ld);
        }
    }
    __device__ __forceinline__ void path(int index, int k0, int n) const
    {
#pragma unroll 1
        for (int i = b.warp; i < n; i += b.n_warp) {
            const int entry = known.number_of(k0, i) - b.s.n_recent;
            if (has && entry >= 0) scan_copy16(to + (index + i) * to_ld, replay + (size_t)entry * b.a.replay_ld);
        }
    }
    /* Nodes that were fed before. */
    __device__ __forceinline__ void fed() const
    {
#pragma unroll 1
        for (int i = b.warp; i < b.s.n_fed; i += b.n_warp)
            if (has) scan_copy16(to + (b.tree0 + i) * to_ld, replay + (size_t)(b.s.n_replay + i) * b.a.replay_ld);
    }
};

/* dt and decay of tokens. Of the rows a warp's task is a head and 32 rows; the first tasks are of warps without a
 * state. */
template <typename K> struct chunked_times {
    const chunked_block<K> &b;
    const chunked_numbers<K> &known;
    const typename K::memory &shared;
    int n_task, first_task;

    struct head { /* of a task */
        float rate, bias;
    };

    __device__ __forceinline__ chunked_times(const chunked_block<K> &block, const chunked_numbers<K> &numbers,
                                            const typename K::memory &memory)
        : b(block), known(numbers), shared(memory)
    {
        n_task = (b.n_seen + 31) / 32 * b.grid.heads, first_task = b.n_warp - 1 - b.warp;
    }
    __device__ __forceinline__ void keep(int h, int index, float dt) const
    {
        shared.time[h * b.grid.tokens + index] = make_float2(dt, scan_decay(dt, b.a.a[b.head0 + h]));
    }

    __device__ __forceinline__ int task_head(int task) const { return task - b.grid.by_heads.of(task) * b.grid.heads; }
    __device__ __forceinline__ int task_row(int task) const { return b.grid.by_heads.of(task) * 32 + b.lane; }
    __device__ __forceinline__ const float *where(int task) const /* of a row that is not there, that of the last one */
    {
        const int h = min(task_head(task), b.n_head - 1), i = min(task_row(task), b.n_seen - 1);
        return (const float *)b.a.dt.data + (size_t)(b.s.first_row + i) * b.a.dt.ld + b.head0 + h;
    }
    __device__ __forceinline__ head head_of(int task) const
    {
        const int own = b.head0 + min(task_head(task), b.n_head - 1);
        return head{ b.a.a[own], b.a.dt_bias ? b.a.dt_bias[own] : 0.0f };
    }
    __device__ __forceinline__ void keep_row(int task, float dt, const head &of) const
    {
        const int h = task_head(task), i = task_row(task);
        if (h >= b.n_head || i >= b.n_seen) return;
        dt = scan_dt(dt, of.bias, b.a.dt_min, b.a.dt_max);
        shared.time[h * b.grid.tokens + b.tree0 + b.s.n_fed + i] = make_float2(dt, scan_decay(dt, of.rate));
        if (h >= b.first_kept && i >= b.begin)
            b.a.cache_dt[(size_t)(known.half + b.s.n_fed + i) * b.a.n_head + b.head0 + h] = dt;
    }
};

/* What earlier passes left of dt, and the step of the tree, read before the wait. All of it is on its way before any is
 * looked at: a second trip to memory would keep the product behind from being set up. */
template <typename K> struct chunked_held {
    enum { LANES = (K::FIRST + CHUNKED_NEAR + 31) / 32 }; /* tokens of a lane, of a warp to a head */
    const spec_step_node *node;
    int parent, depth, row_depth; /* of this thread's node, of this lane's row of the first tile */
    float dt[LANES];

    static __device__ __forceinline__ bool has(const chunked_numbers<K> &known, int q)
    {
        return known.b.warp < known.b.n_head && known.b.lane + 32 * q < known.n_held;
    }
    __device__ __forceinline__ explicit chunked_held(const chunked_numbers<K> &known)
    {
        const chunked_block<K> &b = known.b;
        node = spec_step_nodes(b.step) + b.s.first_node;
        parent = b.tid < b.n_tree ? node[b.tid].parent : -1, depth = b.tid < b.n_tree ? node[b.tid].depth : 0;
        row_depth = b.lane < b.n_first ? node[b.s.n_fed + b.begin + b.lane].depth : 0;
#pragma unroll
        for (int q = 0; q < LANES; q++) dt[q] = has(known, q) ? known.dt_of(b.warp, known.number_of(0, b.lane + 32 * q)) : 0.0f;
    }
    __device__ __forceinline__ void keep(const chunked_times<K> &times)
    {
        const chunked_block<K> &b = times.b;
        const chunked_numbers<K> &known = times.known;
#pragma unroll 1
        for (int i = b.tid; i < b.n_tree;) {
            times.shared.parent[i] = (int16_t)(parent < i && parent >= 0 ? parent : -1);
            times.shared.depth[i] = (int16_t)depth;
            i += b.n_thread;
            if (i < b.n_tree) parent = node[i].parent, depth = node[i].depth;
        }
#pragma unroll
        for (int q = 0; q < LANES; q++)
            if (has(known, q)) times.keep(b.warp, known.held0 + b.lane + 32 * q, dt[q]);
        const int n_fed = b.warp < b.n_head ? b.s.n_fed : 0;
#pragma unroll 1
        for (int i = b.lane; i < n_fed; i += 32)
            times.keep(b.warp, b.tree0 + i, b.a.cache_dt[(size_t)(known.half + i) * b.a.n_head + b.head0 + b.warp]);
    }
    /* Do the rows of the first tile need the stored state as it is? Known to each warp. */
    __device__ __forceinline__ bool is_plain(const chunked_block<K> &b) const
    {
        return b.n_fold == 0 && __all_sync(0xffffffffu, spec_chunk_folds(b.n_left + row_depth) == 0);
    }
};

/* x, B and dt of the recent token at FIRST + i, for later passes. */
template <typename K>
static __device__ __forceinline__ void chunked_keep_recent(const chunked_copies<K> &c, const typename K::memory &shared, int i)
{
    const chunked_block<K> &b = c.b;
    const int entry = c.known.entry_of(b.first + i), index = K::FIRST + i;
    const bool keeps = c.has_b ? b.unit0 == 0 && c.b_block * (int)b.grid.b_rep.by == b.first_head
                               : c.has_x && c.x_block * (int)b.grid.x_rep.by == c.x_head; /* of blocks that share it one */
    const typename K::T *const from =
        c.has_b ? shared.b + index * K::LD + b.lane * 8 : shared.x + index * shared.x_ld + c.x_lane * 8;
    if (keeps) *(uint4 *)(c.buffer + (size_t)entry * c.buffer_ld) = *(const uint4 *)from;
    if (b.lane < b.n_head && b.lane >= b.first_kept)
        b.a.recent_dt[(size_t)entry * b.a.n_head + b.head0 + b.lane] = shared.time[b.lane * b.grid.tokens + index].x;
}

#endif
