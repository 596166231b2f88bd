/* support_paths.h - path invariance of whole models: every node of random trees has the logits, bit for bit, that
 * plain steps along its path give. */
#ifndef SUPPORT_PATHS_H
#define SUPPORT_PATHS_H

#define SPEC_EXPERIMENTAL
#include "spec_lab.h"

#include "tests/support_model.h"

/* How much. A world is a prompt and a trie of continuations, whose plain logits are computed once; trees are drawn
 * from it. */
typedef struct paths_size {
    int32_t n_world;   /* prompts: of 1, 7 and 70 tokens, and so on */
    int32_t n_walk;    /* of a world: paths of `depth` tokens that leave each other at random places */
    int32_t depth;
    int32_t n_tree;    /* trees of 2 to 256 nodes that are scored and compared, over all worlds */
    spec_scan_form scan;
} paths_size;

typedef struct paths_counts {
    int64_t n_tree, n_node, n_differ; /* nodes compared, and those that differ */
    int32_t largest, widest, deepest; /* tree; batch; node */
    int64_t n_part;                   /* trees fed in parts */
} paths_counts;

/* plain: what takes the plain steps; tested: what scores trees, the same model (perhaps on another backend). In
 * sessions of up to 8 sequences: trees of many shapes, random acceptance, scores that are thrown away, trees fed in
 * several passes. */
void support_paths(paths_counts *counts, spec_model *plain, spec_model *tested, const paths_size *size,
                   uint64_t seed);

/* A test program over models of every kind in `dtypes` (a bit for each: 1 << spec_dtype): returns the number of
 * failed tests. */
int support_paths_run(const paths_size *size, uint32_t dtypes);

#endif
