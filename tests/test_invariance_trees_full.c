/* test_invariance_trees_full.c - 500 random trees of 2 to 256 nodes, in steps of random length by 1 to 8 sequences,
 * per model and type: every node's logits equal those of plain steps along its path, bit for bit. */
#include "tests/support_paths.h"

int main(void)
{
    spec_backend_close(support_backend()); /* SKIPPED, when there is none */
    const paths_size size = { .n_world = 5, .n_walk = 12, .depth = 90, .n_tree = 500 };
    return support_paths_run(&size, 1u << SPEC_DTYPE_F32 | 1u << SPEC_DTYPE_BF16 | 1u << SPEC_DTYPE_F16);
}
