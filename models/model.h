/* model.h - what a network is: weights on a backend, and layers as data.
 *
 * Internal. Knows no algorithm, and of the device only the vtable. A spec_model is immutable: made from a checkpoint
 * (files_checkpoint.h) by a family (family_<name>.c, one row in family_table.c). What it is at work in a session: exec.h. */
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
spec_status speci_model_ids_of_tokenizer(spec_model *m, const spec_tokenizer *tokenizer); /* bos and end tokens that no file gave */
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

#endif
