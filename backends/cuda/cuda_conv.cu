/* cuda_conv.cu - causal depth-wise convolution over a tree, and the window's advance along the accepted path.
 *   y(node) = silu(bias + sum_k w[c][width-1-k] u[k-th ancestor]), beyond the root the stored window, newest first
 * u is rounded to the compute type before anything reads it. Source: the causal convolution of Mamba in its tree form
 * (algorithms.md 7.1).
 *
 * A thread has V neighbouring channels; a block's y index is an *entity*: first the rows of the pass, then `parts` per
 * sequence, which share the sequence's entries of replay_y (the path, or the nodes fed before); the first of them
 * writes the window too. Written are half `parity` of window and cache, read is the other half; when nodes were fed
 * before (n_fed > 0) the window is not written and its half `parity` is read. So no block waits for another.
 *
 * Only u of this pass's rows comes from kernels in front: weights, window and cache are read before the kernel waits
 * for them, and the first CONV_ENTRIES entries of a part computed. What is written waits: the layer in front may still
 * read its own replay_y. */
#include "cuda.cuh"

enum { CONV_WIDTH_MAX = 4, CONV_PARTS = 4, CONV_ENTRIES = 2, CONV_THREADS = 128, CONV_RUN = 8 };

template <int V>
static __device__ __forceinline__ void load_channels(float out[V], const void *p, int dtype, size_t i)
{
    if constexpr (V == 4) {
        if (dtype == SPEC_DTYPE_F32) {
            const float4 v = *(const float4 *)((const float *)p + i);
            out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
        } else {
            const uint2 v = *(const uint2 *)((const uint16_t *)p + i);
            const bool bf = dtype == SPEC_DTYPE_BF16;
            const float2 lo = bf ? unpack2<__nv_bfloat16>(v.x) : unpack2<__half>(v.x);
            const float2 hi = bf ? unpack2<__nv_bfloat16>(v.y) : unpack2<__half>(v.y);
            out[0] = lo.x, out[1] = lo.y, out[2] = hi.x, out[3] = hi.y;
        }
    } else {
        out[0] = load_any(p, dtype, i);
    }
}
template <int V>
static __device__ __forceinline__ void store_channels(void *p, int dtype, size_t i, const float v[V])
{
    if constexpr (V == 4) {
        if (dtype == SPEC_DTYPE_F32) {
            *(float4 *)((float *)p + i) = make_float4(v[0], v[1], v[2], v[3]);
        } else {
            const bool bf = dtype == SPEC_DTYPE_BF16;
            uint32_t h[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                h[k] = bf ? bits16(from_f32<__nv_bfloat16>(v[k])) : bits16(from_f32<__half>(v[k]));
            *(uint2 *)((uint16_t *)p + i) = make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
        }
    } else {
        store_any(p, dtype, i, v[0]);
    }
}

template <int V> struct conv_taps {
    float u[CONV_WIDTH_MAX][V]; /* u[k]: the input of the k-th ancestor */
};

/* The channels' filters, the newest tap first. */
template <int V> struct conv_filter {
    float w[CONV_WIDTH_MAX][V], bias[V];

    __device__ __forceinline__ void load(const spec_conv_args &a, int c)
    {
        const bool by_four = a.width == 4 && ((uintptr_t)a.weight & 15) == 0;
#pragma unroll
        for (int v = 0; v < V; v++) {
            bias[v] = a.bias ? a.bias[c + v] : 0.0f;
            if (by_four) {
                const float4 f = *(const float4 *)(a.weight + (size_t)(c + v) * 4);
                w[3][v] = f.x, w[2][v] = f.y, w[1][v] = f.z, w[0][v] = f.w;
                continue;
            }
#pragma unroll
            for (int k = 0; k < CONV_WIDTH_MAX; k++)
                w[k][v] = k < a.width ? a.weight[(size_t)(c + v) * a.width + (a.width - 1 - k)] : 0.0f;
        }
    }
    /* bias + sum over taps, oldest first */
    __device__ __forceinline__ void value(float y[V], const conv_taps<V> &tap, int width) const
    {
#pragma unroll
        for (int v = 0; v < V; v++) {
            float sum = bias[v];
#pragma unroll
            for (int k = CONV_WIDTH_MAX - 1; k >= 0; k--)
                if (k < width) sum = fmaf(w[k][v], tap.u[k][v], sum);
            y[v] = silu(sum);
        }
    }
};

/* Where a sequence's inputs lie. Functions are of V channels from c on. */
struct conv_inputs {
    const spec_conv_args &a;
    const spec_step_seq &s;
    const spec_step_node *node;
    const int32_t *path;    /* accepted path of the previous tree */
    int n_path;
    size_t cache;           /* where half `parity` of the cache begins, */
    size_t window0, cache0; /* and the halves that are read before the tree */

    __device__ conv_inputs(const spec_conv_args &args, const spec_step_block *step, const spec_step_seq &seq)
        : a(args), s(seq)
    {
        node = spec_step_nodes(step) + s.first_node, path = spec_step_paths(step) + s.first_path;
        n_path = s.n_fed > 0 ? 0 : s.n_replay;
        const size_t half = (size_t)s.slot * 2 + s.parity, other = (size_t)s.slot * 2 + (s.parity ^ 1);
        cache = half * a.n_node * a.n_channel, cache0 = other * a.n_node * a.n_channel;
        window0 = (s.n_fed > 0 ? half : other) * (a.width - 1) * a.n_channel;
    }
    /* the m-th newest before the tree's root */
    template <int V> __device__ __forceinline__ void before(float u[V], int m, int c) const
    {
        const bool in_path = m < n_path;
        const size_t at = in_path ? cache0 + (size_t)path[n_path - 1 - m] * a.n_channel
                                  : window0 + (size_t)(a.width - 2 - (m - n_path)) * a.n_channel;
        load_channels<V>(u, in_path ? a.cache : a.window, a.dtype, at + c);
    }
    /* of a row, which is node i */
    template <int V> __device__ __forceinline__ void row(float u[V], int i, int c) const
    {
        load_channels<V>(u, a.u.data, a.u.dtype, (size_t)(s.first_row + i - s.n_fed) * a.u.ld + c);
#pragma unroll
        for (int v = 0; v < V; v++) u[v] = round_any(a.dtype, u[v]);
    }
    /* The taps of node i. Those of rows, which come from this pass, are left out: at[k] is their node, -1 elsewhere. */
    template <int V>
    __device__ __forceinline__ void known_taps(conv_taps<V> &tap, int at[CONV_WIDTH_MAX], int i, int c) const
    {
        int ancestor = i, m = 0;
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++) {
            at[k] = -1;
            if (k >= a.width) continue;
            if (ancestor < 0) before<V>(tap.u[k], m++, c);
            else if (ancestor < s.n_fed)
                load_channels<V>(tap.u[k], a.cache, a.dtype, cache + (size_t)ancestor * a.n_channel + c);
            else at[k] = ancestor;
            if (ancestor >= 0) ancestor = node[ancestor].parent;
        }
    }
    template <int V>
    __device__ __forceinline__ void row_taps(conv_taps<V> &tap, const int at[CONV_WIDTH_MAX], int c) const
    {
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++)
            if (at[k] >= 0) row<V>(tap.u[k], at[k], c);
    }
    /* Of node j of the accepted path: its ancestors are the ones in front of it. */
    template <int V> __device__ __forceinline__ void path_taps(conv_taps<V> &tap, int j, int c) const
    {
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++)
            if (k < a.width) before<V>(tap.u[k], s.n_replay - 1 - j + k, c);
    }
    /* The window absorbs the path and the n_new first rows of the pass. It waits for those alone: nobody else of the
     * pass reads or writes it. */
    template <int V> __device__ __forceinline__ void advance_window(int n_new, int c) const
    {
        const int n = a.width - 1;
        float u[CONV_WIDTH_MAX - 1][V];
#pragma unroll
        for (int m = 0; m < CONV_WIDTH_MAX - 1; m++)
            if (m < n && m >= n_new) before<V>(u[m], m - n_new, c);
        if (n_new > 0) grid_wait();
        const size_t to = ((size_t)s.slot * 2 + s.parity) * n * a.n_channel + c;
#pragma unroll
        for (int m = 0; m < CONV_WIDTH_MAX - 1; m++) {
            if (m >= n) continue;
            if (m < n_new) row<V>(u[m], n_new - 1 - m, c);
            store_channels<V>(a.window, a.dtype, to + (size_t)(n - 1 - m) * a.n_channel, u[m]);
        }
    }
    /* Keeps the input of node i for the replay to come. */
    template <int V> __device__ __forceinline__ void keep(int i, int c, const float u[V]) const
    {
        store_channels<V>(a.cache, a.dtype, cache + (size_t)i * a.n_channel + c, u);
    }
};

template <int V>
static __device__ void conv_row(const conv_inputs &in, const conv_filter<V> &filter, int r, int c)
{
    const int i = in.s.n_fed + r - in.s.first_row;
    conv_taps<V> tap;
    int at[CONV_WIDTH_MAX];
    in.known_taps<V>(tap, at, i, c);
    grid_wait();
    in.row_taps<V>(tap, at, c);
    float y[V];
    filter.value(y, tap, in.a.width);
    store_channels<V>(in.a.y.data, in.a.y.dtype, (size_t)r * in.a.y.ld + c, y);
    in.keep<V>(i, c, tap.u[0]);
}

/* Entries [first, end) of replay_y: the path's nodes, whose ancestors are the entries in front, then the nodes fed. */
template <int V>
static __device__ void conv_entries(const conv_inputs &in, const conv_filter<V> &filter, int n_seq, int c, int first,
                                    int end)
{
    const int n_replay = in.s.n_replay;
    for (int j0 = first; j0 < end; j0 += CONV_ENTRIES) {
        float y[CONV_ENTRIES][V];
#pragma unroll
        for (int e = 0; e < CONV_ENTRIES; e++) {
            const int j = min(j0 + e, end - 1);
            conv_taps<V> tap;
            int at[CONV_WIDTH_MAX];
            if (j < n_replay) in.path_taps<V>(tap, j, c);
            else in.known_taps<V>(tap, at, j - n_replay, c);
            filter.value(y[e], tap, in.a.width);
        }
        grid_wait();
#pragma unroll
        for (int e = 0; e < CONV_ENTRIES; e++)
            if (j0 + e < end)
                store_channels<V>(in.a.replay_y, in.a.dtype,
                                  ((size_t)n_seq * 2 * in.a.n_node + j0 + e) * in.a.n_channel + c, y[e]);
    }
}

template <int V>
static __global__ void __launch_bounds__(CONV_THREADS, 6) /* 64 rows of 5376 channels, 748 blocks, resident at once */
conv_kernel(const spec_step_block *step, const spec_conv_args a, int rows, int parts)
{
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x) * V, entity = (int)blockIdx.y;
    const bool is_row = entity < rows;
    grid_release();
    if (c >= a.n_channel || (is_row && entity >= step->n_row)) return grid_wait();
    const int n_seq = is_row ? spec_step_row_seq(step)[entity] : (entity - rows) / parts;
    if (n_seq >= step->n_seq) return grid_wait();

    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const conv_inputs in(a, step, s);
    conv_filter<V> filter;
    if (is_row) {
        filter.load(a, c);
        conv_row<V>(in, filter, entity, c);
        return;
    }
    const int part = (entity - rows) % parts, n_entry = s.n_fed > 0 ? s.n_replay + s.n_fed : s.n_replay;
    const int each = (n_entry + parts - 1) / parts;
    if (n_entry > 0) {
        filter.load(a, c);
        conv_entries<V>(in, filter, n_seq, c, min(part * each, n_entry), min((part + 1) * each, n_entry));
    }
    if (part == 0 && s.n_fed == 0) in.advance_window<V>(s.n_advance, c); /* the chain in front */
    grid_wait();
}

/* Prefill: rows are a chain, so a thread walks CONV_RUN of them and reads each u once, and CONV_WIDTH_MAX - 1 in front.
 * The last entity along y writes the window. The same sums, the same bits. */
template <int V, int DTYPE>
static __global__ void __launch_bounds__(CONV_THREADS, 6) /* 512 rows of 5376 channels, 715 blocks, resident at once */
conv_prefill_kernel(const spec_step_block *step, const spec_conv_args a)
{
    constexpr int BEFORE = CONV_WIDTH_MAX - 1;
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x) * V, r0 = (int)blockIdx.y * CONV_RUN;
    const bool is_window = blockIdx.y == gridDim.y - 1;
    grid_release();
    if (c >= a.n_channel || (int)blockIdx.z >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[blockIdx.z];
    const conv_inputs in(a, step, s);
    if (is_window) {
        in.advance_window<V>(s.n_row, c);
        return grid_wait();
    }
    if (r0 >= s.n_row) return grid_wait();
    conv_filter<V> filter;
    filter.load(a, c);
    float u[BEFORE + CONV_RUN][V]; /* of row r0 - BEFORE and on */
#pragma unroll
    for (int k = 0; k < BEFORE; k++)
        if (r0 == 0 && BEFORE - 1 - k < a.width - 1) in.before<V>(u[k], BEFORE - 1 - k, c);
    grid_wait();
    const size_t row = (size_t)(s.first_row + r0);
#pragma unroll
    for (int k = 0; k < BEFORE + CONV_RUN; k++) {
        if ((k < BEFORE && r0 == 0) || r0 + k - BEFORE >= s.n_row) continue;
        load_channels<V>(u[k], a.u.data, a.u.dtype, (row + k - BEFORE) * a.u.ld + c);
#pragma unroll
        for (int v = 0; v < V; v++) u[k][v] = round_any(DTYPE, u[k][v]);
    }
#pragma unroll
    for (int i = 0; i < CONV_RUN; i++) {
        if (r0 + i >= s.n_row) break;
        conv_taps<V> tap;
        float y[V];
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++)
#pragma unroll
            for (int v = 0; v < V; v++) tap.u[k][v] = u[i + BEFORE - k][v];
        filter.value(y, tap, a.width);
        store_channels<V>(a.y.data, a.y.dtype, (row + i) * a.y.ld + c, y);
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

spec_status speci_cuda_check_conv(spec_device *dev, const spec_conv_args *a)
{
    if (a->n_channel < 1 || a->n_node < 1)
        return dev->host->fail(SPEC_E_INVALID, "cuda conv: %d channels, %d nodes", a->n_channel, a->n_node);
    if (a->width < 2 || a->width > CONV_WIDTH_MAX)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda conv: width %d, can do 2 to %d", a->width, (int)CONV_WIDTH_MAX);
    if (!cuda_is_float(a->dtype) || !cuda_is_float(a->u.dtype) || !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda conv: float types only");
    return SPEC_OK;
}

template <int V> static spec_status launch(spec_queue *q, const spec_conv_args *a)
{
    const int rows = q->shape.rows, parts = (int)CONV_PARTS;
    const unsigned x = (unsigned)cuda_div_up(a->n_channel, CONV_THREADS * V);
    if (q->shape.phase == SPEC_PHASE_PREFILL) {
        auto *kernel = a->dtype == SPEC_DTYPE_F32    ? conv_prefill_kernel<V, SPEC_DTYPE_F32>
                       : a->dtype == SPEC_DTYPE_BF16 ? conv_prefill_kernel<V, SPEC_DTYPE_BF16>
                                                     : conv_prefill_kernel<V, SPEC_DTYPE_F16>;
        return cuda_launch(q, "conv", kernel, dim3(x, (unsigned)cuda_div_up(rows, CONV_RUN) + 1, (unsigned)q->shape.seqs),
                           dim3(CONV_THREADS), 0, 1, q->d_step, *a);
    }
    return cuda_launch(q, "conv", conv_kernel<V>, dim3(x, (unsigned)(rows + parts * q->shape.seqs)), dim3(CONV_THREADS), 0,
                       1, q->d_step, *a, rows, parts);
}

spec_status speci_cuda_conv(spec_queue *q, const spec_conv_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "conv"));
    SPEC_TRY(speci_cuda_check_conv(q->dev, a));
    auto by_four = [](const void *p, spec_dtype dtype, int32_t ld) {
        return cuda_aligned(p, 4 * cuda_size(dtype)) && ld % 4 == 0;
    };
    const bool vectors = by_four(a->u.data, a->u.dtype, a->u.ld) && by_four(a->y.data, a->y.dtype, a->y.ld) &&
                         by_four(a->window, a->dtype, a->n_channel) && by_four(a->cache, a->dtype, a->n_channel) &&
                         by_four(a->replay_y, a->dtype, a->n_channel);
    return vectors ? launch<4>(q, a) : launch<1>(q, a);
}
