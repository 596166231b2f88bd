/* model.h - what a network is: weights on a backend, layers as data, and the memory of sequences.
 *
 * Internal. Knows no algorithm, and of the device only the vtable. Three parts:
 *   spec_model   immutable: made from a checkpoint by a family (model_<family>.c, one row in family_table.c)
 *   speci_exec    a model put to work for one session: sequence memory, forward passes; of layers (models/net), or an
 *                application's engine (models/own)
 *   readers      safetensors, config.json (files_checkpoint.h)
 */
#ifndef SPEC_MODEL_H
#define SPEC_MODEL_H

#include "backends/backend.h"
#include "core/core.h"

/* ------------------------------------------------------------------ an architecture as data --- */

/* y = W x + b. The weight may be shared (tied embeddings): the model's list owns it. Rows of other blocks than those above them are
 * weights of their own, below w, and products of their own: the values of a GGUF file, say, of which some have more bits. */
enum { MODEL_LINEAR_MORE = 2 };
typedef struct model_linear {
    const spec_weight *w;
    int32_t n_in, n_out; /* n_out: of all */
    const float *bias;   /* device [n_out] or NULL */
    struct {
        const spec_weight *w; /* NULL: there is none */
        int32_t n_out;
    } more[MODEL_LINEAR_MORE];
} model_linear;

typedef struct model_norm {
    spec_norm_kind kind;
    int32_t dim, n_group;
    float eps;
    const float *weight, *bias; /* device [dim]; bias NULL for RMS */
} model_norm;

/* What a layer is made of: attention, a recurrent mixer, an MLP, ... A row that says what it computes and keeps, in files of its
 * own (models/net/net_mixer.h). */
typedef struct net_mixer net_mixer;

/* residual += scale * branch(norm(input)), or behind(branch(norm(input))) where there is a norm behind; input is the residual as
 * the branch finds it, or, in a parallel layer, as the layer found it. */
typedef struct model_branch {
    const net_mixer *mixer;
    void *own; /* what the mixer has to know of this layer: the struct of its header */
    float scale;
    model_norm norm;
    model_norm behind; /* of kind RMS_ADD; weight NULL: none */
    bool first;        /* of a head: reads what that takes in (model_intake.h) */
} model_branch;

#define MODEL_MAX_BRANCH 4
typedef struct model_layer {
    int32_t n_branch, parallel;
    model_branch branch[MODEL_MAX_BRANCH];
} model_layer;

typedef struct speci_exec_kind speci_exec_kind; /* models/exec.h */

struct spec_model {
    spec_backend *backend;
    const speci_exec_kind *exec; /* what puts it to work */
    spec_model_ops *own;        /* an application's engine: its callbacks, and no layers; else NULL */
    const spec_allocator *allocator;
    char *path;                 /* of an application's engine its name */
    const char *family;         /* static string: the row of model_table, or "own" */
    char *unknown_keys;         /* comma-separated, "" if none */
    const spec_tokenizer *tokenizer; /* NULL: ids only */
    spec_tokenizer *opened_tokenizer; /* to be closed: the one above, unless that is the application's */
    spec_dtype dtype;           /* compute type */
    spec_dtype weights;         /* AUTO, or what matrices were made of: blocks */
    int32_t n_vocab, dim, n_layer, n_ctx; /* n_ctx 0 = no limit */
    bool ctx_ends;              /* positions behind n_ctx have frequencies that change with each token (RoPE dynamic) */
    int32_t bos, n_eos;
    int32_t *eos;               /* [n_eos] */
    struct model_generation *generation; /* what generation_config.json says (model_generation.c); NULL: there is none */
    float embed_scale, logit_scale;
    float logit_cap;            /* logits are softly capped at it, and have no other scale; 0 = none */
    const spec_weight *embed;   /* a head: NULL where the target's serves, as head.w */
    model_layer *layers;        /* [n_layer] */
    struct model_intake *intake; /* of a head on another model's hidden states (model_intake.h), else NULL */
    char *told;                 /* of a head: what it is, in words */
    model_norm final_norm;
    model_linear head;
    uint64_t n_parameters, bytes_weights;
    uint64_t fingerprint;       /* of config.json and the weights (speci_model_fingerprint), or what the application says; 0:
                                   sequences cannot be saved */
    int32_t n_mixer;
    spec_mixer_count *mixers;   /* [n_mixer] */
    int32_t n_type;
    spec_type_count *types;     /* [n_type] of the file's tensors (model_types.c) */
    const char *format;         /* of the file; static, NULL: own */
    speci_holds holds;          /* by its sessions and drafters */
    struct model_owned *owned;  /* weights and vectors on the device, to free (model_own.c) */
};

/* Columns of its logits. A head may draft fewer ids than it is fed. */
static inline int32_t speci_model_n_logit(const spec_model *m) { return m->head.w ? m->head.n_out : m->n_vocab; }

/* Heads (model_intake.c): drafters whose network reads hidden rows of the target. Is it one? Does it go with this target? What it
 * needs of it: taps [n_tap]. The column of its logits for each id, -1: it cannot draft that; NULL: its own number. Does no drafted token
 * enter it? Has it a table about tokens? Fails, as for a model that was to generate; what it is, in words. */
static inline bool speci_model_is_head(const spec_model *m) { return m->intake != NULL; }
spec_status speci_head_check(const spec_model *head, const spec_model *target);
int32_t speci_head_n_tap(const spec_model *head);
void speci_head_taps(const spec_model *head, const spec_model *target, spec_tap *out);
const int32_t *speci_head_columns(const spec_model *head);
bool speci_head_chains(const spec_model *head);
bool speci_head_has_token_info(const spec_model *head);
spec_status speci_head_refuse(const spec_model *head);
void speci_head_tell(const spec_model *head, char *out, size_t cap);

/* One that has nothing yet but its path; spec_model_close ends it (model_object.c). */
spec_status speci_model_new(spec_model **out, spec_backend *backend, const speci_exec_kind *exec, const char *path);

/* The list of owned things (model_own.c): takes a matrix to the device; takes device memory; frees all. */
spec_status speci_model_own_weight(spec_model *m, const spec_weight **out, const spec_weight_desc *desc);
spec_status speci_model_own_memory(spec_model *m, void **out, size_t bytes);
void speci_model_free_owned(spec_model *m);

/* Its tokenizer (model_tokenizer.c): opens the one at `path` (spec_tokenizer_open); checks that the one that it has fits, and
 * takes the ids of BOS and EOS from it where the model has none. `path` is for messages. */
spec_status speci_model_open_tokenizer(spec_model *m, const char *path);
spec_status speci_model_fit_tokenizer(spec_model *m, const char *path);
/* A checksum of what its ids mean, for files that hold ids. 0: there is no tokenizer. */
uint64_t speci_tokenizer_sum(const spec_tokenizer *tokenizer);

/* Has it a layer with a KV cache? */
bool speci_model_attends(const spec_model *model);
/* What its mixers keep of a sequence: states and the inputs of convolutions, in one copy; KV of a position. */
typedef struct model_kept {
    uint64_t bytes_state, bytes_conv, bytes_kv_token;
} model_kept;
model_kept speci_model_kept(const spec_model *model);
/* Counts the mixers of its layers: n_mixer and mixers, by name. */
spec_status speci_model_list_mixers(spec_model *model);
/* Counts tensors and bytes of its file by type. */
struct model_checkpoint;
spec_status speci_model_list_types(spec_model *model, const struct model_checkpoint *c);

/* ------------------------------------------------------------- a model at work in a session --- */

typedef struct speci_exec speci_exec;

typedef struct speci_exec_params {
    int32_t n_seq;   /* sequences */
    int32_t n_ctx;   /* positions per sequence, pending token included; bounds the KV pool and prefill passes.
                        0 = no limit (no attention) */
    int32_t n_node;  /* nodes per tree, root included */
    bool recurrent;  /* Mamba-2 scans in the recurrent form too */
    bool node_state; /* a state kept per node, for trees that grow: recurrent */
    bool joint;      /* accepted paths are fed again in front of the next tree, in place of replay (9.3): n_seq times the
                        longest path more rows; trees are fed whole, in one pass */
    const spec_tap *taps; /* [n_tap] hidden rows that passes keep, copied */
    int32_t n_tap;
    int32_t n_chunk; /* tokens of a prefill pass at most, if the device has passes so small; 0 = the device's largest */
    const spec_model *target; /* of a head: whose rows it is given, and whose embedding and head it may borrow */
    bool collapsed;  /* of a head with token info: as one table */
} speci_exec_params;

/* A tree (or the next part of one) to feed: parents before children, none deeper than SPEC_MAX_DEPTH. tree->n nodes in
 * all, of which the first n_fed were fed before. */
typedef struct speci_exec_input {
    int32_t slot;
    const spec_tree *tree;
    int32_t n_fed;
    int32_t n_grown; /* nodes behind tree->n (which may then be 0) that stand in the feed of the call, on the device:
                        the tree has tree->n + n_grown nodes */
    int32_t depth;   /* with n_grown: at least the depth of the deepest of them */
} speci_exec_input;

/* Where the nodes are that grew on the device: node i of slot s at nodes[s * ld + i]. Or, of trees that have grown to a shape
 * that was known before, the tokens: those of all nodes of the inputs but the roots are taken from there. */
typedef struct speci_exec_feed {
    const spec_step_node *nodes;
    int32_t ld;
    const spec_grow_node *grown; /* node i of slot s at grown[s * ld_grown + i] */
    int32_t ld_grown;
} speci_exec_feed;

/* Where the likeliest token of each row of a pass goes (spec_argmax_args): to the host with the next sync, and to next. */
typedef struct speci_exec_tokens {
    int32_t *token;       /* [rows] */
    spec_step_node *next; /* device memory [rows], or NULL */
} speci_exec_tokens;

/* Are passes over when forward returns? Then it gains nothing to queue the next one behind them. */
bool speci_exec_waits(const spec_model *model);
/* Takes no device memory yet: the plans tell what a queue must be ready for, their addresses come with attach. */
spec_status speci_exec_open(speci_exec **out, const spec_model *model, const speci_exec_params *p);
void speci_exec_close(speci_exec *exec); /* NULL is fine */
/* The decode and the prefill plan, by phase: plans [2]. They have no operations where passes do not run on the device. */
void speci_exec_plans(const speci_exec *exec, spec_plan plans[2]);
/* Device bytes that attach takes: added to state, kv and work; a head's table of weights to the model's. */
void speci_exec_memory(const speci_exec *exec, spec_memory *out);
/* The same for an executor that is not to be opened. */
spec_status speci_exec_bytes(const spec_model *model, const speci_exec_params *p, spec_memory *out);
/* Takes the device memory, asks the backend for every ability, prepares the plans on `queue` (opened for the plans of
 * all executors that share it; it must outlive them). capture: their passes may be captured. */
spec_status speci_exec_attach(speci_exec *exec, spec_queue *queue, bool capture);

/* Sequences. Slots are [0, n_seq). begin: empty, states zero; nothing is enqueued before a pass. */
void speci_exec_begin(speci_exec *exec, int32_t slot);
void speci_exec_end(speci_exec *exec, int32_t slot);
/* What is called while a prompt is applied; each may be NULL. poll is asked before each pass, and true ends the work (E_ABORTED).
 * chunk is called when the pass over positions [first, first + n) is queued: row i of its taps is position first + i, until the
 * next pass. Its errors end the work. */
typedef struct speci_prefill_hooks {
    bool (*poll)(void *arg);
    spec_status (*chunk)(void *arg, int32_t first, int32_t n);
    void *arg;
    int32_t n_least; /* passes end when so many tokens are applied; 0 = with the last token */
    /* Called when the pass over these positions is about to be queued: a head's given rows [0, n) are to be set. */
    spec_status (*give)(void *arg, int32_t first, int32_t n);
} speci_prefill_hooks;
/* Applies ids [n] by prefill passes, behind what the sequence has (a pending path is applied first); hooks may be NULL. With
 * n_least those that are left are given again, by the next call. On any error the sequence is good for speci_exec_end only. */
spec_status speci_exec_prefill(speci_exec *exec, int32_t slot, const int32_t *ids, size_t n,
                               const speci_prefill_hooks *hooks);
/* One decode pass. Row of node i >= n_fed of input k: rows of the inputs in order. Consumes pending paths.
 * Everything is checked before the device is touched. feed may be NULL when nothing is grown. tokens: NULL, or arg-max of all
 * rows is wanted too. */
spec_status speci_exec_forward(speci_exec *exec, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                              const speci_exec_tokens *tokens);
/* Parts of a pass, of a head that no drafted token enters (speci_head_chains), whose layers run once per level and not once per node.
 *   LAYERS  what nodes hand down; no logits
 *   HEAD    logits of what the nodes' parents have handed down, without token info. The nodes are not fed: the caller takes them back
 *   INFO    adds token info to the logits that stand in the nodes' rows. No layer sees them, and they do not count as fed
 * Inputs and feed as for speci_exec_forward; of HEAD and INFO any number of nodes in front, at least one, is passed over. */
typedef enum speci_exec_part { SPECI_PART_LAYERS, SPECI_PART_HEAD, SPECI_PART_INFO } speci_exec_part;
spec_status speci_exec_forward_part(speci_exec *exec, speci_exec_part part, const speci_exec_input *in, int32_t n_in,
                                    const speci_exec_feed *feed);
/* Makes the device ready for passes over trees of so many nodes (spec_backend_ops.plan_warm). The sequence, which has no pending
 * path and nothing fed, is then good for speci_exec_end only. */
spec_status speci_exec_warm(speci_exec *exec, int32_t slot, const spec_tree *tree);
/* The path of the last tree that the next pass will apply (joint: whose tokens it feeds again); n_path <= 0 forgets
 * it. */
void speci_exec_commit(speci_exec *exec, int32_t slot, const int32_t *path, int32_t n_path);
/* The sequence is good for speci_exec_end only: what the device did for it is not known. */
void speci_exec_break(speci_exec *exec, int32_t slot);
/* Applies the pending path now, where the next pass would: fewer than two windows of recent tokens are left unfolded. The
 * bits of what follows are the same. */
spec_status speci_exec_flush(speci_exec *exec, int32_t slot);
/* Positions covered by state and KV, a pending path included. */
int32_t speci_exec_n_past(const speci_exec *exec, int32_t slot);
/* Of these, the last that the states of chunked scans do not cover yet. */
int32_t speci_exec_n_recent(const speci_exec *exec, int32_t slot);

/* Sequences as a whole. Slot `to`, which is empty, becomes a copy of `from`, whose pending path is
 * applied first. Its pages are taken before anything else: E_BUSY changes nothing. On any error `to` is empty. */
spec_status speci_exec_copy(speci_exec *exec, int32_t from, int32_t to);
/* Can a sequence of this executor that was flushed, or one that a file says was, have n_recent of its n_past positions behind its
 * states? */
bool speci_exec_can_lag(const speci_exec *exec, int32_t n_past, int32_t n_recent);
/* Bytes of a sequence that covers n_past positions, n_recent of them behind its states: of layers. */
uint64_t speci_exec_data_bytes(const speci_exec *exec, int32_t n_past, int32_t n_recent);
/* The same of a sequence that was flushed, as speci_exec_write will put them. E_UNSUPPORTED: it cannot be saved. */
spec_status speci_exec_seq_bytes(speci_exec *exec, int32_t slot, uint64_t *bytes);
/* A file says that a sequence has so many; E_FORMAT where they follow from the positions, and are others. `whose`: "target". */
spec_status speci_exec_check_bytes(const speci_exec *exec, int32_t n_past, int32_t n_recent, uint64_t bytes, const char *whose);
/* The bytes themselves, after speci_exec_flush. Of layers: of a model with two sets of frequencies a byte that tells which one turned
 * its keys; then, as they lie on the device, of each recurrent layer the convolution's window, the state, and of chunked scans x, B and dt of the recent tokens in order; then of each attention layer K and V, page by
 * page and head by head, the covered positions only.
 * put and get move n bytes in order; what they return ends the work. */
typedef spec_status (*speci_put_fn)(void *arg, const void *data, size_t n);
typedef spec_status (*speci_get_fn)(void *arg, void *data, size_t n);
spec_status speci_exec_write(speci_exec *exec, int32_t slot, speci_put_fn put, void *arg);
/* Begins the empty slot with what was written, `bytes` of it. E_FORMAT: keys were turned by the other set. On any error the sequence is good for speci_exec_end only. */
spec_status speci_exec_read(speci_exec *exec, int32_t slot, int32_t n_past, int32_t n_recent, uint64_t bytes, speci_get_fn get,
                            void *arg);

/* What an application's callbacks write and read of a saved sequence (model_stream.c): a spec_write_fn, whose bytes are counted
 * and, unless put is NULL, put on; a spec_read_fn over no more than `left` bytes; and the status of a callback that has read,
 * all of them it should have. `whose` is for messages: "drafter". */
typedef struct speci_app_writer {
    uint64_t n;
    speci_put_fn put;
    void *arg;
    spec_status status;
} speci_app_writer;
typedef struct speci_app_reader {
    const char *whose;
    uint64_t left;
    speci_get_fn get;
    void *arg;
    spec_status status;
} speci_app_reader;
int speci_app_write(void *writer, const void *data, size_t n);
int speci_app_read(void *reader, void *data, size_t n);
spec_status speci_app_read_end(const speci_app_reader *reader, spec_status status);

/* The row of node 0 (of node n_fed, when some were fed before) of input k of the last pass. */
int32_t speci_exec_first_row(const speci_exec *exec, int32_t k);
/* Logits of the last pass: f32, row r at + r * ld, ld = columns. */
float *speci_exec_logits(const speci_exec *exec, int32_t *ld);
/* Hidden rows of tap `tap` (of speci_exec_params): of the last decode pass, row numbers as for the logits; of the last prefill pass,
 * row i being the i-th token of its chunk. One phase leaves the other's alone. [rows][dim], f32 or (SPEC_TAP_NORM) compute type. */
spec_view speci_exec_tap(const speci_exec *exec, int32_t phase, int32_t tap);
/* A head's given rows of tap `tap`: what a pass reads that begins a tree (every n_fed 0), row numbers as for its logits; and prefill
 * passes. */
spec_view speci_exec_given(const speci_exec *exec, int32_t tap);
/* What arg-max takes of n_row rows of the last pass; the results' places are the caller's. */
spec_argmax_args speci_exec_argmax(const speci_exec *exec, int32_t first_row, int32_t n_row);

#endif
