/* draft.h - drafters: what proposes trees to a session. Internal.
 *
 * A kind of drafter is one file draft_<kind>.c and one row of draft_table.c. Nobody outside this room asks of what kind a
 * drafter is: sessions call its hooks. */
#ifndef SPEC_DRAFT_H
#define SPEC_DRAFT_H

#include <stdatomic.h>

#include "algorithms/build/build.h"
#include "models/exec.h"

typedef struct speci_draft_kind speci_draft_kind;
typedef struct speci_draft speci_draft;

/* A drafter as an object. It serves one session at a time. */
struct spec_drafter {
    spec_allocator memory;   /* a copy */
    const spec_allocator *allocator; /* that copy */
    const speci_draft_kind *kind;
    void *own;               /* the kind's, freed by its close */
    spec_builder **builders; /* [n_builder]; 0: the kind makes whole trees */
    int32_t n_builder;
    bool borrowed;           /* the one builder is the caller's */
    int32_t n_draft;         /* without builders: nodes below the root, at most */
    float temperature;       /* of the draft distribution; 0 = the target's */
    spec_draft_vocab vocab;  /* of a model */
    int32_t n_resample, resample_left, resample_across; /* of a head: spec_drafter_params */
    spec_token_info token_info;
    spec_tap *taps;          /* [n_tap] hidden rows of every target that it wants: its kind then has the hook `hidden` */
    int32_t n_tap;
    atomic_flag in_use;
    speci_holds holds;       /* by its session */
    spec_model *held;        /* the model that it holds, or NULL */
};

/* What a drafter's trees need: the most that its builders ask for. */
typedef struct speci_draft_size {
    int32_t n_node;      /* nodes of a finished tree, root included */
    int32_t n_q;         /* rows of draft distributions per sequence */
    int32_t pool;        /* nodes of a tree while it grows */
    int32_t cap;         /* the same of trees that grow on the device; 0 = none do */
    int32_t frontier;    /* places of a level */
    int32_t n_candidate; /* candidates per row that a host-driven builder sees; 0 = there is none */
} speci_draft_size;
speci_draft_size speci_draft_size_of(const spec_drafter *d);

/* What a session tells its drafters of itself. It lives as long as they are attached. */
typedef struct speci_draft_site {
    const spec_model *target;
    const spec_backend_ops *ops;
    spec_device *dev;
    const spec_allocator *a;
    spec_queue *queue;            /* from attach on */
    int32_t n_seq, n_ctx, n_node; /* n_ctx 0 = no limit; n_node: of a tree that can be scored */
    int32_t n_q;                  /* rows of draft distributions per sequence */
    float *q;                     /* device f32 [n_seq * n_q][n_vocab of the target], from attach on. Row seq * n_q + q_row[x]
                                     is the distribution that the children of node x were drawn from */
    bool captures, recurrent, node_state; /* how executors that drafters open work */
    bool (*stopped)(void *arg);   /* has somebody asked to stop? */
    void *stopped_arg;
} speci_draft_site;

/* What a drafter takes beside its host memory. */
typedef struct speci_draft_needs {
    spec_memory memory;  /* bytes_model without the target's */
    spec_plan plans[2];  /* that the queue must be ready for */
    int32_t n_plan;
    int32_t n_row;       /* most rows of a pass of its own; 0 = none */
    int32_t n_column;    /* most columns of its row operations, if they are more than the target's ids */
} speci_draft_needs;

/* A sequence to draft for. */
typedef struct speci_draft_seq {
    int32_t seq;
    const int32_t *ids; /* [n_ids] so far; the last one is the pending token, the root of the tree */
    int32_t n_ids, n_prompt; /* ids from n_prompt on were emitted since the latest prompt */
    const spec_sampling *sampling;
    uint64_t step;      /* of the sequence: a key of draft draws */
    int32_t depth_max;  /* nodes deeper than this have no use; >= 1. A drafter that cannot reach so deep lowers it */
    bool in_front;      /* where it proposes nothing another drafter is asked */
    int32_t least;      /* one that looks up: it proposes by a match of so many tokens at least; 0: as it was opened */
    int32_t n_match;    /* receives: tokens of the match that a proposal was found by; 0: it is none that looks up */
    spec_tree *tree;    /* the root alone, with rank, prob and q_row; receives the proposal. The root alone: none */
    int32_t by;         /* the drafter of the session's list that proposed it, -1 = none or several: */
    uint8_t *maker;     /* of each node of a union the first drafter that has it; else NULL */
    spec_builder *builder; /* that made it, or NULL */
} speci_draft_seq;
/* Tokens of a match, at least. own: what the drafter was opened with, 0 = nothing. In front of another drafter that is 2: a match of one
 * token brings less than a model behind it. */
static inline int32_t speci_draft_least(const speci_draft_seq *q, int32_t own)
{
    if (q->least > 0) return q->least > own ? q->least : own;
    return own > 0 ? own : q->in_front ? 2 : 1;
}

/* Hidden rows of committed tokens, those at positions [first, first + n) of their sequence. They stand where the pass left
 * them, until the target's next pass of that phase. */
typedef struct speci_draft_hidden {
    const spec_view *taps; /* [n_tap] device rows [..][dim of the target], f32; SPEC_TAP_NORM: compute type */
    const int32_t *row;    /* [n]: token first + i's is row row[i]; NULL: row i */
    int32_t first, n;
} speci_draft_hidden;
static inline int32_t speci_hidden_row(const speci_draft_hidden *h, int32_t i) { return h->row ? h->row[i] : i; }

/* A drafter at work in a session. */
struct speci_draft {
    spec_drafter *drafter;
    const speci_draft_kind *kind;
    const speci_draft_site *site;
    speci_draft_size size;
    void *state;               /* the kind's, from prepare on */
    const spec_tap *taps;      /* [n_tap] hidden rows that it wants: its drafter's, or what prepare has found out of the target */
    int32_t n_tap;
    spec_view *hidden[2];      /* by phase: [n_tap] where hidden rows at its taps stand, from attach on */
    /* Trees that enqueue has left on the device, where node i of slot s is grown[s * ld_grown + i]. NULL: all trees are with
     * the host. */
    const spec_grow_node *grown;
    int32_t ld_grown;
    spec_drafter_stats stats;
};

/* Passes in which a drafter catches up, and their rows altogether. */
typedef struct speci_draft_lag {
    int32_t n_pass;
    double n_row;
} speci_draft_lag;

/* Hooks. One that is NULL has nothing to do. */
struct speci_draft_kind {
    /* As in `--draft NAME[:ARGS]`; args NULL: not made from text. A kind that is, and has no `exec`, takes microseconds to be asked
     * and changes nothing by it: it is also asked for proposals that nobody scores. */
    const char *name, *args, *help;
    /* Parses what follows the colon ("" if nothing), and sets n_draft. */
    spec_status (*open)(spec_drafter *d, const char *args);
    void (*close)(spec_drafter *d);
    /* Can it draft for this target? */
    spec_status (*check)(const spec_drafter *d, const spec_model *target);

    /* A session opens. prepare takes host memory alone; needs adds what attach will take. detach frees what the others took,
     * however far they came. */
    spec_status (*prepare)(speci_draft *d);
    void (*needs)(const speci_draft *d, speci_draft_needs *out);
    spec_status (*attach)(speci_draft *d);
    void (*detach)(speci_draft *d);

    /* Hidden rows of committed tokens; q has their ids, and the one that follows. Each token has its turn once, in order: those
     * of a prompt chunk by chunk as it is applied, before `prefill` or `committed` tells of it; those of an accepted path before
     * `committed`. The pending token has not been fed: it is the first of the next call. After a `prefill` of a sequence that
     * was restored or copied the rows in front of the pending token's do not come. After an error the sequence can only end. */
    spec_status (*hidden)(speci_draft *d, const speci_draft_seq *q, const speci_draft_hidden *h);
    /* A sequence begins: all ids but the pending one. After an error `end` is called. */
    spec_status (*prefill)(speci_draft *d, const speci_draft_seq *q);
    /* Proposes for seqs [n], by builder b where the drafter has builders. What is not with the host when it returns is left
     * to `read`, which is called when all that was enqueued is there: d->grown. */
    spec_status (*enqueue)(speci_draft *d, spec_builder *b, speci_draft_seq *seqs, int32_t n);
    spec_status (*read)(speci_draft *d);
    /* The trees are not wanted any more, or could not be read. */
    void (*forget)(speci_draft *d);
    /* The last n_new of q->ids were committed; the last of them is the pending one. */
    void (*committed)(speci_draft *d, const speci_draft_seq *q, int32_t n_new);
    /* Sequence `to` begins as a copy of q. After an error `end` is called. */
    spec_status (*fork)(speci_draft *d, const speci_draft_seq *q, int32_t to);
    void (*end)(speci_draft *d, int32_t seq);

    /* A sequence is saved: put NULL makes it ready and tells its bytes, then put receives as many. A drafter of the same kind and
     * identity reads them; one of another identity begins by prefill. */
    uint64_t (*identity)(const spec_drafter *d);
    spec_status (*save)(speci_draft *d, const speci_draft_seq *q, uint64_t *bytes, speci_put_fn put, void *arg);
    spec_status (*restore)(speci_draft *d, const speci_draft_seq *q, uint64_t bytes, speci_get_fn get, void *arg);

    /* Its past, observed in all its sessions, as a file: a whole one, or the one that was there before. load_file: no session
     * has it; nothing has changed on error. NULL: it keeps none. */
    spec_status (*save_file)(const spec_drafter *d, const char *path);
    spec_status (*load_file)(spec_drafter *d, const char *path);

    /* The executor whose passes are what drafts cost: over trees of up to *n_timed nodes, and of up to *n_most when it catches
     * up. NULL: it cannot draft for this sequence. */
    speci_exec *(*exec)(const speci_draft *d, int32_t seq, int32_t *n_timed, int32_t *n_most);
    /* What the executor would be fed now in front of a draft by builder b for seqs [n]: tokens of steps without one. */
    speci_draft_lag (*lag)(const speci_draft *d, const spec_builder *b, const int32_t *seqs, int32_t n);
};

extern const speci_draft_kind speci_draft_model, speci_draft_head, speci_draft_callback, speci_draft_ngram, speci_draft_trie,
    speci_draft_png;
extern const speci_draft_kind *const speci_draft_table[]; /* the kinds that are made from text; ends with NULL */

/* --- several drafters (draft_combine.c) --- */

enum { SPECI_MAX_DRAFTER = 64 };
typedef struct speci_drafters {
    speci_draft *draft;       /* [n] */
    int32_t n;
    spec_draft_combine combine;
    speci_draft_seq *asked;   /* [n_seq] scratch */
    spec_tree *other, merged; /* [n_seq], one: scratch of unions */
} speci_drafters;

/* Whom to ask, and for what. */
typedef struct speci_draft_way {
    uint64_t drafters; /* bit k: drafter k of the list is asked; one at least. With UNION all are */
    int32_t builder;   /* number of the builder; in a drafter with fewer its last one */
    int32_t least;     /* of those that look up: speci_draft_seq.least */
    int32_t last;      /* the drafter that is asked last */
    bool alone;        /* it is the only one that is asked: */
    spec_builder *only; /* by this builder; NULL: it has none, or others are asked, too */
} speci_draft_way;
speci_draft_way speci_draft_way_of(const speci_drafters *all, uint64_t drafters, int32_t builder, int32_t least);
/* Trees for seqs [n]. Drafters are asked in the order of the list, each for the sequences for which none before it has proposed. Only
 * the drafter that is asked last may leave trees on the device: *pending, or NULL. */
spec_status speci_draft_enqueue(speci_drafters *all, const speci_draft_way *way, speci_draft_seq *seqs, int32_t n, speci_draft **pending);
/* Does it find its proposals in texts? Kinds that are made from text do, unless they run a model: microseconds, and no trace. */
static inline bool speci_draft_looks_up(const speci_draft *d) { return d->kind->args && !d->kind->exec; }
/* The first n drafters see the last n_new ids of q as committed. */
void speci_drafters_committed(speci_drafters *all, int32_t n, const speci_draft_seq *q, int32_t n_new);
/* What came of a proposal that was scored and verified as it was: the nodes of its path, the root first. */
typedef struct speci_draft_outcome {
    const spec_tree *tree;
    const int32_t *path;
    int32_t n_path;
    int32_t by;            /* who made it: speci_draft_seq */
    const uint8_t *maker;
    spec_builder *builder;
} speci_draft_outcome;
/* Counts it, and tells the builder. */
void speci_drafters_tell(speci_drafters *all, const speci_draft_outcome *o);
/* Reads n bytes of a saved sequence that nobody has a use for. */
spec_status speci_draft_skip(uint64_t n, speci_get_fn get, void *arg);
/* Brings the trees that d has left on the device, when all that was enqueued is there; or, with an error, drops them. */
spec_status speci_draft_take(speci_draft *d, spec_status status);
/* The drafter's builder of this number, or NULL. */
spec_builder *speci_draft_builder(const speci_draft *d, int32_t builder);

/* --- objects (draft_open.c) --- */

/* A drafter of this kind with what params say. builders: the kind grows trees by builders. */
spec_status speci_drafter_create(spec_drafter **out, const speci_draft_kind *kind, const spec_allocator *a,
                                 const spec_drafter_params *params, bool builders);
/* It wants hidden rows at these taps [n], which are copied. */
spec_status speci_drafter_take_taps(spec_drafter *d, const spec_tap *taps, int32_t n);

/* --- drafters that find tokens in texts --- */

/* Nothing that is drafted behind such a token has a use: the walk ends at it. */
static inline bool speci_draft_ends_text(const spec_model *target, int32_t token)
{
    return speci_has_id(target->eos, target->n_eos, token);
}

/* --- hidden rows on the host (draft_hidden.c) --- */

/* Rows first .. first + n - 1 of h at its tap `tap`, to [n][dim of the target]; when the queue was waited for, they are
 * there as they are kept, side by side, and widen makes float32 of all n * dim values. */
spec_status speci_hidden_download(const speci_draft_site *site, float *to, const speci_draft_hidden *h, int32_t tap, int32_t first,
                                  int32_t n);
void speci_hidden_widen(float *rows, size_t n, spec_dtype type);

#endif
