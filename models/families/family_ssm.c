/* family_ssm.c - r += mixer(norm(r)) in every layer. Sources: transformers models/mamba, models/mamba2;
 * state-spaces/mamba mamba_ssm/models/config_mamba.py, mixer_seq_simple.py.
 *
 * residual_in_fp32 is accepted either way: our residual is always float32. */
#include "models/families/family_ssm.h"

#include <string.h>

static spec_status rms_only(model_config *c)
{
    bool rms;
    SPEC_TRY(speci_config_bool_or(c, &rms, "rms_norm", true));
    if (rms) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: rms_norm is false: Mamba models are supported with RMS norms only",
                      c->file);
}

spec_status speci_ssm_read(model_config *c, model_ssm *out, bool tied_default)
{
    *out = (model_ssm){ .embed = "backbone.embeddings.weight" };
    SPEC_TRY(speci_config_int(c, &out->n_vocab, "vocab_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &out->dim, "hidden_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &out->n_layer, "num_hidden_layers", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_number_or(c, &out->eps, "layer_norm_epsilon", 1e-5, 0, 1));
    SPEC_TRY(speci_config_bool_or(c, &out->tied, "tie_word_embeddings", tied_default));
    SPEC_TRY(rms_only(c));
    /* Files of the first converter repeat sizes in the original's names, and keep an ssm_cfg that says nothing. */
    SPEC_TRY(speci_config_agree(c, "d_model", out->dim));
    SPEC_TRY(speci_config_agree(c, "n_layer", out->n_layer));
    if (json_object_size(json_object_get(c->root, "ssm_cfg")) == 0) speci_config_take(c, "ssm_cfg");
    return speci_silu_only(c, "hidden_act");
}

/* --- the original layout --- */

bool speci_ssm_is_original(const model_config *c, const char **layer)
{
    const json_t *cfg = json_object_get(c->root, "ssm_cfg");
    const char *said = json_string_value(json_object_get(cfg, "layer"));
    *layer = said ? said : "Mamba1";
    return !speci_config_has(c, "model_type") && speci_config_has(c, "d_model") && speci_config_has(c, "n_layer");
}

/* Blocks that are not Mamba: attention in some layers, or an MLP in each (mixer_seq_simple.py, create_block). */
static spec_status only_mixers(model_config *c)
{
    const json_t *layers = speci_config_take(c, "attn_layer_idx");
    if (json_array_size(layers) > 0 || (layers && !json_is_array(layers)))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: attn_layer_idx is not empty: attention layers in the original layout "
                                              "are not supported", c->file);
    speci_config_take(c, "attn_cfg"); /* of no effect without layers */
    return rms_only(c);
}

spec_status speci_ssm_read_original(model_config *c, model_ssm *out)
{
    int32_t multiple;
    *out = (model_ssm){ .embed = "backbone.embedding.weight", .eps = MODEL_SSM_EPS };
    SPEC_TRY(speci_config_int(c, &out->dim, "d_model", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &out->n_layer, "n_layer", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &out->n_vocab, "vocab_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int_or(c, &multiple, "pad_vocab_size_multiple", 8, 1, 1 << 16));
    SPEC_TRY(speci_config_bool_or(c, &out->tied, "tie_embeddings", true));
    if (out->n_vocab % multiple) out->n_vocab += multiple - out->n_vocab % multiple;
    return only_mixers(c);
}

/* --- build --- */

static spec_status build_layer(model_builder *b, model_layer *l, const model_ssm *s, int32_t i, model_ssm_mixer mixer,
                               const void *shape)
{
    model_branch *branch = &l->branch[0];
    l->n_branch = 1;
    *branch = (model_branch){ .scale = 1.0f };
    SPEC_TRY(speci_model_build_norm(b, &branch->norm, SPEC_NORM_RMS, speci_namef("backbone.layers.%d.norm", i).s, s->dim,
                              s->eps));
    return mixer(b, branch, speci_namef("backbone.layers.%d.mixer", i).s, shape);
}

spec_status speci_ssm_build(model_builder *b, const model_ssm *s, model_ssm_mixer mixer, const void *shape)
{
    spec_model *m = b->model;
    SPEC_TRY(speci_model_build_begin(b, s->n_vocab, s->dim, s->n_layer, 0));
    SPEC_TRY(speci_model_build_ends(b, s->embed, "lm_head.weight", s->tied));
    SPEC_TRY(speci_model_build_norm(b, &m->final_norm, SPEC_NORM_RMS, "backbone.norm_f", s->dim, s->eps));
    for (int32_t i = 0; i < s->n_layer; i++) SPEC_TRY(build_layer(b, &m->layers[i], s, i, mixer, shape));
    return SPEC_OK;
}
