/* algo_build.h - the kinds of builders: one file each, listed in algo_table.c. */
#ifndef SPEC_ALGO_BUILD_H
#define SPEC_ALGO_BUILD_H

#include "algorithms/algo.h"

extern const algo_builder_kind algo_build_none, algo_build_chain, algo_build_product, algo_build_product_repeat;

#endif
