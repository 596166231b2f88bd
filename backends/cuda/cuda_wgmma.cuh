/* cuda_wgmma.cuh - the matrix instruction of a warpgroup for products whose weights are in registers, and what the blocks of a
 * cluster send each other.
 *
 * x is the operand from shared memory, in slabs of ROWS rows: of each chunk of 32 k [4 words][ROWS] units of 16 bytes, where
 * word j of a row is its words j, j + 4, j + 8, j + 12. So it has the order of k that a lane's 16 bytes of a row of weights
 * have. Where there is no wgmma (it is of compute capability 9.0 alone) mma.sync reads the same slabs, for the same bits. */
#ifndef SPEC_CUDA_WGMMA_CUH
#define SPEC_CUDA_WGMMA_CUH

#include <type_traits>

#include "cuda_barrier.cuh"
#include "cuda_linear.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

static __device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

/* d[64][ROWS] += A[64][16] B[16][ROWS], the address of B in units. */
#define WGMMA64(type)                                                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type                                          \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,"    \
                 "%26,%27,%28,%29,%30,%31}, {%32,%33,%34,%35}, %36, 1, 1, 1, 0;"                                       \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),     \
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]),            \
                   "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]),          \
                   "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]),          \
                   "+f"(d[29]), "+f"(d[30]), "+f"(d[31])                                                               \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b))
#define WGMMA32(type)                                                                                                  \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type                                          \
                 " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}, {%16,%17,%18,%19}, %20, 1, 1, 1, 0;"       \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),     \
                   "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]) \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b))
template <typename T, int ROWS>
static __device__ __forceinline__ void wgmma(float *d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b)
{
    static_assert(ROWS == 32 || ROWS == 64, "");
    constexpr bool half = std::is_same_v<T, __half>;
    if constexpr (ROWS == 64 && half) WGMMA64("f16");
    else if constexpr (ROWS == 64) WGMMA64("bf16");
    else if constexpr (half) WGMMA32("f16");
    else WGMMA32("bf16");
}
#undef WGMMA64
#undef WGMMA32

/* A chunk of K by a warp's 16 outputs and N rows, N / ROWS slabs; w0, w1: what is row g and row g + 8 to the instruction. */
template <typename T, int N, int ROWS>
static __device__ __forceinline__ void wgmma_chunk(float acc[N / 2], const uint4 &w0, const uint4 &w1, const uint4 *x)
{
    /* Units between core matrices: along K, then along rows. The address has the block of the cluster in front. */
    constexpr uint64_t strides = (uint64_t)ROWS << 16 | (uint64_t)8 << 32;
    constexpr int UNITS = 2 * 4 * ROWS; /* of a slab */
    const uint64_t b = strides | ((uint32_t)__cvta_generic_to_shared(x) >> 4 & 0x3fff);
#pragma unroll
    for (int n = 0; n < N / ROWS; n++) wgmma<T, ROWS>(acc + n * ROWS / 2, w0.x, w1.x, w0.y, w1.y, b + n * UNITS);
#pragma unroll
    for (int n = 0; n < N / ROWS; n++) wgmma<T, ROWS>(acc + n * ROWS / 2, w0.z, w1.z, w0.w, w1.w, b + n * UNITS + 2 * ROWS);
}

#else

static __device__ __forceinline__ void wgmma_begin() {}
static __device__ __forceinline__ void wgmma_end() {}
static __device__ __forceinline__ void wgmma_wait() {}

template <typename T, int N, int ROWS>
static __device__ __forceinline__ void wgmma_chunk(float acc[N / 2], const uint4 &w0, const uint4 &w1, const uint4 *x)
{
    constexpr int WORD = ROWS * 4, UNITS = 2 * 4 * ROWS;
#pragma unroll
    for (int n = 0; n < N / 8; n++) { /* row g, k of t */
        const uint32_t *at = (const uint32_t *)(x + n * 8 / ROWS * UNITS + n * 8 % ROWS) + threadIdx.x % 32;
        mma_chunk<T>(acc + n * 4, w0, w1, make_uint4(at[0], at[WORD], at[2 * WORD], at[3 * WORD]));
    }
}

#endif

/* To a block of the cluster, into the same place; the phase of its barrier counts the bytes. */
static __device__ __forceinline__ void cluster_send(float4 *to, const float4 &v, uint64_t *b, int block)
{
    asm volatile("{ .reg .b32 to, b; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 b, %1, %2;"
                 " st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [to], {%3, %4, %5, %6}, [b]; }" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "r"((uint32_t)__cvta_generic_to_shared(b)), "r"(block), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w)
                 : "memory");
}
static __device__ __forceinline__ void cluster_send(float2 *to, const float2 &v, uint64_t *b, int block)
{
    asm volatile("{ .reg .b32 to, b; mapa.shared::cluster.u32 to, %0, %2; mapa.shared::cluster.u32 b, %1, %2;"
                 " st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [to], {%3, %4}, [b]; }" ::"r"(
                     (uint32_t)__cvta_generic_to_shared(to)),
                 "r"((uint32_t)__cvta_generic_to_shared(b)), "r"(block), "f"(v.x), "f"(v.y)
                 : "memory");
}

/* Clusters of so many blocks that the device holds at once; a cluster is at home in one group of multiprocessors. */
template <typename... P>
static inline int clusters_at_once(const spec_queue *q, void (*kernel)(P...), int blocks, int threads, int bytes)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = (unsigned)blocks, attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)blocks), config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = (size_t)bytes, config.attrs = &attribute, config.numAttrs = 1;
    int clusters = 0;
    if (cudaOccupancyMaxActiveClusters(&clusters, kernel, &config) != cudaSuccess) (void)cudaGetLastError();
    return clusters > 0 ? clusters : max(1, q->dev->n_sm / blocks);
}

#endif
