/* choose_bandit.c - UCB1 over shapes of trees (algorithms.md 13). One step is one round; not speculating can be an arm.
 *
 *     index_k = value_k + lambda sqrt(2 ln t / n_k)          t rounds so far, n_k of them arm k's
 *     value_k = (sum tokens / sum ms of arm k) / (the largest such rate) */
#include "algorithms/choose/choose_bandit.h"

#include <math.h>

spec_status spec_bandit_open(spec_bandit *bandit, int32_t n_arm, double lambda_ucb)
{
    if (!bandit) return speci_fail(SPEC_E_INVALID, "a bandit needs a place");
    if (n_arm < 1 || n_arm > SPEC_MAX_ARM)
        return speci_fail(SPEC_E_INVALID, "a bandit of %d arms; 1 to %d are possible", n_arm, (int)SPEC_MAX_ARM);
    if (!(lambda_ucb >= 0) || isinf(lambda_ucb))
        return speci_fail(SPEC_E_INVALID, "lambda_ucb is %g; it is a finite number >= 0", lambda_ucb);
    *bandit = (spec_bandit){ .n_arm = n_arm, .lambda_ucb = lambda_ucb };
    return SPEC_OK;
}

/* It is the caller's plain data. */
static bool is_open(const spec_bandit *b) { return b->n_arm >= 1 && b->n_arm <= SPEC_MAX_ARM; }

static double rate(const spec_bandit *b, int32_t arm)
{
    return b->ms[arm] > 0 ? b->tokens[arm] / b->ms[arm] : 0;
}

static double best_rate(const spec_bandit *b)
{
    double best = 0;
    for (int32_t k = 0; k < b->n_arm; k++)
        if (rate(b, k) > best) best = rate(b, k);
    return best;
}

int32_t speci_bandit_ucb(const spec_bandit *b, const double *value)
{
    for (int32_t k = 0; k < b->n_arm; k++)
        if (b->n_pull[k] == 0) return k;
    const double spread = 2 * log((double)b->n_round);
    int32_t best = 0;
    double best_index = -(double)INFINITY;
    for (int32_t k = 0; k < b->n_arm; k++) {
        const double index = value[k] + b->lambda_ucb * sqrt(spread / (double)b->n_pull[k]);
        if (index > best_index) best = k, best_index = index;
    }
    return best;
}

int32_t spec_bandit_choose(const spec_bandit *bandit)
{
    if (!bandit || !is_open(bandit)) return 0;
    const double scale = best_rate(bandit);
    double value[SPEC_MAX_ARM];
    for (int32_t k = 0; k < bandit->n_arm; k++) value[k] = scale > 0 ? rate(bandit, k) / scale : 0;
    return speci_bandit_ucb(bandit, value);
}

bool speci_bandit_count(spec_bandit *b, int32_t arm, double emitted, double ms)
{
    if (arm < 0 || arm >= b->n_arm || !(emitted >= 0) || !(ms >= 0) || isinf(emitted) || isinf(ms)) return false;
    b->n_round++;
    b->n_pull[arm]++;
    return true;
}

void spec_bandit_update(spec_bandit *bandit, int32_t arm, double emitted, double ms)
{
    if (!bandit || !is_open(bandit)) return;
    if (!speci_bandit_count(bandit, arm, emitted, ms)) return;
    bandit->tokens[arm] += emitted;
    bandit->ms[arm] += ms;
}
