/* core_json.c - JSON as real model files have it, read by jansson.
 *
 * Two things that such files contain and jansson refuses are rewritten before it sees them, outside strings only:
 *     Infinity  -Infinity  NaN       (Python's json writes them)   -> {"__float__": "Infinity"}
 *     1000000000000000019884624838656 (integers over 64 bits)      -> the same with ".0" after it
 * Most files need neither; they are parsed in place. A column in a message is that of the rewritten line. */
#include "core/core_json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { INTEGER_DIGITS = 18 }; /* every integer of so many digits fits 64 bits */

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* The bytes at s that stand for a float without JSON syntax; 0 if there are none. */
static size_t bare_float(const char *s, size_t n)
{
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

/* Appends the rewritten text to out; with out == NULL only answers whether anything would change. */
static spec_status rewrite(const char *text, size_t n, speci_buf *out, bool *changes)
{
    size_t done = 0; /* text before it is in out */
    *changes = false;
    for (size_t i = 0; i < n;) {
        size_t len = 1;
        bool integer = false;
        char insert[32] = "";
        if (text[i] == '"') {
            i += string_length(text + i, n - i);
            continue;
        } else if (is_digit(text[i])) {
            len = number_length(text + i, n - i, &integer);
            if (integer && len > INTEGER_DIGITS) strcpy(insert, ".0");
        } else if (text[i] == '-' || text[i] == 'I' || text[i] == 'N') {
            size_t word = bare_float(text + i, n - i);
            if (word) {
                len = word;
                snprintf(insert, sizeof insert, "{\"__float__\": \"%.*s\"}", (int)word, text + i);
            }
        }
        if (insert[0]) {
            *changes = true;
            if (!out) return SPEC_OK;
            size_t keep = integer ? i + len : i; /* the digits stay, a word is replaced */
            SPEC_TRY(speci_buf_add(out, text + done, keep - done));
            SPEC_TRY(speci_buf_add(out, insert, strlen(insert)));
            done = i + len;
        }
        i += len;
    }
    return out ? speci_buf_add(out, text + done, n - done) : SPEC_OK;
}

static spec_status parse(json_t **out, const char *text, size_t n, const char *what)
{
    json_error_t error;
    /* NUL is allowed in strings: vocabularies have it as a token. Keys with NUL remain an error. */
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (*out) return SPEC_OK;
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
