/* engine_save.c - sequences forked, saved and restored.
 *
 * A saved sequence is a stream of bytes; integers and float32 of the header are little-endian:
 *     header     HEADER bytes, see code_header; its last 8 are the checksum of the rest of it
 *     ids        n_ids int32
 *     target     target_bytes: speci_exec_write; n_ids - 1 positions, all but the pending token, target_recent of them
 *                behind the states of chunked scans
 *     drafter    drafter_bytes, with FLAG_DRAFTER: the same of the drafter's model, which has applied drafter_past ids
 *     checksum   8 bytes over all that went before
 * The layout of states and caches is the same on every backend, so a file may go on elsewhere; bit-equal it is on its
 * own backend, device and build only. A reader trusts nothing: sizes follow from its own models and must be those of the
 * file. */
#include "algorithms/engine/engine.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

static const char MAGIC[8] = "SPECSEQ"; /* with its zero */

enum { VERSION = 2, HEADER = 192, FAMILY = 24, IDS_MAX = INT32_MAX / 2, PIECE = 4096 };

enum {
    FLAG_IGNORE_EOS = 1,
    FLAG_DRAFTER = 2, /* the state of a model that drafts follows the target's */
    FLAG_OUTGROWN = 4, /* there was such a model, and the sequence had outgrown its context */
    FLAGS = 7
};

/* --- the header --- */

typedef struct file_model {
    char family[FAMILY]; /* zeros behind the name; a target without drafter: all zero */
    int32_t dtype, n_vocab, dim, n_layer;
    uint64_t fingerprint;
} file_model;

typedef struct file_header {
    char magic[8];
    uint32_t version, flags;
    int32_t n_ids, n_limit; /* INT32_MAX = only the session's context */
    uint64_t n_step;
    spec_sampling sampling;
    file_model target, drafter;
    uint64_t target_bytes, drafter_bytes;
    int32_t drafter_past;
    int32_t target_recent, drafter_recent; /* positions behind the states of chunked scans */
} file_header;

/* Values to bytes, or back. */
typedef struct file_coder {
    uint8_t *at;
    bool reads;
} file_coder;

static void code_bytes(file_coder *c, void *value, size_t n)
{
    if (c->reads) memcpy(value, c->at, n);
    else memcpy(c->at, value, n);
    c->at += n;
}

static void code64(file_coder *c, uint64_t *value)
{
    uint64_t read = 0;
    for (int i = 0; i < 8; i++) {
        if (c->reads) read |= (uint64_t)c->at[i] << 8 * i;
        else c->at[i] = (uint8_t)(*value >> 8 * i);
    }
    if (c->reads) *value = read;
    c->at += 8;
}

/* Any value of 32 bits. */
static void code32(file_coder *c, void *value)
{
    uint32_t v = 0;
    if (!c->reads) memcpy(&v, value, sizeof v);
    for (int i = 0; i < 4; i++) {
        if (c->reads) v |= (uint32_t)c->at[i] << 8 * i;
        else c->at[i] = (uint8_t)(v >> 8 * i);
    }
    if (c->reads) memcpy(value, &v, sizeof v);
    c->at += 4;
}

static void code_model(file_coder *c, file_model *m)
{
    code_bytes(c, m->family, FAMILY);
    code32(c, &m->dtype), code32(c, &m->n_vocab), code32(c, &m->dim), code32(c, &m->n_layer);
    code64(c, &m->fingerprint);
}

/* bytes [HEADER], but for the checksum at the end. */
static void code_header(file_header *h, uint8_t *bytes, bool reads)
{
    file_coder c = { bytes, reads };
    code_bytes(&c, h->magic, sizeof h->magic);
    code32(&c, &h->version), code32(&c, &h->flags);
    code32(&c, &h->n_ids), code32(&c, &h->n_limit);
    code64(&c, &h->n_step);
    code32(&c, &h->sampling.temperature), code32(&c, &h->sampling.top_k);
    code32(&c, &h->sampling.top_p), code32(&c, &h->sampling.min_p);
    code64(&c, &h->sampling.seed);
    code_model(&c, &h->target);
    code_model(&c, &h->drafter);
    code64(&c, &h->target_bytes), code64(&c, &h->drafter_bytes);
    code32(&c, &h->drafter_past);
    code32(&c, &h->target_recent), code32(&c, &h->drafter_recent);
    assert(c.at <= bytes + HEADER - 8);
}

static uint64_t checksum(const void *data, size_t n)
{
    speci_hash h = { 0 };
    speci_hash_add(&h, data, n);
    return speci_hash_value(&h);
}

static file_model describe(const spec_model *m)
{
    file_model f = { .dtype = (int32_t)m->dtype, .n_vocab = m->n_vocab, .dim = m->dim, .n_layer = m->n_layer,
                     .fingerprint = m->fingerprint };
    const size_t n = strlen(m->family);
    memcpy(f.family, m->family, n < FAMILY - 1 ? n : FAMILY - 1);
    return f;
}

/* --- fork --- */

/* What the drafter's net was fed beyond the positions that it has applied stays with the original: the copy feeds
 * those ids anew, to the same bits. */
static spec_status copy_sequence(spec_session *s, int32_t from, int32_t to)
{
    const algo_seq *f = &s->seqs[from];
    algo_seq *t = &s->seqs[to];
    t->ids = speci_alloc(s->a, (size_t)f->cap_ids, sizeof *t->ids);
    if (!t->ids) return SPEC_E_NOMEM;
    memcpy(t->ids, f->ids, (size_t)f->n_ids * sizeof *t->ids);
    t->n_ids = f->n_ids, t->cap_ids = f->cap_ids, t->n_limit = f->n_limit;
    t->n_step = f->n_step;
    t->sampling = f->sampling;
    t->ignore_eos = f->ignore_eos, t->no_draft = f->no_draft;
    SPEC_TRY(speci_exec_copy(s->net, from, to));
    if (!f->no_draft) SPEC_TRY(speci_exec_copy(s->draft_exec, from, to));
    return s->ops->sync(s->queue);
}

spec_status spec_sequence_fork(spec_session *s, int32_t seq, int32_t *copy)
{
    algo_seq *q;
    int32_t to;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    SPEC_TRY(speci_session_free_seq(s, &to));
    const spec_status status = copy_sequence(s, seq, to);
    if (status != SPEC_OK) {
        speci_sequence_end(s, to);
        return status;
    }
    speci_sequence_admit(s, to);
    *copy = to;
    return SPEC_OK;
}

spec_status spec_sequence_seed(spec_session *s, int32_t seq, uint64_t seed)
{
    algo_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    speci_ahead_drop(s, seq); /* its token was drawn by the old one */
    q->sampling.seed = seed;
    return SPEC_OK;
}

/* --- save --- */

typedef struct file_sink {
    spec_write_fn write;
    void *user_data;
    speci_hash hash;
} file_sink;

static spec_status put(void *arg, const void *data, size_t n)
{
    file_sink *f = arg;
    speci_hash_add(&f->hash, data, n);
    if (f->write(f->user_data, data, n) == 0) return SPEC_OK;
    return speci_fail(SPEC_E_IO, "saving a sequence: the application did not take %zu bytes after %llu", n,
                      (unsigned long long)(f->hash.n - n));
}

static spec_status put_checksum(file_sink *f)
{
    uint8_t bytes[8];
    uint64_t value = speci_hash_value(&f->hash);
    code64(&(file_coder){ bytes, false }, &value);
    return put(f, bytes, sizeof bytes);
}

static spec_status put_header(file_sink *f, file_header *h)
{
    uint8_t bytes[HEADER] = { 0 };
    code_header(h, bytes, false);
    uint64_t value = checksum(bytes, HEADER - 8);
    code64(&(file_coder){ bytes + HEADER - 8, false }, &value);
    return put(f, bytes, sizeof bytes);
}

static spec_status put_ids(file_sink *f, const int32_t *ids, int32_t n)
{
    uint8_t bytes[4 * PIECE];
    for (int32_t i = 0; i < n;) {
        file_coder c = { bytes, false };
        for (int32_t k = 0; k < PIECE && i < n; k++, i++) {
            int32_t id = ids[i];
            code32(&c, &id);
        }
        SPEC_TRY(put(f, bytes, (size_t)(c.at - bytes)));
    }
    return SPEC_OK;
}

static file_header header_of(const spec_session *s, int32_t seq)
{
    const algo_seq *q = &s->seqs[seq];
    file_header h = { .version = VERSION, .n_ids = q->n_ids, .n_step = q->n_step, .sampling = q->sampling,
                      .target = describe(s->target), .target_recent = speci_exec_n_recent(s->net, seq) };
    h.target_bytes = speci_exec_data_bytes(s->net, q->n_ids - 1, h.target_recent);
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.n_limit = s->n_ctx > 0 && q->n_limit >= s->n_ctx ? INT32_MAX : q->n_limit;
    if (q->ignore_eos) h.flags |= FLAG_IGNORE_EOS;
    if (!s->draft_exec) return h;
    h.drafter = describe(s->drafter->model);
    h.flags |= q->no_draft ? FLAG_OUTGROWN : FLAG_DRAFTER;
    if (q->no_draft) return h;
    h.drafter_past = speci_exec_n_past(s->draft_exec, seq);
    h.drafter_recent = speci_exec_n_recent(s->draft_exec, seq);
    h.drafter_bytes = speci_exec_data_bytes(s->draft_exec, h.drafter_past, h.drafter_recent);
    return h;
}

spec_status spec_sequence_save(spec_session *s, int32_t seq, spec_write_fn write, void *user_data)
{
    algo_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    if (!write) return speci_fail(SPEC_E_INVALID, "saving a sequence needs a write callback");
    q->scored.n = 0;
    SPEC_TRY(speci_exec_flush(s->net, seq));
    if (!q->no_draft && s->draft_exec) SPEC_TRY(speci_exec_flush(s->draft_exec, seq));
    file_sink f = { .write = write, .user_data = user_data };
    file_header h = header_of(s, seq);
    SPEC_TRY(put_header(&f, &h));
    SPEC_TRY(put_ids(&f, q->ids, q->n_ids));
    SPEC_TRY(speci_exec_write(s->net, seq, put, &f));
    if (h.flags & FLAG_DRAFTER) SPEC_TRY(speci_exec_write(s->draft_exec, seq, put, &f));
    return put_checksum(&f);
}

/* --- restore --- */

typedef struct file_source {
    spec_read_fn read;
    void *user_data;
    speci_hash hash;
} file_source;

static spec_status get(void *arg, void *data, size_t n)
{
    file_source *f = arg;
    if (f->read(f->user_data, data, n) != 0)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: it ends after %llu bytes, where %zu more are expected",
                          (unsigned long long)f->hash.n, n);
    speci_hash_add(&f->hash, data, n);
    return SPEC_OK;
}

static spec_status get_checksum(file_source *f)
{
    uint8_t bytes[8];
    uint64_t found, expected = speci_hash_value(&f->hash);
    SPEC_TRY(get(f, bytes, sizeof bytes));
    code64(&(file_coder){ bytes, true }, &found);
    if (found == expected) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "saved sequence: the checksum at its end is %016llx, its bytes give %016llx",
                      (unsigned long long)found, (unsigned long long)expected);
}

static spec_status get_header(file_source *f, file_header *h)
{
    uint8_t bytes[HEADER];
    uint64_t sum;
    SPEC_TRY(get(f, bytes, sizeof bytes));
    code_header(h, bytes, true);
    if (memcmp(h->magic, MAGIC, sizeof h->magic) != 0)
        return speci_fail(SPEC_E_FORMAT, "not a saved sequence: it does not begin with SPECSEQ");
    if (h->version != VERSION)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: version %u, this library reads version %d", h->version,
                          VERSION);
    code64(&(file_coder){ bytes + HEADER - 8, true }, &sum);
    if (sum != checksum(bytes, HEADER - 8))
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its header was changed: the checksum does not fit");
    return SPEC_OK;
}

/* Names in the file are printed only where they are names. */
static bool is_name(const char *family)
{
    size_t n = 0;
    while (n < FAMILY && family[n] > ' ' && family[n] < 127) n++;
    for (size_t i = n; i < FAMILY; i++)
        if (family[i] != 0) return false;
    return n > 0 && n < FAMILY;
}

static spec_status check_target(const file_model *found, const spec_model *m)
{
    const file_model own = describe(m);
    if (!is_name(found->family)) return speci_fail(SPEC_E_FORMAT, "saved sequence: it names no model family");
    if (memcmp(found->family, own.family, FAMILY) != 0)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: of a model of family %s, the target is %s", found->family,
                          own.family);
    if (found->n_vocab != own.n_vocab || found->dim != own.dim || found->n_layer != own.n_layer)
        return speci_fail(SPEC_E_FORMAT,
                          "saved sequence: of a model with %d ids, %d columns, %d layers; the target has %d, %d, %d",
                          found->n_vocab, found->dim, found->n_layer, own.n_vocab, own.dim, own.n_layer);
    if (found->fingerprint != own.fingerprint)
        return speci_fail(SPEC_E_FORMAT,
                          "saved sequence: of another model: fingerprint %016llx, the target's is %016llx",
                          (unsigned long long)found->fingerprint, (unsigned long long)own.fingerprint);
    if (found->dtype != own.dtype)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: of compute type %s, the target's is %s",
                          spec_dtype_name((spec_dtype)found->dtype), spec_dtype_name(m->dtype));
    return SPEC_OK;
}

static bool same_model(const file_model *found, const spec_model *m)
{
    const file_model own = describe(m);
    return memcmp(found->family, own.family, FAMILY) == 0 && found->dtype == own.dtype &&
           found->n_vocab == own.n_vocab && found->dim == own.dim && found->n_layer == own.n_layer &&
           found->fingerprint == own.fingerprint;
}

/* Are there scans whose states may lag? */
static bool has_windows(const speci_exec *net) { return speci_exec_can_lag(net, 1, 1); }

static spec_status check_recent(const speci_exec *net, int32_t n_past, int32_t n_recent)
{
    if (speci_exec_can_lag(net, n_past, n_recent)) return SPEC_OK;
    if (n_recent > 0 && !has_windows(net))
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its states lag %d positions, as chunked scans leave them; "
                          "this session has none", n_recent);
    return speci_fail(SPEC_E_FORMAT, "saved sequence: its states lag %d of %d positions, which cannot be", n_recent,
                      n_past);
}

static spec_status check_header(const spec_session *s, const file_header *h)
{
    SPEC_TRY(check_target(&h->target, s->target));
    if (h->n_ids < 1 || h->n_ids > IDS_MAX || h->n_limit < 0 || h->flags > FLAGS)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %d ids, which may become %d, flags %u", h->n_ids, h->n_limit,
                          h->flags);
    if (speci_sampling_check(&h->sampling) != SPEC_OK)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its sampling cannot be: temperature %g, top-k %d",
                          (double)h->sampling.temperature, h->sampling.top_k);
    SPEC_TRY(check_recent(s->net, h->n_ids - 1, h->target_recent));
    const uint64_t expected = speci_exec_data_bytes(s->net, h->n_ids - 1, h->target_recent);
    if (h->target_bytes != expected)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu bytes of the target's memory, expected %llu",
                          (unsigned long long)h->target_bytes, (unsigned long long)expected);
    if (s->n_ctx > 0 && h->n_ids > s->n_ctx)
        return speci_fail(SPEC_E_FULL, "a saved sequence of %d tokens does not fit a context of %d", h->n_ids,
                          s->n_ctx);
    return SPEC_OK;
}

/* The count is not believed before the ids are there: memory grows with what was read. */
static spec_status get_ids(file_source *f, speci_buf *out, int32_t n, int32_t n_vocab)
{
    uint8_t bytes[4 * PIECE];
    int32_t ids[PIECE];
    for (int32_t i = 0; i < n;) {
        const int32_t some = n - i < PIECE ? n - i : PIECE;
        SPEC_TRY(get(f, bytes, 4 * (size_t)some));
        file_coder c = { bytes, true };
        for (int32_t k = 0; k < some; k++, i++) {
            code32(&c, &ids[k]);
            if (ids[k] < 0 || ids[k] >= n_vocab)
                return speci_fail(SPEC_E_FORMAT, "saved sequence: token %d is %d, not in the vocabulary of %d ids", i,
                                  ids[k], n_vocab);
        }
        SPEC_TRY(speci_buf_add(out, ids, (size_t)some * sizeof *ids));
    }
    return SPEC_OK;
}

static spec_status take_ids(spec_session *s, algo_seq *q, const int32_t *ids, int32_t n)
{
    const size_t cap = s->n_ctx ? (size_t)s->n_ctx : (size_t)n + 1024;
    q->ids = speci_alloc(s->a, cap, sizeof *q->ids);
    if (!q->ids) return SPEC_E_NOMEM;
    memcpy(q->ids, ids, (size_t)n * sizeof *ids);
    q->n_ids = n, q->cap_ids = (int32_t)cap;
    return SPEC_OK;
}

static spec_status read_ids(spec_session *s, algo_seq *q, const file_header *h, file_source *f)
{
    speci_buf buf = { .a = s->a };
    spec_status status = get_ids(f, &buf, h->n_ids, s->target->n_vocab);
    if (status == SPEC_OK) status = take_ids(s, q, (const int32_t *)(const void *)buf.data, h->n_ids);
    speci_buf_free(&buf);
    return status;
}

static spec_status skip(file_source *f, uint64_t n)
{
    uint8_t bytes[4 * PIECE];
    while (n > 0) {
        const size_t some = n < sizeof bytes ? (size_t)n : sizeof bytes;
        SPEC_TRY(get(f, bytes, some));
        n -= some;
    }
    return SPEC_OK;
}

static spec_status read_drafter(spec_session *s, int32_t seq, const file_header *h, file_source *f)
{
    if (h->drafter_past < 0 || h->drafter_past > h->n_ids - 1)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its drafter is at position %d of %d", h->drafter_past,
                          h->n_ids);
    SPEC_TRY(check_recent(s->draft_exec, h->drafter_past, h->drafter_recent));
    const uint64_t expected = speci_exec_data_bytes(s->draft_exec, h->drafter_past, h->drafter_recent);
    if (h->drafter_bytes != expected)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %llu bytes of the drafter's memory, expected %llu",
                          (unsigned long long)h->drafter_bytes, (unsigned long long)expected);
    return speci_exec_read(s->draft_exec, seq, h->drafter_past, h->drafter_recent, get, f);
}

static spec_status restore(spec_session *s, int32_t seq, const file_header *h, file_source *f)
{
    algo_seq *q = &s->seqs[seq];
    q->sampling = h->sampling;
    q->ignore_eos = (h->flags & FLAG_IGNORE_EOS) != 0;
    q->n_step = h->n_step;
    q->n_limit = s->n_ctx > 0 && h->n_limit > s->n_ctx ? s->n_ctx : h->n_limit;
    const bool same = s->draft_exec && same_model(&h->drafter, s->drafter->model);
    q->no_draft = speci_draft_outgrown(s, h->n_ids) || (same && h->flags & FLAG_OUTGROWN);
    const bool lags = same && h->drafter_recent > 0 && !has_windows(s->draft_exec); /* it keeps a state per node */
    const bool drafter_read = same && !lags && !q->no_draft && h->flags & FLAG_DRAFTER;
    SPEC_TRY(read_ids(s, q, h, f));
    SPEC_TRY(speci_exec_read(s->net, seq, h->n_ids - 1, h->target_recent, get, f));
    SPEC_TRY(drafter_read ? read_drafter(s, seq, h, f) : skip(f, h->drafter_bytes));
    SPEC_TRY(get_checksum(f));
    if (!q->no_draft && !drafter_read) SPEC_TRY(speci_draft_prefill(s, seq));
    return s->ops->sync(s->queue);
}

spec_status spec_sequence_restore(spec_session *s, int32_t *seq, spec_read_fn read, void *user_data)
{
    int32_t i;
    file_header h;
    file_source f = { .read = read, .user_data = user_data };
    if (!read) return speci_fail(SPEC_E_INVALID, "restoring a sequence needs a read callback");
    SPEC_TRY(speci_session_free_seq(s, &i));
    SPEC_TRY(get_header(&f, &h));
    SPEC_TRY(check_header(s, &h));
    const spec_status status = restore(s, i, &h, &f);
    if (status != SPEC_OK) {
        speci_sequence_end(s, i);
        return status;
    }
    speci_sequence_admit(s, i);
    *seq = i;
    return SPEC_OK;
}
