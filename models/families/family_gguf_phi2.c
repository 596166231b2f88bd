/* family_gguf_phi2.c - Phi-1, Phi-1.5 and Phi-2 from GGUF. The first files have q, k and v in one tensor. Source: llama.cpp,
 * conversion/phi.py, gguf-py/gguf/tensor_mapping.py; it keeps no rotary base, which is 10000. */
#include "models/families/family_gguf.h"

static const model_rename own[] = {
    { "model.embed_tokens", "token_embd" },
    { "model.final_layernorm", "output_norm" },
    { "lm_head", "output" },
    { "model.layers.#.input_layernorm", "blk.#.attn_norm" },
    { "model.layers.#.self_attn.q_proj", "blk.#.attn_q" },
    { "model.layers.#.self_attn.k_proj", "blk.#.attn_k" },
    { "model.layers.#.self_attn.v_proj", "blk.#.attn_v" },
    { "model.layers.#.self_attn.qkv_proj", "blk.#.attn_qkv" },
    { "model.layers.#.self_attn.dense", "blk.#.attn_output" },
    { "model.layers.#.mlp.fc1", "blk.#.ffn_up" },
    { "model.layers.#.mlp.fc2", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, NULL };

static const gguf_key keys[] = { { "attention.layer_norm_epsilon", "layer_norm_eps", GGUF_REAL }, { NULL, NULL, 0 } };

const model_gguf speci_gguf_phi2 = { .architecture = "phi2", .model_type = "phi", .names = names, .keys = keys };
