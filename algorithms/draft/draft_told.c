/* draft_told.c - hidden rows of the target that a head was told: rings of them, and the copies from and to where they are read. */
#include "algorithms/draft/draft_model.h"
#include "core/core_dtype.h"

/* --- memory --- */

static size_t ring_bytes(const model_draft *m, int32_t k)
{
    const size_t n = (size_t)m->d->site->n_seq * SPECI_TOLD_ROWS * m->told.row_bytes[k];
    return (n + 255) / 256 * 256;
}

spec_status speci_draft_told_open(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    model_told *t = &m->told;
    const size_t n = (size_t)speci_head_n_tap(m->model);
    if (n == 0) return SPEC_OK;
    t->n_tap = (int32_t)n, t->dim = site->target->dim;
    t->n_copy_max = t->n_tap * (2 * (SPEC_MAX_DEPTH + 1) + 2 * site->n_seq);
    t->taps = speci_alloc(site->a, n, sizeof *t->taps);
    t->row_bytes = speci_alloc(site->a, n, sizeof *t->row_bytes);
    t->ring = speci_alloc(site->a, n, sizeof *t->ring);
    t->copies = speci_alloc(site->a, (size_t)t->n_copy_max, sizeof *t->copies);
    if (!t->taps || !t->row_bytes || !t->ring || !t->copies) return SPEC_E_NOMEM;
    speci_head_taps(m->model, site->target, t->taps);
    for (int32_t k = 0; k < t->n_tap; k++) {
        const spec_dtype type = t->taps[k].where == SPEC_TAP_NORM ? site->target->dtype : SPEC_DTYPE_F32;
        t->row_bytes[k] = (size_t)t->dim * speci_dtype_bytes(type);
        t->bytes += ring_bytes(m, k);
    }
    m->d->taps = t->taps, m->d->n_tap = t->n_tap;
    return SPEC_OK;
}

spec_status speci_draft_told_attach(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    model_told *t = &m->told;
    if (t->n_tap == 0) return SPEC_OK;
    SPEC_TRY(site->ops->alloc(site->dev, &t->base, t->bytes));
    char *at = t->base;
    for (int32_t k = 0; k < t->n_tap; k++) t->ring[k] = at, at += ring_bytes(m, k);
    return SPEC_OK;
}

void speci_draft_told_close(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    model_told *t = &m->told;
    if (t->base) site->ops->free(site->dev, t->base, t->bytes);
    void *arrays[] = { t->taps, t->row_bytes, t->ring, t->copies };
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) speci_free(site->a, arrays[i]);
}

/* --- rows from place to place --- */

spec_status speci_draft_told_copy(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    const int32_t n = m->told.n_copy;
    m->told.n_copy = 0;
    return n > 0 ? site->ops->copy(site->queue, m->told.copies, n) : SPEC_OK;
}

spec_status speci_draft_told_add(model_draft *m, char *to, const char *from, size_t bytes)
{
    model_told *t = &m->told;
    spec_range_copy *last = t->n_copy > 0 ? &t->copies[t->n_copy - 1] : NULL;
    if (last && (char *)last->to + last->bytes == to && (const char *)last->from + last->bytes == from) {
        last->bytes += bytes;
        return SPEC_OK;
    }
    if (t->n_copy == t->n_copy_max) SPEC_TRY(speci_draft_told_copy(m));
    t->copies[t->n_copy++] = (spec_range_copy){ to, from, bytes };
    return SPEC_OK;
}

char *speci_draft_view_row(const spec_view *v, int32_t row)
{
    return (char *)v->data + (size_t)row * (size_t)v->ld * speci_dtype_bytes(v->dtype);
}

/* Nodes of first passes alone: those of later ones have rows of the head's own. */
spec_status speci_draft_give(model_draft *m, const int32_t *seqs, int32_t n)
{
    for (int32_t k = 0; k < m->told.n_tap; k++) {
        const spec_view to = m->exec->kind->given(m->exec, k);
        for (int32_t i = 0, row = 0; i < n; i++) {
            const model_seq *s = &m->seqs[seqs[i]];
            const int32_t base = m->exec->kind->n_past(m->exec, seqs[i]);
            for (int32_t j = s->n_fed; j < s->fed.n; j++, row++)
                if (s->n_fed == 0)
                    SPEC_TRY(speci_draft_told_add(m, speci_draft_view_row(&to, row), speci_draft_told_row(m, k, seqs[i], base + j),
                                      m->told.row_bytes[k]));
        }
    }
    return speci_draft_told_copy(m);
}
