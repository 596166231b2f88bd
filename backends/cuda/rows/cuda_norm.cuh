/* cuda_norm.cuh - deferred norms, for the kernels that make a norm's input and so can make its output, and for those that take
 * the row's factor in.
 *
 * Of RMS norms in decode passes, n_group 1, without bias, a gate in front if any: y = v * weight, without the row's factor
 * rsqrt(mean(v^2) + eps), which is left to the products that read y: W y times the factor stands for W of the norm. So whoever
 * makes v can make y and the squares too, and the norm is no operation of its own any more. y may be beyond float16. Which norms
 * are deferred is decided when a plan is prepared (cuda_prepare.cu).
 *
 * Everywhere the same sums: v^2 of CUDA_SQUARES columns by a tree that adds neighbours first (columns 2i and 2i + 1, then
 * pairs of pairs, ...); of a row's squares 32 chains, chain c adding number c, c + 32, ... in ascending order, and of the
 * chains by such a tree. */
#ifndef SPEC_CUDA_NORM_CUH
#define SPEC_CUDA_NORM_CUH

#include "backends/cuda/cuda.cuh"

enum { NORM_CHAINS = 32 /* a lane has one */ };

/* What a kernel that makes x stores for the norm; weight NULL: there is none. */
struct norm_out {
    const float *weight;
    void *y; /* of the type of the kernel's weights or x, 16 bit */
    float *squares; /* [rows][n_square] */
    int ld_y, n_square;
    uint16_t *tiles; /* y once more (cuda_linear.cuh), or NULL */
};

static inline norm_out norm_out_of(const cuda_norm_args *a)
{
    norm_out o;
    o.weight = a->weight, o.y = a->y.data, o.ld_y = a->y.ld;
    o.squares = a->squares, o.n_square = a->dim / CUDA_SQUARES, o.tiles = NULL;
    return o;
}

/* Is `norm` a deferred one of what lies at `x`, with y of `type`? */
static inline bool norm_follows(const cuda_norm_args *norm, const spec_view *x, int dim, spec_dtype type)
{
    return norm->squares && !norm->gate.data && norm->x.data == x->data && norm->x.ld == x->ld && norm->dim == dim &&
           norm->y.dtype == type;
}

/* Column m of row r, all lanes of a warp, lane l the column m of l % CUDA_SQUARES; rows and columns that are not there add
 * nothing. */
template <typename T>
static __device__ __forceinline__ void norm_put(const norm_out &o, int r, int m, float v, float weight, bool there)
{
    float square = v * v;
#pragma unroll
    for (int d = 1; d < CUDA_SQUARES; d *= 2) square = square + __shfl_xor_sync(0xffffffffu, square, d);
    if (!there) return;
    ((T *)o.y)[(size_t)r * o.ld_y + m] = from_f32<T>(v * weight);
    if (m % CUDA_SQUARES == 0) o.squares[(size_t)r * o.n_square + m / CUDA_SQUARES] = square;
}

/* 1 / sqrt(share square + eps), at most 2^-22 off. */
static __device__ __forceinline__ float norm_scale(float square, float share, float eps)
{
    float scale;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(scale) : "f"(fmaf(square, share, eps)));
    return scale;
}

/* What a product takes; squares NULL: nothing. */
struct norm_in {
    const float *squares;
    int n_square;
    float share, eps; /* share: 1 / columns */
};

static inline norm_in norm_in_of(const cuda_linear_args *a)
{
    norm_in in;
    in.squares = a->squares, in.n_square = a->n_in / CUDA_SQUARES, in.share = 1.0f / (float)a->n_in, in.eps = a->eps;
    return in;
}

/* Of rows r and r + `apart`, ROWS of them, the last that there is in place of those beyond; all lanes of a warp, a chain each.
 * Loads of a turn do not wait for each other. */
template <int ROWS>
static __device__ __forceinline__ void norm_factor(float factor[ROWS], const norm_in &in, int r, int apart, int last)
{
    constexpr int LOADS = 4; /* 2048 columns */
    const int lane = (int)threadIdx.x % NORM_CHAINS;
    const float *at[ROWS];
    float sum[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; i++) at[i] = in.squares + (min(r + i * apart, last) * in.n_square + lane), sum[i] = 0.0f;
#pragma unroll 1
    for (int left = in.n_square - lane; left > 0; left -= LOADS * NORM_CHAINS) {
        float v[ROWS][LOADS];
#pragma unroll
        for (int i = 0; i < ROWS; i++)
#pragma unroll
            for (int k = 0; k < LOADS; k++) v[i][k] = k * NORM_CHAINS < left ? at[i][k * NORM_CHAINS] : 0.0f;
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
#pragma unroll
            for (int k = 0; k < LOADS; k++) sum[i] = sum[i] + v[i][k];
            at[i] += LOADS * NORM_CHAINS;
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
#pragma unroll
        for (int d = 1; d < NORM_CHAINS; d *= 2) sum[i] = sum[i] + __shfl_xor_sync(0xffffffffu, sum[i], d);
        factor[i] = norm_scale(sum[i], in.share, in.eps);
    }
}
/* 1 where no norm is deferred. */
static __device__ __forceinline__ float norm_factor(const norm_in &in, int r)
{
    float factor = 1.0f;
    if (in.squares) norm_factor<1>(&factor, in, r, 0, r);
    return factor;
}

/* Of rows [row0, row0 + n) to shared memory, ROWS at a time by a warp; the caller's next barrier is in front of their use. */
template <int WARPS, int ROWS>
static __device__ __forceinline__ void norm_factors(const norm_in &in, float *factor, int row0, int n)
{
#pragma unroll 1
    for (int r = (int)threadIdx.x / 32; r < n; r += ROWS * WARPS) {
        float f[ROWS];
        norm_factor<ROWS>(f, in, row0 + r, WARPS, row0 + n - 1);
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (threadIdx.x % 32 == 0 && r + i * WARPS < n) factor[r + i * WARPS] = f[i];
    }
}

#endif
