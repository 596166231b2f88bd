/* cuda_scan_ssd.cuh - what the kernels share that scan a prompt chunk by chunk: a chunk's decays, floats as two
 * bfloat16, copies. cuda_scan_prefill.cu tells what is computed. */
#ifndef SPEC_CUDA_SCAN_SSD_CUH
#define SPEC_CUDA_SCAN_SSD_CUH

#include "backends/cuda/linear/cuda_linear.cuh"
#include "backends/cuda/scan/cuda_scan.cuh"

enum { SSD_ROWS = 64 /* of a chunk */ };

/* Of a chunk's rows. */
struct ssd_table {
    float2 sigma[SSD_ROWS]; /* its high and low part, as a power of two */
    float dt[SSD_ROWS];
    float tile[SSD_ROWS];   /* dt e^(sigma_r - sigma), r the last of the row's 16 */
    float chunk[SSD_ROWS];  /* dt e^(sigma_L - sigma) */
};

static __device__ __forceinline__ float decay_between(float2 to, float2 from)
{
    return exp2_fast((to.x - from.x) + (to.y - from.y));
}

/* 16 bytes from global memory, or zeros. */
static __device__ __forceinline__ void copy_async(void *shared, const void *global, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"((uint32_t)__cvta_generic_to_shared(shared)),
                 "l"(global), "r"(there ? 16 : 0)
                 : "memory");
}

/* Two floats as N bfloat16 planes: plane[k] holds what the ones before left. */
template <int N> static __device__ __forceinline__ void split(uint32_t plane[N], float lo, float hi)
{
#pragma unroll
    for (int k = 0; k < N; k++) {
        const __nv_bfloat162 two = __floats2bfloat162_rn(lo, hi);
        memcpy(&plane[k], &two, 4);
        const float2 kept = unpack2<__nv_bfloat16>(plane[k]);
        lo = lo - kept.x, hi = hi - kept.y;
    }
}

/* Two neighbours in one access. */
template <typename E> static __device__ __forceinline__ float2 load_two(const E *p)
{
    if constexpr (sizeof(E) == 4) return *(const float2 *)p;
    else return unpack2<E>(*(const uint32_t *)p);
}
template <typename E> static __device__ __forceinline__ void store_two(E *p, float2 v)
{
    if constexpr (sizeof(E) == 4) *(float2 *)p = v;
    else *(uint32_t *)p = bits16(from_f32<E>(v.x)) | bits16(from_f32<E>(v.y)) << 16;
}

/* A chunk's table is made by one warp. dt of rows 2 lane and 2 lane + 1, as the projection left it: */
static __device__ __forceinline__ float2 load_dt(const spec_scan_args &a, int head, int first, int n)
{
    auto at = [&](int r) {
        return r < n ? load_any(a.dt.data, a.dt.dtype, (size_t)(first + r) * a.dt.ld + head) : 0.0f;
    };
    const int r = 2 * ((int)threadIdx.x % 32);
    return make_float2(at(r), at(r + 1));
}
static __device__ __forceinline__ void make_table(ssd_table &table, const spec_scan_args &a, int head, float2 dt_in,
                                                  int n)
{
    const int lane = (int)threadIdx.x % 32;
    const float bias = a.dt_bias ? a.dt_bias[head] : 0.0f;
    const double rate = (double)a.a[head] * 1.4426950408889634; /* 1 / ln 2 */
    const float dt[2] = { 2 * lane < n ? scan_dt(dt_in.x, bias, a.dt_min, a.dt_max) : 0.0f,
                          2 * lane + 1 < n ? scan_dt(dt_in.y, bias, a.dt_min, a.dt_max) : 0.0f };
    const double first = (double)dt[0] * rate, both = first + (double)dt[1] * rate;
    double sum = both; /* up to and with this lane's */
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const double v = __shfl_up_sync(0xffffffffu, sum, d);
        if (lane >= d) sum = sum + v;
    }
    const double last = __shfl_sync(0xffffffffu, sum, 31), tile = __shfl_sync(0xffffffffu, sum, lane | 7);
    double before = __shfl_up_sync(0xffffffffu, sum, 1);
    if (lane == 0) before = 0.0;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const double sigma = before + (k ? both : first);
        const int r = 2 * lane + k;
        const float high = (float)sigma;
        table.sigma[r] = make_float2(high, (float)(sigma - (double)high)), table.dt[r] = dt[k];
        table.tile[r] = exp2_fast((float)(tile - sigma)) * dt[k];
        table.chunk[r] = exp2_fast((float)(last - sigma)) * dt[k];
    }
}

/* The operation, checked by cuda_scan_prefill.cu, where cuda_scan_wgmma.cu has a kernel for it; false: nothing was
 * launched. */
bool speci_cuda_scan_wgmma(spec_queue *q, const spec_scan_args *a, spec_status *status);

#endif
