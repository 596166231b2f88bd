/* engine_text.c - see engine_text.h. */
#include "algorithms/engine/engine_text.h"

#include <string.h>

static size_t token_bytes(const spec_tokenizer *t)
{
    spec_tokenizer_info info = SPEC_STRUCT_INIT(spec_tokenizer_info);
    (void)spec_tokenizer_get_info(t, &info);
    return info.piece_max + 32;
}

static bool all_special(const spec_tokenizer *t, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!spec_tokenizer_is_special(t, ids[i])) return false;
    return true;
}

/* Held-back text is shorter than the longest stop string. */
static size_t held_most(const speci_stops *stops)
{
    size_t n = 0;
    for (int32_t i = 0; i < stops->n; i++) n += strlen(stops->strings[i]);
    return n;
}

void speci_text_begin(engine_text *t, const spec_model *target, const int32_t *ids, size_t n)
{
    t->tokenizer = target->tokenizer;
    t->buf.a = target->allocator;
    if (t->tokenizer && !all_special(t->tokenizer, ids, n)) t->stream.n_tokens = (int32_t)n;
}

spec_status speci_text_room(engine_text *t, const engine_request *r, int32_t n_token)
{
    if (!t->tokenizer) return SPEC_OK;
    return speci_buf_reserve(&t->buf, held_most(&r->stops) + ((size_t)n_token + 1) * token_bytes(t->tokenizer));
}

spec_status speci_text_copy(engine_text *out, const engine_text *from)
{
    *out = *from;
    out->buf = (speci_buf){ .a = from->buf.a };
    if (!from->tokenizer) return SPEC_OK;
    SPEC_TRY(speci_buf_reserve(&out->buf, from->buf.cap));
    return speci_buf_add(&out->buf, from->buf.data, from->buf.n);
}

void speci_text_close(engine_text *t)
{
    speci_buf_free(&t->buf);
    *t = (engine_text){ 0 };
}

void speci_text_goes_on(engine_text *t, size_t n_ids)
{
    t->stream = (spec_text_stream){ .n_tokens = (int32_t)n_ids };
    t->buf.n = t->n_told = 0;
}

/* What a token completes. */
static spec_status push(engine_text *t, const engine_request *r, int32_t id)
{
    size_t n = 0;
    const size_t room = token_bytes(t->tokenizer);
    SPEC_TRY(speci_buf_reserve(&t->buf, room));
    SPEC_TRY(spec_text_stream_push(&t->stream, t->buf.data + t->buf.n, room, &n, t->tokenizer, id,
                                   r->p.keep_special ? 0 : SPEC_TOKEN_SKIP_SPECIAL));
    t->buf.n += n;
    return SPEC_OK;
}

/* What the stream held back; it, too, may complete a stop string. */
static spec_status push_rest(engine_text *t)
{
    size_t n = 0;
    const size_t room = token_bytes(t->tokenizer);
    SPEC_TRY(speci_buf_reserve(&t->buf, room));
    SPEC_TRY(spec_text_stream_end(&t->stream, t->buf.data + t->buf.n, room, &n));
    t->buf.n += n;
    return SPEC_OK;
}

/* Does a stop string end in what stands behind n_old? Then the text ends in front of it. */
static bool cut_at_stop(engine_text *t, const engine_request *r, size_t n_old)
{
    size_t at;
    if (!speci_stop_find(&r->stops, t->buf.data, t->buf.n, n_old, &at)) return false;
    t->buf.n = at;
    return true;
}

/* What was told is not needed any more. */
static void drop_told(engine_text *t)
{
    t->buf.n -= t->n_told;
    if (t->n_told > 0) memmove(t->buf.data, t->buf.data + t->n_told, t->buf.n);
    t->n_told = 0;
}

spec_status speci_text_cut(engine_text *t, const engine_request *r, const int32_t *tokens, int32_t n, int32_t *n_taken)
{
    *n_taken = n;
    drop_told(t);
    const spec_text_stream stream = t->stream;
    const size_t n_text = t->buf.n;
    spec_status status = SPEC_OK;
    for (int32_t i = 0; i < n && *n_taken == n && status == SPEC_OK; i++) {
        const size_t n_old = t->buf.n;
        status = push(t, r, tokens[i]);
        if (status == SPEC_OK && cut_at_stop(t, r, n_old)) *n_taken = i + 1;
    }
    t->stream = stream;
    t->buf.n = n_text;
    return status;
}

spec_status speci_text_add(engine_text *t, const engine_request *r, const int32_t *tokens, int32_t n, spec_stop *stop)
{
    drop_told(t);
    const bool end_token = *stop == SPEC_STOP_EOS || *stop == SPEC_STOP_STRING; /* which has no text */
    bool cut = false;
    for (int32_t i = 0; i < n - end_token && !cut; i++) {
        const size_t n_old = t->buf.n;
        SPEC_TRY(push(t, r, tokens[i]));
        cut = cut_at_stop(t, r, n_old);
    }
    const size_t n_old = t->buf.n;
    if (!cut && *stop != SPEC_STOP_NONE) SPEC_TRY(push_rest(t));
    cut = cut || cut_at_stop(t, r, n_old);
    if (cut) *stop = SPEC_STOP_STRING;
    t->n_told = *stop != SPEC_STOP_NONE ? t->buf.n : t->buf.n - speci_stop_held(&r->stops, t->buf.data, t->buf.n);
    return SPEC_OK;
}
