/* text_json_pretokenize.c - reads the section "pre_tokenizer" of tokenizer.json; what the steps do: text_pretokenize.c. */
#include <string.h>

#include "models/text/text_json.h"

/* Adds a step first and fills it in place, so that what it owns is freed with the tokenizer whatever happens. */
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
    return speci_text_bad(t->path, "behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

static spec_status pre_split(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_pre *pre;
    SPEC_TRY(new_pre(t, SPECI_PRE_SPLIT, &pre));
    SPEC_TRY(read_behavior(t, json, SPECI_SPLIT_ISOLATED, &pre->behavior));
    SPEC_TRY(speci_text_read_bool(t->path, json, "invert", false, &pre->invert));
    return speci_text_read_pattern(t, json, &pre->re);
}

static spec_status pre_byte_level(spec_tokenizer *t, const json_t *json, int depth)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    (void)depth;
    bool prefix_space, use_regex;
    speci_pre *pre;
    SPEC_TRY(speci_text_read_bool(t->path, json, "add_prefix_space", true, &prefix_space));
    SPEC_TRY(speci_text_read_bool(t->path, json, "use_regex", true, &use_regex));
    if (t->said.prefix_space >= 0) prefix_space = t->said.prefix_space;
    if (prefix_space) SPEC_TRY(new_pre(t, SPECI_PRE_PREFIX_SPACE, &pre));
    if (use_regex) SPEC_TRY(put_split(t, gpt2, false, SPECI_SPLIT_ISOLATED, false));
    return new_pre(t, SPECI_PRE_BYTE_LEVEL, &pre); /* trim_offsets is about offsets, which nobody asks for here */
}

static spec_status pre_metaspace(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_pre *pre;
    bool split;
    char mark[5] = "";
    SPEC_TRY(new_pre(t, SPECI_PRE_MARK, &pre));
    SPEC_TRY(speci_text_read_char(t, json, "replacement", pre->text, &pre->n_text));
    SPEC_TRY(speci_text_read_prepend(t, json, &pre->prepend));
    SPEC_TRY(speci_text_read_bool(t->path, json, "split", true, &split));
    memcpy(mark, pre->text, pre->n_text);
    return split ? put_split(t, mark, true, SPECI_SPLIT_MERGED_WITH_NEXT, false) : SPEC_OK;
}

static spec_status pre_digits(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    bool individual;
    SPEC_TRY(speci_text_read_bool(t->path, json, "individual_digits", false, &individual));
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
    SPEC_TRY(speci_text_read_char(t, json, "delimiter", delimiter, &n));
    return put_split(t, delimiter, true, SPECI_SPLIT_REMOVED, false);
}

static spec_status pre_fixed(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_pre *pre;
    json_int_t length;
    SPEC_TRY(speci_text_read_int(t->path, json, "length", 1, INT32_MAX, &length));
    SPEC_TRY(new_pre(t, SPECI_PRE_FIXED, &pre));
    pre->length = (size_t)length;
    return SPEC_OK;
}

static spec_status pre_sequence(spec_tokenizer *t, const json_t *json, int depth)
{
    return speci_text_read_sequence(t, json, "pretokenizers", speci_text_read_pre_tokenizer, depth);
}

static const speci_text_component pre_tokenizers[] = {
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

spec_status speci_text_read_pre_tokenizer(spec_tokenizer *t, const json_t *json, int depth)
{
    return speci_text_read_component(t, json, "pre_tokenizer", pre_tokenizers, depth);
}
