/* cuda_scan.cu - selective scan over a tree, recurrent form, with activation replay in front.
 *   dt = clamp(softplus(dt_in + dt_bias), dt_min, dt_max)
 *   S(node) = exp(dt A) S(parent) + (dt x) B^T;   y = S C + D x;   out = z ? y silu(z) : y
 * S f32 [n_slot][n_head][head_dim][n_state]; x, z, y rows of n_head * head_dim (x: blocks of head_dim, shared by x_rep
 * heads), B, C rows of blocks of n_state. Sources: Mamba, eq. 2a with the authors' Euler step for B; Mamba-2; the tree
 * form of STree; activation replay of Snakes and Ladders (algorithms.md 7.2, 7.3, 8.3, 9.2).
 *
 * A group of LANES lanes owns CH channels, VS states each lane: all of S that it reads and writes, in registers.
 *   1. decode: the accepted path is absorbed from the caches' other half and S is stored;
 *   2. nodes in order, S of the *live* node in registers. A node whose parent is not live starts from the live node's
 *      state, if that is an ancestor, else from the stored one, and absorbs the ancestors between once more: the same
 *      function on the same values gives the same bits, whatever the order of the nodes. Nothing is stored.
 *   Prefill absorbs its rows in order and stores S.
 * With one A per head (Mamba-2) a block's channels belong to one head, and the threads share a table of dt and
 * exp(dt A) per node; with A per state (Mamba-1, PER_STATE) both are computed where they are used. */
#include "cuda.cuh"

enum { SCAN_WARPS = 4, SCAN_BATCH = 8, SCAN_NODE_MAX = 2048, SCAN_TABLE_MIN = 128 };

/* The functions that scan and replay share. */
static __device__ __forceinline__ float scan_dt(float dt_in, float bias, float lo, float hi)
{
    return fminf(fmaxf(softplus(dt_in + bias), lo), hi);
}
static __device__ __forceinline__ float scan_decay(float dt, float a) { return expf(dt * a); }
static __device__ __forceinline__ float scan_update(float s, float decay, float dx, float b)
{
    return fmaf(decay, s, dx * b);
}

/* N consecutive elements, of which n are there; the rest become 0. */
template <int N>
static __device__ __forceinline__ void load_run(float out[N], const void *p, int dtype, size_t i, int n)
{
    if (N % 4 == 0 && n >= N) {
        if (dtype == SPEC_DTYPE_F32) {
            const float *f = (const float *)p + i;
            if (((uintptr_t)f & 15) == 0) {
#pragma unroll
                for (int k = 0; k < N / 4; k++) {
                    const float4 v = ((const float4 *)f)[k];
                    out[4 * k] = v.x, out[4 * k + 1] = v.y, out[4 * k + 2] = v.z, out[4 * k + 3] = v.w;
                }
                return;
            }
        } else {
            const uint16_t *h = (const uint16_t *)p + i;
            if (((uintptr_t)h & 7) == 0) {
#pragma unroll
                for (int k = 0; k < N / 4; k++) {
                    const uint2 v = ((const uint2 *)h)[k];
                    const bool bf = dtype == SPEC_DTYPE_BF16;
                    const float2 a = bf ? unpack2<__nv_bfloat16>(v.x) : unpack2<__half>(v.x);
                    const float2 b = bf ? unpack2<__nv_bfloat16>(v.y) : unpack2<__half>(v.y);
                    out[4 * k] = a.x, out[4 * k + 1] = a.y, out[4 * k + 2] = b.x, out[4 * k + 3] = b.y;
                }
                return;
            }
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) out[k] = k < n ? load_any(p, dtype, i + k) : 0.0f;
}

/* load_run in two halves. Between them nothing waits for memory, so that the loads of many nodes can be in flight;
 * 16-bit values lie two in a word. */
template <int N> struct raw_run {
    uint32_t w[N];
};
template <int N>
static __device__ __forceinline__ void load_raw(raw_run<N> &r, const void *p, int dtype, size_t i, int n)
{
    if (dtype == SPEC_DTYPE_F32) {
        const uint32_t *f = (const uint32_t *)p + i;
        if (N % 4 == 0 && n >= N && ((uintptr_t)f & 15) == 0) {
#pragma unroll
            for (int k = 0; k < N / 4; k++) {
                const uint4 v = ((const uint4 *)f)[k];
                r.w[4 * k] = v.x, r.w[4 * k + 1] = v.y, r.w[4 * k + 2] = v.z, r.w[4 * k + 3] = v.w;
            }
            return;
        }
#pragma unroll
        for (int k = 0; k < N; k++) r.w[k] = k < n ? f[k] : 0u;
        return;
    }
    const uint16_t *h = (const uint16_t *)p + i;
    if (N % 4 == 0 && n >= N && ((uintptr_t)h & 7) == 0) {
#pragma unroll
        for (int k = 0; k < N / 4; k++) {
            const uint2 v = ((const uint2 *)h)[k];
            r.w[2 * k] = v.x, r.w[2 * k + 1] = v.y;
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < N; k += 2) {
        const uint32_t lo = k < n ? h[k] : 0u, hi = k + 1 < N && k + 1 < n ? h[k + 1] : 0u;
        r.w[k / 2] = lo | hi << 16;
    }
}
template <int N> static __device__ __forceinline__ void unpack_raw(float out[N], const raw_run<N> &r, int dtype)
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        if (dtype == SPEC_DTYPE_F32) {
            out[k] = __uint_as_float(r.w[k]);
        } else {
            const float2 v = dtype == SPEC_DTYPE_BF16 ? unpack2<__nv_bfloat16>(r.w[k / 2]) : unpack2<__half>(r.w[k / 2]);
            out[k] = k % 2 ? v.y : v.x;
        }
    }
}

/* What a node brings to the channels of a group. */
template <int VS, int CH> struct scan_in {
    float x[CH], b[VS], c[VS], dt, decay, z; /* c and z for rows only; decay with one A per head */
};

template <int VS, int LANES, int CH, bool PER_STATE>
static __global__ void __launch_bounds__(SCAN_WARPS * 32)
scan_kernel(const spec_step_block *step, const spec_scan_args a, int n_tile, int table_cap)
{
    extern __shared__ __align__(16) char dynamic[];
    float2 *table = (float2 *)dynamic;                                        /* dt, decay [table_cap] */
    int32_t *parent = (int32_t *)(PER_STATE ? dynamic : dynamic + table_cap * sizeof(float2)); /* [n_node] */
    __shared__ int32_t chain[SCAN_WARPS][SPEC_MAX_DEPTH + 1];
    constexpr int GPW = 32 / LANES;

    if ((int)blockIdx.y >= step->n_seq) return;
    const int n_seq = (int)blockIdx.y;
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const spec_step_node *node = spec_step_nodes(step) + s.first_node;
    const int32_t *path = spec_step_paths(step) + s.first_path;
    const bool prefill = step->phase == SPEC_PHASE_PREFILL;
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, l = lane % LANES;

    /* Which channels, which states. Groups without channels go along for the shuffles and store nothing. */
    int head, c0;
    if (PER_STATE) {
        const int f = ((int)blockIdx.x * SCAN_WARPS + warp) * GPW + group;
        head = f / a.head_dim, c0 = f % a.head_dim;
        if (head >= a.n_head) head = a.n_head - 1, c0 = a.head_dim;
    } else {
        head = (int)blockIdx.x / n_tile;
        c0 = (((int)blockIdx.x % n_tile * SCAN_WARPS + warp) * GPW + group) * CH;
    }
    const int n_ch = max(min(a.head_dim - c0, CH), 0), s0 = l * VS, n_s = max(min(a.n_state - s0, VS), 0);
    const int out_ch = CH == 1 ? 0 : l / (LANES / 4); /* after the reduction this lane has channel c0 + out_ch */
    const bool is_out = CH == 1 ? l == 0 : l % (LANES / 4) == 0;

    const size_t half = ((size_t)s.slot * 2 + s.parity) * a.n_node, other = ((size_t)s.slot * 2 + (s.parity ^ 1)) * a.n_node;
    const int b_block = head / a.b_rep, b_width = a.n_head / a.b_rep * a.n_state;
    const size_t x_col = (size_t)(head / a.x_rep) * a.head_dim + c0, y_col = (size_t)head * a.head_dim + c0;
    const size_t b_col = (size_t)b_block * a.n_state + s0, c_col = (size_t)(head / a.c_rep) * a.n_state + s0;
    const float bias = a.dt_bias ? a.dt_bias[head] : 0.0f, skip = a.d ? a.d[head] : 0.0f;
    float decay_rate[VS]; /* A */
#pragma unroll
    for (int v = 0; v < VS; v++)
        decay_rate[v] = !PER_STATE ? a.a[head] : v < n_s ? a.a[(size_t)head * a.n_state + s0 + v] : 0.0f;

    auto row_dt = [&](int r) {
        return scan_dt(load_any(a.dt.data, a.dt.dtype, (size_t)r * a.dt.ld + head), bias, a.dt_min, a.dt_max);
    };
    typedef scan_in<VS, CH> in_t;
    /* x and B from the convolution's replay rows (and B from its cache); dt by `entry` of the table, or from the cache */
    struct raw_in {
        raw_run<CH> x;
        raw_run<VS> b;
        float dt;
    };
    auto begin_replayed = [&](raw_in &raw, int entry, size_t cached) {
        const size_t row = ((size_t)n_seq * 2 * a.n_node + entry) * a.replay_ld;
        load_raw<CH>(raw.x, a.replay_y, a.dtype, row + a.replay_x_col + x_col, n_ch);
        if (a.b_in_conv) load_raw<VS>(raw.b, a.replay_y, a.dtype, row + a.replay_b_col + b_col, n_s);
        else load_raw<VS>(raw.b, a.cache_b, a.dtype, cached * b_width + b_col, n_s);
        if (PER_STATE) raw.dt = a.cache_dt[cached * a.n_head + head];
    };
    auto end_replayed = [&](in_t &in, const raw_in &raw, int entry) {
        unpack_raw<CH>(in.x, raw.x, a.dtype);
        unpack_raw<VS>(in.b, raw.b, a.dtype);
        if (PER_STATE) in.dt = raw.dt;
        else in.dt = table[entry].x, in.decay = table[entry].y;
    };
    auto fetch_replayed = [&](in_t &in, int entry, size_t cached) {
        raw_in raw;
        begin_replayed(raw, entry, cached);
        end_replayed(in, raw, entry);
    };
    auto fetch_row = [&](in_t &in, int r, int entry, bool whole) {
        load_run<CH>(in.x, a.x.data, a.x.dtype, (size_t)r * a.x.ld + x_col, n_ch);
        load_run<VS>(in.b, a.b.data, a.b.dtype, (size_t)r * a.b.ld + b_col, n_s);
        /* rounded as the caches hold them: replay reads the values that the scan used */
#pragma unroll
        for (int i = 0; i < CH; i++) in.x[i] = round_any(a.dtype, in.x[i]);
#pragma unroll
        for (int v = 0; v < VS; v++) in.b[v] = round_any(a.dtype, in.b[v]);
        if (PER_STATE) in.dt = row_dt(r);
        else in.dt = table[entry].x, in.decay = table[entry].y;
        if (!whole) return;
        load_run<VS>(in.c, a.c.data, a.c.dtype, (size_t)r * a.c.ld + c_col, n_s);
        in.z = 0.0f;
        if (a.z.data && is_out && out_ch < n_ch) in.z = load_any(a.z.data, a.z.dtype, (size_t)r * a.z.ld + y_col + out_ch);
    };

    float state[CH][VS];
    auto absorb = [&](const in_t &in) {
        float decay[VS];
#pragma unroll
        for (int v = 0; v < VS; v++) decay[v] = PER_STATE ? scan_decay(in.dt, decay_rate[v]) : in.decay;
#pragma unroll
        for (int i = 0; i < CH; i++) {
            const float dx = in.dt * in.x[i];
#pragma unroll
            for (int v = 0; v < VS; v++) state[i][v] = scan_update(state[i][v], decay[v], dx, in.b[v]);
        }
    };
    float *memory = a.state + (((size_t)s.slot * a.n_head + head) * a.head_dim + c0) * a.n_state + s0;
    /* Four states at a time where every row of the state is aligned. A lane without states must not store at all: with
     * "n_s == VS" as the condition, ptxas 13.0 dropped the test and such lanes wrote zeros over the next head. */
    const bool by_four = VS % 4 == 0 && a.n_state % VS == 0 && ((uintptr_t)a.state & 15) == 0;
    auto store_state = [&]() {
        if (s0 >= a.n_state) return;
#pragma unroll
        for (int i = 0; i < CH; i++) {
            float *p = memory + (size_t)i * a.n_state;
            if (i >= n_ch) continue;
            if (by_four) {
#pragma unroll
                for (int v = 0; v < VS; v += 4)
                    *(float4 *)(p + v) = make_float4(state[i][v], state[i][v + 1], state[i][v + 2], state[i][v + 3]);
            } else {
#pragma unroll
                for (int v = 0; v < VS; v++)
                    if (v < n_s) p[v] = state[i][v];
            }
        }
    };
    /* y = S C + D x: over a lane's states in order, then a tree over the lanes */
    auto output = [&](const in_t &in, int r) {
        float dot[CH];
#pragma unroll
        for (int i = 0; i < CH; i++) {
            dot[i] = state[i][0] * in.c[0];
#pragma unroll
            for (int v = 1; v < VS; v++) dot[i] = fmaf(state[i][v], in.c[v], dot[i]);
        }
        float y, x;
        if constexpr (CH == 1) {
            y = dot[0], x = in.x[0];
#pragma unroll
            for (int m = LANES / 2; m > 0; m /= 2) y = y + __shfl_xor_sync(0xffffffffu, y, m);
        } else { /* four channels: each exchange halves the channels that a lane has */
            constexpr int H = LANES / 2, Q = LANES / 4;
            const bool hi = l & H, lo = l & Q;
            const float p0 = (hi ? dot[2] : dot[0]) + __shfl_xor_sync(0xffffffffu, hi ? dot[0] : dot[2], H);
            const float p1 = (hi ? dot[3] : dot[1]) + __shfl_xor_sync(0xffffffffu, hi ? dot[1] : dot[3], H);
            y = (lo ? p1 : p0) + __shfl_xor_sync(0xffffffffu, lo ? p0 : p1, Q);
            const float x0 = in.x[0], x1 = in.x[1], x2 = in.x[2], x3 = in.x[3];
            x = hi ? (lo ? x3 : x2) : (lo ? x1 : x0);
#pragma unroll
            for (int m = Q / 2; m > 0; m /= 2) y = y + __shfl_xor_sync(0xffffffffu, y, m);
        }
        if (is_out && out_ch < n_ch) {
            y = fmaf(skip, x, y);
            if (a.z.data) y = y * silu(in.z);
            store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + y_col + out_ch, y);
        }
    };

#pragma unroll
    for (int i = 0; i < CH; i++) load_run<VS>(state[i], memory + (size_t)i * a.n_state, SPEC_DTYPE_F32, 0, i < n_ch ? n_s : 0);

    if (prefill) {
        for (int i0 = 0; i0 < s.n_row; i0 += table_cap) {
            const int n = min(s.n_row - i0, table_cap);
            if (!PER_STATE) {
                __syncthreads();
                for (int e = tid; e < n; e += SCAN_WARPS * 32) {
                    const float dt = row_dt(s.first_row + i0 + e);
                    table[e] = make_float2(dt, scan_decay(dt, decay_rate[0]));
                }
                __syncthreads();
            }
            in_t in, next;
            fetch_row(in, s.first_row + i0, 0, true);
            for (int i = 0; i < n; i++) {
                const int ahead = min(i + 1, n - 1);
                fetch_row(next, s.first_row + i0 + ahead, ahead, true);
                absorb(in);
                output(in, s.first_row + i0 + i);
                in = next;
            }
        }
        store_state();
        return;
    }

    /* Tables: the path's entries, then the tree's nodes. The first tile of a head keeps dt for the replay to come. */
    const int n_tree = s.n_fed + s.n_row;
    if (!PER_STATE) {
        const bool keeps = (int)blockIdx.x % n_tile == 0;
        for (int e = tid; e < s.n_replay + n_tree; e += SCAN_WARPS * 32) {
            const int i = e - s.n_replay;
            float dt;
            if (i < 0) dt = a.cache_dt[(other + path[e]) * a.n_head + head];
            else if (i < s.n_fed) dt = a.cache_dt[(half + i) * a.n_head + head];
            else {
                dt = row_dt(s.first_row + i - s.n_fed);
                if (keeps) a.cache_dt[(half + i) * a.n_head + head] = dt;
            }
            table[e] = make_float2(dt, scan_decay(dt, decay_rate[0]));
        }
    }
    for (int i = tid; i < n_tree; i += SCAN_WARPS * 32) parent[i] = node[i].parent;
    __syncthreads();

    /* Replay is a chain: its length times the latency of a load, unless the loads of several nodes are in flight. That
     * needs loads without branches between them, hence a path of its own for what real models have: 16-bit, aligned. */
    bool aligned = false;
    if constexpr (!PER_STATE) {
        const size_t first = (size_t)n_seq * 2 * a.n_node * a.replay_ld;
        const uint16_t *x0 = (const uint16_t *)a.replay_y + first + a.replay_x_col + x_col;
        const uint16_t *b0 = (const uint16_t *)a.replay_y + first + a.replay_b_col + b_col;
        aligned = a.dtype != SPEC_DTYPE_F32 && a.b_in_conv && n_ch == CH && n_s == VS && a.replay_ld % 4 == 0 &&
                  (((uintptr_t)x0 | (uintptr_t)b0) & 7) == 0;
        for (int j = 0; aligned && j < s.n_replay; j += SCAN_BATCH) {
            raw_in batch[SCAN_BATCH];
#pragma unroll
            for (int u = 0; u < SCAN_BATCH; u++) {
                const size_t at = (size_t)min(j + u, s.n_replay - 1) * a.replay_ld;
                const uint2 x = *(const uint2 *)(x0 + at);
                batch[u].x.w[0] = x.x, batch[u].x.w[1] = x.y;
#pragma unroll
                for (int k = 0; k < VS / 4; k++) {
                    const uint2 v = *(const uint2 *)(b0 + at + 4 * k);
                    batch[u].b.w[2 * k] = v.x, batch[u].b.w[2 * k + 1] = v.y;
                }
            }
#pragma unroll
            for (int u = 0; u < SCAN_BATCH; u++) {
                if (j + u >= s.n_replay) break;
                in_t in;
                end_replayed(in, batch[u], j + u);
                absorb(in);
            }
        }
    }
    for (int j = 0; !aligned && j < s.n_replay; j++) {
        in_t in;
        fetch_replayed(in, j, other + path[j]);
        absorb(in);
    }
    if (s.n_replay > 0) store_state();
    in_t in, next;
    if (s.n_row <= 0) return;

    float base[CH][VS];
#pragma unroll
    for (int i = 0; i < CH; i++)
#pragma unroll
        for (int v = 0; v < VS; v++) base[i][v] = state[i][v];
    const bool keeps_b = !a.b_in_conv && a.cache_b && c0 == 0 && head % a.b_rep == 0;
    int live = -1;
    fetch_row(in, s.first_row, s.n_replay + s.n_fed, true);
    for (int i = 0; i < s.n_row; i++) {
        const int n = s.n_fed + i, ahead = min(i + 1, s.n_row - 1);
        fetch_row(next, s.first_row + ahead, s.n_replay + s.n_fed + ahead, true);
        const int up = parent[n];
        if (up != live) {
            int depth = 0, k = up;
            __syncwarp();
            for (; k >= 0 && k != live && depth <= SPEC_MAX_DEPTH; k = parent[k]) {
                if (lane == 0) chain[warp][depth] = k;
                depth++;
            }
            __syncwarp();
            if (k < 0) {
#pragma unroll
                for (int e = 0; e < CH; e++)
#pragma unroll
                    for (int v = 0; v < VS; v++) state[e][v] = base[e][v];
            }
            while (depth > 0) {
                const int m = chain[warp][--depth];
                in_t again;
                if (m < s.n_fed) fetch_replayed(again, s.n_replay + m, half + m);
                else fetch_row(again, s.first_row + m - s.n_fed, s.n_replay + m, false);
                absorb(again);
            }
        }
        absorb(in);
        output(in, s.first_row + i);
        if (PER_STATE && c0 == 0 && l == 0) a.cache_dt[(half + n) * a.n_head + head] = in.dt;
        if (keeps_b) {
#pragma unroll
            for (int v = 0; v < VS; v++)
                if (v < n_s) store_any(a.cache_b, a.dtype, (half + n) * b_width + b_col + v, in.b[v]);
        }
        live = n;
        in = next;
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

spec_status speci_cuda_check_scan(spec_device *dev, const spec_scan_args *a)
{
    if (a->n_head < 1 || a->head_dim < 1 || a->n_state < 1 || a->n_node < 1 || a->x_rep < 1 || a->b_rep < 1 ||
        a->c_rep < 1 || a->n_head % a->x_rep || a->n_head % a->b_rep || a->n_head % a->c_rep)
        return dev->host->fail(SPEC_E_INVALID, "cuda scan: %d heads of %d, %d states, %d nodes, shared by %d, %d, %d",
                               a->n_head, a->head_dim, a->n_state, a->n_node, a->x_rep, a->b_rep, a->c_rep);
    if (a->n_state > 256 || a->n_node > SCAN_NODE_MAX)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda scan: %d states and %d nodes, can do 256 and %d", a->n_state,
                               a->n_node, (int)SCAN_NODE_MAX);
    if (!cuda_is_float(a->dtype) || !cuda_is_float(a->x.dtype) || !cuda_is_float(a->b.dtype) ||
        !cuda_is_float(a->c.dtype) || !cuda_is_float(a->dt.dtype) || (a->z.data && !cuda_is_float(a->z.dtype)) ||
        !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda scan: float types only");
    return SPEC_OK;
}

template <int VS, int LANES> static void launch_scan(spec_queue *q, const spec_scan_args *a)
{
    const unsigned seqs = (unsigned)q->shape.seqs, threads = SCAN_WARPS * 32;
    if (a->a_per_state) {
        const unsigned blocks = (unsigned)cuda_div_up((int64_t)a->n_head * a->head_dim, SCAN_WARPS * (32 / LANES));
        scan_kernel<VS, LANES, 1, true><<<dim3(blocks, seqs), threads, (size_t)a->n_node * 4, q->stream>>>(
            q->d_step, *a, 1, CUDA_PREFILL_CHUNK);
    } else {
        const int n_tile = cuda_div_up(a->head_dim, SCAN_WARPS * (32 / LANES) * 4);
        const int cap = a->n_node * 2 > SCAN_TABLE_MIN ? a->n_node * 2 : (int)SCAN_TABLE_MIN;
        scan_kernel<VS, LANES, 4, false>
            <<<dim3((unsigned)(a->n_head * n_tile), seqs), threads, (size_t)cap * 8 + (size_t)a->n_node * 4, q->stream>>>(
                q->d_step, *a, n_tile, cap);
    }
}

spec_status speci_cuda_scan(spec_queue *q, const spec_scan_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "scan"));
    SPEC_TRY(speci_cuda_check_scan(q->dev, a));
    if (a->n_state <= 16) launch_scan<4, 4>(q, a);
    else if (a->n_state <= 32) launch_scan<4, 8>(q, a);
    else if (a->n_state <= 64) launch_scan<4, 16>(q, a);
    else if (a->n_state <= 128) launch_scan<4, 32>(q, a);
    else launch_scan<8, 32>(q, a);
    return cuda_launched(q, "scan");
}
