/* test_invariance_state.c - test_invariance_state_full.c with 250 steps. */
#include "tests/support_state.h"

int main(void)
{
    spec_backend_close(support_backend()); /* SKIPPED, when there is none */
    return support_state_run(250);
}
