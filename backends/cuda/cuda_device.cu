/* cuda_device.cu - devices: which there are, what they have, their memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>

#include "backends/cuda/cuda.cuh"

/* Asks whether this build holds code that the device can run. */
static __global__ void presence_kernel(void) {}

/* Code for an older device, compiled by the driver for this one, has what that device had. */
static int ability_of(const cudaDeviceProp &prop, const cudaFuncAttributes &code)
{
    return min(10 * prop.major + prop.minor, code.ptxVersion);
}

static spec_status device_count(const spec_host *host, int *n)
{
    *n = 0;
    const cudaError_t e = cudaGetDeviceCount(n);
    if (e == cudaSuccess && *n > 0) return SPEC_OK;
    (void)cudaGetLastError();
    if (e == cudaSuccess || e == cudaErrorNoDevice) return host->fail(SPEC_E_DEVICE, "no CUDA device");
    return host->fail(SPEC_E_DEVICE, "no CUDA device: %s (%s)", cudaGetErrorString(e), cudaGetErrorName(e));
}

spec_status speci_cuda_open(spec_device **out, const spec_host *host, const char *arg)
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
    if (status == SPEC_OK) {
        dev->ability = ability_of(prop, attributes);
        dev->shared_most = prop.sharedMemPerBlockOptin - CUDA_SHARED_OWN;
    }
    if (status != SPEC_OK) {
        dev->~spec_device();
        host->free(host, memory);
        return status;
    }
    *out = dev;
    return SPEC_OK;
}

void speci_cuda_close(spec_device *dev)
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

spec_status speci_cuda_info(spec_device *dev, spec_device_info *out)
{
    size_t free_bytes, total_bytes;
    SPEC_TRY(cuda_enter(dev));
    const cudaError_t e = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (e != cudaSuccess) return speci_cuda_status(dev, e, "cudaMemGetInfo");
    memset(out, 0, sizeof *out);
    memcpy(out->name, dev->name, sizeof out->name);
    int32_t n = 0;
    for (int32_t rows = CUDA_PREFILL_LEAST; rows <= CUDA_PREFILL_CHUNK; rows *= 2) out->prefill_rows[n++] = rows;
    out->row_max = CUDA_ROW_MAX;
    out->bytes_total = total_bytes, out->bytes_free = free_bytes;
    return SPEC_OK;
}

spec_status speci_cuda_list(const spec_host *host, void (*each)(void *user, const char *arg, const char *text), void *user)
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

spec_status speci_cuda_alloc(spec_device *dev, void **out, size_t bytes)
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

void speci_cuda_free(spec_device *dev, void *p, size_t bytes)
{
    (void)bytes;
    if (!p) return;
    (void)cudaSetDevice(dev->ordinal);
    (void)cudaFree(p);
    (void)cudaGetLastError();
}
