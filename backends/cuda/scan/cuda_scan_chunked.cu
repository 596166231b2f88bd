/* cuda_scan_chunked.cu - selective scan over a tree, chunked form (spec_scan_args), with activation replay in front:
 * decode passes of any types and sizes with one decay per head.
 *
 *   P(token itself) = 1, going down: P_j-1 = P_j decay_j;  E = P of the first token * its decay;  decay_j = exp(dt_j A)
 *   fold    S' = E S + sum over the chunk's j, ascending, of (P_j dt_j x_j) B_j^T
 *   node    y = E (S C) + sum over its near tokens j, ascending, of (P_j dt_j (C . B_j)) x_j + D x;  y silu(z) with z
 *
 * A sequence's *tokens* in a pass have numbers: the committed ones from the first that the stored state does not cover,
 * those of the recent-token buffers and then the accepted path; behind them the nodes of the tree. Each knows the token
 * in front of it, so a path across all three is a walk, and its arithmetic does not know where a token lies. That makes
 * the bits those of the path alone, whatever of it is recent, replayed, fed before or new.
 *
 * A block has one head of one sequence and 32 of its channels, and goes through
 *   1. tables: dt, decay and predecessor of each token; for each row its number on its path, and the *base*: the last
 *      token that its state covers;
 *   2. the committed chunks: folded in registers, a thread having some channels of one state number, and stored;
 *   3. groups of rows with the same base: the chunks of their common path are folded into a copy of the state, which
 *      is laid into shared memory, turned; each warp takes CHUNKED_ROWS rows of the group, a lane being a channel in S
 *      C and in the sum, a near token in between. A tree up to SPEC_CHUNK deep has two groups at most, neither with a
 *      chunk that holds a node; deeper ones fold each branch's chunks again from the stored state.
 * What the recent-token buffers receive is for later passes: no entry is read and written in the same one
 * (spec_recent_capacity). */
#include "backends/cuda/scan/cuda_scan.cuh"

enum {
    CHUNKED_WARPS = 8,
    CHUNKED_THREADS = CHUNKED_WARPS * 32,
    CHUNKED_ROWS = 4,
    CHUNKED_CHANNELS = 32,
    CHUNKED_DOTS = 4,  /* products C . B whose loads are in flight together */
    CHUNKED_DONE = -2  /* in place of a base: the row has been taken */
};
static_assert(2 * SPEC_CHUNK == 32, "a lane has one of the near tokens");

/* Dynamic shared memory of a block: this, and behind it tables. */
template <int NS> struct __align__(8) chunked_shared {
    float state[NS][CHUNKED_CHANNELS + 1];       /* the column more keeps lanes on different banks */
    float c[CHUNKED_WARPS][CHUNKED_ROWS][NS];     /* of the rows that a warp has */
    float x[SPEC_CHUNK][CHUNKED_CHANNELS];      /* of a chunk: P dt x */
    float weight[SPEC_CHUNK], decay;           /* of a chunk: P dt, and E */
    int32_t token[SPEC_CHUNK];                 /* of a chunk */
    int32_t n_member;                           /* of a group */
};
/* By token [n_recent_max + n_node], and by row [n_node]. */
struct chunked_tables {
    float2 *time;     /* dt, decay */
    int32_t *before;  /* the token in front; -1 before the first */
    int32_t *number;  /* of rows, on their path */
    int32_t *base;    /* of rows, or CHUNKED_DONE */
    int32_t *member;  /* rows of a group */

    __device__ chunked_tables(void *memory, const spec_scan_args &a)
    {
        time = (float2 *)memory, before = (int32_t *)(time + a.n_recent_max + a.n_node), number = before + a.n_recent_max + a.n_node;
        base = number + a.n_node, member = base + a.n_node;
    }
    __device__ int walk(int t, int n) const /* n tokens up */
    {
        for (; n > 0; n--) t = before[t];
        return t;
    }
};
template <int NS> static size_t chunked_bytes(const spec_scan_args *a)
{
    const size_t tokens = (size_t)a->n_recent_max + (size_t)a->n_node, rows = (size_t)a->n_node;
    return sizeof(chunked_shared<NS>) + tokens * (sizeof(float2) + sizeof(int32_t)) + 3 * rows * sizeof(int32_t);
}

/* Where the tokens of a sequence lie. */
struct token_location {
    const void *x, *b;
    size_t x_at, b_at; /* of the head's first channel and state */
    int x_type, b_type;
};
struct chunked_tokens {
    const spec_scan_args &a;
    const spec_step_seq &s;
    const int32_t *path;
    size_t half, other, replay; /* entry 0 of the caches' halves, of the sequence's rows of replay_y */
    int head, n_committed, recent0; /* recent0: the entry of token 0 */

    __device__ chunked_tokens(const spec_scan_args &args, const spec_step_seq &seq, const int32_t *paths, int n_seq,
                             int of_head)
        : a(args), s(seq), path(paths + seq.first_path), head(of_head)
    {
        half = scan_half<size_t>(s, s.parity, a.n_node), other = scan_half<size_t>(s, s.parity ^ 1, a.n_node);
        replay = (size_t)n_seq * 2 * a.n_node;
        n_committed = s.n_recent + s.n_replay;
        recent0 = (s.n_past - n_committed) % a.n_recent_max;
    }
    __device__ int n_known() const { return n_committed + s.n_fed; } /* tokens of earlier passes */
    __device__ int n_all() const { return n_known() + s.n_row; }
    __device__ size_t row(int t) const { return (size_t)(s.first_row + t - n_known()); }
    __device__ int x_width() const { return spec_scan_columns(a.n_head, a.x_rep, a.head_dim); }
    __device__ int b_width() const { return spec_scan_columns(a.n_head, a.b_rep, a.n_state); }

    /* The entry of the recent-token buffers for token t: a committed one, or of the chain in front. */
    __device__ size_t entry(int t) const
    {
        const int e = recent0 + t;
        return (size_t)s.slot * a.n_recent_max + (e < a.n_recent_max ? e : e - a.n_recent_max);
    }
    /* Of a token that was in a pass before: its entry of replay_y, of cache_dt and cache_b. */
    __device__ size_t replayed(int t) const { return replay + (t - s.n_recent); }
    __device__ size_t cached(int t) const
    {
        return t < n_committed ? other + path[t - s.n_recent] : half + (t - n_committed);
    }

    /* The time step of a token of earlier passes. */
    __device__ float known_dt(int t) const
    {
        return t < s.n_recent ? a.recent_dt[entry(t) * a.n_head + head] : a.cache_dt[cached(t) * a.n_head + head];
    }
    __device__ float row_dt(int t) const
    {
        const float in = load_any(a.dt.data, a.dt.dtype, row(t) * a.dt.ld + head);
        return scan_dt(in, a.dt_bias ? a.dt_bias[head] : 0.0f, a.dt_min, a.dt_max);
    }
    __device__ token_location location(int t) const
    {
        const size_t x_col = (size_t)(head / a.x_rep) * a.head_dim, b_col = (size_t)(head / a.b_rep) * a.n_state;
        if (t < s.n_recent) {
            const size_t e = entry(t);
            return { a.recent_x, a.recent_b, e * x_width() + x_col, e * b_width() + b_col, a.dtype, a.dtype };
        }
        if (t >= n_known()) {
            const size_t r = row(t);
            return { a.x.data, a.b.data, r * a.x.ld + x_col, r * a.b.ld + b_col, a.x.dtype, a.b.dtype };
        }
        const size_t e = replayed(t) * a.replay_ld, x_at = e + a.replay_x_col + x_col;
        if (a.b_in_conv) return { a.replay_y, a.replay_y, x_at, e + a.replay_b_col + b_col, a.dtype, a.dtype };
        return { a.replay_y, a.cache_b, x_at, cached(t) * b_width() + b_col, a.dtype, a.dtype };
    }
    /* Of channel p and state n: rounded as caches and buffers hold them. */
    __device__ float x(const token_location &at, int p) const
    {
        return round_any(a.dtype, load_any(at.x, at.x_type, at.x_at + p));
    }
    __device__ float b(const token_location &at, int n) const
    {
        return round_any(a.dtype, load_any(at.b, at.b_type, at.b_at + n));
    }
    __device__ float x(int t, int p) const { return x(location(t), p); }
    __device__ float b(int t, int n) const { return b(location(t), n); }

    __device__ void keep_recent(const float2 *time, int c0, int n_ch) const;
    __device__ void keep_b() const;
};

/* Puts the path and the chain in front into the recent-token buffers. What heads share is written by the first of them,
 * what tiles of channels share by the first tile. */
__device__ __forceinline__ void chunked_tokens::keep_recent(const float2 *time, int c0, int n_ch) const
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int t = s.n_recent + warp; t < n_committed + s.n_advance; t += CHUNKED_WARPS) {
        const token_location at = location(t);
        const size_t e = entry(t), x_at = e * x_width() + (size_t)(head / a.x_rep) * a.head_dim + c0;
        const size_t b_at = e * b_width() + (size_t)(head / a.b_rep) * a.n_state;
        if (head % a.x_rep == 0 && lane < n_ch) store_any(a.recent_x, a.dtype, x_at + lane, x(at, c0 + lane));
        if (c0 > 0) continue;
        if (lane == 0) a.recent_dt[e * a.n_head + head] = time[t].x;
        if (head % a.b_rep > 0) continue;
        for (int n = lane; n < a.n_state; n += 32) store_any(a.recent_b, a.dtype, b_at + n, b(at, n));
    }
}
/* Puts B of the rows into its cache, for the replay to come. */
__device__ __forceinline__ void chunked_tokens::keep_b() const
{
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    for (int t = n_known() + warp; t < n_all(); t += CHUNKED_WARPS) {
        const token_location at = location(t);
        const size_t b_at = cached(t) * b_width() + (size_t)(head / a.b_rep) * a.n_state;
        for (int n = lane; n < a.n_state; n += 32) store_any(a.cache_b, a.dtype, b_at + n, b(at, n));
    }
}

/* Tokens behind those that a state covers, itself included, of a token with `number` in front of it. */
static __device__ __forceinline__ int near_count(int number) { return spec_chunk_left(number) + 1; }

/* Lists the rows from `first` on whose base is `group`, and marks them. By one warp; returns how many. */
static __device__ __forceinline__ int take_group(int32_t *member, int32_t *base, int group, int first, int n_row)
{
    const int lane = (int)threadIdx.x % 32;
    int n = 0;
    for (int r0 = first; r0 < n_row; r0 += 32) {
        const int r = r0 + lane;
        const bool is_in = r < n_row && base[r] == group;
        const uint32_t in = __ballot_sync(0xffffffffu, is_in);
        if (is_in) {
            member[n + __popc(in & ((1u << lane) - 1))] = r;
            base[r] = CHUNKED_DONE;
        }
        n += __popc(in);
    }
    return n;
}

/* A block's channels of one sequence. */
template <int NS> struct chunked_scan {
    enum {
        OWN = CHUNKED_CHANNELS * NS / CHUNKED_THREADS, /* entries of the state that a thread has: channels p_own + k * STRIDE */
        STRIDE = CHUNKED_THREADS / NS                 /* of state number n_own */
    };
    const spec_scan_args &a;
    const spec_step_seq &s;
    const chunked_tokens &tokens;
    chunked_shared<NS> &shared;
    const chunked_tables &tables;
    int tid, warp, lane, c0, n_ch, n_own, p_own;
    float *memory;    /* the stored state, from c0 and n_own on */
    float state[OWN]; /* its entries */

    __device__ chunked_scan(const chunked_tokens &of, chunked_shared<NS> &block, const chunked_tables &by, int tile)
        : a(of.a), s(of.s), tokens(of), shared(block), tables(by)
    {
        tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
        c0 = tile * CHUNKED_CHANNELS, n_ch = min(a.head_dim - c0, (int)CHUNKED_CHANNELS);
        n_own = tid % NS, p_own = tid / NS;
        memory = a.state + (((size_t)s.slot * a.n_head + tokens.head) * a.head_dim + c0) * a.n_state + n_own;
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const int p = p_own + k * STRIDE;
            state[k] = n_own < a.n_state && p < n_ch ? memory[(size_t)p * a.n_state] : 0.0f;
        }
    }
    __device__ void store() const
    {
        if (n_own >= a.n_state) return;
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const int p = p_own + k * STRIDE;
            if (p < n_ch) memory[(size_t)p * a.n_state] = state[k];
        }
    }

    /* Folds the chunk that ends with token `last` into `sum`, a thread's entries of a state. All threads call it. */
    __device__ __forceinline__ void fold(float (&sum)[OWN], int last) const
    {
        __syncthreads(); /* the chunk before has been read */
        if (tid == 0) {
            float p = 1.0f;
            for (int j = SPEC_CHUNK - 1, t = last; j >= 0; j--, t = tables.before[t]) {
                shared.token[j] = t, shared.weight[j] = p * tables.time[t].x;
                p = p * tables.time[t].y;
            }
            shared.decay = p;
        }
        __syncthreads();
        for (int j = warp; j < SPEC_CHUNK; j += CHUNKED_WARPS)
            if (lane < n_ch) shared.x[j][lane] = shared.weight[j] * tokens.x(shared.token[j], c0 + lane);
        float b[SPEC_CHUNK];
#pragma unroll
        for (int j = 0; j < SPEC_CHUNK; j++) b[j] = n_own < a.n_state ? tokens.b(shared.token[j], n_own) : 0.0f;
        __syncthreads();
        if (n_own >= a.n_state) return;
#pragma unroll
        for (int k = 0; k < OWN; k++) {
            const int p = p_own + k * STRIDE;
            if (p >= n_ch) break;
            sum[k] = shared.decay * sum[k];
#pragma unroll
            for (int j = 0; j < SPEC_CHUNK; j++) sum[k] = fmaf(shared.x[j][p], b[j], sum[k]);
        }
    }

    /* Numbers count from the first token that the stored state does not cover now. */
    __device__ void number_rows() const
    {
        const int n_committed = tokens.n_committed, n_known = tokens.n_known();
        for (int r = tid; r < s.n_row; r += CHUNKED_THREADS) {
            int depth = 0;
            for (int t = tables.before[n_known + r]; t >= n_committed; t = tables.before[t]) depth++;
            tables.number[r] = spec_chunk_left(n_committed) + depth;
            tables.base[r] = tables.walk(n_known + r, near_count(tables.number[r]));
        }
    }
    /* The state that rows with base `group` go on from, `number` their tokens' on the path: to shared memory, turned. */
    __device__ __forceinline__ void bring_state(int group, int number) const
    {
        float copy[OWN];
#pragma unroll
        for (int k = 0; k < OWN; k++) copy[k] = state[k];
        for (int w = spec_chunk_folds(number) - 1; w >= 0; w--) fold(copy, tables.walk(group, w * SPEC_CHUNK));
#pragma unroll
        for (int k = 0; k < OWN; k++) shared.state[n_own][p_own + k * STRIDE] = copy[k];
    }

    /* The near token of row r that this lane has, the first being lane 0's, and its P dt (C . B); c: the row's C. */
    struct near_token {
        int token;
        float weight, decay; /* decay: E */
    };
    __device__ __forceinline__ near_token near_of(int r, const float *c, int n_near) const
    {
        const int self = tokens.n_known() + r;
        near_token near = { self, 0.0f, 1.0f };
        for (int j = n_near - 1, t = self; j >= 0; j--, t = tables.before[t]) {
            if (j == lane) near.token = t, near.weight = near.decay * tables.time[t].x;
            near.decay = near.decay * tables.time[t].y;
        }
        for (int j0 = 0; j0 < n_near; j0 += CHUNKED_DOTS) {
            float dot[CHUNKED_DOTS];
#pragma unroll
            for (int u = 0; u < CHUNKED_DOTS; u++) {
                const token_location at = tokens.location(__shfl_sync(0xffffffffu, near.token, min(j0 + u, n_near - 1)));
                dot[u] = 0.0f;
                for (int n = lane; n < a.n_state; n += 32) dot[u] = fmaf(c[n], tokens.b(at, n), dot[u]);
            }
#pragma unroll
            for (int u = 0; u < CHUNKED_DOTS; u++) {
                const float sum = warp_sum(dot[u]);
                if (j0 + u == lane) near.weight = near.weight * sum;
            }
        }
        return near;
    }
    /* The output of row r in channel `lane`; c: its C, y: S C. By a warp. */
    __device__ __forceinline__ void output(int r, const float *c, float y) const
    {
        const int self = tokens.n_known() + r, n_near = near_count(tables.number[r]), head = tokens.head;
        const near_token near = near_of(r, c, n_near);
        y = near.decay * y;
        float x = 0.0f;
#pragma unroll 4
        for (int j = 0; j < n_near; j++) {
            const float w = __shfl_sync(0xffffffffu, near.weight, j);
            const int t = __shfl_sync(0xffffffffu, near.token, j);
            x = lane < n_ch ? tokens.x(t, c0 + lane) : 0.0f;
            y = fmaf(w, x, y);
        }
        if (lane >= n_ch) return;
        const size_t row = tokens.row(self), col = (size_t)head * a.head_dim + c0 + lane;
        if (a.d) y = fmaf(a.d[head], x, y); /* x of the node itself, the last */
        if (a.z.data) y = y * silu(load_any(a.z.data, a.z.dtype, row * a.z.ld + col));
        store_any(a.y.data, a.y.dtype, row * a.y.ld + col, y);
    }
    /* Up to CHUNKED_ROWS rows of the group by a warp, from member m0 on, CHUNKED_WARPS apart: few rows have a warp
     * each. */
    __device__ __forceinline__ void run_members(int m0, int n_member) const
    {
        const size_t c_col = (size_t)(tokens.head / a.c_rep) * a.n_state;
        float(*c)[NS] = shared.c[warp];
        auto row_of = [&](int k) { return tables.member[m0 + k * CHUNKED_WARPS]; };
        auto load_c = [&](int k, int i) {
            return load_any(a.c.data, a.c.dtype, (size_t)(s.first_row + row_of(k)) * a.c.ld + c_col + i);
        };
        const int n = min((n_member - m0 + CHUNKED_WARPS - 1) / CHUNKED_WARPS, (int)CHUNKED_ROWS);
        __syncwarp(); /* C of the rows before has been read */
#pragma unroll
        for (int k = 0; k < CHUNKED_ROWS; k++)
            for (int i = lane; i < NS; i += 32) c[k][i] = k < n && i < a.n_state ? load_c(k, i) : 0.0f;
        __syncwarp();
        float y[CHUNKED_ROWS];
#pragma unroll
        for (int k = 0; k < CHUNKED_ROWS; k++) y[k] = 0.0f;
#pragma unroll 2
        for (int i = 0; i < NS; i += 4) {
            float s0[4];
#pragma unroll
            for (int k = 0; k < 4; k++) s0[k] = shared.state[i + k][lane];
#pragma unroll
            for (int k = 0; k < CHUNKED_ROWS; k++) {
                const float4 v = *(const float4 *)&c[k][i];
                y[k] = fmaf(v.w, s0[3], fmaf(v.z, s0[2], fmaf(v.y, s0[1], fmaf(v.x, s0[0], y[k]))));
            }
        }
        for (int k = 0; k < n; k++) output(row_of(k), c[k], k == 0 ? y[0] : k == 1 ? y[1] : k == 2 ? y[2] : y[3]);
    }
    __device__ __forceinline__ void run_rows() const
    {
        for (int first = 0; first < s.n_row; first++) {
            const int group = tables.base[first];
            if (group == CHUNKED_DONE) continue;
            __syncthreads(); /* all have read it, and are through with the group before */
            if (warp == 0) {
                const int n = take_group(tables.member, tables.base, group, first, s.n_row);
                if (lane == 0) shared.n_member = n;
            }
            bring_state(group, tables.number[first]);
            __syncthreads();
            const int n_member = shared.n_member;
            for (int m0 = warp; m0 < n_member; m0 += CHUNKED_WARPS * CHUNKED_ROWS) run_members(m0, n_member);
        }
    }
};

template <int NS>
static __global__ void __launch_bounds__(CHUNKED_THREADS)
scan_chunked_kernel(const spec_step_block *step, const spec_scan_args a, int n_tile)
{
    extern __shared__ __align__(16) char dynamic[];
    chunked_shared<NS> &shared = *(chunked_shared<NS> *)dynamic;
    const chunked_tables tables(&shared + 1, a);

    grid_release();
    if ((int)blockIdx.y >= step->n_seq) return grid_wait();
    const int n_seq = (int)blockIdx.y;
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    if (!scan_chunked_fits(a, s)) return grid_wait();
    const int tid = (int)threadIdx.x, head = (int)blockIdx.x / n_tile, tile = (int)blockIdx.x % n_tile;
    const chunked_tokens tokens(a, s, spec_step_paths(step), n_seq, head);
    const int n_committed = tokens.n_committed, n_known = tokens.n_known(), n_all = tokens.n_all();
    const float rate = a.a[head];

    /* The state, and what earlier passes left: no other kernel of the pass writes it. */
    chunked_scan<NS> scan(tokens, shared, tables, tile);
    auto keep_time = [&](int t, float dt) { tables.time[t] = make_float2(dt, scan_decay(dt, rate)); };
    for (int t = tid; t < n_known; t += CHUNKED_THREADS) keep_time(t, tokens.known_dt(t));
    const spec_step_node *const node = spec_step_nodes(step) + s.first_node;
    for (int t = tid; t < n_all; t += CHUNKED_THREADS) {
        const int i = t - n_committed, up = i >= 0 ? node[i].parent : 0;
        tables.before[t] = i < 0 ? t - 1 : up < i && up >= 0 ? n_committed + up : n_committed - 1;
    }
    grid_wait();

    for (int t = n_known + tid; t < n_all; t += CHUNKED_THREADS) {
        const float dt = tokens.row_dt(t);
        keep_time(t, dt);
        if (tile == 0) a.cache_dt[tokens.cached(t) * a.n_head + head] = dt;
    }
    __syncthreads();
    tokens.keep_recent(tables.time, scan.c0, scan.n_ch);
    if (!a.b_in_conv && a.cache_b && tile == 0 && head % a.b_rep == 0) tokens.keep_b();

    const int n_fold = spec_chunk_folds(n_committed);
    for (int w = 1; w <= n_fold; w++) scan.fold(scan.state, w * SPEC_CHUNK - 1);
    if (n_fold > 0) scan.store();
    if (s.n_row <= 0) return;
    scan.number_rows();
    __syncthreads();
    scan.run_rows();
}

template <int NS> static spec_status launch_chunked(spec_queue *q, const spec_scan_args *a)
{
    const int n_tile = cuda_div_up(a->head_dim, CHUNKED_CHANNELS);
    const size_t bytes = chunked_bytes<NS>(a);
    scan_allow_shared(q->dev, scan_chunked_kernel<NS>, bytes);
    const dim3 grid((unsigned)(a->n_head * n_tile), (unsigned)q->shape.seqs);
    return cuda_launch(q, "scan", scan_chunked_kernel<NS>, grid, dim3(CHUNKED_THREADS), bytes, 1, q->d_step, *a, n_tile);
}

spec_status speci_cuda_scan_chunked(spec_queue *q, const spec_scan_args *a)
{
    if (a->n_state <= 16) return launch_chunked<16>(q, a);
    if (a->n_state <= 32) return launch_chunked<32>(q, a);
    if (a->n_state <= 64) return launch_chunked<64>(q, a);
    if (a->n_state <= 128) return launch_chunked<128>(q, a);
    return launch_chunked<256>(q, a);
}
