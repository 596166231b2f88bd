/* cuda_scan_window_matrix.cu - the windowed scan (spec_scan_args) on the matrix instruction: decode passes with 16-bit x, B
 * and C from the convolution, and 64 or 128 states.
 *
 *   y_i = E_i (S C_i) + sum over near tokens j of (P_ij dt_j) (C_i . B_j) x_j + D x_i
 *
 * A block has up to WINDOW_UNITS units of 16 channels, of heads that share B and C. Of a unit's state a warp has 16 channels
 * x 32 states in registers, as the instruction leaves sums (m16n8): what a fold adds to, and, two columns taken for two k,
 * what S C multiplies (m16n8k8). x, B and C of the tokens lie in shared memory; rows are done WINDOW_CHUNK at a time, or
 * fewer, where the blocks of a cluster take chunks of the same channels by turns:
 *   1  S C of each row, a part from each warp; C . B of every row and token, a tile of 8 x 16 a warp's task; the powers P of
 *      a row and head by a warp, a product over lanes with the newest token in lane 0;
 *   2  a thread to a row and V channels: the sum over its near tokens, D x, the gate; and a deferred norm behind, of which a
 *      unit's squares are one sum.
 * What is computed, a state and u x of a fold, is a float32 there: two numbers of TF32, 22 bits. x, B and C are one, exactly.
 *
 * The order of each sum follows from the number of states and a token's place on its path, so it is the same whatever else
 * is in the pass. The state and what the rings hold are read before the kernel waits for the one in front. */
#include <type_traits>

#include "cuda_cluster.cuh"
#include "cuda_linear.cuh"
#include "cuda_norm.cuh"
#include "cuda_scan.cuh"

enum {
    WINDOW_NEAR = 2 * SPEC_WINDOW,  /* near tokens of a row at most */
    WINDOW_CHANNELS = 16,           /* of a unit */
    WINDOW_UNITS = 5,               /* of a block, at most */
    WINDOW_STATES = 32,             /* of a warp */
    WINDOW_TILES = WINDOW_STATES / 8,
    WINDOW_CHUNK = 32,              /* rows */
    WINDOW_PAD = 8,                 /* values behind a row of B or C: the rows that ldmatrix reads lie on different banks */
    WINDOW_FEW = 4,                 /* rows whose near tokens are divided among threads */
    WINDOW_LIST = WINDOW_NEAR + 2,  /* from one list of near tokens to the next, which lies on other banks */
    WINDOW_MORE = 4,                /* warps of a block without a state, */
    WINDOW_WARPS = 20               /* where registers suffice */
};
static_assert(WINDOW_NEAR == 32, "a near token is a lane's");
static_assert(WINDOW_CHANNELS == SPEC_SQUARES, "a row's squares of a unit are one sum");

/* n / by for n and by < 2^15, by a multiplication. */
struct window_div {
    uint32_t by, magic;
    __device__ __forceinline__ int of(int n) const { return (int)__umulhi((uint32_t)n * 2, magic); }
};
static window_div divide_by(int by) { return { (uint32_t)by, (1u << 31) / (uint32_t)by + 1 }; }

/* How a launch divides the channels of a group of heads that share B and C (one of these may be shared by more). */
struct window_grid {
    int32_t group;       /* heads of the group */
    int32_t units;       /* of a block */
    int32_t group_units; /* of a group */
    int32_t heads;       /* of a block, at most */
    int32_t chunk;       /* rows */
    int32_t tokens;      /* places for tokens: a window to fold, the recent ones, the tree, and none */
    int32_t b_width, x_width;                       /* of the rings */
    window_div per_head, x_rep, b_rep, c_rep, wide; /* units of a head; heads that share x, B, C; outputs of a row */
    window_div by_heads;                            /* `heads` */
    uint32_t ring_magic;                            /* 2^32 / entries of a ring, less than one off */
};

/* A token near a row: P dt, then the weight of its x, and its place, then where x is. */
struct __align__(8) window_near {
    float weight;
    int32_t place;
};

/* A block's shared memory. A token's place: of a window that is folded in front, 0 and on; FIRST and on the recent tokens
 * that are left, then the tree's nodes. The last place is no token's: x and C . B are 0 there. */
template <typename T, int NS, bool NORM> struct window_memory {
    static constexpr int FIRST = SPEC_WINDOW, LD = NS + WINDOW_PAD, PARTS = NS / WINDOW_STATES;
    static constexpr int WEIGHTS = NORM ? WINDOW_UNITS * WINDOW_CHANNELS : 0; /* of the norm behind, at most */
    int x_ld, sum_ld, dot_ld;
    float *weight;     /* [WEIGHTS] */
    T *b, *c;          /* [tokens][LD], [chunk][LD] */
    T *x;              /* [tokens][x_ld] */
    window_near *near; /* lists of the chunk's rows and heads (list_at), WINDOW_LIST apart: the oldest first, the row's own last */
    float2 *time;      /* dt and decay: [heads][tokens] */
    float *sum;        /* S C: [PARTS][chunk][sum_ld] */
    float *dot;        /* C . B: [tokens][dot_ld] */
    float *decay;      /* E, likewise */
    float *fold;       /* of a window: [heads] E, then [heads][SPEC_WINDOW] P dt */
    int16_t *parent, *depth; /* [tokens] of the tree's nodes */
    uint16_t *place;   /* [SPEC_WINDOW] of a window's tokens */

    static __host__ __device__ size_t bytes(const window_grid &g)
    {
        const size_t tokens = (size_t)g.tokens, chunk = (size_t)g.chunk, heads = (size_t)g.heads;
        const size_t wide = (size_t)g.units * WINDOW_CHANNELS;
        return sizeof(T) * (tokens * LD + chunk * LD + tokens * wide) + sizeof(window_near) * heads * chunk * WINDOW_LIST +
               sizeof(float2) * heads * tokens +
               sizeof(float) * (WEIGHTS + PARTS * chunk * (wide + 4) + tokens * (chunk + 1) + heads * (chunk + SPEC_WINDOW + 1)) +
               sizeof(int16_t) * (2 * tokens + SPEC_WINDOW);
    }
    __device__ __forceinline__ window_memory(char *memory, const window_grid &g)
    {
        x_ld = g.units * WINDOW_CHANNELS, sum_ld = x_ld + 4, dot_ld = g.chunk + 1;
        weight = (float *)memory, b = (T *)(weight + WEIGHTS), c = b + g.tokens * LD, x = c + g.chunk * LD;
        near = (window_near *)(x + g.tokens * x_ld);
        time = (float2 *)(near + g.heads * g.chunk * WINDOW_LIST);
        sum = (float *)(time + g.heads * g.tokens), dot = sum + PARTS * g.chunk * sum_ld;
        decay = dot + g.tokens * dot_ld, fold = decay + g.heads * g.chunk;
        parent = (int16_t *)(fold + g.heads * (SPEC_WINDOW + 1)), depth = parent + g.tokens;
        place = (uint16_t *)(depth + g.tokens);
    }
};

/* acc[16][8] += A[16][8] B[8][8] of TF32: the upper 19 bits of each are read. */
static __device__ __forceinline__ void mma1688(float acc[4], float a0, float a1, float a2, float a3, float b0, float b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)),
          "r"(__float_as_uint(b0)), "r"(__float_as_uint(b1)));
}
static __device__ __forceinline__ float upper(float v) { return __uint_as_float(__float_as_uint(v) & 0xffffe000u); }

/* A warp's part of a unit's state, as the instruction leaves sums: of tile i channels g, g + 8 and states 8 i + 2 t, + 1. */
struct window_state {
    float v[WINDOW_TILES][4];

    __device__ __forceinline__ void load(const float *memory, int ns)
    {
#pragma unroll
        for (int i = 0; i < 2 * WINDOW_TILES; i++) {
            const float2 two = *(const float2 *)(memory + i % 2 * 8 * ns + i / 2 * 8);
            v[i / 2][i % 2 * 2] = two.x, v[i / 2][i % 2 * 2 + 1] = two.y;
        }
    }
    __device__ __forceinline__ void store(float *memory, int ns) const
    {
#pragma unroll
        for (int i = 0; i < 2 * WINDOW_TILES; i++)
            *(float2 *)(memory + i % 2 * 8 * ns + i / 2 * 8) = make_float2(v[i / 2][i % 2 * 2], v[i / 2][i % 2 * 2 + 1]);
    }
};

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

/* The sum over a row's near tokens is one of WINDOW_GROUPS sums over four, by their places among the WINDOW_NEAR that end
 * with the row, added up as a tree. With few rows (FEW) a group is a thread's, with the norm behind two. */
enum { WINDOW_GROUPS = WINDOW_NEAR / 4 };


/* Registers of a thread: the fewest without spilling; or so few that three blocks fit a multiprocessor, where there are SEVERAL
 * for each. */
static constexpr int window_registers(bool several) { return several ? 80 : 96; }

/* Has the address found here: the compiler would find it where it is used, behind the wait, where nothing else hides that. It
 * cannot know that no address is odd. */
static __device__ __forceinline__ void found(const void *p)
{
    asm volatile("{ .reg .b32 low; .reg .pred odd; cvt.u32.u64 low, %0; and.b32 low, low, 1; setp.ne.u32 odd, low, 0;"
                 " @odd trap; }" ::"l"(p)
                 : "memory");
}

/* Kinds of launches that have kernels of their own, since what others have to know would take registers, and instructions
 * behind the wait. */
enum {
    WINDOW_IS_FEW = 1,     /* up to WINDOW_FEW rows a chunk */
    WINDOW_IS_SEVERAL = 2, /* several blocks for each multiprocessor */
    WINDOW_IS_SPLIT = 4,   /* the blocks of a cluster take chunks by turns */
    WINDOW_IS_ONE = 8,     /* a block has one chunk at most */
    WINDOW_IS_NORM = 16    /* the deferred norm behind */
};

/* V: channels that a thread sums for. */
template <typename T, int NS, int V, int KIND>
static __global__ void __maxnreg__(window_registers(KIND & WINDOW_IS_SEVERAL))
window_kernel(const spec_step_block *step, const spec_scan_args a, const window_grid grid, const norm_out norm)
{
    constexpr bool FEW = KIND & WINDOW_IS_FEW, SPLIT = KIND & WINDOW_IS_SPLIT, ONE = KIND & WINDOW_IS_ONE, NORM = KIND & WINDOW_IS_NORM;
    typedef window_memory<T, NS, NORM> layout;
    constexpr int FIRST = layout::FIRST, LD = layout::LD, PARTS = layout::PARTS;
    constexpr int LANES = !FEW ? 1 : NORM ? WINDOW_GROUPS / 2 : (int)WINDOW_GROUPS; /* of an output */
    extern __shared__ __align__(16) char dynamic[];
    const int tid = (int)threadIdx.x, n_thread = (int)blockDim.x, warp = tid / 32, n_warp = n_thread / 32, lane = tid % 32;
    const int g = lane / 4, t = lane % 4;

    const int n_seq = (int)blockIdx.y;
    const spec_step_seq s = spec_step_seqs(step)[n_seq]; /* beyond the last there is memory too */
    if (n_seq >= step->n_seq) return grid_wait();
    const int n_tree = s.n_fed + s.n_row, n_known = s.n_recent + s.n_replay;
    if (!scan_window_fits(a, s)) return grid_wait();
    const int n_fold = spec_window_folds(n_known), first = n_fold * SPEC_WINDOW, n_left = n_known - first;
    /* Which rows: a block sees those of its chunks and all in front of them, their ancestors; the first block of a cluster
     * those that the rings will keep as well. */
    const int rank = SPLIT ? cluster_rank() : 0, begin = rank * grid.chunk, stride = SPLIT ? cluster_size() * grid.chunk : grid.chunk;
    if (rank > 0 && begin >= s.n_row) return grid_wait();
    const int n_first = min(s.n_row - begin, grid.chunk); /* rows of its first chunk */
    const int n_seen = !SPLIT || begin + stride < s.n_row ? s.n_row : max(begin + n_first, rank == 0 ? s.n_advance : 0);
    const int tree0 = FIRST + n_left, none = grid.tokens - 1; /* places of node 0, and of no token */

    /* Which channels: units of a group, counted through its heads. */
    const int first_head = (int)blockIdx.z * grid.group, unit0 = (SPLIT ? cluster_id() : (int)blockIdx.x) * grid.units;
    const int n_unit = min(grid.units, grid.group_units - unit0), channel0 = first_head * a.head_dim + unit0 * WINDOW_CHANNELS;
    const int in_group = grid.per_head.of(unit0), head0 = first_head + in_group; /* heads are counted from head0 */
    auto head_of = [&](int unit) { return grid.per_head.of(unit0 + unit) - in_group; };
    const int n_head = head_of(n_unit - 1) + 1;
    const int first_kept = unit0 > in_group * (int)grid.per_head.by ? 1 : 0; /* head 0 may be of the block in front too, which
                                                                                keeps its dt */
    const bool has_state = warp < n_unit * PARTS;
    const int unit = has_state ? warp / PARTS : 0, part = warp % PARTS;
    float *const memory = a.state + ((size_t)s.slot * a.n_head * a.head_dim + channel0 + unit * WINDOW_CHANNELS + g) * NS +
                          part * WINDOW_STATES + 2 * t;
    window_state state;
    if (has_state) state.load(memory, NS);
    const layout shared(dynamic, grid);

    /* x and B of a token, a warp to a token: 16 bytes a lane, the first ones' of B. */
    const bool has_b = lane < NS / 8;
    const int x_lane = lane - NS / 8, x_unit = min(max(x_lane, 0) / 2, n_unit - 1), x_head = head0 + head_of(x_unit);
    const bool has_x = x_lane >= 0 && x_lane < 2 * n_unit, copies = has_b || has_x;
    const int x_block = grid.x_rep.of(x_head);
    const int x_col = x_block * a.head_dim + (unit0 + x_unit) * WINDOW_CHANNELS - (x_head - first_head) * a.head_dim + x_lane % 2 * 8;
    const int b_block = grid.b_rep.of(first_head), col = has_b ? b_block * NS + lane * 8 : x_col;
    const uint32_t to_ld = (has_b ? LD : shared.x_ld) * (uint32_t)sizeof(T);
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(has_b ? shared.b + lane * 8 : shared.x + max(x_lane, 0) * 8);

    /* Where committed tokens are, by their number: the recent ones in the rings, those of the path in replay_y. */
    const int half = (s.slot * 2 + s.parity) * a.n_node, other = half + (s.parity ? -a.n_node : a.n_node);
    int oldest = s.n_past - n_known; /* modulo the ring: the quotient is found, or one less */
    oldest -= (int)__umulhi((uint32_t)oldest, grid.ring_magic) * a.n_ring;
    oldest -= oldest < a.n_ring ? 0 : a.n_ring;
    const int ring = s.slot * a.n_ring;
    auto entry_of = [&](int k) {
        const int e = oldest + k;
        return ring + (e < a.n_ring ? e : e - a.n_ring);
    };
    T *const rings = (T *)(has_b ? a.recent_b : a.recent_x) + col;
    const int ring_ld = has_b ? grid.b_width : grid.x_width;
    const T *const replay = (const T *)a.replay_y + (size_t)n_seq * 2 * a.n_node * a.replay_ld +
                            (has_b ? a.replay_b_col : a.replay_x_col) + col;
    /* Tokens that are held from place held0 on: a window to fold, if there is one, then those that are left; the windows in
     * between come later (need_windows). What copies tokens from number k0 on to `place` skips them as well. */
    const int held0 = n_fold > 0 ? 0 : FIRST, n_held = n_left + FIRST - held0, between = max(first - SPEC_WINDOW, 0);
    auto number_of = [&](int k0, int i) { return k0 + i + (i < SPEC_WINDOW ? 0 : between); };
    auto copy_recent = [&](int place, int k0, int n) { /* of them those in the rings */
#pragma unroll 1
        for (int i = warp; i < n; i += n_warp) {
            const int k = number_of(k0, i);
            if (copies && k < s.n_recent) scan_copy16(to + (place + i) * to_ld, rings + (size_t)entry_of(k) * ring_ld);
        }
    };
    auto copy_path = [&](int place, int k0, int n) { /* those of the path */
#pragma unroll 1
        for (int i = warp; i < n; i += n_warp) {
            const int entry = number_of(k0, i) - s.n_recent;
            if (copies && entry >= 0) scan_copy16(to + (place + i) * to_ld, replay + (size_t)entry * a.replay_ld);
        }
    };
    auto copy_fed = [&]() {
#pragma unroll 1
        for (int i = warp; i < s.n_fed; i += n_warp)
            if (copies) scan_copy16(to + (tree0 + i) * to_ld, replay + (size_t)(s.n_replay + i) * a.replay_ld);
    };

    /* dt and decay of a token. */
    auto keep_time = [&](int h, int place, float dt) {
        shared.time[h * grid.tokens + place] = make_float2(dt, scan_decay(dt, a.a[head0 + h]));
    };
    auto dt_known = [&](int h, int k) { /* of token k */
        const int j = k - s.n_recent, own = head0 + h;
        return j < 0 ? a.recent_dt[(size_t)entry_of(k) * a.n_head + own]
                     : a.cache_dt[(size_t)(other + spec_step_paths(step)[s.first_path + j]) * a.n_head + own];
    };
    /* dt of the rows: a warp's task is a head and 32 rows; the first tasks are of warps that have no state. */
    struct rate_bias {
        float rate, bias;
    };
    const int n_dt = (n_seen + 31) / 32 * grid.heads, first_task = n_warp - 1 - warp;
    auto task_head = [&](int task) { return task - grid.by_heads.of(task) * grid.heads; };
    auto task_row = [&](int task) { return grid.by_heads.of(task) * 32 + lane; };
    auto where_dt = [&](int task) { /* of a row that is not there, that of the last one */
        const int h = min(task_head(task), n_head - 1), i = min(task_row(task), n_seen - 1);
        return (const float *)a.dt.data + (size_t)(s.first_row + i) * a.dt.ld + head0 + h;
    };
    auto head_decay = [&](int task) {
        const int own = head0 + min(task_head(task), n_head - 1);
        return rate_bias{ a.a[own], a.dt_bias ? a.dt_bias[own] : 0.0f };
    };
    auto keep_dt = [&](int task, float dt, const rate_bias &decay) {
        const int h = task_head(task), i = task_row(task);
        if (h >= n_head || i >= n_seen) return;
        dt = scan_dt(dt, decay.bias, a.dt_min, a.dt_max);
        shared.time[h * grid.tokens + tree0 + s.n_fed + i] = make_float2(dt, scan_decay(dt, decay.rate));
        if (h >= first_kept && i >= begin) a.cache_dt[(size_t)(half + s.n_fed + i) * a.n_head + head0 + h] = dt;
    };
    auto ancestor = [&](int i, int up) { /* of node i: the one `up` levels above */
        for (; up > 0 && i > 0; up--) i = shared.parent[i];
        return i;
    };

    /* Of the chunk's row r and head h. With many rows heads that a warp asks for together lie on different banks too. */
    auto list_at = [&](int r, int h) { return V == 2 ? h * grid.chunk + r : r * grid.heads + h; };

    /* ---- the state ---- */

    /* Folds the window whose token k is at place_of(k). */
    auto fold = [&](auto place_of) {
        __syncthreads(); /* the window before has been read */
        if (warp < n_head) {
            const int k = SPEC_WINDOW - 1 - lane % SPEC_WINDOW, place = place_of(k);
            const float2 v = shared.time[warp * grid.tokens + place];
            const float with = product_up_to(v.y, lane), before = __shfl_up_sync(0xffffffffu, with, 1);
            if (lane < SPEC_WINDOW) shared.fold[grid.heads + warp * SPEC_WINDOW + k] = (lane == 0 ? 1.0f : before) * v.x;
            if (lane == SPEC_WINDOW - 1) shared.fold[warp] = with;
            if (warp == 0 && lane < SPEC_WINDOW) shared.place[k] = (uint16_t)place;
        }
        __syncthreads();
        if (!has_state) return;
        const int h = head_of(unit);
        const float decay = shared.fold[h];
        const float *const u = shared.fold + grid.heads + h * SPEC_WINDOW;
#pragma unroll
        for (int i = 0; i < 4 * WINDOW_TILES; i++) state.v[i / 4][i % 4] = decay * state.v[i / 4][i % 4];
#pragma unroll 1
        for (int k = t; k < SPEC_WINDOW; k += 8) {
            const int p0 = shared.place[k], p1 = shared.place[k + 4];
            const T *const x0 = shared.x + p0 * shared.x_ld + unit * WINDOW_CHANNELS + g;
            const T *const x1 = shared.x + p1 * shared.x_ld + unit * WINDOW_CHANNELS + g;
            const T *const b0 = shared.b + p0 * LD + part * WINDOW_STATES + g;
            const T *const b1 = shared.b + p1 * LD + part * WINDOW_STATES + g;
            const float v[4] = { u[k] * to_f32(x0[0]), u[k] * to_f32(x0[8]), u[k + 4] * to_f32(x1[0]),
                                 u[k + 4] * to_f32(x1[8]) };
            float high[4], low[4];
#pragma unroll
            for (int i = 0; i < 4; i++) high[i] = upper(v[i]), low[i] = v[i] - high[i];
#pragma unroll
            for (int i = 0; i < WINDOW_TILES; i++) {
                const float c0 = to_f32(b0[i * 8]), c1 = to_f32(b1[i * 8]);
                mma1688(state.v[i], high[0], high[1], high[2], high[3], c0, c1);
                mma1688(state.v[i], low[0], low[1], low[2], low[3], c0, c1);
            }
        }
    };
    /* S C of those rows of the chunk whose bits are set. */
    auto multiply_state = [&](uint32_t rows) {
        const T *const c = shared.c + part * WINDOW_STATES + 2 * t;
        float *const sum = shared.sum + part * grid.chunk * shared.sum_ld + unit * WINDOW_CHANNELS + g;
#pragma unroll 1
        for (int r0 = 0; r0 < (FEW ? 8 : grid.chunk); r0 += 8) {
            if (!(rows >> r0 & 0xff)) continue;
            const T *const from = c + min(r0 + g, grid.chunk - 1) * LD;
            float high[4] = {}, low[4] = {};
#pragma unroll
            for (int i = 0; i < WINDOW_TILES; i++) { /* columns 2 t and 2 t + 1 of a tile are its k = t and t + 4 */
                const float2 two = unpack2<T>(*(const uint32_t *)(from + i * 8));
                const float *const v = state.v[i];
                const float u[4] = { upper(v[0]), upper(v[2]), upper(v[1]), upper(v[3]) };
                mma1688(high, u[0], u[1], u[2], u[3], two.x, two.y);
                mma1688(low, v[0] - u[0], v[2] - u[1], v[1] - u[2], v[3] - u[3], two.x, two.y);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const int r = r0 + 2 * t + k % 2;
                if (rows >> r & 1) sum[r * shared.sum_ld + k / 2 * 8] = high[k] + low[k];
            }
        }
    };
    int in_front = n_fold; /* windows of committed tokens that are folded, and the state stored, before all else */
    bool stored = true;    /* the state in registers is the stored one */
    /* The state that node i needs: the stored one, n windows on; and before, those of committed tokens are folded. */
    auto need_windows = [&](int i, int n) {
        if (has_state && !stored) state.load(memory, NS);
#pragma unroll 1
        for (int w = 0; w < in_front + n; w++) {
            const bool known = w < in_front;
            if (known && w > 0) {
                __syncthreads(); /* the window before has been read */
                copy_recent(0, w * SPEC_WINDOW, SPEC_WINDOW);
                copy_path(0, w * SPEC_WINDOW, SPEC_WINDOW);
                if (warp < n_head && lane < SPEC_WINDOW) keep_time(warp, lane, dt_known(warp, w * SPEC_WINDOW + lane));
                scan_copies_wait();
                __syncthreads();
            }
            fold([&](int k) { /* of a tree: tokens that are left, then ancestors */
                const int j = (w - in_front) * SPEC_WINDOW + k;
                if (known || j < n_left) return known ? k : FIRST + j;
                return tree0 + ancestor(i, shared.depth[i] - (j - n_left));
            });
            if (w != in_front - 1) continue;
            if (SPLIT) cluster_sync(); /* all blocks have read it */
            if (rank == 0 && has_state) state.store(memory, NS);
            if (SPLIT) cluster_sync(); /* and may read it again */
        }
        in_front = 0, stored = n == 0;
    };
    auto first_rows = [](int n) { return n > 0 ? 0xffffffffu >> (32 - n) : 0u; };
    /* S C of n rows from row0 on: those that need the same state together. plain: all need the stored one as it is, which is asked
     * first, so that nothing that the others need is found in front. */
    auto multiply_states = [&](int row0, int n, bool plain) {
        if (plain) {
            if (has_state) multiply_state(first_rows(n));
            return;
        }
        int key = 0; /* of this lane's row: how many windows, and the ancestor at which they end */
        if (lane < n) {
            const int i = s.n_fed + row0 + lane, depth = shared.depth[i], folds = spec_window_folds(n_left + depth);
            const int last = folds * SPEC_WINDOW - 1 - n_left; /* its depth */
            key = folds << 16 | (folds > 0 && last >= 0 ? ancestor(i, depth - last) + 1 : 0);
        }
        uint32_t todo = first_rows(n);
        do { /* once if there are no rows */
            const int r = max(__ffs((int)todo) - 1, 0), wanted = __shfl_sync(0xffffffffu, key, r);
            const uint32_t rows = __ballot_sync(0xffffffffu, lane < n && key == wanted);
            if (in_front > 0 || !stored || wanted != 0) /* all warps agree */
                need_windows(s.n_fed + row0 + r, wanted >> 16);
            todo &= ~rows;
            if (has_state) multiply_state(rows);
        } while (todo);
    };

    /* ---- the tokens ---- */

    /* C . B of 8 rows of the chunk, from r0 on, and 16 tokens, from place j0 on. */
    auto multiply_tokens = [&](int r0, int j0) {
        const T *const from = shared.b + min(j0 + lane % 16, grid.tokens - 1) * LD + lane / 16 * 8;
        const uint32_t b = (uint32_t)__cvta_generic_to_shared(from);
        const T *const c = shared.c + min(r0 + g, grid.chunk - 1) * LD + 2 * t;
        float acc[2][4] = {};
#pragma unroll
        for (int k = 0; k < NS; k += 16) {
            uint32_t m[4];
            load_matrices(m, b + k * (int)sizeof(T));
            mma16816<T>(acc[k / 16 % 2], m[0], m[1], m[2], m[3], *(const uint32_t *)(c + k), *(const uint32_t *)(c + k + 8));
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int j = j0 + g + k / 2 * 8, r = r0 + 2 * t + k % 2;
            if (j < tree0 + n_tree && r < grid.chunk) shared.dot[j * shared.dot_ld + r] = acc[0][k] + acc[1][k];
        }
    };
    /* The tokens near row r of the chunk, a node; a lane to a token, the newest in lane 0. */
    auto find_near = [&](int r, int node) {
        const int depth = shared.depth[node], n_near = spec_window_left(n_left + depth) + 1;
        int place = FIRST + n_left + depth - lane; /* of a token that is left */
#pragma unroll 1
        for (int k = 0, j = node; k <= depth && k < WINDOW_NEAR; k++) {
            if (lane == k) place = tree0 + j;
            j = shared.parent[j];
        }
        const bool is_near = lane < n_near;
        if (!is_near) place = none;
#pragma unroll 1
        for (int h0 = 0; h0 < n_head; h0 += 2) { /* two heads at once hide each other's latency */
            const int h[2] = { h0, min(h0 + 1, n_head - 1) };
            float2 v[2];
            float with[2];
#pragma unroll
            for (int k = 0; k < 2; k++) v[k] = shared.time[h[k] * grid.tokens + place], with[k] = v[k].y;
#pragma unroll
            for (int d = 1; d < 32; d *= 2)
#pragma unroll
                for (int k = 0; k < 2; k++) with[k] = product_step(with[k], d, lane);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float before = __shfl_up_sync(0xffffffffu, with[k], 1);
                const int at = list_at(r, h[k]);
                window_near near;
                near.weight = is_near ? (lane == 0 ? 1.0f : before) * v[k].x : 0.0f, near.place = place;
                shared.near[at * WINDOW_LIST + WINDOW_NEAR - 1 - lane] = near;
                if (lane == n_near - 1) shared.decay[at] = with[k];
            }
        }
    };
    /* The most tokens that are near one of the chunk's n rows. With few rows this takes longer than what it saves. */
    auto most_near = [&](int row0, int n) {
        if (V == 2) return n_left + n_tree;
        return __reduce_max_sync(0xffffffffu, lane < n ? spec_window_left(n_left + shared.depth[s.n_fed + row0 + lane]) + 1 : 0);
    };
    /* x, B and dt of the recent token at FIRST + i, for later passes. */
    auto keep_recent = [&](int i) {
        const int entry = entry_of(first + i), place = FIRST + i;
        const bool keeps = has_b ? unit0 == 0 && b_block * (int)grid.b_rep.by == first_head
                                 : has_x && x_block * (int)grid.x_rep.by == x_head; /* of blocks that share it one */
        const T *const from = has_b ? shared.b + place * LD + lane * 8 : shared.x + place * shared.x_ld + x_lane * 8;
        if (keeps) *(uint4 *)(rings + (size_t)entry * ring_ld) = *(const uint4 *)from;
        if (lane < n_head && lane >= first_kept)
            a.recent_dt[(size_t)entry * a.n_head + head0 + lane] = shared.time[lane * grid.tokens + place].x;
    };
    /* What a chunk needs beside S C, and of the first one the tokens of a path and of a chain in front that later passes find
     * in the rings: tasks of a warp, those that have no state first. A loop for each kind, since what a loop needs is found in front
     * of it. */
    auto run_tasks = [&](int row0, int n) {
        const int n_tile = (n_left + (SPLIT ? s.n_fed + row0 + n : n_tree) + 15) / 16, n_dot = (n + 7) / 8 * n_tile;
        const int kept = max(0, s.n_recent - first); /* tokens left that the rings have */
        const int n_task = n + n_dot + (row0 == 0 ? n_left + s.n_advance - kept : 0);
        int task = first_task;
#pragma unroll 1
        for (; task < n; task += n_warp) find_near(task, s.n_fed + row0 + task);
#pragma unroll 1
        for (; task < n + n_dot; task += n_warp) {
            int r0 = 0, tile = task - n;
            while (tile >= n_tile) tile -= n_tile, r0 += 8;
            multiply_tokens(r0, FIRST + tile * 16);
        }
#pragma unroll 1
        for (; task < n_task; task += n_warp) keep_recent(kept + task - n - n_dot);
    };

    /* ---- outputs ---- */

    /* V channels of a row: of the chunk, from c of the block on. */
    struct output {
        int r, c, h;
        float gate[V], skip;
    };
    const int lane_of = tid % LANES;
    auto find_output = [&](int i) {
        output o;
        o.r = grid.wide.of(i), o.c = (i - o.r * (int)grid.wide.by) * V, o.h = head_of(o.c / WINDOW_CHANNELS);
        o.skip = a.d && o.c < n_unit * WINDOW_CHANNELS ? a.d[head0 + o.h] : 0.0f;
        return o;
    };
    auto where_gate = [&](const output &o, int row) { return (const float *)a.z.data + (size_t)row * a.z.ld + channel0 + o.c; };
    auto load_gate = [&](output &o, const float *z) {
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            const float2 two = *(const float2 *)(z + v);
            o.gate[v] = two.x, o.gate[v + 1] = two.y;
        }
    };
    struct inputs {
        uint32_t w[V / 2];
    };
    const int x_bytes = shared.x_ld * (int)sizeof(T), dot_bytes = shared.dot_ld * 4; /* of a token */
    auto load_x = [&](const void *from) {
        inputs x;
        memcpy(&x, __builtin_assume_aligned(from, V * 2), sizeof x);
        return x;
    };
    auto add_x = [&](float y[V], float w, const inputs &x) {
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            const float2 two = unpack2<T>(x.w[v / 2]);
            y[v] = fmaf(w, two.x, y[v]), y[v + 1] = fmaf(w, two.y, y[v + 1]);
        }
    };
    /* Weights of the chunk's row r, and how far x is: by the threads that use them, or by all before. */
    auto dot_of = [&](int place, int r) { return *(const float *)((const char *)(shared.dot + r) + place * dot_bytes); };
    auto weigh = [&](window_near near, int r) {
        return window_near{ near.weight * dot_of(near.place, r), near.place * x_bytes };
    };
    auto weigh_all = [&](int n) { /* with many rows a warp takes all heads of one, which have the same tokens */
        const int tasks = V == 2 ? n * n_head : n, heads = V == 2 ? 1 : n_head;
#pragma unroll 1
        for (int i = warp; i < tasks; i += n_warp) {
            int h = 0, r = i;
            while (r >= n) r -= n, h++;
            window_near *near = shared.near + list_at(r, h) * WINDOW_LIST + lane;
            const int place = near->place;
            const float dot = dot_of(place, r);
#pragma unroll 1
            for (int k = 0; k < heads; k++, near += WINDOW_LIST) *near = { near->weight * dot, place * x_bytes };
        }
    };
    auto sum_group = [&](const output &o, const window_near *near, float sum[V]) {
        window_near four[4];
        inputs x[4];
        memcpy(four, __builtin_assume_aligned(near, 16), sizeof four);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            if (FEW) four[j] = weigh(four[j], o.r);
            x[j] = load_x((const char *)(shared.x + o.c) + four[j].place);
        }
#pragma unroll
        for (int v = 0; v < V; v++) sum[v] = 0.0f;
#pragma unroll
        for (int j = 0; j < 4; j++) add_x(sum, four[j].weight, x[j]);
    };
    /* The squares of y for the norm behind: a unit's are added up by the N lanes that have it. These are LANES apart in one
     * warp, from a multiple of N * LANES on: a row of outputs has whole units. Other lanes may not be here. */
    auto put_squares = [&](const output &o, int row, const float y[V]) {
        constexpr int N = WINDOW_CHANNELS / V;
        static_assert(!FEW || !NORM || (LANES == 4 && N == 8), "a unit is a warp's");
        const uint32_t lanes = FEW ? 0x11111111u : ((1u << N) - 1) << (lane & -N);
        float sum[V];
#pragma unroll
        for (int v = 0; v < V; v++) sum[v] = y[v] * y[v];
#pragma unroll
        for (int d = 1; d < V; d *= 2)
#pragma unroll
            for (int v = 0; v < V; v += 2 * d) sum[v] = sum[v] + sum[v + d];
#pragma unroll(FEW ? 3 : 1) /* several shuffles take registers from all of the kernel */
        for (int d = LANES; d < N * LANES; d *= 2) sum[0] = sum[0] + __shfl_xor_sync(lanes, sum[0], d);
        if (o.c % WINDOW_CHANNELS == 0)
            norm.squares[(size_t)row * norm.n_square + (channel0 + o.c) / WINDOW_CHANNELS] = sum[0];
    };
    auto gate = [&](const output &o, float y[V]) {
#pragma unroll
        for (int v = 0; v < V; v++)
            if (a.z.data) y[v] = y[v] * silu(o.gate[v]);
    };
    auto put_out = [&](const output &o, int row, int node, int skipped) {
        const int at = list_at(o.r, o.h);
        const window_near *const near = shared.near + at * WINDOW_LIST;
        const inputs own_x = load_x(shared.x + (tree0 + node) * shared.x_ld + o.c);
        const float decay = shared.decay[at];
        const float *const sums = shared.sum + o.r * shared.sum_ld + o.c;
        const int part_ld = grid.chunk * shared.sum_ld;
        float y[V], sc[V]; /* of near tokens; S C, the parts' sums added up as a tree */
        if constexpr (FEW) { /* a lane has groups, and one part of S C */
            constexpr int EACH = WINDOW_GROUPS / LANES;
            static_assert(V == 2 && PARTS <= LANES, "");
            const float2 part = *(const float2 *)(sums + lane_of % PARTS * part_ld);
            sc[0] = part.x, sc[1] = part.y;
            sum_group(o, near + 4 * EACH * lane_of, y);
            if constexpr (EACH == 2) {
                float second[V];
                sum_group(o, near + 8 * lane_of + 4, second);
#pragma unroll
                for (int v = 0; v < V; v++) y[v] = y[v] + second[v];
            }
#pragma unroll
            for (int d = 1; d < LANES; d *= 2)
#pragma unroll
                for (int v = 0; v < V; v++) {
                    y[v] = y[v] + __shfl_xor_sync(0xffffffffu, y[v], d);
                    if (d < PARTS) sc[v] = sc[v] + __shfl_xor_sync(0xffffffffu, sc[v], d);
                }
            if (lane_of > 0) return;
        } else { /* the same tree: a group's sum joins those of its neighbours when it has them */
            float part[3][V];
#pragma unroll
            for (int q = 0; q < WINDOW_GROUPS; q++) {
                if (q >= skipped) {
                    sum_group(o, near + 4 * q, y);
                } else {
#pragma unroll
                    for (int v = 0; v < V; v++) y[v] = 0.0f;
                }
                int level = 0;
#pragma unroll
                for (; q >> level & 1; level++)
#pragma unroll
                    for (int v = 0; v < V; v++) y[v] = part[level][v] + y[v];
#pragma unroll
                for (int v = 0; v < V && level < 3; v++) part[level][v] = y[v];
            }
#pragma unroll
            for (int v = 0; v < V; v += 2) {
                float2 sum[PARTS];
#pragma unroll
                for (int k = 0; k < PARTS; k++) sum[k] = *(const float2 *)(sums + k * part_ld + v);
#pragma unroll
                for (int k = 1; k < PARTS; k *= 2)
#pragma unroll
                    for (int j = 0; j < PARTS; j += 2 * k) sum[j].x = sum[j].x + sum[j + k].x, sum[j].y = sum[j].y + sum[j + k].y;
                sc[v] = sum[0].x, sc[v + 1] = sum[0].y;
            }
        }
#pragma unroll
        for (int v = 0; v < V; v++) y[v] = fmaf(decay, sc[v], y[v]);
        add_x(y, o.skip, own_x);
        gate(o, y);
        float out[V];
        memcpy(out, y, sizeof out);
        if constexpr (NORM) {
            float weight[V];
            memcpy(weight, __builtin_assume_aligned(shared.weight + o.c, V * 4), sizeof weight);
#pragma unroll
            for (int v = 0; v < V; v++) out[v] = y[v] * weight[v];
        }
#pragma unroll
        for (int v = 0; v < V; v += 2) {
            const size_t to_y = (size_t)row * a.y.ld + channel0 + o.c + v;
            if (a.y.dtype == SPEC_DTYPE_F32) *(float2 *)((float *)a.y.data + to_y) = make_float2(out[v], out[v + 1]);
            else *(uint32_t *)((T *)a.y.data + to_y) = bits16(from_f32<T>(out[v])) | bits16(from_f32<T>(out[v + 1])) << 16;
            if (NORM && norm.tiles)
                *(uint32_t *)(norm.tiles + tile_element(row, channel0 + o.c + v, norm.n_square * SPEC_SQUARES)) =
                    bits16(from_f32<T>(out[v])) | bits16(from_f32<T>(out[v + 1])) << 16;
        }
        if constexpr (NORM) put_squares(o, row, y);
    };

    /* Before the wait: what earlier passes left. All of it is on its way before any is looked at: a second trip to memory would
     * keep the product behind from being set up. */
    enum { HELD_LANES = (FIRST + WINDOW_NEAR + 31) / 32 }; /* tokens of a lane, of a warp to a head */
    const spec_step_node *const node = spec_step_nodes(step) + s.first_node;
    int parent = tid < n_tree ? node[tid].parent : -1, depth = tid < n_tree ? node[tid].depth : 0;
    const int row_depth = lane < n_first ? node[s.n_fed + begin + lane].depth : 0;
    float held_dt[HELD_LANES];
#pragma unroll
    for (int q = 0; q < HELD_LANES; q++)
        held_dt[q] = warp < n_head && lane + 32 * q < n_held ? dt_known(warp, number_of(0, lane + 32 * q)) : 0.0f;
    rate_bias decay = head_decay(first_task);
    output first_out = find_output(tid / LANES); /* of each chunk */
    const bool has_out = first_out.c < n_unit * WINDOW_CHANNELS;
    /* Not before what has been asked for till now, which would wait behind the weights of the product behind. With few rows here,
     * since a short pass waits for its kernels to be set up, else when all has come (measured, docs/performance.md). */
    if (FEW) grid_release();
    copy_recent(held0, 0, n_held);
    if (NORM && tid < n_unit * (WINDOW_CHANNELS / 4))
        scan_copy16((uint32_t)__cvta_generic_to_shared(shared.weight + tid * 4), norm.weight + channel0 + tid * 4);
#pragma unroll 1
    for (int i = tid; i < grid.chunk; i += n_thread) shared.dot[none * shared.dot_ld + i] = 0.0f;
#pragma unroll 1
    for (int i = tid; i < shared.x_ld; i += n_thread) shared.x[none * shared.x_ld + i] = from_f32<T>(0.0f);
#pragma unroll 1
    for (int i = tid; i < n_tree;) {
        shared.parent[i] = (int16_t)(parent < i && parent >= 0 ? parent : -1);
        shared.depth[i] = (int16_t)depth;
        i += n_thread;
        if (i < n_tree) parent = node[i].parent, depth = node[i].depth;
    }
#pragma unroll
    for (int q = 0; q < HELD_LANES; q++)
        if (warp < n_head && lane + 32 * q < n_held) keep_time(warp, held0 + lane + 32 * q, held_dt[q]);
#pragma unroll 1
    for (int i = lane; warp < n_head && i < s.n_fed; i += 32)
        keep_time(warp, tree0 + i, a.cache_dt[(size_t)(half + i) * a.n_head + head0 + warp]);
    /* Do the rows of the first chunk need the stored state as it is? Known to each warp. */
    const bool plain = n_fold == 0 && __all_sync(0xffffffffu, spec_window_folds(n_left + row_depth) == 0);

    /* Where the pass leaves what this thread reads; with registers to spare known before the wait, since nothing else stands
     * between it and the loads. */
    struct sources {
        const float *dt, *gate;
        const T *row, *c;
    };
    const int rows_ld = has_b ? a.b.ld : a.x.ld;
    const T *const c_rows = (const T *)a.c.data + grid.c_rep.of(first_head) * NS + lane * 8;
    const bool has_dt = first_task < n_dt, has_row = warp < n_seen;
    const bool reads_gate = has_out && a.z.data && first_out.r < n_first;
    sources from;
    auto find_sources = [&]() {
        const size_t row = (size_t)(s.first_row + warp);
        from.dt = where_dt(first_task), from.gate = where_gate(first_out, s.first_row + begin + first_out.r);
        from.row = (const T *)(has_b ? a.b.data : a.x.data) + col + row * rows_ld, from.c = c_rows + (row + begin) * a.c.ld;
    };
    if (V == 2) {
        find_sources();
        if (has_dt) found(from.dt);
        if (reads_gate) found(from.gate);
        if (has_row && copies) found(from.row);
        if (has_row && has_b) found(from.c);
    }
    if (!FEW) grid_release();
    grid_wait();
    if (V != 2) find_sources();

    float dt = has_dt ? *from.dt : 0.0f;
    if (reads_gate) load_gate(first_out, from.gate);
    uint32_t row_to = to + (tree0 + s.n_fed + warp) * to_ld;
    const uint32_t c_to = (uint32_t)__cvta_generic_to_shared(shared.c + lane * 8);
    auto copy_c = [&](int r, const T *from) {
        if (has_b) scan_copy16(c_to + (uint32_t)r * (LD * (uint32_t)sizeof(T)), from);
    };
#pragma unroll 1
    for (int i = warp; i < n_seen; i += n_warp) {
        if (copies) scan_copy16(row_to, from.row);
        if (i < (SPLIT ? n_first : grid.chunk)) copy_c(i, from.c);
        row_to += n_warp * to_ld, from.row += n_warp * rows_ld, from.c += n_warp * a.c.ld;
    }
    if (s.n_replay > 0) copy_path(held0, 0, n_held);
    if (s.n_fed > 0) copy_fed();
#pragma unroll 1
    for (int task = first_task; task < n_dt;) {
        keep_dt(task, dt, decay);
        task += n_warp;
        if (task < n_dt) dt = *where_dt(task), decay = head_decay(task);
    }
    scan_copies_wait();
    __syncthreads();

#pragma unroll 1
    for (int row0 = begin; row0 == begin || row0 < s.n_row; row0 += stride) { /* once if there are no rows */
        const int n = min(s.n_row - row0, grid.chunk), next = row0 + stride;
        if (!ONE && row0 > begin) {
            if (a.z.data && has_out && first_out.r < n)
                load_gate(first_out, where_gate(first_out, s.first_row + row0 + first_out.r));
            scan_copies_wait();
            __syncthreads(); /* C is there; all else of the chunk before has been read */
        }
        multiply_states(row0, n, row0 == begin && plain);
        run_tasks(row0, n);
        __syncthreads();
#pragma unroll 1
        for (int i = warp; !ONE && i < min(s.n_row - next, grid.chunk); i += n_warp)
            copy_c(i, c_rows + (size_t)(s.first_row + next + i) * a.c.ld);
        int skipped = 0; /* groups of which no row has a token */
        if (!FEW) {
            weigh_all(n);
            __syncthreads();
            skipped = (WINDOW_NEAR - most_near(row0, n)) / 4;
        }
#pragma unroll 1
        for (int i = tid / LANES; i < n * (int)grid.wide.by; i += n_thread / LANES) { /* by whole warps where FEW */
            output o = first_out;
            if (i != tid / LANES) o = find_output(i);
            if (o.c >= n_unit * WINDOW_CHANNELS) continue;
            if (i != tid / LANES && a.z.data) load_gate(o, where_gate(o, s.first_row + row0 + o.r));
            put_out(o, s.first_row + row0 + o.r, s.n_fed + row0 + o.r, skipped);
        }
        if (ONE) break;
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

/* Of a launch of so many units a block, and chunks of so many rows. */
static window_grid grid_of(const spec_scan_args *a, int units, int chunk)
{
    const int per_head = a->head_dim / WINDOW_CHANNELS;
    window_grid g = {};
    g.group = scan_group(a);
    g.units = units;
    g.group_units = g.group * a->head_dim / WINDOW_CHANNELS;
    g.heads = units < 2 ? 1 : (units - 2) / per_head + 2;
    g.chunk = chunk;
    g.tokens = SPEC_WINDOW + WINDOW_NEAR + a->n_node + 1;
    g.b_width = spec_scan_columns(a->n_head, a->b_rep, a->n_state);
    g.x_width = spec_scan_columns(a->n_head, a->x_rep, a->head_dim);
    g.per_head = divide_by(per_head), g.x_rep = divide_by(a->x_rep);
    g.b_rep = divide_by(a->b_rep), g.c_rep = divide_by(a->c_rep), g.by_heads = divide_by(g.heads);
    g.ring_magic = UINT32_MAX / (uint32_t)a->n_ring;
    return g;
}

static int64_t blocks_of(const spec_queue *q, const spec_scan_args *a, const window_grid &g)
{
    return (int64_t)cuda_div_up(g.group_units, g.units) * (a->n_head / g.group) * q->shape.seqs;
}

/* Two blocks of two units, or more, to a multiprocessor? */
static bool has_several(const spec_queue *q, const spec_scan_args *a) { return blocks_of(q, a, grid_of(a, 2, 1)) >= 2 * q->dev->n_sm; }

/* The fewest units a block, up to `most`, with which there are no more blocks than `enough`, or as many as memory allows. */
template <typename T, int NS>
static window_grid fewest_units(const spec_queue *q, const spec_scan_args *a, int chunk, int most, int enough)
{
    window_grid best = grid_of(a, 1, chunk);
    for (int units = 2; units <= most && blocks_of(q, a, best) > enough; units++) {
        const window_grid g = grid_of(a, units, chunk);
        if (window_memory<T, NS, true>::bytes(g) > scan_shared_limit(q->dev)) break;
        best = g;
    }
    return best;
}

/* The channels, and the blocks of a cluster, which take chunks by turns. */
struct window_cut {
    window_grid grid;
    int turns;
};

/* Two units a block where there are several blocks to a multiprocessor. Else two blocks to the same channels, where all
 * multiprocessors, or for up to a chunk of rows half of them, have room for that at once; and else the fewest units with which
 * a third of the multiprocessors, or with more rows than a chunk a quarter, is left to the product behind, whose weights can then
 * be on their way (measured on an H200, docs/performance.md). It changes no bits. */
template <typename T, int NS> static window_cut best_cut(const spec_queue *q, const spec_scan_args *a, bool several)
{
    const int rows = cuda_div_up(q->shape.rows, q->shape.seqs); /* of a sequence: those with more take more chunks */
    const bool one = rows <= WINDOW_CHUNK;
    const int chunk = one ? rows : (int)WINDOW_CHUNK, n_sm = q->dev->n_sm;
    if (several) return { fewest_units<T, NS>(q, a, chunk, 2, 0), 1 };
    if (rows > 8) {
        const int room = (one ? n_sm / 2 : n_sm) / 2; /* clusters */
        const window_grid g = fewest_units<T, NS>(q, a, one ? rows / 2 : chunk, WINDOW_UNITS, room);
        if (blocks_of(q, a, g) <= room) return { g, 2 };
    }
    return { fewest_units<T, NS>(q, a, chunk, rows <= 8 ? 3 : 4, one ? n_sm * 2 / 3 : n_sm * 3 / 4), 1 };
}

template <typename T, int NS, int V, int KIND>
static spec_status launch(spec_queue *q, const spec_scan_args *a, const window_cut &cut, const norm_out &norm)
{
    constexpr bool FEW = KIND & WINDOW_IS_FEW, SEVERAL = KIND & WINDOW_IS_SEVERAL, NORM = KIND & WINDOW_IS_NORM;
    if constexpr (!NORM && std::is_same_v<T, __nv_bfloat16>) /* no norm is deferred in float16 */
        if (norm.weight) return launch<T, NS, V, KIND | WINDOW_IS_NORM>(q, a, cut, norm);
    typedef window_memory<T, NS, NORM> layout;
    window_grid g = cut.grid;
    const size_t bytes = layout::bytes(g);
    const int states = g.units * layout::PARTS, least = SEVERAL ? 8 : 12;
    const int more = (FEW || SEVERAL) && states >= least ? 0 : min((int)WINDOW_MORE, WINDOW_WARPS - states);
    const int warps = max(states + more, least);
    auto *kernel = window_kernel<T, NS, V, KIND>;
    g.wide = divide_by(g.units * WINDOW_CHANNELS / V);
    scan_allow_shared(q->dev, kernel, bytes);
    const dim3 blocks((unsigned)(cuda_div_up(g.group_units, g.units) * cut.turns), (unsigned)q->shape.seqs, (unsigned)(a->n_head / g.group));
    return cuda_launch(q, "scan", kernel, blocks, dim3((unsigned)warps * 32), bytes, (unsigned)cut.turns, q->d_step, *a, g, norm);
}

template <typename T, int NS, int KIND>
static spec_status launch_rows(spec_queue *q, const spec_scan_args *a, const window_cut &cut, const norm_out &norm)
{
    if constexpr (!(KIND & WINDOW_IS_SPLIT))
        if (cut.grid.chunk <= WINDOW_FEW) return launch<T, NS, 2, KIND | WINDOW_IS_FEW>(q, a, cut, norm);
    return cut.grid.chunk <= 16 ? launch<T, NS, 2, KIND>(q, a, cut, norm) : launch<T, NS, 4, KIND>(q, a, cut, norm);
}

template <typename T, int NS, int KIND>
static spec_status launch_chunks(spec_queue *q, const spec_scan_args *a, const window_cut &cut, const norm_out &norm)
{
    const bool one = q->shape.seqs == 1 && cut.grid.chunk * cut.turns >= q->shape.rows; /* a sequence may have more than its share */
    return one ? launch_rows<T, NS, KIND | WINDOW_IS_ONE>(q, a, cut, norm) : launch_rows<T, NS, KIND>(q, a, cut, norm);
}

template <typename T, int NS>
static bool launch_any(spec_queue *q, const spec_scan_args *a, const norm_out &norm, spec_status *status)
{
    /* Whatever the rows of this pass: the general kernel has other bits. */
    if (window_memory<T, NS, true>::bytes(grid_of(a, 1, WINDOW_CHUNK)) > scan_shared_limit(q->dev)) return false;
    const bool several = has_several(q, a);
    const window_cut cut = best_cut<T, NS>(q, a, several);
    if (several) *status = launch_chunks<T, NS, WINDOW_IS_SEVERAL>(q, a, cut, norm);
    else if (cut.turns > 1) *status = launch_chunks<T, NS, WINDOW_IS_SPLIT>(q, a, cut, norm);
    else *status = launch_chunks<T, NS, 0>(q, a, cut, norm);
    return true;
}

static bool has_kernel(const spec_queue *q, const spec_scan_args *a)
{
    const bool gate = !a->z.data || (a->z.ld % 2 == 0 && cuda_aligned(a->z.data, 8));
    const bool out = (a->y.dtype == SPEC_DTYPE_F32 || a->y.dtype == a->dtype) && cuda_aligned(a->y.data, 8) && a->y.ld % 2 == 0;
    return (a->n_state == 64 || a->n_state == 128) && a->head_dim % WINDOW_CHANNELS == 0 && gate && out &&
           cuda_aligned(a->recent_x, 16) && cuda_aligned(a->recent_b, 16) && scan_has_rows(q, a);
}

/* norm.weight NULL: no norm behind; else y is the norm's. */
static bool launch_type(spec_queue *q, const spec_scan_args *a, const norm_out &norm, spec_status *status)
{
    if (a->dtype == SPEC_DTYPE_BF16)
        return a->n_state == 128 ? launch_any<__nv_bfloat16, 128>(q, a, norm, status)
                                 : launch_any<__nv_bfloat16, 64>(q, a, norm, status);
    return a->n_state == 128 ? launch_any<__half, 128>(q, a, norm, status) : launch_any<__half, 64>(q, a, norm, status);
}

bool speci_cuda_scan_window_matrix(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    return has_kernel(q, a) && launch_type(q, a, {}, status);
}

bool speci_cuda_scan_norm(spec_queue *q, const spec_scan_args *a, const spec_norm_args *norm, spec_status *status)
{
    spec_scan_args both = *a;
    both.y = norm->y;
    /* Of more rows the norm writes slabs as well. */
    if (!a->window || q->shape.rows > LINEAR_FEW || a->y.dtype != SPEC_DTYPE_F32 || a->dtype != SPEC_DTYPE_BF16 ||
        !norm_follows(norm, &a->y, a->n_head * a->head_dim, a->dtype) || !cuda_aligned(norm->weight, 16) || !has_kernel(q, a) ||
        !has_kernel(q, &both))
        return false;
    norm_out next = norm_out_of(norm);
    next.tiles = speci_cuda_arranged_for(q, &norm->y, norm->dim, ORDER_TILES, NULL);
    if (launch_type(q, &both, next, status)) return true;
    q->arranged_out = {};
    return false;
}
