/* family_build.h - from tensors by name to layers as data: what the families share. Internal.
 *
 * A family (family_<family>.c) reads config.json, calls speci_model_build_begin, and then makes each layer from the pieces
 * below. Every piece checks the shapes of its tensors, uploads them, and adds what it made to the model's list of
 * owned things, so that a family that fails leaves nothing behind. */
#ifndef SPEC_MODEL_BUILD_H
#define SPEC_MODEL_BUILD_H

#include "backends/backend_pack.h"
#include "models/files/files_checkpoint.h"
#include "models/files/files_config.h"
#include "models/families/family_rope.h"
#include "models/net/net_mixer_attention.h"

#define MODEL_DIM_MAX (1 << 24) /* of a dimension in config.json; keeps sums of a few of them in 32 bits */

/* How weights stand in the file where that is not as Hugging Face has them. */
typedef struct model_form {
    bool pairs_together; /* rows of q and k, which are apart from v: of each head 0, n / 2, 1, n / 2 + 1, .. */
    bool qkv_in_order;   /* q, k and v of all heads one after the other, for families that have them group by group */
    bool decays;         /* A itself, for log(-A) */
    bool norms;          /* weights of norms as they are used, for families that tell them above 1 */
} model_form;

typedef struct model_builder {
    spec_model *model;             /* under construction */
    model_checkpoint *checkpoint;
    model_config *config;          /* config.json */
    const char *dir;
    model_form form;
    bool norms_from_one;           /* the file tells weights of norms as what they are above 1 */
    spec_queue *queue;             /* for uploads */
    spec_progress_fn progress;
    void *progress_user_data;
    size_t bytes_done, bytes_total;
    int32_t n_unpacked;            /* matrices in blocks that the device has no use for as they are */
    size_t bytes_packed, bytes_unpacked; /* of these in the file, and on the device */
    spec_head_layers head_layers;
    bool shapes_only;              /* no weight is read: the tensors' names, shapes and types are checked */
    bool config_only, config_read; /* only config.json is wanted: speci_model_build_begin ends with E_ABORTED, and sets the latter */
} model_builder;

/* A tensor's name, made in place: speci_namef("model.layers.%d.norm", i).s lives to the end of the full expression. */
typedef struct model_name {
    char s[128];
} model_name;
model_name speci_namef(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Ends the reading of config.json: verifies the keys that nobody asked for, then makes n_layer empty layers. */
spec_status speci_model_build_begin(model_builder *b, int32_t n_vocab, int32_t dim, int32_t n_layer, int32_t n_ctx);

/* The tensor of that name and shape, marked as used. */
spec_status speci_model_build_tensor(model_builder *b, model_tensor **out, const char *name, int32_t n_dim,
                               const int64_t *dim);
/* Its bytes come to memory, on the backend's threads; and are on the device: the file's may go, and progress is told. */
spec_status speci_model_build_load(model_builder *b, const model_tensor *t);
spec_status speci_model_build_copied(model_builder *b, const model_tensor *t);
/* A tensor [n] of any float type, as float32 on the device. */
spec_status speci_model_build_vector(model_builder *b, const float **out, const char *name, int32_t n);
/* a = -exp(A_log), [n] or [n][n_state] */
spec_status speci_model_build_decay(model_builder *b, const float **out, const char *name, int32_t n, int32_t n_state);
/* <prefix>.weight [n_channel][1][width], and <prefix>.bias if there is one. */
typedef struct model_conv {
    const float *weight, *bias; /* device [n_channel][width], [n_channel] or NULL */
} model_conv;
spec_status speci_model_build_conv(model_builder *b, model_conv *out, const char *prefix, int32_t n_channel, int32_t width,
                                   bool bias);
/* [n] float32 from host memory. */
spec_status speci_model_build_upload(model_builder *b, const float **out, const float *data, size_t n);

/* <prefix>.weight [dim]. */
spec_status speci_model_build_norm_weight(model_builder *b, const float **out, const char *prefix, int32_t dim);
/* <prefix>.weight [dim], and <prefix>.bias for a layer norm. */
spec_status speci_model_build_norm(model_builder *b, model_norm *out, spec_norm_kind kind, const char *prefix, int32_t dim,
                             double eps);
/* A norm of which the file has nothing: weights of one, no bias. */
spec_status speci_model_build_norm_of_ones(model_builder *b, model_norm *out, spec_norm_kind kind, int32_t dim, double eps);

/* <prefix>.weight [n_out][n_in], and <prefix>.bias if there is one. */
spec_status speci_model_build_linear(model_builder *b, model_linear *out, const char *prefix, int32_t n_out, int32_t n_in,
                               bool bias);
/* Several of them, one below the other. With glu of a stack the first is the gate, the second what it multiplies. */
typedef struct model_part {
    model_name prefix;
    int32_t n_out;
    /* NULL: rows as they are. Else, in each n_from * n_run of them, runs of n_run rows: run i begins at row from[i] of these. So
     * for biases. */
    const int32_t *from;
    int32_t n_from, n_run;
} model_part;
#define MODEL_MAX_PART 3
typedef struct model_stack {
    const model_part *parts;
    int32_t n_part, n_in;
    bool bias, glu;
} model_stack;
spec_status speci_model_build_stack(model_builder *b, model_linear *out, const model_stack *stack);

/* How blocks of that type are made; NULL: it is none of blocks. */
const speci_packing *speci_packing_of(spec_dtype dtype);
/* What a matrix with such rows becomes where `weights` is asked for (speci_gguf_type_fitting), or AUTO: it stays what it is. */
spec_dtype speci_quantised_as(spec_dtype weights, int32_t n_in);
/* Rows [first, first + n) of a matrix, whose rows are whole blocks of both kinds, packed (files_quantise.c). */
spec_status speci_quantise(const speci_packing *packing, void *out, const model_tensor *t, int32_t first, int32_t n);

/* Embeddings and head. Tied: one matrix for both; a head in the file must then be its copy. */
spec_status speci_model_build_ends(model_builder *b, const char *embed, const char *head, bool tied);

/* Embeddings alone. */
spec_status speci_model_build_embed(model_builder *b, const char *embed);

/* The mixer of a branch: its `own`, all zeros. */
spec_status speci_model_build_mixer(model_builder *b, model_branch *out, const net_mixer *mixer);

/* Mamba-1 mixer, tensors <prefix>.in_proj and so on. */
typedef struct model_mamba1_shape {
    int32_t dim, n_inner, n_state, width, dt_rank;
    bool bias, conv_bias;
} model_mamba1_shape;
spec_status speci_model_build_mamba1(model_builder *b, model_branch *out, const char *prefix, const model_mamba1_shape *s);

/* Mamba-2 mixer. in_proj rows are [z | x | B | C | dt]; x, B and C have n_x, n_b and n_c columns and are shared by
 * consecutive heads when that is less than n_head blocks. */
typedef struct model_mamba2_shape {
    int32_t dim, n_head, head_dim, n_state;
    int32_t n_x, n_b, n_c;
    int32_t width;
    bool bias, conv_bias, norm, norm_first;
    int32_t n_norm_group;
    double eps;
    float dt_min, dt_max;
} model_mamba2_shape;
spec_status speci_model_build_mamba2(model_builder *b, model_branch *out, const char *prefix, const model_mamba2_shape *s);
/* The usual case: heads x head_dim = inner size, n_group groups of B and C, gated norm in as many groups. */
spec_status speci_mamba2_grouped(model_mamba2_shape *s, int32_t n_inner, int32_t n_group, const char *file);

/* Fails by the config's key where the device has no attention over such heads; before any of its weights are read. */
spec_status speci_model_build_check_heads(model_builder *b, const model_attention *a);

/* "silu", "gelu", ... as transformers' ACT2FN names them. */
spec_status speci_activation(spec_activation *out, const char *name, const char *file);
/* config.json's hidden_act of a family whose convolution uses it too: only silu. */
spec_status speci_silu_only(model_config *c, const char *key);

#endif
