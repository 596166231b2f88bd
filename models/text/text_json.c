/* text_json.c - reads tokenizer.json (format of the `tokenizers` package).
 *
 * Each section has one table that maps a component's "type" to the function that reads it; a type that is not in the
 * table is refused by name. `truncation` and `padding` are not read: how long a text may be is the caller's matter. */
#include <stdio.h>
#include <string.h>

#include "models/text/text_json.h"

enum { NESTING_MAX = 16 }; /* Sequences inside Sequences */

/* Reads one component; `depth` counts Sequences. */
typedef spec_status (*read_fn)(spec_tokenizer *t, const json_t *json, int depth);
typedef struct component {
    const char *type;
    read_fn read;
} component;

/* ------------------------------------------------------------------------------- small readers --- */

static spec_status bad(const char *file, const char *key, const char *expected)
{
    return speci_fail(SPEC_E_FORMAT, "%s: \"%s\" is missing or wrong, expected %s", file, key, expected);
}

/* A boolean; `missing` if the key is not there or null. */
static spec_status read_bool(const char *file, const json_t *json, const char *key, bool missing, bool *out)
{
    const json_t *value = json_object_get(json, key);
    *out = missing;
    if (!value || json_is_null(value)) return SPEC_OK;
    if (!json_is_boolean(value)) return bad(file, key, "true or false");
    *out = json_is_true(value);
    return SPEC_OK;
}

static spec_status read_int(const char *file, const json_t *json, const char *key, json_int_t low,
                            json_int_t high, json_int_t *out)
{
    const json_t *value = json_object_get(json, key);
    *out = json_integer_value(value);
    if (json_is_integer(value) && *out >= low && *out <= high) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: \"%s\" is missing or wrong, expected an integer from %lld to %lld", file,
                      key, (long long)low, (long long)high);
}

/* Borrowed text; may hold zero bytes. */
static spec_status read_text(const char *file, const json_t *json, const char *key, const char **out, size_t *n)
{
    const json_t *value = json_object_get(json, key);
    if (!json_is_string(value)) return bad(file, key, "a string");
    *out = json_string_value(value);
    *n = json_string_length(value);
    return SPEC_OK;
}

/* A string or null; *out is a copy or NULL. */
static spec_status read_optional(const spec_tokenizer *t, const json_t *json, const char *key, char **out)
{
    const json_t *value = json_object_get(json, key);
    *out = NULL;
    if (!value || json_is_null(value)) return SPEC_OK;
    if (!json_is_string(value)) return bad(t->path, key, "a string or null");
    if (json_string_length(value) == 0) return SPEC_OK;
    *out = speci_strdup(&t->allocator, json_string_value(value));
    return *out ? SPEC_OK : SPEC_E_NOMEM;
}

static spec_status copy_text(const spec_tokenizer *t, const char *s, size_t n, char **out)
{
    *out = speci_alloc(&t->allocator, n + 1, 1);
    if (!*out) return SPEC_E_NOMEM;
    memcpy(*out, s, n);
    return SPEC_OK;
}

/* {"String": "..."} or {"Regex": "..."}, as Split and Replace have it. */
static spec_status read_pattern(const spec_tokenizer *t, const json_t *json, speci_regex **out)
{
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *literal = json_object_get(pattern, "String"), *regex = json_object_get(pattern, "Regex");
    const json_t *value = literal ? literal : regex;
    if (!json_is_string(value)) return bad(t->path, "pattern", "{\"String\": ...} or {\"Regex\": ...}");
    return speci_regex_open(out, json_string_value(value), json_string_length(value), literal != NULL, t->path,
                            &t->allocator);
}

static spec_status read_component(spec_tokenizer *t, const json_t *json, const char *section, const component *table,
                                  int depth)
{
    if (depth > NESTING_MAX)
        return speci_fail(SPEC_E_FORMAT, "%s: %s: Sequences nested deeper than %d", t->path, section, NESTING_MAX);
    const char *type = json_string_value(json_object_get(json, "type"));
    if (!type) return bad(t->path, section, "an object with a \"type\"");
    for (; table->type; table++)
        if (strcmp(type, table->type) == 0) return table->read(t, json, depth);
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: the %s '%.64s' is not supported", t->path, section, type);
}

static spec_status read_sequence(spec_tokenizer *t, const json_t *json, const char *key, read_fn each, int depth)
{
    const json_t *list = json_object_get(json, key);
    if (!json_is_array(list)) return bad(t->path, key, "an array");
    for (size_t i = 0; i < json_array_size(list); i++) SPEC_TRY(each(t, json_array_get(list, i), depth + 1));
    return SPEC_OK;
}

/* --------------------------------------------------------------------------------- normalizers --- */

static spec_status read_normalizer(spec_tokenizer *t, const json_t *json, int depth);

static spec_status put_norm(spec_tokenizer *t, const speci_norm *norm)
{
    return speci_buf_add(&t->norms, norm, sizeof *norm);
}

static spec_status norm_plain(spec_tokenizer *t, speci_norm_kind kind)
{
    speci_norm norm = { .kind = kind };
    return put_norm(t, &norm);
}

static spec_status norm_nfc(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return norm_plain(t, SPECI_NORM_NFC);
}
static spec_status norm_nfd(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return norm_plain(t, SPECI_NORM_NFD);
}
static spec_status norm_nfkc(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return norm_plain(t, SPECI_NORM_NFKC);
}
static spec_status norm_nfkd(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return norm_plain(t, SPECI_NORM_NFKD);
}
static spec_status norm_lowercase(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return norm_plain(t, SPECI_NORM_LOWERCASE);
}
static spec_status norm_strip_accents(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return norm_plain(t, SPECI_NORM_STRIP_ACCENTS);
}
static spec_status norm_nmt(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return norm_plain(t, SPECI_NORM_NMT);
}
static spec_status norm_byte_level(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return norm_plain(t, SPECI_NORM_BYTE_LEVEL);
}

static spec_status norm_strip(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_norm norm = { .kind = SPECI_NORM_STRIP };
    SPEC_TRY(read_bool(t->path, json, "strip_left", true, &norm.left));
    SPEC_TRY(read_bool(t->path, json, "strip_right", true, &norm.right));
    return put_norm(t, &norm);
}

/* Adds a step first and fills it in place, so that what it owns is freed with the tokenizer whatever happens. */
static spec_status new_norm(spec_tokenizer *t, speci_norm_kind kind, speci_norm **out)
{
    SPEC_TRY(norm_plain(t, kind));
    *out = (speci_norm *)(void *)(t->norms.data + t->norms.n) - 1;
    return SPEC_OK;
}

static spec_status norm_replace(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_norm *norm;
    const char *text;
    SPEC_TRY(new_norm(t, SPECI_NORM_REPLACE, &norm));
    SPEC_TRY(read_pattern(t, json, &norm->re));
    SPEC_TRY(read_text(t->path, json, "content", &text, &norm->n_text));
    return copy_text(t, text, norm->n_text, &norm->text);
}

static spec_status norm_prepend(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_norm *norm;
    const char *text;
    SPEC_TRY(new_norm(t, SPECI_NORM_PREPEND, &norm));
    SPEC_TRY(read_text(t->path, json, "prepend", &text, &norm->n_text));
    return copy_text(t, text, norm->n_text, &norm->text);
}

static spec_status norm_sequence(spec_tokenizer *t, const json_t *json, int depth)
{
    return read_sequence(t, json, "normalizers", read_normalizer, depth);
}

static const component normalizers[] = {
    { "NFC", norm_nfc },
    { "NFD", norm_nfd },
    { "NFKC", norm_nfkc },
    { "NFKD", norm_nfkd },
    { "Lowercase", norm_lowercase },
    { "StripAccents", norm_strip_accents },
    { "Nmt", norm_nmt },
    { "ByteLevel", norm_byte_level },
    { "Strip", norm_strip },
    { "Replace", norm_replace },
    { "Prepend", norm_prepend },
    { "Sequence", norm_sequence },
    { NULL, NULL },
};

static spec_status read_normalizer(spec_tokenizer *t, const json_t *json, int depth)
{
    return read_component(t, json, "normalizer", normalizers, depth);
}

/* ------------------------------------------------------------------------------ pre-tokenizers --- */

static spec_status read_pre_tokenizer(spec_tokenizer *t, const json_t *json, int depth);

/* As new_norm. */
static spec_status new_pre(spec_tokenizer *t, speci_pre_kind kind, speci_pre **out)
{
    speci_pre pre = { .kind = kind };
    SPEC_TRY(speci_buf_add(&t->pres, &pre, sizeof pre));
    *out = (speci_pre *)(void *)(t->pres.data + t->pres.n) - 1;
    return SPEC_OK;
}

static spec_status put_split(spec_tokenizer *t, const char *pattern, bool literal, speci_split_behavior behavior,
                             bool invert)
{
    speci_pre *pre;
    SPEC_TRY(new_pre(t, SPECI_PRE_SPLIT, &pre));
    pre->behavior = behavior;
    pre->invert = invert;
    return speci_regex_open(&pre->re, pattern, strlen(pattern), literal, t->path, &t->allocator);
}

static spec_status read_behavior(const spec_tokenizer *t, const json_t *json, speci_split_behavior missing,
                                 speci_split_behavior *out)
{
    static const char *const names[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                         "Contiguous" }; /* in the order of the enum */
    const json_t *value = json_object_get(json, "behavior");
    const char *name = json_string_value(value);
    *out = missing;
    if (!value) return SPEC_OK;
    for (int i = 0; name && i < (int)(sizeof names / sizeof *names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (speci_split_behavior)i;
        return SPEC_OK;
    }
    return bad(t->path, "behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static spec_status pre_split(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_pre *pre;
    SPEC_TRY(new_pre(t, SPECI_PRE_SPLIT, &pre));
    SPEC_TRY(read_behavior(t, json, SPECI_SPLIT_ISOLATED, &pre->behavior));
    SPEC_TRY(read_bool(t->path, json, "invert", false, &pre->invert));
    return read_pattern(t, json, &pre->re);
}

static spec_status pre_byte_level(spec_tokenizer *t, const json_t *json, int depth)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    (void)depth;
    bool prefix_space, use_regex;
    speci_pre *pre;
    SPEC_TRY(read_bool(t->path, json, "add_prefix_space", true, &prefix_space));
    SPEC_TRY(read_bool(t->path, json, "use_regex", true, &use_regex));
    if (t->said.prefix_space >= 0) prefix_space = t->said.prefix_space;
    if (prefix_space) SPEC_TRY(new_pre(t, SPECI_PRE_PREFIX_SPACE, &pre));
    if (use_regex) SPEC_TRY(put_split(t, gpt2, false, SPECI_SPLIT_ISOLATED, false));
    return new_pre(t, SPECI_PRE_BYTE_LEVEL, &pre); /* trim_offsets is about offsets, which nobody asks for here */
}

/* One character, as UTF-8 in out [4]. */
static spec_status read_char(const spec_tokenizer *t, const json_t *json, const char *key, char out[4], size_t *n)
{
    const char *text;
    SPEC_TRY(read_text(t->path, json, key, &text, n));
    if (*n == 0 || speci_utf8_length(text, *n) != *n) return bad(t->path, key, "one character");
    memcpy(out, text, *n);
    return SPEC_OK;
}

/* Where Metaspace puts its mark. Older files have add_prefix_space alone; a file that has both must agree. */
static spec_status read_prepend(const spec_tokenizer *t, const json_t *json, speci_prepend *out)
{
    static const char *const names[] = { "never", "first", "always" }; /* in the order of the enum */
    const char *name = json_string_value(json_object_get(json, "prepend_scheme"));
    bool prefix_space;
    SPEC_TRY(read_bool(t->path, json, "add_prefix_space", true, &prefix_space));
    *out = prefix_space ? SPECI_PREPEND_ALWAYS : SPECI_PREPEND_NEVER;
    if (!json_object_get(json, "prepend_scheme")) return SPEC_OK;
    for (int i = 0; name && i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (speci_prepend)i;
        if (!prefix_space && i != 0) return bad(t->path, "add_prefix_space", "true beside this prepend_scheme");
        return SPEC_OK;
    }
    return bad(t->path, "prepend_scheme", "never, first or always");
}

static spec_status pre_metaspace(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_pre *pre;
    bool split;
    char mark[5] = "";
    SPEC_TRY(new_pre(t, SPECI_PRE_MARK, &pre));
    SPEC_TRY(read_char(t, json, "replacement", pre->text, &pre->n_text));
    SPEC_TRY(read_prepend(t, json, &pre->prepend));
    SPEC_TRY(read_bool(t->path, json, "split", true, &split));
    memcpy(mark, pre->text, pre->n_text);
    return split ? put_split(t, mark, true, SPECI_SPLIT_MERGED_WITH_NEXT, false) : SPEC_OK;
}

static spec_status pre_digits(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    bool individual;
    SPEC_TRY(read_bool(t->path, json, "individual_digits", false, &individual));
    return put_split(t, "\\p{N}", false, individual ? SPECI_SPLIT_ISOLATED : SPECI_SPLIT_CONTIGUOUS, false);
}

static spec_status pre_punctuation(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_split_behavior behavior; /* ASCII's punctuation includes nine symbols */
    SPEC_TRY(read_behavior(t, json, SPECI_SPLIT_ISOLATED, &behavior));
    return put_split(t, "[\\p{P}$+<=>^`|~]", false, behavior, false);
}

static spec_status pre_whitespace(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200c}\\x{200d}"
    return put_split(t, "[" WORD "]+|[^" WORD "\\s]+", false, SPECI_SPLIT_REMOVED, true);
#undef WORD
}

static spec_status pre_whitespace_split(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    return put_split(t, "\\s", false, SPECI_SPLIT_REMOVED, false);
}

static spec_status pre_delimiter(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    char delimiter[5] = "";
    size_t n;
    SPEC_TRY(read_char(t, json, "delimiter", delimiter, &n));
    return put_split(t, delimiter, true, SPECI_SPLIT_REMOVED, false);
}

static spec_status pre_fixed(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_pre *pre;
    json_int_t length;
    SPEC_TRY(read_int(t->path, json, "length", 1, INT32_MAX, &length));
    SPEC_TRY(new_pre(t, SPECI_PRE_FIXED, &pre));
    pre->length = (size_t)length;
    return SPEC_OK;
}

static spec_status pre_sequence(spec_tokenizer *t, const json_t *json, int depth)
{
    return read_sequence(t, json, "pretokenizers", read_pre_tokenizer, depth);
}

static const component pre_tokenizers[] = {
    { "ByteLevel", pre_byte_level },
    { "Split", pre_split },
    { "Metaspace", pre_metaspace },
    { "Digits", pre_digits },
    { "Punctuation", pre_punctuation },
    { "Whitespace", pre_whitespace },
    { "WhitespaceSplit", pre_whitespace_split },
    { "CharDelimiterSplit", pre_delimiter },
    { "FixedLength", pre_fixed },
    { "Sequence", pre_sequence },
    { NULL, NULL },
};

static spec_status read_pre_tokenizer(spec_tokenizer *t, const json_t *json, int depth)
{
    return read_component(t, json, "pre_tokenizer", pre_tokenizers, depth);
}

/* ------------------------------------------------------------------------------------ BPE model --- */

static spec_status put_piece(spec_tokenizer *t, const char *key, const json_t *id, speci_buf *work)
{
    const char *piece;
    size_t n;
    SPEC_TRY(speci_json_key(key, &piece, &n, work));
    if (!json_is_integer(id))
        return speci_fail(SPEC_E_FORMAT, "%s: the id of token '%.64s' is not an integer", t->path, key);
    if (json_integer_value(id) < 0 || json_integer_value(id) >= SPECI_TOK_ID_LIMIT)
        return speci_fail(SPEC_E_FORMAT, "%s: token '%.64s' has the id %lld, expected 0 to %d", t->path, key,
                          (long long)json_integer_value(id), SPECI_TOK_ID_LIMIT - 1);
    return speci_vocab_add(&t->vocab, piece, n, (int32_t)json_integer_value(id));
}

static spec_status read_vocab(spec_tokenizer *t, const json_t *model)
{
    json_t *vocab = json_object_get(model, "vocab"), *value;
    speci_buf work = { .a = &t->allocator };
    spec_status status = SPEC_OK;
    const char *key;
    if (!json_is_object(vocab)) return bad(t->path, "vocab", "an object");
    json_object_foreach(vocab, key, value)
        if (status == SPEC_OK) status = put_piece(t, key, value, &work);
    speci_buf_free(&work);
    return status;
}

/* The two halves of a merge: "a b" or ["a", "b"]. */
static bool merge_halves(const json_t *merge, const char *half[2], size_t n[2])
{
    if (json_is_string(merge)) {
        const char *s = json_string_value(merge), *end = s + json_string_length(merge);
        const char *space = memchr(s, ' ', (size_t)(end - s));
        if (!space || memchr(space + 1, ' ', (size_t)(end - space - 1))) return false;
        half[0] = s;
        n[0] = (size_t)(space - s);
        half[1] = space + 1;
        n[1] = (size_t)(end - half[1]);
        return true;
    }
    if (json_array_size(merge) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_array_get(merge, i);
        if (!json_is_string(value)) return false;
        half[i] = json_string_value(value);
        n[i] = json_string_length(value);
    }
    return true;
}

static spec_status unknown_token(const spec_tokenizer *t, size_t rank, const char *s, size_t n)
{
    return speci_fail(SPEC_E_FORMAT, "%s: merge %zu needs the token '%.*s', which the vocabulary lacks", t->path, rank,
                      n > 64 ? 64 : (int)n, s);
}

/* Merge number `rank`: the ids of both halves and of what they become; the right half loses the prefix that marks it
 * as a continuation. */
static spec_status put_merge(spec_tokenizer *t, const json_t *merge, size_t rank, speci_buf *joined)
{
    const char *half[2];
    size_t n[2];
    int32_t id[2];
    if (!merge_halves(merge, half, n))
        return speci_fail(SPEC_E_FORMAT, "%s: merge %zu is neither \"a b\" nor [\"a\", \"b\"]", t->path, rank);
    for (int i = 0; i < 2; i++) {
        id[i] = speci_vocab_find(&t->vocab, half[i], n[i]);
        if (id[i] < 0) return unknown_token(t, rank, half[i], n[i]);
    }
    size_t skip = t->bpe.prefix ? strlen(t->bpe.prefix) : 0;
    if (skip > n[1]) skip = n[1];
    joined->n = 0;
    SPEC_TRY(speci_buf_add(joined, half[0], n[0]));
    SPEC_TRY(speci_buf_add(joined, half[1] + skip, n[1] - skip));
    speci_pair pair = { (uint32_t)id[0], (uint32_t)id[1], (uint32_t)rank, -1 };
    pair.id = speci_vocab_find(&t->vocab, joined->data, joined->n);
    if (pair.id < 0) return unknown_token(t, rank, joined->data, joined->n);
    speci_bpe_put_join(&t->bpe, half[0], n[0], half[1], n[1]);
    return speci_pairs_put(&t->bpe.merges, pair); /* of equal merges the last counts, as in the reference */
}

static spec_status read_merges(spec_tokenizer *t, const json_t *model)
{
    const json_t *merges = json_object_get(model, "merges");
    speci_buf joined = { .a = &t->allocator };
    spec_status status = SPEC_OK;
    if (!json_is_array(merges)) return bad(t->path, "merges", "an array");
    size_t rank = 0;
    for (size_t i = 0; status == SPEC_OK && i < json_array_size(merges); i++) {
        const json_t *merge = json_array_get(merges, i);
        const char *line = json_string_value(merge);
        if (line && strncmp(line, "#version", 8) == 0) continue; /* the first line of a merges.txt */
        status = put_merge(t, merge, rank++, &joined);
    }
    speci_buf_free(&joined);
    return status;
}

static spec_status read_unk(spec_tokenizer *t, const json_t *model)
{
    const json_t *value = json_object_get(model, "unk_token");
    if (!value || json_is_null(value)) return SPEC_OK;
    if (!json_is_string(value)) return bad(t->path, "unk_token", "a string or null");
    t->bpe.unk = speci_vocab_find(&t->vocab, json_string_value(value), json_string_length(value));
    if (t->bpe.unk >= 0) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: the unk_token '%.64s' is not in the vocabulary", t->path,
                      json_string_value(value));
}

static spec_status read_model(spec_tokenizer *t, const json_t *model)
{
    const json_t *type = json_object_get(model, "type");
    double dropout = 0;
    if (!json_is_object(model)) return bad(t->path, "model", "an object");
    /* Old files have no type; then it is the merges that make it BPE. */
    if (type && (!json_is_string(type) || strcmp(json_string_value(type), "BPE") != 0))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: the model '%.64s' is not supported, only BPE is", t->path,
                          json_is_string(type) ? json_string_value(type) : "?");
    if (speci_json_number(json_object_get(model, "dropout"), &dropout) && !(dropout == 0))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: dropout is %g: encoding at random is not supported", t->path,
                          dropout);
    SPEC_TRY(read_bool(t->path, model, "fuse_unk", false, &t->bpe.fuse_unk));
    SPEC_TRY(read_bool(t->path, model, "byte_fallback", false, &t->bpe.byte_fallback));
    SPEC_TRY(read_bool(t->path, model, "ignore_merges", false, &t->bpe.ignore_merges));
    SPEC_TRY(read_optional(t, model, "continuing_subword_prefix", &t->bpe.prefix));
    SPEC_TRY(read_optional(t, model, "end_of_word_suffix", &t->bpe.suffix));
    SPEC_TRY(read_vocab(t, model));
    SPEC_TRY(read_unk(t, model));
    speci_bpe_find_bytes(&t->bpe, &t->vocab);
    return read_merges(t, model);
}

/* -------------------------------------------------------------------------------- added tokens --- */

spec_status speci_text_read_added(const char *file, const json_t *json, speci_added *out, const char **content, size_t *n)
{
    *out = (speci_added){ .id = -1 };
    SPEC_TRY(read_text(file, json, "content", content, n));
    SPEC_TRY(read_bool(file, json, "single_word", false, &out->single_word));
    SPEC_TRY(read_bool(file, json, "lstrip", false, &out->lstrip));
    SPEC_TRY(read_bool(file, json, "rstrip", false, &out->rstrip));
    SPEC_TRY(read_bool(file, json, "special", false, &out->special));
    return read_bool(file, json, "normalized", !out->special, &out->normalized);
}

static spec_status put_added(spec_tokenizer *t, const json_t *json, size_t index)
{
    speci_added token;
    const char *content;
    size_t n, n_other;
    json_int_t id;
    SPEC_TRY(speci_text_read_added(t->path, json, &token, &content, &n));
    SPEC_TRY(read_int(t->path, json, "id", 0, SPECI_TOK_ID_LIMIT - 1, &id));
    if (n == 0) return SPEC_OK;                         /* the reference leaves them out too */
    token.id = speci_vocab_find(&t->vocab, content, n); /* what the model knows already keeps its id */
    if (token.id < 0) {
        token.id = (int32_t)id;
        if (speci_tokenizer_string(t, token.id, &n_other))
            return speci_fail(SPEC_E_FORMAT, "%s: added token %zu '%.64s' has the id %d, which another token has",
                              t->path, index, content, token.id);
    }
    return speci_added_put(&t->added, content, n, &token);
}

static spec_status read_added(spec_tokenizer *t, const json_t *root)
{
    const json_t *list = json_object_get(root, "added_tokens");
    if (list && !json_is_null(list) && !json_is_array(list)) return bad(t->path, "added_tokens", "an array");
    for (size_t i = 0; i < json_array_size(list); i++) SPEC_TRY(put_added(t, json_array_get(list, i), i));
    return SPEC_OK;
}

/* ------------------------------------------------------------------------------ post-processor --- */

static spec_status read_post_processor(spec_tokenizer *t, const json_t *json, int depth);

static spec_status put_id(spec_tokenizer *t, speci_buf *list, const json_t *value, const char *token)
{
    json_int_t id = json_integer_value(value);
    if (!json_is_integer(value) || id < 0 || id >= SPECI_TOK_ID_LIMIT)
        return speci_fail(SPEC_E_FORMAT, "%s: post_processor: the id of '%.64s' is missing or wrong", t->path, token);
    int32_t id32 = (int32_t)id;
    return speci_buf_add(list, &id32, sizeof id32);
}

/* A processor's ids go round those of the processors before it. */
static spec_status wrap(spec_tokenizer *t, speci_buf *before, const speci_buf *after)
{
    SPEC_TRY(speci_buf_add(before, t->before.data, t->before.n));
    t->before.n = 0;
    SPEC_TRY(speci_buf_add(&t->before, before->data, before->n));
    return speci_buf_add(&t->after, after->data, after->n);
}

/* "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}], with the ids in "special_tokens". */
static spec_status read_template(spec_tokenizer *t, const json_t *json, speci_buf *before, speci_buf *after)
{
    const json_t *single = json_object_get(json, "single"), *tokens = json_object_get(json, "special_tokens");
    bool seen = false;
    if (!json_is_array(single)) return bad(t->path, "single", "an array");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const char *token = json_string_value(json_object_get(json_object_get(piece, "SpecialToken"), "id"));
        const char *part = json_string_value(json_object_get(json_object_get(piece, "Sequence"), "id"));
        if (part && strcmp(part, "A") == 0 && !seen) {
            seen = true;
            continue;
        }
        if (!token) return bad(t->path, "single", "SpecialToken and one Sequence A");
        const json_t *ids = json_object_get(json_object_get(tokens, token), "ids");
        if (!json_is_array(ids)) return bad(t->path, "special_tokens", "the ids of every token of the template");
        for (size_t k = 0; k < json_array_size(ids); k++)
            SPEC_TRY(put_id(t, seen ? after : before, json_array_get(ids, k), token));
    }
    return seen ? wrap(t, before, after) : bad(t->path, "single", "a Sequence A");
}

static spec_status post_template(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_buf before = { .a = &t->allocator }, after = { .a = &t->allocator };
    spec_status status = read_template(t, json, &before, &after);
    speci_buf_free(&before);
    speci_buf_free(&after);
    return status;
}

/* BertProcessing and RobertaProcessing: "cls": ["<s>", 0], "sep": ["</s>", 2]. */
static spec_status post_cls_sep(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_buf before = { .a = &t->allocator }, after = { .a = &t->allocator };
    spec_status status = put_id(t, &before, json_array_get(json_object_get(json, "cls"), 1), "cls");
    if (status == SPEC_OK) status = put_id(t, &after, json_array_get(json_object_get(json, "sep"), 1), "sep");
    if (status == SPEC_OK) status = wrap(t, &before, &after);
    speci_buf_free(&before);
    speci_buf_free(&after);
    return status;
}

static spec_status post_byte_level(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)t, (void)json, (void)depth; /* it only moves offsets */
    return SPEC_OK;
}

static spec_status post_sequence(spec_tokenizer *t, const json_t *json, int depth)
{
    return read_sequence(t, json, "processors", read_post_processor, depth);
}

static const component post_processors[] = {
    { "TemplateProcessing", post_template }, { "ByteLevel", post_byte_level }, { "BertProcessing", post_cls_sep },
    { "RobertaProcessing", post_cls_sep },   { "Sequence", post_sequence },    { NULL, NULL },
};

static spec_status read_post_processor(spec_tokenizer *t, const json_t *json, int depth)
{
    return read_component(t, json, "post_processor", post_processors, depth);
}

/* ------------------------------------------------------------------------------------ decoders --- */

/* What the decoders so far make of the tokens. The order matters: only tokens one by one can be prepared at open, and
 * on running text only what a stream can do is possible. */
enum {
    DECODE_TOKENS, /* text, one by one */
    DECODE_BYTES,  /* after ByteFallback: characters may be spread over tokens */
    DECODE_TEXT    /* after ByteLevel or Fuse: one text */
};

static spec_status read_decoder(spec_tokenizer *t, const json_t *json, int depth);

/* As new_norm. */
static spec_status new_dec(spec_tokenizer *t, speci_dec_kind kind, const char *name, speci_dec **out)
{
    if (t->decoder.phase != DECODE_TOKENS)
        return speci_fail(SPEC_E_UNSUPPORTED,
                          "%s: the decoder '%s' after ByteLevel, ByteFallback or Fuse is not "
                          "supported",
                          t->path, name);
    speci_dec step = { .kind = kind };
    SPEC_TRY(speci_buf_add(&t->decoder.steps, &step, sizeof step));
    *out = (speci_dec *)(void *)(t->decoder.steps.data + t->decoder.steps.n) - 1;
    return SPEC_OK;
}

static spec_status dec_byte_level(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    speci_dec *step;
    SPEC_TRY(new_dec(t, SPECI_DEC_BYTE_LEVEL, "ByteLevel", &step));
    t->decoder.phase = DECODE_TEXT;
    return SPEC_OK;
}

static spec_status dec_byte_fallback(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    speci_dec *step;
    SPEC_TRY(new_dec(t, SPECI_DEC_BYTE_FALLBACK, "ByteFallback", &step));
    t->decoder.each_byte = true;
    t->decoder.phase = DECODE_BYTES;
    return SPEC_OK;
}

static spec_status dec_fuse(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)json, (void)depth;
    t->decoder.phase = DECODE_TEXT;
    return SPEC_OK;
}

static spec_status dec_replace(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_dec *step;
    const char *text;
    SPEC_TRY(new_dec(t, SPECI_DEC_REPLACE, "Replace", &step));
    SPEC_TRY(read_pattern(t, json, &step->re));
    SPEC_TRY(read_text(t->path, json, "content", &text, &step->n_text));
    return copy_text(t, text, step->n_text, &step->text);
}

static spec_status dec_metaspace(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_dec *step;
    speci_prepend prepend;
    char mark[4];
    SPEC_TRY(new_dec(t, SPECI_DEC_METASPACE, "Metaspace", &step));
    SPEC_TRY(read_char(t, json, "replacement", mark, &step->n_text));
    SPEC_TRY(read_prepend(t, json, &prepend));
    step->drop_first = prepend != SPECI_PREPEND_NEVER;
    return copy_text(t, mark, step->n_text, &step->text);
}

/* On running text only the beginning can be stripped: a stream does not know its end. */
static spec_status dec_strip_text(spec_tokenizer *t, const char *mark, size_t n, json_int_t start, json_int_t stop)
{
    speci_decoder *d = &t->decoder;
    if (stop > 0 || start > 254 || d->strip)
        return speci_fail(SPEC_E_UNSUPPORTED,
                          "%s: the decoder 'Strip' after Fuse with start %lld and stop %lld is not "
                          "supported, or it is there twice",
                          t->path, (long long)start, (long long)stop);
    d->strip = (uint8_t)start;
    d->n_strip_char = n;
    memcpy(d->strip_char, mark, n);
    return SPEC_OK;
}

static spec_status dec_strip(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_dec *step;
    json_int_t start, stop;
    char mark[4];
    size_t n;
    SPEC_TRY(read_char(t, json, "content", mark, &n));
    SPEC_TRY(read_int(t->path, json, "start", 0, INT32_MAX, &start));
    SPEC_TRY(read_int(t->path, json, "stop", 0, INT32_MAX, &stop));
    if (t->decoder.phase == DECODE_TEXT) return dec_strip_text(t, mark, n, start, stop);
    SPEC_TRY(new_dec(t, SPECI_DEC_STRIP, "Strip", &step));
    step->start = (size_t)start;
    step->stop = (size_t)stop;
    step->n_text = n;
    return copy_text(t, mark, n, &step->text);
}

static spec_status dec_sequence(spec_tokenizer *t, const json_t *json, int depth)
{
    return read_sequence(t, json, "decoders", read_decoder, depth);
}

static const component decoders[] = {
    { "ByteLevel", dec_byte_level },
    { "ByteFallback", dec_byte_fallback },
    { "Fuse", dec_fuse },
    { "Replace", dec_replace },
    { "Metaspace", dec_metaspace },
    { "Strip", dec_strip },
    { "Sequence", dec_sequence },
    { NULL, NULL },
};

static spec_status read_decoder(spec_tokenizer *t, const json_t *json, int depth)
{
    return read_component(t, json, "decoder", decoders, depth);
}

/* ------------------------------------------------------------------------------------- the file --- */

/* A section that may be missing or null. */
static spec_status read_section(spec_tokenizer *t, const json_t *root, const char *section, read_fn read)
{
    const json_t *json = json_object_get(root, section);
    return json && !json_is_null(json) ? read(t, json, 0) : SPEC_OK;
}

spec_status speci_tokenizer_read_root(spec_tokenizer *t, const json_t *root)
{
    SPEC_TRY(read_model(t, json_object_get(root, "model")));
    SPEC_TRY(read_section(t, root, "normalizer", read_normalizer));
    SPEC_TRY(read_section(t, root, "pre_tokenizer", read_pre_tokenizer));
    SPEC_TRY(read_added(t, root));
    SPEC_TRY(read_section(t, root, "post_processor", read_post_processor));
    const json_t *decoder = json_object_get(root, "decoder");
    t->decoder.join_space = !decoder || json_is_null(decoder);
    return read_section(t, root, "decoder", read_decoder);
}

spec_status speci_tokenizer_read_json(spec_tokenizer *t, const char *path)
{
    json_t *root;
    SPEC_TRY(speci_json_read(&root, path, SPECI_TOK_FILE_MAX, &t->allocator));
    spec_status status = speci_tokenizer_read_root(t, root);
    json_decref(root);
    return status;
}
