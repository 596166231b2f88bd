/* fuzz_png.c - a corpus table that somebody has changed: an error, or rows that can be read, nothing else.
 *
 * The input is edits of a good table, made here: one byte of flags (1: leave the checksums as they are, so that they catch
 * it), then 4 bytes an edit: place (little-endian, 3 bytes; its highest bit: cut the file off there) and the byte to put
 * there. Without the flag the checksums are made to fit, of what the changed header says. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "algorithms/corpus/corpus.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { VOCAB = 6, CONTEXT = 3, DRAFT = 4, ROW = 3, CAP = 1 << 16 };

static uint8_t good[CAP], edited[CAP];
static size_t n_good;

static void require(int condition, const char *what)
{
    if (condition) return;
    fprintf(stderr, "fuzz_png: %s: %s\n", what, spec_last_error());
    abort();
}

static void begin(void)
{
    char path[] = "/tmp/spec_fuzz_png_XXXXXX", *text;
    const spec_corpus_params p = { .struct_size = sizeof p, .n_vocab = VOCAB, .n_context = CONTEXT, .n_draft = DRAFT,
                                   .n_row = ROW };
    spec_corpus *c;
    int32_t ids[400];
    uint32_t random = 1;
    const int fd = mkstemp(path);
    require(fd >= 0, "a file");
    close(fd);
    for (size_t i = 0; i < 400; i++) random = random * 1664525u + 1013904223u, ids[i] = (int32_t)((random >> 24) % VOCAB);
    memcpy(ids + 200, ids + 20, 150 * sizeof *ids); /* what comes again */
    require(spec_corpus_open(&c, path, &p) == SPEC_OK && spec_corpus_add_ids(c, ids, 400) == SPEC_OK &&
            spec_corpus_write(c, NULL) == SPEC_OK, "the good table");
    spec_corpus_close(c);
    require(speci_file_read(&text, &n_good, path, CAP, NULL) == SPEC_OK, "its bytes");
    memcpy(good, text, n_good);
    speci_free(NULL, text);
    unlink(path);
}

static uint64_t sum_of(const uint8_t *data, size_t n)
{
    speci_hash h = { 0 };
    speci_hash_add(&h, data, n);
    return speci_hash_value(&h);
}

/* Checksums of what the header says, as far as the file goes (corpus.h). */
static void forge(uint8_t *data, size_t n)
{
    const uint64_t n_context = n < 56 ? UINT32_MAX : speci_corpus_get(data + 24, 4);
    const uint64_t n_draft = n < 56 ? 0 : speci_corpus_get(data + 28, 4);
    size_t at = 48, place = 56 + (n_context + 1) * 32;
    if (n_context > SPECI_CORPUS_MAX_CONTEXT || place > n) return;
    for (uint64_t k = 0; k < 2 * (n_context + 1); k++, at += 16) {
        const uint64_t bytes = k % 2 ? 4 + 3 * n_draft : k / 2 + 1 < n_context ? 11 : 7, items = speci_corpus_get(data + at, 8);
        if (bytes == 0 || items > (n - place) / bytes) break;
        speci_corpus_put(data + at + 8, sum_of(data + place, (size_t)(items * bytes)), 8);
        place += (size_t)(items * bytes);
    }
    speci_corpus_put(data + 48 + (n_context + 1) * 32, sum_of(data, 48 + (size_t)(n_context + 1) * 32), 8);
}

/* Every context of tokens up to VOCAB, and of one that no file has. */
static void read_all(const speci_corpus_table *t)
{
    const int32_t n_context = t->header.shape.n_context;
    for (int32_t order = 0; order <= n_context; order++)
        for (int32_t k = 0; k < (VOCAB + 1) * (VOCAB + 1) * (VOCAB + 1); k++) {
            int32_t context[SPECI_CORPUS_MAX_CONTEXT], tokens[SPECI_CORPUS_MAX_DRAFT];
            speci_corpus_rows rows;
            for (int32_t i = 0, left = k; i < SPECI_CORPUS_MAX_CONTEXT; i++, left /= VOCAB + 1) context[i] = left % (VOCAB + 1);
            if (speci_corpus_find(t, &rows, order, context) != SPEC_OK) {
                require(spec_last_error()[0] != 0 && rows.n == 0, "a failure without a message, or with rows");
                continue;
            }
            require(rows.n <= t->header.shape.n_row, "more rows than a context has");
            for (int32_t i = 0; i < rows.n; i++) {
                const int32_t n = speci_corpus_row(t, &rows, i, tokens);
                for (int32_t j = 0; j < n; j++)
                    require(tokens[j] >= 0 && tokens[j] < t->header.shape.n_vocab, "a token that cannot be");
            }
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    speci_corpus_table t;
    if (n_good == 0) begin();
    if (size < 1) return 0;
    size_t n = n_good;
    memcpy(edited, good, n);
    for (size_t i = 1; i + 4 <= size; i += 4) {
        const size_t place = ((size_t)data[i] | (size_t)data[i + 1] << 8 | (size_t)(data[i + 2] & 0x7f) << 16) % n_good;
        if (data[i + 2] & 0x80) n = place;
        else edited[place] = data[i + 3];
    }
    const int same = n == n_good && memcmp(edited, good, n) == 0;
    if (!(data[0] & 1)) forge(edited, n);
    uint8_t *exact = malloc(n ? n : 1); /* so that a sanitizer sees a read past the end */
    require(exact != NULL, "memory");
    memcpy(exact, edited, n);
    const spec_status status = speci_corpus_open_memory(&t, exact, n, "fuzz", NULL);
    require(status == SPEC_OK || !same, "the good table is refused");
    require(status != SPEC_OK || same || !(data[0] & 1), "a changed table was taken");
    if (status == SPEC_OK) {
        read_all(&t);
        speci_corpus_close(&t, NULL);
    }
    free(exact);
    return 0;
}
