/* family_gguf_names.c - names of tensors in GGUF files that several rows share. Source: llama.cpp, gguf-py/gguf/tensor_mapping.py. */
#include "models/families/family_gguf.h"

const model_rename speci_gguf_ends[] = {
    { "model.embed_tokens", "token_embd" },
    { "model.norm", "output_norm" },
    { "lm_head", "output" },
    { NULL, NULL },
};

const model_rename speci_gguf_attention[] = {
    { "model.layers.#.self_attn.q_proj", "blk.#.attn_q" },
    { "model.layers.#.self_attn.k_proj", "blk.#.attn_k" },
    { "model.layers.#.self_attn.v_proj", "blk.#.attn_v" },
    { "model.layers.#.self_attn.o_proj", "blk.#.attn_output" },
    { NULL, NULL },
};

const model_rename speci_gguf_qk_norms[] = {
    { "model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm" },
    { "model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm" },
    { NULL, NULL },
};

const model_rename speci_gguf_mlp[] = {
    { "model.layers.#.mlp.gate_proj", "blk.#.ffn_gate" },
    { "model.layers.#.mlp.up_proj", "blk.#.ffn_up" },
    { "model.layers.#.mlp.down_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

const model_rename speci_gguf_norms_before[] = {
    { "model.layers.#.input_layernorm", "blk.#.attn_norm" },
    { "model.layers.#.post_attention_layernorm", "blk.#.ffn_norm" },
    { NULL, NULL },
};

static const model_rename norms_behind[] = {
    { "model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { "model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm" },
    { NULL, NULL },
};

const model_rename *const speci_gguf_llama_names[] = {
    speci_gguf_ends, speci_gguf_norms_before, speci_gguf_attention, speci_gguf_qk_norms, speci_gguf_mlp, NULL,
};

const model_rename *const speci_gguf_bare_names[] = {
    speci_gguf_ends, norms_behind, speci_gguf_attention, speci_gguf_qk_norms, speci_gguf_mlp, NULL,
};
