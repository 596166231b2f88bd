/* cuda_scan_state.cu - selective scan over a tree, recurrent form, decode passes with a decay per state (Mamba-1), 16
 * states or fewer. The same sums in the same order as scan_kernel (cuda_scan.cu), hence the same bits.
 *
 * There is little state and much to compute beside it: an exponential per state and step, softplus per channel and
 * step. Only the update itself is a chain from step to step, so all else is done for several steps side by side: loads
 * and softplus of a chunk by all threads of the block, exponentials of four steps before their updates, gate and
 * output of a chunk in the end.
 *
 * A warp has 8 channels, 4 lanes each, a lane 4 states; a block two warps. Thread t stages state and channel t % 16 of
 * steps t / 16, t / 16 + 4, ... The state and what earlier passes left are read before the kernel waits for the one in
 * front. */
#include "cuda_scan.cuh"
#include "cuda_scan_steps.cuh"

enum {
    STATE_MAX = 16,
    STATE_CHANNELS = 16, /* of a block */
    STATE_THREADS = 64,
    STATE_CHUNK = 16,    /* steps */
    STATE_ROUNDS = STATE_CHUNK * STATE_MAX / STATE_THREADS,
    STATE_BATCH = 4
};

struct state_shared {
    float b[STATE_CHUNK][STATE_MAX], c[STATE_CHUNK][STATE_MAX];
    float x[STATE_CHUNK][STATE_CHANNELS], dt[STATE_CHUNK][STATE_CHANNELS], y[STATE_CHUNK][STATE_CHANNELS];
    int32_t word[STATE_CHUNK];
};

/* load_any in two halves: between loads nothing waits for memory. */
static __device__ __forceinline__ uint32_t load_raw(const void *p, int dtype, size_t i)
{
    return dtype == SPEC_DTYPE_F32 ? ((const uint32_t *)p)[i] : ((const uint16_t *)p)[i];
}
static __device__ __forceinline__ float raw_value(uint32_t raw, int dtype)
{
    if (dtype == SPEC_DTYPE_F32) return __uint_as_float(raw);
    const float2 v = dtype == SPEC_DTYPE_BF16 ? unpack2<__nv_bfloat16>(raw) : unpack2<__half>(raw);
    return v.x;
}

/* `blocks`: of a group of heads that share B and C. */
static __global__ void __launch_bounds__(STATE_THREADS)
scan_state_kernel(const spec_step_block *step, const spec_scan_args a, int blocks, int n_place)
{
    extern __shared__ __align__(16) char dynamic[];
    float4 *saved = (float4 *)dynamic; /* [n_place][STATE_THREADS] */
    state_shared &chunk = *(state_shared *)(saved + n_place * STATE_THREADS);
    const int tid = (int)threadIdx.x, lane = tid % 32, l = lane % 4, own = tid / 4; /* its channel in the block */

    grid_release();
    const int n_seq = (int)blockIdx.y;
    if (n_seq >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    if (s.n_replay > a.n_node || s.n_fed + s.n_row > a.n_node) return grid_wait(); /* caches and tables hold n_node */

    /* Channels are counted through all heads; the group ends at `end`. */
    const int group = (int)blockIdx.x / blocks, width = a.b_rep * a.head_dim, end = (group + 1) * width;
    const int first = group * width + (int)blockIdx.x % blocks * STATE_CHANNELS;
    const bool has = first + own < end;
    const int f = has ? first + own : end - 1, head = f / a.head_dim, n_s = max(min(a.n_state - 4 * l, 4), 0);
    const size_t half = ((size_t)s.slot * 2 + s.parity) * a.n_node;
    const size_t other = ((size_t)s.slot * 2 + (s.parity ^ 1)) * a.n_node;

    float state[4], rate[4];
    float *memory = a.state + ((size_t)s.slot * a.n_head * a.head_dim + f) * a.n_state + 4 * l;
    auto load_state = [&]() {
#pragma unroll
        for (int v = 0; v < 4; v++) state[v] = has && v < n_s ? memory[v] : 0.0f;
    };
    auto store_state = [&]() {
#pragma unroll
        for (int v = 0; v < 4; v++)
            if (has && v < n_s) memory[v] = state[v];
    };
    load_state();
#pragma unroll
    for (int v = 0; v < 4; v++) rate[v] = v < n_s ? a.a[(size_t)head * a.n_state + 4 * l + v] : 0.0f;
    scan_steps steps((char *)(&chunk + 1), a.n_node);
    steps.build(step, s, n_place);

    /* What a thread stages: state `part` of B and C, and x and dt of the block's channel `part`. */
    const int part = tid % STATE_MAX, b_width = a.n_head / a.b_rep * a.n_state;
    const bool has_state = part < a.n_state, has_channel = first + part < end;
    const int channel = min(first + part, end - 1), dt_head = channel / a.head_dim;
    const size_t b_col = (size_t)group * a.n_state + min(part, a.n_state - 1);
    const size_t x_col = (size_t)(dt_head / a.x_rep) * a.head_dim + channel % a.head_dim;
    const float bias = a.dt_bias ? a.dt_bias[dt_head] : 0.0f;
    const size_t entry0 = (size_t)n_seq * 2 * a.n_node;
    auto is_row = [&](int w) { return !(w & STEP_PATH) && (w & STEP_NODE) >= s.n_fed; };
    auto stage = [&](int t0, int n) {
        uint32_t b[STATE_ROUNDS], c[STATE_ROUNDS], x[STATE_ROUNDS], dt[STATE_ROUNDS];
        const int i0 = tid / STATE_MAX, stride = STATE_THREADS / STATE_MAX;
#pragma unroll
        for (int r = 0; r < STATE_ROUNDS; r++) {
            if (i0 + r * stride >= n) break;
            const int w = steps.at(t0 + i0 + r * stride), k = w & STEP_NODE;
            if (is_row(w)) {
                const size_t row = (size_t)(s.first_row + k - s.n_fed);
                b[r] = load_raw(a.b.data, a.b.dtype, row * a.b.ld + b_col);
                c[r] = load_raw(a.c.data, a.c.dtype, row * a.c.ld + b_col);
                x[r] = load_raw(a.x.data, a.x.dtype, row * a.x.ld + x_col);
                dt[r] = load_raw(a.dt.data, a.dt.dtype, row * a.dt.ld + dt_head);
            } else {
                c[r] = 0;
                const bool in_path = w & STEP_PATH;
                const size_t cached = in_path ? other + spec_step_paths(step)[s.first_path + k] : half + k;
                const size_t entry = (entry0 + (in_path ? k : s.n_replay + k)) * a.replay_ld;
                b[r] = a.b_in_conv ? load_raw(a.replay_y, a.dtype, entry + a.replay_b_col + b_col)
                                   : load_raw(a.cache_b, a.dtype, cached * b_width + b_col);
                x[r] = load_raw(a.replay_y, a.dtype, entry + a.replay_x_col + x_col);
                dt[r] = __float_as_uint(a.cache_dt[cached * a.n_head + dt_head]);
            }
        }
#pragma unroll
        for (int r = 0; r < STATE_ROUNDS; r++) {
            const int i = i0 + r * stride;
            if (i >= n) break;
            const int w = steps.at(t0 + i);
            const bool row = is_row(w); /* values are rounded as the caches hold them */
            const float b_value = round_any(a.dtype, raw_value(b[r], row ? a.b.dtype : a.dtype));
            const float x_value = round_any(a.dtype, raw_value(x[r], row ? a.x.dtype : a.dtype));
            const float dt_value = row ? scan_dt(raw_value(dt[r], a.dt.dtype), bias, a.dt_min, a.dt_max)
                                       : __uint_as_float(dt[r]);
            chunk.b[i][part] = has_state ? b_value : 0.0f;
            chunk.c[i][part] = has_state && row ? raw_value(c[r], a.c.dtype) : 0.0f;
            chunk.x[i][part] = x_value, chunk.dt[i][part] = dt_value;
            if (part == 0) chunk.word[i] = w;
            if (!(w & STEP_OUT)) continue;
            const size_t cached = half + (w & STEP_NODE);
            if (has_channel && channel % a.head_dim == 0) a.cache_dt[cached * a.n_head + dt_head] = dt_value;
            if (has_state && !a.b_in_conv && a.cache_b && first == group * width)
                store_any(a.cache_b, a.dtype, cached * b_width + b_col, b_value);
        }
    };

    auto run_batch = [&](int i0, int n) {
        float4 b[STATE_BATCH], c[STATE_BATCH];
        float decay[STATE_BATCH][4], dx[STATE_BATCH], y[STATE_BATCH];
#pragma unroll
        for (int u = 0; u < STATE_BATCH; u++) {
            const int i = min(i0 + u, n - 1);
            b[u] = *(const float4 *)&chunk.b[i][4 * l], c[u] = *(const float4 *)&chunk.c[i][4 * l];
            const float dt = chunk.dt[i][own];
            dx[u] = dt * chunk.x[i][own];
#pragma unroll
            for (int v = 0; v < 4; v++) decay[u][v] = scan_decay(dt, rate[v]);
        }
#pragma unroll
        for (int u = 0; u < STATE_BATCH; u++) {
            const int w = i0 + u < n ? chunk.word[i0 + u] : (int)STEP_ALONE;
            if ((w & STEP_FROM) == STEP_STORED) {
                load_state();
            } else if (w & STEP_FROM) {
                const float4 v = saved[(((w & STEP_FROM) - STEP_PLACE) >> 16) * STATE_THREADS + tid];
                state[0] = v.x, state[1] = v.y, state[2] = v.z, state[3] = v.w;
            }
            const float in_b[4] = { b[u].x, b[u].y, b[u].z, b[u].w };
            float next[4];
#pragma unroll
            for (int v = 0; v < 4; v++) next[v] = scan_update(state[v], decay[u][v], dx[u], in_b[v]);
            y[u] = fmaf(next[3], c[u].w, fmaf(next[2], c[u].z, fmaf(next[1], c[u].y, next[0] * c[u].x)));
            if (w & STEP_ALONE) continue;
#pragma unroll
            for (int v = 0; v < 4; v++) state[v] = next[v];
            if (w & STEP_STORE) store_state();
            if (w & STEP_SAVE) {
                const int k = ((w & STEP_SAVE) >> 20) - 1;
                saved[k * STATE_THREADS + tid] = make_float4(next[0], next[1], next[2], next[3]);
            }
        }
#pragma unroll
        for (int u = 0; u < STATE_BATCH; u++) {
            y[u] = y[u] + __shfl_xor_sync(0xffffffffu, y[u], 2);
            y[u] = y[u] + __shfl_xor_sync(0xffffffffu, y[u], 1);
            if (l == 0 && i0 + u < n) chunk.y[i0 + u][own] = y[u];
        }
    };

    /* y = S C + D x, gated: a lane has one of its warp's 8 channels, and every fourth step. */
    const int out = tid / 32 * 8 + lane % 8, out_f = min(first + out, end - 1);
    const float out_skip = a.d ? a.d[out_f / a.head_dim] : 0.0f;
    auto write = [&](int n) {
        uint32_t z[STATE_BATCH] = {};
#pragma unroll
        for (int r = 0; r < STATE_BATCH; r++) {
            if (lane / 8 + 4 * r >= n) break;
            const int w = chunk.word[lane / 8 + 4 * r];
            const size_t row = (size_t)(s.first_row + (w & STEP_NODE) - s.n_fed);
            z[r] = a.z.data && (w & STEP_OUT) ? load_raw(a.z.data, a.z.dtype, row * a.z.ld + out_f) : 0;
        }
#pragma unroll 1
        for (int i = 0; i < n; i += STATE_BATCH) run_batch(i, n);
        __syncwarp();
#pragma unroll
        for (int r = 0; r < STATE_BATCH; r++) {
            const int i = lane / 8 + 4 * r;
            if (i >= n) break;
            const int w = chunk.word[i];
            if (!(w & STEP_OUT) || first + out >= end) continue;
            float y = fmaf(out_skip, chunk.x[i][out], chunk.y[i][out]);
            if (a.z.data) y = y * silu(raw_value(z[r], a.z.dtype));
            store_any(a.y.data, a.y.dtype, (size_t)(s.first_row + (w & STEP_NODE) - s.n_fed) * a.y.ld + out_f, y);
        }
    };

    grid_wait();
#pragma unroll 1
    for (int t0 = 0; t0 < steps.n_step; t0 += STATE_CHUNK) {
        const int n = min(steps.n_step - t0, (int)STATE_CHUNK);
        __syncthreads(); /* the chunk before has been read */
        stage(t0, n);
        __syncthreads();
        write(n);
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

bool speci_cuda_scan_state(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    if (q->shape.phase != SPEC_PHASE_DECODE || !a->a_per_state || a->n_state > STATE_MAX || a->node_state ||
        a->b_rep != a->c_rep)
        return false;
    const int n_place = scan_places(q->shape.rows < a->n_node ? q->shape.rows : a->n_node);
    const size_t bytes =
        (size_t)n_place * STATE_THREADS * sizeof(float4) + sizeof(state_shared) + scan_steps::bytes(a->n_node);
    const int blocks = cuda_div_up((int64_t)a->b_rep * a->head_dim, STATE_CHANNELS);
    const dim3 grid((unsigned)(a->n_head / a->b_rep * blocks), (unsigned)q->shape.seqs);
    scan_allow_shared(q->dev, scan_state_kernel, bytes);
    *status = cuda_launch(q, "scan", scan_state_kernel, grid, dim3(STATE_THREADS), bytes, 1, q->d_step, *a, blocks,
                          n_place);
    return true;
}
