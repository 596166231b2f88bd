/* family_lfm2.c - LFM2, dense: short convolutions, attention in some layers with norms on the heads of q and k, a gated MLP in all.
 * Source: transformers models/lfm2. Keys of the first files that the class does not read (block_dim, use_pos_enc, ...) must
 * say what holds anyway. */
#include <math.h>
#include <string.h>

#include "models/families/family.h"
#include "models/families/family_transformer.h"
#include "models/net/net_mixer_short_conv.h"

enum { INNER_DEFAULT = 12288, MULTIPLE_DEFAULT = 256, WIDTH_MIN = 2, WIDTH_MAX = 4 };

static const model_transformer_names names = { .attention = "self_attn", .out = "out_proj",
                                               .q_norm = "q_layernorm", .k_norm = "k_layernorm",
                                               .gate = "w1", .up = "w3", .down = "w2" };

typedef struct lfm2 {
    model_transformer t;
    int32_t width;
    bool conv_bias;
    const json_t *types, *attention; /* layer_types; without it full_attn_idxs; without both every layer attends */
} lfm2;

/* Lfm2MLP: two thirds, times a factor, rounded up. block_ff_dim is the older name and counts first. */
static spec_status read_inner(model_config *c, model_transformer *t)
{
    int32_t n, multiple;
    double factor;
    bool adjust;
    SPEC_TRY(speci_config_int_or(c, &n, "intermediate_size", INNER_DEFAULT, 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int_or(c, &n, "block_ff_dim", n, 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_bool_or(c, &adjust, "block_auto_adjust_ff_dim", true));
    SPEC_TRY(speci_config_number_or(c, &factor, "block_ffn_dim_multiplier", 1, 0, 1024));
    SPEC_TRY(speci_config_int_or(c, &multiple, "block_multiple_of", MULTIPLE_DEFAULT, 1, MODEL_DIM_MAX));
    t->n_inner = n;
    speci_config_note(c, "intermediate_size", json_integer(n));
    if (!adjust) return SPEC_OK;
    const double scaled = ceil(floor(factor * (double)(2 * (int64_t)n / 3)) / multiple) * multiple;
    if (scaled < 1 || scaled > MODEL_DIM_MAX)
        return speci_fail(SPEC_E_FORMAT, "%s: block_ffn_dim_multiplier is %g: an MLP of %g columns", c->file, factor, scaled);
    t->n_inner = (int32_t)scaled;
    speci_config_note(c, "intermediate_size", json_integer(t->n_inner));
    return SPEC_OK;
}

/* What the class does not read. */
static spec_status read_unread(model_config *c, const lfm2 *s)
{
    static const char *const training[] = { "block_mlp_init_scale", "block_out_init_scale", "block_use_xavier_init",
                                            "conv_use_xavier_init" };
    static const char *const widths[] = { "block_dim", "conv_dim", "conv_dim_out" };
    double eps, theta;
    for (size_t i = 0; i < sizeof training / sizeof *training; i++) speci_config_take(c, training[i]);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) SPEC_TRY(speci_config_agree(c, widths[i], s->t.dim));
    SPEC_TRY(speci_config_agree(c, "num_heads", s->t.n_head));
    SPEC_TRY(speci_config_agree_bool(c, "block_use_swiglu", true));
    SPEC_TRY(speci_config_agree_bool(c, "use_pos_enc", true));
    SPEC_TRY(speci_silu_only(c, "hidden_act"));
    SPEC_TRY(speci_config_number_or(c, &eps, "block_norm_eps", s->t.eps, 0, 1));
    SPEC_TRY(speci_config_number_or(c, &theta, "theta", s->t.rope.theta, 0, 1e15));
    if (eps != s->t.eps || theta != s->t.rope.theta)
        return speci_fail(SPEC_E_FORMAT, "%s: block_norm_eps is %g, theta is %g, but norm_eps is %g, rope_theta %g", c->file, eps,
                          theta, s->t.eps, s->t.rope.theta);
    return SPEC_OK;
}

static spec_status check_types(const model_config *c, const lfm2 *s)
{
    SPEC_TRY(speci_transformer_check_layers(c, "layer_types", s->types, s->t.n_layer));
    for (size_t i = 0; i < (size_t)s->t.n_layer; i++) {
        const json_t *v = json_array_get(s->types, i);
        const char *type = json_is_string(v) ? json_string_value(v) : "";
        if (strcmp(type, "conv") != 0 && strcmp(type, "full_attention") != 0)
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: layer_types[%zu] is %s, expected conv or full_attention", c->file, i,
                              speci_value_of(v).s);
    }
    return SPEC_OK;
}

/* What full_attn_idxs says is not looked at beside layer_types. */
static spec_status read_layers(model_config *c, lfm2 *s)
{
    s->types = speci_config_take(c, "layer_types");
    if (!s->types) return speci_transformer_layer_numbers(c, &s->attention, "full_attn_idxs", s->t.n_layer);
    (void)speci_config_take(c, "full_attn_idxs");
    return check_types(c, s);
}

static spec_status read_config(model_config *c, lfm2 *s)
{
    const model_transformer_defaults heads = { .n_kv_head = 8 };
    const model_rope_keys rope = { .theta = "rope_theta", .theta_default = 1e6, .partial = "partial_rotary_factor",
                                   .partial_default = 1, .whole_head = true };
    model_transformer *t = &s->t;
    *t = (model_transformer){ .act = SPEC_ACT_SILU, .qk_norm = true, .names = &names };
    SPEC_TRY(speci_config_int(c, &t->n_vocab, "vocab_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &t->dim, "hidden_size", 1, MODEL_DIM_MAX / 3)); /* in_proj has three times as many rows */
    SPEC_TRY(speci_config_int(c, &t->n_layer, "num_hidden_layers", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int_or(c, &t->n_ctx, "max_position_embeddings", 128000, 1, INT32_MAX));
    SPEC_TRY(speci_config_number_or(c, &t->eps, "norm_eps", 1e-5, 0, 1));
    SPEC_TRY(speci_config_bool_or(c, &t->tied, "tie_word_embeddings", true));
    SPEC_TRY(speci_config_bool_or(c, &t->tied, "tie_embedding", t->tied)); /* the older name, which counts first */
    speci_config_note(c, "tie_word_embeddings", json_boolean(t->tied));
    SPEC_TRY(speci_config_int_or(c, &s->width, "conv_L_cache", 3, WIDTH_MIN, WIDTH_MAX));
    SPEC_TRY(speci_config_bool_or(c, &s->conv_bias, "conv_bias", false));
    SPEC_TRY(read_inner(c, t));
    SPEC_TRY(speci_transformer_read_heads(c, t, &heads));
    SPEC_TRY(speci_rope_read(c, &t->rope, &rope));
    t->n_ctx = speci_rope_context(&t->rope, t->n_ctx);
    SPEC_TRY(read_unread(c, s));
    return read_layers(c, s);
}

static bool is_attention(const lfm2 *s, int32_t layer)
{
    if (s->types) return strcmp(json_string_value(json_array_get(s->types, (size_t)layer)), "conv") != 0;
    return !s->attention || speci_transformer_is_listed(s->attention, layer);
}

/* in_proj rows are [B | C | x]. */
static spec_status build_conv(model_builder *b, model_branch *out, const lfm2 *s, const char *layer)
{
    const int32_t dim = s->t.dim;
    model_conv conv;
    *out = (model_branch){ .scale = 1.0f };
    SPEC_TRY(speci_model_build_mixer(b, out, &speci_mixer_short_conv));
    model_short_conv *a = out->own;
    a->n_channel = dim, a->width = s->width;
    SPEC_TRY(speci_model_build_norm(b, &out->norm, SPEC_NORM_RMS, speci_namef("%s.operator_norm", layer).s, dim, s->t.eps));
    SPEC_TRY(speci_model_build_linear(b, &a->in, speci_namef("%s.conv.in_proj", layer).s, 3 * dim, dim, s->conv_bias));
    SPEC_TRY(speci_model_build_conv(b, &conv, speci_namef("%s.conv.conv", layer).s, dim, s->width, s->conv_bias));
    a->conv_weight = conv.weight, a->conv_bias = conv.bias;
    return speci_model_build_linear(b, &a->out, speci_namef("%s.conv.out_proj", layer).s, dim, dim, s->conv_bias);
}

spec_status speci_family_lfm2(model_builder *b)
{
    spec_model *m = b->model;
    lfm2 s = { 0 };
    SPEC_TRY(read_config(b->config, &s));
    SPEC_TRY(speci_model_build_begin(b, s.t.n_vocab, s.t.dim, s.t.n_layer, s.t.n_ctx));
    SPEC_TRY(speci_model_build_ends(b, "model.embed_tokens.weight", "lm_head.weight", s.t.tied));
    SPEC_TRY(speci_model_build_norm(b, &m->final_norm, SPEC_NORM_RMS, "model.embedding_norm", s.t.dim, s.t.eps));
    for (int32_t i = 0; i < s.t.n_layer; i++) {
        const model_name layer = speci_namef("model.layers.%d", i);
        model_layer *l = &m->layers[i];
        l->n_branch = 2;
        SPEC_TRY(is_attention(&s, i) ? speci_transformer_attention(b, &l->branch[0], &s.t, layer.s, "operator_norm", 0)
                                     : build_conv(b, &l->branch[0], &s, layer.s));
        SPEC_TRY(speci_transformer_mlp(b, &l->branch[1], &s.t, layer.s, "ffn_norm", "feed_forward"));
    }
    return SPEC_OK;
}
