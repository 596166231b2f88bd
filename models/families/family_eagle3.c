/* family_eagle3.c - heads of EAGLE 3, in both layouts: three hidden rows of the target become one, attention reads [norm(embedding);
 * norm(hidden)], norm and head are its own, over fewer ids perhaps.
 * Sources: SafeAILab/EAGLE eagle/model/cnets.py; SpecForge llama3_eagle.py; speculators models/eagle3. */
#include "models/families/family.h"
#include "models/families/family_head.h"

#include <string.h>

bool speci_is_eagle3(const model_config *config, const model_checkpoint *checkpoint)
{
    const char *type = json_string_value(json_object_get(config->root, "speculators_model_type"));
    if (type) return strcmp(type, "eagle3") == 0;
    return speci_head_is_class(config, "Eagle3") || speci_head_has(checkpoint, "midlayer.self_attn.q_proj.weight");
}

/* --- config.json --- */

typedef struct eagle3_config {
    model_transformer layer;
    int32_t n_hidden, n_draft; /* columns of the target's rows; ids that it drafts */
    bool residual_normed, join_norm, given_norms, hands_normed;
    const json_t *ids;         /* of layers, or NULL */
    bool ids_are_inputs;       /* the file says that what enters these layers is meant: those of models/train do */
} eagle3_config;

/* The layer's sizes stand in an object of their own in the layout of speculators. */
static spec_status read_layer(model_config *c, model_transformer *out)
{
    model_config inner = { 0 };
    char *unknown = NULL;
    SPEC_TRY(speci_config_child(c, &inner, "transformer_layer_config"));
    if (!inner.root) return speci_head_read(c, out);
    spec_status status = speci_head_read(&inner, out);
    if (status == SPEC_OK) status = speci_config_check(&inner, &unknown, NULL);
    speci_free(NULL, unknown);
    speci_config_close(&inner);
    return status;
}

/* What says nothing of the network. */
static void pass_over(model_config *c)
{
    static const char *const keys[] = { "speculators_model_type", "speculators_config", "speculators_version", "auto_map",
                                        "use_aux_hidden_state", "target_model_type", "embed_requires_grad", "has_no_defaults_at_init" };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) (void)speci_config_take(c, keys[i]);
}

static spec_status read(model_config *c, eagle3_config *out)
{
    *out = (eagle3_config){ 0 };
    SPEC_TRY(read_layer(c, &out->layer));
    SPEC_TRY(speci_config_int_or(c, &out->n_hidden, "target_hidden_size", out->layer.dim, 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int_or(c, &out->n_draft, "draft_vocab_size", out->layer.n_vocab, 1, out->layer.n_vocab));
    SPEC_TRY(speci_config_bool_or(c, &out->residual_normed, "norm_before_residual", false));
    SPEC_TRY(speci_config_bool_or(c, &out->join_norm, "norm_before_fc", false));
    SPEC_TRY(speci_config_bool_or(c, &out->given_norms, "fc_norm", false));
    SPEC_TRY(speci_config_bool_or(c, &out->hands_normed, "norm_output", false));
    out->ids = speci_config_take(c, "eagle_aux_hidden_state_layer_ids");
    const json_t *more = speci_config_take(c, "eagle_config");
    if (!out->ids) out->ids = json_object_get(more, "eagle_aux_hidden_state_layer_ids");
    out->ids_are_inputs = json_is_true(speci_config_take(c, "layer_ids_are_inputs")) ||
                          json_is_true(json_object_get(more, "layer_ids_are_inputs"));
    pass_over(c);
    return SPEC_OK;
}

/* --- taps --- */

/* How many rows fc joins, by its shape. */
static spec_status count_taps(const model_builder *b, model_intake *in)
{
    const model_tensor *t = speci_checkpoint_find(b->checkpoint, "fc.weight");
    const int64_t n = t && t->n_dim == 2 ? t->dim[1] / in->n_hidden : 0;
    if (n < 1 || n > MODEL_MAX_TAP || t->dim[1] % in->n_hidden)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor fc.weight: expected shape [%d, n * %d], of at most %d hidden rows, found %s",
                          speci_checkpoint_path(b->checkpoint), b->model->dim, in->n_hidden, MODEL_MAX_TAP,
                          t ? speci_shape_of(t->n_dim, t->dim).s : "none");
    in->n_tap = (int32_t)n;
    return SPEC_OK;
}

/* There is a rule for three rows alone. */
static spec_status read_ids(const model_builder *b, model_intake *in, const json_t *ids, bool are_inputs)
{
    if (!ids && in->n_tap == 3) return SPEC_OK;
    if (json_array_size(ids) != (size_t)in->n_tap)
        return speci_fail(SPEC_E_FORMAT, "%s: eagle_aux_hidden_state_layer_ids has %zu entries, expected %d: fc.weight joins so many "
                          "hidden rows", b->config->file, json_array_size(ids), in->n_tap);
    for (int32_t i = 0; i < in->n_tap; i++) {
        const json_t *v = json_array_get(ids, (size_t)i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= MODEL_DIM_MAX)
            return speci_fail(SPEC_E_FORMAT, "%s: eagle_aux_hidden_state_layer_ids[%d] is %s, expected the number of a layer",
                              b->config->file, i, speci_value_of(v).s);
        in->said[i] = (int32_t)json_integer_value(v);
    }
    in->n_said = in->n_tap;
    in->believes = are_inputs || b->head_layers == SPEC_HEAD_LAYERS_FILE || in->n_tap != 3;
    return SPEC_OK;
}

/* --- the ids that it drafts --- */

static int64_t offset_at(const model_tensor *t, int32_t i)
{
    int64_t wide;
    int32_t narrow;
    if (strcmp(t->dtype_name, "I64") == 0) return memcpy(&wide, t->data + (size_t)i * sizeof wide, sizeof wide), wide;
    return memcpy(&narrow, t->data + (size_t)i * sizeof narrow, sizeof narrow), narrow;
}

/* d2t: draft id i is the target's id i + d2t[i]. */
static spec_status read_columns(model_builder *b, model_tensor *t, int32_t n_draft)
{
    spec_model *m = b->model;
    if (t->n_dim != 1 || t->dim[0] != n_draft || (strcmp(t->dtype_name, "I64") != 0 && strcmp(t->dtype_name, "I32") != 0))
        return speci_fail(SPEC_E_FORMAT, "%s: tensor d2t: expected I64 of shape [%d], found %s of shape %s", t->file, n_draft,
                          t->dtype_name, speci_shape_of(t->n_dim, t->dim).s);
    if (!(m->intake->columns = speci_alloc(m->allocator, (size_t)m->n_vocab, sizeof *m->intake->columns))) return SPEC_E_NOMEM;
    for (int32_t id = 0; id < m->n_vocab; id++) m->intake->columns[id] = -1;
    SPEC_TRY(speci_checkpoint_load(b->checkpoint, t));
    for (int32_t i = 0; i < n_draft; i++) {
        const int64_t offset = offset_at(t, i);
        if (offset < -(int64_t)i || offset >= (int64_t)m->n_vocab - i)
            return speci_fail(SPEC_E_FORMAT, "%s: tensor d2t: draft id %d is moved by %lld, out of the target's %d ids", t->file, i,
                              (long long)offset, m->n_vocab);
        int32_t *column = &m->intake->columns[i + offset];
        if (*column >= 0)
            return speci_fail(SPEC_E_FORMAT, "%s: tensor d2t: draft ids %d and %d are both the target's id %d", t->file, *column, i,
                              (int32_t)(i + offset));
        *column = i;
    }
    speci_checkpoint_done(b->checkpoint, t);
    t->used = true;
    return SPEC_OK;
}

static spec_status build_head(model_builder *b, int32_t n_draft)
{
    spec_model *m = b->model;
    model_tensor *map = speci_checkpoint_find(b->checkpoint, "d2t"), *back = speci_checkpoint_find(b->checkpoint, "t2d");
    if (back) back->used = true; /* the same told from the other side */
    if (!map && n_draft != m->n_vocab)
        return speci_fail(SPEC_E_FORMAT, "%s: tensor d2t is missing, which says what the %d ids of draft_vocab_size are among %d",
                          speci_checkpoint_path(b->checkpoint), n_draft, m->n_vocab);
    if (map) SPEC_TRY(read_columns(b, map, n_draft));
    if (!map && !speci_head_has(b->checkpoint, "lm_head.weight")) return SPEC_OK; /* the target's serves */
    return speci_model_build_linear(b, &m->head, "lm_head", n_draft, m->dim, false);
}

/* --- the network --- */

static spec_status rms(model_builder *b, model_norm *out, const char *prefix, int32_t dim, double eps)
{
    return speci_model_build_norm(b, out, SPEC_NORM_RMS, prefix, dim, eps);
}

static spec_status build_intake(model_builder *b, const eagle3_config *c, const char *layer)
{
    const model_transformer *t = &c->layer;
    model_intake *in = b->model->intake;
    in->residual_normed = c->residual_normed, in->hands_normed = c->hands_normed;
    SPEC_TRY(count_taps(b, in));
    SPEC_TRY(read_ids(b, in, c->ids, c->ids_are_inputs));
    SPEC_TRY(speci_model_build_linear(b, &in->join, "fc", t->dim, in->n_tap * in->n_hidden, speci_head_has(b->checkpoint, "fc.bias")));
    for (int32_t i = 0; c->given_norms && i < in->n_tap; i++)
        SPEC_TRY(rms(b, &in->given_norm[i], speci_namef("fc_norm.%d", i).s, in->n_hidden, t->eps));
    if (c->join_norm) SPEC_TRY(rms(b, &in->join_norm, "input_norm", in->join.n_in, t->eps));
    SPEC_TRY(rms(b, &in->token_norm, speci_namef("%s.input_layernorm", layer).s, t->dim, t->eps));
    return rms(b, &in->hidden_norm, speci_namef("%s.hidden_norm", layer).s, t->dim, t->eps);
}

spec_status speci_family_eagle3(model_builder *b)
{
    eagle3_config c;
    const char *layer = speci_head_has(b->checkpoint, "midlayer.hidden_norm.weight") ? "midlayer" : "layers.0";
    SPEC_TRY(read(b->config, &c));
    SPEC_TRY(speci_head_begin(b, &c.layer, "EAGLE-3", c.n_hidden));
    SPEC_TRY(build_intake(b, &c, layer));
    c.layer.qkv_in = 2 * c.layer.dim;
    SPEC_TRY(speci_head_layer(b, &c.layer, layer));
    SPEC_TRY(rms(b, &b->model->final_norm, "norm", c.layer.dim, c.layer.eps));
    SPEC_TRY(build_head(b, c.n_draft));
    return speci_head_embedding(b);
}
