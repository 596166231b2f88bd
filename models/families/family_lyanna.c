/* family_lyanna.c - heads of "Make Every Draft Count": EAGLE-2's names, a chain of its own hidden rows that no drafted token enters, and
 * token info (token_info.*). Source: algorithms.md 17; there is no published layout, so this one is that of models/train/head_files.py. */
#include "models/families/family.h"
#include "models/families/family_head.h"

#include <string.h>

bool speci_is_lyanna(const model_config *config, const model_checkpoint *checkpoint)
{
    (void)checkpoint;
    return speci_head_is_class(config, "Lyanna");
}

/* --- token info --- */

static spec_status read_hot(model_builder *b, model_token_info *info)
{
    const spec_model *m = b->model;
    model_tensor *t = speci_checkpoint_find(b->checkpoint, "token_info.hot_ids");
    if (!t || t->n_dim != 1 || t->dim[0] != info->n_hot || strcmp(t->dtype_name, "I32") != 0)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor token_info.hot_ids: expected I32 of shape [%d], found %s",
                          speci_checkpoint_path(b->checkpoint), info->n_hot, t ? speci_shape_of(t->n_dim, t->dim).s : "none");
    if (!(info->hot = speci_alloc(m->allocator, (size_t)info->n_hot, sizeof *info->hot))) return SPEC_E_NOMEM;
    SPEC_TRY(speci_checkpoint_load(b->checkpoint, t));
    memcpy(info->hot, t->data, (size_t)info->n_hot * sizeof *info->hot);
    speci_checkpoint_done(b->checkpoint, t);
    t->used = true;
    for (int32_t i = 0; i < info->n_hot; i++)
        if (info->hot[i] < 0 || info->hot[i] >= m->n_vocab || (i > 0 && info->hot[i] <= info->hot[i - 1]))
            return speci_fail(SPEC_E_FORMAT, "%s: tensor token_info.hot_ids: entry %d is %d, expected ascending ids below %d", t->file, i,
                              info->hot[i], m->n_vocab);
    return SPEC_OK;
}

/* A tensor's values in the host's memory, for the caller to free. */
static spec_status read_floats(model_builder *b, float **out, const char *name, int32_t n_dim, const int64_t *dim)
{
    model_tensor *t;
    const size_t n = (size_t)dim[0] * (size_t)(n_dim > 1 ? dim[1] : 1);
    SPEC_TRY(speci_model_build_tensor(b, &t, name, n_dim, dim));
    if (!(*out = speci_alloc(b->model->allocator, n, sizeof **out))) return SPEC_E_NOMEM;
    speci_tensor_floats(*out, t, 0, n);
    speci_checkpoint_done(b->checkpoint, t);
    return SPEC_OK;
}

/* Rows of W2 times the norm's weights, at their tokens. */
static spec_status build_out(model_builder *b, model_token_info *info)
{
    spec_model *m = b->model;
    const size_t r = (size_t)info->rank;
    float *rows = speci_alloc(m->allocator, (size_t)m->n_vocab * r, sizeof *rows);
    if (!rows) return SPEC_E_NOMEM;
    for (int32_t h = 0; h < info->n_hot; h++)
        for (size_t i = 0; i < r; i++) rows[(size_t)info->hot[h] * r + i] = info->norm[h] * info->w2[(size_t)h * r + i];
    const spec_weight_part part = { rows, m->n_vocab };
    const spec_weight_desc desc = { .n_out = m->n_vocab, .n_in = info->rank, .dtype = SPEC_DTYPE_F32, .compute = m->dtype,
                                    .parts = &part, .n_part = 1 };
    info->out = (model_linear){ .n_in = info->rank, .n_out = m->n_vocab };
    const spec_status status = speci_model_own_weight(m, &info->out.w, &desc);
    speci_free(m->allocator, rows);
    return status;
}

static spec_status build_info(model_builder *b, int32_t rank, int32_t n_hot, double eps)
{
    spec_model *m = b->model;
    model_token_info *info = m->intake->info = speci_alloc(m->allocator, 1, sizeof *info);
    if (!info) return SPEC_E_NOMEM;
    info->rank = rank, info->n_hot = n_hot, info->eps = (float)eps;
    SPEC_TRY(read_hot(b, info));
    SPEC_TRY(speci_model_build_linear(b, &info->w1, "token_info.w1", rank, m->dim, false));
    SPEC_TRY(read_floats(b, &info->w2, "token_info.w2.weight", 2, (int64_t[]){ n_hot, rank }));
    SPEC_TRY(read_floats(b, &info->norm, "token_info.norm.weight", 1, (int64_t[]){ n_hot }));
    return build_out(b, info);
}

/* --- the network --- */

spec_status speci_family_lyanna(model_builder *b)
{
    model_transformer t;
    bool bias;
    int32_t rank, n_hot;
    SPEC_TRY(speci_head_read(b->config, &t));
    SPEC_TRY(speci_config_bool_or(b->config, &bias, "bias", speci_head_has(b->checkpoint, "fc.bias")));
    SPEC_TRY(speci_config_int_or(b->config, &rank, "token_info_rank", 0, 0, t.dim));
    SPEC_TRY(speci_config_int_or(b->config, &n_hot, "token_info_hot", 0, 0, t.n_vocab));
    (void)speci_config_take(b->config, "draft_depth"); /* as deep as it was trained: any tree may go on */
    SPEC_TRY(speci_head_begin(b, &t, "Lyanna", t.dim));
    spec_model *m = b->model;
    model_intake *in = m->intake;
    in->after_norm = in->hands_input = true;
    SPEC_TRY(speci_model_build_linear(b, &in->fuse, "fc", t.dim, 2 * t.dim, bias));
    SPEC_TRY(speci_head_layer(b, &t, "layers.0"));
    m->final_norm = (model_norm){ .kind = SPEC_NORM_NONE, .dim = t.dim, .n_group = 1 };
    if (rank > 0 && n_hot > 0) SPEC_TRY(build_info(b, rank, n_hot, t.eps));
    return speci_head_embedding(b);
}
