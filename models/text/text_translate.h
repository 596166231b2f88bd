/* text_translate.h - tokens of one tokenizer (`from`) in those of another (`to`). Internal.
 *
 * Tokens are the same when they stand for the same bytes of running text (spec_tokenizer_piece): markers of spaces and byte
 * tokens are bytes there. Special tokens stand for no text. (algorithms.md 18) */
#ifndef SPEC_TEXT_TRANSLATE_H
#define SPEC_TEXT_TRANSLATE_H

#include "core/core.h"

/* How tokens of `from` are written in `to`. Immutable once open. */
typedef struct speci_token_map {
    const spec_tokenizer *from, *to; /* borrowed */
    const spec_allocator *a;
    int32_t n_from, n_to; /* ids below these have rows in the models; others do not exist */
    /* [n_from] the token of `to` with the same bytes, each of which is the twin of one token at most; -1: none. Of several with
     * the same bytes it is the one that their own tokenizer writes for them, else the smallest id. */
    int32_t *twin;
    int32_t n_twin;
    /* Token t is written as ids [first[t], first[t + 1]): the one of `to` with the same bytes, else what its tokenizer makes of the
     * text. A special token is the special token of `to` with the same string, else the one of the same office (BOS, EOS), else
     * nothing. Nothing stands here for bytes that are no whole characters, too. */
    int32_t *first, *ids;
    int32_t byte[256];    /* the token of `to` that is this byte alone; -1: none */
} speci_token_map;

spec_status speci_token_map_open(speci_token_map **out, const spec_tokenizer *from, int32_t n_from, const spec_tokenizer *to,
                                 int32_t n_to, const spec_allocator *a);
void speci_token_map_close(speci_token_map *map); /* NULL is fine */

/* Do the two give each id the same piece, as far as both have it and rows [n] for it? Else *id is the first that differs. */
bool speci_same_pieces(const spec_tokenizer *x, const spec_tokenizer *y, int32_t n, int32_t *id);

/* A sequence of `from` as ids of `to`, which are only ever appended to. Zero to begin, but for ids.a. */
typedef struct speci_translation {
    speci_buf ids;
    int32_t n_from;  /* tokens of the sequence that are in it */
    uint8_t held[4]; /* [n_held] bytes of a character that is not complete */
    int32_t n_held;
} speci_translation;

/* Begins anew, as `to` begins a text (BOS, where its tokenizer says so). */
spec_status speci_translation_begin(speci_translation *x, const speci_token_map *map);
/* Appends tokens [n] of `from`. as_text: their text is encoded as a whole, between special tokens; else each token on its own, a
 * character that is spread over tokens when it is complete. On error nothing was appended. */
spec_status speci_translate(speci_translation *x, const speci_token_map *map, const int32_t *tokens, int32_t n, bool as_text);

/* Ids of text [n] that goes on behind another, well-formed, appended to out (int32_t). */
spec_status speci_encode_on(speci_buf *out, const spec_tokenizer *t, const char *text, size_t n);

/* Ids of text [n] behind tokens [n_token], appended to out: both are encoded together, and what comes out behind the last tokens are
 * the ids. Nothing where those tokens would come out otherwise (text_behind.c). Half a character at the end is left out. */
spec_status speci_encode_behind(speci_buf *out, const spec_tokenizer *t, const int32_t *tokens, int32_t n_token, const char *text,
                                size_t n);

#endif
