/* files_config_keys.c - keys of config.json that nobody asked for: refused, inert, or reported.
 *
 * Keys that change the mathematics are refused by name unless their value is neutral: those of the list, and those whose
 * name has a word that tells of mathematics. A family that honours a key asks for it, and so takes it from here. */
#include <stdio.h>
#include <string.h>

#include "models/files/files_config.h"

typedef struct refused_key {
    const char *key;
    const char *neutral; /* values that change nothing, beside null: as speci_value_of writes them, with a space between; or
                            [] for an empty list, full_attention for a list of that */
    const char *why;     /* what the key would mean */
} refused_key;

#define RMS "\"rms\" \"rms_norm\" \"rmsnorm\" \"RMSNorm\""

/* Exact names first: keys of the classes in transformers (models/<family>/configuration_<family>.py), and of models that come
 * with their own code. */
static const refused_key refused[] = {
    { "quantization_config", "", "quantised weights" },
    { "quantization", "", "quantised weights (MLX)" },
    { "compression_config", "", "compressed weights" },
    { "is_encoder_decoder", "false", "encoder-decoder models" },
    { "add_cross_attention", "false", "cross-attention" },
    { "text_config", "", "a model within a model" },
    { "per_layer_config", "", "layers that differ by configuration" },
    { "n_routed_experts", "0", "mixtures of experts" },
    { "num_experts_per_tok", "0", "mixtures of experts" },
    { "is_moe", "false", "mixtures of experts" },
    { "enable_moe_block", "false", "mixtures of experts" },
    { "moe_layers", "[]", "mixtures of experts" },
    { "mlp_only_layers", "[]", "mixtures of experts" },
    { "mlp_layer_types", "", "mixtures of experts" },
    { "first_k_dense_replace", "", "mixtures of experts" },
    { "kv_lora_rank", "", "latent attention (MLA)" },
    { "q_lora_rank", "", "latent attention (MLA)" },
    { "o_lora_rank", "", "latent attention (MLA)" },
    { "v_head_dim", "", "heads of several sizes" },
    { "qk_head_dim", "", "heads of several sizes" },
    { "head_dim", "", "a size of heads, for this family" },
    { "kv_channels", "", "a size of heads, for this family" },
    { "attention_head_dim", "", "a size of heads, for this family" },
    { "attn_logit_softcapping", "", "soft-capped attention, for this family" },
    { "final_logit_softcapping", "", "soft-capped logits, for this family" },
    { "scale_depth", "", "scaled residuals" },
    { "dim_model_base", "", "scaled logits" },
    { "mup_enabled", "false", "scaled activations" },
    { "use_mup", "false", "scaled activations" },
    { "attention_multiplier", "", "a scale of attention of its own" },
    { "query_pre_attn_scalar", "", "a scale of attention of its own" },
    { "attn_scale", "", "a scale of attention of its own" },
    { "attention_scale", "", "a scale of attention of its own" },
    { "scale_attn_weights", "true", "attention without its scale" },
    { "attn_temperature_tuning", "false", "a temperature of attention" },
    { "ssm_multipliers", "", "scaled projections" },
    { "no_bias", "true", "biases, for this family" },
    { "pre_norm", "true", "norms behind the branches" },
    { "rms_norm", "true", "other norms than RMS" },
    { "do_layer_norm_before", "true", "norms behind the branches" },
    { "norm_type", RMS, "other norms than RMS" },
    { "normalization_type", RMS, "other norms than RMS" },
    { "hidden_activation", "", "this spelling, for this family" },
    { "activation_function", "", "this spelling, for this family" },
    { "use_bidirectional_attention", "false", "attention in both directions" },
    { "is_causal", "true", "attention in both directions" },
    { "causal", "true", "attention in both directions" },
    { "attention_k_eq_v", "false", "keys that are values" },
    { "num_kv_shared_layers", "0", "layers that share keys and values" },
    { "parallel_residual", "false", "parallel branches, for this family" },
    { "use_parallel_residual", "false", "parallel branches, for this family" },
    { "parallel_attn", "false", "parallel branches, for this family" },
    { "parallel_attention", "false", "parallel branches, for this family" },
    { "apply_residual_connection_post_layernorm", "false", "residuals behind the norms" },
    { "no_rope_layers", "", "layers without rotary positions" },
    { "no_rope_layer_interval", "", "layers without rotary positions" },
    { "nope_layer_interval", "", "layers without rotary positions" },
    { "use_mrope", "false", "rotary positions in several dimensions" },
    { "mrope_section", "", "rotary positions in several dimensions" },
    { "use_rope", "true", "attention without rotary positions" },
    { "use_rotary", "true", "attention without rotary positions" },
    { "rotary", "true", "attention without rotary positions" },
    { "rope", "true", "attention without rotary positions" },
    { "rope_type", "\"default\"", "rotary scaling outside rope_scaling" },
    { "position_embedding_type", "\"rope\" \"rotary\"", "other kinds of positions" },
    { "learned_pos_emb", "false", "other kinds of positions" },
    { "linear_num_key_heads", "", "linear attention" },
    { "linear_conv_kernel_dim", "", "linear attention" },
    { "rescale_every", "", "time mixing (RWKV)" },
    { "encoder_layers", "", "encoder-decoder models" },
    { "hybrid_override_pattern", "", "layers of kinds told by a pattern" },
    { "use_learned_position_embeddings", "false", "other kinds of positions" },
    { "rope_scaling", "", "rotary positions, for this family" },
    { "rope_parameters", "", "rotary positions, for this family" },
    { "rotary_emb_base", "", "this spelling, for this family" },
    { "original_max_position_embeddings", "", "rotary scaling outside rope_scaling" },
    { "attention_chunk_size", "", "chunked attention" },
    { "attn_type", "", "other kinds of attention" },
    { "attention_type", "", "other kinds of attention" },
    { "attention_types", "", "other kinds of attention" },
    { "attention_layers", "", "other kinds of attention" },
    { "layer_types", "full_attention", "layers of several kinds, for this family" },
    { "layers_block_type", "full_attention", "layers of several kinds, for this family" },
    { "block_types", "", "layers of several kinds, for this family" },
    { "hybrid_layer_ids", "[]", "layers of several kinds, for this family" },
    { "attn_layer_indices", "", "layers of several kinds, for this family" },
    { "attn_layer_period", "", "layers of several kinds, for this family" },
    { "mamba_rms_norm", "true", "mixers without a gated norm, for this family" },
    { "mamba_norm_before_gate", "false", "gated norms before the gate, for this family" },
    { "d_intermediate", "0", "an MLP after each mixer, for this family" },
    { "hidden_size_per_layer_input", "0", "embeddings for each layer" },
    { "vocab_size_per_layer_input", "0", "embeddings for each layer" },
    { "num_attention_heads_per_layer", "", "layers of several shapes" },
};

/* A part of a name between underscores that begins so. Only of keys that are in no list. */
static const refused_key words[] = {
    { "expert", "false 0 []", "mixtures of experts" },
    { "alibi", "false 0", "linear position biases" },
    { "softcap", "false 0", "soft-capped values" },
    { "soft_cap", "false 0", "soft-capped values" },
    { "clip", "false 0", "clipped values" },
    { "clamp", "false 0", "clipped values" },
    { "multiplier", "1", "scaled values" },
    { "scal", "1 false", "scaled values" },
    { "sink", "false 0", "attention sinks" },
    { "gate", "false 0", "gates, for this family" },
    { "gating", "false 0", "gates, for this family" },
    { "bias", "false 0", "biases, for this family" },
    { "qk", "false 0", "changed queries and keys, for this family" },
    { "interleave", "false 0", "interleaved values" },
    { "window", "false 0", "sliding windows, for this family" },
    { "rope", "1 false", "this key of rotary positions, for this family" },
    { "nope", "false 0", "layers without rotary positions" },
    { "rotary", "1 false", "this key of rotary positions, for this family" },
    { "positional", "false", "other kinds of positions" },
    { "norm", "false " RMS, "these norms, for this family" },
    { "layernorm", "false", "these norms, for this family" },
};

/* Keys that do not change what the network computes at inference: training, bookkeeping, and what the loader reads by
 * itself. */
static const char *const inert[] = {
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_from_model_config", "_name_or_path",
    "architectures", "attn_implementation", "auto_map", "bad_words_ids", "base_model_tp_plan", "begin_suppress_tokens",
    "chunk_size", "chunk_size_feed_forward", "diversity_penalty", "do_sample", "dtype",
    "early_stopping", "encoder_no_repeat_ngram_size", "exponential_decay_length_penalty",
    "finetuning_task", "flash_attention", "fused_add_norm", "generation_config", "gradient_checkpointing",
    "id2label", "initializer_range", "is_decoder", "label2id", "length_penalty", "mamba_chunk_size", "max_length",
    "max_sequence_length", "max_window_layers", "min_length", "model_max_length", "model_type", "no_repeat_ngram_size",
    "norm_topk_prob", "num_beam_groups", "num_beams", "num_labels", "num_logits_to_keep", "num_nextn_predict_layers",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_router_logits", "output_scores",
    "pad_vocab_size_multiple", "prefix", "pretraining_tp", "problem_type", "pruned_heads",
    "remove_invalid_values", "repetition_penalty", "rescale_prenorm_residual", "residual_in_fp32", "return_dict",
    "return_dict_in_generate", "rope_theta", "suppress_tokens", "task_specific_params", "temperature",
    "tf_legacy_loss", "tie_encoder_decoder", "time_step_floor", "time_step_max", "time_step_min", "time_step_rank",
    "time_step_scale", "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version",
    "typical_p", "use_associative_scan", "use_bfloat16", "use_cache", "use_flash_attn", "use_mamba_kernels", "use_mambapy",
    "vocab_pad_multiple",
};

/* The same by what the name has in it. */
static const char *const inert_parts[] = { "dropout", "pdrop", "layerdrop", "init_", "_init", "initializer", "_loss", "jitter",
                                           "_token_id", "_token_index", "grad_", "gradient", "_eps", "epsilon" };

static bool full_attention_only(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *type = json_string_value(json_array_get(v, i));
        if (!type || strcmp(type, "full_attention") != 0) return false;
    }
    return json_is_array(v);
}

/* Is `value` one of `list`, which a space separates? */
static bool is_listed(const char *list, const char *value)
{
    const size_t n = strlen(value);
    for (const char *s = list; (s = strstr(s, value)); s++)
        if ((s == list || s[-1] == ' ') && (s[n] == ' ' || s[n] == '\0')) return true;
    return false;
}

static bool is_neutral(const json_t *v, const char *neutral)
{
    if (json_is_null(v)) return true;
    if (json_is_array(v))
        return (json_array_size(v) == 0 && is_listed(neutral, "[]")) ||
               (is_listed(neutral, "full_attention") && full_attention_only(v));
    return is_listed(neutral, speci_value_of(v).s);
}

static bool has_word(const char *key, const char *word)
{
    for (const char *s = key; s; s = strchr(s, '_') ? strchr(s, '_') + 1 : NULL)
        if (strncmp(s, word, strlen(word)) == 0) return true;
    return false;
}

static bool is_inert(const char *key)
{
    for (size_t i = 0; i < sizeof inert / sizeof *inert; i++)
        if (strcmp(inert[i], key) == 0) return true;
    for (size_t i = 0; i < sizeof inert_parts / sizeof *inert_parts; i++)
        if (strstr(key, inert_parts[i])) return true;
    return false;
}

/* The rule for a key with such a value; NULL where there is none. */
static const refused_key *find_refused(const char *key)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strcmp(refused[i].key, key) == 0) return &refused[i];
    for (size_t i = 0; i < sizeof words / sizeof *words && !is_inert(key); i++)
        if (has_word(key, words[i].key)) return &words[i];
    return NULL;
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
            return speci_fail(SPEC_E_UNSUPPORTED, "%s: %.100s is %s: %s: not supported", c->file, speci_config_said(c, key),
                              speci_value_of(v).s, r->why);
        if (!r && !is_inert(key)) SPEC_TRY(add_name(unknown, speci_config_said(c, key)));
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

/* Words that stand before a family is known: of the list, what no family has. */
static bool is_general(const refused_key *r) { return !strstr(r->why, "for this family") && !strstr(r->why, "a model within"); }

void speci_config_missing(const json_t *root, char *out, size_t cap)
{
    const char *key;
    json_t *v;
    size_t n = 0;
    out[0] = '\0';
    json_object_foreach((json_t *)(uintptr_t)root, key, v) {
        const refused_key *r = find_refused(key);
        if (!r || is_neutral(v, r->neutral) || !is_general(r) || strstr(out, r->why) || n >= cap) continue;
        n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? ", " : "", r->why);
    }
}
