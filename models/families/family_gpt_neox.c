/* family_gpt_neox.c - GPT-NeoX and Pythia. Source: transformers models/gpt_neox.
 *
 *     x + attention(norm1(x)) + mlp(norm2(x))      use_parallel_residual (the default): both read the same x
 *
 * LayerNorm with bias; part of each head turns; query_key_value holds, head by head, [q; k; v]. */
#include <math.h>

#include "models/families/family.h"
#include "models/families/family_transformer.h"

typedef struct neox {
    int32_t dim, n_inner, n_layer, n_vocab, n_ctx, n_head, head_dim;
    double eps;
    spec_activation act;
    bool parallel, bias, tied;
    model_rope rope;
} neox;

static spec_status read_config(model_config *c, neox *s)
{
    const model_rope_keys rope = { .theta = "rotary_emb_base", .partial = "rotary_pct", .partial_default = 0.25,
                                   .partial_top_counts = true };
    const char *act;
    SPEC_TRY(speci_config_int(c, &s->n_vocab, "vocab_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &s->dim, "hidden_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &s->n_inner, "intermediate_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &s->n_layer, "num_hidden_layers", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &s->n_head, "num_attention_heads", 1, MODEL_HEAD_MAX));
    SPEC_TRY(speci_config_int_or(c, &s->n_ctx, "max_position_embeddings", 2048, 1, INT32_MAX));
    if (s->dim % s->n_head || s->dim / s->n_head > MODEL_HEAD_DIM_MAX)
        return speci_fail(SPEC_E_FORMAT,
                          "%s: num_attention_heads is %d, expected a divisor of hidden_size, %d, with heads of at most %d",
                          c->file, s->n_head, s->dim, MODEL_HEAD_DIM_MAX);
    s->head_dim = s->dim / s->n_head;
    SPEC_TRY(speci_config_number_or(c, &s->eps, "layer_norm_eps", 1e-5, 0, 1));
    SPEC_TRY(speci_config_bool_or(c, &s->parallel, "use_parallel_residual", true));
    SPEC_TRY(speci_config_bool_or(c, &s->bias, "attention_bias", true));
    SPEC_TRY(speci_config_bool_or(c, &s->tied, "tie_word_embeddings", false));
    SPEC_TRY(speci_config_string_or(c, &act, "hidden_act", "gelu"));
    SPEC_TRY(speci_activation(&s->act, act, c->file));
    return speci_rope_read(c, &s->rope, &rope);
}

/* [q0 k0 v0 q1 k1 v1 ...] becomes [q0 q1 ... k0 k1 ... v0 v1 ...], in runs of head_dim rows. */
static spec_status build_qkv(model_builder *b, model_linear *out, const neox *s, const char *layer)
{
    const int32_t n_run = 3 * s->n_head;
    int32_t *from = speci_alloc(b->model->allocator, (size_t)n_run, sizeof *from);
    if (!from) return SPEC_E_NOMEM;
    for (int32_t j = 0; j < 3; j++)
        for (int32_t h = 0; h < s->n_head; h++) from[j * s->n_head + h] = (3 * h + j) * s->head_dim;
    const model_part part = { speci_namef("%s.attention.query_key_value", layer), 3 * s->dim, from, s->head_dim };
    const spec_status status = speci_model_build_stack(b, out, &part, 1, s->dim, s->bias, false);
    speci_free(b->model->allocator, from);
    return status;
}

static spec_status build_attention(model_builder *b, model_branch *out, const neox *s, const char *layer)
{
    model_attention *a = &out->u.attention;
    *out = (model_branch){ .kind = MODEL_ATTENTION, .scale = 1.0f };
    *a = (model_attention){ .n_head = s->n_head, .n_kv_head = s->n_head, .head_dim = s->head_dim,
                            .scale = (float)(1.0 / sqrt(s->head_dim)) };
    SPEC_TRY(speci_model_build_norm(b, &out->norm, SPEC_NORM_LAYER, speci_namef("%s.input_layernorm", layer).s, s->dim,
                              s->eps));
    SPEC_TRY(build_qkv(b, &a->qkv, s, layer));
    SPEC_TRY(speci_model_build_linear(b, &a->out, speci_namef("%s.attention.dense", layer).s, s->dim, s->dim, s->bias));
    return speci_transformer_rope(b, a, &s->rope);
}

static spec_status build_mlp(model_builder *b, model_branch *out, const neox *s, const char *layer)
{
    *out = (model_branch){ .kind = MODEL_MLP, .scale = 1.0f };
    out->u.mlp = (model_mlp){ .act = s->act, .n_inner = s->n_inner };
    SPEC_TRY(speci_model_build_norm(b, &out->norm, SPEC_NORM_LAYER, speci_namef("%s.post_attention_layernorm", layer).s,
                              s->dim, s->eps));
    SPEC_TRY(speci_model_build_linear(b, &out->u.mlp.up, speci_namef("%s.mlp.dense_h_to_4h", layer).s, s->n_inner, s->dim,
                                true));
    return speci_model_build_linear(b, &out->u.mlp.down, speci_namef("%s.mlp.dense_4h_to_h", layer).s, s->dim, s->n_inner,
                              true);
}

spec_status speci_family_gpt_neox(model_builder *b)
{
    spec_model *m = b->model;
    neox s = { 0 };
    SPEC_TRY(read_config(b->config, &s));
    SPEC_TRY(speci_model_build_begin(b, s.n_vocab, s.dim, s.n_layer, s.n_ctx));
    SPEC_TRY(speci_model_build_ends(b, "gpt_neox.embed_in.weight", "embed_out.weight", s.tied));
    SPEC_TRY(speci_model_build_norm(b, &m->final_norm, SPEC_NORM_LAYER, "gpt_neox.final_layer_norm", s.dim, s.eps));
    for (int32_t i = 0; i < s.n_layer; i++) {
        const model_name layer = speci_namef("gpt_neox.layers.%d", i);
        model_layer *l = &m->layers[i];
        l->n_branch = 2;
        l->parallel = s.parallel;
        SPEC_TRY(build_attention(b, &l->branch[0], &s, layer.s));
        SPEC_TRY(build_mlp(b, &l->branch[1], &s, layer.s));
    }
    return SPEC_OK;
}
