/* support_greedy.h - greedy text of many prompts at once, plain or speculative. */
#ifndef SUPPORT_GREEDY_H
#define SUPPORT_GREEDY_H

#include "tests/support_model.h"

enum { GREEDY_NEW = 256 };

/* Prompts of a golden file: prompt_ids I32 [n][width], rows padded with -1. */
typedef struct greedy_prompts {
    int32_t n, width;
    const int32_t *ids;
} greedy_prompts;

typedef struct greedy_counts {
    int64_t steps, drafted, accepted;
    int64_t accepting, rejecting; /* steps that accepted a draft; that rejected one */
} greedy_counts;

/* out [n][GREEDY_NEW]: the tokens that follow each prompt, n_at_once sequences in one session. End-of-text tokens do not
 * stop it. n_draft 0 = plain. */
void support_greedy(int32_t *out, greedy_counts *counts, spec_model *target, spec_model *drafter, int32_t n_draft,
                    const greedy_prompts *prompts, int32_t n_at_once);
greedy_prompts support_prompts(const golden *g);
/* The first difference of two outputs, or -1. */
int64_t support_first_difference(const int32_t *a, const int32_t *b, int64_t n);

#endif
