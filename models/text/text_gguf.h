/* text_gguf.h - tokenizers and the metadata of GGUF files. Internal. */
#ifndef SPEC_TEXT_GGUF_H
#define SPEC_TEXT_GGUF_H

#include "core/core_gguf_write.h"
#include "models/text/text_spm.h"

/* The score that converters give to tokens that were added to a SentencePiece model. */
#define SPECI_ADDED_SCORE -1000.0f

/* Puts tokenizer.ggml.* and the chat template (text_gguf_write.c), but for the ids of special tokens. n_vocab: rows of the model, each of
 * which gets a token. */
spec_status speci_tokenizer_put_gguf(speci_gguf_head *h, const spec_tokenizer *t, int32_t n_vocab);
/* The id that it puts in front of a text; -1 = none. */
int32_t speci_tokenizer_first(const spec_tokenizer *t);
/* Is the id a piece of a SentencePiece model that its users defined, which is taken whole before anything is merged? */
bool speci_gguf_is_own(const spec_tokenizer *t, int32_t id);
/* Tells, a sentence at a time, what such a file does not say of t, so that texts get other ids (text_gguf_unsaid.c). */
typedef void speci_unsaid_fn(void *user_data, const char *text);
spec_status speci_tokenizer_tell_unsaid(const spec_tokenizer *t, speci_unsaid_fn *tell, void *user_data);

/* The words of tokenizer.ggml.pre that stand for the splits of t's tokenizer.json (text_gguf.c). */
spec_status speci_gguf_pre_of(const char **out, bool *prefix_space, const spec_tokenizer *t);

#endif
