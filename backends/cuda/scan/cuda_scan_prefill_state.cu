/* cuda_scan_prefill_state.cu - selective scan over a prompt for what Mamba-1 has: prefill passes, a decay per state, 16
 * states, heads of one channel, which share B and C. As the recurrent form (cuda_scan_recurrent.cu):
 *   S = exp(dt A) S + (dt x) B;   y = S C + D x;   out = z ? y silu(z) : y
 *
 * No product of matrices is in it: each state has a decay of its own. What there is to compute is an exponential for
 * each state and row, of which a multiprocessor makes 16 a cycle: 2048 rows of 5120 channels take 45 us at that rate,
 * and 29 to read and write their 126 MB. Only the update itself goes from row to row, a fused multiply-add; so states
 * stay in registers, everything else is done for a chunk of rows side by side, and the chunk behind is on its way
 * meanwhile.
 *
 * A thread has one of 16 channels. It loads every eighth row of a chunk of it, and as much of B and C; makes dt; walks
 * through all rows with two states; and makes the output of its rows from what the 8 threads of the channel have of it. */
#include "backends/cuda/scan/cuda_scan.cuh"

enum {
    PROMPT_STATES = 16,
    PROMPT_CHANNELS = 16, /* of a block: as many as states, so that rows of x, dt, z, B and C are loaded alike */
    PROMPT_SHARES = PROMPT_STATES / 2, /* of a channel: threads with two states and an eighth of the rows */
    PROMPT_THREADS = PROMPT_CHANNELS * PROMPT_SHARES,
    PROMPT_ROWS = 64, /* of a chunk */
    PROMPT_AHEAD = 8, /* of them whose inputs are read from shared memory at once: no load goes past a store */
    PROMPT_EACH = PROMPT_ROWS / PROMPT_SHARES
};

struct prompt_chunk {
    float2 time[PROMPT_ROWS][PROMPT_CHANNELS]; /* dt and dt x; of rows that are not there 0, which changes no state */
    float2 b[PROMPT_ROWS][PROMPT_SHARES], c[PROMPT_ROWS][PROMPT_SHARES];
    float sum[PROMPT_SHARES][PROMPT_ROWS][PROMPT_CHANNELS]; /* S C of two states */
};

/* Of the rows of a thread. */
template <typename T> struct prompt_rows {
    T x[PROMPT_EACH], b[PROMPT_EACH], c[PROMPT_EACH];
    float dt[PROMPT_EACH], z[PROMPT_EACH];
};

/* A column of rows, from row `row` on. */
template <typename P> struct prompt_column {
    const P *at;
    int32_t ld;
    __device__ prompt_column(const spec_view &v, int row, int column)
        : at((const P *)v.data + (int64_t)row * v.ld + column), ld(v.ld) {}
    __device__ P operator[](int row) const { return at[(int64_t)row * ld]; }
    __device__ void advance(int rows) { at += (int64_t)rows * ld; }
};

template <typename T> static __device__ __forceinline__ void put(T *to, float v) { *to = from_f32<T>(v); }

/* T: of x, B and C. In load, prepare and put_rows n is the number of rows from the chunk's first on. */
template <typename T>
static __global__ void __launch_bounds__(PROMPT_THREADS) scan_prompt_kernel(const spec_step_block *step, const spec_scan_args a)
{
    __shared__ __align__(16) prompt_chunk chunk;
    const int part = (int)threadIdx.x % PROMPT_CHANNELS, share = (int)threadIdx.x / PROMPT_CHANNELS;
    const int channel = (int)blockIdx.x * PROMPT_CHANNELS + part, n_seq = (int)blockIdx.y;

    grid_release();
    if (n_seq >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const bool has = channel < a.n_head;
    const int ch = has ? channel : a.n_head - 1;
    const size_t own = (size_t)ch * PROMPT_STATES + 2 * share;
    float2 *const memory = (float2 *)(a.state + (size_t)s.slot * a.n_head * PROMPT_STATES + own);
    float2 state = *memory; /* no other kernel of the pass writes it */
    const float2 rate = *(const float2 *)(a.a + own);
    const float2 binary = make_float2(CUDART_L2E_F * rate.x, CUDART_L2E_F * rate.y); /* of powers of two */
    const float bias = a.dt_bias ? a.dt_bias[ch] : 0.0f, skip = a.d ? a.d[ch] : 0.0f;

    const int row = s.first_row + share;
    const bool gated = a.z.data != NULL;
    prompt_column<T> x_from(a.x, row, ch), b_from(a.b, row, part), c_from(a.c, row, part);
    prompt_column<float> dt_from(a.dt, row, ch), z_from(gated ? a.z : a.dt, row, ch); /* without a gate z is not used */
    prompt_rows<T> in = {};
    auto load = [&](int n) {
#pragma unroll
        for (int k = 0; k < PROMPT_EACH; k++) {
            const int i = k * PROMPT_SHARES;
            if (share + i >= n) continue;
            in.x[k] = x_from[i], in.dt[k] = dt_from[i], in.z[k] = z_from[i], in.b[k] = b_from[i], in.c[k] = c_from[i];
        }
        x_from.advance(PROMPT_ROWS), dt_from.advance(PROMPT_ROWS), z_from.advance(PROMPT_ROWS);
        b_from.advance(PROMPT_ROWS), c_from.advance(PROMPT_ROWS);
    };
    float x[PROMPT_EACH], z[PROMPT_EACH];
    auto prepare = [&](int n) {
#pragma unroll
        for (int k = 0; k < PROMPT_EACH; k++) {
            const int i = share + k * PROMPT_SHARES;
            float dt = scan_dt(in.dt[k], bias, a.dt_min, a.dt_max);
            asm volatile("" : "+f"(dt)); /* made for all rows, without branches */
            if (i >= n) dt = 0.0f;
            x[k] = to_f32(in.x[k]), z[k] = in.z[k];
            chunk.time[i][part] = make_float2(dt, dt * x[k]);
            ((float *)chunk.b[i])[part] = to_f32(in.b[k]), ((float *)chunk.c[i])[part] = to_f32(in.c[k]);
        }
    };
    auto walk = [&]() {
#pragma unroll 1
        for (int i0 = 0; i0 < PROMPT_ROWS; i0 += PROMPT_AHEAD) {
            float2 time[PROMPT_AHEAD], b[PROMPT_AHEAD], c[PROMPT_AHEAD];
#pragma unroll
            for (int i = 0; i < PROMPT_AHEAD; i++)
                time[i] = chunk.time[i0 + i][part], b[i] = chunk.b[i0 + i][share], c[i] = chunk.c[i0 + i][share];
#pragma unroll
            for (int i = 0; i < PROMPT_AHEAD; i++) {
                state.x = scan_update(state.x, exp2_fast(time[i].x * binary.x), time[i].y, b[i].x);
                state.y = scan_update(state.y, exp2_fast(time[i].x * binary.y), time[i].y, b[i].y);
                chunk.sum[share][i0 + i][part] = fmaf(state.x, c[i].x, state.y * c[i].y);
            }
        }
    };
    auto put_rows = [&](auto *to, const float y[PROMPT_EACH], int n) {
#pragma unroll
        for (int k = 0; k < PROMPT_EACH; k++, to += (int64_t)PROMPT_SHARES * a.y.ld)
            if (has && share + k * PROMPT_SHARES < n) put(to, y[k]);
    };
    auto finish = [&](int t0) {
        float y[PROMPT_EACH];
#pragma unroll
        for (int k = 0; k < PROMPT_EACH; k++) {
            y[k] = skip * x[k];
#pragma unroll
            for (int i = 0; i < PROMPT_SHARES; i++) y[k] = y[k] + chunk.sum[i][share + k * PROMPT_SHARES][part];
        }
#pragma unroll
        for (int k = 0; gated && k < PROMPT_EACH; k++) y[k] = y[k] * silu(z[k]);
        const int64_t at = (int64_t)(row + t0) * a.y.ld + ch;
        if (a.y.dtype == SPEC_DTYPE_F32) put_rows((float *)a.y.data + at, y, s.n_row - t0);
        else put_rows((T *)a.y.data + at, y, s.n_row - t0);
    };

    grid_wait();
    load(s.n_row);
#pragma unroll 1
    for (int t0 = 0; t0 < s.n_row; t0 += PROMPT_ROWS) {
        prepare(s.n_row - t0);
        __syncthreads();
        load(s.n_row - t0 - PROMPT_ROWS);
        walk();
        __syncthreads();
        finish(t0);
    }
    if (has) *memory = state;
}

template <typename T> static spec_status launch(spec_queue *q, const spec_scan_args *a)
{
    const dim3 grid((unsigned)cuda_div_up(a->n_head, PROMPT_CHANNELS), (unsigned)q->shape.seqs);
    return cuda_launch(q, "scan", scan_prompt_kernel<T>, grid, dim3(PROMPT_THREADS), 0, 1, q->d_step, *a);
}

bool speci_cuda_scan_prefill_state(spec_queue *q, const spec_scan_args *a, spec_status *status)
{
    if (q->shape.phase != SPEC_PHASE_PREFILL || a->n_state != PROMPT_STATES || !scan_has_states(a))
        return false;
    switch (a->dtype) {
    case SPEC_DTYPE_BF16: *status = launch<__nv_bfloat16>(q, a); return true;
    case SPEC_DTYPE_F16: *status = launch<__half>(q, a); return true;
    default: *status = launch<float>(q, a); return true;
    }
}
