/* family_granitemoehybrid.c - Granite 4, dense: layers of Mamba-2 or of attention, a gated MLP in all, and Granite's four
 * factors. Heads turn only where position_embedding_type says so. Source: transformers models/granitemoehybrid. */
#include <string.h>

#include "models/families/family.h"
#include "models/families/family_ssm.h"
#include "models/families/family_transformer.h"

typedef struct granite4 {
    model_transformer t;
    model_mamba2_shape m;
    model_granite_scales scales;
    const json_t *types; /* layer_types, or NULL: all are Mamba-2 */
} granite4;

static spec_status read_experts(model_config *c)
{
    int32_t n;
    SPEC_TRY(speci_config_int_or(c, &n, "num_local_experts", 8, 0, MODEL_DIM_MAX));
    (void)speci_config_take(c, "num_experts_per_tok");
    speci_config_note(c, "num_experts_per_tok", json_integer(0));
    if (n == 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: num_local_experts is %d, expected 0: mixtures of experts are not supported",
                      c->file, n);
}

static spec_status read_positions(model_config *c, model_transformer *t)
{
    const char *type;
    SPEC_TRY(speci_config_string_or(c, &type, "position_embedding_type", "nope"));
    if (strcmp(type, "nope") == 0) t->rope.partial = 0;
    else if (strcmp(type, "rope") != 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: position_embedding_type is \"%.60s\", expected rope or nope", c->file, type);
    return SPEC_OK;
}

/* The names of transformers 5 and the older ones. */
static bool is_type(const json_t *v, const char *name, const char *older)
{
    const char *type = json_is_string(v) ? json_string_value(v) : "";
    return strcmp(type, name) == 0 || strcmp(type, older) == 0;
}

static bool is_attention(const json_t *v) { return is_type(v, "full_attention", "attention"); }

static spec_status read_types(model_config *c, granite4 *s)
{
    const char *key = speci_config_has(c, "layer_types") ? "layer_types" : "layers_block_type";
    s->types = speci_config_take(c, key);
    if (!s->types) return SPEC_OK;
    SPEC_TRY(speci_transformer_check_layers(c, key, s->types, s->t.n_layer));
    for (size_t i = 0; i < json_array_size(s->types); i++) {
        const json_t *v = json_array_get(s->types, i);
        if (!is_attention(v) && !is_type(v, "linear_attention", "mamba"))
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s[%zu] is %s, expected mamba or attention", c->file, key, i,
                              speci_value_of(v).s);
    }
    return SPEC_OK;
}

static spec_status read_config(model_config *c, granite4 *s)
{
    const model_transformer_defaults defaults = { .n_ctx = 2048, .eps = 1e-6, .rope = speci_rope_whole_head };
    static const char *const training[] = { "init_method", "output_router_logits", "router_aux_loss_coef" };
    model_transformer *t = &s->t;
    SPEC_TRY(speci_silu_only(c, "hidden_act")); /* the convolution uses it, too */
    SPEC_TRY(speci_transformer_read(c, t, &defaults));
    SPEC_TRY(speci_config_int_or(c, &t->n_inner, "shared_intermediate_size", 1024, 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_bool_or(c, &t->qkv_bias, "attention_bias", false));
    SPEC_TRY(speci_granite_read_scales(c, t, &s->scales));
    SPEC_TRY(speci_bamba_read_mamba(c, &s->m, t));
    SPEC_TRY(read_experts(c));
    SPEC_TRY(read_positions(c, t));
    SPEC_TRY(read_types(c, s));
    SPEC_TRY(speci_config_agree_text(c, "normalization_function", "rmsnorm"));
    for (size_t i = 0; i < sizeof training / sizeof *training; i++) (void)speci_config_take(c, training[i]);
    t->out_bias = t->qkv_bias;
    t->fused_mlp = true;
    return SPEC_OK;
}

spec_status speci_family_granitemoehybrid(model_builder *b)
{
    spec_model *m = b->model;
    model_transformer_names names = speci_llama_names;
    granite4 s = { 0 };
    SPEC_TRY(read_config(b->config, &s));
    names.gate_up = "input_linear", names.down = "output_linear";
    s.t.names = &names;
    SPEC_TRY(speci_model_build_begin(b, s.t.n_vocab, s.t.dim, s.t.n_layer, s.t.n_ctx));
    SPEC_TRY(speci_model_build_ends(b, "model.embed_tokens.weight", "lm_head.weight", s.t.tied));
    SPEC_TRY(speci_model_build_norm(b, &m->final_norm, SPEC_NORM_RMS, "model.norm", s.t.dim, s.t.eps));
    for (int32_t i = 0; i < s.t.n_layer; i++) {
        const model_name layer = speci_namef("model.layers.%d", i);
        model_layer *l = &m->layers[i];
        l->n_branch = 2;
        SPEC_TRY(is_attention(json_array_get(s.types, (size_t)i))
                     ? speci_transformer_attention(b, &l->branch[0], &s.t, layer.s, "input_layernorm", 0)
                     : speci_bamba_build_mamba(b, &l->branch[0], &s.t, &s.m, layer.s));
        SPEC_TRY(speci_transformer_mlp(b, &l->branch[1], &s.t, layer.s, "post_attention_layernorm", "shared_mlp"));
    }
    m->embed_scale = s.scales.embed, m->logit_scale = s.scales.logits;
    return SPEC_OK;
}
