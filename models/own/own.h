/* own.h - inside of an executor whose passes are made by an application's engine: shared by the files of models/own. Internal.
 *
 *   own_model.c     the model: callbacks in place of layers     own_executor.c  open, attach, close
 *   own_sequence.c  sequences, and the end of their trees       own_prefill.c   prompts
 *   own_tree.c      trees as the engine is shown them           own_pass.c      score: logits to the device
 *   own_save.c      copy, write, read                           own_hooks.c     its row of hooks */
#ifndef SPEC_OWN_H
#define SPEC_OWN_H

#include "models/exec.h"

typedef struct own_seq {
    bool live;       /* the session has it */
    bool known;      /* and so has the engine, by the name `seq` */
    bool broken;     /* a device error left it between two passes: only good for end */
    bool has_tree;   /* the engine has nodes that no commit has ended */
    void *seq;
    int32_t n_past;  /* tokens that the engine has, without the pending path */
    int32_t n_path;  /* pending path */
    int32_t *path;   /* [n_node] */
    int32_t n_fed;   /* nodes of the current tree that were scored */
    spec_tree tree;  /* [n_node] the last one, as the engine was shown it */
    uint64_t n_saved; /* bytes, as they were counted last */
} own_seq;

typedef struct own_exec {
    speci_exec base;
    const spec_model_ops *app;
    const spec_backend_ops *ops;
    spec_device *dev;
    const spec_allocator *a;
    spec_queue *queue;
    int32_t n_seq, n_node;
    int32_t piece;         /* tokens of a prompt that the engine gets at once */
    own_seq *seqs;         /* [n_seq] */
    spec_model_tree *shown; /* [n_seq] the trees of a pass, */
    float *rows;            /* [n_seq * n_node][n_vocab] logits, where the engine writes them */
    spec_step_node *nodes;  /* [n_seq * n_node] what was fetched of trees that grew on the device */
    spec_grow_node *grown;
} own_exec;

/* speci_callback_status of the engine (own_sequence.c). */
spec_status speci_own_told(const own_exec *own, const char *callback, uint64_t n_failure, spec_status status);
spec_status speci_own_check_live(const own_exec *own, int32_t slot);
/* The engine has the sequence, and no tree of it: a pending path is applied, or what was scored is forgotten. */
spec_status speci_own_ready(own_exec *own, int32_t slot);
/* Fills the trees of the inputs: all nodes, those too that stand on the device, which it waits for (own_tree.c). */
spec_status speci_own_show(own_exec *own, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed);

/* --- the hooks of models/exec.h --- */

void speci_own_close_model(spec_model *model);
spec_status speci_own_open(speci_exec **out, const spec_model *model, const speci_exec_params *p);
void speci_own_close(speci_exec *exec);
void speci_own_plans(const speci_exec *exec, spec_plan plans[2]);
void speci_own_memory(const speci_exec *exec, spec_memory *out);
spec_status speci_own_attach(speci_exec *exec, spec_queue *queue, bool capture);
void speci_own_begin(speci_exec *exec, int32_t slot);
void speci_own_end(speci_exec *exec, int32_t slot);
void speci_own_commit(speci_exec *exec, int32_t slot, const int32_t *path, int32_t n_path);
void speci_own_break(speci_exec *exec, int32_t slot);
spec_status speci_own_flush(speci_exec *exec, int32_t slot);
int32_t speci_own_n_past(const speci_exec *exec, int32_t slot);
spec_status speci_own_prefill(speci_exec *exec, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks);
spec_status speci_own_forward(speci_exec *exec, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                              const speci_exec_tokens *tokens);
spec_status speci_own_copy(speci_exec *exec, int32_t from, int32_t to);
spec_status speci_own_seq_bytes(speci_exec *exec, int32_t slot, uint64_t *bytes);
spec_status speci_own_write(speci_exec *exec, int32_t slot, speci_put_fn put, void *arg);
spec_status speci_own_read(speci_exec *exec, int32_t slot, const speci_exec_saved *saved, speci_get_fn get, void *arg);

#endif
