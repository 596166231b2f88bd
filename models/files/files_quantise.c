/* files_quantise.c - matrices in Q8_0: of 32 consecutive values of a row
 *
 *   scale = max |w| / 127, kept as f16;   q = w / scale rounded to nearest, halves away from zero
 *
 * with the quotient by the scale before it becomes f16. So does ggml (quantize_row_q8_0_ref): its blocks are the same. */
#include <math.h>
#include <string.h>

#include "core/core_half.h"
#include "models/families/family_build.h"

static const float most_held = 65504.0f * 127.0f; /* the largest f16 times the largest q */

/* The largest |x|, or infinity where there is one or a NaN. */
static float largest(const float *x)
{
    float most = 0.0f;
    int n_held = 0;
    for (int k = 0; k < SPEC_Q8_BLOCK; k++) {
        const float a = fabsf(x[k]);
        n_held += a <= most_held;
        most = a > most ? a : most;
    }
    return n_held == SPEC_Q8_BLOCK ? most : INFINITY;
}

static void quantise(spec_q8_block *out, const float *x, float most)
{
    const float scale = most / 127.0f;
    out->scale = speci_to_f16(scale);
    const float inverse = out->scale > 0 ? 1.0f / scale : 0.0f;
    for (int k = 0; k < SPEC_Q8_BLOCK; k++) {
        const float v = x[k] * inverse;
        const int whole = (int)v;
        const float rest = v - (float)whole;
        out->q[k] = (int8_t)(whole + (rest >= 0.5f) - (rest <= -0.5f));
    }
}

spec_status speci_quantise_q8_0(spec_q8_block *out, const model_tensor *t, int32_t first, int32_t n)
{
    const size_t n_in = (size_t)t->dim[1], begin = (size_t)first * n_in, end = begin + (size_t)n * n_in;
    const size_t n_at_once = t->blocks ? t->blocks->n_value : SPEC_Q8_BLOCK;
    float values[SPEC_K_BLOCK];
    for (size_t i = begin; i < end; i += SPEC_Q8_BLOCK, out++) {
        if ((i - begin) % n_at_once == 0) speci_tensor_floats(values, t, i, n_at_once);
        const float *x = values + (i - begin) % n_at_once;
        const float most = largest(x);
        if (!(most <= most_held))
            return speci_fail(SPEC_E_UNSUPPORTED,
                              "%s: tensor %s: row %zu has a value that is not finite or beyond %.0f in columns %zu to "
                              "%zu, which q8_0 cannot hold", t->file, t->name, i / n_in, (double)most_held, i % n_in,
                              i % n_in + SPEC_Q8_BLOCK - 1);
        quantise(out, x, most);
    }
    return SPEC_OK;
}
