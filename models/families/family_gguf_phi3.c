/* family_gguf_phi3.c - Phi-3, Phi-3.5 and Phi-4 from GGUF. Factors of long positions are tensors, and tell by themselves that there are
 * such. Source: llama.cpp, conversion/phi.py. */
#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

static const model_rename own[] = {
    { "model.layers.#.self_attn.qkv_proj", "blk.#.attn_qkv" },
    { "model.layers.#.self_attn.o_proj", "blk.#.attn_output" },
    { "model.layers.#.mlp.gate_up_proj", "blk.#.ffn_up" },
    { "model.layers.#.mlp.down_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, speci_gguf_ends, speci_gguf_norms_before, NULL };

static const gguf_key keys[] = {
    { "attention.sliding_window", "sliding_window", GGUF_WHOLE },
    { "rope.scaling.original_context_length", "original_max_position_embeddings", GGUF_WHOLE }, /* there without a scaling, too */
    { NULL, NULL, 0 },
};

/* A window of 0 is none. */
static spec_status finish(gguf_reading *r)
{
    return speci_gguf_config_integer(r, "sliding_window") ? SPEC_OK : speci_gguf_set(r, "sliding_window", json_null(), NULL);
}

/* Written where nothing turns otherwise, too: the class does not read it then. */
static spec_status write(gguf_writing *w)
{
    static const char key[] = "original_max_position_embeddings";
    const json_t *length = json_object_get(w->config->root, key);
    if (json_object_get(w->taken, key) || !json_is_integer(length)) return SPEC_OK;
    return speci_gguf_put_own_whole(w, "rope.scaling.original_context_length", (uint32_t)json_integer_value(length));
}

const model_gguf speci_gguf_phi3 = { .architecture = "phi3", .model_type = "phi3", .names = names, .keys = keys, .finish = finish,
                                     .write = write };
