/* text_tokenizer.c - opening, closing and encoding; the table of contents is in text_tokenizer.h. */
#include "models/text/text_tokenizer.h"

#include <string.h>

/* ------------------------------------------------------------------------------------- opening --- */

static void init(spec_tokenizer *t, const spec_allocator *allocator)
{
    t->allocator = *allocator;
    const spec_allocator *a = &t->allocator;
    speci_vocab_init(&t->vocab, a);
    speci_added_init(&t->added, a);
    speci_bpe_init(&t->bpe, a);
    t->norms.a = t->pres.a = t->before.a = t->after.a = a;
    t->decoder.steps.a = t->decoder.text.a = t->decoder.pieces.a = t->decoder.first.a = a;
    t->decoder.unk = t->bos = t->eos = -1;
}

void spec_tokenizer_close(spec_tokenizer *tokenizer)
{
    if (!tokenizer) return;
    speci_vocab_free(&tokenizer->vocab);
    speci_added_free(&tokenizer->added);
    speci_norms_free(&tokenizer->norms);
    speci_pres_free(&tokenizer->pres);
    speci_bpe_free(&tokenizer->bpe, &tokenizer->allocator);
    speci_buf_free(&tokenizer->before);
    speci_buf_free(&tokenizer->after);
    speci_decoder_free(&tokenizer->decoder);
    spec_allocator allocator = tokenizer->allocator; /* it lies in what is freed last */
    speci_free(&allocator, tokenizer->path);
    speci_free(&allocator, tokenizer->chat_template);
    speci_free(&allocator, tokenizer);
}

/* The tokenizer's file: `path` itself, or what a directory holds. */
static spec_status find_file(const char *path, char *file, size_t cap)
{
    static const char *const names[] = { "tokenizer.json", "tokenizer.model" };
    if (!speci_is_directory(path)) {
        size_t n = strlen(path);
        if (n >= cap) return speci_fail(SPEC_E_INVALID, "a path of %zu bytes is too long", n);
        memcpy(file, path, n + 1);
        return SPEC_OK;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        SPEC_TRY(speci_path_join(file, cap, path, names[i]));
        if (speci_file_exists(file)) return SPEC_OK;
    }
    return speci_tokenizer_none(path);
}

/* By its name; else JSON begins with a brace, and no SentencePiece model does, whose first byte is a field's key (0x0A). */
static bool looks_like_json(const char *path, const uint8_t *data, size_t n)
{
    size_t i = 0;
    if (speci_ends_with(path, ".json")) return true;
    while (i < n && (data[i] == ' ' || data[i] == '\t' || data[i] == '\n' || data[i] == '\r')) i++;
    return i < n && data[i] == '{';
}

/* What follows once all tokens are known. */
static spec_status finish(spec_tokenizer *t)
{
    const int32_t n_added = (int32_t)(t->added.by_token.n / sizeof(uint32_t));
    t->n_vocab = speci_vocab_n_id(&t->vocab);
    if (n_added > t->n_vocab) t->n_vocab = n_added;
    SPEC_TRY(speci_added_place(t));
    return speci_decoder_build(t);
}

static spec_status read_bytes(spec_tokenizer *t, const speci_file *file, const speci_beside *beside)
{
    SPEC_TRY(speci_file_refuse_large(file->n, SPECI_TOK_FILE_MAX, t->path));
    SPEC_TRY(speci_file_load(file, t->path, 0, file->n));
    SPEC_TRY(speci_file_refuse_pointer(file->data, file->n, t->path));
    SPEC_TRY(speci_tokenizer_refuse_other(t->path, file->data, file->n));
    t->spm = !looks_like_json(t->path, file->data, file->n);
    SPEC_TRY(t->spm ? speci_tokenizer_read_spm(t, file->data, file->n) : speci_tokenizer_read_json(t, t->path));
    SPEC_TRY(speci_beside_add(beside, t));
    return finish(t); /* may refer to the file */
}

/* A GGUF file says it all; what is beside it belongs to others. Its tensors are not read. */
static spec_status read_gguf(spec_tokenizer *t, const speci_file *file)
{
    speci_gguf gguf = { 0 };
    spec_status status = speci_gguf_read(&gguf, file, t->path, &t->allocator);
    if (status == SPEC_OK) status = speci_tokenizer_read_gguf(t, &gguf);
    speci_gguf_close(&gguf);
    return status == SPEC_OK ? finish(t) : status;
}

static spec_status read_with_beside(spec_tokenizer *t, const speci_file *file)
{
    speci_beside *beside = NULL;
    spec_status status = speci_beside_open(&beside, t);
    if (status == SPEC_OK) status = read_bytes(t, file, beside);
    speci_beside_close(beside, &t->allocator);
    return status;
}

static spec_status read_file(spec_tokenizer *t)
{
    speci_file file;
    t->gguf = speci_is_gguf(t->path);
    SPEC_TRY(speci_file_map(&file, t->path));
    const spec_status status = t->gguf ? read_gguf(t, &file) : read_with_beside(t, &file);
    speci_file_unmap(&file);
    return status;
}

/* A post-processor's first id is BOS if there is no other word on it, its last one EOS. */
static void bos_eos_from_template(spec_tokenizer *t)
{
    if (t->before.n) t->bos = speci_buf_ids(&t->before)[0];
    if (t->after.n) t->eos = speci_buf_ids(&t->after)[speci_buf_n_ids(&t->after) - 1];
}

static spec_status check_template(const spec_tokenizer *t, const speci_buf *ids)
{
    const int32_t *id = speci_buf_ids(ids);
    for (size_t i = 0; i < speci_buf_n_ids(ids); i++)
        if (id[i] >= t->n_vocab)
            return speci_fail(SPEC_E_FORMAT, "%s: the post_processor adds the id %d, but there are only %d", t->path,
                              id[i], t->n_vocab);
    return SPEC_OK;
}

/* For tokenizer.json the post-processor decides what is added; a tokenizer.model says nothing about it: BOS yes, EOS no,
 * as its users have it, unless tokenizer_config.json differs. Of a GGUF file its reader has found it out. */
static spec_status place_bos_eos(spec_tokenizer *t)
{
    bos_eos_from_template(t);
    if (t->said.bos >= 0) t->bos = t->said.bos;
    if (t->said.eos >= 0) t->eos = t->said.eos;
    if (!t->spm && !t->gguf) return SPEC_OK;
    if (t->bos >= 0 && t->said.add_bos != 0) SPEC_TRY(speci_buf_add(&t->before, &t->bos, sizeof t->bos));
    if (t->eos >= 0 && t->said.add_eos == 1) SPEC_TRY(speci_buf_add(&t->after, &t->eos, sizeof t->eos));
    return SPEC_OK;
}

static spec_status open_file(spec_tokenizer *t, const char *path)
{
    char file[4096];
    SPEC_TRY(find_file(path, file, sizeof file));
    t->path = speci_strdup(&t->allocator, file);
    if (!t->path) return SPEC_E_NOMEM;
    t->vocab.file = t->added.ids.file = t->path;
    SPEC_TRY(read_file(t));
    SPEC_TRY(check_template(t, &t->before));
    SPEC_TRY(check_template(t, &t->after));
    return place_bos_eos(t);
}

spec_status spec_tokenizer_open(spec_tokenizer **out, const char *path, const spec_allocator *allocator)
{
    SPEC_NEED(out, "out");
    *out = NULL;
    SPEC_NEED(path, "path");
    if (!allocator) allocator = &speci_malloc;
    spec_tokenizer *t = speci_alloc(allocator, 1, sizeof *t);
    if (!t) return SPEC_E_NOMEM;
    init(t, allocator);
    spec_status status = open_file(t, path);
    if (status == SPEC_OK)
        *out = t;
    else
        spec_tokenizer_close(t);
    return status;
}

/* ------------------------------------------------------------------------------------ encoding --- */

typedef struct scratch { /* of one call: the tokenizer itself is shared by threads */
    const spec_tokenizer *t;
    bool parse_special, goes_on;
    const speci_buf *norms, *pres;       /* the tokenizer's, or those for a text that goes on: */
    speci_buf norms_on, pres_on;
    speci_buf raw, segments; /* speci_segment */
    speci_norm_work norm;
    speci_pre_work pre;
    speci_bpe_work bpe;
    speci_buf ids; /* int32_t */
} scratch;

static void scratch_init(scratch *s, const spec_tokenizer *t, uint32_t flags)
{
    const spec_allocator *a = &t->allocator;
    *s = (scratch){ .t = t, .parse_special = flags & SPEC_TOKEN_PARSE_SPECIAL, .goes_on = flags & SPEC_TOKEN_CONTINUE,
                    .norms = &t->norms, .pres = &t->pres };
    speci_buf *all[] = { &s->raw,         &s->segments, &s->norm.a,     &s->norm.b,    &s->norm.code_points,
                         &s->norm.order,  &s->pre.text, &s->pre.splits, &s->pre.text2, &s->pre.splits2,
                         &s->bpe.symbols, &s->bpe.heap, &s->bpe.key,    &s->ids,       &s->norms_on, &s->pres_on };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) all[i]->a = a;
}

/* The steps of a text that goes on. */
static spec_status scratch_continue(scratch *s)
{
    s->norms = &s->norms_on, s->pres = &s->pres_on;
    SPEC_TRY(speci_norms_continue(&s->norms_on, &s->t->norms));
    return speci_pres_continue(&s->pres_on, &s->t->pres);
}

static void scratch_free(scratch *s)
{
    speci_buf *all[] = { &s->raw,         &s->segments, &s->norm.a,     &s->norm.b,    &s->norm.code_points,
                         &s->norm.order,  &s->pre.text, &s->pre.splits, &s->pre.text2, &s->pre.splits2,
                         &s->bpe.symbols, &s->bpe.heap, &s->bpe.key,    &s->ids,       &s->norms_on, &s->pres_on };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) speci_buf_free(all[i]);
}

/* Normalized text without added tokens: splits, then BPE. */
static spec_status encode_plain(scratch *s, const char *text, size_t n, bool origin)
{
    const spec_tokenizer *t = s->t;
    SPEC_TRY(speci_pretokenize(s->pres, text, n, origin, &s->pre));
    const speci_split *split = (const speci_split *)(const void *)s->pre.splits.data;
    for (size_t i = 0; i < s->pre.splits.n / sizeof *split; i++)
        SPEC_TRY(
            speci_bpe_encode(&t->bpe, &t->vocab, s->pre.text.data + split[i].offset, split[i].n, &s->bpe, &s->ids));
    return SPEC_OK;
}

/* Raw text between two added tokens. `origin`: it begins where the whole text begins. */
static spec_status encode_segment(scratch *s, const char *text, size_t n, bool origin)
{
    const spec_tokenizer *t = s->t;
    SPEC_TRY(speci_normalize(s->norms, text, n, &origin, &s->norm, &text, &n));
    s->segments.n = 0;
    SPEC_TRY(speci_added_split(&t->added, &t->added.normalized, text, n, s->parse_special, &s->segments));
    const speci_segment *segment = (const speci_segment *)(const void *)s->segments.data;
    for (size_t i = 0; i < s->segments.n / sizeof *segment; i++) {
        if (segment[i].id >= 0)
            SPEC_TRY(speci_buf_add(&s->ids, &segment[i].id, sizeof segment[i].id));
        else
            SPEC_TRY(encode_plain(s, text + segment[i].offset, segment[i].n, origin && segment[i].offset == 0));
    }
    return SPEC_OK;
}

static spec_status encode_text(scratch *s, const char *text, size_t n)
{
    const spec_tokenizer *t = s->t;
    SPEC_TRY(speci_added_split(&t->added, &t->added.raw, text, n, s->parse_special, &s->raw));
    const speci_segment *segment = (const speci_segment *)(const void *)s->raw.data;
    for (size_t i = 0; i < s->raw.n / sizeof *segment; i++) {
        if (segment[i].id >= 0)
            SPEC_TRY(speci_buf_add(&s->ids, &segment[i].id, sizeof segment[i].id));
        else
            SPEC_TRY(encode_segment(s, text + segment[i].offset, segment[i].n, segment[i].offset == 0 && !s->goes_on));
    }
    return SPEC_OK;
}

static spec_status check_encode(const char *text, size_t n_text, uint32_t flags)
{
    if (flags & ~(uint32_t)(SPEC_TOKEN_ADD_SPECIAL | SPEC_TOKEN_PARSE_SPECIAL | SPEC_TOKEN_SKIP_SPECIAL | SPEC_TOKEN_CONTINUE))
        return speci_fail(SPEC_E_INVALID, "unknown tokenizer flags 0x%x", (unsigned)flags);
    if (n_text > INT32_MAX / 8) /* normalizing may make text longer; BPE counts bytes in 32 bits */
        return speci_fail(SPEC_E_INVALID, "a text of %zu bytes is too long, at most %d are possible", n_text,
                          INT32_MAX / 8);
    size_t bad = speci_utf8_check(text, n_text);
    if (bad == n_text) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "the text is not UTF-8: byte %zu is 0x%02X", bad, (unsigned)(uint8_t)text[bad]);
}

spec_status spec_tokenizer_encode(const spec_tokenizer *tokenizer, int32_t *ids, size_t cap, size_t *n,
                                  const char *text, size_t n_text, uint32_t flags)
{
    SPEC_NEED(tokenizer, "tokenizer");
    SPEC_NEED(ids || cap == 0, "ids");
    SPEC_NEED(n, "n");
    SPEC_NEED(text || n_text == 0, "text");
    *n = 0;
    SPEC_TRY(check_encode(text, n_text, flags));
    scratch s;
    scratch_init(&s, tokenizer, flags);
    bool special = flags & SPEC_TOKEN_ADD_SPECIAL;
    spec_status status = s.goes_on ? scratch_continue(&s) : SPEC_OK;
    if (special && status == SPEC_OK) status = speci_buf_add(&s.ids, tokenizer->before.data, tokenizer->before.n);
    if (status == SPEC_OK) status = encode_text(&s, text, n_text);
    if (status == SPEC_OK && special) status = speci_buf_add(&s.ids, tokenizer->after.data, tokenizer->after.n);
    if (status == SPEC_OK) {
        *n = s.ids.n / sizeof *ids;
        if (*n > cap)
            status = speci_fail(SPEC_E_FULL, "the text has %zu tokens, there is room for %zu", *n, cap);
        else if (*n > 0)
            memcpy(ids, s.ids.data, s.ids.n);
    }
    scratch_free(&s);
    return status;
}
