/* cuda_bias.cu - y[r][column[c]] += table[row of r's token][c]. table [.][dim] f32, bf16 or f16; y f32 [rows][.]; a thread takes one
 * column, so that a warp reads neighbours of the table, and mostly of y: columns ascend. */
#include "backends/cuda/cuda.cuh"

enum { BIAS_THREADS = 256 };

template <typename T>
static __global__ void __launch_bounds__(BIAS_THREADS) bias_kernel(const spec_step_block *step, const spec_bias_args a)
{
    const int r = (int)blockIdx.y, c = (int)(blockIdx.x * BIAS_THREADS + threadIdx.x);
    const int column = c < a.dim ? a.column[c] : 0; /* not of a pass: read before the wait */
    grid_begin();
    if (r >= step->n_row || c >= a.dim) return;
    const spec_step_seq *s = spec_step_seqs(step) + spec_step_row_seq(step)[r];
    const int token = spec_step_row_node(step, s, r)->token;
    const int from = token >= 0 && token < a.n_vocab ? a.row[token] : -1;
    if (from < 0) return;
    float *y = (float *)a.y.data + (size_t)r * a.y.ld + column;
    *y += to_f32(((const T *)a.table.data)[(size_t)from * a.table.ld + c]);
}

spec_status speci_cuda_check_bias(spec_device *dev, const spec_bias_args *a)
{
    if (a->dim < 1 || a->n_vocab < 1 || a->table.ld < a->dim || a->y.ld < a->dim)
        return dev->host->fail(SPEC_E_INVALID, "cuda bias: %d columns of rows %d and %d apart, %d ids", a->dim, a->table.ld, a->y.ld,
                               a->n_vocab);
    if (!cuda_is_float(a->table.dtype) || a->y.dtype != SPEC_DTYPE_F32)
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda bias: the table is %s, y %s; y is to be f32", speci_dtype_name(a->table.dtype),
                               speci_dtype_name(a->y.dtype));
    return SPEC_OK;
}

spec_status speci_cuda_bias(spec_queue *q, const spec_bias_args *a)
{
    SPEC_TRY(cuda_enter_op(q, "bias"));
    SPEC_TRY(speci_cuda_check_bias(q->dev, a));
    const dim3 grid((unsigned)cuda_div_up(a->dim, BIAS_THREADS), (unsigned)q->shape.rows);
    return cuda_by_dtype(a->table.dtype, [&](auto t) {
        return cuda_launch(q, "bias", bias_kernel<decltype(t)>, grid, dim3(BIAS_THREADS), 0, 1, q->d_step, *a);
    });
}
