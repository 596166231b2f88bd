/* cuda_conv.cu - causal depth-wise convolution over a tree, and the window's advance along the accepted path.
 *   y(node) = silu(bias + sum_k w[c][width-1-k] u[k-th ancestor]), beyond the root the stored window, newest first
 * u is rounded to the compute type before anything reads it. Source: the causal convolution of Mamba in its tree form
 * (algorithms.md 7.1).
 *
 * A thread has V neighbouring channels; a block's y index is an *entity*: first the rows of the pass, then per sequence
 * CONV_PARTS that share its entries of replay_y (the path, or the nodes fed before) and one that writes the window. Written
 * are half `parity` of window and cache, read is the other half; when nodes were fed before (n_fed > 0) the window is not
 * written and its half `parity` is read. So no block waits for another.
 *
 * Only u of this pass's rows comes from kernels in front: weights, window and cache are read before the kernel waits
 * for them, and an entry computed. What is written waits: the layer in front may still read its own replay_y. There is
 * one copy of every step of the way, since the code of a kernel that runs once a layer is not in the caches. */
#include "cuda.cuh"

enum { CONV_WIDTH_MAX = 4, CONV_PARTS = 8, CONV_THREADS = 128, CONV_RUN = 8 };

/* V neighbours; 16-bit types and float32 have one access for four. */
template <typename T, int V> static __device__ __forceinline__ void load_channels(float out[V], const T *p)
{
    if constexpr (V == 1) {
        out[0] = to_f32(*p);
    } else if constexpr (sizeof(T) == 4) {
        const float4 v = *(const float4 *)p;
        out[0] = v.x, out[1] = v.y, out[2] = v.z, out[3] = v.w;
    } else {
        const uint2 v = *(const uint2 *)p;
        const float2 lo = unpack2<T>(v.x), hi = unpack2<T>(v.y);
        out[0] = lo.x, out[1] = lo.y, out[2] = hi.x, out[3] = hi.y;
    }
}
template <typename T, int V> static __device__ __forceinline__ void store_channels(T *p, const float v[V])
{
    if constexpr (V == 1) {
        *p = from_f32<T>(v[0]);
    } else if constexpr (sizeof(T) == 4) {
        *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]);
    } else {
        uint32_t h[4];
#pragma unroll
        for (int k = 0; k < 4; k++) h[k] = bits16(from_f32<T>(v[k]));
        *(uint2 *)p = make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
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

/* Where a sequence's inputs lie. Functions are of V channels from c on; T is the compute type. */
template <typename T, int V> struct conv_inputs {
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
    __device__ __forceinline__ const T *before(int m, int c) const
    {
        if (m < n_path) return (const T *)a.cache + cache0 + (size_t)path[n_path - 1 - m] * a.n_channel + c;
        return (const T *)a.window + window0 + (size_t)(a.width - 2 - (m - n_path)) * a.n_channel + c;
    }
    /* Keeps the input of node i for the replay to come; what nodes fed before have left there. */
    __device__ __forceinline__ T *kept(int i, int c) const { return (T *)a.cache + cache + (size_t)i * a.n_channel + c; }
    /* of row r, rounded */
    __device__ __forceinline__ void row(float u[V], int r, int c) const
    {
        const size_t i = (size_t)r * a.u.ld + c;
        if (a.u.dtype == SPEC_DTYPE_F32) {
            load_channels<float, V>(u, (const float *)a.u.data + i);
#pragma unroll
            for (int v = 0; v < V; v++) u[v] = to_f32(from_f32<T>(u[v]));
        } else {
            load_channels<T, V>(u, (const T *)a.u.data + i);
        }
    }
    /* Taps that are rows: at[k] >= 0. All are on their way before one is rounded. */
    __device__ __forceinline__ void row_taps(conv_taps<V> &tap, const int at[CONV_WIDTH_MAX], int c) const
    {
        const bool f32 = a.u.dtype == SPEC_DTYPE_F32;
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++)
            if (f32 && at[k] >= 0) load_channels<float, V>(tap.u[k], (const float *)a.u.data + (size_t)at[k] * a.u.ld + c);
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++) {
            if (!f32 && at[k] >= 0) load_channels<T, V>(tap.u[k], (const T *)a.u.data + (size_t)at[k] * a.u.ld + c);
#pragma unroll
            for (int v = 0; v < V && f32; v++) tap.u[k][v] = to_f32(from_f32<T>(tap.u[k][v])); /* those of T stay */
        }
    }
    /* The taps of node i, or (is_path) of node i of the accepted path, whose ancestors are the ones in front of it. Those of
     * this pass's rows are left out: at[k] is their row, -1 elsewhere. */
    __device__ __forceinline__ void known_taps(conv_taps<V> &tap, int at[CONV_WIDTH_MAX], bool is_path, int i, int c) const
    {
        int ancestor = is_path ? -1 : i, m = is_path ? s.n_replay - 1 - i : 0;
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++) {
            at[k] = -1;
            if (k >= a.width) continue;
            if (ancestor >= s.n_fed) at[k] = s.first_row + ancestor - s.n_fed;
            else load_channels<T, V>(tap.u[k], ancestor < 0 ? before(m++, c) : kept(ancestor, c));
            if (ancestor >= 0) ancestor = node[ancestor].parent;
        }
    }
    /* The window absorbs the path and the n_new first rows of the pass. Nobody else of the pass reads or writes it. */
    __device__ __forceinline__ void advance_window(int n_new, int c) const
    {
        const int n = a.width - 1;
        float u[CONV_WIDTH_MAX - 1][V];
#pragma unroll
        for (int m = 0; m < CONV_WIDTH_MAX - 1; m++)
            if (m < n && m >= n_new) load_channels<T, V>(u[m], before(m - n_new, c));
        if (n_new > 0) grid_wait();
        T *const to = (T *)a.window + ((size_t)s.slot * 2 + s.parity) * n * a.n_channel + c;
#pragma unroll
        for (int m = 0; m < CONV_WIDTH_MAX - 1; m++) {
            if (m >= n) continue;
            if (m < n_new) row(u[m], s.first_row + n_new - 1 - m, c);
            store_channels<T, V>(to + (size_t)(n - 1 - m) * a.n_channel, u[m]);
        }
    }
};

template <typename T, int V>
static __global__ void __launch_bounds__(CONV_THREADS, 6) /* 64 rows of 5376 channels, 748 blocks, resident at once */
conv_kernel(const spec_step_block *step, const spec_conv_args a, int rows)
{
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x) * V, entity = (int)blockIdx.y;
    const bool is_row = entity < rows;
    grid_release();
    if (c >= a.n_channel || (is_row && entity >= step->n_row)) return grid_wait();
    const int n_seq = is_row ? spec_step_row_seq(step)[entity] : (entity - rows) / (CONV_PARTS + 1);
    if (n_seq >= step->n_seq) return grid_wait();

    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const conv_inputs<T, V> in(a, step, s);
    const int part = is_row ? 0 : (entity - rows) % (CONV_PARTS + 1), n_entry = s.n_replay + (s.n_fed > 0 ? s.n_fed : 0);
    if (part == CONV_PARTS) {
        if (s.n_fed == 0) in.advance_window(s.n_advance, c); /* the chain in front */
        return grid_wait();
    }
    if (!is_row && part >= n_entry) return grid_wait();

    conv_filter<V> filter;
    filter.load(a, c);
    /* Entries of replay_y: the path's nodes, then the nodes fed. */
#pragma unroll 1
    for (int j = is_row ? s.n_replay + s.n_fed + entity - s.first_row : part; is_row || j < n_entry; j += CONV_PARTS) {
        const int i = j - s.n_replay; /* the node, unless it is the path's */
        conv_taps<V> tap;
        int at[CONV_WIDTH_MAX];
        float y[V];
        in.known_taps(tap, at, i < 0, i < 0 ? j : i, c);
        if (is_row) grid_wait();
        in.row_taps(tap, at, c);
        filter.value(y, tap, a.width);
        if (is_row) {
            store_channels<T, V>((T *)a.y.data + (size_t)entity * a.y.ld + c, y);
            store_channels<T, V>(in.kept(i, c), tap.u[0]);
            return;
        }
        grid_wait();
        store_channels<T, V>((T *)a.replay_y + ((size_t)n_seq * 2 * a.n_node + j) * a.n_channel + c, y);
    }
}

/* Prefill: rows are a chain, so a thread walks CONV_RUN of them and reads each u once, and CONV_WIDTH_MAX - 1 in front.
 * The last entity along y writes the window. The same sums, the same bits. */
template <typename T, int V>
static __global__ void __launch_bounds__(CONV_THREADS, 6) /* 512 rows of 5376 channels, 715 blocks, resident at once */
conv_prefill_kernel(const spec_step_block *step, const spec_conv_args a)
{
    constexpr int BEFORE = CONV_WIDTH_MAX - 1;
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x) * V, r0 = (int)blockIdx.y * CONV_RUN;
    const bool is_window = blockIdx.y == gridDim.y - 1;
    grid_release();
    if (c >= a.n_channel || (int)blockIdx.z >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[blockIdx.z];
    const conv_inputs<T, V> in(a, step, s);
    if (is_window) {
        in.advance_window(s.n_row, c);
        return grid_wait();
    }
    if (r0 >= s.n_row) return grid_wait();
    conv_filter<V> filter;
    filter.load(a, c);
    float u[BEFORE + CONV_RUN][V]; /* of row r0 - BEFORE and on */
#pragma unroll
    for (int k = 0; k < BEFORE; k++)
        if (r0 == 0 && BEFORE - 1 - k < a.width - 1) load_channels<T, V>(u[k], in.before(BEFORE - 1 - k, c));
    grid_wait();
    const int row = s.first_row + r0;
#pragma unroll
    for (int k = 0; k < BEFORE + CONV_RUN; k++) {
        if ((k < BEFORE && r0 == 0) || r0 + k - BEFORE >= s.n_row) continue;
        in.row(u[k], row + k - BEFORE, c);
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
        store_channels<T, V>((T *)a.y.data + (size_t)(row + i) * a.y.ld + c, y);
    }
}

/* --------------------------------------------------------------------------------- launcher --- */

spec_status speci_cuda_check_conv(spec_device *dev, const spec_conv_args *a)
{
    if (a->n_channel < 1 || a->n_node < 1)
        return dev->host->fail(SPEC_E_INVALID, "cuda conv: %d channels, %d nodes", a->n_channel, a->n_node);
    if (a->width < 2 || a->width > CONV_WIDTH_MAX)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda conv: width %d, can do 2 to %d", a->width, (int)CONV_WIDTH_MAX);
    if (!cuda_is_float(a->dtype) || (a->u.dtype != SPEC_DTYPE_F32 && a->u.dtype != a->dtype) || a->y.dtype != a->dtype)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda conv: u is type %d, y is type %d, to be computed in type %d",
                               (int)a->u.dtype, (int)a->y.dtype, (int)a->dtype);
    return SPEC_OK;
}

template <typename T, int V> static spec_status launch(spec_queue *q, const spec_conv_args *a)
{
    const int rows = q->shape.rows, seqs = q->shape.seqs;
    const unsigned x = (unsigned)cuda_div_up(a->n_channel, CONV_THREADS * V);
    if (q->shape.phase == SPEC_PHASE_PREFILL)
        return cuda_launch(q, "conv", conv_prefill_kernel<T, V>,
                           dim3(x, (unsigned)cuda_div_up(rows, CONV_RUN) + 1, (unsigned)seqs), dim3(CONV_THREADS), 0, 1,
                           q->d_step, *a);
    return cuda_launch(q, "conv", conv_kernel<T, V>, dim3(x, (unsigned)(rows + (CONV_PARTS + 1) * seqs)),
                       dim3(CONV_THREADS), 0, 1, q->d_step, *a, rows);
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
    return cuda_by_dtype(a->dtype, [&](auto tag) {
        using T = decltype(tag);
        return vectors ? launch<T, 4>(q, a) : launch<T, 1>(q, a);
    });
}
