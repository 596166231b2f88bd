/* family_mambainllama.c - hybrids distilled from Llama: Mamba-2 in some layers, Llama's attention in the others.
 * Source: jxiw/MambaInLlama mamba2/hybrid_mamba_layer.py, hybrid_wrapper.py, hybrid_mamba_config.py.
 *
 * Two files: config.json is that of the Llama that it came from, mamba_config.json says what was replaced. The mixer
 * is Mamba-2 with x and B shared by d_inner / d_xb heads, as K and V were (x from v_proj, B from k_proj, C from
 * q_proj): in_proj = [z | x | B | C | dt], convolution first, then the sharing. Attention layers follow config.json,
 * rotary scaling included, as in training. */
#include <math.h>
#include <string.h>

#include "models/families/family.h"
#include "models/families/family_ssm.h"
#include "models/families/family_transformer.h"

#define SECOND_CONFIG "mamba_config.json"

typedef struct hybrid {
    model_transformer t;
    model_mamba2_shape m;
    bool *attention; /* [n_layer] */
} hybrid;

bool speci_is_mambainllama(const model_config *config, const char *dir)
{
    (void)config;
    return speci_has_file(dir, SECOND_CONFIG);
}

static spec_status agree_with_llama(model_config *c, const model_transformer *t)
{
    double eps;
    spec_activation act = t->act;
    const char *name;
    SPEC_TRY(speci_config_agree(c, "d_model", t->dim));
    SPEC_TRY(speci_config_agree(c, "n_layer", t->n_layer));
    SPEC_TRY(speci_config_agree(c, "intermediate_size", t->n_inner));
    SPEC_TRY(speci_config_agree(c, "vocab_size", t->n_vocab));
    SPEC_TRY(speci_config_string_or(c, &name, "hidden_act", NULL));
    if (name) SPEC_TRY(speci_activation(&act, name, c->file));
    if (act != t->act) return speci_fail(SPEC_E_FORMAT, "%s: hidden_act is not that of config.json", c->file);
    /* Which of the two the norms of Mamba layers take has differed between the authors' modules. */
    SPEC_TRY(speci_config_number_or(c, &eps, "rms_norm_eps", t->eps, 0, 1));
    if (eps != t->eps)
        return speci_fail(SPEC_E_FORMAT, "%s: rms_norm_eps is %g, but config.json says %g", c->file, eps, t->eps);
    return SPEC_OK;
}

static spec_status read_layers(model_config *c, hybrid *h)
{
    static const char key[] = "attn_layers";
    const json_t *list;
    SPEC_TRY(speci_transformer_layer_numbers(c, &list, key, h->t.n_layer));
    if (!list) return speci_fail(SPEC_E_FORMAT, "%s: %s is null, expected a list of layers", c->file, key);
    for (int32_t i = 0; i < h->t.n_layer; i++) h->attention[i] = speci_transformer_is_listed(list, i);
    return SPEC_OK;
}

/* ssm_cfg goes to the mixer's constructor: every key counts. */
static spec_status read_ssm_cfg(model_config *c, model_mamba2_shape *m, int32_t n_inner)
{
    int32_t expand, n_group;
    if (!c->root) return speci_fail(SPEC_E_FORMAT, "%s: ssm_cfg is missing, expected an object", c->file);
    if (!speci_config_has(c, "ngroups"))
        return speci_fail(SPEC_E_UNSUPPORTED,
                          "%s: ssm_cfg.ngroups is missing: the hybrids with Mamba-1 layers are not supported", c->file);
    SPEC_TRY(speci_config_int(c, &n_group, "ngroups", 1, MODEL_HEAD_MAX));
    SPEC_TRY(speci_config_int(c, &m->n_state, "d_state", 1, MODEL_STATE_MAX));
    SPEC_TRY(speci_config_int_or(c, &m->width, "d_conv", 4, 1, 64));
    SPEC_TRY(speci_config_int_or(c, &expand, "expand", 1, 1, MODEL_EXPAND_MAX));
    SPEC_TRY(speci_config_all_known(c));
    if ((int64_t)expand * m->dim != n_inner)
        return speci_fail(SPEC_E_FORMAT, "%s: d_inner is %d, expected expand * d_model = %d", c->file, n_inner,
                          expand * m->dim);
    if ((int64_t)n_group * m->n_state != n_inner)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: ngroups * d_state is %d * %d, expected d_inner, %d", c->file, n_group,
                          m->n_state, n_inner);
    m->n_head = m->n_norm_group = n_group; /* a head per group, as large as its state */
    m->head_dim = m->n_state;
    return SPEC_OK;
}

static spec_status read_mixer(model_config *c, hybrid *h)
{
    model_mamba2_shape *m = &h->m;
    model_config cfg;
    int32_t n_inner, d_xb;
    *m = (model_mamba2_shape){ .dim = h->t.dim, .conv_bias = true, .norm = true, .eps = MODEL_SSM_EPS,
                               .dt_max = INFINITY };
    SPEC_TRY(speci_config_int(c, &n_inner, "d_inner", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &d_xb, "d_xb", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_child(c, &cfg, "ssm_cfg"));
    const spec_status status = read_ssm_cfg(&cfg, m, n_inner);
    speci_config_close(&cfg);
    m->n_x = m->n_b = d_xb;
    m->n_c = n_inner;
    return status;
}

static spec_status read_second(model_config *c, hybrid *h)
{
    SPEC_TRY(agree_with_llama(c, &h->t));
    SPEC_TRY(read_layers(c, h));
    SPEC_TRY(read_mixer(c, h));
    return speci_config_all_known(c);
}

static spec_status build_layer(model_builder *b, model_layer *l, const hybrid *h, int32_t i)
{
    const model_name layer = speci_namef("model.layers.%d", i);
    model_branch *mix = &l->branch[0];
    l->n_branch = 2;
    if (h->attention[i]) {
        SPEC_TRY(speci_transformer_attention(b, mix, &h->t, layer.s, "input_layernorm", 0));
    } else {
        *mix = (model_branch){ .scale = 1.0f };
        if (speci_checkpoint_find(b->checkpoint, speci_namef("%s.mamba.dt_proj.weight", layer.s).s))
            return speci_fail(SPEC_E_UNSUPPORTED,
                              "%s: %s.mamba.dt_proj.weight: the hybrids with Mamba-1 layers are not supported", b->dir,
                              layer.s);
        SPEC_TRY(speci_model_build_norm(b, &mix->norm, SPEC_NORM_RMS, speci_namef("%s.input_layernorm", layer.s).s, h->t.dim,
                                  h->t.eps));
        SPEC_TRY(speci_model_build_mamba2(b, mix, speci_namef("%s.mamba", layer.s).s, &h->m));
    }
    return speci_transformer_mlp(b, &l->branch[1], &h->t, layer.s, "post_attention_layernorm", "mlp");
}

static spec_status build(model_builder *b, const hybrid *h)
{
    spec_model *m = b->model;
    SPEC_TRY(speci_model_build_ends(b, "model.embed_tokens.weight", "lm_head.weight", h->t.tied));
    SPEC_TRY(speci_model_build_norm(b, &m->final_norm, SPEC_NORM_RMS, "model.norm", h->t.dim, h->t.eps));
    for (int32_t i = 0; i < h->t.n_layer; i++) SPEC_TRY(build_layer(b, &m->layers[i], h, i));
    return SPEC_OK;
}

static spec_status read_first(model_config *c, model_transformer *t)
{
    const model_transformer_defaults defaults = { .n_ctx = 2048, .eps = 1e-6, .rope = speci_rope_whole_head };
    const char *type;
    SPEC_TRY(speci_config_string_or(c, &type, "model_type", "llama"));
    if (strcmp(type, "llama") != 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: model_type is \"%.60s\" beside " SECOND_CONFIG ", expected llama",
                          c->file, type);
    return speci_transformer_read(c, t, &defaults);
}

spec_status speci_family_mambainllama(model_builder *b)
{
    const spec_allocator *a = b->model->allocator;
    char path[MODEL_MAX_PATH];
    model_config second = { 0 };
    hybrid h = { 0 };
    SPEC_TRY(read_first(b->config, &h.t));
    SPEC_TRY(speci_model_build_begin(b, h.t.n_vocab, h.t.dim, h.t.n_layer, h.t.n_ctx));
    SPEC_TRY(speci_path_join(path, sizeof path, b->dir, SECOND_CONFIG));
    h.attention = speci_alloc(a, (size_t)h.t.n_layer, sizeof *h.attention);
    spec_status status = h.attention ? speci_config_read(&second, path, a) : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = read_second(&second, &h);
    if (status == SPEC_OK) status = build(b, &h);
    speci_config_close(&second);
    speci_free(a, h.attention);
    return status;
}
