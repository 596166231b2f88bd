/* ref_traversal.h - traversal verification as algorithms.md 3.10 says it, one leaf after the other, in double; and wrong in
 * known ways. Shares nothing with the library. */
#ifndef SPEC_REF_TRAVERSAL_H
#define SPEC_REF_TRAVERSAL_H

#include <stdint.h>

enum { REF_V = 64, REF_NODES = 160 };

typedef enum ref_fault {
    REF_RIGHT,
    REF_STOP_AT_FIRST, /* of a chain: its nodes draw from the root on, and the first that is not accepted ends the path */
    REF_SORTED,        /* siblings are taken by falling q instead of in draw order */
    REF_RESIDUAL_OF_P, /* z = [b - s]+ in place of [w b - s]+ */
    REF_WEIGHT_LOST,   /* w = min(b(x) / s(x), 1): the parent's is left out */
    REF_BONUS_OF_P,    /* what follows is drawn from p instead of b */
    REF_REPLACEMENT,   /* s keeps the tokens that were rejected */
    REF_FAULTS
} ref_fault;

/* Parents come first, siblings in draw order. */
typedef struct ref_tree {
    int32_t n, v;
    const int32_t *parent, *token;
    const double *p[REF_NODES]; /* [v] the target's, after the node */
    const double *q[REF_NODES]; /* [v] that the node was drawn from; siblings of one q were drawn from it without replacement */
} ref_tree;

/* The leaves in the order in which they are asked: which node, accepted with which probability, and b then. The root is last. */
typedef struct ref_leaves {
    int32_t n, node[REF_NODES];
    double accept[REF_NODES], b[REF_NODES][REF_V];
} ref_leaves;
void ref_traversal(ref_leaves *out, const ref_tree *t, ref_fault fault);
/* The probability that the walk ends at each of the leaves [out->n]. */
void ref_traversal_ends(double *ends, const ref_leaves *leaves, ref_fault fault);

/* Accepted drafts on average: by traversal, and by multi-step sampling without replacement (3.2). */
double ref_traversal_accepted(const ref_tree *t);
double ref_mss_accepted(const ref_tree *t);

#endif
