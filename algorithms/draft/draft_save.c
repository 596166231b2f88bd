/* draft_save.c - a model as drafter in a saved sequence: a head, with another vocabulary the sequence in the drafter's ids, then
 * what the executor keeps. Little-endian hosts only, as the states are. */
#include "algorithms/draft/draft_model.h"

#include <string.h>

typedef struct saved_head {
    int32_t outgrown, n_past, n_recent;
    int32_t n_own; /* 0: its ids are the target's; else 1 more than ids [..] that follow behind a saved_own */
} saved_head;

typedef struct saved_own {
    int32_t n_held;
    uint8_t held[4];
} saved_own;

uint64_t speci_draft_identity(const spec_drafter *d)
{
    const spec_model *m = d->own;
    if (m->fingerprint == 0) return 0; /* its sequences cannot be saved */
    const int32_t sizes[] = { (int32_t)m->dtype, m->n_vocab, m->dim, m->n_layer };
    speci_hash h = { 0 };
    speci_hash_text(&h, m->family);
    speci_hash_add(&h, sizes, sizeof sizes);
    speci_hash_add(&h, &m->fingerprint, sizeof m->fingerprint);
    if (d->vocab != SPEC_DRAFT_VOCAB_AUTO) speci_hash_add(&h, &d->vocab, sizeof d->vocab);
    return speci_hash_value(&h);
}

/* --- save --- */

static uint64_t own_bytes(const speci_translation *own) { return sizeof(saved_own) + own->ids.n; }

static spec_status put_own(const speci_translation *own, speci_put_fn put, void *arg)
{
    saved_own o = { .n_held = own->n_held };
    memcpy(o.held, own->held, sizeof o.held);
    SPEC_TRY(put(arg, &o, sizeof o));
    return own->ids.n > 0 ? put(arg, own->ids.data, own->ids.n) : SPEC_OK;
}

spec_status speci_draft_save(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg)
{
    model_draft *m = d->state;
    const model_seq *s = &m->seqs[q->seq];
    if (!put) SPEC_TRY(speci_draft_follow(m, q));
    saved_head h = { .outgrown = s->outgrown };
    *bytes = sizeof h;
    if (!put && !h.outgrown) SPEC_TRY(m->exec->kind->flush(m->exec, q->seq));
    if (!h.outgrown) {
        uint64_t n;
        SPEC_TRY(speci_exec_seq_bytes(m->exec, q->seq, &n));
        h.n_past = m->exec->kind->n_past(m->exec, q->seq), h.n_recent = speci_exec_n_recent(m->exec, q->seq);
        if (m->vocab.map) h.n_own = 1 + (int32_t)speci_buf_n_ids(&s->own.ids);
        *bytes += n + (m->vocab.map ? own_bytes(&s->own) : 0);
    }
    if (!put) return SPEC_OK;
    SPEC_TRY(put(arg, &h, sizeof h));
    if (h.n_own > 0) SPEC_TRY(put_own(&s->own, put, arg));
    return h.outgrown ? SPEC_OK : m->exec->kind->write(m->exec, q->seq, put, arg);
}

/* --- restore --- */

/* A state that lags can only go on where scans are chunked: this executor keeps one per node, say. Nor are ids of a session that
 * wrote them otherwise those of this one. */
static bool goes_on(const model_draft *m, const saved_head *h)
{
    return (h->n_recent <= 0 || speci_exec_can_lag(m->exec, 1, 1)) && (h->n_own > 0) == (m->vocab.map != NULL);
}

spec_status speci_draft_skip(uint64_t n, speci_get_fn get, void *arg)
{
    uint8_t bytes[4096];
    for (; n > 0; n -= n < sizeof bytes ? n : sizeof bytes) SPEC_TRY(get(arg, bytes, n < sizeof bytes ? (size_t)n : sizeof bytes));
    return SPEC_OK;
}

/* The sequence in the drafter's ids; *bytes: of what is left of the section. */
static spec_status get_own(const model_draft *m, model_seq *s, const saved_head *h, uint64_t *bytes, speci_get_fn get, void *arg)
{
    speci_translation *own = &s->own;
    saved_own o;
    const uint64_t n = (uint64_t)(h->n_own - 1);
    if (*bytes < sizeof o || n > (*bytes - sizeof o) / sizeof(int32_t))
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu ids of a drafter in %llu bytes", (unsigned long long)n,
                          (unsigned long long)*bytes);
    SPEC_TRY(get(arg, &o, sizeof o));
    own->ids.n = 0, s->n_ids = 0;
    SPEC_TRY(speci_buf_reserve(&own->ids, (size_t)n * sizeof(int32_t)));
    if (n > 0) SPEC_TRY(get(arg, own->ids.data, (size_t)n * sizeof(int32_t)));
    *bytes -= sizeof o + n * sizeof(int32_t);
    const int32_t *ids = speci_buf_ids(&own->ids);
    for (uint64_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= m->model->n_vocab)
            return speci_fail(SPEC_E_FORMAT, "saved sequence: token %llu of its drafter is %d of %d", (unsigned long long)i,
                              ids[i], m->model->n_vocab);
    if (o.n_held < 0 || o.n_held >= (int32_t)sizeof o.held)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its drafter holds back %d bytes", o.n_held);
    own->ids.n = (size_t)n * sizeof(int32_t);
    own->n_held = o.n_held;
    memcpy(own->held, o.held, sizeof own->held);
    s->ids = speci_buf_ids(&own->ids), s->n_ids = (int32_t)speci_buf_n_ids(&own->ids);
    return SPEC_OK;
}

static spec_status check_head(const model_draft *m, const saved_head *h, int32_t n_ids, uint64_t bytes)
{
    if (h->n_past < 0 || (h->n_past > n_ids - 1 && h->n_past > 0))
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its drafter is at position %d of %d", h->n_past, n_ids);
    if (!speci_exec_can_lag(m->exec, h->n_past, h->n_recent))
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its drafter's states lag %d of %d positions, which cannot be",
                          h->n_recent, h->n_past);
    return speci_exec_check_bytes(m->exec, h->n_past, h->n_recent, bytes, "drafter");
}

spec_status speci_draft_restore(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg)
{
    model_draft *m = d->state;
    model_seq *s = &m->seqs[q->seq];
    saved_head h;
    if (bytes < sizeof h)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu bytes of a drafter", (unsigned long long)bytes);
    SPEC_TRY(get(arg, &h, sizeof h));
    bytes -= sizeof h;
    SPEC_TRY(speci_draft_begin(m, q));
    if (h.outgrown || s->outgrown) {
        s->outgrown = true;
        return speci_draft_skip(bytes, get, arg);
    }
    if (!goes_on(m, &h)) {
        SPEC_TRY(speci_draft_skip(bytes, get, arg));
        return d->kind->prefill(d, q);
    }
    if (h.n_own > 0) SPEC_TRY(get_own(m, s, &h, &bytes, get, arg));
    SPEC_TRY(check_head(m, &h, s->n_ids, bytes));
    return m->exec->kind->read(m->exec, q->seq, &(speci_exec_saved){ h.n_past, h.n_recent, bytes }, get, arg);
}
