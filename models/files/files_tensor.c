/* files_tensor.c - the values of tensors as float32. */
#include <string.h>

#include "core/core_dtype.h"
#include "core/core_half.h"
#include "models/files/files_checkpoint.h"

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
