/* text_json_decode.c - reads the section "decoder" of tokenizer.json; what the steps do: text_decode.c. */
#include <string.h>

#include "models/text/text_json.h"

/* What the decoders so far make of the tokens. The order matters: only tokens one by one can be prepared at open, and
 * on running text only what a stream can do is possible. */
enum {
    DECODE_TOKENS, /* text, one by one */
    DECODE_BYTES,  /* after ByteFallback: characters may be spread over tokens */
    DECODE_TEXT    /* after ByteLevel or Fuse: one text */
};

/* Adds a step first and fills it in place, so that what it owns is freed with the tokenizer whatever happens. */
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
    SPEC_TRY(speci_text_read_pattern(t, json, &step->re));
    SPEC_TRY(speci_text_read_string(t->path, json, "content", &text, &step->n_text));
    return speci_text_copy_string(t, text, step->n_text, &step->text);
}

static spec_status dec_metaspace(spec_tokenizer *t, const json_t *json, int depth)
{
    (void)depth;
    speci_dec *step;
    speci_prepend prepend;
    char mark[4];
    SPEC_TRY(new_dec(t, SPECI_DEC_METASPACE, "Metaspace", &step));
    SPEC_TRY(speci_text_read_char(t, json, "replacement", mark, &step->n_text));
    SPEC_TRY(speci_text_read_prepend(t, json, &prepend));
    step->drop_first = prepend != SPECI_PREPEND_NEVER;
    return speci_text_copy_string(t, mark, step->n_text, &step->text);
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
    SPEC_TRY(speci_text_read_char(t, json, "content", mark, &n));
    SPEC_TRY(speci_text_read_int(t->path, json, "start", 0, INT32_MAX, &start));
    SPEC_TRY(speci_text_read_int(t->path, json, "stop", 0, INT32_MAX, &stop));
    if (t->decoder.phase == DECODE_TEXT) return dec_strip_text(t, mark, n, start, stop);
    SPEC_TRY(new_dec(t, SPECI_DEC_STRIP, "Strip", &step));
    step->start = (size_t)start;
    step->stop = (size_t)stop;
    step->n_text = n;
    return speci_text_copy_string(t, mark, n, &step->text);
}

static spec_status dec_sequence(spec_tokenizer *t, const json_t *json, int depth)
{
    return speci_text_read_sequence(t, json, "decoders", speci_text_read_decoder, depth);
}

static const speci_text_component decoders[] = {
    { "ByteLevel", dec_byte_level },
    { "ByteFallback", dec_byte_fallback },
    { "Fuse", dec_fuse },
    { "Replace", dec_replace },
    { "Metaspace", dec_metaspace },
    { "Strip", dec_strip },
    { "Sequence", dec_sequence },
    { NULL, NULL },
};

spec_status speci_text_read_decoder(spec_tokenizer *t, const json_t *json, int depth)
{
    return speci_text_read_component(t, json, "decoder", decoders, depth);
}
