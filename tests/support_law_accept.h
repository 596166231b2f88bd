/* support_law_accept.h - the operation `accept` on the host, right and with known faults, to stand behind a session in
 * place of a backend's; and the exact law of a backend's own (algorithms.md 3.8). */
#ifndef SUPPORT_LAW_ACCEPT_H
#define SUPPORT_LAW_ACCEPT_H

#include "algorithms/algo.h"

typedef enum law_fault {
    FAULT_NONE,        /* the backend's own operation */
    FAULT_HOST,        /* this file's, right: shows that what follows is wrong for its own reason only */
    FAULT_LAST_FROM_P, /* after all rejections a draw from p instead of R */
    FAULT_ROOT_Q,      /* judged by the square root of q, normalised */
    FAULT_ONE_UNIFORM, /* the last draw with the uniform that rejected */
    FAULT_ORDER,       /* siblings judged in the order of falling q */
    FAULT_LATE_STATE   /* commit loses the accepted drafts: the state stays behind the text (not of accept) */
} law_fault;

/* For this thread: law_faulty_accept takes laws from the device by `ops` and judges with `fault`. */
void law_plant(const spec_backend_ops *ops, law_fault fault);
spec_status law_faulty_accept(spec_queue *queue, const spec_accept_args *a);

/* A test: p and q of 3.8 through `accept` of the model's backend, to five decimals. */
void law_check_fixture(spec_model *model);

#endif
