/* support_corpus.c - corpora for tests; counting them by going through all places for each question. */
#define _GNU_SOURCE
#include "tests/support_corpus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support_model.h"

static int32_t below(uint64_t *random, int32_t n) { return (int32_t)(support_random(random) % (uint32_t)n); }

void corpus_random(corpus *c, int32_t most, uint64_t *random)
{
    c->n = 0;
    c->ids = malloc((size_t)c->n_text * (size_t)most * sizeof *c->ids);
    assert_non_null(c->ids);
    for (int32_t t = 0; t < c->n_text; t++) {
        const int32_t end = c->n + below(random, most + 1);
        while (c->n < end) {
            const int32_t from = below(random, c->n + 1), n = 1 + below(random, 12);
            for (int32_t i = 0; i < n && c->n < end; i++)
                c->ids[c->n] = from + i < c->n ? c->ids[from + i] : below(random, c->n_vocab), c->n++;
        }
        c->end[t] = c->n;
    }
}

static spec_status add(spec_corpus *s, const corpus *c)
{
    for (int32_t t = 0, first = 0; t < c->n_text; first = c->end[t++]) {
        for (int32_t at = first; at < c->end[t]; at += 7) { /* in pieces */
            const int32_t n = c->end[t] - at < 7 ? c->end[t] - at : 7;
            const spec_status status = spec_corpus_add_ids(s, c->ids + at, (size_t)n);
            if (status != SPEC_OK) return status;
        }
        const spec_status status = spec_corpus_end_text(s);
        if (status != SPEC_OK) return status;
    }
    return SPEC_OK;
}

spec_status corpus_write(const corpus *c, const char *path, size_t memory, const spec_allocator *allocator,
                         spec_corpus_info *info)
{
    spec_corpus_params p = SPEC_CORPUS_PARAMS_INIT;
    spec_corpus *s = NULL;
    p.n_vocab = c->n_vocab, p.n_context = c->n_context, p.n_draft = c->n_draft, p.n_row = c->n_row, p.min_count = c->min_count;
    p.memory = memory, p.allocator = allocator;
    spec_status status = spec_corpus_open(&s, path, &p);
    if (status == SPEC_OK) status = add(s, c);
    if (status == SPEC_OK) status = spec_corpus_write(s, info);
    spec_corpus_close(s);
    return status;
}

void support_table(char *text, const int32_t *ids, int32_t n, int32_t n_vocab, int32_t d, int32_t k)
{
    char path[] = "/tmp/spec_table_XXXXXX";
    const corpus c = { .ids = (int32_t *)(uintptr_t)ids, .n = n, .end = { n }, .n_text = 1, .n_vocab = n_vocab, .n_context = 3,
                       .n_draft = k, .n_row = 4, .min_count = 1 };
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    OK(corpus_write(&c, path, 0, NULL, NULL));
    (void)snprintf(text, 64, "png:%s,%d,%d", path, d, k);
}

void support_table_remove(const char *text)
{
    char path[64];
    (void)snprintf(path, sizeof path, "%.*s", (int)strcspn(text + 4, ","), text + 4);
    assert_int_equal(unlink(path), 0);
}

/* --- counted --- */

/* Do n tokens stand at `at`, all of them in one text? */
static bool stands(const corpus *c, int32_t at, const int32_t *tokens, int32_t n)
{
    int32_t t = 0;
    while (t < c->n_text && c->end[t] <= at) t++;
    return t < c->n_text && at + n <= c->end[t] && (!tokens || memcmp(c->ids + at, tokens, (size_t)n * sizeof *tokens) == 0);
}

static int32_t places(const corpus *c, const int32_t *tokens, int32_t n)
{
    int32_t count = 0;
    for (int32_t at = 0; at < c->n; at++) count += stands(c, at, tokens, n);
    return count;
}

static int32_t n_compared; /* tokens of the rows that are sorted */
static int by_count(const void *a, const void *b)
{
    const corpus_row *x = a, *y = b;
    if (x->count != y->count) return x->count > y->count ? -1 : 1;
    for (int32_t i = 0; i < n_compared; i++)
        if (x->tokens[i] != y->tokens[i]) return x->tokens[i] < y->tokens[i] ? -1 : 1;
    return 0;
}

/* The k tokens that follow context [n] most often. */
static int32_t most_frequent(corpus_row *rows, const corpus *c, const int32_t *context, int32_t n, int32_t k, int32_t min_count)
{
    corpus_row *all = calloc((size_t)c->n + 1, sizeof *all);
    int32_t n_all = 0;
    assert_non_null(all);
    for (int32_t at = 0; at < c->n; at++) {
        int32_t same = 0;
        if (!stands(c, at, context, n) || !stands(c, at, NULL, n + k)) continue;
        while (same < n_all && memcmp(all[same].tokens, c->ids + at + n, (size_t)k * sizeof(int32_t)) != 0) same++;
        if (same < n_all) continue;
        all[n_all] = (corpus_row){ .count = places(c, c->ids + at, n + k), .n = k };
        memcpy(all[n_all].tokens, c->ids + at + n, (size_t)k * sizeof(int32_t));
        n_all += all[n_all].count >= min_count;
    }
    n_compared = k;
    qsort(all, (size_t)n_all, sizeof *all, by_count);
    if (n_all > c->n_row) n_all = c->n_row;
    memcpy(rows, all, (size_t)n_all * sizeof *all);
    free(all);
    return n_all;
}

int32_t corpus_rows(corpus_row *rows, const corpus *c, const int32_t *context, int32_t n_context_tokens, int extension)
{
    if (!extension) return most_frequent(rows, c, context, n_context_tokens, c->n_draft, c->min_count);
    const int32_t n = most_frequent(rows, c, context, 1, 1, 1);
    corpus_row next[CORPUS_ROWS];
    for (int32_t i = 0; i < n; i++)
        while (rows[i].n < c->n_draft && most_frequent(next, c, &rows[i].tokens[rows[i].n - 1], 1, 1, 1) > 0)
            rows[i].tokens[rows[i].n++] = next[0].tokens[0];
    return n;
}
