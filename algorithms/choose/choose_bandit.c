/* choose_bandit.c - UCB1 over shapes of trees (algorithms.md 13). One step is one round; not speculating can be an arm.
 *
 *     index_k = value_k + lambda sqrt(2 ln t / n_k)          t rounds so far, n_k of them arm k's
 *     RATE:  value_k = (sum tokens / sum ms of arm k) / (the largest such rate)
 *     PAPER: value_k = mean of 1 - c / c_max,  c = (1 + lambda_gamma gamma_k) / emitted,
 *                                              c_max = 1 + lambda_gamma max gamma
 *
 * The paper's mean of costs prefers an arm that always emits 2 to one that emits 1 or 6; tokens over time does not. Its
 * rewards are scaled into [0, 1], for which UCB1 is made. */
#include "algorithms/tree/tree.h"

#include <math.h>

spec_status spec_bandit_open(spec_bandit *bandit, int32_t n_arm, spec_bandit_reward reward, double lambda_ucb)
{
    if (!bandit) return speci_fail(SPEC_E_INVALID, "a bandit needs a place");
    if (n_arm < 1 || n_arm > SPEC_MAX_ARM)
        return speci_fail(SPEC_E_INVALID, "a bandit of %d arms; 1 to %d are possible", n_arm, (int)SPEC_MAX_ARM);
    if (reward != SPEC_REWARD_RATE && reward != SPEC_REWARD_PAPER)
        return speci_fail(SPEC_E_INVALID, "there is no bandit reward %d", (int)reward);
    if (!(lambda_ucb >= 0) || isinf(lambda_ucb))
        return speci_fail(SPEC_E_INVALID, "lambda_ucb is %g; it is a finite number >= 0", lambda_ucb);
    *bandit = (spec_bandit){ .n_arm = n_arm, .reward = reward, .lambda_ucb = lambda_ucb };
    return SPEC_OK;
}

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

int32_t spec_bandit_choose(const spec_bandit *bandit)
{
    const spec_bandit *b = bandit;
    for (int32_t k = 0; k < b->n_arm; k++)
        if (b->n_pull[k] == 0) return k;
    const double scale = best_rate(b), spread = 2 * log((double)b->n_round);
    int32_t best = 0;
    double best_index = -(double)INFINITY;
    for (int32_t k = 0; k < b->n_arm; k++) {
        const double n = (double)b->n_pull[k], share = scale > 0 ? rate(b, k) / scale : 0;
        const double value = b->reward == SPEC_REWARD_PAPER ? b->sum[k] / n : share;
        const double index = value + b->lambda_ucb * sqrt(spread / n);
        if (index > best_index) best = k, best_index = index;
    }
    return best;
}

/* 1 - c / c_max in [0, 1]; emitted counts the bonus, so it is at least 1. */
static double paper_reward(const spec_bandit *b, int32_t arm, double emitted)
{
    double longest = 0;
    for (int32_t k = 0; k < b->n_arm; k++)
        if (b->gamma[k] > longest) longest = b->gamma[k];
    if (emitted < 1) return 0;
    return 1 - (1 + b->lambda_gamma * b->gamma[arm]) / emitted / (1 + b->lambda_gamma * longest);
}

/* A round that no clock can have measured, or of an arm that is not there, updates nothing. */
void spec_bandit_update(spec_bandit *bandit, int32_t arm, double emitted, double ms)
{
    spec_bandit *b = bandit;
    if (arm < 0 || arm >= b->n_arm || !(emitted >= 0) || !(ms >= 0) || isinf(emitted) || isinf(ms)) return;
    b->n_round++;
    b->n_pull[arm]++;
    b->tokens[arm] += emitted;
    b->ms[arm] += ms;
    b->sum[arm] += paper_reward(b, arm, emitted);
}
