/* cuda_weight.cu - weights: from host memory of any kind and alignment into rows on the device.
 * Two pinned buffers: while one is filled by several threads, the other crosses the bus (cuda_pack.cu). */
#include <string.h>

#include "backends/cuda/linear/cuda_linear.cuh"

static const size_t stage_bytes = (size_t)32 << 20;

/* ------------------------------------------------------------------------- staging --- */

static const size_t copy_bytes = (size_t)2 << 20;
struct copying {
    char *to;
    const char *from;
    size_t bytes;
};

static void copy_piece(void *arg, int32_t i)
{
    const copying *const c = (const copying *)arg;
    const size_t at = (size_t)i * copy_bytes, left = c->bytes - at;
    memcpy(c->to + at, c->from + at, left < copy_bytes ? left : copy_bytes);
}

/* memcpy by several threads: reading a mapped file is bound by page faults, which they share. */
static void copy_by_threads(spec_device *dev, char *to, const char *from, size_t bytes)
{
    copying c = { to, from, bytes };
    speci_cuda_parallel(dev, (int32_t)((bytes + copy_bytes - 1) / copy_bytes), copy_piece, &c);
}

/* Zero what no row is written to: behind a plain matrix, else anywhere. `bytes`: of the allocation. */
static spec_status clear(spec_device *dev, const spec_weight *w, size_t bytes)
{
    const size_t from = w->format->plain ? w->bytes : 0;
    const cudaError_t e = cudaMemsetAsync((char *)w->data + from, 0, bytes - from, dev->stage_stream);
    return e == cudaSuccess ? SPEC_OK : speci_cuda_status(dev, e, "cudaMemsetAsync: weight");
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

/* Bytes of a row of the parts. */
static size_t source_row(const spec_weight_desc *d)
{
    const cuda_format *f = speci_cuda_format_of(d->dtype);
    return (size_t)(d->n_in / f->block) * f->block_bytes;
}

static spec_status upload_parts(spec_device *dev, spec_weight *w, const spec_weight_desc *desc)
{
    const size_t row_bytes = source_row(desc);
    const int32_t rows_at_once = (int32_t)(stage_bytes / row_bytes);
    int32_t row = 0, turn = 0;
    for (int32_t i = 0; i < desc->n_part; i++) {
        const spec_weight_part *part = &desc->parts[i];
        for (int32_t r = 0; r < part->n_row; turn ^= 1) {
            const int32_t n = part->n_row - r < rows_at_once ? part->n_row - r : rows_at_once;
            cudaError_t e = cudaEventSynchronize(dev->stage_free[turn]);
            if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaEventSynchronize: weight upload");
            copy_by_threads(dev, dev->stage[turn], (const char *)part->data + (size_t)r * row_bytes, (size_t)n * row_bytes);
            SPEC_TRY(w->format->pack(dev, w, row, dev->stage[turn], n));
            e = cudaEventRecord(dev->stage_free[turn], dev->stage_stream);
            if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaEventRecord: weight upload");
            r += n, row += n;
        }
    }
    return SPEC_OK;
}

/* ------------------------------------------------------------------------- the table's --- */

static int32_t weight_ld(const spec_weight_desc *d) { return (int32_t)cuda_round_up((size_t)d->n_in, CUDA_CHUNK); }

/* Fills everything of w but its data; returns the bytes of that. Kernels read whole tiles of rows: behind the last one
 * there is memory for a tile, zero and not used. */
static size_t layout(spec_weight *w, const spec_weight_desc *d)
{
    w->n_out = d->n_out, w->n_in = d->n_in, w->ld = weight_ld(d), w->dtype = d->compute;
    w->glu = d->glu != 0, w->format = speci_cuda_format_of(d->dtype);
    w->bytes = w->format->bytes(w);
    return w->bytes + (w->format->plain ? CUDA_WEIGHT_PAD * (size_t)w->ld * speci_dtype_bytes(w->dtype) : 0);
}

size_t speci_cuda_weight_bytes(spec_device *dev, const spec_weight_desc *d)
{
    spec_weight w;
    (void)dev;
    return speci_cuda_format_of(d->dtype) ? speci_cuda_memory_bytes(layout(&w, d)) : 0;
}

static spec_status check_weight(spec_device *dev, const spec_weight_desc *d)
{
    const spec_host *h = dev->host;
    int64_t rows = 0;
    if (d->n_out < 1 || d->n_in < 1 || d->n_in > INT32_MAX - 8)
        return h->fail(SPEC_E_INVALID, "cuda weight: %d x %d", d->n_out, d->n_in);
    const cuda_format *f = speci_cuda_format_of(d->dtype);
    if (!f || !cuda_is_float(d->compute))
        return h->fail(SPEC_E_UNSUPPORTED, "cuda weight: %s for activations of %s is not supported", speci_dtype_name(d->dtype),
                       speci_dtype_name(d->compute));
    if (d->n_in % f->block != 0)
        return h->fail(SPEC_E_INVALID, "cuda weight: %s needs rows of a multiple of %d, not %d", speci_dtype_name(d->dtype), f->block,
                       d->n_in);
    for (int32_t i = 0; i < d->n_part; i++) {
        if (!d->parts[i].data || d->parts[i].n_row < 0)
            return h->fail(SPEC_E_INVALID, "cuda weight: part %d has no data", i);
        rows += d->parts[i].n_row;
    }
    if (rows != d->n_out)
        return h->fail(SPEC_E_INVALID, "cuda weight: the parts have %lld rows, expected %d", (long long)rows, d->n_out);
    if (source_row(d) > stage_bytes)
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
    const size_t bytes = layout(w, desc);
    if (w->format->products == &speci_cuda_linear_blocks && bytes > UINT32_MAX) { /* offsets of its kernels */
        dev->host->free(dev->host, w);
        return dev->host->fail(SPEC_E_UNSUPPORTED, "cuda weight: %d x %d in blocks of %s take %zu bytes; at most 4 GiB", desc->n_out,
                               desc->n_in, speci_dtype_name(desc->dtype), bytes);
    }
    const cudaError_t e = cudaMalloc(&w->data, bytes);
    if (e != cudaSuccess) {
        dev->host->free(dev->host, w);
        return speci_cuda_status(dev, e, "cudaMalloc: weight");
    }
    spec_status status;
    {
        std::lock_guard<std::mutex> lock(dev->stage_lock);
        status = stage_open(dev);
        if (status == SPEC_OK) status = clear(dev, w, bytes);
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
