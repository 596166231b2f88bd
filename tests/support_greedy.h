/* support_greedy.h - text of many prompts at once, plain or speculative, and all builders to compare them with. */
#ifndef SUPPORT_GREEDY_H
#define SUPPORT_GREEDY_H

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "tests/support_model.h"

enum { GREEDY_NEW = 256 }; /* tokens per prompt in the golden files */

/* Prompts of a golden file: prompt_ids I32 [n][width], rows padded with -1. */
typedef struct greedy_prompts {
    int32_t n, width;
    const int32_t *ids;
    int32_t most; /* tokens of each at most; 0 = all */
} greedy_prompts;

typedef struct greedy_counts {
    int64_t steps, drafted, accepted, emitted;
    int64_t accepting, rejecting; /* steps that accepted a draft; that rejected one */
    int64_t branched;             /* steps that accepted a node which is not the first child of its parent */
} greedy_counts;

/* How a text is made. Zero: plain and greedy. */
typedef struct greedy_run {
    spec_model *target, *drafter;
    const char *tree;            /* builder; NULL = plain decoding */
    const spec_sampling *sampling; /* NULL = greedy; prompt i has seed + i */
    spec_verify_rule verify;
    int32_t n_at_once;           /* sequences in one session; 0 = 1 */
    int32_t n_new;               /* tokens per prompt */
    int32_t n_node;              /* of the session; 0 = what the builder needs */
    spec_scan_form scan;
    spec_advance advance;
    spec_draft_state draft_state;
    spec_draft_vocab vocab;
    int32_t n_resample, resample_across; /* spec_drafter_params */
    spec_token_info token_info;
    spec_drafter *const *drafters; /* [n_drafter] in place of `drafter` and `tree`, with the rest of spec_session_params: */
    int32_t n_drafter;
    spec_draft_combine combine;
    spec_adapt adapt;
    const char *profile;
} greedy_run;

/* out [n][n_new]: the tokens that follow each prompt; counts, which may be NULL, are added to. End-of-text tokens do
 * not stop it. */
void support_greedy(int32_t *out, greedy_counts *counts, const greedy_run *run, const greedy_prompts *prompts);
greedy_prompts support_prompts(const golden *g);
/* The first difference of two outputs, or -1. */
int64_t support_first_difference(const int32_t *a, const int32_t *b, int64_t n);

/* A builder of every kind; ends with NULL. */
extern const char *const support_trees[];

#endif
