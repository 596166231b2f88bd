/* core_json.c - JSON as real model files have it, read by jansson.
 *
 * Three things that such files contain and jansson refuses are rewritten before it sees them:
 *     Infinity  -Infinity  NaN       (Python's json writes them)   -> {"__float__": "Infinity"}
 *     1000000000000000019884624838656 (integers over 64 bits)      -> the same with ".0" after it
 *     "a\u0000": in a key            (vocabularies have it)         -> "a\u00010", and "\u0001" -> "\u00011"
 * Most files need neither; they are parsed in place. A column in a message is that of the rewritten line. */
#include "core/core_json.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
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

/* --- memory ---
 *
 * jansson keeps a token in a buffer that doubles. Where that fails it drops bytes and goes on: the string is cut short, or is read
 * beyond its end if the byte was its quote. The buffer never shrinks. So the root gets a first member whose string is longer than
 * every token of the text, and which comes in pieces: where one of them found no room (malloc sets errno) the next is not given.
 * Behind it all tokens have room, and what else fails ends the parse at once, with that errno. */

enum { PIECES = 5 };

typedef struct feeder {
    struct { const char *text; size_t n; } piece[PIECES]; /* to the root's bracket, a quote, the long string, the member's end, the rest */
    int at;
    bool lost;
} feeder;

static size_t feed(void *buffer, size_t cap, void *data)
{
    feeder *f = data;
    f->lost = f->lost || errno == ENOMEM;
    while (f->at < PIECES && f->piece[f->at].n == 0) f->at++;
    if (f->lost || f->at == PIECES) return 0;
    const size_t n = f->piece[f->at].n < cap ? f->piece[f->at].n : cap;
    memcpy(buffer, f->piece[f->at].text, n);
    f->piece[f->at].text += n, f->piece[f->at].n -= n;
    return n;
}

static size_t longest_token(const char *text, size_t n)
{
    size_t longest = 0, i = 0;
    while (i < n) {
        size_t end = i + 1;
        if (text[i] == '"') end = i + string_length(text + i, n - i);
        else while (end < n && text[end] != '"' && !is_space(text[end]) && !strchr("{}[]:,", text[end])) end++;
        if (end - i > longest) longest = end - i;
        i = end;
    }
    return longest;
}

static size_t skip_space(const char *text, size_t i, size_t n)
{
    while (i < n && is_space(text[i])) i++;
    return i;
}

/* The characters of the long string: neither its quote nor its last byte is the one that makes the buffer double. */
static size_t long_string(size_t token)
{
    size_t n = token < 16 ? 16 : token;
    while (((n + 1) & n) == 0 || ((n + 2) & (n + 1)) == 0 || ((n + 3) & (n + 2)) == 0) n++;
    return n;
}

/* line, column: of what jansson says */
static spec_status refuse(const char *text, size_t n, const char *what, const json_error_t *error, int column)
{
    const char *encoding = encoding_of(text, n);
    if (encoding) return speci_fail(SPEC_E_FORMAT, "%s: %s", what, encoding);
    return speci_fail(SPEC_E_FORMAT, "%s: line %d, column %d: %s", what, error->line, column, error->text);
}

/* x [n_x]: the long string */
static spec_status parse_with(json_t **out, const char *text, size_t n, const char *what, const char *x, size_t n_x)
{
    json_error_t error;
    const size_t root = skip_space(text, 0, n), behind = root < n ? root + 1 : n, next = skip_space(text, behind, n);
    const bool object = root < n && text[root] == '{', array = root < n && text[root] == '[';
    const bool alone = next < n && text[next] == (object ? '}' : ']');
    const char *end = object ? alone ? "\":0" : "\":0," : alone ? "\"" : "\",";
    feeder f = { .piece = { { text, behind }, { "\"", 1 }, { x, n_x }, { end, strlen(end) }, { text + behind, n - behind } } };
    if (!object && !array) f = (feeder){ .piece = { { text, n } } }; /* is refused */
    int line = 1;
    for (size_t i = 0; i < root; i++) line += text[i] == '\n';
    errno = 0;
    /* Vocabularies have NUL as a token, and merges of it. */
    *out = json_load_callback(feed, &f, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (f.lost || errno == ENOMEM) {
        json_decref(*out);
        *out = NULL;
        return speci_fail(SPEC_E_NOMEM, "%s: no memory to read it", what);
    }
    const int more = (object || array) && error.line == line ? (int)(1 + n_x + strlen(end)) : 0;
    if (!*out) return refuse(text, n, what, &error, error.column - more);
    (void)(object ? json_object_del(*out, x) : json_array_remove(*out, 0));
    return SPEC_OK;
}

static spec_status parse(json_t **out, const char *text, size_t n, const char *what)
{
    const size_t n_x = long_string(longest_token(text, n));
    char *x = speci_alloc(NULL, n_x + 1, 1);
    if (!x) return SPEC_E_NOMEM;
    memset(x, 'x', n_x);
    const spec_status status = parse_with(out, text, n, what, x, n_x);
    speci_free(NULL, x);
    return status;
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

char *speci_json_dump(const json_t *value, size_t flags)
{
    errno = 0;
    char *text = json_dumps(value, flags);
    if (!text || errno != ENOMEM) return text;
    free(text);
    return NULL;
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
