/* support_request.h - what a request does to logits, on the host and in the plainest way; and a mask that goes by the path. */
#ifndef SUPPORT_REQUEST_H
#define SUPPORT_REQUEST_H

#include "spec_trees.h"

/* The request's words for every token of the vocabulary (spec.h). ids [n], of which those from n_prompt on were emitted. A mask
 * is support_mask. */
void support_change_logits(float *x, int32_t n_vocab, const spec_request *r, const int32_t *ids, size_t n, size_t n_prompt);
int32_t support_occurrences(const int32_t *ids, size_t from, size_t to, int32_t token);

/* A spec_mask_fn: a fifth of the tokens, which the last two ids name, must not come. Every call must be about a sequence that it
 * allowed itself, from n_prompt on, or it stops the step. */
typedef struct support_masked {
    size_t n_prompt;
    int64_t *n_call; /* or NULL */
} support_masked;
int support_mask(void *masked, uint32_t *allowed, int32_t n_vocab, const int32_t *ids, size_t n);

#endif
