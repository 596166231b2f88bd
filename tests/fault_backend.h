/* fault_backend.h - the CPU backend with one thing wrong, to prove that suites can fail.
 *
 *     spec_backend_ops ops;
 *     fault_backend_ops(&ops, FAULT_PARENT);
 *     spec_backend_open_ops(&be, &ops, NULL, &params);       ops must outlive the backend */
#ifndef SPEC_FAULT_BACKEND_H
#define SPEC_FAULT_BACKEND_H

#include "backends/spec_backend.h"

typedef enum fault_kind {
    FAULT_NONE = 0,       /* the CPU backend as it is */
    FAULT_PARENT,         /* a node's parent is another node of the same depth */
    FAULT_MASK,           /* the same, seen by attention alone */
    FAULT_CONV_TAP,       /* the convolution takes the rows before a row for its ancestors */
    FAULT_SCAN_BRANCH,    /* the scan goes on from the node before instead of the parent; chunked: as FAULT_PARENT */
    FAULT_SCAN_SAVED,     /* recurrent: a state that the scan saved is overwritten by the next node's */
    FAULT_REPLAY,         /* the last node of an accepted path is replayed as the one before it */
    FAULT_REPLAY_SHORT,   /* the last node of an accepted path is not replayed */
    FAULT_KV_SLOT,        /* compaction leaves out the last slot of the path */
    FAULT_KV_POSITION,    /* K is rotated by a node's number instead of its depth */
    FAULT_WINDOW,         /* the convolution takes its double buffers for single ones */
    FAULT_PADDED_ROW,     /* prefill applies one padded row */
    FAULT_PARENT_VISITS,  /* as FAULT_PARENT, and the scan visits the wrong tree too */
    FAULT_SCAN_LOADED,    /* recurrent: the scan goes on from another saved state, or from the live one */
    FAULT_RECENT,         /* chunked: the oldest of the recent tokens is forgotten */
    FAULT_RECENT_PLACE,   /* chunked: when their positions end at an odd one, they lie one place late in the recent-token buffers */
    FAULT_FOLD,           /* chunked: a state with chunks folded in is not stored */
    FAULT_ROW_COUNT,      /* products depend on the number of rows: opening must fail */
    FAULT_SIBLINGS,       /* accept and accept_tree verify the first two candidates in the wrong order */
    FAULT_GROWN_TOKEN,    /* the last node that expand adds has another token */
    FAULT_GROWN_PARENT,   /* the same node has another parent */
    FAULT_GROWN_FEED,     /* the drafter is fed another token than the tree's */
    FAULT_DRAW_ORDER,     /* draw names its first two candidates in the wrong order */
    FAULT_N
} fault_kind;

/* Faults of a pass over a tree are those before FAULT_ROW_COUNT; of drafting and verifying, those behind it. */
const char *fault_name(fault_kind kind);
void fault_backend_ops(spec_backend_ops *out, fault_kind kind);

#endif
