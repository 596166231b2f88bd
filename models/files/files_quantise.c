/* files_quantise.c - rows of a file's tensor in blocks (backends/backend_pack.h), and in which. */
#include <string.h>

#include "models/families/family_build.h"

const speci_packing *speci_packing_of(spec_dtype dtype)
{
    const gguf_type *const type = speci_gguf_type_of(dtype);
    return type ? type->packing : NULL;
}

spec_dtype speci_quantised_as(spec_dtype weights, int32_t n_in)
{
    if (!speci_packing_of(weights)) return SPEC_DTYPE_AUTO;
    const gguf_type *const type = speci_gguf_type_fitting(speci_gguf_type_of(weights), n_in);
    return type ? type->dtype : SPEC_DTYPE_AUTO;
}

spec_status speci_quantise(const speci_packing *packing, void *out, const model_tensor *t, int32_t first, int32_t n)
{
    const size_t n_in = (size_t)t->dim[1], end = (size_t)(first + n) * n_in;
    float x[SPEC_K_BLOCK]; /* which is a multiple of all blocks' */
    uint8_t *at = out;
    for (size_t i = (size_t)first * n_in; i < end; i += SPEC_K_BLOCK) {
        const size_t n_piece = end - i < SPEC_K_BLOCK ? end - i : SPEC_K_BLOCK, n_block = n_piece / packing->n_value;
        speci_tensor_floats(x, t, i, n_piece);
        const size_t n_packed = speci_pack(packing, at, x, n_block), bad = i + n_packed * packing->n_value;
        if (n_packed < n_block)
            return speci_fail(SPEC_E_UNSUPPORTED,
                              "%s: tensor %s: row %zu has a value that is not finite or beyond %.0f in columns %zu to "
                              "%zu, which %s cannot hold", t->file, t->name, bad / n_in, (double)packing->most, bad % n_in,
                              bad % n_in + packing->n_value - 1, packing->name);
        at += n_block * packing->bytes;
    }
    return SPEC_OK;
}
