/* family_gguf_seed_oss.c - Seed-OSS from GGUF: Llama, with another name for the norm before the MLP. Source: llama.cpp,
 * conversion/qwen.py, gguf-py/gguf/tensor_mapping.py. */
#include "models/families/family_gguf.h"

static const model_rename own[] = {
    { "model.layers.#.input_layernorm", "blk.#.attn_norm" },
    { "model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, speci_gguf_ends, speci_gguf_attention, speci_gguf_mlp, NULL };

static spec_status finish(gguf_reading *r)
{
    SPEC_TRY(speci_gguf_set(r, "attention_out_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_output.bias")), NULL));
    return speci_gguf_llama_biases(r);
}

const model_gguf speci_gguf_seed_oss = { .architecture = "seed_oss", .model_type = "seed_oss", .names = names, .finish = finish };
