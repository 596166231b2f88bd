/* cuda_linear_q8.cu - products with weights of Q8_0 (layout: cuda_q8.cuh; epilogue: cuda_linear.cuh).
 *
 * Decode. 16 bit: as weights of 16 bits (cuda_linear_few.cuh; many rows: cuda_linear_many_q8.cu). int8 becomes bf16 or f16 in
 * registers, exactly; the float32 sum of a block of 32 is multiplied by the block's scale and added (fmaf) to the sum of the
 * blocks before it. So each output has the very values of its weights. float32: a warp an output, fmaf, a shuffle tree. All
 * orders depend on n_in only.
 *
 * Prefill: the matrix becomes one of the compute type in scratch (each value rounded once), then the plain product. */
#include "backends/cuda/linear/cuda_linear_few.cuh"
#include "backends/cuda/linear/cuda_q8.cuh"

/* ------------------------------------------------------------------ 16 bit: matrix instruction --- */

template <typename T> struct few_q8 {
    typedef T type;
    static constexpr bool deep_glu = false, unpacks = false;

    /* A lane copies its values of each piece, of rows g and g + 8 and both blocks, and, as do the other lanes of these rows, the
     * four scales. In the ring a piece has two times [lanes] 16 bytes, then [lanes] 8. */
    template <int MT, int CHUNKS> struct reader {
        enum { PIECES = CHUNKS / 2, PIECE = 2 * 32 + 16, SIZE = PIECES * MT * PIECE };
        static_assert(CHUNKS % 2 == 0 && CUDA_CHUNK % Q8_PIECE == 0, "parts of K are whole pieces");
        const char *from[MT];
        size_t stride; /* from one of the block's tiles to the next */
        int lane;
        uint64_t policy;

        __device__ __forceinline__ reader(const void *w, int, int n_in, int, int k0, int lane_) : lane(lane_), policy(read_once())
        {
            const q8_shape shape = { 0, n_in, 0 };
            const int n_piece = shape.n_piece();
            stride = (size_t)gridDim.y * MT * n_piece * sizeof(q8_piece);
#pragma unroll
            for (int i = 0; i < MT; i++)
                from[i] = (const char *)((const q8_piece *)w + ((size_t)blockIdx.y * MT + i) * n_piece + k0 / Q8_PIECE);
        }
        __device__ __forceinline__ void copy(uint4 *ring, int block, bool of_next) const
        {
            const size_t at = (of_next ? stride : 0) + (size_t)block * PIECES * sizeof(q8_piece);
#pragma unroll
            for (int p = 0; p < PIECES; p++)
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    uint4 *const to = ring + (p * MT + i) * PIECE;
                    const q8_piece *const piece = (const q8_piece *)(from[i] + at) + p;
                    copy16(to + lane, piece->q[0][lane], policy);
                    copy16(to + 32 + lane, piece->q[1][lane], policy);
                    copy8((uint2 *)(to + 64) + lane, piece->scale[lane / 4]);
                }
        }
        template <int NT>
        __device__ __forceinline__ void multiply(float acc[MT][NT][4], const uint4 *ring, const uint4 x[CHUNKS][NT]) const
        {
#pragma unroll
            for (int p = 0; p < PIECES; p++)
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    const uint4 *const at = ring + (p * MT + i) * PIECE, upper = at[lane], lower = at[32 + lane];
                    const uint2 scales = ((const uint2 *)(at + 64))[lane];
                    const float2 s = unpack2<__half>(scales.x), s8 = unpack2<__half>(scales.y);
                    add_block<NT>(acc[i], upper.x, upper.y, lower.x, lower.y, s.x, s8.x, x[2 * p]);
                    add_block<NT>(acc[i], upper.z, upper.w, lower.z, lower.w, s.y, s8.y, x[2 * p + 1]);
                }
        }
        __device__ __forceinline__ void go_on()
        {
#pragma unroll
            for (int i = 0; i < MT; i++) from[i] += stride;
        }

    private:
        /* 8 values of row g (a) and of row g + 8 (b), and the scales of their blocks. */
        template <int NT>
        static __device__ __forceinline__ void add_block(float acc[NT][4], uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1,
                                                         float scale_a, float scale_b, const uint4 x[NT])
        {
            const uint4 wide_a = widen8<T>(a0, a1), wide_b = widen8<T>(b0, b1);
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float sum[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
                mma_chunk<T>(sum, wide_a, wide_b, x[n]);
#pragma unroll
                for (int e = 0; e < 4; e++) acc[n][e] = fmaf(e < 2 ? scale_a : scale_b, sum[e], acc[n][e]);
            }
        }
    };
};

/* ----------------------------------------------------------------------------------- FMA --- */

enum { Q8_FMA_WARPS = 4, Q8_FMA_ROWS = 8 };

/* x [ROWS] rows times row m of w: a lane takes 8 values of either block of every 8th piece. */
template <typename T>
static __device__ __forceinline__ void add_row(float acc[Q8_FMA_ROWS], const q8_piece *w, const q8_shape &s, int m,
                                               const T *x, int ld_x, int n_row)
{
    const int lane = (int)threadIdx.x % 32, r = s.lane_row(m);
    for (int k = lane / 4 * Q8_PIECE + lane % 4 * 8; k < s.n_in; k += 8 * Q8_PIECE) {
#pragma unroll
        for (int b = 0; b < 2; b++) {
            const int kb = k + b * SPEC_Q8_BLOCK;
            if (kb >= s.n_in) break;
            const q8_piece *p = w + s.piece(m, kb);
            const int8_t *q = q8_values(p, r, kb);
            const float scale = q8_scale_value(p, r, kb);
#pragma unroll
            for (int row = 0; row < Q8_FMA_ROWS; row++) {
                if (row >= n_row) break;
                float sum = 0.0f;
#pragma unroll
                for (int i = 0; i < 8; i++) sum = fmaf((float)q[i], to_f32(x[(size_t)row * ld_x + kb + i]), sum);
                acc[row] = fmaf(scale, sum, acc[row]);
            }
        }
    }
}

template <typename T>
static __global__ void __launch_bounds__(Q8_FMA_WARPS * 32)
linear_q8_fma_kernel(const spec_step_block *step, const q8_piece *__restrict__ w, q8_shape shape,
                     const T *__restrict__ x, int ld_x, linear_out o)
{
    grid_begin();
    const int row0 = (int)blockIdx.y * Q8_FMA_ROWS, n_row = step->n_row_run - row0;
    const int m = (int)blockIdx.x * Q8_FMA_WARPS + (int)threadIdx.x / 32;
    if (n_row <= 0 || m >= (o.glu ? o.n_out / 2 : o.n_out)) return;
    float acc[Q8_FMA_ROWS] = {}, up[Q8_FMA_ROWS] = {};
    add_row(acc, w, shape, m, x + (size_t)row0 * ld_x, ld_x, n_row);
    if (o.glu) add_row(up, w, shape, m + o.n_out / 2, x + (size_t)row0 * ld_x, ld_x, n_row);
#pragma unroll
    for (int r = 0; r < Q8_FMA_ROWS; r++) {
        if (r >= n_row) break;
        const float sum = warp_sum(acc[r]), sum_up = warp_sum(up[r]);
        const float factor = norm_factor(o.norm, row0 + r);
        if (threadIdx.x % 32 == 0) linear_store(o, row0 + r, m, factor, sum, sum_up);
    }
}

template <typename T> static spec_status launch_fma(spec_queue *q, const cuda_linear_args *a, int rows)
{
    const int n_m = a->glu ? a->n_out / 2 : a->n_out;
    const dim3 grid((unsigned)cuda_div_up(n_m, Q8_FMA_WARPS), (unsigned)cuda_div_up(rows, Q8_FMA_ROWS));
    return cuda_launch(q, "linear q8", linear_q8_fma_kernel<T>, grid, dim3(Q8_FMA_WARPS * 32), 0, 1, q->d_step,
                       (const q8_piece *)a->w->data, q8_shape_of(a->w), (const T *)a->x.data, a->x.ld,
                       linear_out_of(a));
}

/* ------------------------------------------------------------------------------- prefill --- */

/* out [n_out][ld], 8 values a thread at a time; columns from n_in on are zero */
template <typename T>
static __global__ void plain_kernel(eight<T> *out, int ld, const q8_piece *__restrict__ w, q8_shape s)
{
    grid_begin();
    const uint32_t per_row = (uint32_t)ld / 8, n = (uint32_t)s.n_out * per_row; /* divisions of 64 bits would take longer than the memory */
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
        const int row = (int)(i / per_row), k = (int)(i % per_row) * 8, r = s.lane_row(row);
        const q8_piece *p = w + s.piece(row, k < s.n_in ? k : 0);
        const int8_t *q = q8_values(p, r, k);
        const float scale = k < s.n_in ? q8_scale_value(p, r, k) : 0.0f;
        eight<T> e;
#pragma unroll
        for (int j = 0; j < 8; j++) e.v[j] = from_f32<T>(scale * (float)q[j]);
        out[i] = e;
    }
}

static bool unpack(spec_queue *q, const cuda_linear_args *a, spec_weight *plain, spec_status *status)
{
    if (!speci_cuda_unpacked(q, a, plain)) return false;
    *status = cuda_by_dtype(plain->dtype, [&](auto t) {
        using T = decltype(t);
        return cuda_launch(q, "weight q8 to plain", plain_kernel<T>, dim3(8 * (unsigned)q->dev->n_sm), dim3(256), 0, 1,
                           (eight<T> *)plain->data, plain->ld, (const q8_piece *)a->w->data, q8_shape_of(a->w));
    });
    return true;
}

/* ------------------------------------------------------------------------------- launcher --- */

/* Of Q8_0 blocks of 16 outputs (cuda_linear_few.cuh) are as fast where each multiprocessor has few weights; up to 32 rows where it
 * has twice as many, but with glu (measured on an H200). */
static bool q8_is_many(const spec_queue *q, const spec_linear_args *a)
{
    const int64_t each = (int64_t)cuda_div_up(a->n_out, 16 * q->dev->n_sm) * a->n_in; /* a sixteenth of a multiprocessor's weights */
    if (q->shape.rows > LINEAR_FEW) return each > 10000;
    return q->shape.rows > LINEAR_NEVER_MANY && each > (a->glu ? 10000 : 20000);
}

static spec_status linear_q8(spec_queue *q, const cuda_linear_args *a, const linear_out &o, bool aligned, cuda_pass *pass)
{
    return cuda_by_dtype(a->w->dtype, [&](auto t) {
        using T = decltype(t);
        if constexpr (sizeof(T) == 4 || SPEC_CUDA_LINEAR_FMA) return launch_fma<T>(q, a, q->shape.rows);
        else if (speci_cuda_is_many(q, a)) return speci_cuda_linear_many_q8(q, a, o, aligned, pass);
        else return linear_few<few_q8<T>>(q, a, o, aligned, pass);
    });
}

static spec_status linear_q8_conv(spec_queue *q, const cuda_linear_args *a, const linear_extra<LINEAR_CONV> &extra, cuda_pass *pass)
{
    return a->x.dtype == SPEC_DTYPE_BF16 ? linear_few_conv<few_q8<__nv_bfloat16>>(q, a, extra, pass)
                                         : linear_few_conv<few_q8<__half>>(q, a, extra, pass);
}

const linear_format speci_cuda_linear_q8 = { linear_q8, linear_q8_conv, q8_is_many, unpack, speci_cuda_unpacked_floats };
