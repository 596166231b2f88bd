/* spec_cuda.h - the CUDA backend linked into a program, instead of loaded as a plugin.
 *
 *     spec_backend_open_ops(&be, spec_cuda_ops(), "0", NULL);      "0": the device's number
 *
 * Link with libspec-cuda (shared, or the archive libspec-cuda.a), the CUDA runtime and cuBLAS. */
#ifndef SPEC_CUDA_H
#define SPEC_CUDA_H

#include "spec.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The backend's table; constant, lives as long as the program. */
__attribute__((visibility("default"))) const spec_backend_ops *spec_cuda_ops(void);

#ifdef __cplusplus
}
#endif
#endif
