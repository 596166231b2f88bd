/* cuda_scan_warp.cu - selective scan over a tree, recurrent form, for what most models have: decode passes, one decay
 * per head, 128 states, 16-bit x, B and C from the convolution. The same sums in the same order as scan_kernel
 * (cuda_scan.cu), hence the same bits.
 *
 * A warp has CH channels of a head, a lane 4 states of each, in registers from the first step to the last. What a step
 * (cuda_scan_steps.cuh) costs beside its 3 CH x 4 multiplications is what this file keeps small:
 *  - x, B and C come by asynchronous copies into shared memory, a chunk of steps ahead, once for the block;
 *  - dt and exp(dt A) are computed once per node and head, before the steps;
 *  - a batch of steps leaves its sums over a lane's states in shared memory; then 32 lanes at once add those of up to
 *    16 (step, channel) pairs, where a warp that exchanges them by shuffles spends a third of its instructions;
 *  - saved states wait in registers, the two deepest places, where they are used most; shared memory has the others.
 * CH follows the number of channels and multiprocessors (launch_any). It changes no bits.
 *
 * The state and all that earlier passes left are read before the kernel waits for the one in front; so is the work
 * list made (cuda_scan_steps.cuh). Registers are limited so that one of these kernels and the products around it fit a
 * multiprocessor: else it could not be set up before the one in front has gone. */
#include "cuda_scan.cuh"
#include "cuda_scan_steps.cuh"

enum { WARP_STATES = 128, WARP_PLACES = 2 /* in registers */, WARP_CHUNK = 16, WARP_ROW = 36, WARP_MAX = 8 };

/* What a step's channels need, one after the other in shared memory: read in two or three loads. */
template <int CH> struct __align__(16) warp_step {
    float dx[CH], decay;
    int32_t word;
};
/* Shared memory of a warp. step and x: of a chunk, up to a whole number of batches. sum: a row for a step and channel
 * of a batch, even lanes in front, odd ones 16 behind; rows of 36 keep 8 lanes that read 16 bytes each on different
 * banks. */
template <int CH> struct warp_batch {
    static constexpr int STEPS = CH == 3 ? 4 : 16 / CH, ROWS = STEPS * CH;
    static constexpr int ALL = (WARP_CHUNK + STEPS - 1) / STEPS * STEPS;
    float sum[ROWS][WARP_ROW];
    warp_step<CH> step[ALL];
    float x[ALL][CH];
};
/* x, B and C of the steps of a chunk, for the block. */
template <int CH> struct warp_chunk {
    static constexpr int X = WARP_MAX * CH + 8; /* copies of 16 bytes may begin and end up to 7 channels outside */
    uint16_t b[warp_batch<CH>::ALL][WARP_STATES], c[warp_batch<CH>::ALL][WARP_STATES];
    __align__(16) uint16_t x[WARP_CHUNK][(X + 7) / 8 * 8];
    int32_t word[WARP_CHUNK];
};

/* How a launch divides the heads. */
struct warp_grid {
    int32_t rep;    /* heads that share B and C: a group */
    int32_t units;  /* warps of a head */
    int32_t heads;  /* most of a block */
    int32_t n_place, n_shared; /* saved states: all, and those in shared memory */
};

template <int CH> struct warp_shared {
    static constexpr int CHUNKS = 2; /* one is read, one on its way */
    float4 *saved;          /* [n_shared][CH][threads] */
    warp_chunk<CH> *chunk;  /* [CHUNKS] */
    warp_batch<CH> *batch;  /* [warps] */
    float2 *table;          /* [heads][2 * n_node]: dt and decay of the path's and the tree's nodes */
    void *steps;
    static __host__ __device__ size_t bytes(const warp_grid &g, int threads, int n_node)
    {
        return sizeof(float4) * (size_t)(g.n_shared * CH * threads) + CHUNKS * sizeof(warp_chunk<CH>) +
               sizeof(warp_batch<CH>) * (size_t)(threads / 32) + sizeof(float2) * 2 * (size_t)(g.heads * n_node) +
               scan_steps::bytes(n_node);
    }
    __device__ warp_shared(char *memory, const warp_grid &g, int threads, int n_node)
    {
        saved = (float4 *)memory;
        chunk = (warp_chunk<CH> *)(saved + g.n_shared * CH * threads);
        batch = (warp_batch<CH> *)(chunk + CHUNKS);
        table = (float2 *)(batch + threads / 32);
        steps = table + 2 * g.heads * n_node;
    }
};

static __device__ __forceinline__ void copy_async(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global)
                 : "memory");
}
static __device__ __forceinline__ void copy_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <typename T> static __device__ __forceinline__ void unpack4(float out[4], uint2 v)
{
    const float2 lo = unpack2<T>(v.x), hi = unpack2<T>(v.y);
    out[0] = lo.x, out[1] = lo.y, out[2] = hi.x, out[3] = hi.y;
}

/* States of a lane: of CH channels, n_ch of them there, four each. */
template <int CH> struct lane_states {
    float v[CH][4];

    __device__ __forceinline__ void load(const float *from, int n_ch)
    {
#pragma unroll
        for (int i = 0; i < CH; i++) {
            const float4 q = i < n_ch ? *(const float4 *)(from + i * WARP_STATES) : make_float4(0, 0, 0, 0);
            v[i][0] = q.x, v[i][1] = q.y, v[i][2] = q.z, v[i][3] = q.w;
        }
    }
    __device__ __forceinline__ void store(float *to, int n_ch) const
    {
#pragma unroll
        for (int i = 0; i < CH; i++)
            if (i < n_ch) *(float4 *)(to + i * WARP_STATES) = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
    }
    __device__ __forceinline__ void restore(const float4 *from)
    {
#pragma unroll
        for (int i = 0; i < CH; i++) {
            const float4 q = from[i * blockDim.x];
            v[i][0] = q.x, v[i][1] = q.y, v[i][2] = q.z, v[i][3] = q.w;
        }
    }
    __device__ __forceinline__ void save(float4 *to) const
    {
#pragma unroll
        for (int i = 0; i < CH; i++) to[i * blockDim.x] = make_float4(v[i][0], v[i][1], v[i][2], v[i][3]);
    }
    __device__ __forceinline__ void absorb(const lane_states &from, const warp_step<CH> &in, const float b[4])
    {
#pragma unroll
        for (int i = 0; i < CH; i++)
#pragma unroll
            for (int k = 0; k < 4; k++) v[i][k] = scan_update(from.v[i][k], in.decay, in.dx[i], b[k]);
    }
    /* S C over this lane's states, for each channel into its row of sums. */
    __device__ __forceinline__ void dot(float *to, const float c[4]) const
    {
#pragma unroll
        for (int i = 0; i < CH; i++)
            to[i * WARP_ROW] = fmaf(v[i][3], c[3], fmaf(v[i][2], c[2], fmaf(v[i][1], c[1], v[i][0] * c[0])));
    }
};

/* The sum of a row over the lanes that made it: l and l ^ 16 first, then 8, 4, 2, 1. Two lanes share a row. */
static __device__ __forceinline__ float warp_row_sum(const float *row, int odd)
{
    const float4 *p = (const float4 *)(row + 16 * odd);
    const float4 a = p[0], b = p[1], c = p[2], d = p[3];
    const float x = (a.x + c.x) + (b.x + d.x), y = (a.y + c.y) + (b.y + d.y);
    const float z = (a.z + c.z) + (b.z + d.z), w = (a.w + c.w) + (b.w + d.w);
    const float sum = (x + z) + (y + w);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

template <typename T, int CH>
static __global__ void __maxnreg__(48 + 16 * CH)
scan_warp_kernel(const spec_step_block *step, const spec_scan_args a, const warp_grid grid)
{
    typedef warp_batch<CH> batch_t;
    extern __shared__ __align__(16) char dynamic[];
    const int n_thread = (int)blockDim.x, tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32;
    const warp_shared<CH> shared(dynamic, grid, n_thread, a.n_node);
    batch_t &batch = shared.batch[warp];

    grid_release();
    const int n_seq = (int)blockIdx.y;
    if (n_seq >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    if (s.n_replay > a.n_node || s.n_fed + s.n_row > a.n_node) return grid_wait(); /* caches and tables hold n_node */

    /* Which channels. Warps without channels go along and store nothing. Channels of x are counted through all heads;
     * the block has n_x, from x0 on. */
    const int n_warp = n_thread / 32, unit0 = (int)blockIdx.x * n_warp, first_head = unit0 / grid.units;
    const int part0 = unit0 - first_head * grid.units, head0 = (int)blockIdx.z * grid.rep + first_head;
    const int n_left = grid.rep - first_head; /* heads of the group from head0 on */
    auto channel_of = [&](int w) { /* the first of the block's warp w */
        int h = 0, part = part0 + w;
        for (; part >= grid.units && h < n_left; h++) part -= grid.units;
        return h < n_left ? h * a.head_dim + part * CH : n_left * a.head_dim;
    };
    const int own0 = channel_of(warp), h_own = min(own0 / a.head_dim, n_left - 1), head = head0 + h_own;
    const int c0 = own0 - h_own * a.head_dim, n_ch = max(min(a.head_dim - c0, CH), 0), n_head = min(grid.heads, n_left);
    const int x0 = (head0 * a.head_dim + part0 * CH) & ~7, x_own = head0 * a.head_dim + own0 - x0;
    const int n_x = head0 * a.head_dim + channel_of(n_warp) - x0;
    const size_t half = ((size_t)s.slot * 2 + s.parity) * a.n_node;
    const size_t other = ((size_t)s.slot * 2 + (s.parity ^ 1)) * a.n_node;

    lane_states<CH> state, place[WARP_PLACES] = {};
    float *memory = a.state + (((size_t)s.slot * a.n_head + head) * a.head_dim + c0) * WARP_STATES + 4 * lane;
    state.load(memory, n_ch);
    scan_steps steps(shared.steps, a.n_node);
    steps.build(step, s, grid.n_place);

    /* dt and decay of the path's nodes, then the tree's: entry e for the block's head h. */
    const int n_known = s.n_replay + s.n_fed;
    auto keep_dt = [&](int h, int e, float dt) {
        shared.table[h * 2 * a.n_node + e] = make_float2(dt, scan_decay(dt, a.a[head0 + h]));
    };
    auto raw_dt = [&](int i) { /* of row i / n_head */
        return load_any(a.dt.data, a.dt.dtype, (size_t)(s.first_row + i / n_head) * a.dt.ld + head0 + i % n_head);
    };
#pragma unroll 1
    for (int i = tid; i < n_head * n_known; i += n_thread) {
        const int h = i % n_head, e = i / n_head;
        const size_t cached = e < s.n_replay ? other + spec_step_paths(step)[s.first_path + e] : half + e - s.n_replay;
        keep_dt(h, e, a.cache_dt[cached * a.n_head + head0 + h]);
    }

    /* x, B and C come from the convolution's rows and replay_y, a warp to a step. */
    const size_t b_block = (size_t)(head / a.b_rep) * WARP_STATES, c_block = (size_t)(head / a.c_rep) * WARP_STATES;
    const T *row_x = (const T *)a.x.data + (size_t)s.first_row * a.x.ld + x0;
    const T *row_b = (const T *)a.b.data + (size_t)s.first_row * a.b.ld + b_block;
    const T *row_c = (const T *)a.c.data + (size_t)s.first_row * a.c.ld + c_block;
    const T *replay = (const T *)a.replay_y + (size_t)n_seq * 2 * a.n_node * a.replay_ld;
    auto stage = [&](int t0) {
        warp_chunk<CH> &to = shared.chunk[t0 / WARP_CHUNK % 2];
        const int n_chunk = min(steps.n_step - t0, (int)WARP_CHUNK);
#pragma unroll 1
        for (int i = warp; i < n_chunk; i += n_thread / 32) {
            const int w = steps.at(t0 + i), n = w & STEP_NODE, r = n - s.n_fed, part = lane % 16 * 8;
            const bool known = (w & STEP_PATH) || r < 0;
            const T *entry = replay + (size_t)(w & STEP_PATH ? n : s.n_replay + n) * a.replay_ld;
            if (lane == 0) to.word[i] = w;
            const T *x = known ? entry + a.replay_x_col + x0 : row_x + (size_t)r * a.x.ld;
            const T *b = known ? entry + a.replay_b_col + b_block : row_b + (size_t)r * a.b.ld;
            if (lane < 16) copy_async(&to.b[i][part], b + part);
            else if (!known) copy_async(&to.c[i][part], row_c + (size_t)r * a.c.ld + part);
            if (lane * 8 < n_x) copy_async(&to.x[i][lane * 8], x + lane * 8);
        }
    };

    auto go_on_from = [&](int w) { /* any but the live state */
        const int k = ((w & STEP_FROM) - (int)STEP_PLACE) >> 16, deep = k - grid.n_shared;
        if (k < 0) state.load(memory, n_ch);
        else if (deep < 0) state.restore(shared.saved + k * CH * n_thread + tid);
        else if (deep == 0) state = place[0];
        else state = place[1];
    };
    auto keep = [&](int w) {
        const int k = ((w & STEP_SAVE) >> 20) - 1, deep = k - grid.n_shared;
        if (w & STEP_STORE) state.store(memory, n_ch);
        if (k < 0) return;
        if (deep < 0) state.save(shared.saved + k * CH * n_thread + tid);
        else if (deep == 0) place[0] = state;
        else place[1] = state;
    };

    /* The chunk's steps as the warp's channels need them, up to a whole batch: what is too much has no output. */
    const float2 *table = shared.table + (head - head0) * 2 * a.n_node;
    auto prepare = [&](const warp_chunk<CH> &chunk, int n) {
        const int end = (n + batch_t::STEPS - 1) / batch_t::STEPS * batch_t::STEPS * CH;
#pragma unroll 2
        for (int k = lane; k < end; k += 32) {
            const int i = k / CH, ch = k % CH;
            const int word = i < n ? chunk.word[i] : (int)STEP_ALONE;
            const float x = i < n && ch < n_ch ? to_f32(*(const T *)&chunk.x[i][x_own + ch]) : 0.0f;
            const float2 v = table[i < n ? (word & STEP_PATH ? 0 : s.n_replay) + (word & STEP_NODE) : 0];
            batch.step[i].dx[ch] = v.x * x, batch.x[i][ch] = x;
            if (ch == 0) batch.step[i].decay = v.y, batch.step[i].word = word;
        }
        __syncwarp();
    };

    /* A lane's part in a batch: the output of one step and channel. */
    const int row = min(lane / 2, batch_t::ROWS - 1), slot = row / CH, ch = row % CH;
    const bool has_part = lane < 2 * batch_t::ROWS && ch < n_ch && lane % 2 == 0;
    const float skip = a.d ? a.d[head] : 0.0f;
    const int y_row = s.first_row - s.n_fed, y_col = head * a.head_dim + c0 + ch;
    float *sums = &batch.sum[0][16 * (lane % 2) + lane / 2];
    auto run_batch = [&](const warp_chunk<CH> &chunk, int i0, int end) {
        const int word = batch.step[i0 + slot].word;
        const float x = batch.x[i0 + slot][ch];
        const bool has_y = has_part && (word & STEP_OUT);
        const size_t r = has_y ? (size_t)(y_row + (word & STEP_NODE)) : 0;
        const float z = has_y && a.z.data ? load_any(a.z.data, a.z.dtype, r * a.z.ld + y_col) : 0.0f; /* is there in the end */
        float *to = sums;
#pragma unroll 1
        for (int i = i0; i < end; i++, to += CH * WARP_ROW) {
            warp_step<CH> in = batch.step[i];
            float b[4], c[4];
            unpack4<T>(b, *(const uint2 *)&chunk.b[i][4 * lane]);
            unpack4<T>(c, *(const uint2 *)&chunk.c[i][4 * lane]);
            if (in.word & STEP_FROM) go_on_from(in.word);
            if (in.word & STEP_ALONE) {
                lane_states<CH> beside;
                asm volatile("" : "+f"(in.decay)); /* else both branches become one, on a copy of the state */
                beside.absorb(state, in, b);
                beside.dot(to, c);
            } else {
                state.absorb(state, in, b);
                if (in.word & STEP_OUT) state.dot(to, c);
                if (in.word & (STEP_SAVE | STEP_STORE)) keep(in.word);
            }
        }
        __syncwarp();
        float y = warp_row_sum(batch.sum[row], lane % 2);
        if (has_y) {
            y = fmaf(skip, x, y);
            if (a.z.data) y = y * silu(z);
            store_any(a.y.data, a.y.dtype, r * a.y.ld + y_col, y);
        }
        __syncwarp(); /* sums, and in the end the steps, have been read */
    };

    const int n_dt = n_head * s.n_row;
    float first_dt;
    auto fill_rows = [&]() {
#pragma unroll 1
        for (int i = tid; i < n_dt; i += n_thread) {
            const int h = i % n_head, n = s.n_fed + i / n_head;
            const float bias = a.dt_bias ? a.dt_bias[head0 + h] : 0.0f;
            const float dt = scan_dt(i == tid ? first_dt : raw_dt(i), bias, a.dt_min, a.dt_max);
            keep_dt(h, s.n_replay + n, dt);
            if (h > 0 || part0 == 0) /* the block with the head's first warp keeps it for replay */
                a.cache_dt[(half + n) * a.n_head + head0 + h] = dt;
        }
    };
    grid_wait();
    if (tid < n_dt) first_dt = raw_dt(tid);
    stage(0);
    fill_rows();
#pragma unroll 1
    for (int t0 = 0; t0 < steps.n_step; t0 += WARP_CHUNK) {
        copy_wait();
        __syncthreads(); /* the chunk is there, and the table; the chunk before has been read */
        if (t0 + WARP_CHUNK < steps.n_step) stage(t0 + WARP_CHUNK);
        const warp_chunk<CH> &chunk = shared.chunk[t0 / WARP_CHUNK % 2];
        const int n = min(steps.n_step - t0, (int)WARP_CHUNK);
        prepare(chunk, n);
#pragma unroll 1
        for (int i = 0; i < n; i += batch_t::STEPS) run_batch(chunk, i, min(i + batch_t::STEPS, n));
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

/* Warps on the fullest multiprocessor, with blocks of so many. */
static int64_t warps_at_most(const spec_queue *q, const spec_scan_args *a, int ch, int warps)
{
    const int64_t blocks = cuda_div_up((int64_t)a->b_rep * cuda_div_up(a->head_dim, ch), warps);
    return cuda_div_up(blocks * (a->n_head / a->b_rep) * q->shape.seqs, q->dev->n_sm) * (int64_t)warps;
}

template <typename T, int CH> static bool launch(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    const int units = cuda_div_up(a->head_dim, CH);
    const bool small = warps_at_most(q, a, CH, WARP_MAX / 2) < warps_at_most(q, a, CH, WARP_MAX);
    const int warps = small ? WARP_MAX / 2 : (int)WARP_MAX;
    warp_grid g = {};
    g.rep = a->b_rep, g.units = units, g.heads = (warps - 2) / units + 2;
    if (g.heads > g.rep) g.heads = g.rep;
    g.n_place = scan_places(q->shape.rows < a->n_node ? q->shape.rows : a->n_node);
    g.n_shared = g.n_place > WARP_PLACES ? g.n_place - WARP_PLACES : 0;
    const size_t bytes = warp_shared<CH>::bytes(g, warps * 32, a->n_node);
    if (bytes > scan_shared_limit(q->dev)) return false;
    scan_allow_shared(q->dev, scan_warp_kernel<T, CH>, bytes);
    const dim3 blocks((unsigned)cuda_div_up((int64_t)g.rep * units, warps), (unsigned)q->shape.seqs,
                      (unsigned)(a->n_head / g.rep));
    *status = cuda_launch(q, "scan", scan_warp_kernel<T, CH>, blocks, dim3((unsigned)warps * 32), bytes, 1, q->d_step,
                          *a, g);
    return true;
}

/* Channels of a warp: the fewest that leave a multiprocessor with 16 warps at most. More warps hide each other's
 * latency; more channels share what a step costs beside them. */
template <typename T> static bool launch_any(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    int ch = 2;
    while (ch < 5 && warps_at_most(q, a, ch, WARP_MAX / 2) > 16) ch++;
    switch (ch) {
    case 2: return launch<T, 2>(q, a, status);
    case 3: return launch<T, 3>(q, a, status);
    case 4: return launch<T, 4>(q, a, status);
    default: return launch<T, 5>(q, a, status);
    }
}

static bool rows_aligned(const spec_view *v) { return cuda_aligned(v->data, 16) && v->ld % 8 == 0; }
static bool has_kernel(const spec_queue *q, const spec_scan_args *a)
{
    return q->shape.phase == SPEC_PHASE_DECODE && !a->matrix && !a->a_per_state && a->n_state == WARP_STATES &&
           a->b_in_conv && !a->node_state && a->x_rep == 1 && a->b_rep == a->c_rep && a->dtype != SPEC_DTYPE_F32 &&
           a->x.dtype == a->dtype && a->b.dtype == a->dtype && a->c.dtype == a->dtype && rows_aligned(&a->x) &&
           rows_aligned(&a->b) && rows_aligned(&a->c) && cuda_aligned(a->state, 16) && cuda_aligned(a->replay_y, 16) &&
           a->replay_ld % 8 == 0 && a->replay_b_col % 8 == 0 && a->replay_x_col % 8 == 0;
}

bool speci_cuda_scan_warp(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    if (!has_kernel(q, a)) return false;
    return a->dtype == SPEC_DTYPE_BF16 ? launch_any<__nv_bfloat16>(q, a, status)
                                       : launch_any<__half>(q, a, status);
}
