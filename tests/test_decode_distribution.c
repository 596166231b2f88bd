/* test_decode_distribution.c - the sampled distribution of every builder under every rule that fits, by the public calls: seeds 1 to 20,
 * 50 000 sequences each, so 1e6, and 2e5 again with other distributions; each statistic at p > 0.001 / number of statistics;
 * every known bug at p < 1e-9. */
#include "tests/support_distribution.h"
#include "tests/support_model.h"

int main(void)
{
    spec_backend_close(support_backend()); /* SKIPPED, when there is none */
    const probs_size size = { .n_seed = 20, .n_draw = 50000, .n_draw_more = 10000, .n_bug_max = INT64_MAX };
    return support_probs_run(&size);
}
