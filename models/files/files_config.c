/* files_config.c - typed access to config.json, and what becomes of keys that nobody asked for. */
#include "models/files/files_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CONFIG_MAX ((size_t)16 << 20) /* bytes; label maps can be long */

/* --- open and close --- */

static spec_status adopt(model_config *out, json_t *root, const char *file)
{
    *out = (model_config){ .file = file };
    if (!json_is_object(root)) {
        json_decref(root);
        return speci_fail(SPEC_E_FORMAT, "%s: not a JSON object", file);
    }
    out->root = root;
    out->rest = json_copy(root);
    if (out->rest) return SPEC_OK;
    speci_config_close(out);
    return speci_fail(SPEC_E_NOMEM, "%s: out of memory", file);
}

spec_status speci_config_read(model_config *out, const char *file, const spec_allocator *a)
{
    json_t *root = NULL;
    SPEC_TRY(speci_json_read(&root, file, CONFIG_MAX, a));
    return adopt(out, root, file);
}

spec_status speci_config_parse(model_config *out, const char *text, size_t n, const char *file)
{
    json_t *root = NULL;
    SPEC_TRY(speci_json_parse(&root, text, n, file));
    return adopt(out, root, file);
}

void speci_config_close(model_config *c)
{
    json_decref(c->rest);
    json_decref(c->root);
    c->rest = c->root = NULL;
}

/* --- values --- */

model_value_text speci_value_of(const json_t *v)
{
    model_value_text t;
    double x = 0;
    if (json_is_integer(v)) snprintf(t.s, sizeof t.s, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (speci_json_number(v, &x)) snprintf(t.s, sizeof t.s, "%.9g", x);
    else if (json_is_string(v)) snprintf(t.s, sizeof t.s, "\"%.60s\"", json_string_value(v));
    else snprintf(t.s, sizeof t.s, "%s", !v || json_is_null(v) ? "null" : json_is_true(v) ? "true"
                  : json_is_false(v) ? "false" : json_is_array(v) ? "an array" : "an object");
    return t;
}

bool speci_config_present(const model_config *c, const char *key) { return json_object_get(c->root, key) != NULL; }

bool speci_config_has(const model_config *c, const char *key)
{
    const json_t *v = json_object_get(c->root, key);
    return v && !json_is_null(v);
}

json_t *speci_config_take(model_config *c, const char *key)
{
    json_t *v = json_object_get(c->root, key);
    if (v) json_object_del(c->rest, key);
    return v && !json_is_null(v) ? v : NULL;
}

static spec_status missing(const model_config *c, const char *key, const char *expected)
{
    return speci_fail(SPEC_E_FORMAT, "%s: %s%s is missing, expected %s", c->file, c->in, key, expected);
}

static spec_status wrong(const model_config *c, const char *key, const json_t *v, const char *expected)
{
    return speci_fail(SPEC_E_FORMAT, "%s: %s%s is %s, expected %s", c->file, c->in, key, speci_value_of(v).s, expected);
}

spec_status speci_config_int(model_config *c, int32_t *out, const char *key, int32_t min, int32_t max)
{
    char expected[64];
    const json_t *v = speci_config_take(c, key);
    double x = 0;
    if (min == max) snprintf(expected, sizeof expected, "%d", min);
    else snprintf(expected, sizeof expected, "an integer from %d to %d", min, max);
    if (!v) return missing(c, key, expected);
    /* 2.0 is taken for 2: files written by other programs have it. Large integers fail the range as doubles, too. */
    if (!json_is_number(v) || !speci_json_number(v, &x) || x != floor(x) || x < min || x > max)
        return wrong(c, key, v, expected);
    *out = (int32_t)x;
    return SPEC_OK;
}

spec_status speci_config_number(model_config *c, double *out, const char *key, double min, double max)
{
    char expected[80];
    const json_t *v = speci_config_take(c, key);
    double x = 0;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (!v) return missing(c, key, expected);
    if (!speci_json_number(v, &x) || !(x >= min && x <= max)) return wrong(c, key, v, expected);
    *out = x;
    return SPEC_OK;
}

spec_status speci_config_int_or(model_config *c, int32_t *out, const char *key, int32_t fallback, int32_t min,
                                int32_t max)
{
    *out = fallback;
    return speci_config_take(c, key) ? speci_config_int(c, out, key, min, max) : SPEC_OK;
}

spec_status speci_config_agree(model_config *c, const char *key, int32_t value)
{
    int32_t found;
    return speci_config_int_or(c, &found, key, value, value, value);
}

spec_status speci_config_number_or(model_config *c, double *out, const char *key, double fallback, double min,
                                   double max)
{
    *out = fallback;
    return speci_config_take(c, key) ? speci_config_number(c, out, key, min, max) : SPEC_OK;
}

spec_status speci_config_bool_or(model_config *c, bool *out, const char *key, bool fallback)
{
    const json_t *v = speci_config_take(c, key);
    *out = fallback;
    if (!v) return SPEC_OK;
    if (!json_is_boolean(v)) return wrong(c, key, v, "true or false");
    *out = json_is_true(v);
    return SPEC_OK;
}

spec_status speci_config_string_or(model_config *c, const char **out, const char *key, const char *fallback)
{
    const json_t *v = speci_config_take(c, key);
    *out = fallback;
    if (!v) return SPEC_OK;
    if (!json_is_string(v)) return wrong(c, key, v, "a string");
    *out = json_string_value(v);
    return SPEC_OK;
}

spec_status speci_config_agree_bool(model_config *c, const char *key, bool value)
{
    bool found;
    SPEC_TRY(speci_config_bool_or(c, &found, key, value));
    if (found == value) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s%s is %s: not supported", c->file, c->in, key, found ? "true" : "false");
}

spec_status speci_config_agree_text(model_config *c, const char *key, const char *value)
{
    const char *found;
    SPEC_TRY(speci_config_string_or(c, &found, key, value));
    if (strcmp(found, value) == 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s%s is \"%.60s\", expected \"%s\"", c->file, c->in, key, found, value);
}

spec_status speci_config_child(model_config *c, model_config *out, const char *key)
{
    json_t *v = speci_config_take(c, key);
    *out = (model_config){ .file = c->file };
    if (!v) return SPEC_OK;
    if (!json_is_object(v)) return wrong(c, key, v, "an object");
    SPEC_TRY(adopt(out, json_incref(v), c->file));
    snprintf(out->in, sizeof out->in, "%.24s.", key);
    return SPEC_OK;
}

spec_status speci_config_limits_or_none(model_config *c, float *lo, float *hi, const char *key)
{
    const json_t *v = speci_config_take(c, key);
    double x = 0, y = 0;
    *lo = 0.0f, *hi = INFINITY;
    if (!v) return SPEC_OK;
    if (json_array_size(v) != 2 || !speci_json_number(json_array_get(v, 0), &x) ||
        !speci_json_number(json_array_get(v, 1), &y) || !(x >= 0 && x <= y) || isinf(x))
        return wrong(c, key, v, "[low, high] with 0 <= low <= high, low finite");
    *lo = (float)x, *hi = (float)y;
    return SPEC_OK;
}

/* --- keys that nobody asked for --- */

/* The value with which a key changes nothing. */
typedef enum neutral {
    NULL_ONLY,       /* null */
    FALSE_OR_NULL,
    TRUE_OR_NULL,
    ZERO_OR_NULL,
    ONE_OR_NULL,
    FULL_ATTENTION   /* a list of "full_attention" */
} neutral;

typedef struct refused_key {
    const char *key;
    neutral neutral;
    const char *why; /* what it would mean */
} refused_key;

/* Keys that change the mathematics and that some family of transformers honours. A family of ours that honours one
 * asks for it, and so takes it from this list. */
static const refused_key refused[] = {
    { "quantization_config", NULL_ONLY, "quantised weights" },
    { "compression_config", NULL_ONLY, "compressed weights" },
    { "is_encoder_decoder", FALSE_OR_NULL, "encoder-decoder models" },
    { "add_cross_attention", FALSE_OR_NULL, "cross-attention" },
    { "per_layer_config", NULL_ONLY, "layers that differ by configuration" },
    { "num_experts", ZERO_OR_NULL, "mixtures of experts" },
    { "num_local_experts", ZERO_OR_NULL, "mixtures of experts" },
    { "n_routed_experts", ZERO_OR_NULL, "mixtures of experts" },
    { "moe_num_experts", ZERO_OR_NULL, "mixtures of experts" },
    { "num_experts_per_tok", ZERO_OR_NULL, "mixtures of experts" },
    { "attn_logit_softcapping", NULL_ONLY, "soft-capped attention" },
    { "final_logit_softcapping", NULL_ONLY, "soft-capped logits" },
    { "logits_scaling", ONE_OR_NULL, "scaled logits" },
    { "logit_scale", ONE_OR_NULL, "scaled logits" },
    { "lm_head_multiplier", ONE_OR_NULL, "scaled logits" },
    { "embedding_multiplier", ONE_OR_NULL, "scaled embeddings" },
    { "scale_emb", ONE_OR_NULL, "scaled embeddings" },
    { "scale_depth", NULL_ONLY, "scaled residuals" },
    { "residual_multiplier", ONE_OR_NULL, "scaled residuals" },
    { "attention_multiplier", NULL_ONLY, "a scale of attention of its own" },
    { "query_pre_attn_scalar", NULL_ONLY, "a scale of attention of its own" },
    { "key_multiplier", ONE_OR_NULL, "scaled keys" },
    { "ssm_multipliers", NULL_ONLY, "scaled projections" },
    { "attention_bias", FALSE_OR_NULL, "biases in attention, for this family" },
    { "mlp_bias", FALSE_OR_NULL, "biases in the MLP, for this family" },
    { "qkv_bias", FALSE_OR_NULL, "biases in attention, for this family" },
    { "use_qk_norm", FALSE_OR_NULL, "norms on queries and keys, for this family" },
    { "qk_layernorm", FALSE_OR_NULL, "norms on queries and keys, for this family" },
    { "use_bidirectional_attention", FALSE_OR_NULL, "attention in both directions" },
    { "clip_qkv", NULL_ONLY, "clipped projections" },
    { "alibi", FALSE_OR_NULL, "linear position biases" },
    { "no_rope_layers", NULL_ONLY, "layers without rotary positions" },
    { "use_mrope", FALSE_OR_NULL, "rotary positions in several dimensions" },
    { "position_embedding_type", NULL_ONLY, "other kinds of positions" },
    { "rope_interleaved", FALSE_OR_NULL, "interleaved rotary positions" },
    { "rope_scaling", NULL_ONLY, "rotary positions, for this family" },
    { "rope_parameters", NULL_ONLY, "rotary positions, for this family" },
    { "rotary_pct", NULL_ONLY, "this spelling, for this family" },
    { "rotary_emb_base", NULL_ONLY, "this spelling, for this family" },
    { "partial_rotary_factor", ONE_OR_NULL, "partly rotated heads, for this family" },
    { "original_max_position_embeddings", NULL_ONLY, "rotary scaling outside rope_scaling" },
    { "sliding_window", NULL_ONLY, "sliding windows, for this family" },
    { "use_sliding_window", FALSE_OR_NULL, "sliding windows, for this family" },
    { "attention_chunk_size", NULL_ONLY, "chunked attention" },
    { "layer_types", FULL_ATTENTION, "layers of several kinds, for this family" },
    { "layers_block_type", FULL_ATTENTION, "layers of several kinds, for this family" },
    { "mamba_rms_norm", TRUE_OR_NULL, "mixers without a gated norm, for this family" },
    { "mamba_norm_before_gate", FALSE_OR_NULL, "gated norms before the gate, for this family" },
    { "d_intermediate", ZERO_OR_NULL, "an MLP after each mixer, for this family" },
};

/* Keys that do not change what the network computes at inference: training, bookkeeping, and what the loader reads by
 * itself. Keys that say "dropout" are inert, too. */
static const char *const inert[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_from_model_config", "_name_or_path",
    "architectures", "auto_map", "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "chunk_size",
    "chunk_size_feed_forward", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "eos_token_id", "exponential_decay_length_penalty",
    "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "fused_add_norm", "gradient_checkpointing",
    "id2label", "initializer_range", "is_decoder", "label2id", "length_penalty", "mamba_chunk_size", "max_length",
    "min_length", "model_type", "no_repeat_ngram_size", "num_beam_groups", "num_beams", "num_labels",
    "num_logits_to_keep", "num_return_sequences", "output_attentions", "output_hidden_states", "output_scores",
    "pad_token_id", "pad_vocab_size_multiple", "prefix", "pretraining_tp", "problem_type", "pruned_heads",
    "remove_invalid_values", "repetition_penalty", "rescale_prenorm_residual", "residual_in_fp32", "return_dict",
    "return_dict_in_generate", "sep_token_id", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min",
    "time_step_scale", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version",
    "typical_p", "use_associative_scan", "use_bfloat16", "use_cache", "use_mamba_kernels", "use_mambapy",
    "vocab_pad_multiple", "z_loss_coefficient",
};

static bool full_attention_only(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *type = json_string_value(json_array_get(v, i));
        if (!type || strcmp(type, "full_attention") != 0) return false;
    }
    return json_is_array(v);
}

static bool is_neutral(const json_t *v, neutral n)
{
    double x = 0;
    const bool number = speci_json_number(v, &x);
    if (json_is_null(v)) return true;
    switch (n) {
    case FALSE_OR_NULL: return json_is_false(v);
    case TRUE_OR_NULL: return json_is_true(v);
    case ZERO_OR_NULL: return number && x == 0;
    case ONE_OR_NULL: return number && x == 1;
    case FULL_ATTENTION: return full_attention_only(v);
    default: return false;
    }
}

static const refused_key *find_refused(const char *key)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strcmp(refused[i].key, key) == 0) return &refused[i];
    return NULL;
}

static bool is_inert(const char *key)
{
    if (strstr(key, "dropout")) return true;
    for (size_t i = 0; i < sizeof inert / sizeof *inert; i++)
        if (strcmp(inert[i], key) == 0) return true;
    return false;
}

spec_status speci_config_all_known(const model_config *c)
{
    const char *key;
    json_t *v;
    json_object_foreach(c->rest, key, v)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s%.100s is %s: this key is not known here", c->file, c->in, key,
                          speci_value_of(v).s);
    return SPEC_OK;
}

static spec_status add_name(speci_buf *b, const char *key)
{
    if (b->n) SPEC_TRY(speci_buf_add(b, ", ", 2));
    return speci_buf_add(b, key, strlen(key));
}

static spec_status accept(const model_config *c, speci_buf *unknown)
{
    const char *key;
    json_t *v;
    json_object_foreach(c->rest, key, v) {
        const refused_key *r = find_refused(key);
        if (r && !is_neutral(v, r->neutral))
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is %s: %s is not supported", c->file, key,
                              speci_value_of(v).s, r->why);
        if (!r && !is_inert(key)) SPEC_TRY(add_name(unknown, key));
    }
    return SPEC_OK;
}

spec_status speci_config_check(const model_config *c, char **unknown, const spec_allocator *a)
{
    speci_buf b = { .a = a };
    spec_status status = accept(c, &b);
    *unknown = NULL;
    if (status == SPEC_OK) status = speci_buf_add(&b, "", 1);
    if (status == SPEC_OK && !(*unknown = speci_strdup(a, b.data))) status = SPEC_E_NOMEM;
    speci_buf_free(&b);
    return status;
}
