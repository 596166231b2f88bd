/* text_behind.c - text behind tokens, as their tokenizer would have written both: string-level exact match (algorithms.md 18).
 *
 * A few of the last tokens are encoded once more with the text. Cut off from what stands in front of them the first may come out
 * otherwise; the last half of them must not. */
#include "models/text/text_tokenizer.h"
#include "models/text/text_translate.h"

enum { LOOK_BEHIND = 16 };

/* The text of tokens [n]. */
static spec_status join(speci_buf *out, const spec_tokenizer *t, const int32_t *tokens, int32_t n)
{
    out->n = 0;
    for (int32_t i = 0; i < n; i++) {
        size_t n_piece = 0;
        const char *piece = spec_tokenizer_piece(t, &n_piece, tokens[i]);
        SPEC_TRY(speci_buf_add(out, piece, n_piece));
    }
    return SPEC_OK;
}

/* The last tokens behind the last special one; how many. */
static int32_t last_tokens(const spec_tokenizer *t, const int32_t *tokens, int32_t n_token)
{
    int32_t n = 0;
    while (n < n_token && n < LOOK_BEHIND && !spec_tokenizer_is_special(t, tokens[n_token - 1 - n])) n++;
    return n;
}

/* Does s [n] begin with a whole character, or is it the beginning of one? */
static bool begins_character(const char *s, size_t n)
{
    return n == 0 || speci_utf8_length(s, n) > 0 || (n < 4 && speci_utf8_state((const uint8_t *)s, n) == 0);
}

/* How many of ids [n] are the text of the tail [n_tail], n_byte bytes; -1: its tokens would come out otherwise. */
static int32_t align(const spec_tokenizer *t, const int32_t *ids, int32_t n, const int32_t *tail, int32_t n_tail, size_t n_byte)
{
    size_t at = 0;
    int32_t n_own = 0, same = 0;
    for (; n_own < n && at < n_byte; n_own++) {
        size_t n_piece = 0;
        (void)spec_tokenizer_piece(t, &n_piece, ids[n_own]);
        at += n_piece;
    }
    while (same < n_own && same < n_tail && ids[n_own - 1 - same] == tail[n_tail - 1 - same]) same++;
    return at == n_byte && 2 * same >= n_tail ? n_own : -1;
}

static spec_status encode_behind(speci_buf *out, const spec_tokenizer *t, const int32_t *tokens, int32_t n_token, const char *text,
                                 size_t n, speci_buf *both, speci_buf *all)
{
    int32_t n_tail = last_tokens(t, tokens, n_token);
    do SPEC_TRY(join(both, t, tokens + n_token - n_tail, n_tail));
    while (!begins_character(both->data, both->n) && n_tail-- > 0);
    const size_t n_byte = both->n;
    SPEC_TRY(speci_buf_add(both, text, n));
    const size_t whole = speci_utf8_check(both->data, both->n);
    if (whole <= n_byte) return SPEC_OK;
    SPEC_TRY(speci_encode_on(all, t, both->data, whole));
    const int32_t *ids = speci_buf_ids(all), n_id = (int32_t)speci_buf_n_ids(all);
    const int32_t n_own = align(t, ids, n_id, tokens + n_token - n_tail, n_tail, n_byte);
    return n_own < 0 ? SPEC_OK : speci_buf_add(out, ids + n_own, (size_t)(n_id - n_own) * sizeof *ids);
}

spec_status speci_encode_behind(speci_buf *out, const spec_tokenizer *t, const int32_t *tokens, int32_t n_token, const char *text,
                                size_t n)
{
    speci_buf both = { .a = out->a }, all = { .a = out->a };
    const spec_status status = encode_behind(out, t, tokens, n_token, text, n, &both, &all);
    speci_buf_free(&both);
    speci_buf_free(&all);
    return status;
}
