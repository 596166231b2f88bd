/* support_drafts.h - are trees that a session drafts and verifies those of the library's functions on plain arrays? */
#ifndef SUPPORT_DRAFTS_H
#define SUPPORT_DRAFTS_H

#include "tests/support_model.h"

typedef struct drafts_run {
    spec_model *target, *drafter; /* of the session */
    spec_model *plain;            /* the drafter again, perhaps on another backend: distributions of the plain trees */
    const char *tree;
    spec_sampling sampling;
    spec_verify_rule verify;
    int32_t n_node;  /* of the session; 0 = what the builder needs */
    int32_t n_token; /* of each of three sequences, prompts included */
} drafts_run;

typedef struct drafts_counts {
    int64_t n_tree, n_drafted, n_walk; /* trees; their nodes; trees that were walked by distributions */
    int64_t n_tree_differ, n_walk_differ;
    int64_t n_small; /* trees that were clipped by the end of the text */
} drafts_counts;

/* Each tree drafted against spec_builder_build with distributions from plain passes of the drafter over the tree so
 * far; each walk of spec_verify against spec_verify_probs over the distributions that the session tells. Ends at the
 * first step whose trees differ. counts is added to. */
void support_drafts(drafts_counts *counts, const drafts_run *run);

#endif
