/* cuda_scan_state.cu - selective scan over a tree, recurrent form, for what Mamba-1 has: decode passes, a decay per
 * state, 16 states, heads of one channel, which share B and C. The same sums in the same order as scan_kernel
 * (cuda_scan_recurrent.cu), hence the same bits.
 *
 * There is little state and much to compute beside it. Only the update itself goes from step to step
 * (cuda_scan_steps.cuh), so all else is done for a chunk of steps side by side, by a thread for each step and channel
 * of the block:
 *  - it finds where the step starts from, loads what the step has of its channel, and makes dt;
 *  - the block's first threads, with two states each, walk through the steps and leave the state behind each in shared
 *    memory;
 *  - it makes the output of its step's state, S C + D x, and the gate.
 * So there is one copy of every step of the way, since the code of a kernel that runs once a layer is not in the
 * caches, and no load waits for another. The walk is by few warps, which hide no latency: its steps have no branches,
 * and only the state is waited for. A state that waits is not put aside: it is read where the step left it behind, and
 * only from chunk to chunk it is kept. Where the list has rounds all threads walk, steps of a round side by side.
 *
 * The product that makes dt may be done here as well, 16 channels being what the matrix instruction makes at once:
 * that is a kernel less for every layer. Its weights, the state and the list of steps are read before the kernel waits
 * for the one in front.
 *
 * The list is the same for all layers. Where there are several rows it is made by a kernel of its own in front of the pass, since the
 * tree's parents, followed one after the other, would take each scan longer than the product in front takes. So would the ancestors whose
 * inputs the convolution takes, which that kernel lists as well. */
#include "backends/cuda/cuda_tuning.h"
#include "backends/cuda/linear/cuda_linear.cuh"
#include "backends/cuda/scan/cuda_scan.cuh"
#include "backends/cuda/scan/cuda_scan_steps.cuh"

enum {
    STATE_N = 16,
    STATE_CHANNELS = 16,       /* of a block */
    STATE_LANES = STATE_N / 2, /* that walk for a channel */
    STATE_WALKERS = STATE_CHANNELS * STATE_LANES,
    STATE_ROW = 20,  /* of a channel's states: 8 threads that read 16 bytes each are on different banks */
    STATE_SIZE = STATE_CHANNELS * STATE_ROW, STATE_BYTES = STATE_SIZE * (int)sizeof(float),
    STATE_EIGHT = 8, /* steps that multiply_dt takes */
    STATE_LEAST = STATE_WALKERS / STATE_CHANNELS, STATE_MOST = 40, /* steps of a chunk */
    STATE_PAIRS = STATE_MOST / 2 + 1, /* the walk reads a pair of steps ahead */
    STATE_ANCESTORS = 4,              /* of a level's rows, whose states may wait */
    STATE_RESIDENT = 768,             /* threads that a multiprocessor has registers for */
    STATE_TEAMS = STATE_RESIDENT / STATE_WALKERS, /* that walk where there are rounds, at most */
    LIST_THREADS = 128,
    LIST_ROWS = 2,   /* of a sequence, whose steps each scan finds sooner than all together */
    ROUND_ROWS = 8,  /* of a sequence, too few for rounds */
    LIST_ROUNDS = 24 /* a list's first word: the number of steps | rounds << LIST_ROUNDS, 0: one after the other */
};

/* The product dt = W x, where the scan does it; w NULL: dt is there. */
struct dt_product {
    const void *w, *x;
    int32_t ld_w, ld_x, n_in;
};

/* What a chunk's steps bring; what the walk takes of it by pairs of steps. */
struct alignas(16) state_chunk {
    float2 time[STATE_PAIRS][STATE_CHANNELS][2]; /* dt and dt x */
    float b[STATE_PAIRS][STATE_LANES][2][2];
    float c[STATE_MOST][STATE_N];
    int32_t word[STATE_MOST];
    int32_t go[STATE_MOST + STATE_TEAMS]; /* the word for the walk: with GO_FROM, bytes into shared.state << 8 | flags */
};
enum { GO_ALONE = STEP_ALONE >> 24, GO_STORE = STEP_STORE >> 24, GO_FROM = 16 /* a state of those, not the live one */ };
/* In rounds: all have these bytes, and the round times GO_ROUND in place of GO_FROM; GO_NONE behind the last step. */
enum { GO_ROUND = 16, GO_NONE = STEP_ROUNDS * GO_ROUND };

/* The compiler has the value from here on, and computes it neither again nor later. */
static __device__ __forceinline__ void settle(int &v) { asm volatile("" : "+r"(v)); }
template <typename P> static __device__ __forceinline__ void settle(P *&p) { asm volatile("" : "+l"(p)); }

/* What else a block has in shared memory, behind that and the list of steps. */
struct state_shared {
    float *state; /* [1 + n_saved + chunk][STATE_CHANNELS][STATE_ROW]: the stored one and those saved, kept from the chunks
                   * in front; behind each step */
    char *w, *x;  /* of dt's product, 16 bit: [STATE_CHANNELS][ld_w], [chunk, whole eights][ld_w] */

    static __host__ __device__ size_t front(int n_node)
    {
        return (sizeof(state_chunk) + scan_steps::bytes(n_node) + 15) / 16 * 16;
    }
    static __host__ __device__ size_t state_bytes(int n) { return sizeof(float) * (size_t)(n * STATE_SIZE); }
    static size_t bytes(int n_node, int chunk, int n_saved, int ld_w)
    {
        return front(n_node) + state_bytes(1 + n_saved + chunk) +
               2 * (size_t)ld_w * (STATE_CHANNELS + cuda_round_up((size_t)chunk, STATE_EIGHT));
    }
    __device__ state_shared(char *memory, int n_node, int chunk, int n_saved, int ld_w)
    {
        int states = (int)front(n_node), weights = states + (int)state_bytes(1 + n_saved + chunk);
        settle(states), settle(weights);
        state = (float *)(memory + states), w = memory + weights, x = w + 2 * ld_w * STATE_CHANNELS;
    }
};

template <typename P> static __device__ __forceinline__ P *at(P *rows, int i, int ld)
{
    return rows + (int64_t)i * ld;
}

/* 16 channels of 8 steps, by a warp, where no part of K has more than one chunk: the sums of linear_few_kernel. What is
 * left out, instructions on nothing but zeros, would add nothing. */
template <typename T>
static __device__ __forceinline__ void multiply_dt(float2 (*time)[STATE_CHANNELS][2], const T *w, const T *x, int ld,
                                                   int n_in)
{
    const int lane = (int)threadIdx.x % 32, g = lane / 4, t = lane % 4, middle = ld / CUDA_CHUNK / 2;
    w += g * ld + t * 8, x += g * ld + t * 8;
    float part[4] = {}, sum[4] = {}, front[4] = {}; /* front: of the first four parts */
#pragma unroll 1
    for (int k = 0; k < n_in; k += 32) {
        mma_chunk<T>(part, *(const uint4 *)(w + k), *(const uint4 *)(w + 8 * ld + k), *(const uint4 *)(x + k));
        if ((k + 32) % CUDA_CHUNK != 0 && k + 32 < n_in) continue;
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (k / CUDA_CHUNK == middle) front[e] = sum[e], sum[e] = 0.0f;
            sum[e] = sum[e] + part[e], part[e] = 0.0f;
        }
    }
#pragma unroll
    for (int e = 0; e < 4; e++) time[t][g + e / 2 * 8][e % 2].x = front[e] + sum[e];
}

/* T: of x, B, C and the caches. ROUNDS: lists may have rounds. arranged: y once more, in `order` (cuda_linear.cuh), or NULL. A thread for
 * each step of a chunk and channel of the block. */
template <typename T, bool ROUNDS>
static __global__ void __launch_bounds__(STATE_RESIDENT)
scan_state_kernel(const spec_step_block *step, const spec_scan_args a, const dt_product p, int n_saved, const cuda_steps listed,
                  uint16_t *arranged, linear_order order)
{
    extern __shared__ __align__(16) char dynamic[];
    int tid = (int)threadIdx.x;
    settle(tid); /* else it is read again in the walk, which takes as long as a load */
    const int chunk = (int)blockDim.x / STATE_CHANNELS, n_kept = 1 + n_saved;
    state_chunk &in = *(state_chunk *)dynamic;
    const state_shared shared(dynamic, a.n_node, chunk, n_saved, p.ld_w);

    grid_release();
    const int n_seq = (int)blockIdx.y;
    if (n_seq >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const int32_t *const list = listed.list + (size_t)n_seq * (1 + listed.room);
    const int n_listed = listed.list ? list[0] : -1, n_round = !ROUNDS || n_listed < 0 ? 0 : n_listed >> LIST_ROUNDS;
    if (s.n_replay > a.n_node || s.n_fed + s.n_row > a.n_node) return grid_wait(); /* caches and tables hold n_node */

    /* --- 1: before the wait: the stored state, weights of dt, the list of steps --- */
    /* The walk: a channel of the block, and two of its states; by the first threads, or in rounds by teams of as many. */
    const int first = (int)blockIdx.x * STATE_CHANNELS, own = tid % STATE_WALKERS / STATE_LANES, l = tid % STATE_LANES;
    const bool walks = tid < STATE_WALKERS, owns = first + own < min(first + (int)STATE_CHANNELS, a.n_head);
    const size_t own_states = (size_t)(first + own) * STATE_N + 2 * l;
    float2 *const rows = (float2 *)(shared.state + own * STATE_ROW + 2 * l);
    float2 *const memory = (float2 *)(a.state + (size_t)s.slot * a.n_head * STATE_N + own_states);
    const float2 none = make_float2(0.0f, 0.0f), rate = owns ? *(const float2 *)(a.a + own_states) : none;
    float2 state = walks && owns ? *memory : none;
    int stores = owns ? (int)GO_STORE : 0;
    settle(stores);
    const bool multiplies = sizeof(T) == 2 && p.w;
    for (int k = tid * 8; multiplies && k < STATE_CHANNELS * p.ld_w; k += (int)blockDim.x * 8)
        copy_part16((T *)shared.w + k, (const T *)p.w + (size_t)first * p.ld_w + k, 16);
    scan_steps steps(&in + 1, a.n_node);
    if (n_listed < 0) steps.build(step, s, n_saved);
    const int n_step = n_listed < 0 ? steps.n_step : n_listed & ((1 << LIST_ROUNDS) - 1);
    if (walks) *rows = state;
    if (tid < STATE_TEAMS) in.go[chunk + tid] = GO_NONE;

    /* --- what the phases below call: the walk through a chunk's steps, and where a step's state stands --- */
    auto decay_of = [&](float dt) { return make_float2(scan_decay(dt, rate.x), scan_decay(dt, rate.y)); };
    auto input_of = [&](float dx, float b0, float b1) { return make_float2(scan_input(dx, b0), scan_input(dx, b1)); };
    auto update = [&](float2 decay, float2 input, int go, float2 *row) {
        if (go & GO_FROM) state = *(const float2 *)((const char *)rows + (go >> 8));
        const float2 next = make_float2(scan_apply(state.x, decay.x, input.x), scan_apply(state.y, decay.y, input.y));
        *row = next;
        if (go & stores) *memory = next;
        if (!(go & GO_ALONE)) state = next;
    };
    auto walk = [&](int n) { /* by two: a chunk is even, and what is behind the last step is nobody's */
        const float4 *time_at = (const float4 *)in.time + own, *b_at = (const float4 *)in.b + l;
        const int2 *go_at = (const int2 *)in.go;
        float2 *row = rows + n_kept * (STATE_SIZE / 2);
        float4 time = *time_at, b = *b_at;
        int2 go = *go_at;
#pragma unroll 1
        for (int i = 0; i < n; i += 2, row += STATE_SIZE) {
            const float2 even_decay = decay_of(time.x), even = input_of(time.y, b.x, b.y);
            const float2 odd_decay = decay_of(time.z), odd = input_of(time.w, b.z, b.w);
            const int2 now = go;
            time = *(time_at += STATE_CHANNELS), b = *(b_at += STATE_LANES), go = *++go_at;
            update(even_decay, even, now.x, row);
            update(odd_decay, odd, now.y, row + STATE_SIZE / 2);
        }
    };

    /* All steps, by all threads of the block, and a barrier behind. Teams take them by turns; as there is an even number of teams, a
     * team has the first steps of pairs, or the second. What a step brings is made ready while the state of the one in front is waited
     * for: what is behind the last step is nobody's. */
    auto walk_rounds = [&] {
        const int turn = (int)blockDim.x / (2 * STATE_WALKERS), team = tid / STATE_WALKERS; /* turn: pairs that teams take */
        const float2 *time_at = &in.time[team / 2][own][team % 2], *b_at = (const float2 *)in.b[team / 2][l][team % 2];
        const int *go_at = in.go + team;
        float2 *row = rows + (n_kept + team) * (STATE_SIZE / 2);
        float2 decay = decay_of(time_at->x), input = input_of(time_at->y, b_at->x, b_at->y);
        int go = team < 2 * turn ? *go_at : (int)GO_NONE;
#pragma unroll 1
        for (int round = 0; round < n_round; round++) {
#pragma unroll 1
            while (((go ^ round * GO_ROUND) & GO_NONE) == 0) {
                const float2 s = *(const float2 *)((const char *)rows + (go >> 8)), d = decay, u = input;
                const bool is_stored = go & stores;
                const float2 time = *(time_at += turn * STATE_CHANNELS * 2), b = *(b_at += turn * STATE_LANES * 2);
                go = *(go_at += turn * 2), decay = decay_of(time.x), input = input_of(time.y, b.x, b.y);
                const float2 next = make_float2(scan_apply(s.x, d.x, u.x), scan_apply(s.y, d.y, u.y));
                *row = next, row += turn * STATE_SIZE;
                if (is_stored) *memory = next;
            }
            __syncthreads();
        }
    };

    const int i = tid / STATE_CHANNELS, part = tid % STATE_CHANNELS;
    /* Which of shared.state is what `from` names, when steps up to `end` have been: behind the last that put it there,
     * else the kept one. By the 16 threads of a step; their warp's other half may be elsewhere. */
    auto row_of = [&](int from, int end) {
        int row = (from >> 16) - 1; /* kept: STEP_STORED first, then those saved */
#pragma unroll 1
        for (int k = part; k < end; k += STATE_CHANNELS) {
            const int w = in.word[k]; /* saved state n: n + 2 in STEP_FROM, n + 1 in STEP_SAVE */
            const bool left = from == STEP_STORED ? w & STEP_STORE : (w & STEP_SAVE) >> 4 == from - STEP_STORED;
            if (left) row = n_kept + k;
        }
#pragma unroll
        for (int d = STATE_CHANNELS / 2; d > 0; d /= 2) row = max(row, __shfl_xor_sync(0xffffu << (tid & 16), row, d));
        return row;
    };
    const bool has = first + part < a.n_head;
    const int ch = has ? first + part : a.n_head - 1;
    const float bias = a.dt_bias ? a.dt_bias[ch] : 0.0f, skip = a.d ? a.d[ch] : 0.0f;
    const int half = scan_half<int>(s, s.parity, a.n_node), other = scan_half<int>(s, s.parity ^ 1, a.n_node);
/* --- 2: chunk of steps after chunk --- */
#pragma unroll 1
    for (int t0 = 0; t0 == 0 || t0 < n_step; t0 += chunk) {
        /* --- 2a: which step this thread has, where its inputs are, which state it goes on from --- */
        const bool mine = t0 + i < n_step;
        const int w = !mine ? 0 : n_listed < 0 ? steps.at(t0 + i) : list[1 + t0 + i], node = w & STEP_NODE;
        const bool in_path = w & STEP_PATH, known = in_path || node < s.n_fed; /* known: from earlier passes */
        const bool out = w & STEP_OUT;
        const int row = s.first_row + node - s.n_fed, kept = half + node;
        const int cached = in_path ? other + spec_step_paths(step)[s.first_path + node] : kept;
        const int entry = n_seq * 2 * a.n_node + (in_path ? 0 : s.n_replay) + node;
        const T *x_at = at((const T *)a.x.data, row, a.x.ld), *b_at = at((const T *)a.b.data, row, a.b.ld);
        const float *dt_at = at((const float *)a.dt.data, row, a.dt.ld);
        if (known) {
            x_at = at((const T *)a.replay_y, entry, a.replay_ld) + a.replay_x_col;
            b_at = at((const T *)a.cache_b, cached, STATE_N), dt_at = at((const float *)a.cache_dt, cached, a.n_head);
        }
        const bool new_dt = multiplies && mine && !known;
        const T *dt_from = at((const T *)p.x, row, p.ld_x) + part * 8;
        settle(dt_from);
        if (part == 0) in.word[i] = w;
        __syncthreads(); /* row_of reads them */
        int go = w >> 24 & 0xff;
        if (n_round > 0) go = mine ? go | (step_behind(w) > 0 ? n_saved + step_behind(w) : 0) * STATE_BYTES << 8 : (int)GO_NONE;
        else if (w & STEP_FROM) go |= GO_FROM | row_of(w & STEP_FROM, i) * STATE_BYTES << 8;
        if (part == 0) in.go[i] = go;

        /* --- 2b: inputs of all steps side by side, the product that makes dt --- */
        if (t0 == 0) grid_wait();
#pragma unroll 1
        for (int k = part * 8; new_dt && k < p.ld_w; k += STATE_CHANNELS * 8, dt_from += STATE_CHANNELS * 8)
            copy_part16((T *)shared.x + i * p.ld_w + k, dt_from, min(max(p.n_in - k, 0), 8) * 2);
        T x_in = from_f32<T>(0.0f), b = x_in, c = x_in; /* no value is waited for before all are on their way */
        float dt = 0.0f, gate = 0.0f;
        if (mine) x_in = x_at[ch], b = b_at[part];
        if (mine && !new_dt) dt = dt_at[ch];
        if (out) c = at((const T *)a.c.data, row, a.c.ld)[part];
        if (out && a.z.data) gate = at((const float *)a.z.data, row, a.z.ld)[ch];
        if constexpr (sizeof(T) == 2) {
            if (multiplies) {
                scan_copies_wait();
                __syncthreads();
                const int i0 = tid / 32 * STATE_EIGHT;
                if (i0 < chunk)
                    multiply_dt(in.time + i0 / 2, (const T *)shared.w, (const T *)shared.x + i0 * p.ld_w, p.ld_w, p.n_in);
                __syncthreads();
                if (new_dt) dt = in.time[i / 2][part][i % 2].x;
                if (new_dt && has) at((float *)a.dt.data, row, a.dt.ld)[ch] = dt;
            }
        }
        const float x = to_f32(x_in);
        if (!known) dt = scan_dt(dt, bias, a.dt_min, a.dt_max);
        in.time[i / 2][part][i % 2] = make_float2(dt, dt * x);
        in.b[i / 2][part / 2][i % 2][part % 2] = to_f32(b), in.c[i][part] = to_f32(c);
        if (out && has) at(a.cache_dt, kept, a.n_head)[ch] = dt;
        if (out && first == 0) at((T *)a.cache_b, kept, STATE_N)[part] = b;
        __syncthreads();
        /* --- 2c: the update, step after step by the first warps, or round after round by all --- */
        if (n_round > 0) {
            walk_rounds();
        } else {
            if (walks) walk(min(n_step - t0, chunk));
            __syncthreads();
        }

        /* --- 2d: outputs of all steps side by side --- */
        if (out && has) { /* y = S C + D x, gated */
            const float4 *const to_sum = (const float4 *)(shared.state + n_kept * STATE_SIZE + tid * STATE_ROW);
            const float4 *const by = (const float4 *)in.c[i];
            float sum[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float4 p = to_sum[k], q = by[k];
                sum[k] = fmaf(p.w, q.w, fmaf(p.z, q.z, fmaf(p.y, q.y, p.x * q.x)));
            }
            float y = fmaf(skip, x, (sum[0] + sum[2]) + (sum[1] + sum[3]));
            if (a.z.data) y = y * silu(gate);
            if (a.y.dtype == SPEC_DTYPE_F32) at((float *)a.y.data, row, a.y.ld)[ch] = y;
            else at((T *)a.y.data, row, a.y.ld)[ch] = from_f32<T>(y);
            if constexpr (sizeof(T) == 2)
                if (arranged) put_arranged<T>(arranged, order, row, ch, a.n_head, y);
        }
        /* --- 2e: states that the next chunk may go on from are kept --- */
        if (t0 + chunk >= n_step) continue;
#pragma unroll 1
        for (int k = i; k < n_kept; k += chunk) { /* the chunk behind may go on from them */
            float *const own_row = shared.state + part * STATE_ROW;
            const float4 *const left = (const float4 *)(own_row + row_of((k + 1) << 16, chunk) * STATE_SIZE);
#pragma unroll
            for (int v = 0; v < STATE_N / 4; v++) ((float4 *)(own_row + k * STATE_SIZE))[v] = left[v];
        }
        __syncthreads(); /* all have read the chunk */
    }
    if (arranged && order == ORDER_SLABS) slab_fence();
}

/* ---------------------------------------------------------------- list of steps, and of ancestors --- */

/* A block for each sequence. */
static __global__ void __launch_bounds__(LIST_THREADS)
scan_list_kernel(const spec_step_block *step, int n_saved, const cuda_steps listed, int releases)
{
    extern __shared__ __align__(16) char dynamic[];
    grid_wait();
    if (releases) grid_release();
    const int n_seq = (int)blockIdx.x;
    if (n_seq >= step->n_seq) return;
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    if (s.n_replay > listed.n_node || s.n_fed + s.n_row > listed.n_node) return; /* nor does the scan do anything */
    scan_steps steps(dynamic, listed.n_node);
    const bool two_teams = listed.chunk * STATE_CHANNELS >= 2 * STATE_WALKERS;
    const int n_round = two_teams ? steps.build_rounds(step, s, listed.chunk) : 0;
    if (n_round == 0) steps.build(step, s, n_saved);
    int32_t *const list = listed.list + (size_t)n_seq * (1 + listed.room);
    const int n = steps.n_step <= listed.room ? steps.n_step : 0;
    if (threadIdx.x == 0) list[0] = n == steps.n_step ? n | n_round << LIST_ROUNDS : -1;
    for (int t = (int)threadIdx.x; t < n; t += LIST_THREADS) list[1 + t] = n_round > 0 ? steps.at_round(t) : steps.at(t);
    int4 *const ancestors = listed.ancestors + (size_t)n_seq * listed.n_node;
    for (int i = (int)threadIdx.x; i < s.n_fed + s.n_row; i += LIST_THREADS) ancestors[i] = steps.ancestors(i);
    if (!releases) __threadfence(); /* as of the step (cuda_step.cu) */
}

/* --------------------------------------------------------------------------------- launcher --- */

/* Steps of a chunk, an even number: all of a sequence's with some of a path, where a multiprocessor has room for the
 * threads of all its blocks; else several chunks of one length. A level of a growing tree has as many steps again in front,
 * of ancestors, or few more. */
static int chunk_steps(const spec_queue *q, int blocks)
{
    const int on_each = cuda_div_up((int64_t)blocks * q->shape.seqs, q->dev->n_sm);
    const int room = STATE_RESIDENT / STATE_CHANNELS / on_each, most = room < STATE_MOST ? room : (int)STATE_MOST;
    const int rows = cuda_div_up(q->shape.rows, q->shape.seqs), path = cuda_tuning_of(q->dev).state_path;
    const int steps = path + (q->shape.grows && 2 * rows + path <= most ? 2 : 1) * rows;
    if (most < STATE_LEAST) return STATE_LEAST;
    const int chunk = cuda_div_up(steps, 2 * cuda_div_up(steps, most)) * 2;
    return chunk > STATE_LEAST ? chunk : (int)STATE_LEAST;
}

/* States that may wait. */
static int saved_most(const spec_queue *q, int n_node)
{
    const int in_tree = scan_saved_most(q->shape.rows < n_node ? q->shape.rows : n_node);
    return q->shape.grows && in_tree < STATE_ANCESTORS ? (int)STATE_ANCESTORS : in_tree;
}

/* May the pass's lists have rounds? Those of wide levels of growing trees: for others they are slower, or their code is. */
static bool has_rounds(const spec_queue *q) { return q->shape.grows && q->shape.rows > ROUND_ROWS * q->shape.seqs; }

template <typename T, bool ROUNDS>
static bool launch(spec_queue *q, const spec_scan_args *a, const dt_product &p, cuda_pass *pass, spec_status *status)
{
    const int blocks = cuda_div_up(a->n_head, STATE_CHANNELS), chunk = chunk_steps(q, blocks);
    const int n_saved = saved_most(q, a->n_node);
    const bool is_listed = pass->steps.n_node == a->n_node && (!ROUNDS || pass->steps.chunk == chunk);
    const cuda_steps listed = is_listed ? pass->steps : cuda_steps();
    const size_t bytes = state_shared::bytes(a->n_node, chunk, n_saved, p.ld_w);
    if (bytes > q->dev->shared_most) return false;
    auto *const kernel = scan_state_kernel<T, ROUNDS>;
    scan_allow_shared(q->dev, kernel, bytes);
    uint16_t *const arranged = speci_cuda_arranged_for(q, pass, ORDER_ROWS, NULL);
    *status = cuda_launch(q, "scan", kernel, dim3((unsigned)blocks, (unsigned)q->shape.seqs),
                          dim3((unsigned)(chunk * STATE_CHANNELS)), bytes, 1, q->d_step, *a, p, n_saved, listed,
                          arranged, pass->out.order);
    return true;
}

template <typename T>
static bool launch_type(spec_queue *q, const spec_scan_args *a, const dt_product &p, cuda_pass *pass, spec_status *status)
{
    return has_rounds(q) ? launch<T, true>(q, a, p, pass, status) : launch<T, false>(q, a, p, pass, status);
}

static bool has_kernel(const spec_queue *q, const spec_scan_args *a)
{
    return q->shape.phase == SPEC_PHASE_DECODE && a->n_state == STATE_N && scan_has_states(a) && !a->node_state &&
           !a->b_in_conv && a->cache_b;
}

bool speci_cuda_lists_steps(const spec_queue *q, const spec_scan_args *a)
{
    return has_kernel(q, a) && q->shape.rows > LIST_ROWS * q->shape.seqs;
}
spec_status speci_cuda_list_steps(spec_queue *q, const spec_scan_args *a, bool releases, cuda_steps *out)
{
    *out = q->steps;
    out->n_node = a->n_node, out->chunk = has_rounds(q) ? chunk_steps(q, cuda_div_up(a->n_head, STATE_CHANNELS)) : 0;
    const size_t bytes = scan_steps::bytes(a->n_node);
    scan_allow_shared(q->dev, scan_list_kernel, bytes);
    return cuda_launch(q, "scan", scan_list_kernel, dim3((unsigned)q->shape.seqs), dim3(LIST_THREADS), bytes, 1, q->d_step,
                       saved_most(q, a->n_node), *out, (int)releases);
}

/* Of up to 7 chunks no part of K has two. */
static bool has_product(const spec_scan_args *a, const cuda_linear_args *dt)
{
    return speci_dtype_bytes(a->dtype) == 2 && dt->w && dt->w->format->plain && dt->w->dtype == a->dtype && dt->x.dtype == a->dtype &&
           dt->w->ld < LINEAR_PARTS * CUDA_CHUNK && dt->n_out == a->n_head && dt->y.data == a->dt.data &&
           dt->y.ld == a->dt.ld && dt->y.dtype == SPEC_DTYPE_F32 && !dt->bias && !dt->glu && !dt->add &&
           dt->act == SPEC_ACT_NONE && !dt->squares && dt->scale == 1.0f && cuda_aligned(dt->x.data, 16) && dt->x.ld % 8 == 0;
}

bool speci_cuda_scan_state(spec_queue *q, const spec_scan_args *a, cuda_pass *pass, spec_status *status)
{
    const dt_product none = {};
    if (!has_kernel(q, a)) return false;
    switch (a->dtype) {
    case SPEC_DTYPE_BF16: return launch_type<__nv_bfloat16>(q, a, none, pass, status);
    case SPEC_DTYPE_F16: return launch_type<__half>(q, a, none, pass, status);
    default: return launch_type<float>(q, a, none, pass, status);
    }
}

bool speci_cuda_scan_dt(spec_queue *q, const cuda_linear_args *dt, const spec_scan_args *a, cuda_pass *pass, spec_status *status)
{
    if (!has_kernel(q, a) || !has_product(a, dt)) return false;
    const dt_product p = { dt->w->data, dt->x.data, dt->w->ld, dt->x.ld, dt->n_in };
    return a->dtype == SPEC_DTYPE_BF16 ? launch_type<__nv_bfloat16>(q, a, p, pass, status) : launch_type<__half>(q, a, p, pass, status);
}
