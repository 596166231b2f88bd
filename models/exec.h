/* exec.h - what stands behind the functions speci_exec_ of model.h: a row of hooks for each kind of executor. Internal to
 * models/.
 *
 *   models/net    layers as plans of operations on the device
 *   models/own    an application's own engine, by its callbacks
 *
 * What a hook does is said in model.h, at the function of its name; model_exec.c calls it. */
#ifndef SPEC_EXEC_H
#define SPEC_EXEC_H

#include "models/model.h"

struct speci_exec_kind {
    bool waits; /* its passes are over when forward returns: to queue the next one behind them gains nothing */
    /* Gives back what a model of this kind has, but for what every model has (spec_model_close). */
    void (*close_model)(spec_model *model);

    spec_status (*open)(speci_exec **out, const spec_model *model, const speci_exec_params *p);
    void (*close)(speci_exec *exec);
    void (*plans)(const speci_exec *exec, spec_plan plans[2]);
    void (*memory)(const speci_exec *exec, spec_memory *out);
    spec_status (*attach)(speci_exec *exec, spec_queue *queue, bool capture);

    void (*begin)(speci_exec *exec, int32_t slot);
    void (*end)(speci_exec *exec, int32_t slot);
    spec_status (*prefill)(speci_exec *exec, int32_t slot, const int32_t *ids, size_t n, const speci_prefill_hooks *hooks);
    spec_status (*forward)(speci_exec *exec, const speci_exec_input *in, int32_t n_in, const speci_exec_feed *feed,
                           const speci_exec_tokens *tokens);
    void (*commit)(speci_exec *exec, int32_t slot, const int32_t *path, int32_t n_path);
    void (*break_seq)(speci_exec *exec, int32_t slot);
    spec_status (*flush)(speci_exec *exec, int32_t slot);
    int32_t (*n_past)(const speci_exec *exec, int32_t slot);

    spec_status (*copy)(speci_exec *exec, int32_t from, int32_t to);
    spec_status (*write)(speci_exec *exec, int32_t slot, speci_put_fn put, void *arg);
    spec_status (*read)(speci_exec *exec, int32_t slot, int32_t n_past, int32_t n_recent, uint64_t bytes, speci_get_fn get,
                        void *arg);
    /* One of the two: bytes that follow from positions, or that a sequence alone can tell. */
    uint64_t (*data_bytes)(const speci_exec *exec, int32_t n_past, int32_t n_recent);
    spec_status (*seq_bytes)(speci_exec *exec, int32_t slot, uint64_t *bytes);

    /* Optional. NULL: there is nothing to make ready; states never lag; open takes no taps, no
     * heads. */
    spec_status (*warm)(speci_exec *exec, int32_t slot, const spec_tree *tree);
    int32_t (*n_recent)(const speci_exec *exec, int32_t slot);
    bool (*can_lag)(const speci_exec *exec, int32_t n_past, int32_t n_recent);
    spec_view (*tap)(const speci_exec *exec, int32_t phase, int32_t tap);
    spec_view (*given)(const speci_exec *exec, int32_t tap);
    spec_status (*forward_part)(speci_exec *exec, speci_exec_part part, const speci_exec_input *in, int32_t n_in,
                                const speci_exec_feed *feed);
};

extern const speci_exec_kind speci_exec_net; /* models/net */
extern const speci_exec_kind speci_exec_own; /* models/own */

/* What every executor begins with. */
struct speci_exec {
    const speci_exec_kind *kind;
    const spec_model *model;
    int32_t n_logit;    /* columns of the logits: speci_model_n_logit */
    float *logits;      /* device f32 [rows of a pass][n_logit], from attach on */
    int32_t *first_row; /* [n_seq] by input of the last decode pass */
};

/* What arg-max takes of n_row rows of logits [..][n_logit] (model_exec.c). */
spec_argmax_args speci_argmax_of(const float *logits, int32_t n_logit, int32_t first_row, int32_t n_row);

#endif
