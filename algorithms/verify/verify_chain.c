/* verify_chain.c - chain speculative sampling (algorithms.md 3.1): a draft y is accepted with min(1, p(y) / q(y)), else
 * the residual follows. It is multi-step sampling with one candidate a node, so only its trees are its own. */
#include "algorithms/verify/verify.h"

const speci_verify_rule speci_verify_chain = {
    .id = SPEC_VERIFY_CHAIN,
    .name = "chain",
    .help = "chain speculative sampling; for sampled chains",
    .uses_draft_probs = true,
    .objection = speci_verify_not_sampled_chain,
    .walk = speci_verify_mss_walk,
    .device = &speci_verify_by_accept,
};
