/* family_build.c - tensors to norms and vectors on the device. Matrices: family_build_matrix.c; Mamba mixers: family_build_mixer.c. */
#include "models/families/family_build.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/net/net_mixer.h"

model_name speci_namef(const char *fmt, ...)
{
    model_name name;
    va_list args;
    va_start(args, fmt);
    vsnprintf(name.s, sizeof name.s, fmt, args); /* prefixes are ours and short */
    va_end(args);
    return name;
}

spec_status speci_model_build_begin(model_builder *b, int32_t n_vocab, int32_t dim, int32_t n_layer, int32_t n_ctx)
{
    spec_model *m = b->model;
    size_t n_tensor;
    speci_checkpoint_tensors(b->checkpoint, &n_tensor);
    speci_free(m->allocator, m->unknown_keys); /* of a config that was read before */
    m->unknown_keys = NULL;
    SPEC_TRY(speci_config_check(b->config, &m->unknown_keys, m->allocator));
    if ((size_t)n_layer > n_tensor) /* before the number is believed */
        return speci_fail(SPEC_E_FORMAT, "%s: %d layers, but %s has only %zu tensors", b->config->file, n_layer,
                          speci_checkpoint_path(b->checkpoint), n_tensor);
    b->config_read = true;
    if (b->config_only) return SPEC_E_ABORTED;
    m->layers = speci_alloc(m->allocator, (size_t)n_layer, sizeof *m->layers);
    if (!m->layers) return SPEC_E_NOMEM;
    m->n_vocab = n_vocab, m->dim = dim, m->n_layer = n_layer, m->n_ctx = n_ctx;
    m->embed_scale = m->logit_scale = 1.0f;
    return SPEC_OK;
}

spec_status speci_model_build_mixer(model_builder *b, model_branch *out, const net_mixer *mixer)
{
    out->mixer = mixer;
    out->own = speci_alloc(b->model->allocator, 1, mixer->bytes);
    return out->own ? SPEC_OK : SPEC_E_NOMEM;
}

/* --- heads --- */

spec_status speci_model_build_check_heads(model_builder *b, const model_attention *a)
{
    const spec_backend *be = b->model->backend;
    const spec_dtype t = b->model->dtype;
    const int32_t width = a->n_head * a->head_dim;
    const spec_kv kv = { .dtype = t, .n_page = 1, .n_kv_head = a->n_kv_head, .head_dim = a->head_dim };
    spec_op op = { .kind = SPEC_OP_ATTENTION,
                   .u.attention = { .q = { .dtype = SPEC_DTYPE_F32, .ld = width }, .n_head = a->n_head, .scale = a->scale,
                                    .window = a->window, .kv = kv, .y = { .dtype = t, .ld = width } } };
    char why[256];
    if (b->shapes_only) return SPEC_OK; /* it is not for this device */
    if (speci_op_supports(be->ops, be->dev, &op) == SPEC_OK) {
        op.u.attention.cap = a->cap;
        return speci_op_supports(be->ops, be->dev, &op);
    }
    snprintf(why, sizeof why, "%s", spec_last_error());
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: head_dim is %d (hidden_size / num_attention_heads where it is not said), and the compute "
                      "type %s: this device has no such attention: %s", b->config->file, a->head_dim, spec_dtype_name(t), why);
}

/* --- tensors --- */

static uint64_t product(int32_t n_dim, const int64_t *dim)
{
    uint64_t n = 1;
    for (int32_t i = 0; i < n_dim; i++) n *= (uint64_t)dim[i];
    return n;
}

static uint64_t count(const model_tensor *t) { return product(t->n_dim, t->dim); }

/* Vectors and the taps of convolutions, which are read in order, may be folded otherwise in a GGUF file: [n][1], [n_group][n / n_group],
 * [n_channel][width]. */
static bool is_folded(const model_builder *b, const model_tensor *t, int32_t n_dim, const int64_t *dim)
{
    return speci_checkpoint_gguf(b->checkpoint) && n_dim != 2 && count(t) == product(n_dim, dim);
}

typedef struct loading {
    const model_checkpoint *checkpoint;
    const model_tensor *t;
} loading;

enum { LOAD_BYTES = 4 << 20 };

static spec_status load_piece(void *arg, int32_t i)
{
    const loading *l = arg;
    const size_t at = (size_t)i * LOAD_BYTES, left = l->t->bytes - at;
    return speci_checkpoint_load_part(l->checkpoint, l->t, at, left < LOAD_BYTES ? left : LOAD_BYTES);
}

/* A file in the page cache is read no faster than new pages can be had. */
spec_status speci_model_build_load(model_builder *b, const model_tensor *t)
{
    loading l = { b->checkpoint, t };
    if (b->shapes_only) return SPEC_OK;
    return speci_parallel(b->model->backend, (int32_t)((t->bytes + LOAD_BYTES - 1) / LOAD_BYTES), load_piece, &l);
}

spec_status speci_model_build_tensor(model_builder *b, model_tensor **out, const char *name, int32_t n_dim,
                               const int64_t *dim)
{
    char stored[256];
    model_tensor *t = speci_checkpoint_find(b->checkpoint, name);
    if (!t)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s is missing, expected shape %s", speci_checkpoint_path(b->checkpoint),
                          speci_checkpoint_stored(b->checkpoint, name, stored, sizeof stored), speci_shape_of(n_dim, dim).s);
    if (!speci_tensor_has_shape(t, n_dim, dim) && !is_folded(b, t, n_dim, dim))
        return speci_fail(SPEC_E_FORMAT, "%s: tensor %s: expected shape %s, found %s", t->file, t->name,
                          speci_shape_of(n_dim, dim).s, speci_shape_of(t->n_dim, t->dim).s);
    if (t->dtype == SPEC_DTYPE_AUTO && !t->blocks)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: tensor %s: expected dtype F32, BF16 or F16%s, found %s", t->file, t->name,
                          speci_checkpoint_gguf(b->checkpoint) ? ", or Q2_K to Q8_0, IQ4_NL, IQ4_XS or MXFP4" : "", t->dtype_name);
    SPEC_TRY(speci_model_build_load(b, t));
    if (!t->used) b->model->n_parameters += count(t);
    t->used = true;
    *out = t;
    return SPEC_OK;
}

spec_status speci_model_build_copied(model_builder *b, const model_tensor *t)
{
    speci_checkpoint_done(b->checkpoint, t);
    b->bytes_done += t->bytes;
    if (!b->progress) return SPEC_OK;
    /* 1 is for the end: the tokenizer is still to come. */
    const double fraction = b->bytes_total ? 0.999 * (double)b->bytes_done / (double)b->bytes_total : 0.0;
    if (b->progress(b->progress_user_data, fraction) == 0) return SPEC_OK;
    return speci_fail(SPEC_E_ABORTED, "%s: loading was stopped by the application", b->dir);
}

/* --- vectors --- */

spec_status speci_model_build_upload(model_builder *b, const float **out, const float *data, size_t n)
{
    void *p = NULL;
    if (b->shapes_only) return SPEC_OK;
    SPEC_TRY(speci_model_own_memory(b->model, &p, n * sizeof *data));
    SPEC_TRY(b->model->backend->ops->upload(b->queue, p, data, n * sizeof *data));
    *out = p;
    return SPEC_OK;
}

/* Elements of t as float32, in the host's memory. */
static float *to_float(const model_builder *b, const model_tensor *t)
{
    const size_t n = (size_t)count(t);
    float *x = speci_alloc(b->model->allocator, n, sizeof *x);
    if (x) speci_tensor_floats(x, t, 0, n);
    return x;
}

typedef void (*map_fn)(float *x, size_t n);

static spec_status upload_tensor(model_builder *b, const float **out, const model_tensor *t, map_fn map)
{
    const size_t n = (size_t)count(t);
    if (b->shapes_only) return SPEC_OK;
    float *x = to_float(b, t);
    if (!x) return SPEC_E_NOMEM;
    if (map) map(x, n);
    const spec_status status = speci_model_build_upload(b, out, x, n);
    speci_free(b->model->allocator, x);
    SPEC_TRY(status);
    return speci_model_build_copied(b, t);
}

spec_status speci_model_build_vector(model_builder *b, const float **out, const char *name, int32_t n)
{
    model_tensor *t = NULL;
    SPEC_TRY(speci_model_build_tensor(b, &t, name, 1, (int64_t[]){ n }));
    return upload_tensor(b, out, t, NULL);
}

static void minus_exp(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] = -expf(x[i]);
}

spec_status speci_model_build_decay(model_builder *b, const float **out, const char *name, int32_t n, int32_t n_state)
{
    model_tensor *t = NULL;
    SPEC_TRY(speci_model_build_tensor(b, &t, name, n_state ? 2 : 1, (int64_t[]){ n, n_state }));
    return upload_tensor(b, out, t, b->form.decays ? NULL : minus_exp);
}

/* [n_channel][1][width] in the file, [n_channel][width] on the device: the same bytes in the same order. */
spec_status speci_model_build_conv(model_builder *b, model_conv *out, const char *prefix, int32_t n_channel, int32_t width,
                                   bool bias)
{
    model_tensor *t = NULL;
    *out = (model_conv){ 0 };
    SPEC_TRY(speci_model_build_tensor(b, &t, speci_namef("%s.weight", prefix).s, 3, (int64_t[]){ n_channel, 1, width }));
    SPEC_TRY(upload_tensor(b, &out->weight, t, NULL));
    return bias ? speci_model_build_vector(b, &out->bias, speci_namef("%s.bias", prefix).s, n_channel) : SPEC_OK;
}

static void plus_one(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++) x[i] += 1;
}

spec_status speci_model_build_norm_weight(model_builder *b, const float **out, const char *prefix, int32_t dim)
{
    model_tensor *t = NULL;
    SPEC_TRY(speci_model_build_tensor(b, &t, speci_namef("%s.weight", prefix).s, 1, (int64_t[]){ dim }));
    return upload_tensor(b, out, t, b->norms_from_one && !b->form.norms ? plus_one : NULL);
}

spec_status speci_model_build_norm(model_builder *b, model_norm *out, spec_norm_kind kind, const char *prefix, int32_t dim,
                             double eps)
{
    *out = (model_norm){ .kind = kind, .dim = dim, .n_group = 1, .eps = (float)eps };
    SPEC_TRY(speci_model_build_norm_weight(b, &out->weight, prefix, dim));
    if (kind != SPEC_NORM_LAYER) return SPEC_OK;
    return speci_model_build_vector(b, &out->bias, speci_namef("%s.bias", prefix).s, dim);
}

spec_status speci_model_build_norm_of_ones(model_builder *b, model_norm *out, spec_norm_kind kind, int32_t dim, double eps)
{
    float *x = speci_alloc(b->model->allocator, (size_t)dim, sizeof *x);
    if (!x) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < dim; i++) x[i] = 1;
    *out = (model_norm){ .kind = kind, .dim = dim, .n_group = 1, .eps = (float)eps };
    const spec_status status = speci_model_build_upload(b, &out->weight, x, (size_t)dim);
    speci_free(b->model->allocator, x);
    return status;
}

/* --- activations --- */

spec_status speci_activation(spec_activation *out, const char *name, const char *file)
{
    static const struct {
        const char *name;
        spec_activation act;
    } known[] = { /* transformers activations.py, ACT2FN */
        { "silu", SPEC_ACT_SILU },          { "swish", SPEC_ACT_SILU },
        { "gelu", SPEC_ACT_GELU },          { "gelu_new", SPEC_ACT_GELU_TANH },
        { "gelu_fast", SPEC_ACT_GELU_TANH }, { "gelu_pytorch_tanh", SPEC_ACT_GELU_TANH },
        { "relu", SPEC_ACT_RELU },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, name) == 0) {
            *out = known[i].act;
            return SPEC_OK;
        }
    return speci_fail(SPEC_E_UNSUPPORTED,
                      "%s: hidden_act is \"%.60s\", expected silu, gelu, gelu_new, gelu_pytorch_tanh or relu", file,
                      name);
}

spec_status speci_silu_only(model_config *c, const char *key)
{
    const char *name;
    SPEC_TRY(speci_config_string_or(c, &name, key, "silu"));
    if (strcmp(name, "silu") == 0 || strcmp(name, "swish") == 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s%s is \"%.60s\": Mamba layers are supported with silu only", c->file,
                      c->in, key, name);
}
