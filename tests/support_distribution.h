/* support_distribution.h - does decoding keep the target's distribution? Statistics of many short sequences of an 8-token
 * model, for every builder and every rule that fits its trees, with and without requests that change logits by the path, against
 * distributions computed from plain steps, softmax in double; and every known bug of building, verification and requests, which
 * the same statistics must see. */
#ifndef SUPPORT_PROBS_H
#define SUPPORT_PROBS_H

#include <stdint.h>

/* How much: the programs are these numbers applied to the same tables. */
typedef struct probs_size {
    int32_t n_seed;    /* seeds 1 .. n_seed */
    int32_t n_draw, n_draw_more; /* sequences per seed: of each tree under each rule; again with other distributions.
                                  * SPEC_DISTRIBUTION_DRAWS, if set, replaces both */
    int64_t n_bug_max; /* known bugs that need more draws than this to be seen are left out */
} probs_size;

/* Runs everything on the backend under test; the number of failed tests. */
int support_probs_run(const probs_size *size);

/* Q(a, x), the regularised upper incomplete gamma function: P(chi-square with 2a degrees of freedom > 2x). */
double support_gamma_q(double a, double x);

#endif
