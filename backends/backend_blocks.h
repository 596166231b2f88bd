/* backend_blocks.h - blocks of weights (spec_blocks.h) as float32, on the host. Internal. */
#ifndef SPEC_BACKEND_BLOCKS_H
#define SPEC_BACKEND_BLOCKS_H

#include <stddef.h>

#include "backends/spec_blocks.h"

/* n blocks, at an even address, to y [n * 32] or [n * 256]. An f16 that is not finite makes values that are not. */
typedef void speci_unpack_fn(float *y, const void *blocks, size_t n);
speci_unpack_fn speci_unpack_q8_0, speci_unpack_q4_0, speci_unpack_q4_1, speci_unpack_q5_0, speci_unpack_q5_1, speci_unpack_q4_k,
    speci_unpack_q5_k, speci_unpack_q6_k;

#endif
