/* cuda_backend.cu - the table: devices, memory, queues, transfers.
 *
 * A queue is a stream with all the memory that its operations need, taken when it is opened: one block on the device
 * (step, scratch, cuBLAS workspace), a ring of pinned slots for what goes there, and a pinned area for what comes back. A
 * slot is reused when the copy out of it is done; a result is handed out by sync(), or by wait() for a mark behind it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>

#include "backends/cuda/spec_cuda.h"
#include "backends/cuda/cuda.cuh"

/* --------------------------------------------------------------------------------- errors --- */

spec_status speci_cuda_status(const spec_device *dev, cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* errors that do not stick, like a failed allocation, would be seen by the next call */
    const spec_status code = error == cudaErrorMemoryAllocation ? SPEC_E_NOMEM : SPEC_E_DEVICE;
    return dev->host->fail(code, "%s: %s, on %s", cudaGetErrorName(error), what, dev->name);
}

static spec_status blas_status(const spec_device *dev, cublasStatus_t s, const char *what)
{
    const spec_status code = s == CUBLAS_STATUS_ALLOC_FAILED ? SPEC_E_NOMEM : SPEC_E_DEVICE;
    return dev->host->fail(code, "%s: %s, on %s", cublasGetStatusName(s), what, dev->name);
}

/* -------------------------------------------------------------------------------- devices --- */

/* Asks whether this build holds code that the device can run. */
static __global__ void presence_kernel(void) {}

static spec_status device_count(const spec_host *host, int *n)
{
    *n = 0;
    const cudaError_t e = cudaGetDeviceCount(n);
    if (e == cudaSuccess && *n > 0) return SPEC_OK;
    (void)cudaGetLastError();
    if (e == cudaSuccess || e == cudaErrorNoDevice) return host->fail(SPEC_E_DEVICE, "no CUDA device");
    return host->fail(SPEC_E_DEVICE, "no CUDA device: %s (%s)", cudaGetErrorString(e), cudaGetErrorName(e));
}

static spec_status cuda_open(spec_device **out, const spec_host *host, const char *arg)
{
    *out = NULL;
    if (host->abi != SPEC_BACKEND_ABI)
        return host->fail(SPEC_E_UNSUPPORTED, "the CUDA backend has ABI %u, the library %u", SPEC_BACKEND_ABI, host->abi);
    char *end = NULL;
    const long ordinal = arg && *arg ? strtol(arg, &end, 10) : 0;
    if (end && (*end || end == arg || ordinal < 0))
        return host->fail(SPEC_E_INVALID, "\"%s\" is not the number of a CUDA device", arg);
    int n;
    SPEC_TRY(device_count(host, &n));
    if (ordinal >= n)
        return host->fail(SPEC_E_DEVICE, "CUDA device %ld: there %s %d, counted from 0", ordinal, n == 1 ? "is" : "are", n);

    void *memory = host->alloc(host, 1, sizeof(spec_device));
    if (!memory) return SPEC_E_NOMEM;
    spec_device *dev = new (memory) spec_device();
    dev->host = host;
    dev->ordinal = (int)ordinal;
    snprintf(dev->name, sizeof dev->name, "cuda:%d", dev->ordinal);
    spec_status status = SPEC_OK;
    cudaDeviceProp prop;
    cudaFuncAttributes attributes;
    cudaError_t e = cudaGetDeviceProperties(&prop, dev->ordinal);
    if (e == cudaSuccess) {
        snprintf(dev->name, sizeof dev->name, "cuda:%d %.64s", dev->ordinal, prop.name);
        dev->n_sm = prop.multiProcessorCount;
        e = cudaSetDevice(dev->ordinal);
    }
    if (e == cudaSuccess) e = cudaFree(NULL); /* makes the context */
    if (e != cudaSuccess) {
        status = speci_cuda_status(dev, e, "opening the device");
    } else if ((e = cudaFuncGetAttributes(&attributes, presence_kernel)) != cudaSuccess) {
        (void)cudaGetLastError();
        status = host->fail(SPEC_E_DEVICE, "%s has compute capability %d.%d, for which this build holds no code (%s)",
                            dev->name, prop.major, prop.minor, cudaGetErrorName(e));
    }
    if (status != SPEC_OK) {
        dev->~spec_device();
        host->free(host, memory);
        return status;
    }
    *out = dev;
    return SPEC_OK;
}

static void cuda_close(spec_device *dev)
{
    if (!dev) return;
    const spec_host *host = dev->host;
    (void)cudaSetDevice(dev->ordinal);
    speci_cuda_stage_close(dev);
    if (dev->blas) (void)cublasDestroy(dev->blas);
    (void)cudaGetLastError();
    dev->~spec_device();
    host->free(host, dev);
}

static spec_status cuda_info(spec_device *dev, spec_device_info *out)
{
    size_t free_bytes, total_bytes;
    SPEC_TRY(cuda_enter(dev));
    const cudaError_t e = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaMemGetInfo");
    memset(out, 0, sizeof *out);
    memcpy(out->name, dev->name, sizeof out->name);
    out->prefill_chunk = CUDA_PREFILL_CHUNK, out->prefill_least = CUDA_PREFILL_LEAST;
    out->row_max = CUDA_ROW_MAX, out->defer_norms = CUDA_DEFER, out->row_best = 1;
    out->bytes_total = total_bytes, out->bytes_free = free_bytes;
    return SPEC_OK;
}

static spec_status cuda_list(const spec_host *host, void (*each)(void *user, const char *arg, const char *text), void *user)
{
    int n;
    SPEC_TRY(device_count(host, &n));
    for (int i = 0; i < n; i++) {
        cudaDeviceProp prop;
        const cudaError_t e = cudaGetDeviceProperties(&prop, i);
        if (e != cudaSuccess) {
            (void)cudaGetLastError();
            return host->fail(SPEC_E_DEVICE, "%s: cudaGetDeviceProperties of device %d", cudaGetErrorName(e), i);
        }
        char arg[16], text[160];
        snprintf(arg, sizeof arg, "%d", i);
        snprintf(text, sizeof text, "%.96s, %.1f GiB, compute capability %d.%d", prop.name,
                 (double)prop.totalGlobalMem / 1073741824.0, prop.major, prop.minor);
        each(user, arg, text);
    }
    return SPEC_OK;
}

static spec_status cuda_alloc(spec_device *dev, void **out, size_t bytes)
{
    *out = NULL;
    SPEC_TRY(cuda_enter(dev));
    const cudaError_t e = cudaMalloc(out, bytes ? bytes : 256);
    if (e == cudaSuccess) return SPEC_OK;
    *out = NULL;
    char what[64];
    snprintf(what, sizeof what, "cudaMalloc of %.1f MiB", (double)bytes / 1048576.0);
    return speci_cuda_status(dev, e, what);
}

static void cuda_free(spec_device *dev, void *p, size_t bytes)
{
    (void)bytes;
    if (!p) return;
    (void)cudaSetDevice(dev->ordinal);
    (void)cudaFree(p);
    (void)cudaGetLastError();
}

/* --------------------------------------------------------------------------------- queues --- */

/* A queue, and what only this file knows of it: marks, in a ring. One that has left the ring is waited for with all that
 * was queued since. */
enum { MARKS = 8 };
struct marked_queue : spec_queue {
    cudaEvent_t event[MARKS];
    uint64_t n_mark;           /* so far; mark m has event m % MARKS */
    uint64_t n_result[MARKS];  /* results that were asked for before the mark */
    uint64_t n_handed_out;     /* of the results asked for so far, all but n_pending */
};

static marked_queue *marked(spec_queue *q) { return static_cast<marked_queue *>(q); }

/* How large everything is; sizes in bytes unless said. */
struct queue_sizes {
    int32_t rows; /* of row operations */
    size_t step, tokens, argmax, attention_floats, linear_floats, arranged_floats, workspace, slot, result, total;
};

/* Every part of a step at its capacity. */
static size_t step_bytes(const spec_plan *p)
{
    const size_t seqs = (size_t)p->n_seq_max, rows = (size_t)p->n_row_max, nodes = seqs * (size_t)p->n_node_max + rows;
    const size_t pages = ((size_t)p->n_kv_max + (size_t)p->n_node_max) / SPEC_PAGE + 2;
    return sizeof(spec_step_block) + seqs * sizeof(spec_step_seq) + nodes * (sizeof(spec_step_node) + 4) +
           rows * (4 + sizeof(spec_traversal_node)) + seqs * pages * 4 + 6 * 256;
}

static queue_sizes measure(const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    queue_sizes z;
    memset(&z, 0, sizeof z);
    z.rows = n_vocab > 0 ? 64 : 1;
    z.step = 4096;
    for (int32_t i = 0; i < n_plan; i++) {
        const spec_plan *p = &plans[i];
        if (p->n_row_max > z.rows) z.rows = p->n_row_max;
        if (step_bytes(p) > z.step) z.step = step_bytes(p);
        if (p->phase == SPEC_PHASE_PREFILL) z.workspace = (size_t)32 << 20; /* what cuBLAS advises for Hopper */
        for (int32_t j = 0; p->ops && j < p->n_op; j++) {
            const spec_op *op = &p->ops[j];
            size_t n = 0;
            if (op->kind == SPEC_OP_ATTENTION && (n = speci_cuda_attention_floats(&op->u.attention, p)) > z.attention_floats)
                z.attention_floats = n;
            if (op->kind == SPEC_OP_LINEAR && (n = speci_cuda_linear_floats(&op->u.linear, p)) > z.linear_floats)
                z.linear_floats = n;
            if (j > 0 && op[-1].kind == SPEC_OP_LINEAR && op->kind == SPEC_OP_LINEAR &&
                (n = speci_cuda_arranged_floats(&op->u.linear, p)) > z.arranged_floats)
                z.arranged_floats = n;
        }
    }
    const size_t rows = (size_t)z.rows;
    z.step = cuda_round_up(z.step, 256);
    z.tokens = cuda_round_up(sizeof(cuda_tokens), 256);
    z.argmax = cuda_round_up(rows * (CUDA_ARGMAX_PARTS * 8 + 4), 256);
    z.slot = z.step > (size_t)64 << 10 ? z.step : (size_t)64 << 10;
    z.result = rows * (64 * 8 + 32) + ((size_t)64 << 10);
    z.total = z.step + z.tokens + z.argmax + cuda_round_up(z.attention_floats * 4, 256) +
              cuda_round_up(z.linear_floats * 4, 256) + cuda_round_up(z.arranged_floats * 4, 256) + z.workspace;
    return z;
}

static size_t cuda_queue_bytes(spec_device *dev, const spec_plan *plans, int32_t n_plan, int32_t n_vocab)
{
    (void)dev;
    return speci_cuda_memory_bytes(measure(plans, n_plan, n_vocab).total);
}

static void cuda_queue_close(spec_queue *q)
{
    if (!q) return;
    const spec_host *host = q->dev->host;
    (void)cudaSetDevice(q->dev->ordinal);
    if (q->stream) (void)cudaStreamSynchronize(q->stream);
    for (int i = 0; i < CUDA_RING; i++)
        if (q->ring_free[i]) (void)cudaEventDestroy(q->ring_free[i]);
    for (int i = 0; i < MARKS; i++)
        if (marked(q)->event[i]) (void)cudaEventDestroy(marked(q)->event[i]);
    if (q->ring) (void)cudaFreeHost(q->ring);
    if (q->result) (void)cudaFreeHost(q->result);
    if (q->memory) (void)cudaFree(q->memory);
    if (q->stream) (void)cudaStreamDestroy(q->stream);
    (void)cudaGetLastError();
    host->free(host, q);
}

/* Gives each part its place in the queue's memory. */
static void queue_divide(spec_queue *q, const queue_sizes *z)
{
    char *p = q->memory;
    q->d_step = (spec_step_block *)p, p += z->step;
    q->d_tokens = (cuda_tokens *)p, p += z->tokens;
    q->argmax_part = (unsigned long long *)p;
    q->argmax_count = (unsigned int *)(q->argmax_part + (size_t)z->rows * CUDA_ARGMAX_PARTS), p += z->argmax;
    q->attention_scratch = (float *)p, p += cuda_round_up(z->attention_floats * 4, 256);
    q->linear_scratch = (float *)p, p += cuda_round_up(z->linear_floats * 4, 256);
    q->arranged[0] = (uint16_t *)q->linear_scratch, q->arranged_floats[0] = z->linear_floats;
    q->arranged[1] = (uint16_t *)p, q->arranged_floats[1] = z->arranged_floats, p += cuda_round_up(z->arranged_floats * 4, 256);
    q->blas_workspace = p, q->blas_bytes = z->workspace;
    q->step_cap = z->step, q->slot_bytes = z->slot, q->result_cap = z->result, q->row_cap = z->rows;
    q->attention_floats = z->attention_floats, q->linear_floats = z->linear_floats;
}

/* The device's handle, if this is the first queue that needs it. */
static spec_status blas_open(spec_device *dev)
{
    std::lock_guard<std::mutex> lock(dev->blas_lock);
    if (dev->blas) return SPEC_OK;
    cublasHandle_t blas;
    cublasStatus_t s = cublasCreate(&blas);
    if (s != CUBLAS_STATUS_SUCCESS) return blas_status(dev, s, "cublasCreate");
    const int mode = CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION; /* no TF32, f32 sums */
    if ((s = cublasSetMathMode(blas, (cublasMath_t)mode)) != CUBLAS_STATUS_SUCCESS) {
        (void)cublasDestroy(blas);
        return blas_status(dev, s, "cublasSetMathMode");
    }
    dev->blas = blas;
    return SPEC_OK;
}

static spec_status queue_open_all(spec_queue *q, const queue_sizes *z)
{
    spec_device *const dev = q->dev;
    cudaError_t e = cudaStreamCreateWithFlags(&q->stream, cudaStreamNonBlocking);
    if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaStreamCreate: queue");
    for (int i = 0; i < CUDA_RING; i++)
        if ((e = cudaEventCreateWithFlags(&q->ring_free[i], cudaEventDisableTiming)) != cudaSuccess)
            return speci_cuda_status(dev, e, "cudaEventCreate: queue");
    for (int i = 0; i < MARKS; i++)
        if ((e = cudaEventCreateWithFlags(&marked(q)->event[i], cudaEventDisableTiming)) != cudaSuccess)
            return speci_cuda_status(dev, e, "cudaEventCreate: mark");
    if ((e = cudaMalloc((void **)&q->memory, z->total)) != cudaSuccess) {
        q->memory = NULL;
        return speci_cuda_status(dev, e, "cudaMalloc: queue");
    }
    q->memory_bytes = z->total;
    queue_divide(q, z);
    if ((e = cudaHostAlloc((void **)&q->ring, (size_t)CUDA_RING * q->slot_bytes, cudaHostAllocPortable)) != cudaSuccess) {
        q->ring = NULL;
        return speci_cuda_status(dev, e, "cudaHostAlloc: queue");
    }
    e = cudaHostAlloc((void **)&q->result, q->result_cap, cudaHostAllocPortable | cudaHostAllocMapped);
    if (e != cudaSuccess) {
        q->result = NULL;
        return speci_cuda_status(dev, e, "cudaHostAlloc: queue");
    }
    if ((e = cudaMemsetAsync(q->argmax_part, 0, z->argmax, q->stream)) != cudaSuccess)
        return speci_cuda_status(dev, e, "cudaMemset: queue");
    return z->workspace ? blas_open(dev) : SPEC_OK;
}

static spec_status cuda_queue_open(spec_device *dev, spec_queue **out, const spec_plan *plans, int32_t n_plan,
                                   int32_t n_vocab)
{
    *out = NULL;
    SPEC_TRY(cuda_enter(dev));
    spec_queue *q = (marked_queue *)dev->host->alloc(dev->host, 1, sizeof(marked_queue));
    if (!q) return SPEC_E_NOMEM;
    q->dev = dev;
    const queue_sizes z = measure(plans, n_plan, n_vocab);
    const spec_status status = queue_open_all(q, &z);
    if (status != SPEC_OK) {
        cuda_queue_close(q);
        return status;
    }
    *out = q;
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------ transfers --- */

/* The next slot of the ring, once the copy out of it is done. */
static spec_status slot_take(spec_queue *q, int32_t *slot)
{
    *slot = q->ring_next;
    const cudaError_t e = cudaEventSynchronize(q->ring_free[*slot]);
    if (e != cudaSuccess) return speci_cuda_status(q->dev, e, "an earlier operation of the queue");
    q->ring_next = (*slot + 1) % CUDA_RING;
    return SPEC_OK;
}

static spec_status slot_send(spec_queue *q, int32_t slot, void *dst, size_t bytes)
{
    const char *src = q->ring + (size_t)slot * q->slot_bytes;
    cudaError_t e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, q->stream);
    if (e == cudaSuccess) e = cudaEventRecord(q->ring_free[slot], q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "copy to the device");
}

static spec_status cuda_upload(spec_queue *q, void *dst, const void *src, size_t bytes)
{
    SPEC_TRY(cuda_enter(q->dev));
    for (size_t at = 0; at < bytes;) {
        const size_t n = bytes - at < q->slot_bytes ? bytes - at : q->slot_bytes;
        int32_t slot;
        SPEC_TRY(slot_take(q, &slot));
        memcpy(q->ring + (size_t)slot * q->slot_bytes, (const char *)src + at, n);
        SPEC_TRY(slot_send(q, slot, (char *)dst + at, n));
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
    marked(q)->n_handed_out += (uint64_t)n;
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

static spec_status cuda_copy(spec_queue *q, const spec_range_copy *range, int32_t n)
{
    SPEC_TRY(cuda_enter(q->dev));
    if (n != 1) return run_list(q, "copy", range, n);
    const cudaError_t e = cudaMemcpyAsync(range->to, range->from, range->bytes, cudaMemcpyDeviceToDevice, q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "copy on the device");
}

static spec_status cuda_zero(spec_queue *q, const spec_range *range, int32_t n)
{
    SPEC_TRY(cuda_enter(q->dev));
    if (n != 1) return run_list(q, "zero", range, n);
    const cudaError_t e = cudaMemsetAsync(range->data, 0, range->bytes, q->stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "zero on the device");
}

static spec_status cuda_sync(spec_queue *q)
{
    SPEC_TRY(cuda_enter(q->dev));
    return flush(q);
}

static spec_status cuda_mark(spec_queue *q, uint64_t *mark)
{
    SPEC_TRY(cuda_enter(q->dev));
    marked_queue *m = marked(q);
    const int i = (int)(m->n_mark % MARKS);
    const cudaError_t e = cudaEventRecord(m->event[i], q->stream);
    if (e != cudaSuccess) return speci_cuda_status(q->dev, e, "cudaEventRecord: mark");
    m->n_result[i] = m->n_handed_out + (uint64_t)q->n_pending;
    *mark = m->n_mark++;
    return SPEC_OK;
}

static spec_status cuda_wait(spec_queue *q, uint64_t mark)
{
    SPEC_TRY(cuda_enter(q->dev));
    marked_queue *m = marked(q);
    if (m->n_mark - mark > MARKS) return flush(q);
    const int i = (int)(mark % MARKS);
    const cudaError_t e = cudaEventSynchronize(m->event[i]);
    const uint64_t end = m->n_result[i], n = end > m->n_handed_out ? end - m->n_handed_out : 0;
    return hand_out(q, (int32_t)n, e);
}

/* ----------------------------------------------------------------------------------- step --- */

/* Nodes of sequence `seq` that grew on the device take their places in the step, or their tokens alone, by a block; b: what is
 * known of it. */
static __device__ void feed_sequence(spec_step_block *step, const spec_step_block *b, int seq)
{
    const spec_step_seq s = spec_step_seqs(b)[seq];
    const spec_step_node *feed = b->feed + (size_t)s.slot * (size_t)b->ld_feed;
    const spec_grow_node *grown = b->grown + (size_t)s.slot * (size_t)b->ld_grown;
    spec_step_node *node = (spec_step_node *)((char *)step + b->off_node) + s.first_node;
    const int t = (int)threadIdx.x, threads = (int)blockDim.x;
    for (int i = s.n_given + t; b->feed && i < s.n_fed + s.n_row; i += threads) node[i] = feed[i];
    for (int i = 1 + t; b->grown && i < s.n_given; i += threads) node[i].token = grown[i].token;
}

static __global__ void __launch_bounds__(128) feed_kernel(spec_step_block *step) { feed_sequence(step, step, (int)blockIdx.x); }

/* Writes a step, what grew included, and where its tokens go. Most steps travel as a kernel's parameter: no copy of its own, and
 * what grew is fed by the same kernel. */
static __global__ void __launch_bounds__(256)
step_kernel(const __grid_constant__ cuda_step p, spec_step_block *step, cuda_tokens *tokens)
{
    const spec_step_block *const b = (const spec_step_block *)p.byte;
    const int bytes = b->bytes;
    if (p.releases) grid_release();
    grid_wait(); /* until then the step before stands there */
    for (int i = (int)threadIdx.x; i * 16 < bytes; i += (int)blockDim.x) ((uint4 *)step)[i] = ((const uint4 *)p.byte)[i];
    if (threadIdx.x == 0) *tokens = p.tokens;
    if (b->feed || b->grown) {
        __syncthreads();
        for (int seq = 0; seq < b->n_seq; seq++) feed_sequence(step, b, seq);
    }
    /* Else the kernel behind may begin when this block has ended, and read the step before it waits. */
    if (!p.releases) __threadfence();
}

spec_status speci_cuda_step_launch(spec_queue *q, const cuda_step *p)
{
    return cuda_launch(q, "step_bind", step_kernel, dim3(1), dim3(256), 0, 1, *p, q->d_step, q->d_tokens);
}

spec_status speci_cuda_step_update(spec_queue *q, cudaGraphExec_t exec, cudaGraphNode_t node, const cuda_step *p)
{
    void *args[] = { (void *)p, &q->d_step, &q->d_tokens };
    cudaKernelNodeParams k = {};
    k.func = (void *)step_kernel, k.gridDim = dim3(1), k.blockDim = dim3(256), k.kernelParams = args;
    const cudaError_t e = cudaGraphExecKernelNodeSetParams(exec, node, &k);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(q->dev, e, "cudaGraphExecKernelNodeSetParams");
}

spec_status speci_cuda_step_send(spec_queue *q, const spec_step_block *b, const cuda_tokens &tokens)
{
    cuda_step p;
    int32_t slot;
    if (cuda_step_fits(b)) {
        cuda_step_of(&p, b, tokens, false);
        return speci_cuda_step_launch(q, &p);
    }
    SPEC_TRY(slot_take(q, &slot));
    memcpy(q->ring + (size_t)slot * q->slot_bytes, b, (size_t)b->bytes);
    SPEC_TRY(slot_send(q, slot, q->d_step, (size_t)b->bytes));
    if ((!b->feed && !b->grown) || b->n_seq == 0) return SPEC_OK;
    feed_kernel<<<(unsigned)b->n_seq, 128, 0, q->stream>>>(q->d_step);
    return cuda_launched(q, "step_bind");
}

/* Has a path been accepted whose K and V do not stand at the front of the tree's slots already? Paths ascend. */
static bool step_moves(const spec_step_block *b)
{
    for (int32_t i = 0; i < b->n_seq; i++) {
        const spec_step_seq *s = &spec_step_seqs(b)[i];
        if (s->n_replay > 0 && spec_step_paths(b)[s->first_path + s->n_replay - 1] != s->n_replay - 1) return true;
    }
    return false;
}

/* The shape comes from what the host knows: with nodes that grow on the device, n_kv is a bound. */
spec_status speci_cuda_step_shape(spec_queue *q, const spec_step_block *b)
{
    const spec_host *h = q->dev->host;
    SPEC_TRY(cuda_enter(q->dev));
    if (b->bytes < (int32_t)sizeof *b || (size_t)b->bytes > q->step_cap)
        return h->fail(SPEC_E_INVALID, "cuda: a step of %d bytes, the queue was opened for %zu", b->bytes, q->step_cap);
    const int32_t least = b->phase == SPEC_PHASE_PREFILL ? 1 : 0; /* a decode step may only apply paths */
    if (b->n_row < 0 || b->n_row > b->n_row_run || b->n_row_run < least || b->n_row_run > 32768 || b->n_seq < 0 ||
        (b->phase == SPEC_PHASE_DECODE && b->n_row != b->n_row_run) || b->n_seq > 4096 || b->n_kv < 0)
        return h->fail(SPEC_E_INVALID, "cuda: a step of %d of %d rows, %d sequences", b->n_row, b->n_row_run, b->n_seq);
    if (b->n_seq > 0 && b->off_seq != (int32_t)sizeof *b) /* spec_step_seqs() */
        return h->fail(SPEC_E_INVALID, "cuda: a step whose sequences stand at byte %d, not right behind its head at %zu",
                       b->off_seq, sizeof *b);
    q->n_row_run = b->n_row_run;
    q->shape.phase = b->phase;
    q->shape.rows = b->phase == SPEC_PHASE_PREFILL ? b->n_row_run : cuda_pow2(b->n_row_run);
    q->shape.seqs = cuda_pow2(b->n_seq);
    q->shape.splits = b->n_kv <= CUDA_FEW ? 0 : cuda_pow2(cuda_div_up(b->n_kv, CUDA_SPLIT));
    q->shape.moves = step_moves(b);
    q->shape.fits = cuda_step_fits(b);
    q->shape.finds = 0;
    return SPEC_OK;
}

static spec_status cuda_step_bind(spec_queue *q, const spec_step_block *b)
{
    SPEC_TRY(speci_cuda_step_shape(q, b));
    return speci_cuda_step_send(q, b, cuda_tokens());
}

/* -------------------------------------------------------------------------------- the table --- */

static const spec_backend_ops table = {
    SPEC_BACKEND_ABI,
    sizeof(spec_backend_ops),
    "cuda",
    cuda_open,
    cuda_close,
    cuda_info,
    cuda_list,
    cuda_alloc,
    cuda_free,
    speci_cuda_weight_bytes,
    speci_cuda_weight_open,
    speci_cuda_weight_close,
    cuda_queue_open,
    cuda_queue_bytes,
    cuda_queue_close,
    cuda_upload,
    speci_cuda_download,
    cuda_copy,
    cuda_zero,
    cuda_sync,
    speci_cuda_check,
    cuda_step_bind,
    speci_cuda_embed,
    speci_cuda_norm,
    speci_cuda_linear,
    speci_cuda_kv_commit,
    speci_cuda_rope_kv,
    speci_cuda_attention,
    speci_cuda_conv,
    speci_cuda_scan,
    speci_cuda_argmax,
    speci_cuda_probs,
    speci_cuda_accept,
    speci_cuda_logprob,
    speci_cuda_plan_prepare,
    speci_cuda_plan_run,
    speci_cuda_plan_free,
    speci_cuda_draw,
    speci_cuda_expand,
    cuda_mark,
    cuda_wait,
    speci_cuda_keep,
};

extern "C" const spec_backend_ops *spec_cuda_ops(void) { return &table; }

/* The plugin's entry, SPEC_BACKEND_ENTRY. */
extern "C" __attribute__((visibility("default"))) const spec_backend_ops *spec_backend_table(void) { return &table; }
