/* cuda_wgmma.cuh - the matrix instruction of a warpgroup: its groups, for whoever uses it, and the product of a chunk of weights
 * in registers.
 *
 * There x is the operand from shared memory, in slabs of ROWS rows: of each chunk of 32 k [4 words][ROWS] units of 16 bytes,
 * where word j of a row is its words j, j + 4, j + 8, j + 12. So it has the order of k that a lane's 16 bytes of a row of
 * weights have. Where there is no wgmma (it is of compute capability 9.0 alone) mma.sync reads the same slabs, for the same
 * bits. */
#ifndef SPEC_CUDA_WGMMA_CUH
#define SPEC_CUDA_WGMMA_CUH

#include <type_traits>

#include "backends/cuda/linear/cuda_linear.cuh"

/* What this thread wrote to shared memory, wgmma sees. */
static __device__ __forceinline__ void shared_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* All groups but the last `LEFT` are done; d, an accumulator of theirs, is not looked at before. */
template <int LEFT, int N> static __device__ __forceinline__ void wgmma_wait(float (&d)[N])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}

/* Operands: the accumulators d[i] to d[i + 7], io "+f": added to, "=&f": set; the names of 32. */
#define WGMMA_EIGHT_OF(io, i)                                                                                          \
    io(d[i]), io(d[i + 1]), io(d[i + 2]), io(d[i + 3]), io(d[i + 4]), io(d[i + 5]), io(d[i + 6]), io(d[i + 7])
#define WGMMA_EIGHT(i) WGMMA_EIGHT_OF("+f", i)
#define WGMMA_32                                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"   \
    "%30,%31"

/* d[64][ROWS] += A[64][16] B[16][ROWS], the address of B in units; `add` "0": d = A B. */
#define WGMMA64(type, io, add)                                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                          \
                 " {" WGMMA_32 "}, {%32,%33,%34,%35}, %36, " add ", 1, 1, 0;"                                          \
                 : WGMMA_EIGHT_OF(io, 0), WGMMA_EIGHT_OF(io, 8), WGMMA_EIGHT_OF(io, 16), WGMMA_EIGHT_OF(io, 24)        \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b))
#define WGMMA32(type, io, add)                                                                                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                          \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, " add ", 1, 1, 0;" \
                 : WGMMA_EIGHT_OF(io, 0), WGMMA_EIGHT_OF(io, 8)                                                        \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b))
template <typename T, int ROWS, bool FRESH>
static __device__ __forceinline__ void wgmma(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b)
{
    static_assert(ROWS == 64 || ROWS == 32, "");
    constexpr bool half = std::is_same_v<T, __half>;
    if constexpr (FRESH && ROWS == 64 && half) WGMMA64("f16", "=&f", "0");
    else if constexpr (FRESH && ROWS == 64) WGMMA64("bf16", "=&f", "0");
    else if constexpr (FRESH && half) WGMMA32("f16", "=&f", "0");
    else if constexpr (FRESH) WGMMA32("bf16", "=&f", "0");
    else if constexpr (ROWS == 64 && half) WGMMA64("f16", "+f", "1");
    else if constexpr (ROWS == 64) WGMMA64("bf16", "+f", "1");
    else if constexpr (half) WGMMA32("f16", "+f", "1");
    else WGMMA32("bf16", "+f", "1");
}
#undef WGMMA64
#undef WGMMA32

/* A chunk of K by a warp's 16 outputs and N rows, of N / ROWS slabs or the first of one; w0, w1: what is row g and row g + 8 to the
 * instruction. FRESH: acc becomes the product, whatever it was. */
template <typename T, int N, int ROWS, bool FRESH = false>
static __device__ __forceinline__ void wgmma_chunk(float acc[N / 2], const uint4 &w0, const uint4 &w1, const uint4 *x)
{
    /* Units between core matrices: along K, then along rows. The address has the block of the cluster in front. */
    constexpr uint64_t strides = (uint64_t)ROWS << 16 | (uint64_t)8 << 32;
    constexpr int UNITS = 2 * 4 * ROWS, AT_ONCE = N < ROWS ? N : ROWS; /* of a slab; rows */
    const uint64_t b = strides | ((uint32_t)__cvta_generic_to_shared(x) >> 4 & 0x3fff);
#pragma unroll
    for (int n = 0; n < N / AT_ONCE; n++) wgmma<T, AT_ONCE, FRESH>(acc + n * ROWS / 2, w0.x, w1.x, w0.y, w1.y, b + n * UNITS);
#pragma unroll
    for (int n = 0; n < N / AT_ONCE; n++)
        wgmma<T, AT_ONCE, false>(acc + n * ROWS / 2, w0.z, w1.z, w0.w, w1.w, b + n * UNITS + 2 * ROWS);
}

#else

static __device__ __forceinline__ void wgmma_begin() {}
static __device__ __forceinline__ void wgmma_end() {}
template <int LEFT, int N> static __device__ __forceinline__ void wgmma_wait(float (&)[N]) {}

template <typename T, int N, int ROWS, bool FRESH = false>
static __device__ __forceinline__ void wgmma_chunk(float acc[N / 2], const uint4 &w0, const uint4 &w1, const uint4 *x)
{
    constexpr int WORD = ROWS * 4, UNITS = 2 * 4 * ROWS;
#pragma unroll
    for (int e = 0; FRESH && e < N / 2; e++) acc[e] = 0.0f;
#pragma unroll
    for (int n = 0; n < N / 8; n++) { /* row g, k of t */
        const uint32_t *at = (const uint32_t *)(x + n * 8 / ROWS * UNITS + n * 8 % ROWS) + threadIdx.x % 32;
        mma_chunk<T>(acc + n * 4, w0, w1, make_uint4(at[0], at[WORD], at[2 * WORD], at[3 * WORD]));
    }
}

#endif

#endif
