/* corpus_build.c - a corpus table from a corpus: texts to tokens, tokens to sorted windows, windows to the file. */
#include "algorithms/corpus/corpus_count.h"
#include "algorithms/corpus/corpus_runs.h"

#include <string.h>

enum { PIECE = 1 << 20 }; /* bytes of text that are encoded at once, at most */

struct spec_corpus {
    spec_allocator allocator;
    const spec_allocator *a;
    char *path;
    const spec_tokenizer *tokenizer;
    spec_progress_fn progress;
    void *progress_user_data;
    speci_corpus_shape shape;
    int32_t eos;         /* ends a text; -1: no token does */
    bool failed;         /* it can only be closed */
    bool open_text;      /* something of a text was added */
    uint64_t n_text, n_byte; /* n_byte: of this text, in front of what is in `text` */
    speci_buf text, ids; /* not encoded yet; scratch */
    corpus_runs runs;
    corpus_counts counts;
};

/* --- open, close --- */

static spec_status number(int32_t *out, int32_t given, int32_t otherwise, int32_t most, const char *name)
{
    *out = given ? given : otherwise;
    if (*out >= 1 && *out <= most) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "spec_corpus_params: %s is %d, need 1 to %d", name, given, most);
}

static spec_status read_params(spec_corpus *c, const spec_corpus_params *p)
{
    enum { CONTEXT = 3, DRAFT = 6, ROW = 4, COUNT = 2 };
    speci_corpus_shape *s = &c->shape;
    int32_t min_count;
    spec_tokenizer_info info = { .struct_size = sizeof info, .n_vocab = p->n_vocab, .eos = -1 };
    if (p->tokenizer) SPEC_TRY(spec_tokenizer_get_info(p->tokenizer, &info));
    if (info.n_vocab == 0) return speci_fail(SPEC_E_INVALID, "spec_corpus_params: a corpus needs a tokenizer, or n_vocab");
    SPEC_TRY(number(&s->n_vocab, info.n_vocab, 0, SPECI_CORPUS_NONE - 1, "n_vocab"));
    SPEC_TRY(number(&s->n_context, p->n_context, CONTEXT, SPECI_CORPUS_MAX_CONTEXT, "n_context"));
    SPEC_TRY(number(&s->n_draft, p->n_draft, DRAFT, SPECI_CORPUS_MAX_DRAFT, "n_draft"));
    SPEC_TRY(number(&s->n_row, p->n_row, ROW, SPECI_CORPUS_MAX_ROW, "n_row"));
    SPEC_TRY(number(&min_count, p->min_count, COUNT, INT32_MAX, "min_count"));
    s->min_count = (uint32_t)min_count;
    s->vocabulary = speci_tokenizer_sum(p->tokenizer);
    c->tokenizer = p->tokenizer;
    c->eos = info.eos;
    c->progress = p->progress, c->progress_user_data = p->progress_user_data;
    return SPEC_OK;
}

static spec_status begin(spec_corpus *c, const char *path, const spec_corpus_params *p)
{
    static const size_t memory = (size_t)1 << 30;
    SPEC_TRY(read_params(c, p));
    SPEC_TRY(speci_writer_check(path, SPECI_CORPUS_MAGIC));
    if (!(c->path = speci_strdup(c->a, path))) return SPEC_E_NOMEM;
    return speci_corpus_runs_open(&c->runs, c->shape.n_vocab, c->shape.n_context + c->shape.n_draft,
                                  p->memory ? p->memory : memory, path, c->a);
}

spec_status spec_corpus_open(spec_corpus **out, const char *path, const spec_corpus_params *params)
{
    spec_corpus_params p = SPEC_CORPUS_PARAMS_INIT;
    SPEC_NEED(out, "out");
    *out = NULL;
    SPEC_NEED(path, "path");
    SPEC_TRY(speci_params_read(&p, sizeof p, params, "spec_corpus_params"));
    spec_corpus *c = speci_alloc(p.allocator, 1, sizeof *c);
    if (!c) return SPEC_E_NOMEM;
    c->allocator = p.allocator ? *p.allocator : speci_malloc;
    c->a = &c->allocator;
    c->text.a = c->ids.a = c->a;
    const spec_status status = begin(c, path, &p);
    if (status != SPEC_OK) {
        spec_corpus_close(c);
        return status;
    }
    *out = c;
    return SPEC_OK;
}

void spec_corpus_close(spec_corpus *c)
{
    if (!c) return;
    speci_corpus_runs_close(&c->runs);
    speci_corpus_counts_close(&c->counts);
    speci_buf_free(&c->text);
    speci_buf_free(&c->ids);
    speci_free(c->a, c->path);
    const spec_allocator own = c->allocator;
    speci_free(&own, c);
}

/* --- texts --- */

static spec_status check_usable(const spec_corpus *c)
{
    if (!c->failed) return SPEC_OK;
    return speci_fail(SPEC_E_STATE, "%s: the corpus was written, or an earlier call for it failed: it can only be closed",
                      c->path);
}

/* After these a corpus is not what it should be. */
static spec_status or_failed(spec_corpus *c, spec_status status)
{
    if (status != SPEC_OK && status != SPEC_E_INVALID) c->failed = true;
    return status;
}

static spec_status end_text(spec_corpus *c)
{
    c->n_text += c->open_text;
    c->open_text = false;
    return speci_corpus_runs_end(&c->runs);
}

/* Tokens [n] of this text; one that ends texts ends it. */
static spec_status add_tokens(spec_corpus *c, const int32_t *ids, size_t n)
{
    for (size_t first = 0, i = 0; i <= n; i++) {
        if (i < n && ids[i] != c->eos) continue;
        SPEC_TRY(speci_corpus_runs_add(&c->runs, ids + first, i - first));
        c->shape.n_token += i - first;
        c->open_text = c->open_text || i > first;
        if (i < n) SPEC_TRY(end_text(c));
        first = i + 1;
    }
    return SPEC_OK;
}

/* Special tokens that stand in a corpus are meant. None is added in front. */
static spec_status encode(spec_corpus *c, size_t n_text, size_t *n)
{
    const size_t room = c->ids.cap / sizeof(int32_t);
    spec_status status = spec_tokenizer_encode(c->tokenizer, speci_buf_ids(&c->ids), room, n, c->text.data, n_text,
                                               SPEC_TOKEN_PARSE_SPECIAL);
    if (status != SPEC_E_FULL) return status;
    SPEC_TRY(speci_buf_reserve(&c->ids, *n * sizeof(int32_t)));
    return spec_tokenizer_encode(c->tokenizer, speci_buf_ids(&c->ids), *n, n, c->text.data, n_text,
                                 SPEC_TOKEN_PARSE_SPECIAL);
}

/* The first n_text bytes that wait to be encoded. */
static spec_status add_piece(spec_corpus *c, size_t n_text)
{
    size_t n = 0;
    const spec_status status = encode(c, n_text, &n);
    if (status == SPEC_E_INVALID) { /* the rest of that text is given up */
        c->text.n = 0;
        SPEC_TRY(end_text(c));
        return speci_fail(status, "text %llu of the corpus, in what begins at its byte %llu: %s", (unsigned long long)c->n_text,
                          (unsigned long long)c->n_byte, spec_last_error());
    }
    SPEC_TRY(status);
    memmove(c->text.data, c->text.data + n_text, c->text.n - n_text);
    c->text.n -= n_text, c->n_byte += n_text;
    return add_tokens(c, speci_buf_ids(&c->ids), n);
}

/* Where text [n] may be cut so that few tokens change: behind its last line, before its last space, between characters. */
static size_t cut_of(const char *text, size_t n)
{
    size_t at = n;
    while (at > 0 && text[at - 1] != '\n') at--;
    if (at > 0) return at;
    for (at = n - 1; at > 0 && text[at] != ' '; at--) {}
    if (at > 0) return at;
    for (at = n - 1; at > 1 && ((unsigned char)text[at] & 0xc0) == 0x80; at--) {}
    return at;
}

static spec_status add_text(spec_corpus *c, const char *text, size_t n)
{
    while (n > 0) {
        const size_t part = n < PIECE - c->text.n ? n : PIECE - c->text.n;
        SPEC_TRY(speci_buf_add(&c->text, text, part));
        c->open_text = true;
        text += part, n -= part;
        if (c->text.n == PIECE) SPEC_TRY(add_piece(c, cut_of(c->text.data, PIECE)));
    }
    return SPEC_OK;
}

/* What waits to be encoded. */
static spec_status flush_text(spec_corpus *c) { return c->text.n > 0 ? add_piece(c, c->text.n) : SPEC_OK; }

spec_status spec_corpus_add_text(spec_corpus *c, const char *text, size_t n)
{
    SPEC_NEED(c, "corpus");
    if (n > 0) SPEC_NEED(text, "text");
    SPEC_TRY(check_usable(c));
    if (!c->tokenizer) return speci_fail(SPEC_E_INVALID, "%s: text for a corpus that was opened without a tokenizer", c->path);
    return or_failed(c, add_text(c, text, n));
}

spec_status spec_corpus_add_ids(spec_corpus *c, const int32_t *ids, size_t n)
{
    SPEC_NEED(c, "corpus");
    if (n > 0) SPEC_NEED(ids, "ids");
    SPEC_TRY(check_usable(c));
    for (size_t i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= c->shape.n_vocab)
            return speci_fail(SPEC_E_INVALID, "%s: ids[%zu] is %d, need 0 to %d", c->path, i, ids[i], c->shape.n_vocab - 1);
    SPEC_TRY(or_failed(c, flush_text(c)));
    return or_failed(c, add_tokens(c, ids, n));
}

spec_status spec_corpus_end_text(spec_corpus *c)
{
    SPEC_NEED(c, "corpus");
    SPEC_TRY(check_usable(c));
    const spec_status status = or_failed(c, flush_text(c));
    c->n_byte = 0;
    SPEC_TRY(status);
    return or_failed(c, end_text(c));
}

/* --- the file --- */

static spec_status count_window(void *arg, const uint8_t *window, uint64_t count)
{
    return speci_corpus_counts_add(arg, window, count);
}

/* Appends a section: to the file if there is one, and to its checksum. */
static spec_status copy_section(speci_writer *to, speci_corpus_section *section, const speci_scratch *from, uint64_t n)
{
    enum { BUFFER = 1 << 16 };
    uint8_t buffer[BUFFER];
    speci_hash h = { 0 };
    for (uint64_t at = 0; at < from->n;) {
        const size_t part = from->n - at < BUFFER ? (size_t)(from->n - at) : BUFFER;
        SPEC_TRY(speci_scratch_read(from, buffer, at, part));
        if (to) SPEC_TRY(speci_writer_put(to, buffer, part));
        speci_hash_add(&h, buffer, part);
        at += part;
    }
    *section = (speci_corpus_section){ n, speci_hash_value(&h) };
    return SPEC_OK;
}

static spec_status copy_sections(speci_writer *to, speci_corpus_header *h, const corpus_counts *c)
{
    for (int32_t o = 0; o <= c->shape.n_context; o++) {
        SPEC_TRY(copy_section(to, &h->nodes[o], &c->orders[o].nodes, c->orders[o].n_node));
        SPEC_TRY(copy_section(to, &h->rows[o], &c->orders[o].rows, c->orders[o].n_row));
    }
    return SPEC_OK;
}

/* The header says the checksums of what comes behind it, which is read twice therefore. */
static spec_status write_sections(speci_writer *to, const spec_corpus *c)
{
    uint8_t bytes[SPECI_CORPUS_MAX_HEADER];
    speci_corpus_header h = { .shape = c->shape };
    SPEC_TRY(copy_sections(NULL, &h, &c->counts));
    SPEC_TRY(speci_writer_put(to, bytes, speci_corpus_put_header(bytes, &h)));
    return copy_sections(to, &h, &c->counts);
}

static spec_status write_file(const spec_corpus *c)
{
    speci_writer to;
    SPEC_TRY(speci_writer_open(&to, c->path, SPECI_CORPUS_MAGIC, c->a));
    return speci_writer_close(&to, write_sections(&to, c));
}

static spec_corpus_info info_of(const spec_corpus *c)
{
    uint8_t header[SPECI_CORPUS_MAX_HEADER];
    const speci_corpus_header h = { .shape = c->shape };
    spec_corpus_info info = { .struct_size = sizeof info, .n_text = c->n_text, .n_token = c->shape.n_token,
                              .bytes = speci_corpus_put_header(header, &h), .bytes_runs = c->runs.file.n,
                              .n_run = (int32_t)(c->runs.ends.n / sizeof(uint64_t)) };
    for (int32_t o = 0; o <= c->shape.n_context; o++) {
        const corpus_order *order = &c->counts.orders[o];
        info.bytes += order->nodes.n + order->rows.n;
        if (o == c->shape.n_context) continue; /* the extension order is none of the corpus */
        info.n_context += order->n_node - 1;
        info.n_continuation += order->n_row;
    }
    return info;
}

static spec_status write_table(spec_corpus *c)
{
    SPEC_TRY(flush_text(c));
    SPEC_TRY(end_text(c));
    SPEC_TRY(speci_corpus_counts_open(&c->counts, &c->shape, c->path, c->a));
    SPEC_TRY(speci_corpus_runs_merge(&c->runs, count_window, &c->counts, c->progress, c->progress_user_data));
    SPEC_TRY(speci_corpus_counts_end(&c->counts));
    return write_file(c);
}

spec_status spec_corpus_write(spec_corpus *c, spec_corpus_info *info)
{
    SPEC_NEED(c, "corpus");
    SPEC_TRY(check_usable(c));
    c->failed = true; /* its memory is put to other use */
    SPEC_TRY(write_table(c));
    const spec_corpus_info found = info_of(c);
    return info ? speci_params_write(info, &found, sizeof found, "spec_corpus_info") : SPEC_OK;
}
