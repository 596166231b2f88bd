/* choose_bandit_paper.c - UCB1 with the reward of the paper (algorithms.md 13, eq. 2), for comparison with tokens over time.
 *
 *     value_k = mean of 1 - c / c_max,  c = (1 + lambda_gamma gamma_k) / emitted,  c_max = 1 + lambda_gamma max gamma
 *
 * The mean of costs prefers an arm that always emits 2 to one that emits 1 or 6; tokens over time does not. Rewards are scaled
 * into [0, 1], for which UCB1 is made. */
#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "algorithms/choose/choose_bandit.h"

spec_status spec_paper_bandit_open(spec_paper_bandit *bandit, int32_t n_arm, double lambda_ucb)
{
    if (!bandit) return speci_fail(SPEC_E_INVALID, "a bandit needs a place");
    spec_paper_bandit b = { .lambda_gamma = 0 };
    SPEC_TRY(spec_bandit_open(&b.bandit, n_arm, lambda_ucb));
    *bandit = b;
    return SPEC_OK;
}

int32_t spec_paper_bandit_choose(const spec_paper_bandit *bandit)
{
    if (!bandit) return 0;
    const spec_bandit *b = &bandit->bandit;
    double value[SPEC_MAX_ARM];
    for (int32_t k = 0; k < b->n_arm; k++) value[k] = b->n_pull[k] > 0 ? bandit->sum[k] / (double)b->n_pull[k] : 0;
    return speci_bandit_ucb(b, value);
}

/* 1 - c / c_max in [0, 1]; emitted counts the bonus, so it is at least 1. */
static double reward(const spec_paper_bandit *b, int32_t arm, double emitted)
{
    double longest = 0;
    for (int32_t k = 0; k < b->bandit.n_arm; k++)
        if (b->gamma[k] > longest) longest = b->gamma[k];
    if (emitted < 1) return 0;
    return 1 - (1 + b->lambda_gamma * b->gamma[arm]) / emitted / (1 + b->lambda_gamma * longest);
}

void spec_paper_bandit_update(spec_paper_bandit *bandit, int32_t arm, double emitted, double ms)
{
    if (!bandit) return;
    if (speci_bandit_count(&bandit->bandit, arm, emitted, ms)) bandit->sum[arm] += reward(bandit, arm, emitted);
}
