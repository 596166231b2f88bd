/* cuda_cap.cu - y = cap tanh(y / cap), in place. Rows [rows][n] f32; a thread takes four columns. */
#include "backends/cuda/cuda.cuh"

enum { CAP_THREADS = 256, CAP_COLUMNS = 4 * CAP_THREADS };

/* QUADS: rows begin at multiples of 16 bytes. */
template <bool QUADS>
static __global__ void __launch_bounds__(CAP_THREADS) cap_kernel(const spec_step_block *step, float *y, int ld, int n, float cap)
{
    const int r = (int)blockIdx.y, c = 4 * (int)(blockIdx.x * CAP_THREADS + threadIdx.x);
    const float inverse = 1.0f / cap;
    grid_begin();
    if (r >= step->n_row_run || c >= n) return;
    float *const at = y + (size_t)r * ld + c;
    if constexpr (QUADS) {
        const float4 v = *(const float4 *)at;
        *(float4 *)at = make_float4(soft_cap(v.x, cap, inverse), soft_cap(v.y, cap, inverse), soft_cap(v.z, cap, inverse),
                                    soft_cap(v.w, cap, inverse));
    } else {
        for (int i = 0; i < 4 && c + i < n; i++) at[i] = soft_cap(at[i], cap, inverse);
    }
}

spec_status speci_cuda_cap_rows(spec_queue *q, const spec_view *y, int32_t n, float cap)
{
    auto *kernel = n % 4 == 0 && y->ld % 4 == 0 && cuda_aligned(y->data, 16) ? cap_kernel<true> : cap_kernel<false>;
    const dim3 grid((unsigned)cuda_div_up(n, CAP_COLUMNS), (unsigned)q->shape.rows);
    return cuda_launch(q, "cap", kernel, grid, dim3(CAP_THREADS), 0, 1, q->d_step, (float *)y->data, y->ld, n, cap);
}
