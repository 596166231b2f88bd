/* corpus.h - corpus tables: what most often follows the last tokens in a corpus, in one file. Internal.
 *
 * A context is 1 to n_context tokens in a row. A continuation is the n_draft tokens behind one, with the number of places in
 * the corpus where they stand there. A table keeps the most frequent continuations of each context: of the orders 1 to
 * n_context (tokens of the context), and of the extension order, whose context is a token and whose continuations are made of
 * pairs of tokens.
 *
 *   corpus_table.c    the file as it is read          corpus_runs.c   windows of the corpus, sorted in bounded memory
 *   corpus_build.c    spec_corpus_...                 corpus_count.c  what a table keeps, from sorted windows
 *
 * The file's layout, byte by byte, is in docs/drafters.md. Integers are unsigned and big-endian, so that bytes compare as
 * numbers do. Sections hold nodes and rows of each order. A node is the last token of a context, sorted by all tokens of it;
 * it points at its first row, and at the first context that goes on with one more token. A row is a count and a continuation. */
#ifndef SPEC_CORPUS_H
#define SPEC_CORPUS_H

#include "models/model.h"

enum {
    SPECI_CORPUS_VERSION = 1,
    SPECI_CORPUS_TOKEN = 3,        /* bytes of a token */
    SPECI_CORPUS_NONE = 0xffffff,
    SPECI_CORPUS_MAX_CONTEXT = 8,
    SPECI_CORPUS_MAX_DRAFT = 32,
    SPECI_CORPUS_MAX_ROW = 16,     /* of a context */
    SPECI_CORPUS_MAX_ORDER = SPECI_CORPUS_MAX_CONTEXT + 1, /* with the extension order, which is the last */
    SPECI_CORPUS_MAX_HEADER = 56 + SPECI_CORPUS_MAX_ORDER * 2 * 16
};

/* An unsigned integer of n <= 8 bytes. */
static inline void speci_corpus_put(uint8_t *to, uint64_t value, int n)
{
    for (int i = n - 1; i >= 0; i--, value >>= 8) to[i] = (uint8_t)value;
}
static inline uint64_t speci_corpus_get(const uint8_t *from, int n)
{
    uint64_t value = 0;
    for (int i = 0; i < n; i++) value = value << 8 | from[i];
    return value;
}

/* --- the table (corpus_table.c) --- */

/* What a header says. */
typedef struct speci_corpus_shape {
    int32_t n_vocab;      /* tokens are below it */
    uint64_t vocabulary;  /* speci_tokenizer_sum of the tokenizer; 0: made from ids alone */
    int32_t n_context, n_draft, n_row;
    uint32_t min_count;
    uint64_t n_token;
} speci_corpus_shape;

typedef struct speci_corpus_section {
    uint64_t n; /* items; of nodes with the one behind the last */
    uint64_t checksum;
} speci_corpus_section;

/* nodes and rows of each order; order n_context is the extension order. */
typedef struct speci_corpus_header {
    speci_corpus_shape shape;
    speci_corpus_section nodes[SPECI_CORPUS_MAX_ORDER], rows[SPECI_CORPUS_MAX_ORDER];
} speci_corpus_header;

/* Bytes of an item; `order` counts from 0. */
static inline int speci_corpus_node_bytes(const speci_corpus_shape *s, int32_t order)
{
    return SPECI_CORPUS_TOKEN + 4 + (order < s->n_context - 1 ? 4 : 0);
}
static inline int speci_corpus_row_bytes(const speci_corpus_shape *s) { return 4 + SPECI_CORPUS_TOKEN * s->n_draft; }

#define SPECI_CORPUS_MAGIC "SPECNGT" /* what a table begins with */
/* bytes [SPECI_CORPUS_MAX_HEADER] of a header; returns how many there are. */
size_t speci_corpus_put_header(uint8_t *bytes, const speci_corpus_header *h);

/* Read-only, and used by one drafter after another or by many at once. */
typedef struct speci_corpus_table {
    speci_corpus_header header;
    speci_file file;
    const uint8_t *nodes[SPECI_CORPUS_MAX_ORDER], *rows[SPECI_CORPUS_MAX_ORDER];
    char *path;
} speci_corpus_table;

/* Maps the file. Its length and its checksums are compared, which reads all of it; that nodes point into the table is checked
 * when one is used. Errors: E_IO, E_FORMAT, E_NOMEM; then there is nothing to close. */
spec_status speci_corpus_open(speci_corpus_table *t, const char *path, const spec_allocator *a);
/* The same in memory, which must outlive the table. */
spec_status speci_corpus_open_memory(speci_corpus_table *t, const uint8_t *data, size_t n, const char *name,
                                     const spec_allocator *a);
void speci_corpus_close(speci_corpus_table *t, const spec_allocator *a);

/* Are these the ids of a target with this tokenizer (or NULL) and so many ids? E_INVALID says what differs. */
spec_status speci_corpus_fits(const speci_corpus_table *t, const spec_tokenizer *tokenizer, int32_t n_vocab);

typedef struct speci_corpus_rows {
    const uint8_t *at;
    int32_t n;
} speci_corpus_rows;

/* Continuations of the context that is the tokens context [order + 1], or [1] in the extension order. None: n 0. E_FORMAT:
 * the file was forged or changed. */
spec_status speci_corpus_find(const speci_corpus_table *t, speci_corpus_rows *out, int32_t order, const int32_t *context);
/* Row i of them into tokens [n_draft]; returns how many there are. A token that cannot be ends them. */
int32_t speci_corpus_row(const speci_corpus_table *t, const speci_corpus_rows *rows, int32_t i, int32_t *tokens);

#endif
