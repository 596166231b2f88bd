/* corpus_table.c - a corpus table as it is read: the header, and the rows of a context by a search per token. */
#include "algorithms/corpus/corpus.h"

#include <string.h>

static const char MAGIC[8] = SPECI_CORPUS_MAGIC; /* with its zero */

/* --- the header --- */

/* Values to bytes, or back. */
typedef struct coder {
    uint8_t *at;
    bool reads;
} coder;

static void code64(coder *c, uint64_t *value, int n)
{
    if (c->reads) *value = speci_corpus_get(c->at, n);
    else speci_corpus_put(c->at, *value, n);
    c->at += n;
}

/* An int32_t, or any value of 32 bits. */
static void code32(coder *c, void *value)
{
    uint32_t v = 0;
    if (!c->reads) memcpy(&v, value, sizeof v);
    uint64_t wide = v;
    code64(c, &wide, 4);
    v = (uint32_t)wide;
    if (c->reads) memcpy(value, &v, sizeof v);
}

/* But for its checksum. The sections are as many as the shape says, once that is there. */
static void code_shape(coder *c, speci_corpus_shape *s)
{
    code32(c, &s->n_vocab);
    code64(c, &s->vocabulary, 8);
    code32(c, &s->n_context), code32(c, &s->n_draft), code32(c, &s->n_row), code32(c, &s->min_count);
    code64(c, &s->n_token, 8);
}

static void code_sections(coder *c, speci_corpus_header *h)
{
    for (int32_t o = 0; o <= h->shape.n_context; o++) {
        speci_corpus_section *both[] = { &h->nodes[o], &h->rows[o] };
        for (int i = 0; i < 2; i++) code64(c, &both[i]->n, 8), code64(c, &both[i]->checksum, 8);
    }
}

size_t speci_corpus_put_header(uint8_t *bytes, const speci_corpus_header *h)
{
    speci_corpus_header copy = *h;
    coder c = { bytes + sizeof MAGIC, false };
    uint32_t version = SPECI_CORPUS_VERSION;
    memcpy(bytes, MAGIC, sizeof MAGIC);
    code32(&c, &version);
    code_shape(&c, &copy.shape);
    code_sections(&c, &copy);
    uint64_t sum = speci_hash_of(bytes, (size_t)(c.at - bytes));
    code64(&c, &sum, 8);
    return (size_t)(c.at - bytes);
}

/* --- open --- */

/* Of a header with so many orders: 56 are not of sections. */
static size_t header_bytes(int32_t n_context)
{
    return SPECI_CORPUS_MAX_HEADER - (size_t)(SPECI_CORPUS_MAX_CONTEXT - n_context) * 2 * 16;
}

static bool within(int32_t value, int32_t most) { return value >= 1 && value <= most; }

static spec_status check_shape(const speci_corpus_shape *s, const char *name)
{
    if (within(s->n_vocab, SPECI_CORPUS_NONE) && within(s->n_context, SPECI_CORPUS_MAX_CONTEXT) &&
        within(s->n_draft, SPECI_CORPUS_MAX_DRAFT) && within(s->n_row, SPECI_CORPUS_MAX_ROW))
        return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: no corpus table has %d ids, contexts of %d tokens and %d continuations of %d", name,
                      s->n_vocab, s->n_context, s->n_row, s->n_draft);
}

static spec_status read_header(speci_corpus_header *h, const uint8_t *data, size_t n, const char *name)
{
    uint8_t bytes[SPECI_CORPUS_MAX_HEADER];
    coder c = { bytes + sizeof MAGIC, true };
    uint32_t version = 0;
    uint64_t sum = 0;
    memset(bytes, 0, sizeof bytes);
    memcpy(bytes, data, n < sizeof bytes ? n : sizeof bytes);
    if (n < sizeof MAGIC || memcmp(bytes, MAGIC, sizeof MAGIC) != 0) {
        SPEC_TRY(speci_file_refuse_pointer(data, n, name));
        return speci_fail(SPEC_E_FORMAT, "%s: not a corpus table: it does not begin with %s (spec ngram build makes one)", name,
                          MAGIC);
    }
    code32(&c, &version);
    if (version != SPECI_CORPUS_VERSION)
        return speci_fail(SPEC_E_FORMAT, "%s: a corpus table of version %u, this library reads version %d: build it again",
                          name, version, SPECI_CORPUS_VERSION);
    code_shape(&c, &h->shape);
    SPEC_TRY(check_shape(&h->shape, name));
    code_sections(&c, h);
    if (n < header_bytes(h->shape.n_context))
        return speci_fail(SPEC_E_FORMAT, "%s: %zu bytes, cut short within its header", name, n);
    const uint64_t expected = speci_hash_of(bytes, (size_t)(c.at - bytes));
    code64(&c, &sum, 8);
    if (sum == expected) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: its header was changed: the checksum in it is %016llx, its bytes give %016llx", name,
                      (unsigned long long)sum, (unsigned long long)expected);
}

/* The place of a section, which begins at *end; *end moves behind it. Too large for any file: *end is UINT64_MAX. */
static uint64_t place(uint64_t *end, uint64_t n, int bytes)
{
    const uint64_t at = *end;
    *end = n > (UINT64_MAX - at) / (uint64_t)bytes ? UINT64_MAX : at + n * (uint64_t)bytes;
    return at;
}

/* Finds the sections, and compares the length of the file. */
static spec_status place_sections(speci_corpus_table *t, const char *name)
{
    const speci_corpus_header *h = &t->header;
    uint64_t at[2 * SPECI_CORPUS_MAX_ORDER], end = header_bytes(h->shape.n_context);
    for (int32_t o = 0; o <= h->shape.n_context; o++) {
        at[2 * o] = place(&end, h->nodes[o].n, speci_corpus_node_bytes(&h->shape, o));
        at[2 * o + 1] = place(&end, h->rows[o].n, speci_corpus_row_bytes(&h->shape));
        if (h->nodes[o].n == 0) return speci_fail(SPEC_E_FORMAT, "%s: order %d has no nodes, not even the last", name, o + 1);
    }
    if (end != t->file.n)
        return speci_fail(SPEC_E_FORMAT, "%s: %zu bytes, its header says %llu: %s", name, t->file.n, (unsigned long long)end,
                          t->file.n < end ? "it was cut short" : "something stands behind its end");
    for (int32_t o = 0; o <= h->shape.n_context; o++)
        t->nodes[o] = t->file.data + at[2 * o], t->rows[o] = t->file.data + at[2 * o + 1];
    return SPEC_OK;
}

static spec_status check_section(const speci_corpus_table *t, const uint8_t *at, const speci_corpus_section *s, int bytes,
                                 const char *what, const char *name)
{
    const size_t n = (size_t)s->n * (size_t)bytes, first = (size_t)(at - t->file.data);
    const uint64_t found = speci_hash_of(at, n);
    if (found == s->checksum) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: corrupt between bytes %zu and %zu (%s): the checksum in its header is %016llx, "
                      "these bytes give %016llx", name, first, first + n, what, (unsigned long long)s->checksum,
                      (unsigned long long)found);
}

static spec_status check_sections(const speci_corpus_table *t, const char *name)
{
    const speci_corpus_header *h = &t->header;
    for (int32_t o = 0; o <= h->shape.n_context; o++) {
        const int bytes = speci_corpus_node_bytes(&h->shape, o);
        SPEC_TRY(check_section(t, t->nodes[o], &h->nodes[o], bytes, "contexts", name));
        SPEC_TRY(check_section(t, t->rows[o], &h->rows[o], speci_corpus_row_bytes(&h->shape), "continuations", name));
    }
    return SPEC_OK;
}

static spec_status read_table(speci_corpus_table *t, const char *name, const spec_allocator *a)
{
    SPEC_TRY(read_header(&t->header, t->file.data, t->file.n, name));
    SPEC_TRY(place_sections(t, name));
    SPEC_TRY(check_sections(t, name));
    return (t->path = speci_strdup(a, name)) ? SPEC_OK : SPEC_E_NOMEM;
}

spec_status speci_corpus_open_memory(speci_corpus_table *t, const uint8_t *data, size_t n, const char *name,
                                     const spec_allocator *a)
{
    *t = (speci_corpus_table){ .file = { data, n, -1 } };
    const spec_status status = read_table(t, name, a);
    if (status != SPEC_OK) *t = (speci_corpus_table){ 0 };
    return status;
}

spec_status speci_corpus_open(speci_corpus_table *t, const char *path, const spec_allocator *a)
{
    speci_file file;
    SPEC_TRY(speci_file_share(&file, path));
    const spec_status status = speci_corpus_open_memory(t, file.data, file.n, path, a);
    t->file = file;
    if (status != SPEC_OK) speci_file_unmap(&t->file);
    return status;
}

void speci_corpus_close(speci_corpus_table *t, const spec_allocator *a)
{
    if (t->file.fd >= 0) speci_file_unmap(&t->file);
    speci_free(a, t->path);
    *t = (speci_corpus_table){ .file = { .fd = -1 } };
}

/* --- whose ids --- */

spec_status speci_corpus_fits(const speci_corpus_table *t, const spec_tokenizer *tokenizer, int32_t n_vocab)
{
    const speci_corpus_shape *s = &t->header.shape;
    if (s->n_vocab > n_vocab)
        return speci_fail(SPEC_E_INVALID, "%s: a table of %d token ids, the target has %d", t->path, s->n_vocab, n_vocab);
    if (s->vocabulary == 0) return SPEC_OK; /* made from ids: whose they are, its maker knows */
    if (!tokenizer)
        return speci_fail(SPEC_E_INVALID, "%s: made with a tokenizer, and the target has none: are its ids the same?", t->path);
    const uint64_t own = speci_tokenizer_sum(tokenizer);
    if (own == s->vocabulary) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "%s: made with another tokenizer: its vocabulary is %016llx, the target's is %016llx; "
                      "build it again with -m and the target's directory", t->path, (unsigned long long)s->vocabulary,
                      (unsigned long long)own);
}

/* --- look-up --- */

static uint32_t token_of(const uint8_t *node) { return (uint32_t)speci_corpus_get(node, SPECI_CORPUS_TOKEN); }

/* Items [first, end) of an array. */
typedef struct range {
    uint64_t first, end;
} range;

/* The node of the range with this token, or its end. */
static uint64_t search(const uint8_t *nodes, int bytes, range in, uint32_t token)
{
    uint64_t low = in.first, high = in.end;
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (token_of(nodes + middle * (uint64_t)bytes) < token) low = middle + 1;
        else high = middle;
    }
    return low < in.end && token_of(nodes + low * (uint64_t)bytes) == token ? low : in.end;
}

/* What node `node`, which is not the last, points at, of n items. `field`: where in a node that stands. */
static spec_status range_of(const speci_corpus_table *t, int32_t order, uint64_t node, int field, uint64_t n, range *out)
{
    const int bytes = speci_corpus_node_bytes(&t->header.shape, order);
    const uint8_t *at = t->nodes[order] + node * (uint64_t)bytes + field;
    *out = (range){ speci_corpus_get(at, 4), speci_corpus_get(at + bytes, 4) };
    if (out->first <= out->end && out->end <= n) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: corrupt at byte %zu: a context points at %llu to %llu of %llu", t->path,
                      (size_t)(at - t->file.data), (unsigned long long)out->first, (unsigned long long)out->end,
                      (unsigned long long)n);
}

spec_status speci_corpus_find(const speci_corpus_table *t, speci_corpus_rows *out, int32_t order, const int32_t *context)
{
    const speci_corpus_header *h = &t->header;
    const bool extension = order == h->shape.n_context;
    int32_t at = extension ? order : 0;
    range in = { 0, h->nodes[at].n - 1 };
    *out = (speci_corpus_rows){ 0 };
    for (;; at++) {
        const uint64_t node = search(t->nodes[at], speci_corpus_node_bytes(&h->shape, at), in, (uint32_t)*context++);
        if (node == in.end) return SPEC_OK;
        const int field = SPECI_CORPUS_TOKEN + (at == order ? 0 : 4);
        SPEC_TRY(range_of(t, at, node, field, at == order ? h->rows[at].n : h->nodes[at + 1].n - 1, &in));
        if (at == order) break;
    }
    out->at = t->rows[order] + in.first * (uint64_t)speci_corpus_row_bytes(&h->shape);
    out->n = in.end - in.first < (uint64_t)h->shape.n_row ? (int32_t)(in.end - in.first) : h->shape.n_row;
    return SPEC_OK;
}

int32_t speci_corpus_row(const speci_corpus_table *t, const speci_corpus_rows *rows, int32_t i, int32_t *tokens)
{
    const speci_corpus_shape *s = &t->header.shape;
    const uint8_t *at = rows->at + (size_t)i * (size_t)speci_corpus_row_bytes(s) + 4;
    int32_t n = 0;
    for (; n < s->n_draft; n++, at += SPECI_CORPUS_TOKEN) {
        tokens[n] = (int32_t)speci_corpus_get(at, SPECI_CORPUS_TOKEN);
        if (tokens[n] >= s->n_vocab) break;
    }
    return n;
}
