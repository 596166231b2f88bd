/* cuda_scan_lanes.cuh - of the general recurrent scan (cuda_scan_recurrent.cu): values from memory, the channels and
 * states of a group of lanes, and the state in its registers. */
#ifndef SPEC_CUDA_SCAN_LANES_CUH
#define SPEC_CUDA_SCAN_LANES_CUH

#include "backends/cuda/scan/cuda_scan.cuh"

enum { SCAN_WARPS = 4, SCAN_THREADS = SCAN_WARPS * 32 };

/* --- values --- */

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

/* --- channels --- */

/* A group of LANES lanes has CH channels, of which each lane has VS states. PER_STATE: a decay per state, not per head. */
template <int STATES, int N_LANE, int CHANNELS, bool EACH_STATE> struct scan_form {
    static constexpr int VS = STATES, LANES = N_LANE, CH = CHANNELS, GROUPS = 32 / LANES; /* of a warp */
    static constexpr bool PER_STATE = EACH_STATE;
};

/* What a node brings to the channels of a group. */
template <typename F> struct scan_in {
    float x[F::CH], b[F::VS], c[F::VS], dt, decay, z; /* c and z for rows only; decay with one A per head */
};

/* A sequence, and which channels and states of it a thread has. Groups without channels go along for the shuffles and
 * store nothing. */
template <typename F> struct scan_channels {
    static constexpr int VS = F::VS, CH = F::CH, LANES = F::LANES;
    const spec_scan_args &a;
    const spec_step_seq &s;
    int n_seq, tid, warp, lane, l; /* l: of the group */
    bool first_tile;               /* of its head */
    int head, c0, n_ch, s0, n_s;
    int out_ch;  /* after a sum over lanes this one has channel c0 + out_ch, */
    bool is_out; /* and puts it out */
    size_t half, other; /* entry 0 of the caches' halves */
    int b_width;
    size_t x_col, y_col, b_col, c_col;
    float bias, skip, rate[VS]; /* rate: A */

    __device__ __forceinline__ scan_channels(const spec_scan_args &args, const spec_step_seq &seq, int n, int n_tile)
        : a(args), s(seq), n_seq(n)
    {
        tid = (int)threadIdx.x, warp = tid / 32, lane = tid % 32, l = lane % LANES;
        first_tile = (int)blockIdx.x % n_tile == 0;
        const int group = lane / LANES;
        if (F::PER_STATE) {
            const int f = ((int)blockIdx.x * SCAN_WARPS + warp) * F::GROUPS + group;
            head = f / a.head_dim, c0 = f % a.head_dim;
            if (head >= a.n_head) head = a.n_head - 1, c0 = a.head_dim;
        } else {
            head = (int)blockIdx.x / n_tile;
            c0 = (((int)blockIdx.x % n_tile * SCAN_WARPS + warp) * F::GROUPS + group) * CH;
        }
        n_ch = max(min(a.head_dim - c0, CH), 0), s0 = l * VS, n_s = max(min(a.n_state - s0, VS), 0);
        out_ch = CH == 1 ? 0 : l / (LANES / 4), is_out = CH == 1 ? l == 0 : l % (LANES / 4) == 0;
        half = scan_half<size_t>(s, s.parity, a.n_node), other = scan_half<size_t>(s, s.parity ^ 1, a.n_node);
        const int b_block = head / a.b_rep;
        b_width = spec_scan_columns(a.n_head, a.b_rep, a.n_state);
        x_col = (size_t)(head / a.x_rep) * a.head_dim + c0, y_col = (size_t)head * a.head_dim + c0;
        b_col = (size_t)b_block * a.n_state + s0, c_col = (size_t)(head / a.c_rep) * a.n_state + s0;
        bias = a.dt_bias ? a.dt_bias[head] : 0.0f, skip = a.d ? a.d[head] : 0.0f;
#pragma unroll
        for (int v = 0; v < VS; v++)
            rate[v] = !F::PER_STATE ? a.a[head] : v < n_s ? a.a[(size_t)head * a.n_state + s0 + v] : 0.0f;
    }
    __device__ __forceinline__ bool has_out() const { return is_out && out_ch < n_ch; }
    __device__ __forceinline__ float row_dt(int r) const
    {
        return scan_dt(load_any(a.dt.data, a.dt.dtype, (size_t)r * a.dt.ld + head), bias, a.dt_min, a.dt_max);
    }
    /* Of these channels and states: the stored state, and with node_state that of a node. */
    __device__ __forceinline__ float *memory() const
    {
        return a.state + (((size_t)s.slot * a.n_head + head) * a.head_dim + c0) * a.n_state + s0;
    }
    __device__ __forceinline__ float *node_memory(int n) const
    {
        return a.node_state + ((((size_t)s.slot * a.n_node + n) * a.n_head + head) * a.head_dim + c0) * a.n_state + s0;
    }
};

/* --- the state --- */

/* The sum over a group's lanes of one value, or of one for each of four channels: of channel out_ch. */
template <int LANES> static __device__ __forceinline__ float sum_lanes(float v)
{
#pragma unroll
    for (int m = LANES / 2; m > 0; m /= 2) v = v + __shfl_xor_sync(0xffffffffu, v, m);
    return v;
}
template <int LANES> static __device__ __forceinline__ float sum_channels(const float *v, int l)
{ /* each exchange halves the channels that a lane has */
    constexpr int H = LANES / 2, Q = LANES / 4;
    const bool hi = l & H, lo = l & Q;
    const float p0 = (hi ? v[2] : v[0]) + __shfl_xor_sync(0xffffffffu, hi ? v[0] : v[2], H);
    const float p1 = (hi ? v[3] : v[1]) + __shfl_xor_sync(0xffffffffu, hi ? v[1] : v[3], H);
    float y = (lo ? p1 : p0) + __shfl_xor_sync(0xffffffffu, lo ? p0 : p1, Q);
#pragma unroll
    for (int m = Q / 2; m > 0; m /= 2) y = y + __shfl_xor_sync(0xffffffffu, y, m);
    return y;
}
template <int N> static __device__ __forceinline__ float dot_run(const float *p, const float *q)
{
    float sum = p[0] * q[0];
#pragma unroll
    for (int v = 1; v < N; v++) sum = fmaf(p[v], q[v], sum);
    return sum;
}

/* A thread's part of the live state. */
template <typename F> struct scan_live {
    static constexpr int VS = F::VS, CH = F::CH, LANES = F::LANES, QUADS = CH * VS / 4;
    const scan_channels<F> &ch;
    float v[CH][VS];

    __device__ __forceinline__ explicit scan_live(const scan_channels<F> &channels) : ch(channels) {}
    __device__ __forceinline__ void load(const float *from)
    {
#pragma unroll
        for (int i = 0; i < CH; i++)
            load_run<VS>(v[i], from + (size_t)i * ch.a.n_state, SPEC_DTYPE_F32, 0, i < ch.n_ch ? ch.n_s : 0);
    }
    /* Four states at a time where every row of the state is aligned. A lane without states must not store at all: with
     * "n_s == VS" as the condition, ptxas 13.0 dropped the test and such lanes wrote zeros over the next head. */
    __device__ __forceinline__ void store(float *to) const
    {
        const bool by_four = VS % 4 == 0 && ch.a.n_state % VS == 0 &&
                             (((uintptr_t)ch.a.state | (uintptr_t)ch.a.node_state) & 15) == 0;
        if (ch.s0 >= ch.a.n_state) return;
#pragma unroll
        for (int i = 0; i < CH; i++) {
            float *p = to + (size_t)i * ch.a.n_state;
            if (i >= ch.n_ch) continue;
            if (by_four) {
#pragma unroll
                for (int k = 0; k < VS; k += 4) *(float4 *)(p + k) = make_float4(v[i][k], v[i][k + 1], v[i][k + 2], v[i][k + 3]);
            } else {
#pragma unroll
                for (int k = 0; k < VS; k++)
                    if (k < ch.n_s) p[k] = v[i][k];
            }
        }
    }
    /* Saved state k, in shared memory, [QUADS][SCAN_THREADS] float4 each: a thread its own. */
    __device__ __forceinline__ void load_saved(const float4 *saved, int k)
    {
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const float4 four = saved[(k * QUADS + q) * SCAN_THREADS + ch.tid];
            float *const to = &v[4 * q / VS][4 * q % VS];
            to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
        }
    }
    __device__ __forceinline__ void store_saved(float4 *saved, int k) const
    {
#pragma unroll
        for (int q = 0; q < QUADS; q++) {
            const float *const from = &v[4 * q / VS][4 * q % VS];
            saved[(k * QUADS + q) * SCAN_THREADS + ch.tid] = make_float4(from[0], from[1], from[2], from[3]);
        }
    }

    __device__ __forceinline__ void apply(const scan_in<F> &in)
    {
        float decay[VS];
#pragma unroll
        for (int k = 0; k < VS; k++) decay[k] = F::PER_STATE ? scan_decay(in.dt, ch.rate[k]) : in.decay;
#pragma unroll
        for (int i = 0; i < CH; i++) {
            const float dx = in.dt * in.x[i];
#pragma unroll
            for (int k = 0; k < VS; k++) v[i][k] = scan_update(v[i][k], decay[k], dx, in.b[k]);
        }
    }
    /* And puts out row r. */
    __device__ __forceinline__ void apply_row(const scan_in<F> &in, int r)
    {
        float y, x = in.x[0];
        if constexpr (F::PER_STATE) {
            apply(in);
            y = sum_lanes<LANES>(dot_run<VS>(v[0], in.c));
        } else { /* from the parent's state: four channels share B C, and a leaf needs no state of its own */
            const float x1 = in.x[1], x2 = in.x[2], x3 = in.x[3];
            x = ch.out_ch & 2 ? (ch.out_ch & 1 ? x3 : x2) : (ch.out_ch & 1 ? x1 : x);
            float of_channel[CH];
#pragma unroll
            for (int i = 0; i < CH; i++) of_channel[i] = dot_run<VS>(v[i], in.c);
            y = fmaf(in.decay, sum_channels<LANES>(of_channel, ch.l), in.dt * x * sum_lanes<LANES>(dot_run<VS>(in.b, in.c)));
            apply(in);
        }
        if (!ch.has_out()) return;
        y = fmaf(ch.skip, x, y);
        if (ch.a.z.data) y = y * silu(in.z);
        store_any(ch.a.y.data, ch.a.y.dtype, (size_t)r * ch.a.y.ld + ch.y_col + ch.out_ch, y);
    }
};

#endif
