/* files_tensor.c - tensors of files: their shape, their bytes, their values as float32. */
#include <string.h>

#include "core/core_dtype.h"
#include "core/core_half.h"
#include "models/files/files_checkpoint.h"

bool speci_tensor_has_shape(const model_tensor *t, int32_t n_dim, const int64_t *dim)
{
    return t->n_dim == n_dim && memcmp(t->dim, dim, (size_t)n_dim * sizeof *dim) == 0;
}

size_t speci_tensor_bytes(const model_tensor *t, size_t n)
{
    return t->blocks ? n / t->blocks->n_value * t->blocks->bytes : n * speci_dtype_bytes(t->dtype);
}

void speci_tensor_floats(float *out, const model_tensor *t, size_t first, size_t n)
{
    const uint8_t *data = t->data + speci_tensor_bytes(t, first);
    uint16_t h;
    if (t->blocks) {
        t->blocks->unpack(out, data, n / t->blocks->n_value);
        return;
    }
    if (t->dtype == SPEC_DTYPE_F32) {
        memcpy(out, data, n * sizeof *out);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(&h, data + i * sizeof h, sizeof h);
        out[i] = t->dtype == SPEC_DTYPE_F16 ? speci_from_f16(h) : speci_from_bf16(h);
    }
}
