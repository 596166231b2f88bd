/* build_table.c - the kinds of builders, in the order in which they are listed. */
#include "algorithms/build/build.h"

const speci_builder_kind *const speci_build_table[] = {
    &speci_build_none,
    &speci_build_chain,
    &speci_build_static,
    &speci_build_product,
    &speci_build_product_repeat,
    &speci_build_beam,
    &speci_build_dyspec,
    &speci_build_dyspec_threshold,
    &speci_build_sequoia,
    &speci_build_eagle2,
    NULL,
};
