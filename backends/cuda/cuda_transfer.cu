/* cuda_transfer.cu - what goes to the device and comes back, on the stream of a queue. A slot of the ring is reused when the copy
 * out of it is done; a result is handed out by sync(), or by wait() for a mark behind it. */
#include <string.h>

#include "backends/cuda/cuda.cuh"

spec_status speci_cuda_slot_take(spec_queue *q, int32_t *slot)
{
    *slot = q->ring_next;
    const cudaError_t e = cudaEventSynchronize(q->ring_free[*slot]);
    if (e != cudaSuccess) return speci_cuda_status(q->dev, e, "an earlier operation of the queue");
    q->ring_next = (*slot + 1) % CUDA_RING;
    return SPEC_OK;
}

spec_status speci_cuda_slot_send(spec_queue *q, int32_t slot, void *dst, size_t bytes)
{
    const char *src = q->ring + (size_t)slot * q->slot_bytes;
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, q->stream);
    if (e == cudaSuccess) e = cudaEventRecord(q->ring_free[slot], q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "copy to the device");
}

spec_status speci_cuda_upload(spec_queue *q, void *dst, const void *src, size_t bytes)
{
    SPEC_TRY(cuda_enter(q->dev));
    for (size_t at = 0; at < bytes;) {
        const size_t n = bytes - at < q->slot_bytes ? bytes - at : q->slot_bytes;
        int32_t slot;
        SPEC_TRY(speci_cuda_slot_take(q, &slot));
        memcpy(q->ring + (size_t)slot * q->slot_bytes, (const char *)src + at, n);
        SPEC_TRY(speci_cuda_slot_send(q, slot, (char *)dst + at, n));
        at += n;
    }
    return SPEC_OK;
}

/* The first n results that wait in pinned memory go to their places, or after an error nowhere. */
static spec_status hand_out(spec_queue *q, int32_t n, cudaError_t error)
{
    for (int32_t i = 0; i < n && error == cudaSuccess; i++)
        memcpy(q->pending[i].dst, q->pending[i].src, q->pending[i].bytes);
    q->n_pending -= n;
    memmove(q->pending, q->pending + n, (size_t)q->n_pending * sizeof q->pending[0]);
    if (q->n_pending == 0) q->result_used = 0;
    q->n_handed_out += (uint64_t)n;
    return error == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, error, "an operation of the queue");
}

static spec_status flush(spec_queue *q)
{
    const cudaError_t e = cudaStreamSynchronize(q->stream);
    return hand_out(q, q->n_pending, e);
}

spec_status speci_cuda_result_room(spec_queue *q, size_t bytes, int32_t n)
{
    const int32_t cap = (int32_t)(sizeof q->pending / sizeof q->pending[0]);
    if (bytes > q->result_cap)
        return q->dev->host->fail(SPEC_E_INVALID, "cuda: %zu bytes of results, the queue was opened for %zu", bytes,
                                  q->result_cap);
    return q->result_used + bytes > q->result_cap || q->n_pending + n > cap ? flush(q) : SPEC_OK;
}

spec_status speci_cuda_result(spec_queue *q, void **out, void *dst, size_t bytes)
{
    cuda_pending *p = &q->pending[q->n_pending++];
    p->dst = dst, p->bytes = bytes, p->src = *out = q->result + q->result_used;
    q->result_used = cuda_round_up(q->result_used + bytes, 16);
    return SPEC_OK;
}

spec_status speci_cuda_download(spec_queue *q, void *dst, const void *src, size_t bytes)
{
    SPEC_TRY(cuda_enter(q->dev));
    if (bytes == 0) return SPEC_OK;
    void *to = dst; /* a large copy into pageable memory is done when the call returns */
    if (bytes <= q->result_cap / 2) {
        SPEC_TRY(speci_cuda_result_room(q, bytes + 16, 1));
        SPEC_TRY(speci_cuda_result(q, &to, dst, bytes));
    }
    const cudaError_t e = cudaMemcpyAsync(to, src, bytes, cudaMemcpyDeviceToHost, q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "copy from the device");
}

/* Lists travel as a kernel's parameter, as much of one as it holds: a sequence's memory is some hundred ranges, and the device
 * takes 5 us for a call. A range is written by a row of blocks. */
enum { LIST_BYTES = 3600, LIST_THREADS = 256, LIST_BLOCKS = 64 /* of a range at most */ };
template <typename Range> struct range_list {
    enum { MOST = LIST_BYTES / sizeof(Range) };
    Range range[MOST];
};

static __device__ __forceinline__ void run_range(const spec_range &r, size_t first, size_t stride)
{
    const size_t units = ((size_t)r.data | r.bytes) % 16 == 0 ? r.bytes / 16 : 0;
    for (size_t i = first; i < units; i += stride) ((uint4 *)r.data)[i] = make_uint4(0, 0, 0, 0);
    for (size_t i = units * 16 + first; i < r.bytes; i += stride) ((char *)r.data)[i] = 0;
}
static __device__ __forceinline__ void run_range(const spec_range_copy &r, size_t first, size_t stride)
{
    const size_t units = ((size_t)r.to | (size_t)r.from | r.bytes) % 16 == 0 ? r.bytes / 16 : 0;
#pragma unroll 4
    for (size_t i = first; i < units; i += stride) ((uint4 *)r.to)[i] = ((const uint4 *)r.from)[i];
    for (size_t i = units * 16 + first; i < r.bytes; i += stride) ((char *)r.to)[i] = ((const char *)r.from)[i];
}

template <typename Range>
static __global__ void __launch_bounds__(LIST_THREADS) list_kernel(const __grid_constant__ range_list<Range> list)
{
    run_range(list.range[blockIdx.y], (size_t)blockIdx.x * LIST_THREADS + threadIdx.x, (size_t)gridDim.x * LIST_THREADS);
}

template <typename Range> static spec_status run_list(spec_queue *q, const char *what, const Range *range, int32_t n)
{
    constexpr int32_t MOST = range_list<Range>::MOST;
    for (int32_t i0 = 0; i0 < n; i0 += MOST) {
        range_list<Range> list;
        const int32_t now = n - i0 < MOST ? n - i0 : MOST;
        size_t bytes = 0; /* of the largest */
        for (int32_t i = 0; i < now; i++) {
            list.range[i] = range[i0 + i];
            if (list.range[i].bytes > bytes) bytes = list.range[i].bytes;
        }
        const size_t blocks = bytes / (16 * LIST_THREADS) + 1;
        const dim3 grid((unsigned)(blocks < LIST_BLOCKS ? blocks : (size_t)LIST_BLOCKS), (unsigned)now);
        list_kernel<<<grid, LIST_THREADS, 0, q->stream>>>(list);
        SPEC_TRY(cuda_launched(q, what));
    }
    return SPEC_OK;
}

spec_status speci_cuda_copy(spec_queue *q, const spec_range_copy *range, int32_t n)
{
    SPEC_TRY(cuda_enter(q->dev));
    if (n != 1) return run_list(q, "copy", range, n);
    const cudaError_t e = cudaMemcpyAsync(range->to, range->from, range->bytes, cudaMemcpyDeviceToDevice, q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "copy on the device");
}

spec_status speci_cuda_zero(spec_queue *q, const spec_range *range, int32_t n)
{
    SPEC_TRY(cuda_enter(q->dev));
    if (n != 1) return run_list(q, "zero", range, n);
    const cudaError_t e = cudaMemsetAsync(range->data, 0, range->bytes, q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "zero on the device");
}

spec_status speci_cuda_sync(spec_queue *q)
{
    SPEC_TRY(cuda_enter(q->dev));
    return flush(q);
}

spec_status speci_cuda_mark(spec_queue *q, uint64_t *mark)
{
    SPEC_TRY(cuda_enter(q->dev));
    const int i = (int)(q->n_mark % CUDA_MARKS);
    const cudaError_t e = cudaEventRecord(q->mark[i], q->stream);
    if (e != cudaSuccess) return speci_cuda_status(q->dev, e, "cudaEventRecord: mark");
    q->n_result[i] = q->n_handed_out + (uint64_t)q->n_pending;
    *mark = q->n_mark++;
    return SPEC_OK;
}

spec_status speci_cuda_wait(spec_queue *q, uint64_t mark)
{
    SPEC_TRY(cuda_enter(q->dev));
    if (q->n_mark - mark > CUDA_MARKS) return flush(q);
    const int i = (int)(mark % CUDA_MARKS);
    const cudaError_t e = cudaEventSynchronize(q->mark[i]);
    const uint64_t end = q->n_result[i], n = end > q->n_handed_out ? end - q->n_handed_out : 0;
    return hand_out(q, (int32_t)n, e);
}
