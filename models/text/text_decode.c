/* text_decode.c - ids to text, as a stream. Decoding a whole sequence is the stream over all of it.
 *
 * The decoders of tokenizer.json that look at one token at a time are applied when the tokenizer is opened: the result
 * is a table of pieces. What is left depends on the neighbours: characters whose bytes are spread over tokens, and a
 * space at the very beginning that some tokenizers put there themselves.
 *
 * Bytes that are not UTF-8 become U+FFFD: one for each maximal beginning of a character (ByteLevel), or one for each
 * byte (byte fallback). With byte fallback the reference replaces the well-formed characters of such a run too, which
 * a stream cannot know in time; SentencePiece does as here. */
#include <string.h>

#include "models/text/text_tokenizer.h"

/* --------------------------------------------------------------------------- making the pieces --- */

static spec_status replace_in_token(const speci_dec *step, const speci_buf *in, speci_buf *out)
{
    speci_match *m;
    SPEC_TRY(speci_match_open(&m, step->re));
    size_t done = 0, start, end;
    bool found = false;
    speci_match_start(m, in->data, in->n);
    spec_status status;
    while ((status = speci_match_next(m, &found, &start, &end)) == SPEC_OK && found) {
        if ((status = speci_buf_add(out, in->data + done, start - done)) != SPEC_OK) break;
        if ((status = speci_buf_add(out, step->text, step->n_text)) != SPEC_OK) break;
        done = end;
    }
    speci_match_close(m);
    return status == SPEC_OK ? speci_buf_add(out, in->data + done, in->n - done) : status;
}

/* At most `start` characters step->text from the left, then at most `stop` from the right. */
static spec_status strip_token(const speci_dec *step, const speci_buf *in, speci_buf *out)
{
    size_t begin = 0, end = in->n, n = step->n_text;
    for (size_t k = 0; k < step->start && end - begin >= n && memcmp(in->data + begin, step->text, n) == 0; k++)
        begin += n;
    for (size_t k = 0; k < step->stop && end - begin >= n && memcmp(in->data + end - n, step->text, n) == 0; k++)
        end -= n;
    return speci_buf_add(out, in->data + begin, end - begin);
}

static spec_status replace_marks(const speci_dec *step, bool first, const speci_buf *in, speci_buf *out)
{
    for (size_t i = 0; i < in->n;) {
        bool mark = in->n - i >= step->n_text && memcmp(in->data + i, step->text, step->n_text) == 0;
        if (!mark)
            SPEC_TRY(speci_buf_add(out, in->data + i, 1));
        else if (!(first && step->drop_first))
            SPEC_TRY(speci_buf_add(out, " ", 1));
        i += mark ? step->n_text : 1;
    }
    return SPEC_OK;
}

/* A token with a character outside GPT-2's alphabet (an added one) stands for itself. */
static spec_status bytes_of_token(const speci_buf *in, speci_buf *out)
{
    for (size_t i = 0, len; i < in->n; i += len) {
        int byte = speci_char_to_byte(speci_utf8_decode(in->data + i, &len));
        if (byte < 0) {
            out->n = 0;
            return speci_buf_add(out, in->data, in->n);
        }
        char c = (char)byte;
        SPEC_TRY(speci_buf_add(out, &c, 1));
    }
    return SPEC_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" is a byte; everything else stands for itself. */
static spec_status byte_of_token(const speci_buf *in, speci_buf *out)
{
    const char *s = in->data;
    bool form = in->n == 6 && memcmp(s, "<0x", 3) == 0 && s[5] == '>';
    int high = form ? hex_digit(s[3]) : -1, low = form ? hex_digit(s[4]) : -1;
    if (high < 0 || low < 0) return speci_buf_add(out, s, in->n);
    char c = (char)(high << 4 | low);
    return speci_buf_add(out, &c, 1);
}

static spec_status apply(const speci_dec *step, bool first, const speci_buf *in, speci_buf *out)
{
    out->n = 0;
    if (in->n == 0) return SPEC_OK;
    switch (step->kind) {
    case SPECI_DEC_REPLACE:
        return replace_in_token(step, in, out);
    case SPECI_DEC_STRIP:
        return strip_token(step, in, out);
    case SPECI_DEC_METASPACE:
        return replace_marks(step, first, in, out);
    case SPECI_DEC_BYTE_LEVEL:
        return bytes_of_token(in, out);
    case SPECI_DEC_BYTE_FALLBACK:
        return byte_of_token(in, out);
    }
    return SPEC_OK;
}

/* How many bytes text [n] may become: each that is not in a well-formed character may become U+FFFD. */
static size_t decoded_bound(const char *text, size_t n)
{
    size_t bound = 0;
    for (size_t i = 0; i < n;) {
        size_t len = speci_utf8_length(text + i, n - i);
        bound += len ? len : 3;
        i += len ? len : 1;
    }
    return bound;
}

/* `work` [2]: the steps read one and write the other. */
static spec_status add_piece(spec_tokenizer *t, int32_t id, bool first, speci_buf work[2], speci_buf *table)
{
    speci_decoder *d = &t->decoder;
    const speci_dec *step = (const speci_dec *)(const void *)d->steps.data;
    speci_piece piece = { 0, 0, false };
    size_t n;
    const char *s = speci_tokenizer_string(t, id, &n);
    if (s && id == d->unk) {
        s = d->unk_text;
        n = d->n_unk_text;
    }
    if (s) {
        size_t from = 0;
        work[0].n = 0;
        SPEC_TRY(speci_buf_add(&work[0], s, n));
        for (size_t i = 0; i < d->steps.n / sizeof *step; i++) {
            SPEC_TRY(apply(step + i, first, &work[from], &work[!from]));
            from = !from;
        }
        if (d->text.n + work[from].n > UINT32_MAX)
            return speci_fail(SPEC_E_FORMAT, "%s: the vocabulary is larger than 4 GiB", t->path);
        piece = (speci_piece){ (uint32_t)d->text.n, (uint32_t)work[from].n, true };
        SPEC_TRY(speci_buf_add(&d->text, work[from].data, work[from].n));
        size_t bound = decoded_bound(work[from].data, work[from].n);
        if (bound > d->piece_max) d->piece_max = bound;
    }
    return speci_buf_add(table, &piece, sizeof piece);
}

static spec_status build(spec_tokenizer *t, speci_buf work[2])
{
    speci_decoder *d = &t->decoder;
    const speci_dec *step = (const speci_dec *)(const void *)d->steps.data;
    bool first_differs = false;
    for (size_t i = 0; i < d->steps.n / sizeof *step; i++) first_differs = first_differs || step[i].drop_first;
    for (int32_t id = 0; id < t->n_vocab; id++) SPEC_TRY(add_piece(t, id, false, work, &d->pieces));
    for (int32_t id = 0; first_differs && id < t->n_vocab; id++) SPEC_TRY(add_piece(t, id, true, work, &d->first));
    return speci_buf_add(&d->text, "", 1); /* so that an empty piece has an address */
}

static void free_steps(speci_buf *steps)
{
    speci_dec *step = (speci_dec *)(void *)steps->data;
    for (size_t i = 0; i < steps->n / sizeof *step; i++) {
        speci_regex_close(step[i].re);
        speci_free(steps->a, step[i].text);
    }
    speci_buf_free(steps);
}

spec_status speci_decoder_build(spec_tokenizer *t)
{
    speci_buf work[2] = { { .a = &t->allocator }, { .a = &t->allocator } };
    spec_status status = build(t, work);
    speci_buf_free(&work[0]);
    speci_buf_free(&work[1]);
    free_steps(&t->decoder.steps);
    t->decoder.unk_text = NULL;
    return status;
}

void speci_decoder_free(speci_decoder *d)
{
    free_steps(&d->steps);
    speci_buf_free(&d->text);
    speci_buf_free(&d->pieces);
    speci_buf_free(&d->first);
}

/* ---------------------------------------------------------------------------------- the stream --- */

/* held[0..3] are the bytes of an incomplete character; the other bytes of `held` are used so: */
enum {
    HELD_STRIP = 5, /* how many characters may still be dropped at the beginning; 255 = any number */
    HELD_FLAGS = 6,
    FLAG_BEGUN = 1,
    FLAG_EACH_BYTE = 2
};

typedef struct sink {
    char *text;
    size_t cap, n; /* n counts on when the room is used up */
} sink;

static void sink_put(sink *s, const void *data, size_t n)
{
    if (n <= s->cap && s->n <= s->cap - n) memcpy(s->text + s->n, data, n);
    s->n += n;
}

/* One well-formed character; d is NULL at the end of a stream, where only U+FFFD is put. */
static void put_text(spec_text_stream *stream, const speci_decoder *d, const void *data, size_t n, sink *out)
{
    uint8_t *strip = &stream->held[HELD_STRIP];
    if (*strip && d && !d->strip_pieces && n == d->n_strip_char && memcmp(data, d->strip_char, n) == 0) {
        if (*strip != 255) --*strip;
        return;
    }
    *strip = 0;
    sink_put(out, data, n);
}

/* Gives up on the first n held bytes. */
static void put_broken(spec_text_stream *stream, const speci_decoder *d, int32_t n, sink *out)
{
    int32_t count = stream->held[HELD_FLAGS] & FLAG_EACH_BYTE ? n : 1;
    for (int32_t i = 0; i < count; i++) put_text(stream, d, "\xEF\xBF\xBD", 3, out);
}

static void put_byte(spec_text_stream *stream, const speci_decoder *d, uint8_t byte, sink *out)
{
    stream->held[stream->n_held++] = byte;
    int state = speci_utf8_state(stream->held, (size_t)stream->n_held);
    if (state < 0 && stream->n_held > 1) { /* what was held is broken; the new byte may begin something */
        put_broken(stream, d, stream->n_held - 1, out);
        stream->held[0] = byte;
        stream->n_held = 1;
        state = speci_utf8_state(stream->held, 1);
    }
    if (state == 0) return;
    int32_t n = stream->n_held;
    stream->n_held = 0;
    if (state < 0)
        put_broken(stream, d, n, out);
    else
        put_text(stream, d, stream->held, (size_t)n, out);
}

/* SentencePiece takes the dummy prefix off a piece, while there is no text yet: once, or (255) from each piece. A space
 * that is a byte piece, or of the unknown piece's surface, stays. Returns the bytes to leave out. */
static uint32_t strip_piece(spec_text_stream *stream, const spec_tokenizer *t, int32_t id, const char *s, uint32_t n)
{
    uint8_t *strip = &stream->held[HELD_STRIP];
    if (!t->decoder.strip_pieces || *strip == 0 || stream->n_held > 0 || n == 0 || s[0] != ' ') return 0;
    if (id == t->decoder.unk || id == t->bpe.byte_id[' ']) return 0;
    if (*strip != 255) *strip = 0;
    return 1;
}

static void push(spec_text_stream *stream, const spec_tokenizer *t, int32_t id, uint32_t flags, sink *out)
{
    const speci_decoder *d = &t->decoder;
    if (!(stream->held[HELD_FLAGS] & FLAG_BEGUN)) {
        /* A stream that goes on from a prompt is not at the beginning of the text: its first space is a space. */
        stream->held[HELD_STRIP] = stream->n_tokens > 0 ? 0 : d->strip;
        stream->held[HELD_FLAGS] = (uint8_t)(FLAG_BEGUN | (d->each_byte ? FLAG_EACH_BYTE : 0));
    }
    if (id >= t->n_vocab) return; /* rows of the head that no token belongs to: they say nothing */
    if ((flags & SPEC_TOKEN_SKIP_SPECIAL) && spec_tokenizer_is_special(t, id)) return;
    const speci_buf *table = stream->n_tokens == 0 && d->first.n ? &d->first : &d->pieces;
    const speci_piece *piece = (const speci_piece *)(const void *)table->data + id;
    if (!piece->used) return;
    if (d->join_space && stream->n_tokens > 0) put_byte(stream, d, ' ', out);
    if (stream->n_tokens < INT32_MAX) stream->n_tokens++;
    const char *s = d->text.data + piece->offset;
    for (uint32_t i = strip_piece(stream, t, id, s, piece->n); i < piece->n; i++)
        put_byte(stream, d, (uint8_t)s[i], out);
}

/* A stream is plain data that the caller may have filled; it must not lead outside its arrays. */
static spec_status check_stream(const spec_text_stream *stream)
{
    if (stream->n_held < 0 || stream->n_held > 3 || stream->n_tokens < 0)
        return speci_fail(SPEC_E_INVALID, "the text stream was not set to zero before its first use");
    return SPEC_OK;
}

static void finish(spec_text_stream *stream, sink *out)
{
    if (stream->n_held > 0) put_broken(stream, NULL, stream->n_held, out);
    *stream = (spec_text_stream){ { 0 }, 0, 0 };
}

static spec_status sink_status(const sink *out, size_t *n)
{
    *n = out->n;
    if (out->n <= out->cap) return SPEC_OK;
    return speci_fail(SPEC_E_FULL, "the text needs %zu bytes, there is room for %zu", out->n, out->cap);
}

spec_status spec_text_stream_push(spec_text_stream *stream, char *text, size_t cap, size_t *n, const spec_tokenizer *tokenizer,
                                  int32_t id, uint32_t flags)
{
    SPEC_NEED(stream, "stream");
    SPEC_NEED(tokenizer, "tokenizer");
    SPEC_NEED(text || cap == 0, "text");
    SPEC_NEED(n, "n");
    *n = 0;
    SPEC_TRY(check_stream(stream));
    if (id < 0) return speci_fail(SPEC_E_INVALID, "the token id is %d", id);
    sink out = { text, cap, 0 };
    spec_text_stream after = *stream; /* so that nothing has changed when the room does not suffice */
    push(&after, tokenizer, id, flags, &out);
    SPEC_TRY(sink_status(&out, n));
    *stream = after;
    return SPEC_OK;
}

spec_status spec_text_stream_end(spec_text_stream *stream, char *text, size_t cap, size_t *n)
{
    SPEC_NEED(stream, "stream");
    SPEC_NEED(text || cap == 0, "text");
    SPEC_NEED(n, "n");
    *n = 0;
    SPEC_TRY(check_stream(stream));
    sink out = { text, cap, 0 };
    spec_text_stream after = *stream;
    finish(&after, &out);
    SPEC_TRY(sink_status(&out, n));
    *stream = after;
    return SPEC_OK;
}

spec_status spec_tokenizer_decode(const spec_tokenizer *tokenizer, char *text, size_t cap, size_t *n,
                                  const int32_t *ids, size_t n_ids, uint32_t flags)
{
    SPEC_NEED(tokenizer, "tokenizer");
    SPEC_NEED(text || cap == 0, "text");
    SPEC_NEED(n, "n");
    SPEC_NEED(ids || n_ids == 0, "ids");
    spec_text_stream stream = { { 0 }, 0, 0 };
    sink out = { text, cap, 0 };
    *n = 0;
    for (size_t i = 0; i < n_ids; i++) {
        if (ids[i] < 0) return speci_fail(SPEC_E_INVALID, "token %zu of %zu has the id %d", i, n_ids, ids[i]);
        push(&stream, tokenizer, ids[i], flags, &out);
    }
    finish(&stream, &out);
    return sink_status(&out, n);
}

const char *spec_tokenizer_piece(const spec_tokenizer *tokenizer, size_t *n, int32_t id)
{
    if (!n) return NULL;
    *n = 0;
    if (!tokenizer) return NULL;
    const speci_decoder *d = &tokenizer->decoder;
    if (id < 0 || id >= tokenizer->n_vocab) return NULL;
    const speci_piece *piece = (const speci_piece *)(const void *)d->pieces.data + id;
    if (!piece->used) return NULL;
    *n = piece->n;
    return d->text.data + piece->offset;
}
