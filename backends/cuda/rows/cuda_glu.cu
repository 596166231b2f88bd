/* cuda_glu.cu - y = act(gate) * up, rounded to y's type: by the functions of a product's epilogue (cuda_linear.cuh), so with its bits.
 * Rows [rows][dim], gate and up f32; a thread takes one column. */
#include "backends/cuda/linear/cuda_linear.cuh"

enum { GLU_THREADS = 256 };

static __global__ void __launch_bounds__(GLU_THREADS) glu_kernel(const spec_step_block *step, const spec_glu_args a)
{
    const int r = (int)blockIdx.y, c = (int)(blockIdx.x * GLU_THREADS + threadIdx.x);
    grid_begin();
    if (r >= step->n_row_run || c >= a.dim) return;
    const float gate = ((const float *)a.gate.data)[(size_t)r * a.gate.ld + c], up = ((const float *)a.up.data)[(size_t)r * a.up.ld + c];
    store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + c, activate(a.act, gate) * up);
}

spec_status speci_cuda_check_glu(spec_device *dev, const spec_glu_args *a)
{
    if (a->dim < 1 || a->gate.ld < a->dim || a->up.ld < a->dim || a->y.ld < a->dim)
        return dev->host->fail(SPEC_E_INVALID, "cuda glu: %d columns of rows %d, %d and %d apart", a->dim, a->gate.ld, a->up.ld, a->y.ld);
    if (a->gate.dtype != SPEC_DTYPE_F32 || a->up.dtype != SPEC_DTYPE_F32 || !cuda_is_float(a->y.dtype))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda glu: gate is %s, up %s, y %s; need f32, f32 and a float type",
                               speci_dtype_name(a->gate.dtype), speci_dtype_name(a->up.dtype), speci_dtype_name(a->y.dtype));
    if (a->act < SPEC_ACT_NONE || a->act > SPEC_ACT_RELU)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda glu: activation %d is not known", (int)a->act);
    return SPEC_OK;
}

spec_status speci_cuda_glu(spec_queue *q, const spec_glu_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "glu"));
    SPEC_TRY(speci_cuda_check_glu(q->dev, a));
    const dim3 grid((unsigned)cuda_div_up(a->dim, GLU_THREADS), (unsigned)q->shape.rows);
    return cuda_launch(q, "glu", glu_kernel, grid, dim3(GLU_THREADS), 0, 1, q->d_step, *a);
}
