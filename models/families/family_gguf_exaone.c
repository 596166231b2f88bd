/* family_gguf_exaone.c - EXAONE 3 and 3.5 from GGUF. Source: llama.cpp, conversion/exaone.py, gguf-py/gguf/tensor_mapping.py. */
#include "models/families/family_gguf.h"

static const model_rename own[] = {
    { "transformer.wte", "token_embd" },
    { "transformer.ln_f", "output_norm" },
    { "lm_head", "output" },
    { "transformer.h.#.ln_1", "blk.#.attn_norm" },
    { "transformer.h.#.attn.attention.q_proj", "blk.#.attn_q" },
    { "transformer.h.#.attn.attention.k_proj", "blk.#.attn_k" },
    { "transformer.h.#.attn.attention.v_proj", "blk.#.attn_v" },
    { "transformer.h.#.attn.attention.out_proj", "blk.#.attn_output" },
    { "transformer.h.#.ln_2", "blk.#.ffn_norm" },
    { "transformer.h.#.mlp.c_fc_0", "blk.#.ffn_gate" },
    { "transformer.h.#.mlp.c_fc_1", "blk.#.ffn_up" },
    { "transformer.h.#.mlp.c_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, NULL };

/* Some converters write the norms' epsilon by both names. */
static const gguf_key keys[] = { { "attention.layer_norm_epsilon", "layer_norm_epsilon", GGUF_REAL }, { NULL, NULL, 0 } };

const model_gguf speci_gguf_exaone = { .architecture = "exaone", .model_type = "exaone", .names = names, .keys = keys,
                                       .finish = speci_gguf_llama_biases };
