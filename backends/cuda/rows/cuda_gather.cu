/* cuda_gather.cu - rows of logits under other numbers (spec_gather_args). Blocks of a row share its columns. A row costs 4 bytes
 * written and 4 of the table read for each column; what is read of the logits is a row at most, which the cache holds. */
#include <string.h>

#include "backends/cuda/rows/cuda_select.cuh"

enum { GATHER_THREADS = 256, GATHER_PER_THREAD = 8 };

struct gather_batch {
    const float *logits;
    float *out;
    const int32_t *column;
    int32_t ld, ld_out, n_out;
    int32_t src[ROW_BATCH];
};

static __global__ void __launch_bounds__(GATHER_THREADS) gather_kernel(const __grid_constant__ gather_batch a)
{
    const float *const x = a.logits + (size_t)a.src[blockIdx.y] * a.ld;
    float *const y = a.out + (size_t)blockIdx.y * a.ld_out;
    const int stride = (int)(gridDim.x * blockDim.x);
    for (int c = (int)(blockIdx.x * blockDim.x + threadIdx.x); c < a.n_out; c += stride) {
        const int from = a.column[c];
        y[c] = from >= 0 ? x[from] : -INFINITY;
    }
}

spec_status speci_cuda_gather(spec_queue *q, const spec_gather_args *a)
{
    SPEC_TRY(cuda_enter(q->dev));
    if (a->n_out < 1 || a->ld_out < a->n_out || a->n_row < 0)
        return q->dev->host->fail(SPEC_E_INVALID, "cuda gather: %d rows of %d values, %d apart", a->n_row, a->n_out, a->ld_out);
    gather_batch b = {};
    b.logits = a->logits, b.column = a->column, b.ld = a->ld, b.ld_out = a->ld_out, b.n_out = a->n_out;
    const int blocks = cuda_div_up(a->n_out, GATHER_THREADS * GATHER_PER_THREAD);
    for (int32_t r = 0, n; r < a->n_row; r += n) {
        n = a->n_row - r < ROW_BATCH ? a->n_row - r : ROW_BATCH;
        memcpy(b.src, a->host_src + r, (size_t)n * sizeof *a->host_src);
        b.out = a->out + (size_t)r * (size_t)a->ld_out;
        gather_kernel<<<dim3((unsigned)blocks, (unsigned)n), GATHER_THREADS, 0, q->stream>>>(b);
        SPEC_TRY(cuda_launched(q, "gather"));
    }
    return SPEC_OK;
}
