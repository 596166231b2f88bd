/* cuda_weight.cu - weights: from host memory of any kind and alignment into rows on the device.
 * Two pinned buffers: while one is filled by several threads, the other crosses the bus. Rows that are already as they
 * shall be are copied; others are converted and padded by a kernel that reads the pinned buffer itself. */
#include <string.h>

#include <new>
#include <thread>

#include "cuda.cuh"

static const size_t stage_bytes = (size_t)32 << 20;

/* ---------------------------------------------------------------------- conversion --- */

/* dst [n_row][ld] of T from src [n_row][n_in] of S, zero beyond n_in. */
template <typename T, typename S>
static __global__ void pack_kernel(T *dst, const S *src, int n_row, int n_in, int ld)
{
    const size_t n = (size_t)n_row * ld;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const size_t r = i / ld, c = i % ld;
        dst[i] = from_f32<T>(c < (size_t)n_in ? to_f32(src[r * n_in + c]) : 0.0f);
    }
}

static spec_status pack(spec_device *dev, void *dst, spec_dtype to, const void *src, spec_dtype from, int32_t n_row,
                        int32_t n_in, int32_t ld)
{
    const size_t bytes = (size_t)n_row * n_in * cuda_size(from);
    cudaError_t e;
    if (to == from && ld == n_in) {
        e = cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, dev->stage_stream);
        return e == cudaSuccess ? SPEC_OK : speci_cuda_status(dev, e, "cudaMemcpyAsync: weight");
    }
    return cuda_by_dtype(to, [&](auto t) {
        using T = decltype(t);
        return cuda_by_dtype(from, [&](auto s) {
            using S = decltype(s);
            pack_kernel<T, S><<<4 * (unsigned)dev->n_sm, 256, 0, dev->stage_stream>>>((T *)dst, (const S *)src, n_row,
                                                                                       n_in, ld);
            const cudaError_t launched = cudaGetLastError();
            return launched == cudaSuccess ? SPEC_OK : speci_cuda_status(dev, launched, "weight conversion");
        });
    });
}

/* ------------------------------------------------------------------------- staging --- */

/* memcpy by several threads: reading a mapped file is bound by page faults, which they share. */
static void copy_by_threads(char *dst, const char *src, size_t bytes, int n_thread)
{
    enum { MOST = 8 };
    const size_t least = (size_t)2 << 20;
    size_t n = bytes / least + 1;
    if (n > (size_t)n_thread) n = (size_t)n_thread;
    if (n > MOST) n = MOST;
    const size_t part = cuda_round_up((bytes + n - 1) / n, 64);
    std::thread threads[MOST];
    for (size_t i = 1; i < n; i++) {
        const size_t at = i * part, size = at >= bytes ? 0 : bytes - at < part ? bytes - at : part;
        if (size == 0) break;
        try {
            threads[i] = std::thread([=] { memcpy(dst + at, src + at, size); });
        } catch (...) { /* no thread to be had */
            memcpy(dst + at, src + at, size);
        }
    }
    memcpy(dst, src, part < bytes ? part : bytes);
    for (size_t i = 1; i < n; i++)
        if (threads[i].joinable()) threads[i].join();
}

/* Under stage_lock. */
static spec_status stage_open(spec_device *dev)
{
    cudaError_t e = cudaSuccess;
    if (!dev->stage_stream) {
        e = cudaStreamCreateWithFlags(&dev->stage_stream, cudaStreamNonBlocking);
        if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaStreamCreate: weight upload");
    }
    for (int i = 0; i < 2; i++) {
        if (!dev->stage_free[i]) {
            e = cudaEventCreateWithFlags(&dev->stage_free[i], cudaEventDisableTiming);
            if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaEventCreate: weight upload");
        }
        if (!dev->stage[i]) {
            e = cudaHostAlloc((void **)&dev->stage[i], stage_bytes, cudaHostAllocPortable | cudaHostAllocMapped);
            if (e != cudaSuccess) {
                dev->stage[i] = NULL;
                return speci_cuda_status(dev, e, "cudaHostAlloc: 32 MiB for weight upload");
            }
        }
    }
    return SPEC_OK;
}

void speci_cuda_stage_close(spec_device *dev)
{
    for (int i = 0; i < 2; i++) {
        if (dev->stage[i]) cudaFreeHost(dev->stage[i]);
        if (dev->stage_free[i]) cudaEventDestroy(dev->stage_free[i]);
        dev->stage[i] = NULL, dev->stage_free[i] = NULL;
    }
    if (dev->stage_stream) cudaStreamDestroy(dev->stage_stream);
    dev->stage_stream = NULL;
}

static spec_status upload_parts(spec_device *dev, spec_weight *w, const spec_weight_desc *desc)
{
    const size_t row_bytes = (size_t)desc->n_in * cuda_size(desc->dtype);
    const int32_t rows_at_once = (int32_t)(stage_bytes / row_bytes);
    int32_t row = 0, turn = 0;
    for (int32_t i = 0; i < desc->n_part; i++) {
        const spec_weight_part *part = &desc->parts[i];
        for (int32_t r = 0; r < part->n_row; turn ^= 1) {
            const int32_t n = part->n_row - r < rows_at_once ? part->n_row - r : rows_at_once;
            cudaError_t e = cudaEventSynchronize(dev->stage_free[turn]);
            if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaEventSynchronize: weight upload");
            copy_by_threads(dev->stage[turn], (const char *)part->data + (size_t)r * row_bytes, (size_t)n * row_bytes,
                            dev->host->n_threads);
            SPEC_TRY(pack(dev, (char *)w->data + (size_t)row * w->ld * cuda_size(w->dtype), w->dtype, dev->stage[turn],
                          desc->dtype, n, desc->n_in, w->ld));
            e = cudaEventRecord(dev->stage_free[turn], dev->stage_stream);
            if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaEventRecord: weight upload");
            r += n, row += n;
        }
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------- the table's --- */

static int32_t weight_ld(const spec_weight_desc *d) { return (int32_t)cuda_round_up((size_t)d->n_in, CUDA_CHUNK); }

/* Kernels read whole tiles of rows: behind the last row there is memory for a tile, zero and not used. */
static size_t weight_bytes(int32_t n_out, int32_t ld, spec_dtype dtype)
{
    return ((size_t)n_out + CUDA_WEIGHT_PAD) * (size_t)ld * cuda_size(dtype);
}

size_t speci_cuda_weight_bytes(spec_device *dev, const spec_weight_desc *d)
{
    (void)dev;
    return speci_cuda_memory_bytes(weight_bytes(d->n_out, weight_ld(d), d->compute));
}

static spec_status check_weight(spec_device *dev, const spec_weight_desc *d)
{
    const spec_host *h = dev->host;
    int64_t rows = 0;
    if (d->n_out < 1 || d->n_in < 1 || d->n_in > INT32_MAX - 8)
        return h->fail(SPEC_E_INVALID, "cuda weight: %d x %d", d->n_out, d->n_in);
    if (!cuda_is_float(d->dtype) || !cuda_is_float(d->compute))
        return h->fail(SPEC_E_UNSUPPORTED, "cuda weight: of type %d for type %d", (int)d->dtype, (int)d->compute);
    for (int32_t i = 0; i < d->n_part; i++) {
        if (!d->parts[i].data || d->parts[i].n_row < 0)
            return h->fail(SPEC_E_INVALID, "cuda weight: part %d has no data", i);
        rows += d->parts[i].n_row;
    }
    if (rows != d->n_out)
        return h->fail(SPEC_E_INVALID, "cuda weight: the parts have %lld rows, expected %d", (long long)rows, d->n_out);
    if ((size_t)d->n_in * cuda_size(d->dtype) > stage_bytes)
        return h->fail(SPEC_E_UNSUPPORTED, "cuda weight: rows of %d elements are too long", d->n_in);
    return SPEC_OK;
}

spec_status speci_cuda_weight_open(spec_device *dev, spec_weight **out, const spec_weight_desc *desc)
{
    *out = NULL;
    SPEC_TRY(cuda_enter(dev));
    SPEC_TRY(check_weight(dev, desc));
    spec_weight *w = (spec_weight *)dev->host->alloc(dev->host, 1, sizeof *w);
    if (!w) return SPEC_E_NOMEM;
    w->n_out = desc->n_out, w->n_in = desc->n_in, w->ld = weight_ld(desc), w->dtype = desc->compute;
    w->glu = desc->glu != 0;
    const size_t used = (size_t)w->n_out * (size_t)w->ld * cuda_size(w->dtype);
    const size_t bytes = weight_bytes(w->n_out, w->ld, w->dtype);
    cudaError_t e = cudaMalloc(&w->data, bytes);
    if (e == cudaSuccess && (e = cudaMemset((char *)w->data + used, 0, bytes - used)) != cudaSuccess) (void)cudaFree(w->data);
    if (e != cudaSuccess) {
        dev->host->free(dev->host, w);
        return speci_cuda_status(dev, e, "cudaMalloc: weight");
    }
    spec_status status;
    {
        std::lock_guard<std::mutex> lock(dev->stage_lock);
        status = stage_open(dev);
        if (status == SPEC_OK) status = upload_parts(dev, w, desc);
        if (dev->stage_stream) { /* also after an error: nothing may still write to the weight */
            const cudaError_t done = cudaStreamSynchronize(dev->stage_stream);
            if (done != cudaSuccess && status == SPEC_OK) status = speci_cuda_status(dev, done, "weight upload");
        }
    }
    if (status != SPEC_OK) {
        (void)cudaFree(w->data);
        dev->host->free(dev->host, w);
        return status;
    }
    *out = w;
    return SPEC_OK;
}

void speci_cuda_weight_close(spec_device *dev, spec_weight *w)
{
    if (!w) return;
    (void)cudaSetDevice(dev->ordinal);
    (void)cudaFree(w->data);
    dev->host->free(dev->host, w);
}
