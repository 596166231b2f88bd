/* support_law_stats.h - laws of the 8-token models, computed plainly, and chi-square of counts against them. */
#ifndef SUPPORT_LAW_STATS_H
#define SUPPORT_LAW_STATS_H

#include <stdbool.h>
#include <stdint.h>

#include "spec.h"

enum { LAW_V = 8, LAW_START = LAW_V }; /* vocabulary; prompts of one token */

typedef struct chi_square {
    double x;
    int32_t dof;
    bool impossible; /* something was seen that has probability zero */
} chi_square;

/* One multinomial sample. Cells that expect less than 8 are pooled. */
void law_chi_add(chi_square *c, const double *p, const int64_t *count, int32_t n);
double law_chi_p(const chi_square *c);
void law_check_chi_square(void **state); /* a test: against tables */

/* Contexts: the prompt and up to three more tokens, numbered by length, then as base-8 numbers. */
enum { LAW_CONTEXT = 3, LAW_N_CONTEXT = 1 + LAW_V + LAW_V * LAW_V + LAW_V * LAW_V * LAW_V };
int32_t law_context(const int32_t *tokens, int32_t n);

typedef struct logits_table {
    float row[LAW_START][LAW_N_CONTEXT][LAW_V];
} logits_table;

/* By plain steps: one token at a time, no drafter. */
void law_read_logits(logits_table *t, spec_model *m);
/* Temperature, top-k, top-p, min-p, softmax, in the plainest way (spec.h, spec_sampling). */
void law_of(double *law, const float *logits, const spec_sampling *s);

/* v = v / sum(v), where that is not 0; the sum. */
double law_normalise(double *v, int32_t n);

/* How candidates of a node come to be, and how they are judged. */
typedef enum law_how { LAW_TOP, LAW_WITHOUT, LAW_REPEAT } law_how; /* likeliest; drawn without, with replacement */
/* P(one of k candidates from q is accepted), exactly: the sum over all lists of candidates. */
double law_accepts(const double *p, const double *q, int32_t k, law_how drawn, spec_verify_rule rule);

#endif
