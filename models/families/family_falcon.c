/* family_falcon.c - Falcon: layer norms, an MLP without a gate, q, k and v in one tensor, group by group, and, but for the first models of
 * its kind, attention and MLP side by side. Source: transformers models/falcon.
 *
 *     new_decoder_architecture    num_kv_heads groups; a norm for each branch, or one for both (num_ln_in_parallel_attn)
 *     else multi_query            one group; one norm for both, or one branch behind the other (parallel_attn: false)
 *     else                        as many groups as heads; norms likewise */
#include "models/families/family.h"
#include "models/families/family_transformer.h"

static const model_transformer_names one_norm = {
    .embed = "transformer.word_embeddings.weight", .head = "lm_head", .final_norm = "transformer.ln_f", .layers = "transformer.h",
    .norm1 = "input_layernorm", .attention = "self_attention", .mlp = "mlp", .qkv = "query_key_value", .out = "dense",
    .up = "dense_h_to_4h", .down = "dense_4h_to_h",
};

/* The keys that other classes have under other names. */
static spec_status rename_keys(model_config *c)
{
    SPEC_TRY(speci_config_also(c, "hidden_size", "n_embed"));
    SPEC_TRY(speci_config_also(c, "intermediate_size", "ffn_hidden_size"));
    return speci_config_also(c, "hidden_act", "activation");
}

/* num_kv_heads is in files where it means nothing, too. */
static spec_status read_groups(model_config *c, model_transformer *t, bool new_decoder)
{
    bool multi_query;
    int32_t n_kv;
    SPEC_TRY(speci_config_bool_or(c, &multi_query, "multi_query", true));
    SPEC_TRY(speci_config_int_or(c, &n_kv, "num_kv_heads", t->n_head, 1, MODEL_HEAD_MAX));
    if (!new_decoder && multi_query) n_kv = 1;
    if (t->n_head % n_kv || (!new_decoder && !multi_query && n_kv != t->n_head))
        return speci_fail(SPEC_E_FORMAT, "%s: %s is %d, expected %s num_attention_heads, %d", c->file,
                          speci_config_said(c, "num_kv_heads"), n_kv, new_decoder ? "a divisor of" : "as many as", t->n_head);
    if (speci_config_has(c, "num_key_value_heads") && t->n_kv_head != n_kv)
        return speci_fail(SPEC_E_FORMAT, "%s: num_key_value_heads is %d, but this model has %d", c->file, t->n_kv_head, n_kv);
    t->n_kv_head = n_kv;
    speci_config_note(c, "num_kv_heads", json_integer(n_kv));
    speci_config_note(c, "num_key_value_heads", json_integer(n_kv));
    return SPEC_OK;
}

static spec_status read_norms(model_config *c, model_transformer *t, model_transformer_names *names, bool new_decoder)
{
    int32_t n_norm;
    SPEC_TRY(speci_config_bool_or(c, &t->parallel, "parallel_attn", true));
    SPEC_TRY(speci_config_int_or(c, &n_norm, "num_ln_in_parallel_attn", new_decoder ? 2 : 1, 1, 2));
    if (new_decoder && !t->parallel)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: parallel_attn is false, expected true with new_decoder_architecture", c->file);
    if (!t->parallel) names->norm2 = "post_attention_layernorm";
    if (!t->parallel || n_norm == 1) return SPEC_OK;
    if (!new_decoder)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: num_ln_in_parallel_attn is 2, expected 1 without new_decoder_architecture", c->file);
    names->norm1 = "ln_attn", names->norm2 = "ln_mlp";
    return SPEC_OK;
}

spec_status speci_family_falcon(model_builder *b)
{
    const model_transformer_defaults defaults = { .n_ctx = 2048, .n_inner_times = 4, .eps_key = "layer_norm_epsilon", .eps = 1e-5,
                                                  .tied = true, .act = "gelu", .rope = speci_rope_whole_head };
    model_transformer_names names = one_norm;
    model_config *c = b->config;
    model_transformer t;
    bool new_decoder;
    SPEC_TRY(speci_config_bool_or(c, &new_decoder, "new_decoder_architecture", false));
    SPEC_TRY(rename_keys(c));
    SPEC_TRY(speci_transformer_read(c, &t, &defaults));
    SPEC_TRY(read_groups(c, &t, new_decoder));
    SPEC_TRY(read_norms(c, &t, &names, new_decoder));
    SPEC_TRY(speci_config_bool_or(c, &t.qkv_bias, "bias", false));
    t.out_bias = t.mlp_bias = t.qkv_bias;
    t.norm = MODEL_NORM_LAYER;
    t.qkv = MODEL_QKV_BY_GROUP;
    t.ungated = true;
    t.names = &names;
    return speci_transformer_build(b, &t, NULL);
}
