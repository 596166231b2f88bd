/* support_accept.h - the operations `accept` and `accept_tree` on the host, right and with known faults, to stand behind a
 * session in place of a backend's; `adjust` with one; and the exact distribution of a backend's own `accept` (algorithms.md 3.8). */
#ifndef SUPPORT_PROBS_ACCEPT_H
#define SUPPORT_PROBS_ACCEPT_H

#include "algorithms/engine/engine.h"

typedef enum probs_fault {
    FAULT_NONE,        /* the backend's own operation */
    FAULT_HOST,        /* this file's, right: shows that what follows is wrong for its own reason only */
    FAULT_LAST_FROM_P, /* after all rejections a draw from p instead of R */
    FAULT_ROOT_Q,      /* verified by the square root of q, normalised */
    FAULT_SHARE_OF_Q,  /* verified by 0.6 q: as if tokens that the target has not had kept their share of it */
    FAULT_ONE_UNIFORM, /* the last draw with the uniform that rejected */
    FAULT_ORDER,         /* siblings verified in the order of falling q */
    FAULT_RESIDUAL_OF_P, /* of accept_tree: max(p - q, 0) without the node's weight */
    FAULT_WEIGHT_LOST,   /* of accept_tree: a candidate's weight without its parent's */
    FAULT_PARENT_PATH, /* a chain's nodes get the penalties and masks of their parents' paths (of adjust) */
    FAULT_LATE_STATE   /* commit loses the accepted drafts: the state stays behind the text (of no operation) */
} probs_fault;

/* For this thread: whose operations those below stand in for, and with which fault. */
void probs_plant(const spec_backend_ops *ops, probs_fault fault);
spec_status probs_faulty_accept(spec_queue *queue, const spec_accept_args *a);
spec_status probs_faulty_accept_tree(spec_queue *queue, const spec_accept_tree_args *a);
spec_status probs_faulty_adjust(spec_queue *queue, const spec_adjust_args *a);

/* A test: p and q of 3.8 through `accept` of the model's backend, to five decimals. */
void probs_check_fixture(spec_model *model);

#endif
