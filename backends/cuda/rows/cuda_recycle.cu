/* cuda_recycle.cu - rows that the nodes of a growing tree hand down to their children. Rows [rows][dim]; a thread takes one column. */
#include "backends/cuda/cuda.cuh"

enum { RECYCLE_THREADS = 256 };

static __global__ void __launch_bounds__(RECYCLE_THREADS) recycle_kernel(const spec_step_block *step, const spec_recycle_args a)
{
    const int r = (int)blockIdx.y, c = (int)(blockIdx.x * RECYCLE_THREADS + threadIdx.x);
    grid_begin();
    if (r >= step->n_row || c >= a.dim) return;
    const spec_step_seq *s = spec_step_seqs(step) + spec_step_row_seq(step)[r];
    float *cache = a.cache + (size_t)s->slot * a.n_node * a.dim + c;
    const size_t from = (size_t)r * a.x.ld + c;
    if (a.store) {
        cache[(size_t)(s->n_fed + r - s->first_row) * a.dim] = load_any(a.x.data, a.x.dtype, from);
        return;
    }
    const float value = s->n_fed == 0 ? load_any(a.x.data, a.x.dtype, from)
                                      : cache[(size_t)spec_step_row_node(step, s, r)->parent * a.dim];
    store_any(a.y.data, a.y.dtype, (size_t)r * a.y.ld + c, value);
}

spec_status speci_cuda_check_recycle(spec_device *dev, const spec_recycle_args *a)
{
    if (a->dim < 1 || a->n_node < 1 || a->x.ld < a->dim || (!a->store && a->y.ld < a->dim))
        return dev->host->fail(SPEC_E_INVALID, "cuda recycle: %d columns of rows %d and %d apart, %d nodes", a->dim, a->x.ld, a->y.ld,
                               a->n_node);
    const spec_dtype x = a->x.dtype, y = a->store ? SPEC_DTYPE_F32 : a->y.dtype;
    if (!cuda_is_float(x) || !cuda_is_float(y) || (x != y && x != SPEC_DTYPE_F32 && y != SPEC_DTYPE_F32))
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda recycle: x is %s, y %s", speci_dtype_name(x), speci_dtype_name(y));
    return SPEC_OK;
}

spec_status speci_cuda_recycle(spec_queue *q, const spec_recycle_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "recycle"));
    SPEC_TRY(speci_cuda_check_recycle(q->dev, a));
    const dim3 grid((unsigned)cuda_div_up(a->dim, RECYCLE_THREADS), (unsigned)q->shape.rows);
    return cuda_launch(q, "recycle", recycle_kernel, grid, dim3(RECYCLE_THREADS), 0, 1, q->d_step, *a);
}
