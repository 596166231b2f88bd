/* cuda_conv.cu - causal depth-wise convolution over a tree, and the window's advance along the accepted path.
 *   y(node) = act(bias + sum_k w[c][width-1-k] u[k-th ancestor]), beyond the root the stored window, newest first
 * GATED: with a gate in front of u, or behind y, or without silu or what a scan replays.
 * u is rounded to the compute type before anything reads it. Source: the causal convolution of Mamba in its tree form
 * (algorithms.md 7.1).
 *
 * A block's y index is an *entity* (conv_entity in cuda_conv.cuh).
 *
 * Only u of this pass's rows comes from kernels in front: weights, window and cache are read before the kernel waits
 * for them, and an entry computed. What is written waits: the layer in front may still read its own replay_y. There is
 * one copy of every step of the way, since the code of a kernel that runs once a layer is not in the caches. */
#include "backends/cuda/scan/cuda_conv.cuh"

enum { CONV_THREADS = 128, CONV_RUN = 8 };

template <typename T, int V, bool GATED>
static __global__ void __launch_bounds__(CONV_THREADS, 6) /* 64 rows of 5376 channels, 748 blocks, resident at once */
conv_kernel(const spec_step_block *step, const spec_conv_args a, int rows)
{
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x) * V;
    grid_release();
    conv_entity<T, V, GATED>(step, a, rows, CONV_PARTS, (int)blockIdx.y, c);
}

/* Prefill: rows are a chain, so a thread walks CONV_RUN of them and reads each u once, and CONV_WIDTH_MAX - 1 in front.
 * The last entity along y writes the window. The same sums, the same bits. */
template <typename T, int V, bool GATED>
static __global__ void __launch_bounds__(CONV_THREADS, 6) /* 512 rows of 5376 channels, 715 blocks, resident at once */
conv_prefill_kernel(const spec_step_block *step, const spec_conv_args a)
{
    constexpr int BEFORE = CONV_WIDTH_MAX - 1;
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x) * V, r0 = (int)blockIdx.y * CONV_RUN;
    const bool is_window = blockIdx.y == gridDim.y - 1;
    grid_release();
    if (c >= a.n_channel || (int)blockIdx.z >= step->n_seq) return grid_wait();
    const spec_step_seq s = spec_step_seqs(step)[blockIdx.z];
    const conv_inputs<T, V, GATED> in(a, step, s);
    if (is_window) {
        in.advance_window(s.n_row, true, c);
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
    in.template rows<BEFORE + CONV_RUN>(u, row - BEFORE, r0 == 0 ? BEFORE : 0, s.n_row - r0 + BEFORE, c);
#pragma unroll
    for (int i = 0; i < CONV_RUN; i++) {
        if (r0 + i >= s.n_row) break;
        conv_taps<V> tap;
        float y[V];
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++)
#pragma unroll
            for (int v = 0; v < V; v++) tap.u[k][v] = u[i + BEFORE - k][v];
        filter.template value<GATED>(y, tap, a);
        if constexpr (GATED) apply_gate<T, V>(y, a.gate_out, row + i, c);
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
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda conv: u is %s, y %s, to be computed in %s",
                               speci_dtype_name(a->u.dtype), speci_dtype_name(a->y.dtype), speci_dtype_name(a->dtype));
    if (a->act != SPEC_ACT_SILU && a->act != SPEC_ACT_NONE)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda conv: activation %d, can do silu and none", (int)a->act);
    for (const spec_view *gate : { &a->gate_in, &a->gate_out })
        if (gate->data && ((gate->dtype != SPEC_DTYPE_F32 && gate->dtype != a->dtype) || gate->ld < a->n_channel))
            return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda conv: a gate of %s with rows %d apart, need %d",
                                   speci_dtype_name(gate->dtype), gate->ld, a->n_channel);
    if (a->gate_out.data && a->replay_y)
        return dev->host->fail(SPEC_E_INVALID, "cuda conv: a gate behind what is replayed");
    return SPEC_OK;
}

template <typename T, int V, bool GATED> static spec_status launch(spec_queue *q, const spec_conv_args *a)
{
    const int rows = q->shape.rows, seqs = q->shape.seqs;
    const unsigned x = (unsigned)cuda_div_up(a->n_channel, CONV_THREADS * V);
    if (q->shape.phase == SPEC_PHASE_PREFILL)
        return cuda_launch(q, "conv", conv_prefill_kernel<T, V, GATED>,
                           dim3(x, (unsigned)cuda_div_up(rows, CONV_RUN) + 1, (unsigned)seqs), dim3(CONV_THREADS), 0, 1,
                           q->d_step, *a);
    return cuda_launch(q, "conv", conv_kernel<T, V, GATED>, dim3(x, (unsigned)(rows + (CONV_PARTS + 1) * seqs)),
                       dim3(CONV_THREADS), 0, 1, q->d_step, *a, rows);
}

spec_status speci_cuda_conv(spec_queue *q, const spec_conv_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "conv"));
    SPEC_TRY(speci_cuda_check_conv(q->dev, a));
    auto by_four = [](const void *p, spec_dtype dtype, int32_t ld) {
        return cuda_aligned(p, 4 * speci_dtype_bytes(dtype)) && ld % 4 == 0;
    };
    auto by_four_or_none = [&](const spec_view &v) { return !v.data || by_four(v.data, v.dtype, v.ld); };
    const bool vectors = by_four(a->u.data, a->u.dtype, a->u.ld) && by_four(a->y.data, a->y.dtype, a->y.ld) &&
                         by_four(a->window, a->dtype, a->n_channel) && by_four(a->cache, a->dtype, a->n_channel) &&
                         by_four(a->replay_y, a->dtype, a->n_channel) && by_four_or_none(a->gate_in) &&
                         by_four_or_none(a->gate_out);
    return cuda_by_dtype(a->dtype, [&](auto tag) {
        using T = decltype(tag);
        if (!conv_is_plain(a)) return vectors ? launch<T, 4, true>(q, a) : launch<T, 1, true>(q, a);
        return vectors ? launch<T, 4, false>(q, a) : launch<T, 1, false>(q, a);
    });
}
