/* cuda_norm.cuh - deferred norms (spec_norm_args.squares), for the kernels that make a norm's input and so can make its
 * output, and for those that take the row's factor in.
 *
 * Everywhere the same sums: v^2 of SPEC_SQUARES columns by a tree that adds neighbours first (columns 2i and 2i + 1, then
 * pairs of pairs, ...); of a row's squares 32 chains, chain c adding number c, c + 32, ... in ascending order, and of the
 * chains by such a tree. */
#ifndef SPEC_CUDA_NORM_CUH
#define SPEC_CUDA_NORM_CUH

#include "cuda.cuh"

enum { NORM_CHAINS = 32 /* a lane has one */ };

/* What a kernel that makes x stores for the norm; weight NULL: there is none. */
struct norm_out {
    const float *weight;
    void *y; /* of the type of the kernel's weights or x, 16 bit */
    float *squares; /* [rows][n_square] */
    int ld_y, n_square;
};

static inline norm_out norm_out_of(const spec_norm_args *a)
{
    norm_out o;
    o.weight = a->weight, o.y = a->y.data, o.ld_y = a->y.ld;
    o.squares = a->squares, o.n_square = a->dim / SPEC_SQUARES;
    return o;
}

/* Is `norm` a deferred one of what lies at `x`, with y of `type`? */
static inline bool norm_follows(const spec_norm_args *norm, const spec_view *x, int dim, spec_dtype type)
{
    return norm->squares && !norm->gate.data && norm->x.data == x->data && norm->x.ld == x->ld && norm->dim == dim &&
           norm->y.dtype == type;
}

/* Column m of row r, all lanes of a warp, lane l the column m of l % SPEC_SQUARES; rows and columns that are not there add
 * nothing. */
template <typename T>
static __device__ __forceinline__ void norm_put(const norm_out &o, int r, int m, float v, float weight, bool there)
{
    float square = v * v;
#pragma unroll
    for (int d = 1; d < SPEC_SQUARES; d *= 2) square = square + __shfl_xor_sync(0xffffffffu, square, d);
    if (!there) return;
    ((T *)o.y)[(size_t)r * o.ld_y + m] = from_f32<T>(v * weight);
    if (m % SPEC_SQUARES == 0) o.squares[(size_t)r * o.n_square + m / SPEC_SQUARES] = square;
}

/* What a product takes; squares NULL: nothing. */
struct norm_in {
    const float *squares;
    int n_square;
    float share, eps; /* share: 1 / columns */
};

static inline norm_in norm_in_of(const spec_linear_args *a)
{
    norm_in in;
    in.squares = a->squares, in.n_square = a->n_in / SPEC_SQUARES, in.share = 1.0f / (float)a->n_in, in.eps = a->eps;
    return in;
}

/* Of row r; all lanes of a warp, a chain each. Loads of a turn do not wait for each other. */
static __device__ __forceinline__ float norm_factor(const norm_in &in, int r)
{
    constexpr int LOADS = 5; /* 2560 columns */
    const int lane = (int)threadIdx.x % NORM_CHAINS;
    const float *at = in.squares + (r * in.n_square + lane);
    float sum = 0.0f;
#pragma unroll 1
    for (int left = in.n_square - lane; left > 0; left -= LOADS * NORM_CHAINS, at += LOADS * NORM_CHAINS) {
        float v[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++) v[k] = k * NORM_CHAINS < left ? at[k * NORM_CHAINS] : 0.0f;
#pragma unroll
        for (int k = 0; k < LOADS; k++) sum = sum + v[k];
    }
#pragma unroll
    for (int d = 1; d < NORM_CHAINS; d *= 2) sum = sum + __shfl_xor_sync(0xffffffffu, sum, d);
    float factor;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(factor) : "f"(fmaf(sum, in.share, in.eps)));
    return factor;
}

/* Of rows [row0, row0 + n) to shared memory, a warp a row; the caller's next barrier is in front of their use. */
template <int WARPS> static __device__ __forceinline__ void norm_factors(const norm_in &in, float *factor, int row0, int n)
{
#pragma unroll 1
    for (int r = (int)threadIdx.x / 32; r < n; r += WARPS) {
        const float f = norm_factor(in, row0 + r);
        if (threadIdx.x % 32 == 0) factor[r] = f;
    }
}

#endif
