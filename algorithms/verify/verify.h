/* verify.h - verification rules as rows, and what a rule is given. Internal.
 *
 * A rule is one file, verify_<rule>.c, and one row of verify_table.c. It walks a tree in two places: on plain arrays
 * (verify_arrays.c), and in a session, where the distributions are rows in device memory (verify_walk.c). */
#ifndef SPEC_VERIFY_H
#define SPEC_VERIFY_H

#include "algorithms/tree/tree.h"

/* What a uniform is for. Verification and target draws are keyed by (seed, absolute position, purpose, index), draft
 * draws by (seed, the sequence's step counter, purpose, slot in the tree): nothing is drawn twice. */
enum { SPECI_DRAW_TARGET = 1, SPECI_DRAW_ACCEPT = 2, SPECI_DRAW_RESIDUAL = 3, SPECI_DRAW_NODE = 4 }; /* below spec_draw.h's */

typedef struct speci_verify_rule speci_verify_rule;
typedef struct speci_verify_device speci_verify_device;

/* --- in a session --- */

/* A scored tree. The same item goes to `enqueue` and, when the queue is done with that, to `walk`. */
typedef struct speci_verify_item {
    const speci_verify_rule *rule;
    const spec_tree *tree;         /* with ranks */
    const spec_sampling *sampling;
    uint64_t position;             /* of the token that follows the root */
    int32_t logits_row;            /* of the root; node i's is logits_row + i */
    int32_t p_row;                 /* the same in p, and in `rows`; only where the rule's device side needs_probs */
    int32_t q_row;                 /* row of q that is the tree's row 0 */
    const int32_t *likeliest;      /* [tree->n] the likeliest token after each node; at temperature 0 only */
    const int32_t *eos;            /* [n_eos] the walk ends at these tokens */
    int32_t n_eos;
    int32_t *path, *n_path, *token; /* results, as those of spec_verify */
    struct speci_verify_item *next; /* of the same device side, or NULL; */
    struct speci_verify_item *others; /* of the first one: the first one of another device side, or NULL */
} speci_verify_item;

/* Calls of spec_backend_ops.accept in one batch, at most. */
enum { SPECI_VERIFY_CALLS = 4 };

/* Host arrays for accept, of which a call takes the next free entries. Entry p_row + i of an item belongs to its node
 * i; for accept_tree, to its i-th node level by level. */
typedef struct speci_verify_rows {
    int32_t *src, *dst, *q_row, *parent, *choice, *token; /* [rows] */
    float *u_last, *prob;                        /* [rows] */
    spec_sampling *sampling;                     /* [rows] */
    int32_t *candidate;                          /* [rows]: every node but the roots is a candidate once */
    float *u;                                    /* [rows] */
    int32_t *first;                              /* [rows + SPECI_VERIFY_CALLS] */
    int32_t n_candidate, n_call;                 /* taken so far */
} speci_verify_rows;

/* Trees of one pass of the target, and the device that scored them. */
typedef struct speci_verify_batch {
    const spec_backend_ops *ops;
    spec_queue *queue;
    const float *logits, *q; /* device rows of n_vocab */
    float *p;                /* the same: the target's distributions, by the items' sampling */
    spec_step_node *next;    /* device memory: row i's token goes to next[i] too, where the device finds it; or NULL */
    int32_t n_vocab;
    speci_verify_rows rows;
    speci_verify_item *items; /* the first one; NULL: none */
} speci_verify_batch;

/* What rules have a session do. Both hooks get those items of a batch whose rules have this device side, one at least, all of them in
 * one call. Rules that share a device side share its calls of the backend. */
struct speci_verify_device {
    bool needs_probs; /* the distributions of all nodes of its items are in p before enqueue's operations run */
    bool (*fits)(const spec_backend_ops *ops); /* has the backend what it needs? NULL: always */
    /* Enqueues the operations that `walk` reads the results of. NULL: what came with the pass is enough. */
    spec_status (*enqueue)(speci_verify_batch *b, const speci_verify_item *items);
    /* Writes path, n_path and token of each item. It may enqueue more, and wait for it with ops->sync. */
    spec_status (*walk)(const speci_verify_batch *b, const speci_verify_item *items);
};

/* To the front of the items of its device side. rule, tree and its other inputs are set. */
void speci_verify_batch_add(speci_verify_batch *b, speci_verify_item *x);
/* Computes p, then calls enqueue of each device side that the items have. p_row is set here. */
spec_status speci_verify_batch_enqueue(speci_verify_batch *b);
/* When what was enqueued is there: the walk of each device side. */
spec_status speci_verify_batch_walk(const speci_verify_batch *b);

/* The device side of a rule that follows the likeliest tokens (verify_walk.c): the pass has found them. */
extern const speci_verify_device speci_verify_by_likeliest;
/* Device sides that several rules share (verify_accept.c): one accept call per batch, its candidates drawn without
 * replacement, or with. A rule without draft probabilities has no candidates there. */
extern const speci_verify_device speci_verify_by_accept, speci_verify_by_accept_repeat;
/* One accept_tree call (verify_traversal.c). */
extern const speci_verify_device speci_verify_by_accept_tree;

/* --- rules --- */

struct speci_verify_rule {
    spec_verify_rule id;
    const char *name, *help;  /* help: which trees it is for, in a few words */
    bool greedy;              /* a rule for temperature 0, and for no other */
    bool uses_draft_probs;    /* it divides by the draft distributions that siblings were drawn from */
    uint32_t auto_kinds;      /* bit k: SPEC_VERIFY_AUTO means this rule for trees of spec_tree_kind k; the last one that fits */
    bool deep;                /* of these only such as have more than one level: on one it accepts what an earlier row does, by more work */
    /* What it would do wrong on such a tree ("would ..."); NULL: nothing, it is lossless there. `chain`: no node has
     * two children. The hook itself may be NULL: lossless for every tree. */
    const char *(*objection)(spec_tree_kind kind, bool chain);
    /* The walk on plain arrays, which were checked. */
    spec_status (*walk)(const spec_verify_args *a, int32_t *path, int32_t *n_path, int32_t *token);
    const speci_verify_device *device;
};

/* The row of `id`; NULL: no such rule (SPEC_VERIFY_AUTO is none). */
const speci_verify_rule *speci_verify_find(spec_verify_rule id);
/* The same, with AUTO taken for the rule that fits trees of this kind at this temperature, and the backend. flat: no node stands below the
 * first level. ops NULL: on plain arrays. */
const speci_verify_rule *speci_verify_resolve(spec_verify_rule id, spec_tree_kind kind, bool flat, float temperature,
                                              const spec_backend_ops *ops);
bool speci_verify_runs_on(const speci_verify_rule *rule, const spec_backend_ops *ops);

/* The rule of temperature 0, where all rules are one. */
extern const speci_verify_rule speci_verify_greedy;

/* --- what rules share --- */

/* The walk of a rule that decides node by node: *child is the accepted child of `node`, or -1; *token is the child's, or what
 * follows. depth: of the node. In a session x is the item: the walk ends at a token that ends the text. E_DEVICE: it is none (less than
 * 0), since the node's logits are not numbers. On plain arrays x is NULL. */
typedef spec_status (*speci_verify_node_fn)(void *arg, int32_t node, int32_t depth, int32_t *child, int32_t *token);
spec_status speci_verify_walk(speci_verify_node_fn decide, void *arg, const speci_verify_item *x, int32_t *path, int32_t *n_path,
                              int32_t *token);

/* On plain arrays: row `node` of p; the row of q that node c (not the root) was drawn from, -1 = the tree does not
 * say. */
const float *speci_verify_p(const spec_verify_args *a, int32_t node);
int32_t speci_verify_q_row(const spec_verify_args *a, int32_t c);
/* The naive rule at one node (verify_naive.c), which decides what follows a leaf under every sampling rule. */
int32_t speci_verify_naive_node(const spec_verify_args *a, int32_t node, int32_t depth, int32_t *token);
/* Multi-step sampling (verify_mss.c): its walk, and its objection to trees whose siblings are no draws. */
spec_status speci_verify_mss_walk(const spec_verify_args *a, int32_t *path, int32_t *n_path, int32_t *token);
const char *speci_verify_not_sampled(spec_tree_kind kind);
const char *speci_verify_not_sampled_chain(spec_tree_kind kind, bool chain); /* the same, and to trees that branch */
/* Traversal (verify_traversal.c). */
spec_status speci_verify_traversal_walk(const spec_verify_args *a, int32_t *path, int32_t *n_path, int32_t *token);

/* What is left of a node's distributions on plain arrays (verify_residual.c): R of the target's, D of the draft's. */
typedef struct speci_residual {
    const spec_verify_args *a;
    size_t n; /* entries of a distribution */
    float *r, *d;
    int32_t node;
    int32_t d_row; /* d is what is left of this row of q, -1 = nothing yet */
    bool repeat;   /* siblings were drawn with replacement: D stays q */
} speci_residual;
spec_status speci_residual_open(speci_residual *w, const spec_verify_args *a, bool repeat);
void speci_residual_close(speci_residual *w);
/* R = p of the node. */
void speci_residual_begin(speci_residual *w, int32_t node);
/* D for child c: its row without the rejected siblings that were drawn from the same row. */
const float *speci_residual_draft(speci_residual *w, int32_t c);
/* Child c was rejected, d being its D: R = norm(max(weight R - D, 0)), and c's token leaves D. Returns the sum before R was
 * normalised; 0 where that is nothing, which only rounding can do: then R is p without the children up to c, or p. */
double speci_residual_reject(speci_residual *w, int32_t c, const float *d, float weight);

#endif
