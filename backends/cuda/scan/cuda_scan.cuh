/* cuda_scan.cuh - what the kernels of the scan share: the functions that make its bits, and the launchers of those
 * that have a file of their own. */
#ifndef SPEC_CUDA_SCAN_CUH
#define SPEC_CUDA_SCAN_CUH

#include "backends/cuda/cuda.cuh"

/* Of the chunked form: nodes per tree, entries of a recent-token buffer. */
enum { SCAN_CHUNKED_NODES = 512, SCAN_CHUNKED_RECENT = 1024 };

/* The functions that scan and replay share, in all forms. */
static __device__ __forceinline__ float scan_dt(float dt_in, float bias, float lo, float hi)
{
    return fminf(fmaxf(softplus(dt_in + bias), lo), hi);
}
static __device__ __forceinline__ float scan_decay(float dt, float a) { return exp_fast(dt * a); }
static __device__ __forceinline__ float scan_input(float dx, float b) { return dx * b; }
static __device__ __forceinline__ float scan_apply(float s, float decay, float input) { return fmaf(decay, s, input); }
static __device__ __forceinline__ float scan_update(float s, float decay, float dx, float b)
{
    return scan_apply(s, decay, scan_input(dx, b));
}

/* Chunked form: whether caches and recent-token buffers hold what the step says. */
static __device__ __forceinline__ bool scan_chunked_fits(const spec_scan_args &a, const spec_step_seq &s)
{
    const uint32_t room = (uint32_t)a.n_recent_max, nodes = (uint32_t)a.n_node, rows = (uint32_t)s.n_row;
    const uint32_t recent = (uint32_t)s.n_recent, replay = (uint32_t)s.n_replay, fed = (uint32_t)s.n_fed; /* < 0: too large */
    const bool each = (recent <= room) & (replay <= nodes) & (fed <= nodes) & (rows <= nodes) & ((uint32_t)s.n_advance <= rows);
    const bool first = (fed == 0) | ((replay == 0) & (s.n_advance == 0) & (recent < 2 * SPEC_CHUNK));
    return each & first & (fed + rows <= nodes) & (recent + replay + s.n_advance <= room) &
           (s.n_past >= s.n_recent + s.n_replay);
}

/* Entry 0 of a half of the caches; N: as wide as what addresses are made of. The tree writes half s.parity, and reads
 * the path of the tree before from the other. */
template <typename N> static __device__ __forceinline__ N scan_half(const spec_step_seq &s, int parity, int n_node)
{
    return ((N)s.slot * 2 + (N)parity) * (N)n_node;
}

/* 16 bytes from memory to shared memory, past L1 and not waited for. */
static __device__ __forceinline__ void scan_copy16(uint32_t shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(global) : "memory");
}
/* Until the asynchronous copies of this thread are there. */
static __device__ __forceinline__ void scan_copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* The limit is set to what the device has, always the same value: queues on other threads may launch meanwhile. */
template <typename Kernel> static inline void scan_allow_shared(const spec_device *dev, Kernel *kernel, size_t bytes)
{
    if (bytes > (size_t)(46 << 10))
        (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)dev->shared_most);
}

/* What the kernels for Mamba-1 have in common: a decay per state, heads of one channel, which share B and C, dt and
 * gate in float32. */
static inline bool scan_has_states(const spec_scan_args *a)
{
    return a->a_per_state && a->head_dim == 1 && a->x_rep == 1 && a->b_rep == a->n_head && a->c_rep == a->n_head &&
           a->x.dtype == a->dtype && a->b.dtype == a->dtype && a->c.dtype == a->dtype && a->dt.dtype == SPEC_DTYPE_F32 &&
           (!a->z.data || a->z.dtype == SPEC_DTYPE_F32) && (a->y.dtype == SPEC_DTYPE_F32 || a->y.dtype == a->dtype) &&
           cuda_aligned(a->state, 8) && cuda_aligned(a->a, 8);
}

/* The recurrent form, prefill too, of any types and sizes. */
spec_status speci_cuda_scan_recurrent(spec_queue *q, const spec_scan_args *a);
/* Decode passes with a->chunk: of any types and sizes; and by matrix products, where cuda_scan_chunked_matrix.cu has a
 * kernel for it; false: there is none, and nothing was launched. Their bits differ: types and sizes alone choose. */
spec_status speci_cuda_scan_chunked(spec_queue *q, const spec_scan_args *a);
bool speci_cuda_scan_chunked_matrix(spec_queue *q, const spec_scan_args *a, spec_status *status);
/* With the deferred norm behind it, where that kernel does both: norm->y and norm->squares are written, a->y is not;
 * likewise, and the same bits. */
bool speci_cuda_scan_norm(spec_queue *q, const spec_scan_args *a, const cuda_norm_args *norm, cuda_pass *pass, spec_status *status);
/* The recurrent form of decode passes where cuda_scan_state.cu (what Mamba-1 has) has a kernel for it; likewise, and
 * the same bits as the general one. */
bool speci_cuda_scan_state(spec_queue *q, const spec_scan_args *a, cuda_pass *pass, spec_status *status);
/* With the product in front that makes dt, where the kernel of cuda_scan_state.cu does both; likewise. The same bits,
 * and dt is left where the product leaves it. */
bool speci_cuda_scan_dt(spec_queue *q, const cuda_linear_args *dt, const spec_scan_args *a, cuda_pass *pass, spec_status *status);
/* Prefill by matrix products, where cuda_scan_prefill.cu has a kernel for it, and of what Mamba-1 has
 * (cuda_scan_prefill_state.cu); likewise. */
bool speci_cuda_scan_prefill(spec_queue *q, const spec_scan_args *a, spec_status *status);
bool speci_cuda_scan_prefill_state(spec_queue *q, const spec_scan_args *a, spec_status *status);

#endif
