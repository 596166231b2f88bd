/* family_gguf_starcoder2.c - StarCoder2 from GGUF. Its window is not kept. Source: llama.cpp, conversion/starcoder.py. */
#include "models/families/family_gguf.h"

static const model_rename own[] = {
    { "model.layers.#.mlp.c_fc", "blk.#.ffn_up" },
    { "model.layers.#.mlp.c_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, speci_gguf_ends, speci_gguf_norms_before, speci_gguf_attention, NULL };

static const gguf_key keys[] = {
    { "attention.layer_norm_epsilon", "norm_epsilon", GGUF_REAL },
    { "attention.sliding_window", "sliding_window", GGUF_WHOLE },
    { NULL, NULL, 0 },
};

static spec_status finish(gguf_reading *r)
{
    return speci_gguf_set(r, "use_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_q.bias")), NULL);
}

const model_gguf speci_gguf_starcoder2 = { .architecture = "starcoder2", .model_type = "starcoder2", .names = names, .keys = keys,
                                           .finish = finish };
