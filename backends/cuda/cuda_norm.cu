/* cuda_norm.cu - RMS and layer normalisation, with the gate of Mamba-2.
 *   RMS    v = gate ? x * silu(gate) : x;  y = v * rsqrt(mean(v^2) + eps) * weight, over each of n_group groups;
 *          with norm_first  y = x * rsqrt(mean(x^2) + eps) * weight * silu(gate)
 *   LAYER  y = (x - mean) * rsqrt(mean((x - mean)^2) + eps) * weight + bias
 * x, gate f32 [rows][dim]; y f32 or 16 bit. One block per row and group; its width, and so the order of its sums, is a
 * function of the group's width. Rows are read twice (three times): the second time they come from L1. */
#include "cuda.cuh"

struct norm_row {
    const float *x, *gate, *weight, *bias; /* of this row and group; gate and bias may be NULL */
    bool norm_first;
    __device__ float value(int c) const
    {
        return gate && !norm_first ? x[c] * silu(gate[c]) : x[c];
    }
};

static __global__ void __launch_bounds__(1024) norm_kernel(const spec_step_block *step, spec_norm_args a, int width)
{
    __shared__ float shared[32];
    const int r = (int)blockIdx.y, g = (int)blockIdx.x;
    grid_begin();
    if (r >= step->n_row_run) return;
    const int c0 = g * width;
    norm_row row;
    row.x = (const float *)a.x.data + (size_t)r * a.x.ld + c0;
    row.gate = a.gate.data ? (const float *)a.gate.data + (size_t)r * a.gate.ld + c0 : NULL;
    row.weight = a.weight + c0;
    row.bias = a.bias ? a.bias + c0 : NULL;
    row.norm_first = a.norm_first != 0;

    float mean = 0.0f;
    if (a.kind == SPEC_NORM_LAYER) {
        float sum = 0.0f;
        for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) sum = sum + row.value(c);
        mean = block_sum(sum, shared) / (float)width;
    }
    float square = 0.0f;
    for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
        const float v = row.value(c) - mean; /* x - 0 is x */
        square = fmaf(v, v, square);
    }
    const float scale = 1.0f / sqrtf(block_sum(square, shared) / (float)width + a.eps);
    const size_t out = (size_t)r * a.y.ld + c0;
    for (int c = (int)threadIdx.x; c < width; c += (int)blockDim.x) {
        float v = (row.value(c) - mean) * scale * row.weight[c];
        if (row.bias) v = v + row.bias[c];
        if (row.gate && row.norm_first) v = v * silu(row.gate[c]);
        store_any(a.y.data, a.y.dtype, out + c, v);
    }
}

spec_status speci_cuda_check_norm(spec_device *dev, const spec_norm_args *a)
{
    if (a->dim < 1 || a->n_group < 1 || a->dim % a->n_group)
        return dev->host->fail(SPEC_E_INVALID, "cuda norm: dim %d in %d groups", a->dim, a->n_group);
    if (a->kind != SPEC_NORM_RMS && a->kind != SPEC_NORM_LAYER)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda norm: kind %d is not known", (int)a->kind);
    if (a->kind == SPEC_NORM_LAYER && (a->n_group != 1 || a->gate.data))
        return dev->host->fail(SPEC_E_INVALID, "cuda norm: a layer norm takes one group and no gate");
    if (a->x.dtype != SPEC_DTYPE_F32 || (a->gate.data && a->gate.dtype != SPEC_DTYPE_F32) || !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda norm: x and gate must be f32, y a float type");
    return SPEC_OK;
}

spec_status speci_cuda_norm(spec_queue *q, const spec_norm_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "norm"));
    SPEC_TRY(speci_cuda_check_norm(q->dev, a));
    const int width = a->dim / a->n_group;
    int threads = 32;
    while (threads < 1024 && threads * 4 < width) threads *= 2;
    return cuda_launch(q, "norm", norm_kernel, dim3((unsigned)a->n_group, (unsigned)q->shape.rows),
                       dim3((unsigned)threads), 0, 1, q->d_step, *a, width);
}
