/* test_corpus.c - corpus tables hold what counting all of a corpus gives, whatever the memory and the pieces in which it
 * came; files that are cut short, changed or of another tokenizer are refused by name; a table appears whole or not at all. */
#define _GNU_SOURCE
#include "tests/support_decode.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "algorithms/corpus/corpus.h"
#include "tests/support_corpus.h"
#include "tests/support_directory.h"
#include "tests/support_memory.h"


static const char *path_of(const char *name)
{
    static char path[2][512];
    static int at;
    at = !at;
    (void)snprintf(path[at], sizeof path[at], "%s/%s", support_directory, name);
    return path[at];
}

static uint8_t *bytes_of(const char *path, size_t *n)
{
    char *data;
    OK(speci_file_read(&data, n, path, (size_t)1 << 30, NULL));
    uint8_t *copy = malloc(*n ? *n : 1);
    assert_non_null(copy);
    memcpy(copy, data, *n);
    speci_free(NULL, data);
    return copy;
}

static void same_files(const char *a, const char *b)
{
    size_t n, m;
    uint8_t *x = bytes_of(a, &n), *y = bytes_of(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

/* Nothing but these tables is in the folder. */
static void expect_files(int32_t n)
{
    DIR *dir = opendir(support_directory);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));) n -= e->d_name[0] != '.';
    closedir(dir);
    assert_int_equal(n, 0);
}

/* ------------------------------------------------------------------------------- what it holds --- */

typedef struct corpus_case {
    const char *name;
    int32_t n_vocab, n_context, n_draft, n_row, min_count, n_text, most;
} corpus_case;

static const corpus_case cases[] = {
    { "base", 5, 3, 4, 3, 2, 4, 300 },        { "one token of context", 5, 1, 4, 3, 2, 4, 300 },
    { "once is enough", 4, 2, 3, 2, 1, 3, 120 }, { "one row", 4, 3, 2, 1, 2, 4, 300 },
    { "one token ahead", 3, 2, 1, 4, 2, 4, 200 }, { "four of context", 3, 4, 5, 8, 3, 4, 250 },
    { "one id", 1, 2, 3, 2, 2, 4, 100 },      { "no continuation comes again", 90, 2, 8, 4, 9, 2, 100 },
    { "one text", 4, 3, 4, 4, 2, 1, 600 },    { "short texts", 3, 3, 4, 4, 2, 16, 12 },
    { "empty", 4, 2, 4, 4, 2, 3, 0 },
};

static void check_rows(const speci_corpus_table *t, const corpus *c, int32_t order, const int32_t *context, uint64_t *n_context,
                       uint64_t *n_row)
{
    corpus_row want[CORPUS_ROWS];
    speci_corpus_rows rows;
    int32_t tokens[CORPUS_DRAFT];
    const int32_t n = corpus_rows(want, c, context, order + 1, order == c->n_context);
    OK(speci_corpus_find(t, &rows, order, context));
    assert_int_equal(rows.n, n);
    for (int32_t i = 0; i < n; i++) {
        const uint8_t *at = rows.at + i * speci_corpus_row_bytes(&t->header.shape);
        assert_int_equal(speci_corpus_get(at, 4), want[i].count);
        assert_int_equal(speci_corpus_row(t, &rows, i, tokens), want[i].n);
        assert_memory_equal(tokens, want[i].tokens, (size_t)want[i].n * sizeof *tokens);
    }
    *n_context += n > 0, *n_row += (uint64_t)n;
}

/* Every context that there could be. */
static void check_orders(const speci_corpus_table *t, const corpus *c)
{
    for (int32_t order = 0; order <= c->n_context; order++) {
        const int32_t n = order < c->n_context ? order + 1 : 1;
        int32_t context[4] = { 0 }, at = 0;
        uint64_t n_context = 0, n_row = 0;
        while (at >= 0) {
            check_rows(t, c, order, context, &n_context, &n_row);
            for (at = n - 1; at >= 0 && ++context[at] == c->n_vocab; at--) context[at] = 0;
        }
        assert_int_equal(t->header.nodes[order].n, n_context + 1);
        assert_int_equal(t->header.rows[order].n, n_row);
    }
}

static void check_case(void **state)
{
    enum { CORPORA = 4 };
    const corpus_case *x = *state;
    const char *path = path_of("small"), *large = path_of("large");
    uint64_t random = 34;
    for (int32_t i = 0; i < CORPORA; i++) {
        corpus c = { .n_text = x->n_text, .n_vocab = x->n_vocab, .n_context = x->n_context, .n_draft = x->n_draft,
                     .n_row = x->n_row, .min_count = x->min_count };
        spec_corpus_info info = SPEC_CORPUS_INFO_INIT;
        speci_corpus_table t;
        corpus_random(&c, x->most, &random);
        OK(corpus_write(&c, path, 1, NULL, &info)); /* as little memory as there can be: many runs */
        assert_int_equal(info.n_token, c.n);
        if (c.n > 400) assert_true(info.n_run > 2);
        OK(corpus_write(&c, large, 1 << 20, NULL, &info));
        assert_int_equal(info.n_run, 1);
        same_files(path, large);
        OK(speci_corpus_open(&t, path, NULL));
        assert_int_equal(info.bytes, t.file.n);
        assert_int_equal(t.header.shape.n_token, c.n);
        check_orders(&t, &c);
        speci_corpus_close(&t, NULL);
        free(c.ids);
    }
    expect_files(2);
    assert_int_equal(unlink(path) | unlink(large), 0);
}

/* ----------------------------------------------------------------------------------- from text --- */

#ifndef SPEC_NO_TOKENIZER
static spec_corpus *open_text(const spec_tokenizer *tokenizer, const char *path)
{
    spec_corpus_params p = SPEC_CORPUS_PARAMS_INIT;
    spec_corpus *c;
    p.tokenizer = tokenizer, p.min_count = 1;
    OK(spec_corpus_open(&c, path, &p));
    return c;
}

static void write_and_close(spec_corpus *c, uint64_t n_text, uint64_t n_token)
{
    spec_corpus_info info = SPEC_CORPUS_INFO_INIT;
    OK(spec_corpus_write(c, &info));
    FAILS(spec_corpus_add_text(c, "a", 1), SPEC_E_STATE, "can only be closed");
    assert_int_equal(info.n_text, n_text);
    assert_int_equal(info.n_token, n_token);
    spec_corpus_close(c);
}

/* Text in one piece, byte by byte, and as the ids that it is encoded to. An end-of-text token in it is an end of text. */
static void check_text(void **state)
{
    static const char text[] = "Once upon a time there was a fox.<|endoftext|>"
                               "Once upon a time there was \xc3\xa4 hen.\n\nOnce more.\n";
    enum { ROOM = 256 };
    int32_t ids[ROOM];
    size_t n;
    spec_tokenizer *t;
    (void)state;
    OK(spec_tokenizer_open(&t, DEMO_TARGET, NULL));
    OK(spec_tokenizer_encode(t, ids, ROOM, &n, text, strlen(text), SPEC_TOKEN_PARSE_SPECIAL));
    spec_corpus *c = open_text(t, path_of("whole"));
    OK(spec_corpus_add_text(c, text, strlen(text)));
    write_and_close(c, 2, n - 1);
    c = open_text(t, path_of("bytes"));
    for (size_t i = 0; i < strlen(text); i++) OK(spec_corpus_add_text(c, text + i, 1));
    OK(spec_corpus_end_text(c));
    write_and_close(c, 2, n - 1);
    c = open_text(t, path_of("ids"));
    OK(spec_corpus_add_ids(c, ids, n));
    write_and_close(c, 2, n - 1);
    same_files(path_of("whole"), path_of("bytes"));
    same_files(path_of("whole"), path_of("ids"));
    assert_int_equal(unlink(path_of("whole")) | unlink(path_of("bytes")) | unlink(path_of("ids")), 0);
    spec_tokenizer_close(t);
}

/* A text of several pieces without a place to cut it but between characters, which no piece may tear. */
static void check_long_text(void **state)
{
    enum { N = (3 << 20) + 1 };
    spec_corpus_info info = SPEC_CORPUS_INFO_INIT;
    spec_tokenizer *t;
    char *text = malloc(N);
    (void)state;
    assert_non_null(text);
    for (size_t i = 0; i < N; i++) text[i] = i == 0 ? 'x' : "\xe2\x82\xac"[(i - 1) % 3]; /* N - 1 is a multiple of 3 */
    OK(spec_tokenizer_open(&t, DEMO_TARGET, NULL));
    spec_corpus *c = open_text(t, path_of("long"));
    OK(spec_corpus_add_text(c, text, N));
    OK(spec_corpus_write(c, &info));
    assert_int_equal(info.n_text, 1);
    assert_true(info.n_token > 0);
    spec_corpus_close(c);
    assert_int_equal(unlink(path_of("long")), 0);
    spec_tokenizer_close(t);
    free(text);
}

/* Bytes that are no text are told with their place; the other texts are counted. */
static void check_no_text(void **state)
{
    spec_tokenizer *t;
    size_t n;
    (void)state;
    OK(spec_tokenizer_open(&t, DEMO_TARGET, NULL));
    OK(spec_tokenizer_encode(t, NULL, 0, &n, "", 0, 0));
    spec_corpus *c = open_text(t, path_of("no_text"));
    OK(spec_corpus_add_text(c, "abc\xff", 4));
    FAILS(spec_corpus_end_text(c), SPEC_E_INVALID, "byte 3 is 0xFF");
    assert_true(spec_tokenizer_encode(t, NULL, 0, &n, "hello", 5, 0) == SPEC_E_FULL);
    OK(spec_corpus_add_text(c, "hello", 5));
    write_and_close(c, 2, n);
    assert_int_equal(unlink(path_of("no_text")), 0);
    spec_tokenizer_close(t);
}
#endif

/* ------------------------------------------------------------------------------------- refused --- */

static corpus small(void)
{
    uint64_t random = 7;
    corpus c = { .n_text = 2, .n_vocab = 8, .n_context = 2, .n_draft = 3, .n_row = 2, .min_count = 2 };
    corpus_random(&c, 60, &random);
    return c;
}

static void open_fails(const uint8_t *data, size_t n, const char *part)
{
    speci_corpus_table t;
    FAILS(speci_corpus_open_memory(&t, data, n, "the file", NULL), SPEC_E_FORMAT, part);
    assert_non_null(strstr(spec_last_error(), "the file"));
}

static void check_damaged(void **state)
{
    (void)state;
    corpus c = small();
    speci_corpus_table t;
    size_t n;
    OK(corpus_write(&c, path_of("small"), 0, NULL, NULL));
    uint8_t *data = bytes_of(path_of("small"), &n);
    uint8_t *longer = calloc(1, n + 1);
    assert_non_null(longer);
    for (size_t i = 0; i < n; i++) { /* every length, every byte */
        uint8_t *cut = malloc(i ? i : 1);
        assert_non_null(cut);
        memcpy(cut, data, i);
        open_fails(cut, i, i < 8 ? "does not begin with SPECNGT" : "");
        free(cut);
        data[i] ^= 0x10;
        open_fails(data, n, "");
        data[i] ^= 0x10;
    }
    open_fails(data, n - 1, "it was cut short");
    memcpy(longer, data, n);
    open_fails(longer, n + 1, "stands behind its end");
    data[11]++;
    open_fails(data, n, "version 2, this library reads version 1");
    data[11]--;
    data[15]++;
    open_fails(data, n, "its header was changed");
    data[15]--;
    data[n - 1]++;
    open_fails(data, n, "corrupt between bytes");
    data[n - 1]--;
    OK(speci_corpus_open_memory(&t, data, n, "the file", NULL));
    speci_corpus_close(&t, NULL);
    open_fails((const uint8_t *)"version https://git-lfs.github.com/spec/v1\n", 43, "git-lfs pointer");
    free(longer);
    free(data);
    free(c.ids);
    assert_int_equal(unlink(path_of("small")), 0);
}

/* Checksums that fit do not make a table right: what a node points at is looked at before it is used. */
static void check_forged(void **state)
{
    enum { FIRST_ROW = 3, FIRST_NODE = 7 };
    static const int32_t where[] = { FIRST_ROW, FIRST_NODE };
    (void)state;
    corpus c = small();
    size_t n;
    OK(corpus_write(&c, path_of("small"), 0, NULL, NULL));
    uint8_t *data = bytes_of(path_of("small"), &n);
    for (int i = 0; i < 2; i++) {
        speci_corpus_table t;
        speci_corpus_rows rows;
        int32_t context[2] = { 0 };
        OK(speci_corpus_open_memory(&t, data, n, "the file", NULL));
        speci_corpus_header h = t.header;
        uint8_t *node = data + (t.nodes[0] - data);
        const size_t bytes = (size_t)h.nodes[0].n * (size_t)speci_corpus_node_bytes(&h.shape, 0);
        speci_hash hash = { 0 };
        speci_corpus_close(&t, NULL);
        const uint8_t kept = node[where[i]];
        context[0] = (int32_t)speci_corpus_get(node, 3);
        node[where[i]] = 0x7f;
        speci_hash_add(&hash, node, bytes);
        h.nodes[0].checksum = speci_hash_value(&hash);
        speci_corpus_put_header(data, &h);
        OK(speci_corpus_open_memory(&t, data, n, "the file", NULL));
        FAILS(speci_corpus_find(&t, &rows, i, context), SPEC_E_FORMAT, "the file: corrupt at byte");
        assert_int_equal(rows.n, 0);
        speci_corpus_close(&t, NULL);
        node[where[i]] = kept;
        hash = (speci_hash){ 0 };
        speci_hash_add(&hash, node, bytes);
        h.nodes[0].checksum = speci_hash_value(&hash);
        speci_corpus_put_header(data, &h);
    }
    free(data);
    free(c.ids);
    assert_int_equal(unlink(path_of("small")), 0);
}

static void check_arguments(void **state)
{
    static const struct {
        spec_corpus_params p;
        const char *part;
    } wrong[] = {
        { { .n_vocab = 0 }, "n_vocab" },       { { .n_vocab = -1 }, "n_vocab is -1" },
        { { .n_vocab = 1 << 24 }, "n_vocab" }, { { .n_vocab = 5, .n_context = 9 }, "n_context is 9, need 1 to 8" },
        { { .n_vocab = 5, .n_draft = 33 }, "n_draft" }, { { .n_vocab = 5, .n_row = -2 }, "n_row" },
        { { .n_vocab = 5, .min_count = -1 }, "min_count" },
    };
    const int32_t ids[] = { 1, 2, 8 };
    spec_corpus_params p = SPEC_CORPUS_PARAMS_INIT;
    speci_corpus_table t;
    spec_corpus *c;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        p = wrong[i].p, p.struct_size = sizeof p;
        FAILS(spec_corpus_open(&c, path_of("none"), &p), SPEC_E_INVALID, wrong[i].part);
    }
    p = (spec_corpus_params){ .struct_size = sizeof p, .n_vocab = 8 };
    FAILS(spec_corpus_open(&c, "/no/such/folder/table", &p), SPEC_E_IO, "/no/such/folder/table");
    FAILS(spec_corpus_open(&c, support_directory, &p), SPEC_E_IO, "is a directory");
    FAILS(speci_corpus_open(&t, path_of("none"), NULL), SPEC_E_IO, "none");
    FAILS(speci_corpus_open(&t, support_directory, NULL), SPEC_E_IO, "is a directory");
    OK(spec_corpus_open(&c, path_of("none"), &p));
    FAILS(spec_corpus_add_ids(c, ids, 3), SPEC_E_INVALID, "ids[2] is 8, need 0 to 7");
    FAILS(spec_corpus_add_text(c, "text", 4), SPEC_E_INVALID, "without a tokenizer");
    OK(spec_corpus_add_ids(c, ids, 2));
    spec_corpus_close(c);
    expect_files(0);
}

static int stop(void *user_data, double fraction)
{
    assert_true(fraction >= 0 && fraction <= 1);
    return (void)user_data, 1;
}

/* What was there stays until the new table is whole. */
static void check_whole_or_not(void **state)
{
    (void)state;
    corpus c = small();
    spec_corpus_params p = SPEC_CORPUS_PARAMS_INIT;
    spec_corpus *s;
    struct stat before, after;
    OK(corpus_write(&c, path_of("small"), 0, NULL, NULL));
    assert_int_equal(stat(path_of("small"), &before), 0);
    p.n_vocab = 8, p.progress = stop;
    OK(spec_corpus_open(&s, path_of("small"), &p));
    OK(spec_corpus_add_ids(s, c.ids, (size_t)c.n));
    FAILS(spec_corpus_write(s, NULL), SPEC_E_ABORTED, "stopped");
    FAILS(spec_corpus_write(s, NULL), SPEC_E_STATE, "can only be closed");
    spec_corpus_close(s);
    assert_int_equal(stat(path_of("small"), &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    OK(corpus_write(&c, path_of("small"), 0, NULL, NULL));
    assert_int_equal(stat(path_of("small"), &after), 0);
    assert_int_equal(after.st_mode & 0400, 0400);
    expect_files(1);
    free(c.ids);
    assert_int_equal(unlink(path_of("small")), 0);
}

/* ---------------------------------------------------------------------------- memory that fails --- */

static void check_no_memory(void **state)
{
    (void)state;
    corpus c = small();
    support_memory f = { 0 };
    const spec_allocator a = support_allocator(&f);
    spec_status status = SPEC_E_NOMEM;
    int32_t n = 0;
    for (; status == SPEC_E_NOMEM; n++) {
        f = (support_memory){ .fail_at = n + 1 };
        status = corpus_write(&c, path_of("small"), 1, &a, NULL);
        assert_int_equal(f.n_block, 0);
        expect_files(status == SPEC_OK);
    }
    OK(status);
    assert_true(n > 15);
    for (status = SPEC_E_NOMEM, n = 0; status == SPEC_E_NOMEM; n++) {
        speci_corpus_table t;
        f = (support_memory){ .fail_at = n + 1 };
        status = speci_corpus_open(&t, path_of("small"), &a);
        if (status == SPEC_OK) speci_corpus_close(&t, &a);
        assert_int_equal(f.n_block, 0);
    }
    OK(status);
    free(c.ids);
    assert_int_equal(unlink(path_of("small")), 0);
}

int main(void)
{
    enum { N_CASE = sizeof cases / sizeof *cases };
    const struct CMUnitTest others[] = {
#ifndef SPEC_NO_TOKENIZER
        cmocka_unit_test(check_text), cmocka_unit_test(check_long_text), cmocka_unit_test(check_no_text),
#endif
        cmocka_unit_test(check_damaged), cmocka_unit_test(check_forged), cmocka_unit_test(check_arguments),
        cmocka_unit_test(check_whole_or_not), cmocka_unit_test(check_no_memory),
    };
    enum { N_OTHER = sizeof others / sizeof *others };
    struct CMUnitTest tests[N_CASE + N_OTHER];
    for (size_t i = 0; i < N_CASE; i++)
        tests[i] = (struct CMUnitTest){ cases[i].name, check_case, NULL, NULL, (void *)(uintptr_t)&cases[i] };
    memcpy(tests + N_CASE, others, sizeof others);
    return _cmocka_run_group_tests("corpus", tests, N_CASE + N_OTHER, support_directory_make, support_directory_remove);
}
