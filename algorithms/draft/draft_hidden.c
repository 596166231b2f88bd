/* draft_hidden.c - hidden rows of the target on the host, as float32. */
#include "algorithms/draft/draft.h"

#include <string.h>

#include "core/core_dtype.h"
#include "core/core_half.h"

/* Rows that lie side by side are fetched at once. */
spec_status speci_hidden_download(const speci_draft_site *site, float *to, const speci_draft_hidden *h, int32_t tap, int32_t first,
                                  int32_t n)
{
    const spec_view *v = &h->taps[tap];
    const int32_t dim = site->target->dim;
    const size_t size = speci_dtype_bytes(v->dtype), bytes = (size_t)dim * size;
    for (int32_t i = 0, run; i < n; i += run) {
        const int32_t row = speci_hidden_row(h, first + i);
        for (run = 1; i + run < n && v->ld == dim && speci_hidden_row(h, first + i + run) == row + run;) run++;
        SPEC_TRY(site->ops->download(site->queue, (char *)to + (size_t)i * bytes,
                                     (const char *)v->data + (size_t)row * (size_t)v->ld * size, (size_t)run * bytes));
    }
    return SPEC_OK;
}

void speci_hidden_widen(float *rows, size_t n, spec_dtype type)
{
    for (size_t i = n; type != SPEC_DTYPE_F32 && i-- > 0;) { /* in place, from behind */
        uint16_t h;
        memcpy(&h, (const char *)rows + i * sizeof h, sizeof h);
        rows[i] = type == SPEC_DTYPE_BF16 ? speci_from_bf16(h) : speci_from_f16(h);
    }
}
