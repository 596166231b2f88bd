/* cli_ngram.c - spec ngram build: a table of the n-grams of text files and JSON lines. */
#define _POSIX_C_SOURCE 200809L /* stat, isatty */
#include <errno.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/cli_read.h"

enum { BLOCK = 1 << 18, TELL_MS = 200 };

typedef struct ngram_build {
    const cli_options *o;
    spec_corpus *corpus;
    double n_read, n_all; /* bytes; n_all 0: not known */
    double told_ms;
} ngram_build;

/* --- progress --- */

static void tell(ngram_build *b, const char *doing, double fraction)
{
    const double now = cli_now_ms();
    if (now - b->told_ms < TELL_MS) return;
    b->told_ms = now;
    if (fraction <= 1) cli_progress(doing, "%3.0f %%", fraction * 100);
    else cli_progress(doing, "%.0f MB", b->n_read / 1e6);
}

static int tell_sorting(void *user_data, double fraction)
{
    tell(user_data, "counting", fraction);
    return cli_interrupted();
}

/* A part of the corpus was read. An exit code. */
static int tell_reading(ngram_build *b, size_t n)
{
    b->n_read += (double)n;
    tell(b, "reading", b->n_all > 0 ? b->n_read / b->n_all : 2);
    return cli_interrupted() ? cli_error("interrupted") : CLI_OK;
}

/* What is wrong in a text is told with its file. Of the table and of memory the library says all itself. */
static int failure_in(const char *path, spec_status status)
{
    return status == SPEC_E_INVALID ? cli_error("%s: %s", path, spec_last_error()) : cli_failure();
}

/* --- files --- */

static bool is_json_lines(const char *path)
{
    const char *ending = strrchr(path, '.');
    return ending != NULL && (strcmp(ending, ".jsonl") == 0 || strcmp(ending, ".ndjson") == 0);
}

/* Bytes of the byte order mark that a file begins with: it is no part of a text. */
static size_t mark_of(const char *data, size_t n)
{
    return n >= 3 && memcmp(data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

/* Texts have no zero bytes; UTF-16, what programs write for themselves, and devices without end do. */
static int check_text(const char *block, size_t n, const char *path, size_t at)
{
    const char *zero = memchr(block, 0, n);
    return zero == NULL ? CLI_OK : cli_error("%s: byte %zu is 0: not a text, need UTF-8", path, at + (size_t)(zero - block));
}

static int add_text(ngram_build *b, FILE *from, const char *path)
{
    static char block[BLOCK];
    size_t at = 0;
    for (size_t n; (n = fread(block, 1, sizeof block, from)) > 0; at += n) {
        const size_t mark = at == 0 ? mark_of(block, n) : 0;
        int code = check_text(block, n, path, at);
        if (code != CLI_OK) return code;
        const spec_status status = spec_corpus_add_text(b->corpus, block + mark, n - mark);
        if (status != SPEC_OK) return failure_in(path, status);
        code = tell_reading(b, n);
        if (code != CLI_OK) return code;
    }
    if (ferror(from)) return cli_error("%s: %s", path, strerror(errno));
    const spec_status status = spec_corpus_end_text(b->corpus);
    return status == SPEC_OK ? CLI_OK : failure_in(path, status);
}

/* jansson keeps a string in a buffer that doubles (3 n while it does), then copies it. Where the buffer finds no room it goes on without
 * what is missing, and reads beyond the end. So there has to be room for the line before it is read. */
static bool has_room(size_t n)
{
    void *volatile room = n < SIZE_MAX / 4 ? malloc(3 * n + BLOCK) : NULL; /* volatile: compilers leave out what is only freed */
    free(room);
    return room != NULL;
}

static int add_line(ngram_build *b, const char *line, size_t n, const char *path, size_t number)
{
    const char *field = b->o->json_field != NULL ? b->o->json_field : "text";
    json_error_t error;
    errno = 0;
    json_t *root = has_room(n) ? json_loadb(line, n, JSON_ALLOW_NUL, &error) : NULL;
    if (root == NULL && errno == ENOMEM) return cli_error("%s: line %zu: no memory for its %zu bytes", path, number, n);
    if (root == NULL) return cli_error("%s: line %zu is not JSON: %s", path, number, error.text);
    const json_t *text = json_object_get(root, field);
    int code = CLI_OK;
    spec_status status = SPEC_OK;
    if (!json_is_string(text))
        code = cli_error("%s: line %zu has no string \"%s\"; --json-field names another", path, number, field);
    else
        status = spec_corpus_add_text(b->corpus, json_string_value(text), json_string_length(text));
    if (code == CLI_OK && status == SPEC_OK) status = spec_corpus_end_text(b->corpus);
    json_decref(root);
    return status == SPEC_OK ? code : failure_in(path, status);
}

static bool is_blank(const char *line, size_t n)
{
    while (n > 0 && memchr(" \t\r\n", line[n - 1], 4) != NULL) n--;
    return n == 0;
}

static int add_json_lines(ngram_build *b, FILE *from, const char *path)
{
    cli_bytes line = { NULL, 0, 0 };
    int code = CLI_OK;
    for (size_t number = 1; code == CLI_OK; number++) {
        code = cli_read_line(&line, from, path, number);
        if (line.n == 0) break;
        const size_t mark = number == 1 ? mark_of(line.data, line.n) : 0;
        if (code == CLI_OK && !is_blank(line.data + mark, line.n - mark)) code = add_line(b, line.data + mark, line.n - mark, path, number);
        if (code == CLI_OK) code = tell_reading(b, line.n);
    }
    free(line.data);
    return code;
}

static int add_file(ngram_build *b, const char *path)
{
    FILE *from = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    if (from == NULL) return cli_error("%s: %s", path, strerror(errno));
    const int code = is_json_lines(path) ? add_json_lines(b, from, path) : add_text(b, from, path);
    if (from != stdin) fclose(from);
    return code;
}

/* Is all of the corpus there, and how much is it? */
static int measure(ngram_build *b)
{
    double sum = 0;
    bool known = true;
    for (int32_t i = 1; i < b->o->n_word; i++) {
        struct stat s;
        const char *path = b->o->words[i];
        if (strcmp(path, "-") == 0) {
            known = false;
            continue;
        }
        if (stat(path, &s) != 0) return cli_error("%s: %s", path, strerror(errno));
        if (S_ISDIR(s.st_mode)) return cli_error("%s: is a directory, need text files or JSON lines", path);
        known = known && S_ISREG(s.st_mode);
        sum += (double)s.st_size;
    }
    b->n_all = known ? sum : 0;
    return CLI_OK;
}

/* --- the command --- */

static int build(ngram_build *b, const spec_tokenizer *tokenizer)
{
    const cli_options *o = b->o;
    const double start = cli_now_ms();
    spec_corpus_info info = SPEC_CORPUS_INFO_INIT;
    spec_corpus_params p = SPEC_CORPUS_PARAMS_INIT;
    p.tokenizer = tokenizer;
    p.n_context = o->order, p.n_draft = o->length, p.n_row = o->n_row, p.min_count = o->min_count;
    p.memory = (size_t)o->memory << 20;
    p.progress = tell_sorting, p.progress_user_data = b;
    if (spec_corpus_open(&b->corpus, o->output, &p) != SPEC_OK) return cli_failure();
    for (int32_t i = 1; i < o->n_word; i++) {
        const int code = add_file(b, o->words[i]);
        if (code != CLI_OK) return code;
    }
    const spec_status status = spec_corpus_write(b->corpus, &info);
    cli_progress_end();
    if (status != SPEC_OK) return cli_failure();
    fprintf(stderr, "%s: %.1f MB, %llu continuations of %llu contexts, from %llu tokens of %llu texts, in %.1f s\n", o->output,
            (double)info.bytes / 1e6, (unsigned long long)info.n_continuation, (unsigned long long)info.n_context,
            (unsigned long long)info.n_token, (unsigned long long)info.n_text, (cli_now_ms() - start) / 1e3);
    if (info.n_continuation == 0)
        fputs("spec: warning: the table is empty: nothing followed the same tokens as often as --min-count asks; "
              "1 keeps everything\n", stderr);
    if (o->verbose)
        fprintf(stderr, "spec: %d sorted runs of %.1f MB together\n", info.n_run, (double)info.bytes_runs / 1e6);
    return CLI_OK;
}

int cli_ngram(const cli_options *o)
{
    ngram_build b = { .o = o };
    spec_tokenizer *tokenizer = NULL;
    cli_interrupt_install();
    int code = measure(&b);
    if (code == CLI_OK && spec_tokenizer_open(&tokenizer, o->tokenizer != NULL ? o->tokenizer : o->model, NULL) != SPEC_OK)
        code = cli_failure();
    if (code == CLI_OK) code = build(&b, tokenizer);
    spec_corpus_close(b.corpus);
    spec_tokenizer_close(tokenizer);
    return code;
}
