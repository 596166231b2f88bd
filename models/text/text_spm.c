/* text_spm.c - reads tokenizer.model: SentencePiece's ModelProto, in protobuf's wire format.
 *
 * The few fields that matter are read by hand (numbers from sentencepiece_model.proto); others are skipped. The file is
 * not trusted: every length is checked against what is left.
 *
 *     ModelProto       pieces = 1 (repeated), trainer_spec = 2, normalizer_spec = 3
 *     SentencePiece    piece = 1, score = 2 (float), type = 3
 *     TrainerSpec      model_type = 3, treat_whitespace_as_suffix = 24, byte_fallback = 35, unk_id = 40, bos_id = 41,
 *                      eos_id = 42, unk_surface = 44, unk_piece = 45, bos_piece = 46, eos_piece = 47
 *     NormalizerSpec   name = 1, precompiled_charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4,
 *                      escape_whitespaces = 5 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/text/text_spm.h"

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

typedef struct reader { /* of one message */
    const uint8_t *data;
    size_t n, i;
    const char *path;
} reader;

typedef struct field {
    uint32_t number, wire;
    uint64_t value;      /* VARINT, 64, 32 */
    const uint8_t *data; /* BYTES [n] */
    size_t n;
} field;

/* ---------------------------------------------------------------------------------- wire format --- */

static spec_status truncated(const reader *r)
{
    return speci_fail(SPEC_E_FORMAT, "%s: not a SentencePiece model: the data ends inside a field", r->path);
}

static spec_status read_varint(reader *r, uint64_t *out)
{
    *out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (r->i >= r->n) return truncated(r);
        uint8_t byte = r->data[r->i++];
        *out |= (uint64_t)(byte & 0x7F) << shift;
        if (!(byte & 0x80)) return SPEC_OK;
    }
    return speci_fail(SPEC_E_FORMAT, "%s: not a SentencePiece model: a number of more than 64 bits", r->path);
}

static spec_status read_fixed(reader *r, size_t bytes, uint64_t *out)
{
    *out = 0;
    if (r->n - r->i < bytes) return truncated(r);
    for (size_t k = 0; k < bytes; k++) *out |= (uint64_t)r->data[r->i + k] << 8 * k;
    r->i += bytes;
    return SPEC_OK;
}

/* The next field of the message; *more false at its end. */
static spec_status next_field(reader *r, field *f, bool *more)
{
    uint64_t key, n;
    *f = (field){ 0 };
    *more = r->i < r->n;
    if (!*more) return SPEC_OK;
    SPEC_TRY(read_varint(r, &key));
    f->number = (uint32_t)(key >> 3);
    f->wire = (uint32_t)(key & 7);
    if (key >> 32 != 0 || f->number == 0)
        return speci_fail(SPEC_E_FORMAT, "%s: not a SentencePiece model: bad field number", r->path);
    switch (f->wire) {
    case WIRE_VARINT:
        return read_varint(r, &f->value);
    case WIRE_64:
        return read_fixed(r, 8, &f->value);
    case WIRE_32:
        return read_fixed(r, 4, &f->value);
    case WIRE_BYTES:
        SPEC_TRY(read_varint(r, &n));
        if (n > r->n - r->i) return truncated(r);
        f->data = r->data + r->i;
        f->n = (size_t)n;
        r->i += f->n;
        return SPEC_OK;
    default:
        break;
    }
    return speci_fail(SPEC_E_FORMAT, "%s: not a SentencePiece model: wire type %u of field %u", r->path, f->wire,
                      f->number);
}

/* --------------------------------------------------------------------------------- the messages --- */

static spec_status read_piece(speci_spm *m, const field *message)
{
    reader r = { message->data, message->n, 0, m->t->path };
    const char *string = "";
    float score = 0;
    int type = SPM_NORMAL;
    size_t n = 0;
    field f;
    bool more;
    for (;;) {
        SPEC_TRY(next_field(&r, &f, &more));
        if (!more) break;
        if (f.number == 1 && f.wire == WIRE_BYTES) {
            string = (const char *)f.data;
            n = f.n;
        } else if (f.number == 2 && f.wire == WIRE_32) {
            uint32_t bits = (uint32_t)f.value;
            memcpy(&score, &bits, sizeof bits);
        } else if (f.number == 3 && f.wire == WIRE_VARINT) {
            type = f.value > 6 ? -1 : (int)f.value;
        }
    }
    if (type == SPM_UNUSED)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: piece %d '%.*s' has the type %d (UNUSED), which is not supported", m->t->path,
                          (int)(m->pieces.n / sizeof(speci_spm_piece)), n > 64 ? 64 : (int)n, string, type);
    return speci_spm_add(m, string, n, score, type);
}

/* An id of the trainer's: -1 switches the token off. Protobuf writes a negative int32 as ten bytes. */
static int32_t as_id(uint64_t value)
{
    return value < SPECI_TOK_ID_LIMIT ? (int32_t)value : -1;
}

static spec_status read_trainer(speci_spm *m, const field *message)
{
    reader r = { message->data, message->n, 0, m->t->path };
    field f;
    bool more;
    for (;;) {
        SPEC_TRY(next_field(&r, &f, &more));
        if (!more) return SPEC_OK;
        if (f.wire == WIRE_BYTES && f.number == 44) {
            m->unk_surface = f.data;
            m->n_unk_surface = f.n;
        }
        if (f.wire != WIRE_VARINT) continue;
        switch (f.number) {
        case 3:
            m->model_type = f.value;
            break;
        case 24:
            m->whitespace_as_suffix = f.value != 0;
            break;
        case 35:
            m->byte_fallback = f.value != 0;
            break;
        case 40:
            m->unk = as_id(f.value);
            break;
        case 41:
            m->bos = as_id(f.value);
            break;
        case 42:
            m->eos = as_id(f.value);
            break;
        default:
            break;
        }
    }
}

static spec_status read_normalizer(speci_spm *m, const field *message)
{
    reader r = { message->data, message->n, 0, m->t->path };
    field f;
    bool more;
    for (;;) {
        SPEC_TRY(next_field(&r, &f, &more));
        if (!more) return SPEC_OK;
        if (f.wire == WIRE_BYTES && f.number == 1)
            snprintf(m->name, sizeof m->name, "%.*s", f.n > 63 ? 63 : (int)f.n, (const char *)f.data);
        if (f.wire == WIRE_BYTES && f.number == 2) m->n_charsmap = f.n;
        if (f.wire != WIRE_VARINT) continue;
        if (f.number == 3) m->dummy_prefix = f.value != 0;
        if (f.number == 4) m->remove_extra = f.value != 0;
        if (f.number == 5) m->escape = f.value != 0;
    }
}

static spec_status read_model(speci_spm *m, const uint8_t *data, size_t n)
{
    reader r = { data, n, 0, m->t->path };
    field f;
    bool more;
    for (;;) {
        SPEC_TRY(next_field(&r, &f, &more));
        if (!more) break;
        if (f.wire != WIRE_BYTES) continue;
        if (f.number == 1) SPEC_TRY(read_piece(m, &f));
        if (f.number == 2) SPEC_TRY(read_trainer(m, &f));
        if (f.number == 3) SPEC_TRY(read_normalizer(m, &f));
    }
    if (m->pieces.n == 0)
        return speci_fail(SPEC_E_FORMAT, "%s: not a SentencePiece model: it has no pieces", m->t->path);
    return SPEC_OK;
}

/* ---------------------------------------------------------------------------- what it becomes --- */

const speci_spm speci_spm_defaults = {
    .model_type = 1, .unk = 0, .bos = 1, .eos = 2, .dummy_prefix = true, .remove_extra = true, .escape = true
};

spec_status speci_spm_add(speci_spm *m, const char *string, size_t n, float score, int type)
{
    const speci_spm_piece p = { (int32_t)(m->pieces.n / sizeof p), score, type };
    if (n == 0 || speci_utf8_check(string, n) != n)
        return speci_fail(SPEC_E_FORMAT, "%s: piece %d is empty or not UTF-8", m->t->path, p.id);
    if (score != score) return speci_fail(SPEC_E_FORMAT, "%s: the score of piece %d is NaN", m->t->path, p.id);
    if (type < SPM_NORMAL || type > SPM_BYTE)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: piece %d '%.*s' has the type %d (unknown), which is not supported", m->t->path, p.id,
                          n > 64 ? 64 : (int)n, string, type);
    SPEC_TRY(speci_vocab_add(&m->t->vocab, string, n, p.id));
    return speci_buf_add(&m->pieces, &p, sizeof p);
}

static spec_status check_supported(const speci_spm *m)
{
    static const char *const types[] = { "?", "UNIGRAM", "BPE", "WORD", "CHAR" };
    const char *path = m->t->path;
    if (m->model_type != SPM_MODEL_BPE)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: a SentencePiece model of type %s is not supported, only BPE is",
                          path, types[m->model_type <= 4 ? m->model_type : 0]);
    if (m->n_charsmap > 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: the normalizer '%s' has a character map, which is not supported",
                          path, m->name);
    if (m->whitespace_as_suffix)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: treat_whitespace_as_suffix is not supported", path);
    return SPEC_OK;
}

static int by_score(const void *x, const void *y)
{
    float a = ((const speci_spm_piece *)x)->score, b = ((const speci_spm_piece *)y)->score;
    return a < b ? 1 : a > b ? -1 : 0; /* the best first */
}

/* rank = place by score; pieces of equal score have equal rank, so that the leftmost pair wins, as there. */
static spec_status make_ranks(speci_spm *m)
{
    spec_tokenizer *t = m->t;
    speci_spm_piece *p = (speci_spm_piece *)(void *)m->pieces.data;
    size_t n = m->pieces.n / sizeof *p;
    uint32_t rank = 0;
    t->bpe.rank = speci_alloc(&t->allocator, n, sizeof *t->bpe.rank);
    if (!t->bpe.rank) return SPEC_E_NOMEM;
    qsort(p, n, sizeof *p, by_score);
    for (size_t i = 0; i < n; i++) {
        bool mergeable = p[i].type == SPM_NORMAL || p[i].type == SPM_USER_DEFINED;
        if (i > 0 && p[i].score < p[i - 1].score) rank = (uint32_t)i;
        t->bpe.rank[p[i].id] = mergeable ? rank : UINT32_MAX;
    }
    return SPEC_OK;
}

/* Control pieces are special tokens; user-defined ones are taken whole. */
static spec_status place_pieces(speci_spm *m)
{
    spec_tokenizer *t = m->t;
    const speci_spm_piece *p = (const speci_spm_piece *)(const void *)m->pieces.data;
    for (size_t i = 0; i < m->pieces.n / sizeof *p; i++) {
        size_t n;
        const char *string = speci_vocab_string(&t->vocab, p[i].id, &n);
        if (p[i].type == SPM_NORMAL || p[i].type == SPM_USER_DEFINED) speci_bpe_put_joins(&t->bpe, string, n);
        if (p[i].type == SPM_CONTROL) {
            speci_added token = { .id = p[i].id, .special = true };
            SPEC_TRY(speci_added_put(&t->added, string, n, &token));
        } else if (p[i].type == SPM_USER_DEFINED) {
            SPEC_TRY(speci_trie_put(&t->bpe.user_defined, string, n, (size_t)p[i].id));
        } else if (p[i].type == SPM_UNKNOWN) {
            t->bpe.unk = p[i].id;
        }
    }
    return SPEC_OK;
}

static spec_status make_bpe(speci_spm *m)
{
    speci_bpe *bpe = &m->t->bpe;
    bpe->spm = true;
    bpe->byte_fallback = m->byte_fallback;
    speci_bpe_find_bytes(bpe, &m->t->vocab);
    for (int b = 0; bpe->byte_fallback && b < 256; b++)
        if (bpe->byte_id[b] < 0)
            return speci_fail(SPEC_E_FORMAT, "%s: byte_fallback is set, but the piece <0x%02X> is missing", m->t->path,
                              (unsigned)b);
    SPEC_TRY(place_pieces(m));
    return make_ranks(m); /* last: it sorts the pieces */
}

static spec_status make_normalizer(speci_spm *m)
{
    speci_norm norm = {
        .kind = SPECI_NORM_SPM, .dummy_prefix = m->dummy_prefix, .remove_extra = m->remove_extra, .escape = m->escape,
        .each_segment = m->t->said.legacy == 1
    };
    return speci_buf_add(&m->t->norms, &norm, sizeof norm);
}

static spec_status new_dec(speci_spm *m, speci_dec_kind kind, const char *text, speci_dec **out)
{
    speci_decoder *d = &m->t->decoder;
    speci_dec step = { .kind = kind };
    SPEC_TRY(speci_buf_add(&d->steps, &step, sizeof step));
    *out = (speci_dec *)(void *)(d->steps.data + d->steps.n) - 1;
    if (!text) return SPEC_OK;
    (*out)->n_text = strlen(text);
    (*out)->text = speci_strdup(&m->t->allocator, text);
    return (*out)->text ? SPEC_OK : SPEC_E_NOMEM;
}

/* U+2581 back to spaces, byte pieces to bytes, and the dummy prefix off the beginning. */
static spec_status make_decoder(speci_spm *m)
{
    static const char mark[] = "\xE2\x96\x81", unk_surface[] = " \xE2\x81\x87 ";
    speci_decoder *d = &m->t->decoder;
    speci_dec *step;
    if (m->escape) SPEC_TRY(new_dec(m, SPECI_DEC_METASPACE, mark, &step));
    SPEC_TRY(new_dec(m, SPECI_DEC_BYTE_FALLBACK, NULL, &step));
    d->each_byte = true;
    if (m->dummy_prefix || m->remove_extra) {
        d->strip = m->remove_extra ? 255 : 1;
        d->strip_pieces = true;
    }
    d->unk = m->t->bpe.unk;
    d->unk_text = m->unk_surface ? (const char *)m->unk_surface : unk_surface;
    d->n_unk_text = m->unk_surface ? m->n_unk_surface : sizeof unk_surface - 1;
    if (speci_utf8_check(d->unk_text, d->n_unk_text) != d->n_unk_text)
        return speci_fail(SPEC_E_FORMAT, "%s: the unk_surface is not UTF-8", m->t->path);
    return SPEC_OK;
}

/* BOS and EOS, if they are pieces of the file. */
static void place_bos_eos(speci_spm *m)
{
    int32_t n = speci_vocab_n_id(&m->t->vocab);
    m->t->bos = m->bos < n ? m->bos : -1;
    m->t->eos = m->eos < n ? m->eos : -1;
}

spec_status speci_spm_finish(speci_spm *m)
{
    SPEC_TRY(check_supported(m));
    SPEC_TRY(make_bpe(m));
    SPEC_TRY(make_normalizer(m));
    SPEC_TRY(make_decoder(m));
    place_bos_eos(m);
    return SPEC_OK;
}

spec_status speci_tokenizer_read_spm(spec_tokenizer *t, const uint8_t *data, size_t n)
{
    speci_spm m = speci_spm_defaults;
    m.t = t;
    m.pieces.a = &t->allocator;
    spec_status status = read_model(&m, data, n);
    if (t->said.prefix_space >= 0) m.dummy_prefix = t->said.prefix_space;
    if (status == SPEC_OK) status = speci_spm_finish(&m);
    speci_buf_free(&m.pieces);
    return status;
}
