/* algo_table.c - the kinds of builders, in the order in which they are listed. */
#include "algorithms/algo_build.h"

const algo_builder_kind *const algo_table[] = {
    &algo_build_none,
    &algo_build_chain,
    &algo_build_static,
    &algo_build_product,
    &algo_build_product_repeat,
    &algo_build_beam,
    &algo_build_dyspec,
    &algo_build_dyspec_threshold,
    &algo_build_sequoia,
    &algo_build_eagle2,
    NULL,
};
