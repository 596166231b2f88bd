/* family_bamba.c - Bamba: Mamba-2 layers, attention in a few, a gated MLP in all. Source: transformers models/bamba.
 * Half of each attention head turns unless rope_parameters says otherwise. Gated norm: see family_mamba2.c. */
#include <string.h>

#include "models/families/family.h"
#include "models/families/family_ssm.h"
#include "models/families/family_transformer.h"

typedef struct bamba {
    model_transformer t;
    model_mamba2_shape m;
    const json_t *attention; /* attn_layer_indices, or NULL */
} bamba;

/* "auto" or absent: the inner size divided by the heads */
static spec_status read_head_dim(model_config *c, model_mamba2_shape *m, int32_t n_inner)
{
    const json_t *v = speci_config_take(c, "mamba_d_head");
    m->head_dim = n_inner / m->n_head;
    if (!v || (json_is_string(v) && strcmp(json_string_value(v), "auto") == 0)) return SPEC_OK;
    return speci_config_int(c, &m->head_dim, "mamba_d_head", 1, MODEL_HEAD_DIM_MAX);
}

spec_status speci_bamba_read_mamba(model_config *c, model_mamba2_shape *m, const model_transformer *t)
{
    int32_t expand, n_group;
    *m = (model_mamba2_shape){ .dim = t->dim, .eps = t->eps, .norm = true };
    SPEC_TRY(speci_config_int_or(c, &expand, "mamba_expand", 2, 1, MODEL_EXPAND_MAX));
    SPEC_TRY(speci_config_int_or(c, &m->n_head, "mamba_n_heads", 128, 1, MODEL_HEAD_MAX));
    SPEC_TRY(speci_config_int_or(c, &n_group, "mamba_n_groups", 1, 1, MODEL_HEAD_MAX));
    SPEC_TRY(speci_config_int_or(c, &m->n_state, "mamba_d_state", 256, 1, MODEL_STATE_MAX));
    SPEC_TRY(speci_config_int_or(c, &m->width, "mamba_d_conv", 4, 1, 64));
    SPEC_TRY(speci_config_bool_or(c, &m->bias, "mamba_proj_bias", false));
    SPEC_TRY(speci_config_bool_or(c, &m->conv_bias, "mamba_conv_bias", true));
    SPEC_TRY(speci_config_limits_or_none(c, &m->dt_min, &m->dt_max, "time_step_limit"));
    SPEC_TRY(read_head_dim(c, m, expand * t->dim));
    return speci_mamba2_grouped(m, expand * t->dim, n_group, c->file);
}

static spec_status read_config(model_config *c, bamba *s)
{
    const model_transformer_defaults defaults = {
        .n_ctx = 262144, .n_kv_head = 8, .eps = 1e-5,
        .rope = { .theta = "rope_theta", .partial = "partial_rotary_factor", .partial_default = 0.5 },
    };
    SPEC_TRY(speci_silu_only(c, "hidden_act")); /* the convolution uses it, too */
    SPEC_TRY(speci_transformer_read(c, &s->t, &defaults));
    SPEC_TRY(speci_transformer_read_biases(c, &s->t));
    SPEC_TRY(speci_bamba_read_mamba(c, &s->m, &s->t));
    return speci_transformer_layer_numbers(c, &s->attention, "attn_layer_indices", s->t.n_layer);
}

spec_status speci_bamba_build_mamba(model_builder *b, model_branch *out, const model_transformer *t,
                                    const model_mamba2_shape *m, const char *layer)
{
    *out = (model_branch){ .scale = t->residual_scale > 0 ? (float)t->residual_scale : 1.0f };
    SPEC_TRY(speci_model_build_norm(b, &out->norm, SPEC_NORM_RMS, speci_namef("%s.input_layernorm", layer).s, t->dim, t->eps));
    return speci_model_build_mamba2(b, out, speci_namef("%s.mamba", layer).s, m);
}

spec_status speci_family_bamba(model_builder *b)
{
    spec_model *m = b->model;
    bamba s = { 0 };
    SPEC_TRY(read_config(b->config, &s));
    SPEC_TRY(speci_model_build_begin(b, s.t.n_vocab, s.t.dim, s.t.n_layer, s.t.n_ctx));
    SPEC_TRY(speci_model_build_ends(b, "model.embed_tokens.weight", "lm_head.weight", s.t.tied));
    SPEC_TRY(speci_model_build_norm(b, &m->final_norm, SPEC_NORM_RMS, "model.final_layernorm", s.t.dim, s.t.eps));
    for (int32_t i = 0; i < s.t.n_layer; i++) {
        const model_name layer = speci_namef("model.layers.%d", i);
        model_layer *l = &m->layers[i];
        l->n_branch = 2;
        SPEC_TRY(speci_transformer_is_listed(s.attention, i)
                     ? speci_transformer_attention(b, &l->branch[0], &s.t, layer.s, "input_layernorm", 0)
                     : speci_bamba_build_mamba(b, &l->branch[0], &s.t, &s.m, layer.s));
        SPEC_TRY(speci_transformer_mlp(b, &l->branch[1], &s.t, layer.s, "pre_ff_layernorm", "feed_forward"));
    }
    return SPEC_OK;
}
