/* cuda_linear_many.cu - products of many rows (cuda_linear_many.cuh) with 16-bit weights, from 33 rows on; and what brings x in
 * order for them. */
#include "backends/cuda/linear/cuda_linear_many.cuh"

/* A thread takes the chunk of a row. */
template <typename T>
static __global__ void __launch_bounds__(4 * SLAB_ROWS)
linear_arrange_kernel(const spec_step_block *step, const T *x, int ld_x, int n_in, int aligned, uint4 *slabs)
{
    grid_release();
    const int n_row = step->n_row_run, r = (int)threadIdx.x % SLAB_ROWS, row = (int)blockIdx.y * SLAB_ROWS + r;
    const int chunk = (int)(blockIdx.x * 4 + threadIdx.x / SLAB_ROWS);
    grid_wait();
    if ((int)blockIdx.y * SLAB_ROWS >= n_row) return;
    const T *from = x + (size_t)row * ld_x;
    uint4 u[4] = {};
    if (aligned && chunk * 32 + 32 <= n_in && row < n_row) {
#pragma unroll
        for (int t = 0; t < 4; t++) u[t] = ((const uint4 *)from)[chunk * 4 + t];
    } else if (row < n_row) {
#pragma unroll
        for (int t = 0; t < 4; t++) u[t] = load_x8(from, chunk * 32 + t * 8, n_in, false);
    }
    uint4 *const to = slabs + ((size_t)blockIdx.y * gridDim.x * 4 + chunk) * (4 * SLAB_ROWS) + r;
    to[0 * SLAB_ROWS] = make_uint4(u[0].x, u[1].x, u[2].x, u[3].x);
    to[1 * SLAB_ROWS] = make_uint4(u[0].y, u[1].y, u[2].y, u[3].y);
    to[2 * SLAB_ROWS] = make_uint4(u[0].z, u[1].z, u[2].z, u[3].z);
    to[3 * SLAB_ROWS] = make_uint4(u[0].w, u[1].w, u[2].w, u[3].w);
    slab_fence();
}

spec_status speci_cuda_slabs_of(spec_queue *q, const cuda_linear_args *a, const cuda_pass *pass, bool aligned, const uint16_t **slabs)
{
    if (pass->in.of == a->x.data && pass->in.order == ORDER_SLABS) {
        *slabs = pass->in.at;
        return SPEC_OK;
    }
    *slabs = q->arranged[0];
    const dim3 chunks((unsigned)cuda_chunks(a->n_in), (unsigned)cuda_div_up(q->shape.rows, SLAB_ROWS)), threads(4 * SLAB_ROWS);
    uint4 *const to = (uint4 *)q->arranged[0];
    return a->x.dtype == SPEC_DTYPE_F16
               ? cuda_launch(q, "linear", linear_arrange_kernel<__half>, chunks, threads, 0, 1, q->d_step,
                             (const __half *)a->x.data, a->x.ld, a->n_in, (int)aligned, to)
               : cuda_launch(q, "linear", linear_arrange_kernel<__nv_bfloat16>, chunks, threads, 0, 1, q->d_step,
                             (const __nv_bfloat16 *)a->x.data, a->x.ld, a->n_in, (int)aligned, to);
}

/* ------------------------------------------------------------------------------- 16-bit weights --- */

template <typename T> struct many_plain {
    typedef T type;
    static constexpr bool finds_best = true;
    enum { STEP = 4 * 32 }; /* [2 chunks][2 rows][lanes] */

    /* A lane copies 16 bytes, 8 consecutive k, of each row and chunk; they make two instructions, as for few rows. */
    struct reader {
        const T *from;
        size_t second; /* row */
        int lane;
        uint64_t policy;

        __device__ __forceinline__ reader(const void *w, int ld_w, int, const linear_out &o, int m, int k0, int lane_)
            : from((const T *)w + (size_t)m * ld_w + k0 + lane_ % 4 * 8), second((size_t)(o.glu ? o.n_out / 2 : 1) * ld_w),
              lane(lane_), policy(read_once())
        {
        }
        __device__ __forceinline__ void copy(uint4 *ring, const bool has[2])
        {
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (has[i % 2]) copy16(ring + i * 32 + lane, from + i / 2 * 32 + i % 2 * second, policy);
            from += 64;
        }
        /* acc += the step that lies in the ring, times its slabs of x, [LENGTH][N / 64]; `meanwhile` the ring is free. */
        template <int N, int LENGTH, typename F>
        __device__ __forceinline__ void multiply(float acc[N / 2], const uint4 *ring, const uint4 *slabs, F meanwhile) const
        {
#pragma unroll
            for (int s = 0; s < LENGTH; s++) {
                uint4 v[4];
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = ring[(s * 4 + i) * 32 + lane];
                wgmma_begin();
#pragma unroll
                for (int c = 0; c < 2; c++)
                    wgmma_chunk<T, N, SLAB_ROWS>(acc, v[2 * c], v[2 * c + 1],
                                                 slabs + s * (N / SLAB_ROWS) * SLAB + c * (SLAB / 2));
                wgmma_end();
            }
            meanwhile();
            wgmma_wait<0>(*(float(*)[N / 2])acc);
        }
    };

    template <linear_more MORE> static auto ways()
    {
        /* warpgroups of a team, teams; rows; copies, slabs, length of a step; blocks; parts */
        return std::array{ make_way<many_plain, MORE, many_form<1, 2, 128, 6, 4, 1, 1, 4>>(),
                           make_way<many_plain, MORE, many_form<3, 1, 128, 5, 6, 1, 1, 1>>(),
                           make_way<many_plain, MORE, many_form<3, 1, 128, 5, 6, 1, 1, 4>>(),
                           make_way<many_plain, MORE, many_form<1, 4, 64, 3, 4, 1, 1, 4>>(),
                           make_way<many_plain, MORE, many_form<2, 1, 64, 2, 4, 1, 3, 1>>(),
                           make_way<many_plain, MORE, many_form<3, 1, 64, 3, 3, 2, 1, 4>>(),
                           make_way<many_plain, MORE, many_form<3, 1, 64, 2, 4, 2, 1, 8>>() };
    }
};

spec_status speci_cuda_linear_many(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass)
{
    return a->w->dtype == SPEC_DTYPE_F16 ? linear_many<many_plain<__half>>(q, a, o, aligned, pass)
                                         : linear_many<many_plain<__nv_bfloat16>>(q, a, o, aligned, pass);
}
