/* cuda_attention.cuh - what attention's files share: the tiles' launcher, made for each type in a file of its own, since
 * they take long to compile, and the running softmax of tiles and of the merge. */
#ifndef SPEC_CUDA_ATTENTION_CUH
#define SPEC_CUDA_ATTENTION_CUH

#include "cuda.cuh"

/* Attention with K and V of type T; splits > 1: parts of rows go to the queue's scratch, to be merged. vec: rows of K
 * and V may be read 16 bytes at a time. */
template <typename T>
spec_status speci_cuda_attention_tiles(spec_queue *q, const spec_attention_args *a, bool vec, int splits);

/* Prefill on the matrix instruction (cuda_attention_prefill.cu): whether it takes this case, and the launch. */
bool speci_cuda_attention_prefill_can(const spec_queue *q, const spec_attention_args *a);
spec_status speci_cuda_attention_prefill(spec_queue *q, const spec_attention_args *a);

/* A running softmax of one query, for one dimension. */
struct att_merged {
    float m, l, o;
    __device__ __forceinline__ void clear() { m = -CUDART_INF_F, l = 0.0f, o = 0.0f; }
    __device__ __forceinline__ void add(float m1, float l1, float o1)
    {
        if (m1 == -CUDART_INF_F && l1 == 0.0f) return; /* nothing was attended there */
        if (m == -CUDART_INF_F && l == 0.0f) {
            m = m1, l = l1, o = o1;
            return;
        }
        const float top = fmaxf(m, m1), a = exp_fast(m - top), b = exp_fast(m1 - top);
        l = fmaf(l, a, l1 * b);
        o = fmaf(o, a, o1 * b);
        m = top;
    }
};

#endif
