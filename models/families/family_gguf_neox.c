/* family_gguf_neox.c - GPT-NeoX and Pythia from GGUF. Heads of q, of k and of v stand one after the other.
 * Source: llama.cpp, conversion/gptneox.py, which keeps no rotary base: it is 10000. */
#include "models/families/family_gguf.h"

static const model_rename own[] = {
    { "gpt_neox.embed_in", "token_embd" },
    { "gpt_neox.final_layer_norm", "output_norm" },
    { "embed_out", "output" },
    { "gpt_neox.layers.#.input_layernorm", "blk.#.attn_norm" },
    { "gpt_neox.layers.#.attention.query_key_value", "blk.#.attn_qkv" },
    { "gpt_neox.layers.#.attention.dense", "blk.#.attn_output" },
    { "gpt_neox.layers.#.post_attention_layernorm", "blk.#.ffn_norm" },
    { "gpt_neox.layers.#.mlp.dense_h_to_4h", "blk.#.ffn_up" },
    { "gpt_neox.layers.#.mlp.dense_4h_to_h", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, NULL };

static const gguf_key keys[] = {
    { "use_parallel_residual", "use_parallel_residual", GGUF_FLAG },
    { "attention.layer_norm_epsilon", "layer_norm_eps", GGUF_REAL },
    { NULL, NULL, 0 },
};

static spec_status finish(gguf_reading *r)
{
    return speci_gguf_set(r, "attention_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_qkv.bias")), NULL);
}

const model_gguf speci_gguf_gptneox = { .architecture = "gptneox", .model_type = "gpt_neox", .names = names, .keys = keys,
                                        .form = { .qkv_in_order = true }, .finish = finish };
