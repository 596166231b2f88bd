/* cuda_rank.cuh - the order of a row's entries as integers: the largest entry is a maximum, which does not depend on the
 * order in which it is found. For operations over rows, and for the product that makes them. */
#ifndef SPEC_CUDA_RANK_CUH
#define SPEC_CUDA_RANK_CUH

#include "backends/cuda/cuda.cuh"

/* Larger values have larger keys; NaN has none (0). */
static __device__ __forceinline__ uint32_t value_key(float v)
{
    if (isnan(v)) return 0u;
    v = v + 0.0f; /* -0 is 0 */
    const uint32_t b = __float_as_uint(v);
    return b & 0x80000000u ? ~b : b | 0x80000000u;
}
static __device__ __forceinline__ float key_value(uint32_t key)
{
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}
/* Ranks entries by (value descending, id ascending): the first has the largest rank. All ranks differ; 0 is no
 * entry. */
static __device__ __forceinline__ unsigned long long entry_rank(float v, int id)
{
    const uint32_t key = value_key(v);
    return key ? (unsigned long long)key << 32 | (0xffffffffu - (uint32_t)id) : 0ull;
}
static __device__ __forceinline__ int rank_id(unsigned long long rank) { return (int)(0xffffffffu - (uint32_t)rank); }
static __device__ __forceinline__ float rank_value(unsigned long long rank)
{
    return key_value((uint32_t)(rank >> 32));
}

static __device__ __forceinline__ void better(unsigned long long *best, float value, int id)
{
    const unsigned long long r = entry_rank(value, id);
    *best = r > *best ? r : *best;
}

/* The largest of the lanes whose numbers differ in the bits MOST, MOST / 2, ... LEAST; whole warps only. */
template <int MOST, int LEAST> static __device__ __forceinline__ unsigned long long lanes_best(unsigned long long v)
{
#pragma unroll
    for (int d = MOST; d >= LEAST; d /= 2) {
        const unsigned long long o = __shfl_xor_sync(0xffffffffu, v, d);
        v = o > v ? o : v;
    }
    return v;
}

/* The largest of a warp's. */
static __device__ __forceinline__ unsigned long long warp_best(unsigned long long v)
{
    const unsigned high = __reduce_max_sync(0xffffffffu, (unsigned)(v >> 32));
    const unsigned low = __reduce_max_sync(0xffffffffu, (unsigned)(v >> 32) == high ? (unsigned)v : 0u);
    return (unsigned long long)high << 32 | low;
}

#endif
