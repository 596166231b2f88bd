/* draft_head.c - a head on the target's hidden states as drafter (algorithms.md 16): a model (draft_model.c) that is fed each token
 * beside the target's hidden row of the position in front, and its own rows behind the root.
 *
 * So its ids are those of the sequence from the second on, and come with their rows. What it drafted it computed from its own rows: it is
 * never committed, but fed anew with the target's. Where rows are missing (a restored sequence without its part), its context begins with
 * the first that come. */
#include "algorithms/draft/draft_model.h"

enum { KEPT = SPECI_TOLD_ROWS / 2 /* rows that wait for a draft */ };

/* --- does it fit a target? --- */

spec_status speci_draft_head_check(const spec_drafter *d, const spec_model *target)
{
    const spec_model *m = d->own;
    if (m->backend != target->backend)
        return speci_fail(SPEC_E_INVALID, "the head %s is on backend %s, the target on %s: load both on one", m->path,
                          spec_backend_name(m->backend), spec_backend_name(target->backend));
    return speci_head_check(m, target);
}

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
        t->row_bytes[k] = (size_t)t->dim * (type == SPEC_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
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

static spec_status copy_all(model_draft *m)
{
    const speci_draft_site *site = m->d->site;
    const int32_t n = m->told.n_copy;
    m->told.n_copy = 0;
    return n > 0 ? site->ops->copy(site->queue, m->told.copies, n) : SPEC_OK;
}

/* Neighbours become one range. */
static spec_status add_copy(model_draft *m, char *to, const char *from, size_t bytes)
{
    model_told *t = &m->told;
    spec_range_copy *last = t->n_copy > 0 ? &t->copies[t->n_copy - 1] : NULL;
    if (last && (char *)last->to + last->bytes == to && (const char *)last->from + last->bytes == from) {
        last->bytes += bytes;
        return SPEC_OK;
    }
    if (t->n_copy == t->n_copy_max) SPEC_TRY(copy_all(m));
    t->copies[t->n_copy++] = (spec_range_copy){ to, from, bytes };
    return SPEC_OK;
}

static const char *row_of(const spec_view *v, int32_t row)
{
    return (const char *)v->data + (size_t)row * (size_t)v->ld * (v->dtype == SPEC_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

/* Rows [from, from + n) of h, those of the ids behind the ones that were told. */
static spec_status keep_rows(model_draft *m, int32_t seq, const speci_draft_hidden *h, int32_t from, int32_t n)
{
    model_seq *s = &m->seqs[seq];
    for (int32_t k = 0; k < m->told.n_tap; k++)
        for (int32_t i = 0; i < n; i++)
            SPEC_TRY(add_copy(m, speci_draft_told_row(m, k, seq, s->n_told + i), row_of(&h->taps[k], speci_hidden_row(h, from + i)),
                              m->told.row_bytes[k]));
    s->n_told += n;
    return copy_all(m);
}

/* Nodes of first passes alone: those of later ones have rows of the head's own. */
spec_status speci_draft_give(model_draft *m, const int32_t *seqs, int32_t n)
{
    for (int32_t k = 0; k < m->told.n_tap; k++) {
        const spec_view to = speci_exec_given(m->exec, k);
        for (int32_t i = 0, row = 0; i < n; i++) {
            const model_seq *s = &m->seqs[seqs[i]];
            const int32_t base = speci_exec_n_past(m->exec, seqs[i]);
            for (int32_t j = s->n_fed; j < s->fed.n; j++, row++)
                if (s->n_fed == 0)
                    SPEC_TRY(add_copy(m, (char *)(uintptr_t)row_of(&to, row), speci_draft_told_row(m, k, seqs[i], base + j),
                                      m->told.row_bytes[k]));
        }
    }
    return copy_all(m);
}

/* --- in step with the sequence --- */

/* But for the executor's slot. */
spec_status speci_draft_head_begin(model_draft *m, const speci_draft_seq *q, int32_t first)
{
    model_seq *s = &m->seqs[q->seq];
    s->begun = true, s->outgrown = false;
    s->fed.n = s->n_fed = 0;
    s->first = first, s->n_told = 0;
    s->own.ids.n = 0, s->own.n_from = s->own.n_held = 0;
    return speci_buf_reserve(&s->own.ids, (size_t)speci_draft_room_of(m, q) * sizeof(int32_t));
}

static spec_status begin(model_draft *m, const speci_draft_seq *q, int32_t first)
{
    speci_exec_begin(m->exec, q->seq);
    return speci_draft_head_begin(m, q, first);
}

/* Feeds what is kept, as chains, until it is all covered: behind it other rows have come. */
static spec_status feed_kept(model_draft *m, int32_t seq)
{
    model_seq *s = &m->seqs[seq];
    int32_t n_ids;
    const int32_t *ids = speci_translated(&s->own, &n_ids);
    for (;;) {
        speci_draft_commit_fed(m, seq);
        const int32_t base = speci_exec_n_past(m->exec, seq), left = s->n_told - base;
        if (left == 0) return SPEC_OK;
        for (int32_t i = 0; i < left && i < m->n_node && i <= SPEC_MAX_DEPTH; i++) (void)spec_tree_add(&s->fed, i - 1, ids[base + i], 0);
        s->n_given = s->fed.n;
        SPEC_TRY(speci_draft_feed(m, &seq, 1));
    }
}

/* A prefill pass is about to read rows of positions [first, first + n) of the executor. */
typedef struct giving {
    model_draft *m;
    const speci_draft_hidden *h;
    int32_t first; /* the executor's position of h's first row */
} giving;

static spec_status give(void *arg, int32_t first, int32_t n)
{
    const giving *g = arg;
    for (int32_t k = 0; k < g->m->told.n_tap; k++) {
        const spec_view to = speci_exec_given(g->m->exec, k);
        for (int32_t i = 0; i < n; i++)
            SPEC_TRY(add_copy(g->m, (char *)(uintptr_t)row_of(&to, i),
                              row_of(&g->h->taps[k], speci_hidden_row(g->h, first - g->first + i)), g->m->told.row_bytes[k]));
    }
    return copy_all(g->m);
}

static bool stopped(void *arg)
{
    const speci_draft_site *site = ((const giving *)arg)->m->d->site;
    return site->stopped && site->stopped(site->stopped_arg);
}

/* Rows of a prompt are applied as they come, but that in front of the pending token: its position is the root of a draft. */
static spec_status take_prompt(model_draft *m, const speci_draft_seq *q, const speci_draft_hidden *h)
{
    model_seq *s = &m->seqs[q->seq];
    const int32_t n = h->first + h->n == q->n_ids - 1 ? h->n - 1 : h->n;
    if (n > 0) {
        SPEC_TRY(feed_kept(m, q->seq));
        int32_t n_ids;
        const int32_t *ids = speci_translated(&s->own, &n_ids);
        giving g = { m, h, s->n_told };
        const speci_prefill_hooks hooks = { .poll = stopped, .give = give, .arg = &g };
        SPEC_TRY(speci_exec_prefill(m->exec, q->seq, ids + s->n_told, (size_t)n, &hooks));
        s->n_told += n;
    }
    return keep_rows(m, q->seq, h, n, h->n - n);
}

static spec_status take_path(model_draft *m, int32_t seq, const speci_draft_hidden *h)
{
    speci_draft_commit_fed(m, seq);
    if (m->seqs[seq].n_told + h->n - speci_exec_n_past(m->exec, seq) > KEPT) SPEC_TRY(feed_kept(m, seq));
    return keep_rows(m, seq, h, 0, h->n);
}

spec_status speci_draft_head_hidden(speci_draft *d, const speci_draft_seq *q, const speci_draft_hidden *h)
{
    model_draft *m = d->state;
    model_seq *s = &m->seqs[q->seq];
    if (!s->begun) SPEC_TRY(begin(m, q, h->first));
    if (s->outgrown) return SPEC_OK;
    SPEC_TRY(speci_buf_add(&s->own.ids, q->ids + h->first + 1, (size_t)h->n * sizeof *q->ids));
    s->outgrown = m->n_ctx > 0 && (int32_t)(s->own.ids.n / sizeof *q->ids) > m->n_ctx;
    if (s->outgrown) return SPEC_OK;
    return h->row ? take_path(m, q->seq, h) : take_prompt(m, q, h);
}

/* Its rows were told before; or there are none: a prompt of one token, a sequence that was restored without them. */
spec_status speci_draft_head_prefill(speci_draft *d, const speci_draft_seq *q)
{
    model_draft *m = d->state;
    const model_seq *s = &m->seqs[q->seq];
    if (s->begun && (s->outgrown || s->first + s->n_told == q->n_ids - 1)) return SPEC_OK;
    return begin(m, q, q->n_ids - 1);
}

spec_status speci_draft_head_fork(speci_draft *d, const speci_draft_seq *q, int32_t to)
{
    model_draft *m = d->state;
    const model_seq *from = &m->seqs[q->seq];
    model_seq *s = &m->seqs[to];
    SPEC_TRY(speci_draft_head_begin(m, &(speci_draft_seq){ .seq = to, .ids = q->ids, .n_ids = q->n_ids }, from->first));
    s->outgrown = from->outgrown;
    if (from->outgrown) return SPEC_OK;
    SPEC_TRY(speci_buf_add(&s->own.ids, from->own.ids.data, from->own.ids.n));
    s->n_told = from->n_told;
    SPEC_TRY(speci_exec_copy(m->exec, q->seq, to));
    for (int32_t k = 0; k < m->told.n_tap; k++)
        for (int32_t i = speci_exec_n_past(m->exec, q->seq); i < from->n_told; i++)
            SPEC_TRY(add_copy(m, speci_draft_told_row(m, k, to, i), speci_draft_told_row(m, k, q->seq, i), m->told.row_bytes[k]));
    return copy_all(m);
}
