/* draft_trie_file.c - the past of a trie as a file. All numbers are little-endian:
 *     header    HEADER bytes, see code_header
 *     nodes     n_node times NODE bytes: parent, token, count. Parents come first, and nodes are numbered from 1 in the order of the
 *               file; parent 0 is the root. Siblings stand in the order in which they were counted last
 *     checksum  8 bytes over all that went before
 * A reader trusts nothing: whatever passes is a trie that could have been counted. */
#include "algorithms/draft/draft_trie.h"

#include <string.h>

static const char MAGIC[8] = "SPECTRI"; /* with its zero */

enum { VERSION = 1, HEADER = 48, NODE = 12, SUM = 8, PIECE = 4096 };

/* --- vocabularies --- */

/* Of the texts that were counted. Where none was, any will do. */
static bool other_vocabulary(const speci_trie *t, int32_t n_vocab, uint64_t vocabulary)
{
    return t->past.n > 1 && (t->n_vocab != n_vocab || t->vocabulary != vocabulary);
}

void speci_trie_take_vocabulary(speci_trie *t, const spec_model *target)
{
    t->n_vocab = target->n_vocab;
    t->vocabulary = speci_tokenizer_sum(target->tokenizer);
}

spec_status speci_trie_check(const spec_drafter *d, const spec_model *target)
{
    const speci_trie *t = d->own;
    if (!other_vocabulary(t, target->n_vocab, speci_tokenizer_sum(target->tokenizer))) return SPEC_OK;
    return speci_fail(SPEC_E_INVALID, "the drafter \"trie\" has counted texts of another vocabulary, with %d ids; the target has %d. Open "
                      "another drafter for it", t->n_vocab, target->n_vocab);
}

/* --- numbers as bytes --- */

static uint8_t *put_number(uint8_t *at, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) at[i] = (uint8_t)(value >> 8 * i);
    return at + n;
}

static uint64_t get_number(const uint8_t **at, int n)
{
    const uint64_t value = speci_little_endian(*at, (size_t)n);
    *at += n;
    return value;
}

typedef struct trie_header {
    uint32_t version, depth, n_vocab, n_counted, n_node;
    uint64_t vocabulary;
} trie_header;

static void put_header(uint8_t bytes[HEADER], const trie_header *h)
{
    memset(bytes, 0, HEADER);
    memcpy(bytes, MAGIC, sizeof MAGIC);
    uint8_t *at = put_number(bytes + sizeof MAGIC, h->version, 4);
    at = put_number(at, h->depth, 4);
    at = put_number(at, h->n_vocab, 4);
    at = put_number(at, h->n_counted, 4);
    at = put_number(at, h->vocabulary, 8);
    (void)put_number(at, h->n_node, 4);
}

static void get_header(trie_header *h, const uint8_t *bytes)
{
    const uint8_t *at = bytes + sizeof MAGIC;
    h->version = (uint32_t)get_number(&at, 4);
    h->depth = (uint32_t)get_number(&at, 4);
    h->n_vocab = (uint32_t)get_number(&at, 4);
    h->n_counted = (uint32_t)get_number(&at, 4);
    h->vocabulary = get_number(&at, 8);
    h->n_node = (uint32_t)get_number(&at, 4);
}

/* --- writing --- */

/* writer NULL: nodes are counted. */
typedef struct trie_sink {
    const speci_trie_counts *t;
    speci_writer *writer;
    speci_hash hash;
    uint32_t n_node;
    size_t n;
    uint8_t bytes[PIECE * NODE];
} trie_sink;

static spec_status flush(trie_sink *s)
{
    speci_hash_add(&s->hash, s->bytes, s->n);
    const spec_status status = speci_writer_put(s->writer, s->bytes, s->n);
    s->n = 0;
    return status;
}

static spec_status put_node(trie_sink *s, uint32_t node, uint32_t parent)
{
    s->n_node++;
    if (!s->writer) return SPEC_OK;
    if (s->n == sizeof s->bytes) SPEC_TRY(flush(s));
    uint8_t *at = put_number(s->bytes + s->n, parent, 4);
    at = put_number(at, (uint32_t)s->t->node[node].token, 4);
    (void)put_number(at, speci_trie_value(s->t, node), 4);
    s->n += NODE;
    return SPEC_OK;
}

/* A node with all below it: what is gone has nothing below it that is not. */
static spec_status put_branch(trie_sink *s, uint32_t node, uint32_t parent)
{
    if (speci_trie_value(s->t, node) == 0) return SPEC_OK;
    SPEC_TRY(put_node(s, node, parent));
    const uint32_t number = s->n_node;
    uint32_t x = s->t->node[node].child;
    while (x && s->t->node[x].next) x = s->t->node[x].next;
    for (; x; x = s->t->node[x].prev) SPEC_TRY(put_branch(s, x, number));
    return SPEC_OK;
}

static spec_status put_all(trie_sink *s)
{
    s->n_node = 0;
    for (uint32_t x = 1; x < s->t->n; x++)
        if (s->t->node[x].token >= 0 && s->t->node[x].parent == 0) SPEC_TRY(put_branch(s, x, 0));
    return SPEC_OK;
}

static spec_status put_file(trie_sink *s, const speci_trie *t, uint32_t n_node)
{
    uint8_t sum[SUM];
    const trie_header h = { .version = VERSION, .depth = (uint32_t)t->past.depth, .n_vocab = (uint32_t)t->n_vocab,
                            .n_counted = t->past.n_counted, .n_node = n_node, .vocabulary = t->vocabulary };
    put_header(s->bytes, &h);
    s->n = HEADER;
    SPEC_TRY(flush(s));
    SPEC_TRY(put_all(s));
    SPEC_TRY(flush(s));
    (void)put_number(sum, speci_hash_value(&s->hash), SUM);
    return speci_writer_put(s->writer, sum, SUM);
}

spec_status speci_trie_save(const spec_drafter *d, const char *path)
{
    const speci_trie *t = d->own;
    speci_writer w;
    trie_sink *s = speci_alloc(d->allocator, 1, sizeof *s);
    if (!s) return SPEC_E_NOMEM;
    s->t = &t->past;
    spec_status status = put_all(s);
    if (status == SPEC_OK) status = speci_writer_open(&w, path, MAGIC, d->allocator);
    if (status == SPEC_OK) {
        s->writer = &w;
        status = speci_writer_close(&w, put_file(s, t, s->n_node));
    }
    speci_free(d->allocator, s);
    return status;
}

/* --- reading --- */

/* How large it is, before all of it is read. */
static spec_status check_size(const trie_header *h, const speci_trie *t, const speci_file *f, const char *path)
{
    if (h->version != VERSION)
        return speci_fail(SPEC_E_FORMAT, "%s: version %u of a saved trie; this library reads version %d", path, h->version, VERSION);
    if (f->n != HEADER + SUM + (uint64_t)h->n_node * NODE)
        return speci_fail(SPEC_E_FORMAT, "%s: %zu bytes, where a saved trie of %u nodes has %llu: it was cut short or changed", path, f->n,
                          h->n_node, (unsigned long long)(HEADER + SUM + (uint64_t)h->n_node * NODE));
    if (h->n_node >= t->past.cap)
        return speci_fail(SPEC_E_INVALID, "%s: %u nodes, this drafter has room for %u: open it with more MEGABYTES", path, h->n_node,
                          t->past.cap - 1);
    return SPEC_OK;
}

static spec_status check_counts(const trie_header *h, const speci_trie *t, const char *path)
{
    if (h->n_vocab > INT32_MAX || (h->n_node > 0 && other_vocabulary(t, (int32_t)h->n_vocab, h->vocabulary)))
        return speci_fail(SPEC_E_INVALID, "%s: counts of another vocabulary: it has %u ids, that of this drafter's texts %d", path,
                          h->n_vocab, t->n_vocab);
    if (h->depth > (uint32_t)t->past.depth)
        return speci_fail(SPEC_E_INVALID, "%s: counts of up to %u tokens, this drafter counts up to %d: open it with DEPTH %u", path,
                          h->depth, t->past.depth, h->depth);
    return SPEC_OK;
}

static spec_status read_header(trie_header *h, const speci_file *f, const char *path)
{
    const bool has_one = f->n >= HEADER + SUM;
    if (has_one) SPEC_TRY(speci_file_load(f, path, 0, HEADER));
    if (!has_one || memcmp(f->data, MAGIC, sizeof MAGIC) != 0)
        return speci_fail(SPEC_E_FORMAT, "%s: not a saved trie: it does not begin with %s", path, MAGIC);
    get_header(h, f->data);
    return SPEC_OK;
}

static spec_status load(const speci_file *f, const char *path)
{
    SPEC_TRY(speci_file_load(f, path, 0, f->n));
    speci_hash hash = { 0 };
    speci_hash_add(&hash, f->data, f->n - SUM);
    const uint8_t *at = f->data + f->n - SUM;
    if (get_number(&at, SUM) == speci_hash_value(&hash)) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: its checksum does not fit: it was cut short or changed", path);
}

/* Number x of the file becomes node x. */
static bool take_node(speci_trie_counts *t, uint32_t x, const uint8_t *at, uint32_t n_vocab)
{
    const uint32_t parent = (uint32_t)get_number(&at, 4), token = (uint32_t)get_number(&at, 4), count = (uint32_t)get_number(&at, 4);
    int32_t depth = 1;
    if (parent >= x || token >= n_vocab || count < 1 || count > INT32_MAX) return false;
    for (uint32_t p = parent; p; p = t->node[p].parent) depth++;
    if (depth > t->depth || (parent && count > t->node[parent].count)) return false;
    return speci_trie_count(t, parent, (int32_t)token, count) == x; /* another one: its twin was there */
}

static spec_status read_nodes(speci_trie_counts *t, const trie_header *h, const speci_file *f, const char *path)
{
    t->n_counted = h->n_counted;
    for (uint32_t x = 1; x <= h->n_node; x++)
        if (!take_node(t, x, f->data + HEADER + (size_t)(x - 1) * NODE, h->n_vocab))
            return speci_fail(SPEC_E_FORMAT, "%s: node %u is none that could have been counted", path, x);
    return SPEC_OK;
}

static spec_status read_file(spec_drafter *d, const speci_file *f, const char *path)
{
    speci_trie *t = d->own;
    speci_trie_counts past;
    trie_header h = { 0 };
    SPEC_TRY(read_header(&h, f, path));
    SPEC_TRY(check_size(&h, t, f, path));
    SPEC_TRY(load(f, path));
    SPEC_TRY(check_counts(&h, t, path));
    SPEC_TRY(speci_trie_open(&past, t->past.cap, t->past.period, t->past.depth, d->allocator));
    const spec_status status = read_nodes(&past, &h, f, path);
    if (status != SPEC_OK) {
        speci_trie_close(&past, d->allocator);
        return status;
    }
    speci_trie_close(&t->past, d->allocator);
    t->past = past;
    t->n_vocab = (int32_t)h.n_vocab, t->vocabulary = h.vocabulary;
    return SPEC_OK;
}

spec_status speci_trie_load(spec_drafter *d, const char *path)
{
    speci_file f;
    SPEC_TRY(speci_file_map(&f, path));
    const spec_status status = read_file(d, &f, path);
    speci_file_unmap(&f);
    return status;
}
