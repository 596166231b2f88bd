/* family_gguf_seed_oss.c - Seed-OSS from GGUF: Llama, with another name for the norm before the MLP. Source: llama.cpp,
 * conversion/qwen.py, gguf-py/gguf/tensor_mapping.py. */
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
    { "model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { "model.layers.#.mlp.gate_proj", "blk.#.ffn_gate" },
    { "model.layers.#.mlp.up_proj", "blk.#.ffn_up" },
    { "model.layers.#.mlp.down_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static spec_status finish(gguf_reading *r)
{
    SPEC_TRY(speci_gguf_set(r, "attention_out_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_output.bias")), NULL));
    return speci_gguf_llama_biases(r);
}

const model_gguf speci_gguf_seed_oss = { .architecture = "seed_oss", .model_type = "seed_oss", .names = names, .finish = finish };
