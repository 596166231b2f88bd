/* text_regex.c - patterns of tokenizer files, run by PCRE2.
 *
 * The reference runs them with Oniguruma. The two agree on most of the syntax; where they do not, the pattern is
 * translated, so that it matches what it matches there, or refused by name:
 *     \s \S      Oniguruma: Unicode White_Space; PCRE2 adds U+180E                   -> the list of characters
 *     \w \W      Alphabetic, marks, digits, connectors, outside of brackets also the six superscripts and fractions
 *                of Latin-1; PCRE2: letters, numbers, _                              -> the properties
 *     \h         a hexadecimal digit; PCRE2: horizontal space                        -> 0-9A-Fa-f
 *     \v         a vertical tab; PCRE2: vertical space                               -> \x0b
 *     [:alpha:]  Unicode properties, [:punct:] includes symbols                      -> the properties
 *     \p{Han}    the script; PCRE2: its script extensions                            -> \p{sc:Han}
 *     ^ and $    match at every line                                                 -> PCRE2_MULTILINE
 * Patterns and texts are not trusted: a search has a limit of steps, and memory comes from the caller's allocator. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <string.h>

#include "models/text/text_tokenizer.h"

enum {
    PATTERN_MAX = 1 << 16, /* bytes */
    STEPS_MIN = 10000000,  /* match limit for short texts; for long ones: */
    STEPS_PER_BYTE = 32,
    HEAP_KIB = 256 << 10, /* backtracking memory of the interpreter */
    DEPTH_MAX = 10000000
};

struct speci_regex {
    const spec_allocator *a;
    pcre2_general_context *general; /* our allocator, as PCRE2 wants it */
    pcre2_code *code;
    char *source; /* for messages */
};

struct speci_match {
    const speci_regex *re;
    pcre2_match_context *context;
    pcre2_match_data *data;
    const char *text;
    size_t n;
    size_t from;     /* where the next search begins */
    size_t last_end; /* of the last match; SIZE_MAX before the first */
};

/* ----------------------------------------------------------------------------- translation --- */

#define SPACE_SET                                                                                                      \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"                        \
    "\\x{205f}\\x{3000}"
#define NOT_SPACE_SET                                                                                                  \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"                    \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{10ffff}"
#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD_ALONE WORD_SET "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"
#define HEX_SET "0-9A-Fa-f"

typedef struct translation {
    const char *p; /* pattern [n] */
    size_t n, i;
    bool in_class;
    speci_buf out;
    const char *what;
} translation;

static spec_status put(translation *t, const char *s)
{
    return speci_buf_add(&t->out, s, strlen(s));
}

static spec_status refuse(const translation *t, const char *construct)
{
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: pattern '%.*s', byte %zu: %s is not supported", t->what,
                      t->n > 200 ? 200 : (int)t->n, t->p, t->i, construct);
}

/* A set of characters: bare inside a class, in brackets outside. */
static spec_status put_set(translation *t, const char *set)
{
    if (!t->in_class) SPEC_TRY(put(t, "["));
    SPEC_TRY(put(t, set));
    return t->in_class ? SPEC_OK : put(t, "]");
}

/* The complement of a set, which inside a class has no way to be written. */
static spec_status put_complement(translation *t, const char *set, const char *construct)
{
    if (t->in_class) return refuse(t, construct);
    SPEC_TRY(put(t, "[^"));
    SPEC_TRY(put(t, set));
    return put(t, "]");
}

/* Names of properties and brackets that are no Unicode categories, and what they are in PCRE2. */
static const char *property_alias(const char *name, size_t n)
{
    static const char *const alias[][2] = {
        { "Letter", "L" },
        { "Mark", "M" },
        { "Number", "N" },
        { "Punctuation", "P" },
        { "Symbol", "S" },
        { "Separator", "Z" },
        { "Any", "Any" },
        { "Alpha", "Alphabetic" },
        { "Digit", "Nd" },
        { "Upper", "Uppercase" },
        { "Lower", "Lowercase" },
        { "Alphabetic", "Alphabetic" },
        { "Space", "White_Space" },
        { "Uppercase", "Uppercase" },
        { "Lowercase", "Lowercase" },
    };
    for (size_t i = 0; i < sizeof alias / sizeof *alias; i++) {
        size_t len = strlen(alias[i][0]);
        bool same = len == n;
        for (size_t k = 0; same && k < n; k++) same = (alias[i][0][k] | 0x20) == (name[k] | 0x20);
        if (same) return alias[i][1];
    }
    return NULL;
}

/* \p{Name}, \P{Name}, \p{^Name}; i is at the p. */
static spec_status put_property(translation *t)
{
    const char *open = t->p + t->i;
    const char *close = memchr(open, '}', t->n - t->i);
    if (t->i + 1 >= t->n || open[1] != '{' || !close) return refuse(t, "\\p without {name}");
    bool negated = open[0] == 'P';
    const char *name = open + 2;
    if (*name == '^') negated = !negated, name++;
    size_t n = (size_t)(close - name);
    const char *alias = property_alias(name, n);
    SPEC_TRY(put(t, negated ? "\\P{" : "\\p{"));
    if (alias) {
        SPEC_TRY(put(t, alias));
    } else { /* one or two letters are a category; everything else can only be a script */
        if (n > 2) SPEC_TRY(put(t, "sc:"));
        SPEC_TRY(speci_buf_add(&t->out, name, n));
    }
    t->i += (size_t)(close - open) + 1;
    return put(t, "}");
}

/* \xHH or \x{H...}: the same in both. */
static spec_status put_hex(translation *t)
{
    size_t n = 1;
    if (t->i + 1 < t->n && t->p[t->i + 1] == '{') {
        const char *close = memchr(t->p + t->i, '}', t->n - t->i);
        if (!close) return refuse(t, "\\x{ without }");
        n = (size_t)(close - (t->p + t->i)) + 1;
    }
    SPEC_TRY(put(t, "\\"));
    SPEC_TRY(speci_buf_add(&t->out, t->p + t->i, n));
    t->i += n;
    return SPEC_OK;
}

static bool is_one_of(char c, const char *letters)
{
    return c != 0 && strchr(letters, c);
}

/* After a backslash; i is at the character that follows it. */
static spec_status put_escape(translation *t)
{
    if (t->i >= t->n) return refuse(t, "a backslash at the end");
    const char c = t->p[t->i], same[] = { '\\', c, 0 };
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (c == 'p' || c == 'P') return put_property(t);
    if (c == 'x') return put_hex(t);
    if (t->in_class && is_one_of(c, "AzZ")) return refuse(t, "an anchor in a class");
    if (letter && !is_one_of(c, "sSwWhHdDvtnrfaeAzZ")) {
        char construct[] = "the escape \\?";
        construct[sizeof construct - 2] = c;
        return refuse(t, construct);
    }
    t->i++;
    switch (c) {
    case 's':
        return put_set(t, SPACE_SET);
    case 'S':
        return put_set(t, NOT_SPACE_SET);
    case 'w':
        return put_set(t, t->in_class ? WORD_SET : WORD_ALONE);
    case 'W':
        return put_complement(t, WORD_ALONE, "\\W in a class");
    case 'h':
        return put_set(t, HEX_SET);
    case 'H':
        return put_complement(t, HEX_SET, "\\H in a class");
    case 'd':
        return put(t, "\\p{Nd}");
    case 'D':
        return put(t, "\\P{Nd}");
    case 'v':
        return put(t, "\\x{b}");
    default: /* the same in both. In front of a character of several bytes the backslash says nothing */
        return (unsigned char)c >= 0x80 ? speci_buf_add(&t->out, &c, 1) : put(t, same);
    }
}

/* [:name:] inside a class; i is at its bracket. */
static spec_status put_bracket(translation *t)
{
    const char *name = t->p + t->i + 2;
    const char *close = memchr(name, ':', t->n - t->i - 2);
    if (!close || close + 1 >= t->p + t->n || close[1] != ']') return refuse(t, "[: in a class");
    bool negated = *name == '^';
    if (negated) name++;
    size_t n = (size_t)(close - name);
    if (n == 5 && memcmp(name, "punct", 5) == 0 && !negated) {
        SPEC_TRY(put(t, "\\p{P}\\p{S}"));
    } else if (n == 5 && memcmp(name, "alnum", 5) == 0 && !negated) {
        SPEC_TRY(put(t, "\\p{Alphabetic}\\p{Nd}"));
    } else {
        const char *alias = property_alias(name, n);
        if (!alias) return refuse(t, "this [:name:]");
        SPEC_TRY(put(t, negated ? "\\P{" : "\\p{"));
        SPEC_TRY(put(t, alias));
        SPEC_TRY(put(t, "}"));
    }
    t->i = (size_t)(close + 2 - t->p);
    return SPEC_OK;
}

static bool at(const translation *t, const char *s)
{
    size_t n = strlen(s);
    return t->n - t->i >= n && memcmp(t->p + t->i, s, n) == 0;
}

static spec_status put_char(translation *t)
{
    return speci_buf_add(&t->out, t->p + t->i++, 1);
}

/* A class; i is at its bracket. */
static spec_status put_class(translation *t)
{
    t->in_class = true;
    SPEC_TRY(put_char(t));
    if (at(t, "^")) SPEC_TRY(put_char(t));
    if (at(t, "]")) SPEC_TRY(put_char(t)); /* a bracket that comes first is a character */
    while (t->i < t->n && t->p[t->i] != ']') {
        if (at(t, "\\")) {
            t->i++;
            SPEC_TRY(put_escape(t));
        } else if (at(t, "[:")) {
            SPEC_TRY(put_bracket(t));
        } else if (at(t, "[")) {
            return refuse(t, "a class inside a class");
        } else if (at(t, "&&")) {
            return refuse(t, "&& (intersection of classes)");
        } else {
            SPEC_TRY(put_char(t));
        }
    }
    if (t->i >= t->n) return refuse(t, "a class without end");
    t->in_class = false;
    return put_char(t);
}

/* What may follow "(?"; a name in angle brackets is a group like any other. */
static spec_status put_group(translation *t)
{
    static const char *const plain[] = { "(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?-i:" };
    if (at(t, "(*")) return refuse(t, "(*");
    if (!at(t, "(?")) return put_char(t);
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
        if (!at(t, plain[k])) continue;
        t->i += strlen(plain[k]);
        return put(t, plain[k]);
    }
    if (at(t, "(?i)") && t->i == 0) { /* elsewhere the two disagree on how far it reaches */
        t->i += 4;
        return put(t, "(?i)");
    }
    if (at(t, "(?<")) { /* nothing may refer to the name: leave it out */
        const char *close = memchr(t->p + t->i, '>', t->n - t->i);
        if (close) {
            t->i = (size_t)(close + 1 - t->p);
            return put(t, "(?:");
        }
    }
    return refuse(t, "this kind of group");
}

/* {n}, {n,}, {n,m}; any other brace is a character. i is at the brace. */
static spec_status put_interval(translation *t)
{
    size_t k = t->i + 1;
    bool digits = false;
    while (k < t->n && ((t->p[k] >= '0' && t->p[k] <= '9') || t->p[k] == ',')) {
        if (t->p[k] != ',') digits = true;
        k++;
    }
    if (!digits || k >= t->n || t->p[k] != '}') {
        t->i++;
        return put(t, "\\{");
    }
    if (t->p[t->i + 1] == ',') return refuse(t, "{,n}");
    if (k + 1 < t->n && t->p[k + 1] == '+') return refuse(t, "+ after {n,m}");
    SPEC_TRY(speci_buf_add(&t->out, t->p + t->i, k + 1 - t->i));
    t->i = k + 1;
    return SPEC_OK;
}

static spec_status translate(translation *t)
{
    while (t->i < t->n) {
        if (at(t, "\\")) {
            t->i++;
            SPEC_TRY(put_escape(t));
        } else if (at(t, "[")) {
            SPEC_TRY(put_class(t));
        } else if (at(t, "(")) {
            SPEC_TRY(put_group(t));
        } else if (at(t, "{")) {
            SPEC_TRY(put_interval(t));
        } else {
            SPEC_TRY(put_char(t));
        }
    }
    return SPEC_OK;
}

/* ----------------------------------------------------------------------------- compilation --- */

static void *pcre_alloc(size_t n, void *allocator)
{
    return speci_alloc(allocator, n, 1);
}
static void pcre_free(void *p, void *allocator)
{
    speci_free(allocator, p);
}

static spec_status no_memory(void)
{
    return speci_fail(SPEC_E_NOMEM, "out of host memory for a pattern");
}

static spec_status compile(speci_regex *re, const char *pattern, size_t n, bool literal, const char *what)
{
    re->general = pcre2_general_context_create(pcre_alloc, pcre_free, (void *)(uintptr_t)re->a);
    pcre2_compile_context *context = re->general ? pcre2_compile_context_create(re->general) : NULL;
    if (!context) return no_memory();
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    /* Groups are not captured: nobody asks for them, and back references are refused. */
    uint32_t options = literal
                           ? PCRE2_UTF | PCRE2_LITERAL
                           : PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE | PCRE2_NEVER_BACKSLASH_C;
    int error = 0;
    PCRE2_SIZE where = 0;
    re->code = pcre2_compile((PCRE2_SPTR)pattern, n, options, &error, &where, context);
    pcre2_compile_context_free(context);
    if (re->code) {
        (void)pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE); /* without it the interpreter runs */
        return SPEC_OK;
    }
    if (error == PCRE2_ERROR_HEAP_FAILED || error == PCRE2_ERROR_NOMEMORY) return no_memory();
    PCRE2_UCHAR text[128];
    if (pcre2_get_error_message(error, text, sizeof text) < 0) text[0] = 0;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: pattern '%.*s' is not understood: %s", what, n > 200 ? 200 : (int)n,
                      pattern, (const char *)text);
}

spec_status speci_regex_open(speci_regex **out, const char *pattern, size_t n, bool literal, const char *what,
                             const spec_allocator *a)
{
    *out = NULL;
    if (n == 0) return speci_fail(SPEC_E_UNSUPPORTED, "%s: an empty pattern is not supported", what);
    if (n > PATTERN_MAX)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: a pattern of %zu bytes, at most %d are supported", what, n,
                          PATTERN_MAX);
    translation t = { .p = pattern, .n = n, .out = { .a = a }, .what = what };
    spec_status status = literal ? speci_buf_add(&t.out, pattern, n) : translate(&t);
    speci_regex *re = status == SPEC_OK ? speci_alloc(a, 1, sizeof *re) : NULL;
    if (re) {
        re->a = a;
        re->source = speci_alloc(a, n + 1, 1);
        if (re->source) memcpy(re->source, pattern, n);
        status = re->source ? compile(re, t.out.data, t.out.n, literal, what) : SPEC_E_NOMEM;
    } else if (status == SPEC_OK) {
        status = SPEC_E_NOMEM;
    }
    speci_buf_free(&t.out);
    if (status == SPEC_OK)
        *out = re;
    else
        speci_regex_close(re);
    return status;
}

void speci_regex_close(speci_regex *re)
{
    if (!re) return;
    pcre2_code_free(re->code);
    pcre2_general_context_free(re->general);
    speci_free(re->a, re->source);
    speci_free(re->a, re);
}

/* ------------------------------------------------------------------------------- searching --- */

spec_status speci_match_open(speci_match **out, const speci_regex *re)
{
    *out = NULL;
    speci_match *m = speci_alloc(re->a, 1, sizeof *m);
    if (!m) return SPEC_E_NOMEM;
    m->re = re;
    m->context = pcre2_match_context_create(re->general);
    m->data = pcre2_match_data_create(1, re->general);
    if (!m->context || !m->data) {
        speci_match_close(m);
        return no_memory();
    }
    pcre2_set_depth_limit(m->context, DEPTH_MAX);
    pcre2_set_heap_limit(m->context, HEAP_KIB);
    *out = m;
    return SPEC_OK;
}

void speci_match_close(speci_match *m)
{
    if (!m) return;
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    speci_free(m->re->a, m);
}

void speci_match_start(speci_match *m, const char *text, size_t n)
{
    m->text = text;
    m->n = n;
    m->from = 0;
    m->last_end = SIZE_MAX;
    /* Linear in the text, so that a long run of one class passes and a quadratic pattern does not. */
    size_t steps = n > UINT32_MAX / STEPS_PER_BYTE ? UINT32_MAX : n * STEPS_PER_BYTE;
    pcre2_set_match_limit(m->context, steps < STEPS_MIN ? STEPS_MIN : (uint32_t)steps);
}

static spec_status search(speci_match *m, bool *found, size_t *start, size_t *end)
{
    /* The text was checked once for all searches: PCRE2's own check would cost its length every time. */
    uint32_t options = PCRE2_NO_UTF_CHECK;
    int rc = pcre2_match(m->re->code, (PCRE2_SPTR)m->text, m->n, m->from, options, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) /* the machine's stack is fixed; the interpreter's memory grows */
        rc = pcre2_match(m->re->code, (PCRE2_SPTR)m->text, m->n, m->from, options | PCRE2_NO_JIT, m->data, m->context);
    *found = rc >= 0;
    if (rc >= 0) {
        const PCRE2_SIZE *ovector = pcre2_get_ovector_pointer(m->data);
        *start = ovector[0];
        *end = ovector[1];
        if (*start <= *end) return SPEC_OK;
        return speci_fail(SPEC_E_UNSUPPORTED, "pattern '%.200s': a match ends before it starts", m->re->source);
    }
    if (rc == PCRE2_ERROR_NOMATCH) return SPEC_OK;
    if (rc == PCRE2_ERROR_NOMEMORY) return no_memory();
    PCRE2_UCHAR text[128];
    if (pcre2_get_error_message(rc, text, sizeof text) < 0) text[0] = 0;
    return speci_fail(SPEC_E_UNSUPPORTED, "pattern '%.200s' gave up at byte %zu of a text of %zu: %s", m->re->source,
                      m->from, m->n, (const char *)text);
}

/* As the reference's iterator: an empty match that touches the match before it is passed over, one character
 * further on. */
spec_status speci_match_next(speci_match *m, bool *found, size_t *start, size_t *end)
{
    *found = false;
    while (m->from <= m->n) {
        SPEC_TRY(search(m, found, start, end));
        if (!*found) {
            m->from = m->n + 1;
            return SPEC_OK;
        }
        if (*start != *end || *end != m->last_end) {
            m->from = m->last_end = *end;
            return SPEC_OK;
        }
        *found = false;
        size_t len = speci_utf8_length(m->text + m->from, m->n - m->from);
        m->from += len ? len : 1;
    }
    return SPEC_OK;
}
