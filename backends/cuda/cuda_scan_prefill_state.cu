/* cuda_scan_prefill_state.cu - selective scan over a prompt for what Mamba-1 has: prefill passes, a decay per state, 16
 * states, heads of one channel, which share B and C. As the recurrent form (cuda_scan.cu):
 *   S = exp(dt A) S + (dt x) B;   y = S C + D x;   out = z ? y silu(z) : y
 *
 * No product of matrices is in it: each state has a decay of its own. What there is to compute is an exponential for each
 * state and row, of which a multiprocessor makes 16 a cycle: 2048 rows of 5120 channels take 45 us at that rate, and 29 to
 * read and write their 126 MB. Only the update itself goes from row to row, a fused multiply-add; so states stay in
 * registers, everything else is done for a chunk of rows side by side, and the chunk behind is on its way meanwhile.
 *
 *  - A thread for each channel (and state) and every eighth row of a chunk loads x, dt, z, B and C, makes dt, and leaves dt,
 *    dt x, B and C in shared memory;
 *  - 8 lanes walk a channel, two states each. Of 8 rows the lanes have parts of 8 outputs, which they exchange so that each
 *    ends up with a row's;
 *  - the thread that has a row's x and z makes the output. */
#include "cuda_scan.cuh"

enum {
    PROMPT_STATES = 16,
    PROMPT_CHANNELS = 16, /* of a block: as many as states, so that rows of x, dt, z, B and C are loaded alike */
    PROMPT_LANES = PROMPT_STATES / 2,
    PROMPT_THREADS = PROMPT_CHANNELS * PROMPT_LANES,
    PROMPT_ROWS = 32, /* of a chunk */
    PROMPT_STRIDE = PROMPT_THREADS / PROMPT_CHANNELS,
    PROMPT_EACH = PROMPT_ROWS / PROMPT_STRIDE /* rows of a thread */
};
static_assert(PROMPT_LANES == 8, "as many lanes of a channel as rows that they exchange");

struct prompt_chunk {
    float2 time[PROMPT_ROWS][PROMPT_CHANNELS]; /* dt and dt x; of rows that are not there 0, which changes no state */
    float b[PROMPT_ROWS][PROMPT_STATES], c[PROMPT_ROWS][PROMPT_STATES];
    float sum[PROMPT_ROWS][PROMPT_CHANNELS]; /* S C */
};

/* Of the rows of a thread. */
template <typename T> struct prompt_rows {
    T x[PROMPT_EACH], b[PROMPT_EACH], c[PROMPT_EACH];
    float dt[PROMPT_EACH], z[PROMPT_EACH];
};

template <typename T> static __device__ __forceinline__ const T *row_of(const spec_view &v, int row)
{
    return (const T *)v.data + (size_t)row * v.ld;
}

/* Lane l of 8 has its part of 8 sums; it is left with the whole of sum l. */
static __device__ __forceinline__ float exchange(float part[8], int lane)
{
#pragma unroll
    for (int d = 4; d > 0; d /= 2)
#pragma unroll
        for (int i = 0; i < d; i++) {
            const bool upper = lane & d;
            const float keep = upper ? part[i + d] : part[i], give = upper ? part[i] : part[i + d];
            part[i] = keep + __shfl_xor_sync(0xffffffffu, give, d);
        }
    return part[0];
}

/* T: of x, B and C. */
template <typename T>
static __global__ void __launch_bounds__(PROMPT_THREADS) scan_prompt_kernel(const spec_step_block *step, const spec_scan_args a)
{
    __shared__ __align__(16) prompt_chunk chunk;
    const int tid = (int)threadIdx.x, first = (int)blockIdx.x * PROMPT_CHANNELS, n_seq = (int)blockIdx.y;

    grid_release();
    if (n_seq >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[n_seq];

    /* The walk: a channel of the block, and two of its states. */
    const int own = tid / PROMPT_LANES, l = tid % PROMPT_LANES;
    const bool owns = first + own < a.n_head;
    const size_t own_states = (size_t)(first + own) * PROMPT_STATES + 2 * l;
    float2 *const memory = (float2 *)(a.state + (size_t)s.slot * a.n_head * PROMPT_STATES + own_states);
    const float2 none = make_float2(0.0f, 0.0f), rate = owns ? *(const float2 *)(a.a + own_states) : none;
    float2 state = owns ? *memory : none; /* no other kernel of the pass writes it */

    /* Loads and outputs: a channel, or state, and every eighth row. */
    const int part = tid % PROMPT_CHANNELS, row0 = tid / PROMPT_CHANNELS;
    const bool has = first + part < a.n_head;
    const int ch = has ? first + part : a.n_head - 1;
    const float bias = a.dt_bias ? a.dt_bias[ch] : 0.0f, skip = a.d ? a.d[ch] : 0.0f;
    prompt_rows<T> in;
    auto load = [&](int t0) {
#pragma unroll
        for (int k = 0; k < PROMPT_EACH; k++) {
            const int row = s.first_row + min(t0 + row0 + k * PROMPT_STRIDE, s.n_row - 1);
            in.x[k] = row_of<T>(a.x, row)[ch], in.dt[k] = row_of<float>(a.dt, row)[ch];
            in.b[k] = row_of<T>(a.b, row)[part], in.c[k] = row_of<T>(a.c, row)[part];
            in.z[k] = a.z.data ? row_of<float>(a.z, row)[ch] : 0.0f;
        }
    };
    grid_wait();
    if (s.n_row > 0) load(0);
#pragma unroll 1
    for (int t0 = 0; t0 < s.n_row; t0 += PROMPT_ROWS) {
        float x[PROMPT_EACH], z[PROMPT_EACH];
#pragma unroll
        for (int k = 0; k < PROMPT_EACH; k++) {
            const int i = row0 + k * PROMPT_STRIDE;
            const float dt = t0 + i < s.n_row ? scan_dt(in.dt[k], bias, a.dt_min, a.dt_max) : 0.0f;
            x[k] = to_f32(in.x[k]), z[k] = in.z[k];
            chunk.time[i][part] = make_float2(dt, dt * x[k]);
            chunk.b[i][part] = to_f32(in.b[k]), chunk.c[i][part] = to_f32(in.c[k]);
        }
        __syncthreads();
        if (t0 + PROMPT_ROWS < s.n_row) load(t0 + PROMPT_ROWS);
#pragma unroll 1
        for (int i0 = 0; i0 < PROMPT_ROWS; i0 += PROMPT_LANES) {
            float y[PROMPT_LANES];
#pragma unroll
            for (int i = 0; i < PROMPT_LANES; i++) {
                const float2 time = chunk.time[i0 + i][own];
                const float2 b = *(const float2 *)&chunk.b[i0 + i][2 * l], c = *(const float2 *)&chunk.c[i0 + i][2 * l];
                state.x = scan_update(state.x, scan_decay(time.x, rate.x), time.y, b.x);
                state.y = scan_update(state.y, scan_decay(time.x, rate.y), time.y, b.y);
                y[i] = fmaf(state.x, c.x, state.y * c.y);
            }
            chunk.sum[i0 + l][own] = exchange(y, l);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < PROMPT_EACH; k++) {
            const int i = row0 + k * PROMPT_STRIDE;
            float y = fmaf(skip, x[k], chunk.sum[i][part]);
            if (a.z.data) y = y * silu(z[k]);
            const size_t at = (size_t)(s.first_row + t0 + i) * a.y.ld + ch;
            if (!has || t0 + i >= s.n_row) continue;
            if (a.y.dtype == SPEC_DTYPE_F32) ((float *)a.y.data)[at] = y;
            else ((T *)a.y.data)[at] = from_f32<T>(y);
        }
    }
    if (owns) *memory = state;
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
