/* algo_build.h - the kinds of builders: one file each, listed in algo_table.c. */
#ifndef SPEC_ALGO_BUILD_H
#define SPEC_ALGO_BUILD_H

#include "algorithms/algo.h"

extern const algo_builder_kind algo_build_none, algo_build_chain, algo_build_static, algo_build_product,
    algo_build_product_repeat, algo_build_beam, algo_build_dyspec, algo_build_dyspec_threshold, algo_build_sequoia,
    algo_build_eagle2;

/* Sequoia's dynamic program on plain arrays: the shape of m nodes (at most ALGO_MAX_NODE) in l levels, both with the
 * root, with the most expected emitted tokens, which it returns, when a node's child b < n_a (n_a <= 32) is accepted
 * with probability a[b]. With costs: of all sizes from 2 to m and depths to l, the one with the most expected tokens per
 * unit of time, a step of m' nodes and l' levels taking target(m') + (l' - 1) draft(its mean width). parent [m] receives
 * it, breadth first; *n is less than m where m nodes do not fit, or do not pay. work: of speci_sequoia_bytes, aligned as
 * a double. */
size_t speci_sequoia_bytes(int32_t m, int32_t l, int32_t n_a);
double speci_sequoia(const float *a, int32_t n_a, int32_t m, int32_t l, const spec_cost_profile *costs, void *work,
                     int32_t *parent, int32_t *n);

/* Levels of trees of n drafts where nobody says how many: 2 + log2 n (DS: below 10 at 64 nodes). */
static inline int32_t speci_usual_depth(int32_t n)
{
    int32_t bits = 0;
    while ((1 << bits) < n) bits++;
    return 2 + bits;
}

#endif
