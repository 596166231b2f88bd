/* family_gguf_starcoder2.c - StarCoder2 from GGUF. Its window is not kept. Source: llama.cpp, conversion/starcoder.py. */
#include "models/families/family_gguf.h"

static const model_rename names[] = {
    { "model.embed_tokens", "token_embd" },
    { "model.norm", "output_norm" },
    { "lm_head", "output" },
    { "model.layers.#.input_layernorm", "blk.#.attn_norm" },
    { "model.layers.#.self_attn.q_proj", "blk.#.attn_q" },
    { "model.layers.#.self_attn.k_proj", "blk.#.attn_k" },
    { "model.layers.#.self_attn.v_proj", "blk.#.attn_v" },
    { "model.layers.#.self_attn.o_proj", "blk.#.attn_output" },
    { "model.layers.#.post_attention_layernorm", "blk.#.ffn_norm" },
    { "model.layers.#.mlp.c_fc", "blk.#.ffn_up" },
    { "model.layers.#.mlp.c_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const gguf_key keys[] = {
    { "attention.layer_norm_epsilon", "norm_epsilon", GGUF_REAL }, { "attention.sliding_window", "sliding_window", GGUF_WHOLE }, { NULL, NULL, 0 },
};

static spec_status finish(gguf_reading *r)
{
    return speci_gguf_set(r, "use_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_q.bias")), NULL);
}

const model_gguf speci_gguf_starcoder2 = { .architecture = "starcoder2", .model_type = "starcoder2", .names = names, .keys = keys,
                                           .finish = finish };
