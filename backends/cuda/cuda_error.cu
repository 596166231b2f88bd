/* cuda_error.cu - what CUDA says, as a status of the library. */
#include "backends/cuda/cuda.cuh"

spec_status speci_cuda_status(const spec_device *dev, cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* errors that do not stick, like a failed allocation, would be seen by the next call */
    const spec_status code = error == cudaErrorMemoryAllocation ? SPEC_E_NOMEM : SPEC_E_DEVICE;
    return dev->host->fail(code, "%s: %s, on %s", cudaGetErrorName(error), what, dev->name);
}
