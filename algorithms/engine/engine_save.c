/* engine_save.c - sequences forked, saved and restored.
 *
 * A saved sequence is a stream of bytes; integers and float32 of the header are little-endian:
 *     header     HEADER bytes, see code_header; its last 8 are the checksum of the rest of it
 *     ids        n_ids int32
 *     text       n_text bytes: what was held back
 *     target     target_bytes: speci_exec_kind.write; n_ids - 1 positions, all but the pending token, target_recent of them
 *                behind the states of chunked scans
 *     drafters   n_drafter sections: SECTION bytes, see code_section, and as many of the drafter's own as they say
 *     checksum   8 bytes over all that went before
 * The layout of states and caches is the same on every backend, so a file may go on elsewhere; bit-equal it is on its
 * own backend, device and build only. A reader trusts nothing: sizes follow from its own models and must be those of the
 * file. */
#include "algorithms/engine/engine.h"

#include <assert.h>
#include <limits.h>
#include <string.h>

static const char MAGIC[8] = "SPECSEQ"; /* with its zero */

enum { VERSION = 4, HEADER = 192, SECTION = 32, KIND = 16, FAMILY = 24, IDS_MAX = INT32_MAX / 2, PIECE = 4096 };

enum { FLAG_IGNORE_EOS = 1, FLAG_TEXT = 2, FLAGS = 3 }; /* TEXT: the target had a tokenizer */

/* --- the header --- */

typedef struct file_model {
    char family[FAMILY]; /* zeros behind the name */
    int32_t dtype, n_vocab, dim, n_layer;
    uint64_t fingerprint;
} file_model;

typedef struct file_header {
    char magic[8];
    uint32_t version, flags;
    int32_t n_ids, n_end; /* INT32_MAX = only the session's context */
    uint64_t n_step;
    spec_sampling sampling;
    file_model target;
    uint64_t target_bytes;
    int32_t target_recent; /* positions behind the states of chunked scans */
    int32_t n_drafter;
    int32_t n_prompt;      /* ids in front of what was emitted since the latest prompt */
    spec_text_stream stream;
    int32_t n_text;
} file_header;

/* What a drafter of the saving session keeps. */
typedef struct file_section {
    char kind[KIND]; /* zeros behind the name */
    uint64_t identity, bytes;
} file_section;

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
    code32(&c, &h->n_ids), code32(&c, &h->n_end);
    code64(&c, &h->n_step);
    code32(&c, &h->sampling.temperature), code32(&c, &h->sampling.top_k);
    code32(&c, &h->sampling.top_p), code32(&c, &h->sampling.min_p);
    code64(&c, &h->sampling.seed);
    code_model(&c, &h->target);
    code64(&c, &h->target_bytes);
    code32(&c, &h->target_recent), code32(&c, &h->n_drafter), code32(&c, &h->n_prompt);
    code_bytes(&c, h->stream.held, sizeof h->stream.held);
    code32(&c, &h->stream.n_held), code32(&c, &h->stream.n_tokens), code32(&c, &h->n_text);
    assert(c.at <= bytes + HEADER - 8);
}

static void code_section(file_section *d, uint8_t *bytes, bool reads)
{
    file_coder c = { bytes, reads };
    code_bytes(&c, d->kind, KIND);
    code64(&c, &d->identity), code64(&c, &d->bytes);
    assert(c.at == bytes + SECTION);
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

static spec_status copy_sequence(spec_session *s, int32_t from, int32_t to)
{
    const engine_seq *f = &s->seqs[from];
    engine_seq *t = &s->seqs[to];
    t->ids = speci_alloc(s->a, (size_t)f->cap_ids, sizeof *t->ids);
    if (!t->ids) return SPEC_E_NOMEM;
    memcpy(t->ids, f->ids, (size_t)f->n_ids * sizeof *t->ids);
    t->n_begun = s->drafters.n;
    t->n_ids = t->n_told = f->n_ids, t->cap_ids = f->cap_ids, t->n_limit = f->n_limit, t->n_end = f->n_end;
    t->n_prompt = f->n_prompt;
    t->n_step = f->n_step;
    SPEC_TRY(speci_request_copy(&t->request, s->target, &f->request));
    SPEC_TRY(speci_adjust_copy(&t->adjust, s, f->adjust));
    SPEC_TRY(speci_text_copy(&t->text, &f->text));
    SPEC_TRY(s->exec->kind->copy(s->exec, from, to));
    for (int32_t k = 0; k < s->drafters.n; k++) {
        speci_draft *d = &s->drafters.draft[k];
        const speci_draft_seq q = speci_sequence_asked(s, from);
        if (d->kind->fork) SPEC_TRY(d->kind->fork(d, &q, to));
    }
    return s->ops->sync(s->queue);
}

spec_status spec_sequence_fork(spec_session *s, int32_t *copy, int32_t seq)
{
    ENGINE_ENTER(s);
    SPEC_NEED(copy, "copy");
    engine_seq *q;
    int32_t to;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    SPEC_TRY(speci_session_free_seq(s, &to));
    if (q->consuming) SPEC_TRY(speci_sequence_consume(s, seq, 0, NULL));
    const spec_status status = copy_sequence(s, seq, to);
    if (status != SPEC_OK) {
        speci_sequence_end(s, to);
        return status;
    }
    s->seqs[to].live = true;
    *copy = to;
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
    uint64_t value = speci_hash_of(bytes, HEADER - 8);
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

static spec_status header_of(const spec_session *s, int32_t seq, file_header *out)
{
    const engine_seq *q = &s->seqs[seq];
    file_header h = { .version = VERSION, .n_ids = q->n_ids, .n_end = q->n_end, .n_step = q->n_step, .sampling = q->request.p.sampling,
                      .target = describe(s->target), .target_recent = speci_exec_n_recent(s->exec, seq),
                      .n_drafter = s->drafters.n, .n_prompt = q->n_prompt };
    SPEC_TRY(speci_exec_seq_bytes(s->exec, seq, &h.target_bytes));
    memcpy(h.magic, MAGIC, sizeof h.magic);
    if (q->request.p.ignore_eos) h.flags |= FLAG_IGNORE_EOS;
    if (q->text.tokenizer) h.flags |= FLAG_TEXT, h.stream = q->text.stream, h.n_text = (int32_t)(q->text.buf.n - q->text.n_told);
    *out = h;
    return SPEC_OK;
}

static file_section section_of(const spec_drafter *d)
{
    file_section f = { .identity = d->kind->identity ? d->kind->identity(d) : 0 };
    const size_t n = strlen(d->kind->name);
    memcpy(f.kind, d->kind->name, n < KIND - 1 ? n : KIND - 1);
    return f;
}

/* What a drafter is going to write. One that has no identity writes nothing, and begins anew from the ids. */
static spec_status ready_drafter(spec_session *s, int32_t seq, speci_draft *d, file_section *out)
{
    *out = section_of(d->drafter);
    const speci_draft_seq q = speci_sequence_asked(s, seq);
    return out->identity != 0 && d->kind->save ? d->kind->save(d, &q, &out->bytes, NULL, NULL) : SPEC_OK;
}

static spec_status put_drafter(spec_session *s, int32_t seq, speci_draft *d, file_sink *f)
{
    uint8_t bytes[SECTION];
    file_section section;
    uint64_t written = 0;
    const speci_draft_seq q = speci_sequence_asked(s, seq);
    SPEC_TRY(ready_drafter(s, seq, d, &section));
    code_section(&section, bytes, false);
    SPEC_TRY(put(f, bytes, sizeof bytes));
    if (section.bytes > 0) SPEC_TRY(d->kind->save(d, &q, &written, put, f));
    if (written == section.bytes) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "a drafter saved %llu bytes, and %llu when asked again", (unsigned long long)section.bytes,
                      (unsigned long long)written);
}

spec_status spec_sequence_save(spec_session *s, int32_t seq, spec_write_fn write, void *user_data)
{
    ENGINE_ENTER(s);
    engine_seq *q;
    SPEC_TRY(speci_session_seq(s, seq, &q));
    file_section section;
    if (!write) return speci_fail(SPEC_E_INVALID, "saving a sequence needs a write callback");
    if (q->consuming) SPEC_TRY(speci_sequence_consume(s, seq, 0, NULL));
    q->part = -1;
    SPEC_TRY(s->exec->kind->flush(s->exec, seq));
    for (int32_t k = 0; k < s->drafters.n; k++) SPEC_TRY(ready_drafter(s, seq, &s->drafters.draft[k], &section));
    file_sink f = { .write = write, .user_data = user_data };
    file_header h;
    SPEC_TRY(header_of(s, seq, &h));
    SPEC_TRY(put_header(&f, &h));
    SPEC_TRY(put_ids(&f, q->ids, q->n_ids));
    if (h.n_text > 0) SPEC_TRY(put(&f, q->text.buf.data + q->text.n_told, (size_t)h.n_text));
    SPEC_TRY(s->exec->kind->write(s->exec, seq, put, &f));
    for (int32_t k = 0; k < s->drafters.n; k++) SPEC_TRY(put_drafter(s, seq, &s->drafters.draft[k], &f));
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
    if (sum != speci_hash_of(bytes, HEADER - 8))
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
    if (h->n_ids < 1 || h->n_ids > IDS_MAX || h->n_end < 0 || h->flags > FLAGS || h->n_drafter < 0)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %d ids, which may become %d, flags %u, %d drafters", h->n_ids,
                          h->n_end, h->flags, h->n_drafter);
    if (h->n_text < 0 || h->stream.n_held < 0 || h->stream.n_held > 3 || h->stream.n_tokens < 0)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: %d bytes of text held back, and %d of a character behind %d tokens", h->n_text,
                          h->stream.n_held, h->stream.n_tokens);
    if (speci_sampling_check(&h->sampling) != SPEC_OK)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its sampling cannot be: temperature %g, top-k %d",
                          (double)h->sampling.temperature, h->sampling.top_k);
    SPEC_TRY(check_recent(s->exec, h->n_ids - 1, h->target_recent));
    SPEC_TRY(speci_exec_check_bytes(s->exec, h->n_ids - 1, h->target_recent, h->target_bytes, "target"));
    if (h->n_prompt < 0 || h->n_prompt > h->n_ids)
        return speci_fail(SPEC_E_FORMAT, "saved sequence: its prompt ends at %d of %d ids", h->n_prompt, h->n_ids);
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

static spec_status read_ids(spec_session *s, engine_seq *q, const file_header *h, file_source *f)
{
    speci_buf buf = { .a = s->a };
    spec_status status = get_ids(f, &buf, h->n_ids, s->target->n_vocab);
    if (status == SPEC_OK)
        status = speci_sequence_take_ids(s, q, (const int32_t *)(const void *)buf.data, (size_t)h->n_ids);
    speci_buf_free(&buf);
    return status;
}

/* The text goes on where it was: what was held back is told with the next step, unless a stop string is found in it. */
static spec_status read_text(spec_session *s, engine_seq *q, const file_header *h, file_source *f)
{
    engine_text *t = &q->text;
    uint8_t bytes[PIECE];
    speci_text_begin(t, s->target, q->ids, (size_t)q->n_ids);
    if (!t->tokenizer || !(h->flags & FLAG_TEXT)) return speci_draft_skip((uint64_t)h->n_text, get, f);
    t->stream = h->stream;
    for (int32_t left = h->n_text, n; left > 0; left -= n) {
        n = left < PIECE ? left : PIECE;
        SPEC_TRY(get(f, bytes, (size_t)n));
        SPEC_TRY(speci_buf_add(&t->buf, bytes, (size_t)n));
    }
    return SPEC_OK;
}

/* The drafter whose section this is, of those that have not read one; NULL: none. */
static speci_draft *find_drafter(spec_session *s, const file_section *section, const bool *done)
{
    for (int32_t k = 0; k < s->drafters.n; k++) {
        speci_draft *d = &s->drafters.draft[k];
        const file_section own = section_of(d->drafter);
        if (!done[k] && own.identity != 0 && own.identity == section->identity && d->kind->restore &&
            memcmp(own.kind, section->kind, KIND) == 0)
            return d;
    }
    return NULL;
}

static spec_status get_drafters(spec_session *s, int32_t seq, int32_t n, file_source *f, bool *done)
{
    for (int32_t i = 0; i < n; i++) {
        uint8_t bytes[SECTION];
        file_section section;
        SPEC_TRY(get(f, bytes, sizeof bytes));
        code_section(&section, bytes, true);
        speci_draft *d = find_drafter(s, &section, done);
        const speci_draft_seq q = speci_sequence_asked(s, seq);
        SPEC_TRY(d ? d->kind->restore(d, &q, section.bytes, get, f) : speci_draft_skip(section.bytes, get, f));
        if (d) done[d - s->drafters.draft] = true;
    }
    return SPEC_OK;
}

/* Those that found nothing of theirs begin from the ids. */
static spec_status prefill_others(spec_session *s, int32_t seq, const bool *done)
{
    for (int32_t k = 0; k < s->drafters.n; k++) {
        speci_draft *d = &s->drafters.draft[k];
        const speci_draft_seq q = speci_sequence_asked(s, seq);
        if (!done[k] && d->kind->prefill) SPEC_TRY(d->kind->prefill(d, &q));
    }
    return SPEC_OK;
}

static spec_status restore(spec_session *s, int32_t seq, const file_header *h, file_source *f, bool *done)
{
    engine_seq *q = &s->seqs[seq];
    const spec_request request = { .struct_size = sizeof request, .sampling = h->sampling,
                                   .ignore_eos = (h->flags & FLAG_IGNORE_EOS) != 0 };
    SPEC_TRY(speci_sequence_take_request(s, q, &request));
    SPEC_TRY(read_ids(s, q, h, f));
    SPEC_TRY(read_text(s, q, h, f));
    SPEC_TRY(speci_text_room(&q->text, &q->request, s->n_node + 1));
    q->n_step = h->n_step, q->n_prompt = h->n_prompt, q->n_told = q->n_ids, q->n_begun = s->drafters.n;
    q->n_end = h->n_end;
    q->n_limit = s->n_ctx > 0 && h->n_end > s->n_ctx ? s->n_ctx : h->n_end;
    const speci_exec_saved saved = { .n_past = h->n_ids - 1, .n_recent = h->target_recent, .bytes = h->target_bytes };
    SPEC_TRY(s->exec->kind->read(s->exec, seq, &saved, get, f));
    SPEC_TRY(get_drafters(s, seq, h->n_drafter, f, done));
    SPEC_TRY(get_checksum(f));
    SPEC_TRY(prefill_others(s, seq, done));
    return s->ops->sync(s->queue);
}

spec_status spec_sequence_restore(spec_session *s, int32_t *seq, spec_read_fn read, void *user_data)
{
    ENGINE_ENTER(s);
    SPEC_NEED(seq, "seq");
    int32_t i;
    file_header h;
    file_source f = { .read = read, .user_data = user_data };
    if (!read) return speci_fail(SPEC_E_INVALID, "restoring a sequence needs a read callback");
    SPEC_TRY(speci_session_free_seq(s, &i));
    SPEC_TRY(get_header(&f, &h));
    SPEC_TRY(check_header(s, &h));
    bool *done = speci_alloc(s->a, (size_t)s->drafters.n, sizeof *done);
    const spec_status status = done ? restore(s, i, &h, &f, done) : SPEC_E_NOMEM;
    speci_free(s->a, done);
    if (status != SPEC_OK) {
        speci_sequence_end(s, i);
        return status;
    }
    s->seqs[i].live = true;
    *seq = i;
    return SPEC_OK;
}
