/* cuda_scan.cu - selective scan over a tree, recurrent form, with activation replay in front: prefill and decode passes
 * of any size and type. Decode passes of the usual ones are in cuda_scan_warp.cu (a decay per head) and
 * cuda_scan_state.cu (a decay per state), the same bits; the windowed form is in cuda_scan_window.cu; prefill in 16 bit
 * with a decay per head in cuda_scan_prefill.cu, with a decay per state in cuda_scan_prefill_state.cu.
 *   dt = clamp(softplus(dt_in + dt_bias), dt_min, dt_max)
 *   S(node) = exp(dt A) S(parent) + (dt x) B^T;   y = S C + D x;   out = z ? y silu(z) : y
 * With a decay per head y is made of the parent's state, S C = exp(dt A) (S(parent) C) + (dt x) (B C): no leaf of a tree
 * has to compute a state of its own then.
 * S f32 [n_slot][n_head][head_dim][n_state]; x, z, y rows of n_head * head_dim (x: blocks of head_dim, shared by x_rep
 * heads), B, C rows of blocks of n_state. Sources: Mamba, eq. 2a with the authors' Euler step for B; Mamba-2; the tree
 * form of STree; activation replay of Snakes and Ladders (algorithms.md 7.2, 7.3, 8.3, 9.2, 9.3, 10.1).
 *
 * A group of LANES lanes owns CH channels, VS states each lane: all of S that it reads and writes, in registers.
 *   1. decode: the accepted path is absorbed from the caches' other half and S is stored;
 *   2. the nodes in the order of the step's visits, S of the *live* node in registers. Each visit goes on from the live
 *      state, from a saved one, from the stored one by absorbing the path's nodes once more, or from the parent's kept
 *      state: always the same function of the same values, hence the same bits. Nothing is stored, but with node_state
 *      every node's state, and with n_advance the state that the chain in front ends in.
 *
 * Where saved states lie: in the block's shared memory, each thread its own CH * VS floats, so that no one waits for
 * another. A place takes 128 * CH * VS * 4 bytes: 8 KiB with 128 states (Mamba-2), 2 KiB for Mamba-1, 16 KiB with
 * 256 states. Trees of 15, 63 and 255 nodes need 3, 5 and 7 places (spec_step_places). Mamba2-2.7B has 320 blocks
 * per sequence (80 heads, 4 tiles of 16 channels): with 255 nodes 63 KiB each, 3 to a multiprocessor of 227 KiB,
 * which is what registers allow too; so all blocks of one sequence are resident at once on 132 of them. 63 nodes
 * take 43 KiB. Global memory instead would be 7 * 2.6 MB per sequence and layer: it leaves a level 2 cache of 50 MB
 * at three sequences. On devices with less shared memory places that do not fit are not used: their visits rebuild
 * along the path.
 *
 * Prefill absorbs its rows in order and stores S.
 *
 * With one A per head (Mamba-2) a block's channels belong to one head, and the threads share a table of dt and
 * exp(dt A) per node; with A per state (Mamba-1, PER_STATE) both are computed where they are used. */
#include <type_traits>

#include "cuda_scan.cuh"

enum {
    SCAN_WARPS = 4,
    SCAN_THREADS = SCAN_WARPS * 32,
    SCAN_BATCH = 8,  /* replayed nodes whose loads are in flight together */
    SCAN_AHEAD = 4,  /* visits likewise */
    SCAN_PATH = 2 * (SPEC_MAX_DEPTH + 1), /* a chain in front, and a tree below it */
    SCAN_NODE_MAX = 2048,
    SCAN_TABLE_MIN = 128
};

/* A visit, packed as shared memory holds it: node | (load + 2) << 16 | (save + 1) << 24; -1 = none.
 * A step, what a group does next: node | from << 16 | (save + 1) << 20 | flags. A visit is one step, and one more for
 * each node that is absorbed again on the way to it. */
enum { FROM_LIVE = 0, FROM_STORED = 1, FROM_PARENT = 2, FROM_PLACE = 3, STEP_OUT = 1 << 24, STEP_END = 1 << 25 };

static __device__ int pack_visit(const spec_step_visit v, int first, int end, int n_place)
{
    if (v.node < first || v.node >= end) return -1;
    const int load = v.load < SPEC_LOAD_PATH || v.load >= n_place ? (int)SPEC_LOAD_PATH : v.load;
    const int save = v.save < 0 || v.save >= n_place ? -1 : v.save;
    return v.node | (load + 2) << 16 | (save + 1) << 24;
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

/* Two halves of load_run for aligned 16-bit values, two in a word: between them nothing waits for memory, so that
 * the loads of many nodes can be in flight. N is 1 or a multiple of 4. */
template <int N> struct raw_run {
    uint32_t w[(N + 1) / 2];
};
template <int N> static __device__ __forceinline__ void load_raw(raw_run<N> &r, const uint16_t *p)
{
    if constexpr (N == 1) {
        r.w[0] = *p;
    } else {
#pragma unroll
        for (int k = 0; k < N / 4; k++) {
            const uint2 v = ((const uint2 *)p)[k];
            r.w[2 * k] = v.x, r.w[2 * k + 1] = v.y;
        }
    }
}
template <int N> static __device__ __forceinline__ void unpack_raw(float out[N], const raw_run<N> &r, int dtype)
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float2 v = dtype == SPEC_DTYPE_BF16 ? unpack2<__nv_bfloat16>(r.w[k / 2]) : unpack2<__half>(r.w[k / 2]);
        out[k] = k % 2 ? v.y : v.x;
    }
}

/* What a node brings to the channels of a group. */
template <int VS, int CH> struct scan_in {
    float x[CH], b[VS], c[VS], dt, decay, z; /* c and z for rows only; decay with one A per head */
};

template <int VS, int LANES, int CH, bool PER_STATE>
static __global__ void __launch_bounds__(SCAN_THREADS, VS == 4 ? 3 : 2)
scan_kernel(const spec_step_block *step, const spec_scan_args a, int n_tile, int table_cap, int n_place)
{
    constexpr int GPW = 32 / LANES, QUADS = CH * VS / 4;
    extern __shared__ __align__(16) char dynamic[];
    float4 *saved = (float4 *)dynamic;                                        /* [n_place][QUADS][SCAN_THREADS] */
    float2 *table = (float2 *)(saved + n_place * QUADS * SCAN_THREADS);       /* dt, decay [table_cap] */
    int32_t *parent = (int32_t *)(PER_STATE ? (char *)table : (char *)(table + table_cap)); /* [n_node] */
    int32_t *visits = parent + a.n_node;                                      /* [n_node], packed */
    __shared__ int16_t chain[SCAN_WARPS][SCAN_PATH];

    grid_release();
    if ((int)blockIdx.y >= step->n_seq) return grid_wait();
    const int n_seq = (int)blockIdx.y;
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const spec_step_node *node = spec_step_nodes(step) + s.first_node;
    const int32_t *path = spec_step_paths(step) + s.first_path;
    const bool prefill = step->phase == SPEC_PHASE_PREFILL;
    const int tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, group = lane / LANES, l = lane % LANES;

    if (!prefill && (s.n_replay > a.n_node || s.n_fed + s.n_row > a.n_node))
        return grid_wait(); /* caches and tables hold n_node */

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

    const size_t half = ((size_t)s.slot * 2 + s.parity) * a.n_node;
    const size_t other = ((size_t)s.slot * 2 + (s.parity ^ 1)) * a.n_node;
    const int b_block = head / a.b_rep, b_width = spec_scan_columns(a.n_head, a.b_rep, a.n_state);
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
    /* x and B from the convolution's replay rows (or B from its cache); dt by `entry` of the table, or from the cache */
    auto fetch_replayed = [&](in_t &in, int entry, size_t cached) {
        const size_t row = ((size_t)n_seq * 2 * a.n_node + entry) * a.replay_ld;
        load_run<CH>(in.x, a.replay_y, a.dtype, row + a.replay_x_col + x_col, n_ch);
        if (a.b_in_conv) load_run<VS>(in.b, a.replay_y, a.dtype, row + a.replay_b_col + b_col, n_s);
        else load_run<VS>(in.b, a.cache_b, a.dtype, cached * b_width + b_col, n_s);
        if (PER_STATE) in.dt = a.cache_dt[cached * a.n_head + head];
        else in.dt = table[entry].x, in.decay = table[entry].y;
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
        if (a.z.data && is_out && out_ch < n_ch)
            in.z = load_any(a.z.data, a.z.dtype, (size_t)r * a.z.ld + y_col + out_ch);
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
    const bool by_four = VS % 4 == 0 && a.n_state % VS == 0 &&
                         (((uintptr_t)a.state | (uintptr_t)a.node_state) & 15) == 0;
    auto store_state = [&](float *to) {
        if (s0 >= a.n_state) return;
#pragma unroll
        for (int i = 0; i < CH; i++) {
            float *p = to + (size_t)i * a.n_state;
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
    /* The sum over a group's lanes of one value, or of one for each of four channels: of channel out_ch. */
    auto sum_lanes = [&](float v) {
#pragma unroll
        for (int m = LANES / 2; m > 0; m /= 2) v = v + __shfl_xor_sync(0xffffffffu, v, m);
        return v;
    };
    auto sum_channels = [&](const float *v) { /* each exchange halves the channels that a lane has */
        constexpr int H = LANES / 2, Q = LANES / 4;
        const bool hi = l & H, lo = l & Q;
        const float p0 = (hi ? v[2] : v[0]) + __shfl_xor_sync(0xffffffffu, hi ? v[0] : v[2], H);
        const float p1 = (hi ? v[3] : v[1]) + __shfl_xor_sync(0xffffffffu, hi ? v[1] : v[3], H);
        float y = (lo ? p1 : p0) + __shfl_xor_sync(0xffffffffu, lo ? p0 : p1, Q);
#pragma unroll
        for (int m = Q / 2; m > 0; m /= 2) y = y + __shfl_xor_sync(0xffffffffu, y, m);
        return y;
    };
    auto dot = [&](const float *p, const float *q) {
        float sum = p[0] * q[0];
#pragma unroll
        for (int v = 1; v < VS; v++) sum = fmaf(p[v], q[v], sum);
        return sum;
    };
    auto absorb_and_output = [&](const in_t &in, int r) {
        float y, x = in.x[0];
        if constexpr (PER_STATE) {
            absorb(in);
            y = sum_lanes(dot(state[0], in.c));
        } else { /* from the parent's state: four channels share B C, and a leaf needs no state of its own */
            const float x1 = in.x[1], x2 = in.x[2], x3 = in.x[3];
            x = out_ch & 2 ? (out_ch & 1 ? x3 : x2) : (out_ch & 1 ? x1 : x);
            float of_channel[CH];
#pragma unroll
            for (int i = 0; i < CH; i++) of_channel[i] = dot(state[i], in.c);
            y = fmaf(in.decay, sum_channels(of_channel), in.dt * x * sum_lanes(dot(in.b, in.c)));
            absorb(in);
        }
        if (is_out && out_ch < n_ch) {
            y = fmaf(skip, x, y);
            if (a.z.data) y = y * silu(in.z);
            store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + y_col + out_ch, y);
        }
    };

    auto load_state = [&](const float *from) {
#pragma unroll
        for (int i = 0; i < CH; i++)
            load_run<VS>(state[i], from + (size_t)i * a.n_state, SPEC_DTYPE_F32, 0, i < n_ch ? n_s : 0);
    };
    load_state(memory); /* no other kernel of the pass writes it */

    /* Tables: the path's entries, then the tree's nodes. The first tile of a head keeps dt for the replay to come. What
     * earlier passes left, and the step itself, need no wait. */
    const int n_tree = s.n_fed + s.n_row, n_known = s.n_replay + s.n_fed;
    auto keep_dt = [&](int entry, float dt) { table[entry] = make_float2(dt, scan_decay(dt, decay_rate[0])); };
    if (!prefill) {
        for (int e = tid; e < n_known && !PER_STATE; e += SCAN_THREADS)
            keep_dt(e, a.cache_dt[(e < s.n_replay ? other + path[e] : half + e - s.n_replay) * a.n_head + head]);
        for (int i = tid; i < n_tree; i += SCAN_THREADS) {
            const int up = node[i].parent;
            parent[i] = up < i && up >= 0 ? up : -1;
        }
        for (int i = tid; i < s.n_row; i += SCAN_THREADS)
            visits[i] = pack_visit(spec_step_visits(step)[s.first_row + i], s.n_fed, n_tree, n_place);
    }
    grid_wait();

    if (prefill) {
        for (int i0 = 0; i0 < s.n_row; i0 += table_cap) {
            const int n = min(s.n_row - i0, table_cap);
            if (!PER_STATE) {
                __syncthreads();
                for (int e = tid; e < n; e += SCAN_THREADS) {
                    keep_dt(e, row_dt(s.first_row + i0 + e));
                }
                __syncthreads();
            }
            in_t in, next;
            fetch_row(in, s.first_row + i0, 0, true);
            for (int i = 0; i < n; i++) {
                const int ahead = min(i + 1, n - 1);
                fetch_row(next, s.first_row + i0 + ahead, ahead, true);
                absorb_and_output(in, s.first_row + i0 + i);
                in = next;
            }
        }
        store_state(memory);
        return;
    }

    for (int i = tid; i < s.n_row && !PER_STATE; i += SCAN_THREADS) {
        const float dt = row_dt(s.first_row + i);
        keep_dt(n_known + i, dt);
        if ((int)blockIdx.x % n_tile == 0) a.cache_dt[(half + s.n_fed + i) * a.n_head + head] = dt;
    }

    /* Replay and visits are chains: their length times the latency of a load, unless the loads of several nodes are
     * in flight. That needs loads without branches between them, hence a path of its own for what real models have:
     * 16-bit, aligned, B where the family has it. All threads of a block take the same one. */
    const int c_first = n_ch > 0 ? 0 : -c0; /* groups without channels read those of the first */
    const uint16_t *replay0 = (const uint16_t *)a.replay_y + (size_t)n_seq * 2 * a.n_node * a.replay_ld;
    const uint16_t *replay_x = replay0 + a.replay_x_col + x_col + c_first, *replay_b = replay0 + a.replay_b_col + b_col;
    const uint16_t *cache_b = (const uint16_t *)a.cache_b + b_col;
    const uint16_t *row_x = (const uint16_t *)a.x.data + (size_t)s.first_row * a.x.ld + x_col + c_first;
    const uint16_t *row_b = (const uint16_t *)a.b.data + (size_t)s.first_row * a.b.ld + b_col;
    const uint16_t *row_c = (const uint16_t *)a.c.data + (size_t)s.first_row * a.c.ld + c_col;
    const float *row_z = a.z.data ? (const float *)a.z.data + (size_t)s.first_row * a.z.ld + y_col + c_first + out_ch
                                  : a.a + head; /* read and not used */
    const int z_ld = a.z.data ? a.z.ld : 0;
    const bool types = a.dtype != SPEC_DTYPE_F32 && a.x.dtype == a.dtype && a.b.dtype == a.dtype &&
                       a.c.dtype == a.dtype && (!a.z.data || a.z.dtype == SPEC_DTYPE_F32) &&
                       (PER_STATE ? !a.b_in_conv && a.dt.dtype == SPEC_DTYPE_F32 : a.b_in_conv != 0);
    const uintptr_t x_places = CH == 1 ? 0 : (uintptr_t)replay_x | (uintptr_t)row_x;
    const uintptr_t b_places = (uintptr_t)(PER_STATE ? cache_b : replay_b) | (uintptr_t)row_b | (uintptr_t)row_c;
    const int x_strides = CH == 1 ? 0 : a.replay_ld | a.x.ld;
    const int b_strides = (PER_STATE ? b_width : a.replay_ld) | a.b.ld | a.c.ld;
    const bool plain = types && (n_ch == CH || n_ch <= 0) && n_s == VS && ((x_places | b_places) & 7) == 0 &&
                       ((x_strides | b_strides) & 3) == 0;
    const bool fast = __syncthreads_and(plain) != 0; /* and the tables are there */

    struct raw_in {
        raw_run<CH> x;
        raw_run<VS> b, c;
        float z, dt;
    };
    if (fast) {
        for (int j = 0; j < s.n_replay; j += SCAN_BATCH) {
            raw_in batch[SCAN_BATCH];
#pragma unroll
            for (int u = 0; u < SCAN_BATCH; u++) {
                const int entry = min(j + u, s.n_replay - 1);
                load_raw<CH>(batch[u].x, replay_x + (size_t)entry * a.replay_ld);
                if constexpr (PER_STATE) {
                    const size_t cached = other + path[entry];
                    load_raw<VS>(batch[u].b, cache_b + cached * b_width);
                    batch[u].dt = a.cache_dt[cached * a.n_head + head];
                } else {
                    load_raw<VS>(batch[u].b, replay_b + (size_t)entry * a.replay_ld);
                }
            }
#pragma unroll
            for (int u = 0; u < SCAN_BATCH; u++) {
                if (j + u >= s.n_replay) break;
                in_t in;
                unpack_raw<CH>(in.x, batch[u].x, a.dtype);
                unpack_raw<VS>(in.b, batch[u].b, a.dtype);
                if (PER_STATE) in.dt = batch[u].dt;
                else in.dt = table[j + u].x, in.decay = table[j + u].y;
                absorb(in);
            }
        }
    } else {
        for (int j = 0; j < s.n_replay; j++) {
            in_t in;
            fetch_replayed(in, j, other + path[j]);
            absorb(in);
        }
    }
    if (s.n_replay > 0) store_state(memory);
    if (s.n_row <= 0) return;

    /* The steps, one after the other: visits, and in front of one that starts from the stored state its ancestors. The
     * stored state is that of node `base`, -1 before the tree. The same for all lanes of a warp. */
    int n_visit = 0, n_chain = 0, waiting = -1, last = s.n_fed, base = -1;
    auto next_step = [&]() -> int {
        if (n_chain > 0) return chain[warp][--n_chain] | FROM_LIVE << 16;
        int visit = waiting;
        waiting = -1;
        bool live = visit >= 0;
        while (visit < 0 && n_visit < s.n_row) visit = visits[n_visit++];
        if (visit < 0) return last | STEP_END;
        const int n = visit & 0xffff, load = live ? (int)SPEC_LOAD_LIVE : (visit >> 16 & 0xff) - 2;
        int out = n | (visit >> 24 & 0xf) << 20 | STEP_OUT;
        int k = parent[n];
        if (load == SPEC_LOAD_PATH && a.node_state && k >= 0) {
            out |= FROM_PARENT << 16;
        } else if (load == SPEC_LOAD_PATH) {
            int depth = 0;
            __syncwarp(); /* all lanes have read the chain before */
            for (; k >= 0 && k != base && depth < SCAN_PATH; k = parent[k]) {
                if (lane == 0) chain[warp][depth] = (int16_t)k;
                depth++;
            }
            __syncwarp();
            if (depth > 0) {
                n_chain = depth - 1, waiting = visit;
                return chain[warp][depth - 1] | FROM_STORED << 16;
            }
            out |= FROM_STORED << 16;
        } else if (load >= 0) {
            out |= (FROM_PLACE + load) << 16;
        }
        last = n;
        if (n == s.n_advance - 1) base = n;
        return out;
    };
    auto node_memory = [&](int n) {
        return a.node_state + ((((size_t)s.slot * a.n_node + n) * a.n_head + head) * a.head_dim + c0) * a.n_state + s0;
    };
    const bool keeps_b = !a.b_in_conv && a.cache_b && c0 == 0 && head % a.b_rep == 0;
    auto run_step = [&](const in_t &in, int what) {
        const int n = what & 0xffff, from = what >> 16 & 0xf, save = (what >> 20 & 0xf) - 1;
        if (from >= FROM_PLACE) {
#pragma unroll
            for (int k = 0; k < QUADS; k++) {
                const float4 v = saved[((from - FROM_PLACE) * QUADS + k) * SCAN_THREADS + tid];
                float *to = &state[4 * k / VS][4 * k % VS];
                to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
            }
        } else if (from != FROM_LIVE) {
            load_state(from == FROM_STORED ? memory : node_memory(parent[n]));
        }
        if (!(what & STEP_OUT)) return absorb(in);
        absorb_and_output(in, s.first_row + n - s.n_fed);
        if (save >= 0) {
#pragma unroll
            for (int k = 0; k < QUADS; k++) {
                const float *v = &state[4 * k / VS][4 * k % VS];
                saved[(save * QUADS + k) * SCAN_THREADS + tid] = make_float4(v[0], v[1], v[2], v[3]);
            }
        }
        if (a.node_state) store_state(node_memory(n));
        if (n == s.n_advance - 1) store_state(memory);
        if (PER_STATE && c0 == 0 && l == 0) a.cache_dt[(half + n) * a.n_head + head] = in.dt;
        if (keeps_b) {
#pragma unroll
            for (int v = 0; v < VS; v++)
                if (v < n_s) store_any(a.cache_b, a.dtype, (half + n) * b_width + b_col + v, in.b[v]);
        }
    };
    /* A step's values on their way: loads begun AHEAD steps before they are used. */
    struct slot_t {
        raw_in raw;
        in_t in;
        int what;
    };
    auto run_all = [&](auto tag) {
        constexpr bool FAST = decltype(tag)::value;
        constexpr int AHEAD = FAST ? SCAN_AHEAD : 1;
        auto begin = [&](slot_t &slot) {
            slot.what = next_step();
            const int n = slot.what & 0xffff, entry = s.n_replay + n;
            const bool cached = n < s.n_fed;
            if constexpr (FAST) {
                const size_t r = cached ? 0 : n - s.n_fed;
                load_raw<CH>(slot.raw.x, cached ? replay_x + (size_t)entry * a.replay_ld : row_x + r * a.x.ld);
                const uint16_t *b = PER_STATE ? cache_b + (half + n) * b_width : replay_b + (size_t)entry * a.replay_ld;
                load_raw<VS>(slot.raw.b, cached ? b : row_b + r * a.b.ld);
                load_raw<VS>(slot.raw.c, row_c + r * a.c.ld);
                slot.raw.z = row_z[r * z_ld];
                if constexpr (PER_STATE) {
                    const float *dt = (const float *)a.dt.data + (s.first_row + r) * a.dt.ld + head;
                    slot.raw.dt = *(cached ? a.cache_dt + (half + n) * a.n_head + head : dt);
                }
            } else if (cached) {
                fetch_replayed(slot.in, entry, half + n);
            } else {
                fetch_row(slot.in, s.first_row + n - s.n_fed, entry, true);
            }
        };
        auto end = [&](in_t &in, const slot_t &slot) {
            if constexpr (FAST) {
                const int n = slot.what & 0xffff;
                unpack_raw<CH>(in.x, slot.raw.x, a.dtype);
                unpack_raw<VS>(in.b, slot.raw.b, a.dtype);
                unpack_raw<VS>(in.c, slot.raw.c, a.dtype);
                in.z = slot.raw.z;
                if constexpr (PER_STATE)
                    in.dt = n < s.n_fed ? slot.raw.dt : scan_dt(slot.raw.dt, bias, a.dt_min, a.dt_max);
                else in.dt = table[s.n_replay + n].x, in.decay = table[s.n_replay + n].y;
            } else {
                in = slot.in;
            }
        };
        slot_t slot[AHEAD];
#pragma unroll
        for (int u = 0; u < AHEAD; u++) begin(slot[u]);
        for (;;) {
#pragma unroll
            for (int u = 0; u < AHEAD; u++) {
                const int what = slot[u].what;
                if (what & STEP_END) return;
                in_t in;
                end(in, slot[u]);
                begin(slot[u]);
                run_step(in, what);
            }
        }
    };
    if (fast) run_all(std::true_type{});
    else run_all(std::false_type{});
}

/* --------------------------------------------------------------------------------- launcher --- */

static spec_status check_window(spec_device *dev, const spec_scan_args *a)
{
    if (a->window != SPEC_WINDOW || a->n_ring < spec_window_ring(1, 0))
        return dev->host->fail(SPEC_E_INVALID, "cuda scan: windows of %d with rings of %d, need %d and at least %d",
                               a->window, a->n_ring, SPEC_WINDOW, spec_window_ring(1, 0));
    if (a->a_per_state || a->node_state || a->n_node > SCAN_WINDOW_NODES || a->n_ring > SCAN_WINDOW_RING)
        return dev->host->fail(SPEC_E_UNSUPPORTED,
                               "cuda scan: the windowed form takes one decay per head, keeps no states of nodes, and "
                               "does up to %d nodes and rings of %d (here %d and %d)", (int)SCAN_WINDOW_NODES,
                               (int)SCAN_WINDOW_RING, a->n_node, a->n_ring);
    /* Types and sizes may be asked for without addresses. */
    if (a->state && (!a->recent_x || !a->recent_b || !a->recent_dt))
        return dev->host->fail(SPEC_E_INVALID, "cuda scan: the windowed form without rings");
    return SPEC_OK;
}

spec_status speci_cuda_check_scan(spec_device *dev, const spec_scan_args *a)
{
    if (a->n_head < 1 || a->head_dim < 1 || a->n_state < 1 || a->n_node < 1 || a->x_rep < 1 || a->b_rep < 1 ||
        a->c_rep < 1 || a->n_head % a->x_rep || a->n_head % a->b_rep || a->n_head % a->c_rep)
        return dev->host->fail(SPEC_E_INVALID, "cuda scan: %d heads of %d, %d states, %d nodes, shared by %d, %d, %d",
                               a->n_head, a->head_dim, a->n_state, a->n_node, a->x_rep, a->b_rep, a->c_rep);
    if (a->n_state > 256 || a->n_node > SCAN_NODE_MAX)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda scan: %d states and %d nodes, can do 256 and %d", a->n_state,
                               a->n_node, (int)SCAN_NODE_MAX);
    if (a->window) SPEC_TRY(check_window(dev, a));
    if (!cuda_is_float(a->dtype) || !cuda_is_float(a->x.dtype) || !cuda_is_float(a->b.dtype) ||
        !cuda_is_float(a->c.dtype) || !cuda_is_float(a->dt.dtype) || (a->z.data && !cuda_is_float(a->z.dtype)) ||
        !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda scan: float types only");
    return SPEC_OK;
}

template <int VS, int LANES, int CH, bool PER_STATE>
static spec_status launch(spec_queue *q, const spec_scan_args *a, unsigned blocks, int n_tile, int table_cap)
{
    const bool decode = q->shape.phase == SPEC_PHASE_DECODE;
    const size_t tables = (PER_STATE ? 0 : (size_t)table_cap * sizeof(float2)) + (size_t)a->n_node * 8;
    const size_t place = (size_t)SCAN_THREADS * CH * VS * sizeof(float), limit = scan_shared_limit(q->dev);
    int n_place = decode ? spec_step_places(a->n_node) : 0;
    while (n_place > 0 && tables + (size_t)n_place * place > limit) n_place--;
    const size_t bytes = tables + (size_t)n_place * place;
    scan_allow_shared(q->dev, scan_kernel<VS, LANES, CH, PER_STATE>, bytes);
    return cuda_launch(q, "scan", scan_kernel<VS, LANES, CH, PER_STATE>, dim3(blocks, (unsigned)q->shape.seqs),
                       dim3(SCAN_THREADS), bytes, 1, q->d_step, *a, n_tile, table_cap, n_place);
}

template <int VS, int LANES> static spec_status launch_scan(spec_queue *q, const spec_scan_args *a)
{
    if (a->a_per_state) {
        const int blocks = cuda_div_up((int64_t)a->n_head * a->head_dim, SCAN_WARPS * (32 / LANES));
        return launch<VS, LANES, 1, true>(q, a, (unsigned)blocks, 1, CUDA_PREFILL_CHUNK);
    } else {
        const int n_tile = cuda_div_up(a->head_dim, SCAN_WARPS * (32 / LANES) * 4);
        const int cap = a->n_node * 2 > SCAN_TABLE_MIN ? a->n_node * 2 : (int)SCAN_TABLE_MIN;
        return launch<VS, LANES, 4, false>(q, a, (unsigned)(a->n_head * n_tile), n_tile, cap);
    }
}

spec_status speci_cuda_scan(spec_queue *q, const spec_scan_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "scan"));
    SPEC_TRY(speci_cuda_check_scan(q->dev, a));
    spec_status status = SPEC_OK;
    if (a->window && q->shape.phase == SPEC_PHASE_DECODE)
        return speci_cuda_scan_window_matrix(q, a, &status) ? status : speci_cuda_scan_window(q, a);
    if (speci_cuda_scan_prefill(q, a, &status) || speci_cuda_scan_prefill_state(q, a, &status) ||
        speci_cuda_scan_warp(q, a, &status) || speci_cuda_scan_state(q, a, &status))
        return status;
    if (a->n_state <= 16) return launch_scan<4, 4>(q, a);
    if (a->n_state <= 32) return launch_scan<4, 8>(q, a);
    if (a->n_state <= 64) return launch_scan<4, 16>(q, a);
    if (a->n_state <= 128) return launch_scan<4, 32>(q, a);
    return launch_scan<8, 32>(q, a);
}
