/* cuda_conv.cu - causal depth-wise convolution over a tree, and the window's advance along the accepted path.
 *   y(node) = silu(bias + sum_k w[c][width-1-k] u[k-th ancestor]), beyond the root the stored window, newest first
 * u is rounded to the compute type before anything reads it. Source: the causal convolution of Mamba in its tree form
 * (algorithms.md 7.1).
 *
 * Threads are channels; a block's y index is an *entity*: first the rows of the pass, then 1 + `parts` per sequence: one
 * writes the window, the others share the sequence's entries of replay_y (the path, or the nodes fed before). An entry
 * costs two loads, one behind the other, so up to CONV_PARTS_MAX of them are computed side by side.
 * Written are half `parity` of window and cache, read is the other half; when nodes were fed before (n_fed > 0) the
 * window is not written and its half `parity` is read. So no block waits for another. */
#include "cuda.cuh"

enum { CONV_WIDTH_MAX = 4, CONV_PARTS_MAX = 16 };

/* The m-th newest input before the tree's root, for one sequence and channel. */
struct conv_before {
    const spec_conv_args *a;
    const int32_t *path;    /* accepted path of the previous tree */
    size_t window0, cache0; /* where the half that is read begins */
    int n_path, c;
    __device__ float operator()(int m) const
    {
        if (m < n_path) return load_any(a->cache, a->dtype, cache0 + (size_t)path[n_path - 1 - m] * a->n_channel + c);
        return load_any(a->window, a->dtype, window0 + (size_t)(a->width - 2 - (m - n_path)) * a->n_channel + c);
    }
};

/* bias + sum over taps, oldest first; tap[k] is the k-th ancestor's input. */
static __device__ __forceinline__ float conv_value(const spec_conv_args &a, int c, const float tap[CONV_WIDTH_MAX])
{
    float sum = a.bias ? a.bias[c] : 0.0f;
#pragma unroll
    for (int k = CONV_WIDTH_MAX - 1; k >= 0; k--)
        if (k < a.width) sum = fmaf(a.weight[(size_t)c * a.width + (a.width - 1 - k)], tap[k], sum);
    return silu(sum);
}

static __global__ void conv_kernel(const spec_step_block *step, const spec_conv_args a, int rows, int parts)
{
    const int c = (int)(blockIdx.x * blockDim.x + threadIdx.x), entity = (int)blockIdx.y;
    const bool is_row = entity < rows;
    if (c >= a.n_channel || (is_row && entity >= step->n_row)) return;
    const int n_seq = is_row ? spec_step_row_seq(step)[entity] : (entity - rows) / (1 + parts);
    if (n_seq >= step->n_seq) return;
    const spec_step_seq s = spec_step_seqs(step)[n_seq];
    const spec_step_node *node = spec_step_nodes(step) + s.first_node;
    const bool prefill = step->phase == SPEC_PHASE_PREFILL;

    const size_t half = (size_t)s.slot * 2 + s.parity, other = (size_t)s.slot * 2 + (s.parity ^ 1);
    const size_t window_half = (size_t)(a.width - 1) * a.n_channel, cache_half = (size_t)a.n_node * a.n_channel;
    conv_before before;
    before.a = &a;
    before.path = spec_step_paths(step) + s.first_path;
    before.n_path = s.n_fed > 0 ? 0 : s.n_replay;
    before.window0 = (s.n_fed > 0 ? half : other) * window_half;
    before.cache0 = other * cache_half;
    before.c = c;

    /* u of a node of this tree */
    auto input = [&](int i) {
        if (i < s.n_fed) return load_any(a.cache, a.dtype, half * cache_half + (size_t)i * a.n_channel + c);
        return round_any(a.dtype, load_any(a.u.data, a.u.dtype, (size_t)(s.first_row + i - s.n_fed) * a.u.ld + c));
    };
    auto node_value = [&](int i) {
        float tap[CONV_WIDTH_MAX];
        int ancestor = i, m = 0;
#pragma unroll
        for (int k = 0; k < CONV_WIDTH_MAX; k++) {
            tap[k] = 0.0f;
            if (k >= a.width) continue;
            if (ancestor >= 0) {
                tap[k] = input(ancestor);
                ancestor = node[ancestor].parent;
            } else {
                tap[k] = before(m++);
            }
        }
        return conv_value(a, c, tap);
    };

    if (is_row) {
        const int i = s.n_fed + entity - s.first_row;
        store_any(a.y.data, a.y.dtype, (size_t)entity * a.y.ld + c, node_value(i));
        if (!prefill) store_any(a.cache, a.dtype, half * cache_half + (size_t)i * a.n_channel + c, input(i));
        return;
    }

    const int part = (entity - rows) % (1 + parts) - 1;
    if (part < 0 && s.n_fed == 0) {
        /* prefill: the rows are absorbed too, the last one is the newest; of a tree, the chain in front */
        const int n_new = prefill ? s.n_row : s.n_advance;
        for (int m = 0; m < a.width - 1; m++) {
            const float u = m < n_new ? input(n_new - 1 - m) : before(m - n_new);
            store_any(a.window, a.dtype, half * window_half + (size_t)(a.width - 2 - m) * a.n_channel + c, u);
        }
    }
    if (prefill || part < 0) return;
    const size_t replay0 = (size_t)n_seq * 2 * a.n_node * a.n_channel + c;
    const int n_entry = s.n_fed > 0 ? s.n_replay + s.n_fed : s.n_replay;
    for (int j = part; j < n_entry; j += parts) {
        float y;
        if (j < s.n_replay) { /* the ancestors of a path's entry are the entries before it */
            float tap[CONV_WIDTH_MAX];
#pragma unroll
            for (int k = 0; k < CONV_WIDTH_MAX; k++) tap[k] = k < a.width ? before(s.n_replay - 1 - j + k) : 0.0f;
            y = conv_value(a, c, tap);
        } else {
            y = node_value(j - s.n_replay);
        }
        store_any(a.replay_y, a.dtype, replay0 + (size_t)j * a.n_channel, y);
    }
}

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

spec_status speci_cuda_conv(spec_queue *q, const spec_conv_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "conv"));
    SPEC_TRY(speci_cuda_check_conv(q->dev, a));
    const int threads = 128, rows = q->shape.rows, parts = a->n_node < CONV_PARTS_MAX ? a->n_node : (int)CONV_PARTS_MAX;
    const dim3 grid((unsigned)cuda_div_up(a->n_channel, threads), (unsigned)(rows + (1 + parts) * q->shape.seqs));
    conv_kernel<<<grid, threads, 0, q->stream>>>(q->d_step, *a, rows, parts);
    return cuda_launched(q, "conv");
}
