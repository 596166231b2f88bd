/* cuda_cluster.cuh - the blocks of a cluster: what they send each other, and how many clusters are at home on a device.
 *
 * Where there are no clusters a block is one of its own, and nothing is sent. */
#ifndef SPEC_CUDA_CLUSTER_CUH
#define SPEC_CUDA_CLUSTER_CUH

#include "backends/cuda/cuda_barrier.cuh"

#if SPEC_CUDA_CLUSTERS

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

/* Of a launch in clusters along x: which block of its cluster, of how many, and which cluster. Without: 0, 1 and blockIdx.x. */
static __device__ __forceinline__ int cluster_rank()
{
    uint32_t r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return (int)r;
}
static __device__ __forceinline__ int cluster_size()
{
    uint32_t n;
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(n));
    return (int)n;
}
static __device__ __forceinline__ int cluster_id()
{
    uint32_t i;
    asm("mov.u32 %0, %%clusterid.x;" : "=r"(i));
    return (int)i;
}
/* Until all threads of the cluster that have not ended are here; what they wrote before is seen after it. */
static __device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

#else

static __device__ __forceinline__ int cluster_rank() { return 0; }
static __device__ __forceinline__ int cluster_size() { return 1; }
static __device__ __forceinline__ int cluster_id() { return (int)blockIdx.x; }
static __device__ __forceinline__ void cluster_sync() { __syncthreads(); }

#endif

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
