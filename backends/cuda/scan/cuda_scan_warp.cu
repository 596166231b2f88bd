/* cuda_scan_warp.cu - selective scan over a tree, recurrent form, for what most models have: decode passes, one decay
 * per head, 128 states, 16-bit x, B and C from the convolution. The same sums in the same order as scan_kernel
 * (cuda_scan_recurrent.cu), hence the same bits.
 *
 * A warp has CH channels of a head, a lane 4 states of each, in registers from the first step to the last. A step
 * (cuda_scan_steps.cuh) is CH x 4 multiplications for the output, y = decay (S C) + dx (B C) with the parent's S, and 2 CH
 * x 4 for the state that children go on from, which a leaf has not. This file keeps small what it costs beside them:
 *  - x, B and C come by asynchronous copies into shared memory, a chunk of steps, once for the block;
 *  - dt and decay are computed by a thread for each step and head, B C by a warp for each step, before the chunk runs;
 *  - a batch of steps leaves its sums over a lane's states in shared memory; then each lane adds those of a step and
 *    channel, where a warp that exchanges them by shuffles spends a third of its instructions;
 *  - saved states wait in registers, the deepest PLACES of them, where they are used most; shared memory has the others;
 *  - where there are so few channels that a multiprocessor has six warps of them, PARTS times as many walk the tree: each
 *    part is a run of visits, whose warps first apply the ancestors of its first (walk_up), outputs left out.
 * CH, the warps of a block, PLACES and PARTS follow the number of channels, multiprocessors and rows (launch_any). They
 * change no bits.
 *
 * The state and all that earlier passes left are read before the kernel waits for the one in front; so is the work
 * list made (cuda_scan_steps.cuh). Registers are limited so that one of these kernels and the products around it fit a
 * multiprocessor: else it could not be set up before the one in front has gone. */
#include "backends/cuda/scan/cuda_scan.cuh"
#include "backends/cuda/scan/cuda_scan_steps.cuh"

enum {
    WARP_STATES = 128,
    WARP_DIVIDED = 64,              /* rows of a tree that is divided, at most */
    WARP_CHUNK = WARP_DIVIDED + 16, /* steps at most: such a tree behind a path */
    WARP_ROW = 36,                  /* of sums over a lane's states: 8 lanes that read 16 bytes each are on different banks */
    WARP_LEAST = 4, WARP_MOST = 10, /* warps of a block with channels of their own */
    WARP_PARTS = 3                  /* of a tree, at most */
};

/* How a launch divides the channels of a group of heads that share B and C (one of these may be shared by more). */
struct warp_grid {
    int32_t group, width;      /* heads and channels of the group */
    int32_t heads;             /* of a block at most */
    int32_t warps, parts;      /* of a block: those with channels of their own, for each part of a tree */
    int32_t chunk, batch;      /* steps whose inputs, and whose sums, are in shared memory */
    int32_t n_place, n_shared; /* saved states: all, and those in shared memory */
};

struct __align__(16) warp_bc {
    uint16_t b[WARP_STATES], c[WARP_STATES];
};

/* A block's shared memory. Of a step behind the chunk's last C is read and not used. */
template <int CH> struct warp_shared {
    typedef uint16_t lane_x[CH];
    float4 *saved; /* [n_shared][CH][threads of all parts] */
    warp_bc *bc;   /* [chunk + 1] */
    float *sum;    /* [warps of all parts][batch][CH][WARP_ROW] */
    float2 *time;  /* dt and decay: [heads][WARP_CHUNK] */
    lane_x *x;     /* [warps][WARP_CHUNK] */
    float *dot;    /* B C: [WARP_CHUNK] */
    int32_t *word; /* [WARP_CHUNK] */
    uint8_t (*up)[WARP_CHUNK]; /* [WARP_PARTS] the ancestors of a part's first visit (scan_steps::ancestors); */
    int32_t *n_up;             /* [WARP_PARTS] how many they are */
    void *steps;

    static __host__ __device__ size_t bytes(const warp_grid &g, int n_node)
    {
        const size_t all = (size_t)(g.warps * g.parts);
        return sizeof(float4) * (size_t)(g.n_shared * CH * 32) * all + sizeof(warp_bc) * (size_t)(g.chunk + 1) +
               sizeof(float) * (size_t)(g.batch * CH * WARP_ROW) * all +
               WARP_CHUNK * (sizeof(float2) * (size_t)g.heads + sizeof(lane_x) * (size_t)g.warps + 8 + WARP_PARTS) +
               WARP_PARTS * 4 + scan_steps::bytes(n_node);
    }
    __device__ warp_shared(char *memory, const warp_grid &g)
    {
        const int all = g.warps * g.parts;
        saved = (float4 *)memory;
        bc = (warp_bc *)(saved + g.n_shared * CH * all * 32);
        sum = (float *)(bc + g.chunk + 1);
        time = (float2 *)(sum + all * g.batch * CH * WARP_ROW);
        x = (lane_x *)(time + WARP_CHUNK * g.heads);
        dot = (float *)(x + WARP_CHUNK * g.warps);
        word = (int32_t *)(dot + WARP_CHUNK);
        up = (uint8_t (*)[WARP_CHUNK])(word + WARP_CHUNK);
        n_up = (int32_t *)(up + WARP_PARTS);
        steps = n_up + WARP_PARTS;
    }
};

template <int BYTES> static __device__ __forceinline__ void copy_async(void *shared, const void *global)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);
    if constexpr (BYTES == 16) scan_copy16(to, global);
    else asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(to), "l"(global), "n"(BYTES) : "memory");
}

/* N values, two in a word: one load, and its values. */
template <int N> struct raw_values {
    uint32_t w[N / 2];
    __device__ __forceinline__ void load(const uint16_t *from)
    {
        if constexpr (N == 2) {
            w[0] = *(const uint32_t *)from;
        } else {
            const uint2 v = *(const uint2 *)from;
            w[0] = v.x, w[1] = v.y;
        }
    }
    template <typename T> __device__ __forceinline__ void unpack(float (&out)[N]) const
    {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            const float2 v = unpack2<T>(w[i]);
            out[2 * i] = v.x, out[2 * i + 1] = v.y;
        }
    }
};
/* S C or B C over a lane's states. */
static __device__ __forceinline__ float dot4(const float s[4], const float c[4])
{
    return fmaf(s[3], c[3], fmaf(s[2], c[2], fmaf(s[1], c[1], s[0] * c[0])));
}

/* States of a lane: of CH channels, four each; `stride` float4 from one channel to the next. */
template <int CH> struct lane_states {
    float v[CH][4];

    __device__ __forceinline__ void load(const float4 *from, int stride)
    {
#pragma unroll
        for (int i = 0; i < CH; i++) {
            const float4 q = from[i * stride];
            v[i][0] = q.x, v[i][1] = q.y, v[i][2] = q.z, v[i][3] = q.w;
        }
    }
    __device__ __forceinline__ void store(float4 *to, int stride) const
    {
#pragma unroll
        for (int i = 0; i < CH; i++) to[i * stride] = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
    }
};

/* The sum of a row over the lanes that made it: l and l ^ 16 first, then 8, 4, 2, 1. */
static __device__ __forceinline__ float row_sum(const float *row)
{
    const float4 *p = (const float4 *)row;
    float4 q[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float4 a = p[i], b = p[i + 4], c = p[i + 2], d = p[i + 6];
        q[i] = make_float4((a.x + b.x) + (c.x + d.x), (a.y + b.y) + (c.y + d.y), (a.z + b.z) + (c.z + d.z),
                           (a.w + b.w) + (c.w + d.w));
    }
    return ((q[0].x + q[1].x) + (q[0].z + q[1].z)) + ((q[0].y + q[1].y) + (q[0].w + q[1].w));
}

/* Registers of a thread. */
static constexpr int warp_registers(int ch, int places, int parts)
{
    return parts > 1 ? 48 + 16 * parts : 80 + 4 * ch * places;
}

/* What a kernel is made for: T of x, B and C, CH channels of a warp, PLACES saved states in registers, a tree in PARTS parts,
 * each walked by warps of its own. */
template <typename Type, int CHANNELS, int N_PLACE, int N_PART> struct warp_kind {
    typedef Type T;
    static constexpr int CH = CHANNELS, PLACES = N_PLACE, PARTS = N_PART;
};

/* Which channels, counted through all heads. Warps behind the group's last do what its last does, and store nothing. */
template <typename K> struct warp_block {
    const spec_scan_args &a;
    const spec_step_seq &s;
    const warp_grid &grid;
    const int n_seq;
    int n_thread, n_warp, tid, warp, lane;
    int part, own; /* of the tree; which of its warps */
    int group0, block0, first_head, head0, head_end; /* of the group: its first channel, the block's; heads */
    bool has;
    int f, head; /* the first channel */
    size_t half, other; /* entry 0 of the caches' halves */

    __device__ __forceinline__ warp_block(const spec_scan_args &args, const spec_step_seq &seq, const warp_grid &by, int n)
        : a(args), s(seq), grid(by), n_seq(n)
    {
        n_thread = (int)blockDim.x, n_warp = n_thread / 32, tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
        part = K::PARTS > 1 ? warp / grid.warps : 0, own = K::PARTS > 1 ? warp % grid.warps : warp;
        group0 = (int)blockIdx.z * grid.width, block0 = (int)blockIdx.x * grid.warps * K::CH;
        has = block0 + own * K::CH < grid.width;
        f = group0 + min(block0 + own * K::CH, grid.width - K::CH), head = f / a.head_dim;
        first_head = (int)blockIdx.z * grid.group, head0 = (group0 + block0) / a.head_dim, head_end = first_head + grid.group;
        half = ((size_t)s.slot * 2 + s.parity) * a.n_node, other = ((size_t)s.slot * 2 + (s.parity ^ 1)) * a.n_node;
    }
    __device__ __forceinline__ float4 *memory() const
    {
        return (float4 *)a.state + ((size_t)s.slot * a.n_head * a.head_dim + f) * (WARP_STATES / 4) + lane;
    }
    /* Of a step's word: from earlier passes; the row that it is. */
    __device__ __forceinline__ bool is_known(int w) const { return (w & STEP_PATH) || (w & STEP_NODE) < s.n_fed; }
    __device__ __forceinline__ size_t row_of(int w) const { return (size_t)(s.first_row + (w & STEP_NODE) - s.n_fed); }
};

/* x, B and C of a chunk's steps, a warp to a step: the convolution's rows, of known ones replay_y. */
template <typename K> struct warp_copies {
    typedef typename K::T T;
    const warp_block<K> &b;
    const warp_shared<K::CH> &shared;
    const T *replay;
    int b_col, c_col, x_col;

    __device__ __forceinline__ warp_copies(const warp_block<K> &block, const warp_shared<K::CH> &memory) : b(block), shared(memory)
    {
        const spec_scan_args &a = b.a;
        replay = (const T *)a.replay_y + (size_t)b.n_seq * 2 * a.n_node * a.replay_ld;
        b_col = b.first_head / a.b_rep * WARP_STATES + b.lane % 16 * 8;
        c_col = b.first_head / a.c_rep * WARP_STATES + b.lane % 16 * 8;
        const int x_of = b.group0 + min(b.block0 + b.lane * K::CH, b.grid.width - K::CH); /* the channel of this lane's copies */
        x_col = x_of / a.head_dim / a.x_rep * a.head_dim + x_of % a.head_dim;
    }
    __device__ __forceinline__ void bring(int n) const
    {
        const spec_scan_args &a = b.a;
#pragma unroll 1
        for (int i = b.warp; i < n; i += b.n_warp) {
            const int w = shared.word[i];
            const bool known = b.is_known(w);
            const T *const entry = replay + (size_t)((w & STEP_PATH ? 0 : b.s.n_replay) + (w & STEP_NODE)) * a.replay_ld;
            const T *from_b = known ? entry + a.replay_b_col : (const T *)a.b.data + b.row_of(w) * a.b.ld;
            const T *from_x = known ? entry + a.replay_x_col : (const T *)a.x.data + b.row_of(w) * a.x.ld;
            const T *from_c = (const T *)a.c.data + b.row_of(w) * a.c.ld;
            if (b.lane < 16) copy_async<16>(shared.bc[i].b + b.lane * 8, from_b + b_col);
            else if (!known) copy_async<16>(shared.bc[i].c + b.lane % 16 * 8, from_c + c_col);
            if (b.lane < b.grid.warps) copy_async<K::CH * 2>(shared.x[b.lane * WARP_CHUNK + i], from_x + x_col);
        }
    }
    /* B C of the steps, a warp to a step. */
    __device__ __forceinline__ void multiply(int n) const
    {
#pragma unroll 2
        for (int i = b.warp; i < n; i += b.n_warp) {
            raw_values<4> raw_b, raw_c;
            raw_b.load(shared.bc[i].b + 4 * b.lane), raw_c.load(shared.bc[i].c + 4 * b.lane);
            float vb[4], vc[4];
            raw_b.template unpack<T>(vb), raw_c.template unpack<T>(vc);
            const float dot = warp_sum(dot4(vb, vc));
            if (b.lane == 0) shared.dot[i] = dot;
        }
    }
};

/* dt and decay: a thread to a step and head of the block. */
template <typename K> struct warp_times {
    const warp_block<K> &b;
    const warp_shared<K::CH> &shared;
    int step, head;
    bool has, keeps; /* keeps: one block of the head's */
    float rate, bias;

    __device__ __forceinline__ warp_times(const warp_block<K> &block, const warp_shared<K::CH> &memory) : b(block), shared(memory)
    {
        step = b.tid % b.grid.chunk, head = b.head0 + b.tid / b.grid.chunk;
        has = head < b.head_end && head * b.a.head_dim < b.group0 + b.block0 + b.grid.warps * K::CH;
        keeps = head * b.a.head_dim >= b.group0 + b.block0;
        rate = has ? b.a.a[head] : 0.0f, bias = has && b.a.dt_bias ? b.a.dt_bias[head] : 0.0f;
    }
    __device__ __forceinline__ float known(int w, const spec_step_block *of) const
    {
        const int n = w & STEP_NODE;
        const size_t cached = w & STEP_PATH ? b.other + spec_step_paths(of)[b.s.first_path + n] : b.half + n;
        return b.a.cache_dt[cached * b.a.n_head + head];
    }
    __device__ __forceinline__ float row(int w) const { return ((const float *)b.a.dt.data)[b.row_of(w) * b.a.dt.ld + head]; }
    __device__ __forceinline__ void keep(int w, float dt) const
    {
        if (!b.is_known(w)) {
            dt = scan_dt(dt, bias, b.a.dt_min, b.a.dt_max);
            if (keeps) b.a.cache_dt[(b.half + (w & STEP_NODE)) * b.a.n_head + head] = dt;
        }
        shared.time[(head - b.head0) * WARP_CHUNK + step] = make_float2(dt, scan_decay(dt, rate));
    }
};

/* The live state of a warp's channels, and those that it saved. */
template <typename K> struct warp_live {
    typedef typename K::T T;
    static constexpr int CH = K::CH, PLACES = K::PLACES;
    const warp_block<K> &b;
    const warp_shared<CH> &shared;
    const float2 *const time;       /* of the chunk's steps, of the head */
    const uint16_t (*const x)[CH];
    lane_states<CH> &state, (&place)[PLACES > 0 ? PLACES : 1];

    __device__ __forceinline__ void go_on_from(int w) const /* any but the live state */
    {
        const int k = ((w & STEP_FROM) - (int)STEP_PLACE) >> 16, deep = k - b.grid.n_shared;
        if (k < 0) state.load(b.memory(), WARP_STATES / 4);
        else if (PLACES == 0 || deep < 0) state.load(shared.saved + k * CH * b.n_thread + b.tid, b.n_thread);
        else if (PLACES == 1 || deep == 0) state = place[0];
        else state = place[PLACES - 1];
    }
    __device__ __forceinline__ void keep(int w) const
    {
        const int k = ((w & STEP_SAVE) >> 20) - 1, deep = k - b.grid.n_shared;
        if ((w & STEP_STORE) && b.has) state.store(b.memory(), WARP_STATES / 4);
        if (k < 0) return;
        if (PLACES == 0 || deep < 0) state.store(shared.saved + k * CH * b.n_thread + b.tid, b.n_thread);
        else if (PLACES == 1 || deep == 0) place[0] = state;
        else place[PLACES - 1] = state;
    }
    __device__ __forceinline__ void update(const raw_values<4> &raw_b, const raw_values<CH> &raw_x, const float2 &t) const
    {
        float vb[4], in[CH];
        raw_b.template unpack<T>(vb), raw_x.template unpack<T>(in);
#pragma unroll
        for (int k = 0; k < CH; k++)
#pragma unroll
            for (int v = 0; v < 4; v++) state.v[k][v] = scan_update(state.v[k][v], t.y, t.x * in[k], vb[v]);
    }
    __device__ __forceinline__ void absorb(int i) const /* step i, which is not a leaf */
    {
        raw_values<4> raw_b;
        raw_values<CH> raw_x;
        raw_b.load(shared.bc[i].b + 4 * b.lane), raw_x.load(x[i]);
        const float2 t = time[i];
        update(raw_b, raw_x, t);
    }
    /* To the state that a part's first visit starts from; those that its others start from are saved on the way. */
    __device__ __forceinline__ void walk_up(int n_path) const
    {
#pragma unroll 1
        for (int i = 0; i < n_path; i++) absorb(i);
#pragma unroll 1
        for (int d = shared.n_up[b.part] - 1; d >= 0; d--) {
            const int i = n_path + shared.up[b.part][d];
            absorb(i);
            keep(shared.word[i]);
        }
    }
    /* Up to 32 steps, whose sums over a lane's states go to `sums`. The next one's C is asked for a step ahead, and no word read
     * for what all steps have to know: nothing hides the latency of so few warps. */
    __device__ __forceinline__ void run_steps(uint32_t begin, uint32_t end, float *sums) const
    {
        const int word = shared.word[min(begin + b.lane, end - 1)];
        const uint32_t moves = __ballot_sync(0xffffffffu, word & STEP_FROM), out = __ballot_sync(0xffffffffu, word & STEP_OUT);
        const uint32_t alone = __ballot_sync(0xffffffffu, word & STEP_ALONE);
        const uint32_t kept = __ballot_sync(0xffffffffu, word & (STEP_SAVE | STEP_STORE));
        const warp_bc *bc = shared.bc + begin;
        float *to = sums + b.lane;
        raw_values<4> next_c;
        next_c.load(bc->c + 4 * b.lane);
#pragma unroll 1
        for (uint32_t bit = 1, i = begin; i < end; bit *= 2, i++, to += CH * WARP_ROW) {
            raw_values<4> raw_b, raw_c = next_c;
            raw_values<CH> raw_x;
            float2 t;
            if (!(alone & bit)) raw_b.load(bc->b + 4 * b.lane), raw_x.load(x[i]), t = time[i];
            bc++;
            next_c.load(bc->c + 4 * b.lane);
            if (moves & bit) go_on_from(shared.word[i]);
            if (out & bit) {
                float vc[4];
                raw_c.template unpack<T>(vc);
#pragma unroll
                for (int k = 0; k < CH; k++) to[k * WARP_ROW] = dot4(state.v[k], vc);
            }
            if (alone & bit) continue;
            update(raw_b, raw_x, t);
            if (kept & bit) keep(shared.word[i]);
        }
    }
};

/* A batch of steps and its outputs, of which a lane has one step's and channel's. */
template <typename K> struct warp_batches {
    const warp_live<K> &live;
    float *const sums; /* of the warp */
    const float skip;

    __device__ __forceinline__ void run(int begin, int end, bool first) const
    {
        const warp_block<K> &b = live.b;
        const spec_scan_args &a = b.a;
        const int slot = b.lane / K::CH, ch = b.lane % K::CH;
        const int i = min(begin + slot, end - 1), w = live.shared.word[i];
        const bool out = begin + slot < end && (w & STEP_OUT) && b.has;
        const float *const z = (const float *)a.z.data;
        const float gate = out && z ? z[b.row_of(w) * a.z.ld + b.f + ch] : 0.0f; /* is there in the end */
        live.run_steps(begin, end, sums);
        if (first) __syncthreads(); /* B C of the chunk */
        else __syncwarp();
        if (out) {
            const float2 t = live.time[i];
            const float in = to_f32(*(const typename K::T *)&live.x[i][ch]);
            float y = fmaf(t.y, row_sum(sums + b.lane * WARP_ROW), t.x * in * live.shared.dot[i]);
            y = fmaf(skip, in, y);
            if (z) y = y * silu(gate);
            store_any(a.y.data, a.y.dtype, b.row_of(w) * a.y.ld + b.f + ch, y);
        }
        __syncwarp(); /* sums have been read */
    }
};

template <typename T, int CH, int PLACES, int PARTS>
static __global__ void __maxnreg__(warp_registers(CH, PLACES, PARTS))
scan_warp_kernel(const spec_step_block *step, const spec_scan_args a, const warp_grid grid)
{
    typedef warp_kind<T, CH, PLACES, PARTS> K;
    extern __shared__ __align__(16) char dynamic[];
    const warp_shared<CH> shared(dynamic, grid);

    grid_release();
    const int n_seq = (int)blockIdx.y;
    if (n_seq >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    if (s.n_replay > a.n_node || s.n_fed + s.n_row > a.n_node) return grid_wait(); /* caches and tables hold n_node */
    const warp_block<K> b(a, s, grid, n_seq);
    lane_states<CH> state, place[PLACES > 0 ? PLACES : 1] = {};
    state.load(b.memory(), WARP_STATES / 4);
    scan_steps steps(shared.steps, a.n_node);
    steps.build(step, s, grid.n_place);
    /* Else the first part walks all. Such a sequence has rows (launch_any): a visit for each part. */
    const bool divided = PARTS > 1 && steps.divides() && steps.n_step <= grid.chunk;
    auto first_of = [&](int p) { return steps.n_row * p / PARTS; }; /* visit */
    if (divided && b.part > 0 && b.own == 0 && b.lane == 0)
        shared.n_up[b.part] = steps.ancestors(first_of(b.part), shared.up[b.part]);

    const warp_copies<K> copies(b, shared);
    const warp_times<K> times(b, shared);
    const warp_live<K> live = { b, shared, shared.time + (b.head - b.head0) * WARP_CHUNK, shared.x + b.own * WARP_CHUNK,
                                state, place };
    const warp_batches<K> batches = { live, shared.sum + b.warp * grid.batch * CH * WARP_ROW, a.d ? a.d[b.head] : 0.0f };
#pragma unroll 1
    for (int t0 = 0; t0 == 0 || t0 < steps.n_step; t0 += grid.chunk) {
        const int n = min(steps.n_step - t0, grid.chunk);
        const bool mine = times.has && times.step < n;
        if (b.tid < n) shared.word[b.tid] = steps.at(t0 + b.tid);
        __syncthreads();
        const int w = mine ? shared.word[times.step] : 0;
        float dt = mine && b.is_known(w) ? times.known(w, step) : 0.0f;
        if (t0 == 0) grid_wait();
        if (mine && !b.is_known(w)) dt = times.row(w);
        copies.bring(n);
        if (mine) times.keep(w, dt);
        scan_copies_wait();
        __syncthreads();
        copies.multiply(n);
        const int begin = b.part == 0 ? 0 : divided ? steps.n_path + first_of(b.part) : n;
        const int end = divided ? steps.n_path + first_of(b.part + 1) : n;
        if (b.part > 0 && begin < end) live.walk_up(steps.n_path);
        if (PARTS > 1 && begin == end) __syncthreads(); /* in place of a batch's */
#pragma unroll 1
        for (int i = begin; i < end; i += grid.batch) batches.run(i, min(i + grid.batch, end), i == begin);
        if (t0 + grid.chunk < steps.n_step) __syncthreads(); /* all have read the chunk */
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

/* Channels on the fullest multiprocessor. */
static int64_t channels_at_most(const spec_queue *q, const spec_scan_args *a, int ch, int warps)
{
    const int group = scan_group(a);
    const int64_t blocks = cuda_div_up((int64_t)group * a->head_dim, warps * ch) * (int64_t)(a->n_head / group);
    return cuda_div_up(blocks * q->shape.seqs, q->dev->n_sm) * (int64_t)(warps * ch);
}
/* The warps of a block that divide the channels best. */
static int best_warps(const spec_queue *q, const spec_scan_args *a, int ch)
{
    int best = WARP_MOST;
    for (int warps = WARP_MOST; warps >= WARP_LEAST; warps--)
        if (channels_at_most(q, a, ch, warps) < channels_at_most(q, a, ch, best)) best = warps;
    return best;
}

template <typename T, int CH, int PLACES, int PARTS>
static bool launch(spec_queue *q, const spec_scan_args *a, int rows, spec_status *status)
{
    const int warps = best_warps(q, a, CH);
    warp_grid g = {};
    g.group = scan_group(a), g.width = g.group * a->head_dim;
    g.heads = (warps * CH - 1) / a->head_dim + 2;
    g.warps = warps, g.parts = PARTS;
    g.chunk = rows <= 8 ? 16 : rows <= 24 ? 32 : rows <= 32 ? 48 : (int)WARP_CHUNK;
    if (g.chunk * g.heads > warps * PARTS * 32) g.chunk = warps * PARTS * 32 / g.heads; /* a thread to a step and head */
    g.batch = rows == 1 ? 2 : 32 / CH;
    g.n_place = scan_places(rows);
    g.n_shared = g.n_place > PLACES ? g.n_place - PLACES : 0;
    const size_t bytes = warp_shared<CH>::bytes(g, a->n_node);
    if (bytes > scan_shared_limit(q->dev)) return false;
    auto *kernel = scan_warp_kernel<T, CH, PLACES, PARTS>;
    scan_allow_shared(q->dev, kernel, bytes);
    const dim3 blocks((unsigned)cuda_div_up(g.width, warps * CH), (unsigned)q->shape.seqs, (unsigned)(a->n_head / g.group));
    *status = cuda_launch(q, "scan", kernel, blocks, dim3((unsigned)(warps * PARTS) * 32), bytes, 1, q->d_step, *a, g);
    return true;
}

/* On a multiprocessor, by its registers. */
static bool blocks_fit(int n, int warps, int registers) { return n * warps * 32 * registers <= 65536; }

/* Channels of a warp: more share what a step costs beside them; more warps hide each other's latency. */
template <typename T> static bool launch_any(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    const int rows = q->shape.rows < a->n_node ? q->shape.rows : a->n_node, few = best_warps(q, a, 2), warps = best_warps(q, a, 4);
    const int64_t channels = channels_at_most(q, a, 2, few);
    if (channels <= 24) {
        /* Few warps: a tree is divided among more where its walk outweighs that no block of the product behind fits beside
         * them, and they have room. In passes of one sequence: of several some may have no row. */
        const bool one = q->shape.seqs == 1, large = one && rows > 24 && rows <= WARP_DIVIDED;
        const bool two = large || (one && rows > 8 && rows <= 24 && channels <= 12);
        if (large && blocks_fit(1, 3 * few, warp_registers(2, 0, 3)) && launch<T, 2, 0, 3>(q, a, rows, status)) return true;
        return (two && launch<T, 2, 0, 2>(q, a, rows, status)) || launch<T, 2, 2, 1>(q, a, rows, status);
    }
    /* Up to 10 rows save one state at most: without places in registers a block of the product behind fits beside this one. */
    if (scan_places(rows) <= 1) return launch<T, 4, 0, 1>(q, a, rows, status);
    const bool several = channels_at_most(q, a, 4, warps) > 4 * warps; /* blocks for a multiprocessor */
    return several && !blocks_fit(2, warps, warp_registers(4, 2, 1)) ? launch<T, 4, 1, 1>(q, a, rows, status)
                                                                     : launch<T, 4, 2, 1>(q, a, rows, status);
}

static bool has_kernel(const spec_queue *q, const spec_scan_args *a)
{
    return !a->chunk && a->n_state == WARP_STATES && a->head_dim % 4 == 0 && scan_has_rows(q, a);
}

bool speci_cuda_scan_warp(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    if (!has_kernel(q, a)) return false;
    return a->dtype == SPEC_DTYPE_BF16 ? launch_any<__nv_bfloat16>(q, a, status)
                                       : launch_any<__half>(q, a, status);
}
