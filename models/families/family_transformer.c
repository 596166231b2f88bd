/* family_transformer.c - attention and MLP layers.
 * Source: transformers models/llama/modeling_llama.py; the other classes differ in what their families' files say. */
#include "models/families/family_transformer.h"

#include <math.h>

#include "models/net/net_mixer_mlp.h"

const model_rope_keys speci_rope_whole_head = { .theta = "rope_theta", .partial = "partial_rotary_factor",
                                                .partial_default = 1.0, .whole_head = true };

spec_status speci_transformer_read_heads(model_config *c, model_transformer *t, const model_transformer_defaults *d)
{
    SPEC_TRY(speci_config_int(c, &t->n_head, "num_attention_heads", 1, MODEL_HEAD_MAX));
    const int32_t n_kv = d->n_kv_head && !speci_config_present(c, "num_key_value_heads") ? d->n_kv_head : t->n_head;
    SPEC_TRY(speci_config_int_or(c, &t->n_kv_head, "num_key_value_heads", n_kv, 1, MODEL_HEAD_MAX));
    if (t->n_head % t->n_kv_head)
        return speci_fail(SPEC_E_FORMAT, "%s: num_key_value_heads is %d, expected a divisor of num_attention_heads, %d",
                          c->file, t->n_kv_head, t->n_head);
    const int32_t fallback = speci_config_present(c, "head_dim") ? 0 : d->head_dim; /* null: as if there were no default */
    const bool said = speci_config_has(c, "head_dim") || fallback;
    if (!said && t->dim % t->n_head)
        return speci_fail(SPEC_E_FORMAT, "%s: num_attention_heads is %d, expected a divisor of hidden_size, %d", c->file,
                          t->n_head, t->dim);
    if (!said && t->dim / t->n_head > MODEL_HEAD_DIM_MAX)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: heads of %d dimensions, expected at most %d", c->file,
                          t->dim / t->n_head, MODEL_HEAD_DIM_MAX);
    return speci_config_int_or(c, &t->head_dim, "head_dim", fallback ? fallback : t->dim / t->n_head, 1,
                               MODEL_HEAD_DIM_MAX);
}

/* Only another one than the class has by itself is noted: GGUF files have no key for it. */
static spec_status read_activation(model_config *c, spec_activation *out, const char *fallback)
{
    static const char key[] = "hidden_act";
    spec_activation usual;
    const char *name;
    SPEC_TRY(speci_config_string_or(c, &name, key, fallback));
    SPEC_TRY(speci_activation(out, name, c->file));
    SPEC_TRY(speci_activation(&usual, fallback, c->file));
    if (*out != usual) speci_config_note(c, key, json_string(name));
    return SPEC_OK;
}

static spec_status read_inner(model_config *c, model_transformer *t, int32_t times)
{
    static const char key[] = "intermediate_size";
    const int64_t fallback = (int64_t)t->dim * times;
    if (times == 0 || speci_config_has(c, key)) return speci_config_int(c, &t->n_inner, key, 1, MODEL_DIM_MAX);
    if (fallback <= MODEL_DIM_MAX) return speci_config_int_or(c, &t->n_inner, key, (int32_t)fallback, 1, MODEL_DIM_MAX);
    return speci_fail(SPEC_E_FORMAT, "%s: hidden_size is %d, too many for an MLP of %d times as many columns", c->file, t->dim, times);
}

spec_status speci_transformer_read(model_config *c, model_transformer *out, const model_transformer_defaults *d)
{
    *out = (model_transformer){ 0 };
    SPEC_TRY(speci_config_int(c, &out->n_vocab, "vocab_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &out->dim, "hidden_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(read_inner(c, out, d->n_inner_times));
    SPEC_TRY(speci_config_int(c, &out->n_layer, "num_hidden_layers", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int_or(c, &out->n_ctx, "max_position_embeddings", d->n_ctx, 1, INT32_MAX));
    SPEC_TRY(speci_transformer_read_heads(c, out, d));
    SPEC_TRY(speci_config_number_or(c, &out->eps, d->eps_key ? d->eps_key : "rms_norm_eps", d->eps, 0, 1));
    SPEC_TRY(speci_config_bool_or(c, &out->tied, "tie_word_embeddings", d->tied));
    SPEC_TRY(read_activation(c, &out->act, d->act ? d->act : "silu"));
    SPEC_TRY(d->two_ropes ? speci_rope_read_two(c, &out->rope, &out->rope_sliding, &d->rope) : speci_rope_read(c, &out->rope, &d->rope));
    out->n_ctx = speci_rope_context(&out->rope, out->n_ctx);
    return SPEC_OK;
}

spec_status speci_transformer_read_biases(model_config *c, model_transformer *t)
{
    SPEC_TRY(speci_config_bool_or(c, &t->qkv_bias, "attention_bias", false));
    t->out_bias = t->qkv_bias;
    return speci_config_bool_or(c, &t->mlp_bias, "mlp_bias", false);
}

const model_transformer_names speci_llama_names = {
    .embed = "model.embed_tokens.weight", .head = "lm_head", .final_norm = "model.norm", .layers = "model.layers",
    .norm1 = "input_layernorm", .norm2 = "post_attention_layernorm", .attention = "self_attn", .mlp = "mlp",
    .qkv = "qkv_proj", .out = "o_proj", .q_norm = "q_norm", .k_norm = "k_norm",
    .gate = "gate_proj", .up = "up_proj", .gate_up = "gate_up_proj", .down = "down_proj",
};

static const model_transformer_names *names_of(const model_transformer *t)
{
    return t->names ? t->names : &speci_llama_names;
}

static spec_status build_norm(model_builder *b, model_norm *out, const model_transformer *t, const char *prefix)
{
    if (!prefix) {
        *out = (model_norm){ .kind = SPEC_NORM_NONE, .dim = t->dim, .n_group = 1 };
        return SPEC_OK;
    }
    switch (t->norm) {
    case MODEL_NORM_LAYER: return speci_model_build_norm(b, out, SPEC_NORM_LAYER, prefix, t->dim, t->eps);
    case MODEL_NORM_LAYER_BARE: return speci_model_build_norm_of_ones(b, out, SPEC_NORM_LAYER, t->dim, t->eps);
    default: break;
    }
    SPEC_TRY(speci_model_build_norm(b, out, SPEC_NORM_RMS, prefix, t->dim, t->eps)); /* reads a weight alone */
    if (t->norm == MODEL_NORM_LAYER_SCALE) out->kind = SPEC_NORM_LAYER;
    return SPEC_OK;
}

/* inv_freq of a layer: [n_rot / 2] on the device; its scale is set, and multiplied by what the positions' scaling says. */
static spec_status build_rope(model_builder *b, model_attention *out, const model_rope *rope)
{
    float freq[MODEL_HEAD_DIM_MAX / 2];
    double score, turned;
    SPEC_TRY(speci_rope_dims(rope, &out->n_rot, out->head_dim, b->config->file));
    if (out->n_rot == 0) return SPEC_OK;
    if (rope->type == MODEL_ROPE_DYNAMIC) b->model->ctx_ends = true;
    speci_rope_gains(rope, &score, &turned, out->n_rot, out->head_dim);
    out->scale *= (float)score, out->gain = (float)turned;
    SPEC_TRY(speci_rope_frequencies(rope, freq, out->n_rot, b->config->file));
    SPEC_TRY(speci_model_build_upload(b, &out->inv_freq, freq, (size_t)out->n_rot / 2));
    out->n_short = speci_rope_short_length(rope);
    if (out->n_short == 0) return SPEC_OK;
    SPEC_TRY(speci_rope_long_frequencies(rope, freq, out->n_rot, b->config->file));
    return speci_model_build_upload(b, &out->inv_freq_long, freq, (size_t)out->n_rot / 2);
}

static spec_status qk_norms(model_builder *b, model_attention *a, const model_transformer *t, const char *prefix)
{
    const model_transformer_names *n = names_of(t);
    if (!t->qk_norm) return SPEC_OK;
    const model_name q = speci_namef("%s.%s", prefix, n->q_norm), k = speci_namef("%s.%s", prefix, n->k_norm);
    if (t->qk_norm_whole) {
        SPEC_TRY(speci_model_build_norm(b, &a->q_whole, SPEC_NORM_RMS, q.s, t->n_head * t->head_dim, t->eps));
        return speci_model_build_norm(b, &a->k_whole, SPEC_NORM_RMS, k.s, t->n_kv_head * t->head_dim, t->eps);
    }
    a->qk_eps = (float)t->eps;
    SPEC_TRY(speci_model_build_norm_weight(b, &a->q_norm, q.s, t->head_dim));
    return speci_model_build_norm_weight(b, &a->k_norm, k.s, t->head_dim);
}

/* A head's rows in the order in which pairs that turn together lie n_rot / 2 apart: 0 2 4 .. 1 3 5 .., then those that do not
 * turn. Scores are the same for any order that queries and keys share. */
static void pairs_apart(int32_t *from, int32_t head_dim, int32_t n_rot)
{
    for (int32_t i = 0; i < head_dim; i++) from[i] = i >= n_rot ? i : i < n_rot / 2 ? 2 * i : 2 * i + 1 - n_rot;
}

static int32_t qkv_in(const model_transformer *t) { return t->qkv_in > 0 ? t->qkv_in : t->dim; }

static spec_status qkv_apart(model_builder *b, model_linear *out, const model_transformer *t, const char *prefix)
{
    const int32_t n_q = t->n_head * t->head_dim, n_kv = t->n_kv_head * t->head_dim;
    model_part qkv[3] = { { .prefix = speci_namef("%s.q_proj", prefix), .n_out = n_q },
                          { .prefix = speci_namef("%s.k_proj", prefix), .n_out = n_kv },
                          { .prefix = speci_namef("%s.v_proj", prefix), .n_out = n_kv } };
    int32_t from[MODEL_HEAD_DIM_MAX], n_rot;
    if (t->interleaved || b->form.pairs_together) {
        SPEC_TRY(speci_rope_dims(&t->rope, &n_rot, t->head_dim, b->config->file));
        pairs_apart(from, t->head_dim, t->interleaved ? n_rot : t->head_dim);
        for (int32_t i = 0; i < 2; i++) qkv[i].from = from, qkv[i].n_from = t->head_dim, qkv[i].n_run = 1;
    }
    return speci_model_build_stack(b, out, &(model_stack){ .parts = qkv, .n_part = 3, .n_in = qkv_in(t), .bias = t->qkv_bias });
}

/* from [rows of q, k and v]: qkv_from, with pairs that are neighbours put apart in heads of q and k. */
static void fused_apart(int32_t *from, const model_transformer *t, int32_t n_rot)
{
    const int32_t n_turning = t->n_head + t->n_kv_head;
    for (int32_t h = 0; h < n_turning + t->n_kv_head; h++, from += t->head_dim) {
        pairs_apart(from, t->head_dim, h < n_turning ? n_rot : 0);
        for (int32_t k = 0; k < t->head_dim; k++) {
            const int32_t row = h * t->head_dim + from[k];
            from[k] = t->qkv_from ? t->qkv_from[row] : row;
        }
    }
}

static spec_status qkv_fused(model_builder *b, model_linear *out, const model_transformer *t, const char *prefix)
{
    const int32_t n_out = (t->n_head + 2 * t->n_kv_head) * t->head_dim;
    model_part all = { .prefix = speci_namef("%s.%s", prefix, names_of(t)->qkv), .n_out = n_out, .from = t->qkv_from, .n_from = n_out,
                       .n_run = 1 };
    const model_stack stack = { .parts = &all, .n_part = 1, .n_in = t->dim, .bias = t->qkv_bias };
    int32_t n_rot;
    if (!t->interleaved) return speci_model_build_stack(b, out, &stack);
    SPEC_TRY(speci_rope_dims(&t->rope, &n_rot, t->head_dim, b->config->file));
    int32_t *from = speci_alloc(b->model->allocator, (size_t)n_out, sizeof *from);
    if (!from) return SPEC_E_NOMEM;
    fused_apart(from, t, n_rot);
    all.from = from;
    const spec_status status = speci_model_build_stack(b, out, &stack);
    speci_free(b->model->allocator, from);
    return status;
}

/* Of each group its heads of q, then k and v, becomes [q0 q1 ... k0 k1 ... v0 v1 ...], in runs of head_dim rows. */
static void by_group(int32_t *from, const model_transformer *t)
{
    const int32_t n_q = t->n_head / t->n_kv_head, n_run = n_q + 2;
    for (int32_t h = 0; h < t->n_head; h++) *from++ = (h / n_q * n_run + h % n_q) * t->head_dim;
    for (int32_t j = n_q; j < n_run; j++)
        for (int32_t h = 0; h < t->n_kv_head; h++) *from++ = (h * n_run + j) * t->head_dim;
}

static spec_status qkv_by_group(model_builder *b, model_linear *out, const model_transformer *t, const char *prefix)
{
    const int32_t n_run = t->n_head + 2 * t->n_kv_head;
    int32_t *from = speci_alloc(b->model->allocator, (size_t)n_run, sizeof *from);
    if (!from) return SPEC_E_NOMEM;
    by_group(from, t);
    const model_part all = { speci_namef("%s.%s", prefix, names_of(t)->qkv), n_run * t->head_dim, from, n_run, t->head_dim };
    const model_stack stack = { .parts = &all, .n_part = 1, .n_in = t->dim, .bias = t->qkv_bias };
    const spec_status status = speci_model_build_stack(b, out, &stack);
    speci_free(b->model->allocator, from);
    return status;
}

static spec_status build_qkv(model_builder *b, model_linear *out, const model_transformer *t, const char *prefix)
{
    switch (t->qkv) {
    case MODEL_QKV_FUSED: return qkv_fused(b, out, t, prefix);
    case MODEL_QKV_BY_GROUP: return b->form.qkv_in_order ? qkv_fused(b, out, t, prefix) : qkv_by_group(b, out, t, prefix);
    default: return qkv_apart(b, out, t, prefix);
    }
}

static float residual_scale(const model_transformer *t) { return t->residual_scale > 0 ? (float)t->residual_scale : 1.0f; }

spec_status speci_transformer_attention(model_builder *b, model_branch *out, const model_transformer *t,
                                        const char *layer, const char *norm, int32_t window)
{
    const double scale = t->attention_scale > 0 ? t->attention_scale : 1.0 / sqrt(t->head_dim);
    *out = (model_branch){ .scale = residual_scale(t) };
    SPEC_TRY(speci_model_build_mixer(b, out, &speci_mixer_attention));
    model_attention *a = out->own;
    *a = (model_attention){ .n_head = t->n_head, .n_kv_head = t->n_kv_head, .head_dim = t->head_dim, .window = window,
                            .scale = (float)scale, .cap = (float)t->attention_cap };
    const model_name prefix = speci_namef("%s.%s", layer, names_of(t)->attention);
    SPEC_TRY(speci_model_build_check_heads(b, a));
    SPEC_TRY(build_norm(b, &out->norm, t, t->bare ? NULL : speci_namef("%s.%s", layer, norm).s));
    SPEC_TRY(build_qkv(b, &a->qkv, t, prefix.s));
    SPEC_TRY(speci_model_build_linear(b, &a->out, speci_namef("%s.%s", prefix.s, names_of(t)->out).s, t->dim,
                                      t->n_head * t->head_dim, t->out_bias));
    SPEC_TRY(qk_norms(b, a, t, prefix.s));
    return build_rope(b, a, &t->rope);
}

/* Gate and up one below the other, in one tensor or in two; or up alone. */
static spec_status build_up(model_builder *b, model_linear *out, const model_transformer *t, const char *prefix)
{
    const model_transformer_names *n = names_of(t);
    if (t->ungated)
        return speci_model_build_linear(b, out, speci_namef("%s.%s", prefix, n->up).s, t->n_inner, t->dim, t->mlp_bias);
    model_stack stack = { .n_in = t->dim, .bias = t->mlp_bias, .glu = true };
    if (t->fused_mlp && speci_checkpoint_find(b->checkpoint, speci_namef("%s.%s.weight", prefix, n->gate_up).s)) {
        const model_part both = { .prefix = speci_namef("%s.%s", prefix, n->gate_up), .n_out = 2 * t->n_inner };
        stack.parts = &both, stack.n_part = 1;
        return speci_model_build_stack(b, out, &stack);
    }
    const model_part two[2] = { { .prefix = speci_namef("%s.%s", prefix, n->gate), .n_out = t->n_inner },
                                { .prefix = speci_namef("%s.%s", prefix, n->up), .n_out = t->n_inner } };
    stack.parts = two, stack.n_part = 2;
    return speci_model_build_stack(b, out, &stack);
}

/* down(act(gate x) * up x), or down(act(up x)) */
spec_status speci_transformer_mlp(model_builder *b, model_branch *out, const model_transformer *t, const char *layer,
                                  const char *norm, const char *mlp)
{
    const model_name prefix = speci_namef("%s.%s", layer, mlp);
    *out = (model_branch){ .scale = residual_scale(t) };
    SPEC_TRY(speci_model_build_mixer(b, out, &speci_mixer_mlp));
    model_mlp *m = out->own;
    *m = (model_mlp){ .act = t->act, .glu = !t->ungated, .n_inner = t->n_inner };
    if (norm || t->bare) SPEC_TRY(build_norm(b, &out->norm, t, t->bare ? NULL : speci_namef("%s.%s", layer, norm).s));
    SPEC_TRY(build_up(b, &m->up, t, prefix.s));
    return speci_model_build_linear(b, &m->down, speci_namef("%s.%s", prefix.s, names_of(t)->down).s, t->dim,
                                    t->n_inner, t->mlp_bias);
}

/* The norms behind a layer's branches. */
static spec_status build_behind(model_builder *b, model_layer *out, const model_transformer *t, const char *layer)
{
    const char *const names[2] = { names_of(t)->behind1, names_of(t)->behind2 };
    for (int32_t i = 0; i < 2; i++)
        if (names[i])
            SPEC_TRY(speci_model_build_norm(b, &out->branch[i].behind, SPEC_NORM_RMS_ADD, speci_namef("%s.%s", layer, names[i]).s,
                                            t->dim, t->eps));
    return SPEC_OK;
}

static spec_status build_layer(model_builder *b, model_layer *out, const model_transformer *t, int32_t i,
                               const model_transformer_layer *l)
{
    const model_transformer_names *n = names_of(t);
    const model_name name = speci_namef("%s.%d", n->layers, i);
    model_transformer own = *t;
    const int32_t window = l ? l->window : t->window;
    if (window > 0 && t->rope_sliding.theta > 0) own.rope = t->rope_sliding;
    if (l && l->no_rope) own.rope.partial = 0;
    out->n_branch = 2;
    out->parallel = t->parallel;
    SPEC_TRY(speci_transformer_attention(b, &out->branch[0], &own, name.s, n->norm1, window));
    SPEC_TRY(speci_transformer_mlp(b, &out->branch[1], t, name.s, n->norm2, n->mlp));
    if (!n->norm2) out->branch[1].norm = out->branch[0].norm;
    return build_behind(b, out, t, name.s);
}

static spec_status build_all(model_builder *b, const model_transformer *t, const model_transformer_layer *layers)
{
    spec_model *m = b->model;
    const model_transformer_names *n = names_of(t);
    SPEC_TRY(speci_model_build_begin(b, t->n_vocab, t->dim, t->n_layer, t->n_ctx));
    SPEC_TRY(speci_model_build_ends(b, n->embed, speci_namef("%s.weight", n->head).s, t->tied));
    if (t->head_bias)
        SPEC_TRY(speci_model_build_vector(b, &m->head.bias, speci_namef("%s.bias", n->head).s, t->n_vocab));
    SPEC_TRY(build_norm(b, &m->final_norm, t, n->final_norm));
    for (int32_t i = 0; i < t->n_layer; i++)
        SPEC_TRY(build_layer(b, &m->layers[i], t, i, layers ? &layers[i] : NULL));
    return SPEC_OK;
}

/* Layers as they come to be; whoever wants them finds lists that are too short where memory was. Where no layer has a window, the switch
 * of windows says nothing, nor do the keys behind it. */
static void note_layers(const model_config *c, const model_transformer_layer *layers, int32_t n_layer)
{
    static const char *const keys[] = { "use_sliding_window", "sliding_window", "max_window_layers" };
    json_t *types = c->taken ? json_array() : NULL, *turns = c->taken ? json_array() : NULL;
    const bool switched = json_object_get(c->taken, keys[0]) != NULL;
    bool slides = false;
    for (int32_t i = 0; i < n_layer; i++) {
        slides = slides || layers[i].window > 0;
        if (types) (void)json_array_append_new(types, json_string(layers[i].window > 0 ? "sliding_attention" : "full_attention"));
        if (turns) (void)json_array_append_new(turns, json_integer(!layers[i].no_rope));
    }
    speci_config_note(c, "layer_types", types);
    speci_config_note(c, "no_rope_layers", turns);
    for (size_t i = 0; i < sizeof keys / sizeof *keys && !slides && switched; i++) speci_config_note(c, keys[i], json_null());
}

spec_status speci_transformer_build(model_builder *b, const model_transformer *t, model_read_layers read)
{
    size_t n_tensor;
    if (!read) return build_all(b, t, NULL);
    speci_checkpoint_tensors(b->checkpoint, &n_tensor);
    if ((size_t)t->n_layer > n_tensor) /* before memory is taken for them */
        return speci_fail(SPEC_E_FORMAT, "%s: num_hidden_layers is %d, but the checkpoint has only %zu tensors",
                          b->config->file, t->n_layer, n_tensor);
    model_transformer_layer *layers = speci_alloc(b->model->allocator, (size_t)t->n_layer, sizeof *layers);
    if (!layers) return SPEC_E_NOMEM;
    for (int32_t i = 0; i < t->n_layer; i++) layers[i].window = t->window;
    spec_status status = read(b->config, layers, t);
    if (status == SPEC_OK) note_layers(b->config, layers, t->n_layer);
    if (status == SPEC_OK) status = build_all(b, t, layers);
    speci_free(b->model->allocator, layers);
    return status;
}
