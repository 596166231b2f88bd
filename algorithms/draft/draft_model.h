/* draft_model.h - a model as drafter: what the files draft_model.c, draft_grow.c and draft_expand.c share. Internal. */
#ifndef SPEC_DRAFT_MODEL_H
#define SPEC_DRAFT_MODEL_H

#include "algorithms/draft/draft.h"

/* A sequence, as the drafter's executor knows it. */
typedef struct model_seq {
    bool begun, outgrown;  /* outgrown: the executor has no position for its last id */
    spec_tree fed;         /* what the executor was fed since its last commit: [0, fed.n) is known to the host */
    int32_t n_fed;
    /* The draft under way. */
    speci_draft_seq ask;
    int32_t depth;         /* of its tree, at most */
    int32_t n_chain, n_row, n_seen; /* host-driven growth: committed nodes of `fed`, rows asked for, rows seen */
} model_seq;

/* Host arrays for row operations, [n] each. */
typedef struct model_rows {
    int32_t *src, *q_row, *seq, *place;
    spec_sampling *sampling;
    uint64_t *key;
} model_rows;

typedef struct model_draft {
    speci_draft *d;
    const spec_model *model;
    speci_exec *exec;
    int32_t n_ctx, n_node; /* limits of the executor: positions (0 = none), nodes per tree */
    model_seq *seqs;       /* [n_seq] */
    model_rows rows;
    speci_exec_input *inputs;  /* [n_seq] */
    int32_t *path, n_path;     /* scratch */
    /* Growth. */
    spec_builder *b;           /* of the draft under way */
    int32_t *drafting, n_drafting; /* sequences whose trees are to be taken */
    int32_t *active, n_active;     /* those that still grow */
    int32_t *feed_base;        /* [n_seq] */
    spec_grow grow;            /* device trees */
    void *grow_base;
    size_t grow_bytes;
    spec_grow_node *roots, *nodes; /* [n_seq], [n_seq][grow.cap] */
    int32_t *n_nodes;              /* [n_seq] */
    spec_candidate *drawn, *seen;  /* host-driven: [n_seq * n_q * n_candidate] */
} model_draft;

static inline bool speci_draft_samples(const model_seq *q) { return q->ask.sampling->temperature > 0; }

/* Passes and rows (draft_rows.c). One pass over the nodes of `fed` that the executor has not seen. */
spec_status speci_draft_feed(model_draft *m, const int32_t *seqs, int32_t n);
/* A row of the pass just run whose distribution and candidates are wanted: logits row src, draft distribution q_row of the
 * sequence, place in the frontier. */
void speci_draft_add_row(model_draft *m, int32_t *n, int32_t src, int32_t seq, int32_t q_row, int32_t place);
/* Distributions of the rows listed, and candidates: greedy sequences take the likeliest, sampled ones draw. keys: those of
 * the rows stand in rows.key, and not in the trees. */
spec_status speci_draft_rows(model_draft *m, int32_t n_row, int32_t k, const spec_grow *grow, bool keys,
                             spec_candidate *out);

/* Growth by the levels of m->b, for the sequences m->active (draft_grow.c): enqueued without a look from the host; then
 * their trees are taken, once they are there. */
size_t speci_draft_grow_bytes(const model_draft *m);
void speci_draft_grow_place(model_draft *m);
spec_status speci_draft_grow(model_draft *m);
spec_status speci_draft_grow_read(model_draft *m);
/* Growth by a host-driven builder (draft_expand.c): the trees are finished when it returns. */
spec_status speci_draft_expand(model_draft *m);

#endif
