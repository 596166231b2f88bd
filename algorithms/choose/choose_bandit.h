/* choose_bandit.h - what bandits with different rewards share. Internal. */
#ifndef SPEC_CHOOSE_BANDIT_H
#define SPEC_CHOOSE_BANDIT_H

#include "core/core.h"

/* The arm of the largest value[k] + lambda_ucb sqrt(2 ln t / n_k), the first on ties; each arm once in the beginning. */
int32_t speci_bandit_ucb(const spec_bandit *b, const double *value);
/* Counts a round of the arm; false, and nothing changes, if no clock can have measured it or there is no such arm. */
bool speci_bandit_count(spec_bandit *b, int32_t arm, double emitted, double ms);

#endif
