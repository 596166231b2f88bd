/* test_invariance_trees.c - test_invariance_trees_full.c with 40 trees per model, in float32 and bfloat16. */
#include "tests/support_paths.h"

int main(void)
{
    spec_backend_close(support_backend()); /* SKIPPED, when there is none */
    const paths_size size = { .n_world = 2, .n_walk = 14, .depth = 72, .n_tree = 40 };
    return support_paths_run(&size, 1u << SPEC_DTYPE_F32 | 1u << SPEC_DTYPE_BF16);
}
