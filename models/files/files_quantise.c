/* files_quantise.c - rows of a file's tensor in blocks (backends/backend_pack.h), and in which. */
#include <string.h>

#include "models/families/family_build.h"

const speci_packing *speci_packing_of(spec_dtype dtype)
{
    static const struct {
        spec_dtype dtype;
        const speci_packing *packing;
    } rows[] = {
        { SPEC_DTYPE_Q8_0, &speci_pack_q8_0 }, { SPEC_DTYPE_Q4_0, &speci_pack_q4_0 }, { SPEC_DTYPE_Q4_1, &speci_pack_q4_1 },
        { SPEC_DTYPE_Q5_0, &speci_pack_q5_0 }, { SPEC_DTYPE_Q5_1, &speci_pack_q5_1 }, { SPEC_DTYPE_Q4_K, &speci_pack_q4_k },
        { SPEC_DTYPE_Q5_K, &speci_pack_q5_k }, { SPEC_DTYPE_Q6_K, &speci_pack_q6_k },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].dtype == dtype) return rows[i].packing;
    return NULL;
}

spec_dtype speci_quantised_as(spec_dtype weights, int32_t n_in)
{
    const speci_packing *const packing = speci_packing_of(weights);
    if (!packing || n_in % SPEC_Q8_BLOCK != 0) return SPEC_DTYPE_AUTO;
    return n_in % (int32_t)packing->n_value == 0 ? weights : SPEC_DTYPE_Q8_0;
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
