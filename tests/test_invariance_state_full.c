/* test_invariance_state_full.c - state and KV after 1000 random steps are those of plain decoding, bit for bit. */
#include "tests/support_state.h"

int main(void)
{
    spec_backend_close(support_backend()); /* SKIPPED, when there is none */
    return support_state_run(1000);
}
