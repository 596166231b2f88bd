/* algo.h - how to speculate. Internal. Knows no device but the vtable, and of models only speci_net. */
#ifndef SPEC_ALGO_H
#define SPEC_ALGO_H

#include <stdatomic.h>

#include "models/model.h"

/* --- random numbers (algo_rng.c) --- */

/* What a uniform is for. Verification and target draws are keyed by (seed, absolute position, purpose, index), draft
 * draws by (seed, the sequence's step counter, purpose, slot in the tree): nothing is drawn twice. */
enum { ALGO_DRAW_TARGET = 1, ALGO_DRAW_ACCEPT = 2, ALGO_DRAW_RESIDUAL = 3, ALGO_DRAW_DRAFT = 4 };

/* --- trees (algo_tree.c) --- */

spec_status speci_tree_alloc(spec_tree *t, int32_t cap, const spec_allocator *a);
void speci_tree_free(spec_tree *t, const spec_allocator *a);
void speci_tree_copy(spec_tree *to, const spec_tree *from); /* to->cap >= from->n */
void speci_tree_add(spec_tree *t, int32_t token, int32_t parent);
bool speci_tree_equal(const spec_tree *a, const spec_tree *b);
/* A caller's tree: root -1, parents before children, siblings distinct, not too deep, 1 <= n <= n_max. */
spec_status speci_tree_check(const spec_tree *t, int32_t n_max);
int32_t speci_tree_depth(const spec_tree *t, int32_t node);
/* Drops the nodes deeper than `depth`, in place. map [t->n] is scratch. */
void speci_tree_clip(spec_tree *t, int32_t depth, int32_t *map);

/* --- drafters (algo_drafter.c) --- */

struct spec_drafter {
    const spec_allocator *allocator;
    spec_model *model;    /* or NULL: ops */
    spec_drafter_ops ops;
    int32_t n_draft;
    float temperature;
    atomic_flag in_use;   /* serves one session at a time */
};
/* Vocabularies must agree id by id; both on one backend. */
spec_status speci_drafter_check(const spec_drafter *d, const spec_model *target);

/* --- sessions (algo_session.c) --- */

/* A sequence in flight. ids[n_ids - 1] is the pending token: emitted, not yet fed. */
typedef struct algo_seq {
    bool live, ignore_eos, no_draft; /* no_draft: it has outgrown the drafter's context */
    spec_sampling sampling;
    int32_t *ids, n_ids, cap_ids;
    int32_t n_limit;    /* most ids it may reach; INT32_MAX = none */
    uint64_t n_step;
    spec_tree draft;    /* the drafter's latest proposal */
    bool draft_drawn;   /* its nodes were drawn from laws, q rows first_q + parent node */
    spec_tree scored;   /* what score saw last; scored.n == 0: nothing */
    bool scored_drawn;  /* the scored tree is that proposal, draft rows included */
    int32_t first_row;  /* its first row in the target's pass */
    spec_tree fed;      /* what the drafter's net was fed since its last commit: a chain */
    int32_t n_fed;
} algo_seq;

/* Host arrays for row operations, [n_row] each unless said. */
typedef struct algo_rows {
    int32_t *src, *q_row, *first, *candidate, *choice, *token; /* first [n_row + 1] */
    float *u, *u_last;
    spec_sampling *sampling;
} algo_rows;

struct spec_session {
    spec_model *target;
    spec_drafter *drafter;
    const spec_backend_ops *ops;
    spec_device *dev;
    const spec_allocator *a;
    int32_t n_ctx, n_seq, n_node, n_draft, n_row; /* n_ctx 0 = no limit; n_row = n_seq * n_node */
    spec_verify_rule rule;
    spec_abort_fn abort;
    void *abort_user_data;
    atomic_int cancelled;
    spec_queue *queue;
    speci_net *net, *draft_net; /* draft_net NULL unless the drafter is a model */
    int32_t draft_ctx, draft_node; /* limits of draft_net: positions (0 = none), nodes per pass */
    /* Device rows of laws, f32 [..][n_vocab of the target]: p [n_row]; q and a copy that verification consumes
     * [n_seq * n_draft]. */
    float *p, *q, *q_work;
    size_t p_bytes, q_bytes;
    algo_seq *seqs;      /* [n_seq] */
    algo_rows rows;
    speci_net_input *inputs; /* [n_seq] */
    int32_t *order;      /* [n_seq] scratch: sequences of the pass at hand */
    int32_t *path;       /* [max(n_node, draft_node, n_seq)] scratch */
    int32_t *step_paths, *step_n_path, *step_token; /* results of a step: [n_seq * n_node], [n_seq], [n_seq] */
    const spec_tree **step_trees;                   /* [n_seq] */
    int32_t *best;       /* [n_row] arg-max of each row of the target's pass */
    int32_t *step_ids;                              /* [n_seq * (n_node + 1)] */
};

/* The live sequence `seq`, or an error. */
spec_status speci_session_seq(const spec_session *s, int32_t seq, algo_seq **out);
/* Has somebody asked to stop? */
bool speci_session_stopped(void *session);
bool speci_is_eos(const spec_session *s, const algo_seq *q, int32_t token);
/* Most drafts below the root now: emitted tokens must fit n_limit. */
int32_t speci_draft_room(const spec_session *s, const algo_seq *q);

/* Chains from draft_net for the sequences seqs [n], into their `draft` trees (algo_draft_model.c). */
spec_status speci_draft_model(spec_session *s, const int32_t *seqs, int32_t n);
/* verify for several sequences with one look from the host: paths [n][n_node], n_path [n], token [n]. */
spec_status speci_verify(spec_session *s, const int32_t *seqs, int32_t n, spec_verify_rule rule, int32_t *paths,
                         int32_t *n_path, int32_t *token);
/* Log-probabilities of tokens [n] after nodes path [n] of the scored pass, seq's rows starting at first_row. */
spec_status speci_logprobs(spec_session *s, int32_t first_row, const int32_t *nodes, const int32_t *tokens, int32_t n,
                           float *logprob, int32_t *top_id, float *top_logprob, int32_t n_top);

#endif
