/* family_gguf_granite.c - Granite, dense Granite 4 and Bamba from GGUF. The latter two say that they are of one architecture: heads turn
 * in Bamba alone. Source: llama.cpp, conversion/granite.py. */
#include <math.h>
#include <string.h>

#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

#define SCALES                                                                                                                      \
    { "attention.scale", "attention_multiplier", GGUF_REAL }, { "embedding_scale", "embedding_multiplier", GGUF_REAL },               \
        { "residual_scale", "residual_multiplier", GGUF_REAL }, { "logit_scale", "logits_scaling", GGUF_REAL }

static const gguf_key granite_keys[] = { SCALES, { NULL, NULL, 0 } };

const model_gguf speci_gguf_granite = { .architecture = "granite", .model_type = "granite", .names = speci_gguf_llama_names,
                                        .keys = granite_keys, .form = { .pairs_together = true }, .finish = speci_gguf_llama_biases };

/* --- hybrids --- */

static const model_rename own[] = {
    { "model.final_layernorm", "output_norm" }, /* Bamba */
    { "model.layers.#.mamba.in_proj", "blk.#.ssm_in" },
    { "model.layers.#.mamba.conv1d", "blk.#.ssm_conv1d" },
    { "model.layers.#.mamba.dt_bias", "blk.#.ssm_dt.bias" },
    { "model.layers.#.mamba.A_log", "blk.#.ssm_a" },
    { "model.layers.#.mamba.D", "blk.#.ssm_d" },
    { "model.layers.#.mamba.norm", "blk.#.ssm_norm" },
    { "model.layers.#.mamba.out_proj", "blk.#.ssm_out" },
    { "model.layers.#.pre_ff_layernorm", "blk.#.ffn_norm" }, /* Bamba */
    { "model.layers.#.shared_mlp.gate_proj", "blk.#.ffn_gate" }, /* input_linear, apart */
    { "model.layers.#.shared_mlp.up_proj", "blk.#.ffn_up" },
    { "model.layers.#.shared_mlp.output_linear", "blk.#.ffn_down" },
    { "model.layers.#.feed_forward.gate_proj", "blk.#.ffn_gate" }, /* Bamba */
    { "model.layers.#.feed_forward.up_proj", "blk.#.ffn_up" },
    { "model.layers.#.feed_forward.down_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, speci_gguf_ends, speci_gguf_norms_before, speci_gguf_attention, NULL };

/* Granite 4 has the two in one, gate first. */
static const model_rename halves[] = {
    { "model.layers.#.shared_mlp.input_linear", "blk.#.ffn_gate" }, { "model.layers.#.shared_mlp.input_linear", "blk.#.ffn_up" },
    { NULL, NULL },
};

static const gguf_key hybrid_keys[] = {
    SCALES,
    { "attention.head_count_kv", NULL, GGUF_WHOLE }, /* of each layer: finish() */
    { "expert_count", "num_local_experts", GGUF_WHOLE },
    { "expert_used_count", "num_experts_per_tok", GGUF_WHOLE },
    { "expert_shared_feed_forward_length", "shared_intermediate_size", GGUF_WHOLE },
    { "ssm.conv_kernel", "mamba_d_conv", GGUF_WHOLE },
    { "ssm.state_size", "mamba_d_state", GGUF_WHOLE },
    { "ssm.group_count", "mamba_n_groups", GGUF_WHOLE },
    { "ssm.time_step_rank", "mamba_n_heads", GGUF_WHOLE },
    { "ssm.inner_size", NULL, GGUF_WHOLE }, /* mixer() */
    { NULL, NULL, 0 },
};

static spec_status mixer(gguf_reading *r)
{
    const int64_t dim = speci_gguf_config_integer(r, "hidden_size"), n_head = speci_gguf_config_integer(r, "mamba_n_heads");
    int64_t inner = 0;
    SPEC_TRY(speci_gguf_integer(r->file, "granitehybrid.ssm.inner_size", &inner));
    SPEC_TRY(speci_gguf_set(r, "mamba_expand", json_integer(dim > 0 ? inner / dim : 0), "ssm.inner_size"));
    SPEC_TRY(speci_gguf_set(r, "mamba_d_head", json_integer(n_head > 0 ? inner / n_head : 0), "ssm.inner_size"));
    SPEC_TRY(speci_gguf_set(r, "mamba_proj_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.ssm_in.bias")), NULL));
    return speci_gguf_set(r, "mamba_conv_bias", json_true(), NULL);
}

static spec_status granite4(gguf_reading *r, json_t *types)
{
    const int64_t n_head = speci_gguf_config_integer(r, "num_attention_heads"), dim = speci_gguf_config_integer(r, "hidden_size");
    SPEC_TRY(speci_gguf_set(r, "layer_types", json_incref(types), "attention.head_count_kv"));
    SPEC_TRY(speci_gguf_set(r, "position_embedding_type", json_string("nope"), "rope.scaling.finetuned"));
    if (!speci_gguf_own(r, "expert_count")) SPEC_TRY(speci_gguf_set(r, "num_local_experts", json_integer(0), NULL));
    if (speci_gguf_own(r, "attention.scale") || n_head <= 0) return SPEC_OK;
    return speci_gguf_set(r, "attention_multiplier", json_real(1 / sqrt((double)dim / (double)n_head)), NULL);
}

/* Its class reads how much of a head turns in one place only. */
static spec_status bamba(gguf_reading *r, json_t *attending)
{
    json_t *share = json_object_get(r->config, "partial_rotary_factor");
    if (share) SPEC_TRY(speci_gguf_set(r, "rope_parameters.partial_rotary_factor", json_incref(share), NULL));
    SPEC_TRY(speci_gguf_set(r, "partial_rotary_factor", json_null(), NULL));
    SPEC_TRY(speci_gguf_set(r, "model_type", json_string("bamba"), "general.architecture"));
    return speci_gguf_set(r, "attn_layer_indices", json_incref(attending), "attention.head_count_kv");
}

static spec_status finish(gguf_reading *r)
{
    bool turns = true;
    json_t *types = json_array(), *attending = json_array();
    spec_status status = types && attending ? speci_gguf_layers(r, types, attending, "attention", "mamba") : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = mixer(r);
    if (status == SPEC_OK) status = speci_gguf_flag(r->file, "granitehybrid.rope.scaling.finetuned", &turns);
    if (status == SPEC_OK) status = turns ? bamba(r, attending) : granite4(r, types);
    json_decref(types);
    json_decref(attending);
    return status;
}

/* Heads turn in Bamba alone: Granite 4 with positions has no file. */
static spec_status write(gguf_writing *w)
{
    const char *type = json_string_value(json_object_get(w->config->root, "model_type"));
    const char *positions = json_string_value(json_object_get(w->config->root, "position_embedding_type"));
    const bool turns = type && strcmp(type, "bamba") == 0;
    if (!turns && positions && strcmp(positions, "nope") != 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: position_embedding_type is \"%.60s\": GGUF has such models with \"nope\" only",
                          w->config->file, positions);
    const json_int_t inner = json_integer_value(json_object_get(w->taken, "mamba_expand")) *
                             json_integer_value(json_object_get(w->taken, "hidden_size"));
    SPEC_TRY(speci_gguf_put_own_whole(w, "ssm.inner_size", (uint32_t)inner));
    SPEC_TRY(speci_gguf_put_flag(w->head, "granitehybrid.rope.scaling.finetuned", turns));
    return speci_gguf_put_layers(w);
}

const model_gguf speci_gguf_granitehybrid = { .architecture = "granitehybrid", .model_type = "granitemoehybrid", .also = "bamba",
                                              .names = names, .halves = halves, .keys = hybrid_keys,
                                              .form = { .pairs_together = true, .decays = true },
                                              .finish = finish, .write = write };
