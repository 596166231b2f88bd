/* verify_block.c - block verification (algorithms.md 3.9): the draws about a chain's nodes are all made, and the longest path that
 * one of them accepts is taken. It is traversal verification of a tree in which no node has two children, so only its
 * trees are its own. */
#include "algorithms/verify/verify.h"

const speci_verify_rule speci_verify_block = {
    .id = SPEC_VERIFY_BLOCK,
    .name = "block",
    .help = "block verification, which decides about whole paths; for sampled chains",
    .uses_draft_probs = true,
    .objection = speci_verify_not_sampled_chain,
    .walk = speci_verify_traversal_walk,
    .device = &speci_verify_by_accept_tree,
};
