/* exec.h - an executor: a model at work in one session, with the memory of its sequences and its forward passes. Internal.
 *
 * A kind of executor is a row of hooks, which algorithms call. They know neither kind:
 *   models/net    layers as plans of operations on the device
 *   models/own    an application's own engine, by its callbacks */
#ifndef SPEC_EXEC_H
#define SPEC_EXEC_H

#include "models/model.h"

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

/* A sequence that was written: the positions that it covers, those of them behind its states, and its bytes. */
typedef struct speci_exec_saved {
    int32_t n_past, n_recent;
    uint64_t bytes;
} speci_exec_saved;

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

/* Parts of a pass, of a head that no drafted token enters (speci_head_chains), whose layers run once per level and not once per node.
 *   LAYERS  what nodes hand down; no logits
 *   HEAD    logits of what the nodes' parents have handed down, without token info. The nodes are not fed: the caller takes them back
 *   INFO    adds token info to the logits that stand in the nodes' rows. No layer sees them, and they do not count as fed */
typedef enum speci_exec_part { SPECI_PART_LAYERS, SPECI_PART_HEAD, SPECI_PART_INFO } speci_exec_part;

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

/* put and get move n bytes of a saved sequence in order; what they return ends the work. */
typedef spec_status (*speci_put_fn)(void *arg, const void *data, size_t n);
typedef spec_status (*speci_get_fn)(void *arg, void *data, size_t n);

struct speci_exec_kind {
    bool waits; /* its passes are over when forward returns: to queue the next one behind them gains nothing */
    /* Gives back what a model of this kind has, but for what every model has (spec_model_close). */
    void (*close_model)(spec_model *model);

    /* Takes no device memory yet: the plans tell what a queue must be ready for, their addresses come with attach. */
    spec_status (*open)(speci_exec **out, const spec_model *model, const speci_exec_params *p);
    void (*close)(speci_exec *exec);
    /* The decode and the prefill plan, by phase: plans [2]. They have no operations where passes do not run on the device. */
    void (*plans)(const speci_exec *exec, spec_plan plans[2]);
    /* Device bytes that attach takes: added to state, kv and work; a head's table of weights to the model's. */
    void (*memory)(const speci_exec *exec, spec_memory *out);
    /* Takes the device memory, asks the backend for every ability, prepares the plans on `queue` (opened for the plans of
     * all executors that share it; it must outlive them). capture: their passes may be captured. */
    spec_status (*attach)(speci_exec *exec, spec_queue *queue, bool capture);

    /* Sequences. Slots are [0, n_seq). begin: empty, states zero; nothing is enqueued before a pass. */
    void (*begin)(speci_exec *exec, int32_t slot);
    void (*end)(speci_exec *exec, int32_t slot);
    /* Applies ids [n] by prefill passes, behind what the sequence has (a pending path is applied first); hooks may be NULL. With
     * n_least those that are left are given again, by the next call. After an error too, unless a pass has failed: then the sequence is
     * good for `end` only, as it is after an error of the hook `chunk`, whose rows do not come again. */
    spec_status (*prefill)(speci_exec *exec, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks);
    /* One decode pass. Row of node i >= n_fed of input k: rows of the inputs in order. Consumes pending paths.
     * Everything is checked before the device is touched. feed may be NULL when nothing is grown. tokens: NULL, or arg-max of all
     * rows is wanted too. */
    spec_status (*forward)(speci_exec *exec, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                           const speci_exec_tokens *tokens);
    /* The path of the last tree that the next pass will apply (joint: whose tokens it feeds again); n_path <= 0 forgets
     * it. */
    void (*commit)(speci_exec *exec, int32_t slot, const int32_t *path, int32_t n_path);
    /* The sequence is good for `end` only: what the device did for it is not known. */
    void (*break_seq)(speci_exec *exec, int32_t slot);
    /* Applies the pending path now, where the next pass would: fewer than two windows of recent tokens are left unfolded. The
     * bits of what follows are the same. */
    spec_status (*flush)(speci_exec *exec, int32_t slot);
    /* Positions covered by state and KV, a pending path included. */
    int32_t (*n_past)(const speci_exec *exec, int32_t slot);

    /* Sequences as a whole. Slot `to`, which is empty, becomes a copy of `from`, whose pending path is
     * applied first. Its pages are taken before anything else: E_BUSY changes nothing. On any error `to` is empty. */
    spec_status (*copy)(speci_exec *exec, int32_t from, int32_t to);
    /* Its bytes, after flush. Of layers: of a model with two sets of frequencies a byte that tells which one turned its keys; then,
     * as they lie on the device, of each recurrent layer the convolution's window, the state, and of chunked scans x, B and dt of
     * the recent tokens in order; then of each attention layer K and V, page by page and head by head, the covered positions only. */
    spec_status (*write)(speci_exec *exec, int32_t slot, speci_put_fn put, void *arg);
    /* Begins the empty slot with what was written. E_FORMAT: keys were turned by the other set. On any error the sequence is good for
     * `end` only. */
    spec_status (*read)(speci_exec *exec, int32_t slot, const speci_exec_saved *saved, speci_get_fn get, void *arg);
    /* One of the two: bytes of a sequence that covers n_past positions, n_recent of them behind its states; or, of a kind where
     * only a sequence can tell, of one that was flushed. */
    uint64_t (*data_bytes)(const speci_exec *exec, int32_t n_past, int32_t n_recent);
    spec_status (*seq_bytes)(speci_exec *exec, int32_t slot, uint64_t *bytes);

    /* Of a kind whose `open` takes taps: hidden rows of tap `tap` of the last decode pass, row numbers as for the logits; of the
     * last prefill pass, row i being the i-th token of its chunk. One phase leaves the other's alone. [rows][dim], f32 or
     * (SPEC_TAP_NORM) compute type. */
    spec_view (*tap)(const speci_exec *exec, int32_t phase, int32_t tap);
    /* Of a kind that has heads: the given rows of tap `tap`, which a pass reads that begins a tree (every n_fed 0), row numbers as
     * for its logits; and prefill passes. */
    spec_view (*given)(const speci_exec *exec, int32_t tap);
    /* ... and a part of a pass. Inputs and feed as for forward; of HEAD and INFO any number of nodes in front, at least one, is
     * passed over. */
    spec_status (*forward_part)(speci_exec *exec, speci_exec_part part, const speci_exec_input *in, int32_t n_in,
                                const speci_exec_feed *feed);
    /* Each may be NULL, and is called by the function of its name below: nothing is to be made ready; states never lag. */
    spec_status (*warm)(speci_exec *exec, const speci_exec_input *in, int32_t n_in);
    int32_t (*n_recent)(const speci_exec *exec, int32_t slot);
    bool (*can_lag)(const speci_exec *exec, int32_t n_past, int32_t n_recent);
};

extern const speci_exec_kind speci_exec_net; /* models/net */
extern const speci_exec_kind speci_exec_own; /* models/own */

/* What every executor begins with. */
struct speci_exec {
    const speci_exec_kind *kind;
    void *state;        /* the kind's own */
    const spec_model *model;
    int32_t n_logit;    /* columns of the logits: speci_model_n_logit */
    float *logits;      /* device f32 [rows][n_logit] of the last decode pass, from attach on */
    int32_t *first_row; /* [n_seq] of that pass: the row of input k's node 0, or, when some were fed before, of its node n_fed */
};

/* What holds of every kind (model_exec.c). */

void speci_exec_close(speci_exec *exec); /* NULL is fine */
/* Device bytes that an executor would take, as its `memory` says. */
spec_status speci_exec_bytes(const spec_model *model, const speci_exec_params *p, spec_memory *out);
/* Makes the device ready for passes over as many sequences with trees of so many nodes (spec_backend_ops.plan_warm). The sequences, which
 * have no pending path and nothing fed, are then good for `end` only. */
spec_status speci_exec_warm(speci_exec *exec, const speci_exec_input *in, int32_t n_in);
/* Of the positions that a sequence covers, the last that the states of chunked scans do not cover yet. */
int32_t speci_exec_n_recent(const speci_exec *exec, int32_t slot);
/* Can a sequence of this executor that was flushed, or one that a file says was, have n_recent of its n_past positions behind its
 * states? */
bool speci_exec_can_lag(const speci_exec *exec, int32_t n_past, int32_t n_recent);
/* Bytes of a sequence that was flushed, as `write` will put them. E_UNSUPPORTED: it cannot be saved. */
spec_status speci_exec_seq_bytes(speci_exec *exec, int32_t slot, uint64_t *bytes);
/* A file says that a sequence has so many; E_FORMAT where they follow from the positions, and are others. `whose`: "target". */
spec_status speci_exec_check_bytes(const speci_exec *exec, int32_t n_past, int32_t n_recent, uint64_t bytes, const char *whose);
/* What arg-max takes of n_row rows of the last pass; the results' places are the caller's. */
spec_argmax_args speci_exec_argmax(const speci_exec *exec, int32_t first_row, int32_t n_row);

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

#endif
