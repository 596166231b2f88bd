/* draft_model.h - a model or a head as drafter: what draft_model.c, draft_vocab.c, draft_grow.c, draft_expand.c, draft_write.c,
 * draft_save.c, draft_again.c, draft_chain.c, draft_head.c, draft_head_save.c and draft_told.c share. Internal. */
#ifndef SPEC_DRAFT_MODEL_H
#define SPEC_DRAFT_MODEL_H

#include "algorithms/draft/draft.h"
#include "models/text/text_translate.h"

/* A sequence, as the drafter's executor knows it. */
typedef struct model_seq {
    bool begun, outgrown;  /* outgrown: the executor has no position for its last id */
    speci_translation own; /* of a model: the sequence in its ids; those of the target, where the vocabulary is the same */
    const int32_t *ids;    /* [n_ids] what the executor is fed: those of `own`, or of a head the session's, while a hook runs: so rows
                              that come need no memory */
    int32_t n_ids;
    spec_tree fed;         /* what the executor was fed since its last commit: [0, fed.n) is known to the host */
    int32_t n_fed;
    spec_tree written;     /* of drafts by text: the tree of the drafter's ids */
    /* The draft under way. */
    speci_draft_seq ask;
    int32_t depth;         /* of its tree, at most */
    spec_tree_kind kind;   /* of its tree */
    spec_sampling sampling; /* what candidates are drawn from; where none is drawn, the plain softmax that ranks them */
    int32_t n_chain, n_row, n_seen; /* host-driven growth: committed nodes of `fed`, rows asked for, rows seen */
    /* Of a head, whose id i stands behind position first + i of the sequence, and is fed beside that position's hidden row. */
    int32_t first;
    int32_t n_told;        /* ids whose rows were told */
    int32_t n_given;       /* of `fed`, the nodes in front that have rows of the target: only these are ever committed */
    /* Of a head that no drafted token enters: the rows of the chain under way and of the one before, which began behind `at` ids. */
    struct {
        int32_t n, at;
    } kept[2];
    int32_t half;          /* of the rows' two halves: the chain under way */
    int32_t row_half, row; /* whose rows levels take, from which on */
    int32_t place;         /* the root's number in `fed`, above the tree */
    bool rides;            /* its tree is made of rows that a rejection has left, in place of a chain (draft_again.c) */
    int32_t rode_at;       /* so many ids it had when the chain's rows served so; 0: they have not */
    struct {
        bool grows;
        int32_t n_fed, depth; /* what the first tree of this draft is taken by, while a second one grows */
    } again;
} model_seq;

/* Host arrays for row operations, [n] each. */
typedef struct model_rows {
    int32_t *src, *q_row, *seq, *place;
    spec_sampling *sampling;
    uint64_t *key;
} model_rows;

/* The vocabulary. Trees grow in the target's ids, from logits at the places of those ids; or, by text, in the drafter's own. */
typedef struct model_vocab {
    speci_token_map *map;  /* tokens of the target in those of the drafter; NULL: the same vocabulary */
    spec_draft_vocab how;  /* with a map, from attach on INTERSECTION or TEXT: */
    bool by_text;          /* trees grow in the drafter's own ids */
    const int32_t *feed;   /* [n_vocab of the target] of INTERSECTION: the id that a token of a tree is fed by, -1: it has none. NULL: trees
                              are in the ids that the drafter is fed */
    void *base;            /* device memory */
    size_t bytes;
    const int32_t *columns; /* [n_vocab of the target] the column of the logits for each id, or -1: of INTERSECTION the map's twins, of a
                              head what its file says. NULL: its own number */
    int32_t *column;       /* the same on the device, where `feed` is the same list */
    float *logits;         /* with columns: device [n_seq * n_q][n_vocab of the target] */
    float *q;              /* distributions that candidates are drawn from: device [n_seq * n_q][n_q_column]; the session's, or of
                              TEXT its own, of the drafter's ids */
    int32_t n_q_column;    /* ids of the trees */
} model_vocab;

/* A head's hidden rows of the target (draft_head.c), from when they are told until the executor's state covers them: that of a
 * sequence's id i is row i % ROWS of its ring. */
typedef struct model_told {
    int32_t n_tap, dim;
    spec_tap *taps;        /* [n_tap] */
    size_t *row_bytes;     /* [n_tap] */
    char **ring;           /* [n_tap] device [n_seq][SPECI_TOLD_ROWS][dim] */
    void *base;
    size_t bytes;
    spec_range_copy *copies; /* [n_copy_max] */
    int32_t n_copy, n_copy_max;
} model_told;
enum { SPECI_TOLD_ROWS = 2 * (SPEC_MAX_DEPTH + 1) };

/* Trees as they come from the device: slot s has n[s] nodes from node[s * grow.cap] on. */
typedef struct model_grown {
    int32_t *n;
    spec_grow_node *node;
} model_grown;

/* Of a head that no drafted token enters (draft_chain.c): logits of a chain's rows, from which levels of trees are made. */
typedef struct model_chain {
    int32_t n_level;       /* rows of a chain; 0: not such a head */
    int32_t n_half;        /* 2: those of the chain before are kept, for trees once more (draft_again.c) */
    float *rows;           /* device [n_seq][n_half][n_level][columns of the logits] */
    size_t bytes;
    spec_tree *again, merged; /* [n_seq], one: scratch of such trees */
    model_grown grown;     /* where they come to the host, beside the draft's first trees */
    bool off, now;         /* off: never; now: the draft under way grows so */
} model_chain;

typedef struct model_draft {
    speci_draft *d;
    const spec_model *model;
    int32_t n_step_most;   /* ids that a step can bring: more at once are a prompt; of a head, which is told of rows, any number is a
                              step's */
    bool is_head;          /* it reads hidden rows of the target: */
    speci_exec *exec;
    model_vocab vocab;
    model_told told;
    model_chain chain;
    int32_t n_ctx, n_node; /* limits of the executor: positions (0 = none), nodes per tree */
    int32_t n_chain;       /* of these, committed tokens in front of a draft, at most */
    int32_t n_own;         /* its own tokens that a context of the session comes to, about; 0 = no limit */
    model_seq *seqs;       /* [n_seq] */
    model_rows rows;
    speci_exec_input *inputs;  /* [n_seq] */
    int32_t *path, n_path;     /* scratch */
    /* Growth. */
    spec_builder *b;           /* of the draft under way */
    int32_t *drafting, n_drafting; /* sequences whose trees are to be taken */
    int32_t *active, n_active;     /* those that still grow */
    int32_t *behind;           /* [n_seq] scratch: those that have to catch up */
    int32_t *feed_base;        /* [n_seq] */
    spec_grow grow;            /* device trees */
    void *grow_base;
    size_t grow_bytes;
    spec_grow_node *roots;     /* [n_seq] */
    model_grown grown;         /* trees on the host, once the queue is synchronised */
    spec_candidate *drawn, *seen;  /* host-driven: [n_seq * n_q * n_candidate] */
} model_draft;

/* The vocabulary (draft_vocab.c). Does the drafter's go with the target's? */
spec_status speci_draft_vocab_check(const spec_drafter *d, const spec_model *target);
/* prepare: the map, and the device bytes that attach takes; what a sequence has of its own. attach: chooses how, by passes of the
 * executor. */
spec_status speci_draft_vocab_open(model_draft *m);
spec_status speci_draft_vocab_seq(model_draft *m, model_seq *s);
spec_status speci_draft_vocab_attach(model_draft *m);
void speci_draft_vocab_close(model_draft *m);
/* Positions of the drafter that n_ctx tokens of the target need, about. */
int32_t speci_draft_positions(const model_draft *m, int32_t n_ctx);
/* For its ids, so that steps take no memory: all of a context. */
int64_t speci_draft_room_of(const model_draft *m, const speci_draft_seq *q);

/* In step with the sequence (draft_grow.c). It begins anew in the drafter's ids, all of q->ids; and goes on with those that are new; a
 * head sees those whose rows were told. */
spec_status speci_draft_begin(model_draft *m, const speci_draft_seq *q);
spec_status speci_draft_follow(model_draft *m, const speci_draft_seq *q);
/* Commits what the executor was fed and is now committed: but the last id, whose row a draft needs anew, and nothing that a head was fed
 * of its own rows. */
void speci_draft_commit_fed(model_draft *m, int32_t seq);
/* Applies what the executor has not seen of all but the last id, as a prompt. */
spec_status speci_draft_consume(model_draft *m, int32_t seq);
/* Behind a commit: makes `fed` of the active sequences the chain of committed tokens that the executor has not seen, with room for what
 * the builder asks about below it. And the hook that says what passes that takes. */
spec_status speci_draft_catch_up(model_draft *m);
speci_draft_lag speci_draft_lag_of(const speci_draft *d, const spec_builder *b, const int32_t *seqs, int32_t n);

/* Rows that were told (draft_told.c). prepare, attach, detach: a head's taps and their rings; nothing of other models. Lists a copy on
 * the device, neighbours as one; makes those that are listed. Row `row` of a view. Copies the rows of `fed` of these sequences to where
 * the executor's next pass reads them. */
spec_status speci_draft_told_open(model_draft *m);
spec_status speci_draft_told_attach(model_draft *m);
void speci_draft_told_close(model_draft *m);
spec_status speci_draft_told_add(model_draft *m, char *to, const char *from, size_t bytes);
spec_status speci_draft_told_copy(model_draft *m);
char *speci_draft_view_row(const spec_view *v, int32_t row);
spec_status speci_draft_give(model_draft *m, const int32_t *seqs, int32_t n);

/* Growth from a chain (draft_chain.c). prepare: its sizes, and nodes of the executor's trees beside those of the tree and of the
 * committed tokens; attach, detach. Of a draft, where the head has such rows: may it grow so? Then the chain's logits, and in `fed` a place
 * for the root, where levels begin. A level: the logits of the frontier, of n_place nodes per sequence. A forked sequence gets the rows
 * that the original may draft from once more: lists the copy. */
spec_status speci_draft_chain_open(model_draft *m);
int32_t speci_draft_chain_nodes(const model_draft *m);
spec_status speci_draft_chain_attach(model_draft *m);
void speci_draft_chain_close(model_draft *m);
spec_status speci_draft_chain_copy(model_draft *m, int32_t seq, int32_t to);
spec_status speci_draft_chain(model_draft *m);
spec_status speci_draft_chain_level(model_draft *m, int32_t level, int32_t n_place);

/* From rows that a rejection has left of the chains before (draft_again.c). Across sequences: of those of a draft, which stand in
 * m->drafting, some ride, whose trees are made of these rows alone: they leave m->active, and are not fed. Behind the chains of the others
 * they join it again. And behind a draft from a chain: trees once more, united with the fresh ones. *taken: all trees are on the host. */
void speci_draft_choose_riders(model_draft *m);
void speci_draft_join_riders(model_draft *m, speci_draft_seq *seqs, int32_t n);
spec_status speci_draft_again(model_draft *m, bool *taken);

/* A head (draft_head.c): begins a sequence but for the executor's slot, whose first row is that of position `first`;
 * and its hooks, those of saved sequences in draft_head_save.c. */
spec_status speci_draft_head_check(const spec_drafter *d, const spec_model *target);
void speci_draft_head_begin(model_draft *m, int32_t seq, int32_t first);
spec_status speci_draft_head_hidden(speci_draft *d, const speci_draft_seq *q, const speci_draft_hidden *h);
spec_status speci_draft_head_prefill(speci_draft *d, const speci_draft_seq *q);
spec_status speci_draft_head_fork(speci_draft *d, const speci_draft_seq *q, int32_t to);
spec_status speci_draft_head_save(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg);
spec_status speci_draft_head_restore(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg);
/* Where the row of id i of a sequence is kept, of tap k. */
static inline char *speci_draft_told_row(const model_draft *m, int32_t k, int32_t seq, int32_t i)
{
    return m->told.ring[k] + ((size_t)seq * SPECI_TOLD_ROWS + (size_t)(i % SPECI_TOLD_ROWS)) * m->told.row_bytes[k];
}

/* Hooks of saved sequences (draft_save.c). */
uint64_t speci_draft_identity(const spec_drafter *d);
spec_status speci_draft_save(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg);
spec_status speci_draft_restore(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg);

/* Passes and rows (draft_grow.c). One pass over the nodes of `fed` that the executor has not seen. The id that a token of the target is
 * fed by: any other, where the drafter has no row for it, since a builder of the application's may name such a token. */
spec_status speci_draft_feed(model_draft *m, const int32_t *seqs, int32_t n);
int32_t speci_draft_feed_id(const model_draft *m, int32_t token);
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
spec_status speci_draft_grow(model_draft *m, const model_grown *out);
spec_status speci_draft_take_tree(model_draft *m, int32_t seq, const model_grown *grown);
/* Growth by a host-driven builder (draft_expand.c): the trees are finished when it returns. */
spec_status speci_draft_expand(model_draft *m);

/* A tree of the drafter's ids (s->written) as text, in the target's ids below the root of q->tree (draft_write.c). */
spec_status speci_draft_write(model_draft *m, const model_seq *s, const speci_draft_seq *q);

#endif
