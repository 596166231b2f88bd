/* cuda_keep.cu - y = x, rounded to y's type. Rows [rows][dim]; a thread takes four columns. */
#include "backends/cuda/cuda.cuh"

enum { KEEP_THREADS = 256, KEEP_COLUMNS = 4 * KEEP_THREADS };

/* QUADS: x and y are f32, and rows begin at multiples of 16 bytes. */
template <bool QUADS>
static __global__ void __launch_bounds__(KEEP_THREADS) keep_kernel(const spec_step_block *step, const spec_keep_args a)
{
    const int r = (int)blockIdx.y, c = 4 * (int)(blockIdx.x * KEEP_THREADS + threadIdx.x);
    grid_begin();
    if (r >= step->n_row_run || c >= a.dim) return;
    const size_t from = (size_t)r * a.x.ld + c, to = (size_t)r * a.y.ld + c;
    if constexpr (QUADS)
        *(float4 *)((float *)a.y.data + to) = *(const float4 *)((const float *)a.x.data + from);
    else
        for (int i = 0; i < 4 && c + i < a.dim; i++)
            store_any(a.y.data, a.y.dtype, to + i, load_any(a.x.data, a.x.dtype, from + i));
}

spec_status speci_cuda_check_keep(spec_device *dev, const spec_keep_args *a)
{
    const spec_dtype x = a->x.dtype, y = a->y.dtype;
    if (a->dim < 1 || a->x.ld < a->dim || a->y.ld < a->dim)
        return dev->host->fail(SPEC_E_INVALID, "cuda keep: %d columns of rows %d and %d apart", a->dim, a->x.ld, a->y.ld);
    if (!cuda_is_float(x) || !cuda_is_float(y) || (x != y && x != SPEC_DTYPE_F32 && y != SPEC_DTYPE_F32))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda keep: x is %s, y %s", speci_dtype_name(x), speci_dtype_name(y));
    return SPEC_OK;
}

static bool in_quads(const spec_view &v, int32_t dim)
{
    return v.dtype == SPEC_DTYPE_F32 && dim % 4 == 0 && v.ld % 4 == 0 && cuda_aligned(v.data, 16);
}

spec_status speci_cuda_keep(spec_queue *q, const spec_keep_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "keep"));
    SPEC_TRY(speci_cuda_check_keep(q->dev, a));
    auto *kernel = in_quads(a->x, a->dim) && in_quads(a->y, a->dim) ? keep_kernel<true> : keep_kernel<false>;
    const dim3 grid((unsigned)cuda_div_up(a->dim, KEEP_COLUMNS), (unsigned)q->shape.rows);
    return cuda_launch(q, "keep", kernel, grid, dim3(KEEP_THREADS), 0, 1, q->d_step, *a);
}
