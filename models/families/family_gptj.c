/* family_gptj.c - GPT-J: attention and MLP side by side behind one layer norm, the first rotary_dim dimensions of each head
 * turning in neighbouring pairs, biases in the MLP and the head. Source: transformers models/gptj. */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

static const model_transformer_names names = {
    .embed = "transformer.wte.weight", .head = "lm_head", .final_norm = "transformer.ln_f", .layers = "transformer.h",
    .norm1 = "ln_1", .attention = "attn", .mlp = "mlp", .qkv = "qkv_proj", .out = "out_proj", .up = "fc_in", .down = "fc_out",
};

static spec_status read_sizes(model_config *c, model_transformer *t)
{
    SPEC_TRY(speci_config_int(c, &t->n_vocab, "vocab_size", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &t->dim, "n_embd", 1, MODEL_DIM_MAX / 4));
    SPEC_TRY(speci_config_int_or(c, &t->n_inner, "n_inner", 4 * t->dim, 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &t->n_layer, "n_layer", 1, MODEL_DIM_MAX));
    SPEC_TRY(speci_config_int(c, &t->n_head, "n_head", 1, MODEL_HEAD_MAX));
    SPEC_TRY(speci_config_int_or(c, &t->n_ctx, "n_positions", 2048, 1, INT32_MAX));
    t->n_kv_head = t->n_head;
    t->head_dim = t->dim / t->n_head;
    if (t->dim % t->n_head == 0 && t->head_dim <= MODEL_HEAD_DIM_MAX) return SPEC_OK;
    return speci_fail(SPEC_E_FORMAT, "%s: n_head is %d, expected a divisor of n_embd, %d, with heads of at most %d", c->file,
                      t->n_head, t->dim, MODEL_HEAD_DIM_MAX);
}

/* rotary_dim: null is not taken, since the class then makes a table for heads as wide as the model. */
static spec_status read_rotary(model_config *c, model_transformer *t)
{
    int32_t n_rot = 64;
    if (speci_config_present(c, "rotary_dim")) SPEC_TRY(speci_config_int(c, &n_rot, "rotary_dim", 2, t->head_dim));
    if (n_rot > t->head_dim || n_rot % 2)
        return speci_fail(SPEC_E_FORMAT, "%s: rotary_dim is %d, expected an even number up to %d", c->file, n_rot, t->head_dim);
    t->rope = (model_rope){ .theta = 10000, .partial = (n_rot + 0.5) / t->head_dim }; /* the share is rounded down */
    return speci_config_agree_bool(c, "rotary", true);
}

const model_transformer speci_gptj = { .norm = MODEL_NORM_LAYER, .mlp_bias = true, .head_bias = true, .ungated = true, .parallel = true,
                                       .interleaved = true, .names = &names };

spec_status speci_gptj_read(model_config *c, model_transformer *t)
{
    static const char *const inert[] = { "attn_pdrop", "resid_pdrop", "embd_pdrop", "summary_activation",
                                         "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj" };
    const char *act;
    SPEC_TRY(read_sizes(c, t));
    SPEC_TRY(read_rotary(c, t));
    SPEC_TRY(speci_config_number_or(c, &t->eps, "layer_norm_epsilon", 1e-5, 0, 1));
    SPEC_TRY(speci_config_string_or(c, &act, "activation_function", "gelu_new"));
    SPEC_TRY(speci_activation(&t->act, act, c->file));
    SPEC_TRY(speci_config_bool_or(c, &t->tied, "tie_word_embeddings", false));
    for (size_t i = 0; i < sizeof inert / sizeof *inert; i++) (void)speci_config_take(c, inert[i]);
    return speci_config_agree_bool(c, "scale_attn_weights", true);
}

spec_status speci_family_gptj(model_builder *b)
{
    model_transformer t = speci_gptj;
    SPEC_TRY(speci_gptj_read(b->config, &t));
    return speci_transformer_build(b, &t, NULL);
}
