/* cuda_attention.cuh - what attention's files share: their launchers, the running softmax of kernels and of the merge, and small
 * pieces of the kernels on the matrix instruction. */
#ifndef SPEC_CUDA_ATTENTION_CUH
#define SPEC_CUDA_ATTENTION_CUH

#include "backends/cuda/cuda.cuh"

enum { ATT_CHUNK = 256 /* positions that cuda_attention_matrix.cu sums at once */ };

/* Positions of a part of a row. */
static inline int attention_part(const spec_attention_args *a)
{
    return a->kv.dtype == SPEC_DTYPE_F32 ? (int)CUDA_SPLIT : (int)ATT_CHUNK;
}

/* Attention with K and V in float32, and in 16-bit types. splits > 1: blocks may share a row, by parts of it in the
 * queue's scratch, [row][n_head][part][d weighted sums, maximum, sum of exponentials], which merge adds up: a part is a
 * split (float32) or a chunk. */
spec_status speci_cuda_attention_f32(spec_queue *q, const spec_attention_args *a, int splits);
spec_status speci_cuda_attention_matrix(spec_queue *q, const spec_attention_args *a, int splits, cuda_pass *pass);
spec_status speci_cuda_attention_merge(spec_queue *q, const spec_attention_args *a, int parts);

/* Prefill on the matrix instruction (cuda_attention_prefill.cu): whether it takes this case, and the launch. */
bool speci_cuda_attention_prefill_can(const spec_queue *q, const spec_attention_args *a);
spec_status speci_cuda_attention_prefill(spec_queue *q, const spec_attention_args *a);

/* The cap of scores, for scores in units of log 2; and a score under one: the same function wherever scores are made, so that it has
 * the same bits in the tree as in the prefix. */
struct att_cap {
    float most, inverse; /* 0: there is none */
    explicit __device__ __forceinline__ att_cap(const spec_attention_args &a)
        : most(a.cap * CUDART_L2E_F), inverse(a.cap > 0.0f ? 1.0f / (a.cap * CUDART_L2E_F) : 0.0f)
    {
    }
    __device__ __forceinline__ float of(float score) const { return soft_cap(score, most, inverse); }
};

/* A running softmax of one query, for N of its dimensions; m in units of log 2. */
template <int N> struct att_sum {
    float m, l, o[N];
    __device__ __forceinline__ void clear()
    {
        m = -CUDART_INF_F, l = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) o[i] = 0.0f;
    }
    __device__ __forceinline__ void add(float m1, float l1, const float *o1)
    {
        if (m1 == -CUDART_INF_F && l1 == 0.0f) return; /* nothing was attended there */
        const float top = fmaxf(m, m1), a = exp2_fast(m - top), b = exp2_fast(m1 - top);
        l = fmaf(l, a, l1 * b);
#pragma unroll
        for (int i = 0; i < N; i++) o[i] = fmaf(o[i], a, o1[i] * b);
        m = top;
    }
    __device__ __forceinline__ float at(int i) const { return __fdividef(o[i], l); }
};

/* Over the four lanes that share a row of a product. */
static __device__ __forceinline__ float quad_max(float v)
{
    v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 1));
    return fmaxf(v, __shfl_xor_sync(0xffffffffu, v, 2));
}

#endif
