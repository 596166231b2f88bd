/* draft_head_save.c - a head in a saved sequence: a start, its ids, the hidden rows that its executor has not been given for good, tap by
 * tap, then what the executor keeps. Little-endian hosts only, as the states are. */
#include "algorithms/draft/draft_model.h"

typedef struct saved_start {
    int32_t outgrown, first, n_ids, n_past; /* rows: n_ids - n_past */
} saved_start;

static uint64_t rows_bytes(const model_draft *m, const saved_start *h)
{
    uint64_t row = 0;
    for (int32_t k = 0; k < m->told.n_tap; k++) row += m->told.row_bytes[k];
    return row * (uint64_t)(h->n_ids - h->n_past);
}

static saved_start start_of(const model_draft *m, int32_t seq)
{
    const model_seq *s = &m->seqs[seq];
    if (s->outgrown) return (saved_start){ .outgrown = 1 };
    return (saved_start){ .first = s->first, .n_ids = s->n_told, .n_past = m->exec->kind->n_past(m->exec, seq) };
}

/* --- save --- */

static spec_status put_rows(model_draft *m, int32_t seq, const saved_start *h, speci_put_fn put, void *arg)
{
    const speci_draft_site *site = m->d->site;
    const uint64_t n = rows_bytes(m, h);
    if (n == 0) return SPEC_OK;
    char *rows = speci_alloc(site->a, (size_t)n, 1), *at = rows;
    spec_status status = rows ? SPEC_OK : SPEC_E_NOMEM;
    for (int32_t k = 0; k < m->told.n_tap; k++)
        for (int32_t i = h->n_past; i < h->n_ids && status == SPEC_OK; i++, at += m->told.row_bytes[k])
            status = site->ops->download(site->queue, at, speci_draft_told_row(m, k, seq, i), m->told.row_bytes[k]);
    if (status == SPEC_OK) status = site->ops->sync(site->queue);
    if (status == SPEC_OK) status = put(arg, rows, (size_t)n);
    speci_free(site->a, rows);
    return status;
}

spec_status speci_draft_head_save(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg)
{
    model_draft *m = d->state;
    const model_seq *s = &m->seqs[q->seq];
    if (!put && !s->outgrown) SPEC_TRY(m->exec->kind->flush(m->exec, q->seq));
    const saved_start h = start_of(m, q->seq);
    uint64_t n = 0;
    if (!h.outgrown) SPEC_TRY(speci_exec_seq_bytes(m->exec, q->seq, &n));
    *bytes = sizeof h + (uint64_t)h.n_ids * sizeof(int32_t) + rows_bytes(m, &h) + n;
    if (!put) return SPEC_OK;
    SPEC_TRY(put(arg, &h, sizeof h));
    if (h.outgrown) return SPEC_OK;
    if (h.n_ids > 0) SPEC_TRY(put(arg, q->ids + h.first + 1, (size_t)h.n_ids * sizeof(int32_t)));
    SPEC_TRY(put_rows(m, q->seq, &h, put, arg));
    return m->exec->kind->write(m->exec, q->seq, put, arg);
}

/* --- restore --- */

/* What follows the start must be what it says, of this sequence; *left: the bytes behind ids and rows. */
static spec_status check_start(const model_draft *m, const speci_draft_seq *q, const saved_start *h, uint64_t *left)
{
    if (h->n_past < 0 || h->n_past > h->n_ids || h->n_ids - h->n_past > SPECI_TOLD_ROWS || h->n_ids >= q->n_ids ||
        h->first != q->n_ids - 1 - h->n_ids)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its head has %d ids from position %d on, %d of them covered, in a sequence of %d",
                          h->n_ids, h->first, h->n_past, q->n_ids);
    const uint64_t own = (uint64_t)h->n_ids * sizeof(int32_t) + rows_bytes(m, h);
    if (*left < own)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu bytes of a head, expected %llu and more", (unsigned long long)*left,
                          (unsigned long long)own);
    *left -= own;
    return speci_exec_check_bytes(m->exec, h->n_past, 0, *left, "head");
}

static spec_status get_rows(model_draft *m, int32_t seq, const saved_start *h, speci_get_fn get, void *arg)
{
    const speci_draft_site *site = m->d->site;
    for (int32_t k = 0; k < m->told.n_tap; k++) {
        char *row = speci_alloc(site->a, m->told.row_bytes[k], 1);
        spec_status status = row ? SPEC_OK : SPEC_E_NOMEM;
        for (int32_t i = h->n_past; i < h->n_ids && status == SPEC_OK; i++) {
            status = get(arg, row, m->told.row_bytes[k]);
            if (status == SPEC_OK)
                status = site->ops->upload(site->queue, speci_draft_told_row(m, k, seq, i), row, m->told.row_bytes[k]);
        }
        speci_free(site->a, row);
        SPEC_TRY(status);
    }
    return SPEC_OK;
}

spec_status speci_draft_head_restore(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg)
{
    model_draft *m = d->state;
    model_seq *s = &m->seqs[q->seq];
    saved_start h;
    if (bytes < sizeof h) return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu bytes of a head", (unsigned long long)bytes);
    SPEC_TRY(get(arg, &h, sizeof h));
    uint64_t left = bytes - sizeof h;
    speci_draft_head_begin(m, q->seq, h.first);
    s->outgrown = h.outgrown || (m->n_ctx > 0 && h.n_ids > m->n_ctx);
    if (s->outgrown) return speci_draft_skip(left, get, arg);
    SPEC_TRY(check_start(m, q, &h, &left));
    SPEC_TRY(speci_draft_skip((uint64_t)h.n_ids * sizeof(int32_t), get, arg)); /* the sequence has them */
    SPEC_TRY(get_rows(m, q->seq, &h, get, arg));
    s->n_told = h.n_ids;
    return m->exec->kind->read(m->exec, q->seq, &(speci_exec_saved){ h.n_past, 0, left }, get, arg);
}
