/* core_dtype.h - types by name, and their sizes: for the library, and for backends, which cannot call it. */
#ifndef SPEC_CORE_DTYPE_H
#define SPEC_CORE_DTYPE_H

#include "spec.h"

static inline const char *speci_dtype_name(spec_dtype dtype)
{
    switch (dtype) {
    case SPEC_DTYPE_AUTO: return "auto";
    case SPEC_DTYPE_F32: return "f32";
    case SPEC_DTYPE_BF16: return "bf16";
    case SPEC_DTYPE_F16: return "f16";
    case SPEC_DTYPE_I32: return "i32";
    case SPEC_DTYPE_Q8_0: return "q8_0";
    case SPEC_DTYPE_Q4_0: return "q4_0";
    case SPEC_DTYPE_Q4_1: return "q4_1";
    case SPEC_DTYPE_Q5_0: return "q5_0";
    case SPEC_DTYPE_Q5_1: return "q5_1";
    case SPEC_DTYPE_Q4_K: return "q4_k";
    case SPEC_DTYPE_Q5_K: return "q5_k";
    case SPEC_DTYPE_Q6_K: return "q6_k";
    }
    return "unknown type";
}

/* Bytes of a value, of types that are no blocks. */
static inline size_t speci_dtype_bytes(spec_dtype dtype) { return dtype == SPEC_DTYPE_F32 || dtype == SPEC_DTYPE_I32 ? 4 : 2; }

#endif
