/* net.h - inside of an executor: shared by the files of models/net. Internal.
 *
 *   net_mixer_*.c   one file a mixer      net_emit.c      what they emit with      net_kept.c      what they keep
 *   net_plan.c      layers as two plans   net_shape.c     sizes                    net_executor.c  open, attach, close
 *   net_pass.c      sequences, and decode passes that move them: slots and KV pages, the step descriptor, forward, commit, flush
 *   net_prefill.c   prompts               net_part.c      passes in parts          net_hooks.c     its row of hooks
 *   net_joint.c     accepted tokens fed again             net_save.c               copy, write, read
 *   net_tap.c       hidden rows that are kept             net_settle.c             states that lag, caught up
 *   net_intake.c    what a head takes in                  net_token_info.c         what it knows of tokens
 *   net_token_table.c  the same as one table              net_token_pass.c         passes that make such tables */
#ifndef SPEC_NET_H
#define SPEC_NET_H

#include "core/core_dtype.h"
#include "models/exec.h"
#include "models/model_intake.h"

/* A region of device memory that is handed out front to back. With base NULL it only measures. */
typedef struct net_arena {
    char *base;
    size_t n;
} net_arena;
/* What is handed out is 256-byte aligned. */
static inline size_t net_aligned(size_t bytes) { return (bytes + 255) & ~(size_t)255; }
static inline void *net_take(net_arena *arena, size_t bytes)
{
    void *p = arena->base ? arena->base + arena->n : NULL;
    arena->n += net_aligned(bytes);
    return p;
}

typedef struct net_memory {
    net_arena work, state, kv;
} net_memory;

/* What the memory of a buffer is for. */
typedef enum net_role {
    NET_STATE,  /* of a sequence, as of the tokens that are applied */
    NET_CONV,   /* of a sequence: the last inputs of a convolution */
    NET_RECENT, /* of a token that states do not cover yet; token p is entry p % n */
    NET_NODE,   /* of a node of the tree, for replay: nothing of it is needed once the path is applied */
    NET_KV      /* of a position, in pages [n_page][n][SPEC_PAGE] of the pool that sequences share */
} net_role;

/* Something that a mixer keeps. But for KV: [n_seq] slots of [halves ? 2 : 1][n] entries. */
typedef struct net_buffer {
    net_role role;
    size_t bytes;  /* of an entry: a sequence's, a token's, a node's, a head's of a position; 0: not there */
    int32_t n;     /* 1 for STATE and CONV; recent tokens; nodes; heads */
    bool halves;   /* double-buffered: the step's parity says which half is written */
    bool zeroed;   /* at admission */
    bool saved;    /* copied, written and read with the sequence: of STATE and CONV the half last written, of RECENT and KV the
                      tokens that there are */
    char *base;    /* device memory */
} net_buffer;

/* What one branch keeps. */
#define NET_MAX_BUFFER 10
typedef struct net_kept {
    int32_t n;
    net_buffer buffer[NET_MAX_BUFFER];
} net_kept;

enum { NET_PART_OPS = 4 };

/* Plans of an executor: one a phase, and parts of the decode plan for passes without rows. */
enum {
    NET_REPLAY = SPEC_PHASE_PREFILL + 1, /* what applies accepted paths */
    NET_FOLD,                            /* chunked scans alone */
    NET_PLANS
};

/* Token info of hot tokens as one table (net_token_table.c): device memory, from attach on. */
typedef struct net_token_table {
    spec_view info;  /* compute type [n_hot][n_hot] */
    int32_t *row;    /* [n_vocab] a token's row, -1: it is not hot */
    int32_t *column; /* [n_hot] the token of a column */
} net_token_table;

/* The forward pass of a model as plans over the same tensors. */
typedef struct net_plans {
    spec_op *ops[NET_PLANS];  /* NULL while only measuring */
    int32_t n_op[NET_PLANS];
    net_kept *kept;           /* [n_kept] by branch, layers in order; NULL while only measuring */
    int32_t n_kept;
    int32_t n_zeroed;         /* of their buffers, those that are zeroed */
    spec_kv *kv;              /* [n_kv] what kv_commit compacts */
    int32_t n_kv;
    float *logits;            /* f32 [n_row_decode][n_vocab] */
    spec_view *taps[2];       /* by phase: [n_tap] where hidden rows are kept */
    spec_view given[MODEL_MAX_TAP]; /* a head's: where rows of its target are to be put */
    spec_op part[2][NET_PART_OPS]; /* a chaining head's: the plans of its parts HEAD and INFO */
    int32_t n_part[2];
    spec_weight *info;        /* a head's table of token info [n_vocab][rank], from attach on */
    net_token_table table;    /* or collapsed */
} net_plans;

/* Sizes of an executor. */
typedef struct net_shape {
    int32_t n_seq, n_node, n_ctx; /* n_node: of a caller's tree. n_ctx 0 = no attention, no limit */
    int32_t n_cache;              /* nodes that a pass feeds per sequence: n_node; joint: and a path in front */
    int32_t n_row_decode;         /* n_seq * n_cache */
    int32_t chunk, chunk_least;   /* most and fewest rows of a prefill pass, of the device's sizes */
    int32_t n_page_seq, n_page;   /* pages of the longest sequence; of the pool */
    int32_t n_recent_max;         /* recent tokens that chunked scans can have; 0: no scan is chunked */
    bool node_state, joint, collapsed; /* speci_exec_params */
    const spec_tap *taps;         /* [n_tap] */
    int32_t n_tap;
    const spec_model *target;     /* of a head, or NULL where it is only measured */
} net_shape;
net_shape speci_net_shape_of(const spec_model *model, const speci_exec_params *p); /* net_shape.c */
/* The most positions of a context that is not long, where layers work otherwise in a long one; else 0. All such layers have the
 * same. */
int32_t speci_net_n_short(const spec_model *m);
/* May sequences become longer than that? */
bool speci_net_is_long(const net_shape *s, int32_t n_short);

/* Emits all plans. With plans->ops NULL it counts operations, as many as there may be, and measures memory (arena bases NULL). */
void speci_net_emit(net_plans *plans, net_memory *memory, const spec_model *model, const net_shape *shape);
/* Bytes of the tensors that passes of so many rows need. */
size_t speci_net_rows_bytes(const spec_model *model, int32_t rows);

/* --- what mixers keep (net_kept.c) --- */

/* The declarations of a branch, without addresses. */
net_kept speci_net_kept_of(const spec_model *m, const model_branch *b, const net_shape *s);
/* Their memory from the arenas. */
void speci_net_take_kept(net_kept *kept, net_memory *memory, const net_shape *s);
/* Has any branch a buffer of this role? */
bool speci_net_keeps(const spec_model *m, net_role role, const net_shape *s);
/* A buffer's bytes of one slot; KV: of a page. */
size_t speci_net_slot_bytes(const net_buffer *b);
/* Calls each() for every buffer of all branches, in order; what it returns ends the walk. */
typedef spec_status (*net_buffer_fn)(void *arg, const net_buffer *b);
spec_status speci_net_each_buffer(const net_plans *plans, net_buffer_fn each, void *arg);

/* --- an executor --- */

typedef struct net_seq {
    bool live;
    bool begun;      /* its slot's memory has not been zeroed yet */
    bool broken;     /* a device error left it between two passes: only good for end */
    int32_t n_past;  /* positions applied, without the pending path */
    int32_t n_recent; /* of these, behind the states of chunked scans */
    int32_t n_path;  /* pending path */
    int32_t *path;   /* [n_node]; joint: its tokens */
    int32_t *token;  /* [n_node] joint: of the last tree */
    int32_t parity;  /* half that the last pass wrote */
    int32_t n_fed;   /* nodes of the current tree in the caches */
    int32_t n_page;
    int32_t *page;   /* [n_page_seq] */
} net_seq;

typedef struct net_exec {
    speci_exec base;
    const spec_backend_ops *ops;
    spec_device *dev;
    const spec_allocator *a;
    net_shape shape;
    net_memory memory;
    net_plans plans;
    spec_plan plan[NET_PLANS]; /* of their operations */
    bool walks;          /* a scan of decode passes goes from node to node: it needs the traversal schedule */
    spec_tap *taps;      /* [n_tap] */
    spec_queue *queue;
    spec_prepared *prepared[NET_PLANS];
    spec_prepared *prepared_part[2]; /* HEAD, INFO: pieces of the decode plan, or what stands in for them */
    net_seq *seqs;       /* [n_seq] */
    int32_t n_begun;     /* of these: memory that has not been zeroed yet */
    spec_range *to_zero; /* [n_zeroed] */
    int32_t *free_pages; /* [n_page], a stack */
    int32_t n_free;
    spec_step_block *block;
    size_t block_cap;
} net_exec;

/* --- the hooks of models/exec.h --- */

spec_status speci_net_open(speci_exec **out, const spec_model *model, const speci_exec_params *p);
void speci_net_close(speci_exec *exec);
void speci_net_plans(const speci_exec *exec, spec_plan plans[2]);
void speci_net_memory(const speci_exec *exec, spec_memory *out);
spec_status speci_net_attach(speci_exec *exec, spec_queue *queue, bool capture);

void speci_net_begin(speci_exec *exec, int32_t slot);
void speci_net_end(speci_exec *exec, int32_t slot);
void speci_net_commit(speci_exec *exec, int32_t slot, const int32_t *path, int32_t n_path);
void speci_net_break(speci_exec *exec, int32_t slot);
int32_t speci_net_n_past(const speci_exec *exec, int32_t slot);
int32_t speci_net_n_recent(const speci_exec *exec, int32_t slot);
spec_status speci_net_prefill(speci_exec *exec, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks);
spec_status speci_net_forward(speci_exec *exec, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                              const speci_exec_tokens *tokens);
spec_status speci_net_flush(speci_exec *exec, int32_t slot);
spec_status speci_net_warm(speci_exec *exec, const speci_exec_input *in, int32_t n_in);
spec_view speci_net_tap(const speci_exec *exec, int32_t phase, int32_t tap);
spec_view speci_net_given(const speci_exec *exec, int32_t tap);
spec_status speci_net_forward_part(speci_exec *exec, speci_exec_part part, const speci_exec_input *in, int32_t n_in,
                                   const speci_exec_feed *feed);
spec_status speci_net_copy(speci_exec *exec, int32_t from, int32_t to);
bool speci_net_can_lag(const speci_exec *exec, int32_t n_past, int32_t n_recent);
uint64_t speci_net_data_bytes(const speci_exec *exec, int32_t n_past, int32_t n_recent);
spec_status speci_net_write(speci_exec *exec, int32_t slot, speci_put_fn put, void *arg);
spec_status speci_net_read(speci_exec *exec, int32_t slot, const speci_exec_saved *saved, speci_get_fn get, void *arg);

/* --- sequences and passes (net_pass.c) --- */

/* Zeroes the memory of the sequences that have begun: neighbours together, so that admitting many costs a few calls. */
spec_status speci_net_zero_begun(net_exec *net);
/* Takes pages until n slots fit, or none. */
spec_status speci_net_reserve(net_exec *net, net_seq *s, int32_t n);
spec_status speci_net_check_live(const net_exec *net, int32_t slot);

/* Bytes of the largest step descriptor: every part at its capacity. */
size_t speci_net_block_bytes(const net_shape *s);
/* Describes a prefill pass of n tokens, run as `rows`. */
void speci_net_describe_prefill(net_exec *net, int32_t slot, const int32_t *ids, int32_t n, int32_t rows);
/* Describes a decode pass over inputs that are checked. */
void speci_net_describe(net_exec *net, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed);
/* Runs the pass that is described by one of the plans, and what arg-max is behind it unless that is NULL. */
spec_status speci_net_run(net_exec *net, int32_t plan, const spec_argmax_args *argmax);
/* Are ids [n] of the vocabulary? */
spec_status speci_net_check_tokens(const net_exec *net, const int32_t *ids, size_t n);
/* Inputs of a decode pass: checks one, and takes its pages, before the device is touched; notes what was run with this status. */
spec_status speci_net_check_input(net_exec *net, const speci_exec_input *in, const speci_exec_feed *feed);
void speci_net_take_note(net_exec *net, const speci_exec_input *in, int32_t n_in, spec_status status);

/* A head's token info (net_token_info.c): the device bytes of its table; makes it, of the target's embedding; gives it back. */
size_t speci_net_info_bytes(const net_exec *net);
spec_status speci_net_make_info(net_exec *net);
void speci_net_close_info(net_exec *net);
/* The same collapsed (net_token_table.c), of the factored table. */
size_t speci_net_table_bytes(const net_exec *net);
spec_status speci_net_make_table(net_exec *net, const spec_weight *factors);
void speci_net_close_table(net_exec *net);

/* The plan of HEAD (0) or INFO (1) (net_executor.c); without operations where there is nothing to do. */
spec_plan speci_net_part_plan(const net_exec *net, int32_t i);

/* Applies what is pending, and folds what states do not cover: n_recent is 0 behind it (net_settle.c). */
spec_status speci_net_settle(net_exec *net, int32_t slot);

/* --- taps (net_tap.c) --- */

/* Checks the caller's list and takes a copy of it, and room for its views. */
spec_status speci_net_open_taps(net_exec *net);
void speci_net_close_taps(net_exec *net);

/* --- joint attainment (net_joint.c): for an executor whose shape is joint --- */

/* The pending tokens of the path, which stand in front of the tree of the next pass, as its first nodes. */
void speci_net_joint_chain(const net_exec *net, int32_t slot, spec_step_node *nodes, int32_t front);
/* Are chain and tree together deeper than the device's operations take? */
bool speci_net_joint_too_deep(const net_exec *net, const speci_exec_input *in);
/* What may not be fed so. */
spec_status speci_net_joint_check(const speci_exec_input *in);
/* The tree that was fed, of which tokens may be accepted. */
void speci_net_joint_note(net_seq *s, const spec_tree *t);

#endif
