/* engine_text.h - the text of a sequence: what its tokens complete, and where a stop string ends it. Internal. */
#ifndef SPEC_ENGINE_TEXT_H
#define SPEC_ENGINE_TEXT_H

#include "algorithms/engine/engine_request.h"

/* Text since the latest commit, and what was held back before it. */
typedef struct engine_text {
    const spec_tokenizer *tokenizer; /* NULL: there is no text */
    spec_text_stream stream;
    speci_buf buf;   /* what a token can add at most is free behind it */
    size_t n_told;   /* bytes of buf that the latest commit made final */
} engine_text;

/* Text begins, behind ids [n]: as the first of a text if these are special tokens alone. */
void speci_text_begin(engine_text *t, const spec_model *target, const int32_t *ids, size_t n);
/* Takes room for steps of up to n_token tokens, so that they take none. */
spec_status speci_text_room(engine_text *t, const engine_request *r, int32_t n_token);
spec_status speci_text_copy(engine_text *out, const engine_text *from);
void speci_text_close(engine_text *t);
/* Another prompt follows: the text that comes is behind it. */
void speci_text_goes_on(engine_text *t, size_t n_ids);
/* Where there is text. Of tokens [n] to come, how many it takes until a stop string is complete: n if none is. What was told is given
 * up. */
spec_status speci_text_cut(engine_text *t, const engine_request *r, const int32_t *tokens, int32_t n, int32_t *n_taken);
/* Tokens [n] were emitted; *stop says what ends the text with the last of them, and becomes SPEC_STOP_STRING if a stop string does. */
spec_status speci_text_add(engine_text *t, const engine_request *r, const int32_t *tokens, int32_t n, spec_stop *stop);

#endif
