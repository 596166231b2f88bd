/* family_gguf_lfm2.c - LFM2 from GGUF. The MLP's width is what it is, without the class's rules. Source: llama.cpp, conversion/lfm2.py. */
#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

static const model_rename own[] = {
    { "model.embed_tokens", "token_embd" },
    { "model.embedding_norm", "token_embd_norm" }, /* the last norm, in spite of its name */
    { "model.layers.#.operator_norm", "blk.#.attn_norm" },
    { "model.layers.#.conv.in_proj", "blk.#.shortconv.in_proj" },
    { "model.layers.#.conv.conv", "blk.#.shortconv.conv" },
    { "model.layers.#.conv.out_proj", "blk.#.shortconv.out_proj" },
    { "model.layers.#.self_attn.q_proj", "blk.#.attn_q" },
    { "model.layers.#.self_attn.k_proj", "blk.#.attn_k" },
    { "model.layers.#.self_attn.v_proj", "blk.#.attn_v" },
    { "model.layers.#.self_attn.out_proj", "blk.#.attn_output" },
    { "model.layers.#.self_attn.q_layernorm", "blk.#.attn_q_norm" },
    { "model.layers.#.self_attn.k_layernorm", "blk.#.attn_k_norm" },
    { "model.layers.#.ffn_norm", "blk.#.ffn_norm" },
    { "model.layers.#.feed_forward.w1", "blk.#.ffn_gate" },
    { "model.layers.#.feed_forward.w3", "blk.#.ffn_up" },
    { "model.layers.#.feed_forward.w2", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, NULL };

static const gguf_key keys[] = {
    { "attention.head_count_kv", NULL, GGUF_WHOLE }, /* of each layer: finish() */
    { "attention.layer_norm_rms_epsilon", "norm_eps", GGUF_REAL },
    { "shortconv.l_cache", "conv_L_cache", GGUF_WHOLE },
    { NULL, NULL, 0 },
};

static spec_status finish(gguf_reading *r)
{
    json_t *types = json_array();
    spec_status status = types ? speci_gguf_layers(r, types, NULL, "full_attention", "conv") : SPEC_E_NOMEM;
    if (status == SPEC_OK) status = speci_gguf_set(r, "layer_types", json_incref(types), "attention.head_count_kv");
    json_decref(types);
    SPEC_TRY(status);
    SPEC_TRY(speci_gguf_set(r, "conv_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.shortconv.conv.bias")), NULL));
    return speci_gguf_set(r, "block_auto_adjust_ff_dim", json_false(), NULL);
}

const model_gguf speci_gguf_lfm2 = { .architecture = "lfm2", .model_type = "lfm2", .names = names, .keys = keys, .finish = finish,
                                     .write = speci_gguf_put_layers };
