/* core_json.c - JSON as real model files have it, read by jansson.
 *
 * Three things that such files contain and jansson refuses are rewritten before it sees them:
 *     Infinity  -Infinity  NaN       (Python's json writes them)   -> {"__float__": "Infinity"}
 *     1000000000000000019884624838656 (integers over 64 bits)      -> the same with ".0" after it
 *     "a\u0000": in a key            (vocabularies have it)         -> "a\u00010", and "\u0001" -> "\u00011"
 * Most files need neither; they are parsed in place. A column in a message is that of the rewritten line. */
#include "core/core_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    INTEGER_DIGITS = 18, /* every integer of so many digits fits 64 bits */
    ESCAPE = 1           /* in a key: before 0 it stands for NUL, before 1 for itself */
};

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The bytes at s that stand for a float without JSON syntax; 0 if there are none. */
static size_t bare_float(const char *s, size_t n)
{
    if (*s != '-' && *s != 'I' && *s != 'N') return 0;
    static const char *const words[] = { "-Infinity", "Infinity", "NaN" };
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t len = strlen(words[i]);
        if (len <= n && memcmp(s, words[i], len) == 0) return len;
    }
    return 0;
}

/* The bytes of the number at s (a digit); *integer tells whether it has neither fraction nor exponent. */
static size_t number_length(const char *s, size_t n, bool *integer)
{
    size_t i = 0;
    *integer = true;
    while (i < n && (is_digit(s[i]) || s[i] == '.' || s[i] == 'e' || s[i] == 'E' || s[i] == '+' || s[i] == '-')) {
        if (!is_digit(s[i])) *integer = false;
        i++;
    }
    return i;
}

/* The bytes of the string at s (a quote), or what is left when it does not end. */
static size_t string_length(const char *s, size_t n)
{
    size_t i = 1;
    while (i < n && s[i] != '"') i += s[i] == '\\' ? 2 : 1;
    return i < n ? i + 1 : n;
}

typedef struct rewriter {
    const char *text;
    size_t n, done;  /* text before `done` is in out */
    speci_buf *out;  /* NULL: only whether anything would change */
    bool changes;
} rewriter;

/* text [from, to) becomes `with`. */
static spec_status replace(rewriter *r, size_t from, size_t to, const char *with)
{
    r->changes = true;
    if (!r->out) return SPEC_OK;
    SPEC_TRY(speci_buf_add(r->out, r->text + r->done, from - r->done));
    r->done = to;
    return speci_buf_add(r->out, with, strlen(with));
}

static bool is_key(const rewriter *r, size_t end)
{
    while (end < r->n && is_space(r->text[end])) end++;
    return end < r->n && r->text[end] == ':';
}

/* Control characters stand in strings as escapes only, so that no other spelling of them has to be looked for. */
static spec_status rewrite_key(rewriter *r, size_t i, size_t end)
{
    for (; i + 6 <= end; i += r->text[i] == '\\' ? 2 : 1) {
        if (memcmp(r->text + i, "\\u0000", 6) == 0) SPEC_TRY(replace(r, i, i + 6, "\\u00010"));
        else if (memcmp(r->text + i, "\\u0001", 6) == 0) SPEC_TRY(replace(r, i, i + 6, "\\u00011"));
    }
    return SPEC_OK;
}

/* Handles what is at i, and moves i behind it. */
static spec_status rewrite_at(rewriter *r, size_t *i)
{
    const char *s = r->text + *i;
    const size_t at = *i, left = r->n - at, word = bare_float(s, left);
    char insert[32];
    bool integer = false;
    if (*s == '"') {
        *i += string_length(s, left);
        return is_key(r, *i) ? rewrite_key(r, at, *i) : SPEC_OK;
    }
    if (word) {
        *i += word;
        snprintf(insert, sizeof insert, "{\"__float__\": \"%.*s\"}", (int)word, s);
        return replace(r, at, *i, insert);
    }
    const size_t digits = is_digit(*s) ? number_length(s, left, &integer) : 0;
    *i += digits ? digits : 1;
    return integer && digits > INTEGER_DIGITS ? replace(r, *i, *i, ".0") : SPEC_OK;
}

/* Appends the rewritten text to out; with out == NULL only answers whether anything would change. */
static spec_status rewrite(const char *text, size_t n, speci_buf *out, bool *changes)
{
    rewriter r = { .text = text, .n = n, .out = out };
    for (size_t i = 0; i < n && (out || !r.changes);) SPEC_TRY(rewrite_at(&r, &i));
    *changes = r.changes;
    return out ? speci_buf_add(out, text + r.done, n - r.done) : SPEC_OK;
}

spec_status speci_json_key(const char *key, const char **out, size_t *n, speci_buf *work)
{
    *out = key, *n = strlen(key);
    if (!strchr(key, ESCAPE)) return SPEC_OK;
    work->n = 0;
    for (const char *s = key; *s; s++) {
        char c = *s;
        if (c == ESCAPE && s[1]) c = *++s == '0' ? '\0' : ESCAPE;
        SPEC_TRY(speci_buf_add(work, &c, 1));
    }
    *out = work->data, *n = work->n;
    return SPEC_OK;
}

/* What editors of some systems write in front of a text, and what JSON is not. */
static const char *encoding_of(const char *text, size_t n)
{
    if (n >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0) return "begins with a byte order mark, expected UTF-8 without one";
    if (n >= 2 && (memcmp(text, "\xFF\xFE", 2) == 0 || memcmp(text, "\xFE\xFF", 2) == 0)) return "is UTF-16, expected UTF-8";
    return NULL;
}

static spec_status parse(json_t **out, const char *text, size_t n, const char *what)
{
    json_error_t error;
    /* Vocabularies have NUL as a token, and merges of it. */
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (*out) return SPEC_OK;
    const char *encoding = encoding_of(text, n);
    if (encoding) return speci_fail(SPEC_E_FORMAT, "%s: %s", what, encoding);
    spec_status code = json_error_code(&error) == json_error_out_of_memory ? SPEC_E_NOMEM : SPEC_E_FORMAT;
    return speci_fail(code, "%s: line %d, column %d: %s", what, error.line, error.column, error.text);
}

spec_status speci_json_parse(json_t **out, const char *text, size_t n, const char *what)
{
    bool changes;
    *out = NULL;
    SPEC_TRY(rewrite(text, n, NULL, &changes));
    if (!changes) return parse(out, text, n, what);
    speci_buf buf = { .a = NULL };
    spec_status status = rewrite(text, n, &buf, &changes);
    if (status == SPEC_OK) status = parse(out, buf.data, buf.n, what);
    speci_buf_free(&buf);
    return status;
}

spec_status speci_json_read(json_t **out, const char *path, size_t max, const spec_allocator *a)
{
    char *text;
    size_t n;
    *out = NULL;
    SPEC_TRY(speci_file_read(&text, &n, path, max, a));
    spec_status status = speci_file_refuse_pointer(text, n, path);
    if (status == SPEC_OK) status = speci_json_parse(out, text, n, path);
    speci_free(a, text);
    return status;
}

bool speci_json_number(const json_t *value, double *out)
{
    if (json_is_number(value)) {
        *out = json_number_value(value);
        return true;
    }
    const char *word = json_string_value(json_object_get(value, "__float__"));
    if (!word) return false;
    if (strcmp(word, "Infinity") == 0)
        *out = (double)INFINITY;
    else if (strcmp(word, "-Infinity") == 0)
        *out = -(double)INFINITY;
    else if (strcmp(word, "NaN") == 0)
        *out = (double)NAN;
    else
        return false;
    return true;
}
