/* test_decode_distribution_quick.c - test_decode_distribution.c with fewer draws: seeds 1 and 2, 600 sequences each, and the known bugs
 * that show in few. */
#include "tests/support_distribution.h"
#include "tests/support_model.h"

int main(void)
{
    spec_backend_close(support_backend()); /* SKIPPED, when there is none */
    const probs_size size = { .n_seed = 2, .n_draw = 600, .n_draw_more = 600, .n_bug_max = 10000 };
    return support_probs_run(&size);
}
