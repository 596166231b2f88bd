/* text_json_normalize.c - reads the section "normalizer" of tokenizer.json; what the steps do: text_normalize.c. */
#include "models/text/text_json.h"

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

/* The reference does not load a file without both. */
static spec_status norm_strip(spec_tokenizer *t, const json_t *json, int depth)
{
    static const char *const keys[] = { "strip_left", "strip_right" };
    speci_norm norm = { .kind = SPECI_NORM_STRIP };
    bool *const sides[] = { &norm.left, &norm.right };
    (void)depth;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(json, keys[i]);
        if (!json_is_boolean(value)) return speci_text_bad(t->path, keys[i], "true or false");
        *sides[i] = json_is_true(value);
    }
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
    SPEC_TRY(speci_text_read_pattern(t, json, &norm->re));
    SPEC_TRY(speci_text_read_string(t->path, json, "content", &text, &norm->n_text));
    return speci_text_copy_string(t, text, norm->n_text, &norm->text);
}

static spec_status norm_prepend(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_norm *norm;
    const char *text;
    SPEC_TRY(new_norm(t, SPECI_NORM_PREPEND, &norm));
    SPEC_TRY(speci_text_read_string(t->path, json, "prepend", &text, &norm->n_text));
    return speci_text_copy_string(t, text, norm->n_text, &norm->text);
}

static spec_status norm_sequence(spec_tokenizer *t, const json_t *json, int depth)
{
    return speci_text_read_sequence(t, json, "normalizers", speci_text_read_normalizer, depth);
}

static const speci_text_component normalizers[] = {
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

spec_status speci_text_read_normalizer(spec_tokenizer *t, const json_t *json, int depth)
{
    return speci_text_read_component(t, json, "normalizer", normalizers, depth);
}
