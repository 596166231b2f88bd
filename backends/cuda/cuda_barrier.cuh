/* cuda_barrier.cuh - barriers in shared memory (mbarrier): a phase ends when all have arrived, and all bytes that it expects. */
#ifndef SPEC_CUDA_BARRIER_CUH
#define SPEC_CUDA_BARRIER_CUH

#include "backends/cuda/cuda.cuh"

static __device__ __forceinline__ void barrier_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"((uint32_t)__cvta_generic_to_shared(b)), "r"(count)
                 : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint64_t *b)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0]; }" ::"r"((uint32_t)__cvta_generic_to_shared(b))
                 : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint64_t *b, int phase)
{
    asm volatile("{ .reg .pred done;"
                 " again: mbarrier.try_wait.parity.shared.b64 done, [%0], %1; @!done bra again; }" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(b)),
                 "r"(phase)
                 : "memory");
}
/* Arrives, and the phase ends when `bytes` have come as well. */
static __device__ __forceinline__ void barrier_expect(uint64_t *b, int bytes)
{
    asm volatile("{ .reg .b64 s; mbarrier.arrive.expect_tx.shared.b64 s, [%0], %1; }" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(b)),
                 "r"(bytes)
                 : "memory");
}

#endif
