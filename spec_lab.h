/* spec_lab.h - experiments and comparisons: what the library can do otherwise, to show why it does not.
 *
 * Nothing here is needed to use the library, and anything here may change or go in any release. So a program says that
 * it knows:
 *
 *     #define SPEC_EXPERIMENTAL
 *     #include <spec_lab.h>
 *
 * The conventions are those of spec.h. Valid C99 and C++17. Numbers in brackets: docs/algorithms.md. */
#ifndef SPEC_LAB_H
#define SPEC_LAB_H

#ifndef SPEC_EXPERIMENTAL
#error "spec_lab.h may change in any release; define SPEC_EXPERIMENTAL before including it"
#endif

#include "spec_trees.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------------------- sessions --- */

/* Alternatives for comparison. The first of each is the default: what the library is made for. All keep the text exact within a form. */
typedef enum spec_scan_form {
    SPEC_SCAN_CHUNKED = 0,  /* Mamba-2 layers as products, with a state that lags by whole chunks (8.6). No node waits for
                               another. Accepted tokens are folded into the state 16 at a time */
    SPEC_SCAN_RECURRENT = 1 /* state by state, depth first (8.3). Another order of sums: equal within rounding */
} spec_scan_form;
typedef enum spec_advance {
    SPEC_ADVANCE_REPLAY = 0, /* the accepted path is replayed from cached activations (9.2) */
    SPEC_ADVANCE_JOINT = 1   /* it is fed again, in front of the next tree: "joint attainment and advancement" (9.3) */
} spec_advance;
typedef enum spec_draft_state {
    SPEC_DRAFT_STATE_REPLAY = 0,  /* a recurrent drafter reaches a node by its cached path */
    SPEC_DRAFT_STATE_PER_NODE = 1 /* it keeps one state per node (10.1), in the recurrent form; counted in
                                     spec_memory.bytes_state */
} spec_draft_state;

/* What spec_session_params.lab points at. Copied when the session opens. Errors of spec_session_open: E_INVALID (a value that is
 * none), E_UNSUPPORTED (joint attainment of an application's engine). */
struct spec_lab {
    size_t struct_size;
    spec_scan_form scan;          /* of Mamba-2 layers, the drafter's too */
    spec_advance advance;         /* of the target */
    spec_draft_state draft_state; /* of the drafter */
    int32_t no_capture;           /* 1 = passes are launched, never captured, for debugging; results are the same */
};
#define SPEC_LAB_INIT SPEC_STRUCT_INIT(spec_lab)

/* ---------------------------------------------------------------------------------- trees --- */

/* out = every path from root to leaf as a chain of its own below the root: what an engine without a tree pass scores.
 * It is SPEC_TREE_UNROLLED, which only the naive and the greedy rule fit. leaf, with room for out->cap entries, or NULL: which node of
 * `tree` each node of `out` is. out is not tree. Errors: E_FULL (out->cap is too small), E_INVALID (no root; out is tree). */
SPEC_API spec_status spec_tree_unroll(const spec_tree *tree, spec_tree *out, int32_t *leaf);

/* --------------------------------------------------------------------------------- choice --- */

/* UCB1 by the reward of Mamba Drafters (13), eq. 2: the value of an arm is its mean of 1 - c / c_max, where
 * c = (1 + lambda_gamma gamma) / emitted and c_max = 1 + lambda_gamma (the largest gamma). Plain data. */
typedef struct spec_paper_bandit {
    spec_bandit bandit;         /* rounds and pulls; its tokens and milliseconds play no part */
    double lambda_gamma;        /* draft time per level over target time; set after open */
    double gamma[SPEC_MAX_ARM]; /* draft levels of each arm; set after open */
    double sum[SPEC_MAX_ARM];   /* of rewards */
} spec_paper_bandit;
/* As spec_bandit_open, spec_bandit_choose and spec_bandit_update. */
SPEC_API spec_status spec_paper_bandit_open(spec_paper_bandit *bandit, int32_t n_arm, double lambda_ucb);
SPEC_API int32_t spec_paper_bandit_choose(const spec_paper_bandit *bandit);
SPEC_API void spec_paper_bandit_update(spec_paper_bandit *bandit, int32_t arm, double emitted, double ms);

#ifdef __cplusplus
}
#endif
#endif
