/* support_statistics.h - distributions of the 8-token models, computed plainly, and chi-square of counts against them. */
#ifndef SUPPORT_PROBS_STATS_H
#define SUPPORT_PROBS_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "spec_trees.h"

enum { PROBS_V = 8, PROBS_START = PROBS_V }; /* vocabulary; prompts of one token */

typedef struct chi_square {
    double x;
    int32_t dof;
    bool impossible; /* something was seen that has probability zero */
} chi_square;

/* One multinomial sample. Cells that expect less than 8 are pooled. */
void probs_chi_add(chi_square *c, const double *p, const int64_t *count, int32_t n);
double probs_chi_p(const chi_square *c);
void probs_check_chi_square(void **state); /* a test: against tables */

/* Contexts: the prompt and up to three more tokens, numbered by length, then as base-8 numbers. */
enum { PROBS_CONTEXT = 3, PROBS_N_CONTEXT = 1 + PROBS_V + PROBS_V * PROBS_V + PROBS_V * PROBS_V * PROBS_V };
int32_t probs_context(const int32_t *tokens, int32_t n);
/* The way back: tokens [PROBS_CONTEXT] behind the prompt; returns how many. */
int32_t probs_context_tokens(int32_t *tokens, int32_t context);

typedef struct logits_table {
    float row[PROBS_START][PROBS_N_CONTEXT][PROBS_V];
} logits_table;

/* By plain steps: one token at a time, no drafter. */
void probs_read_logits(logits_table *t, spec_model *m);
/* Temperature, top-k, top-p, min-p, softmax, in the plainest way (spec.h, spec_sampling). */
void probs_of(double *probs, const float *logits, const spec_sampling *s);

/* v = v / sum(v), where that is not 0; the sum. */
double probs_normalise(double *v, int32_t n);

/* How candidates of a node come to be, and how they are verified. */
typedef enum probs_how { PROBS_TOP, PROBS_WITHOUT, PROBS_REPEAT } probs_how; /* likeliest; sampled without, with replacement */
/* P(one of k candidates from q is accepted), exactly: the sum over all lists of candidates. */
double probs_accepts(const double *p, const double *q, int32_t k, probs_how how, spec_verify_rule rule);

#endif
