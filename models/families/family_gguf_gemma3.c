/* family_gguf_gemma3.c - Gemma 3's text models from GGUF, and back. The scale of scores is no key: it follows from sizes, in the largest
 * model otherwise than in the others. Source: llama.cpp, conversion/gemma.py, src/models/gemma3.cpp. */
#include <inttypes.h>

#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

enum { LARGEST = 62 }; /* layers, of the 27B */

static const model_rename names[] = {
    { "model.embed_tokens", "token_embd" },
    { "model.norm", "output_norm" },
    { "lm_head", "output" },
    { "model.layers.#.input_layernorm", "blk.#.attn_norm" },
    { "model.layers.#.self_attn.q_proj", "blk.#.attn_q" },
    { "model.layers.#.self_attn.k_proj", "blk.#.attn_k" },
    { "model.layers.#.self_attn.v_proj", "blk.#.attn_v" },
    { "model.layers.#.self_attn.o_proj", "blk.#.attn_output" },
    { "model.layers.#.self_attn.q_norm", "blk.#.attn_q_norm" },
    { "model.layers.#.self_attn.k_norm", "blk.#.attn_k_norm" },
    { "model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { "model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm" },
    { "model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm" },
    { "model.layers.#.mlp.gate_proj", "blk.#.ffn_gate" },
    { "model.layers.#.mlp.up_proj", "blk.#.ffn_up" },
    { "model.layers.#.mlp.down_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const gguf_key keys[] = {
    { "attention.sliding_window", "sliding_window", GGUF_WHOLE },
    { "attention.sliding_window_pattern", "_sliding_window_pattern", GGUF_WHOLE },
    { "rope.freq_base_swa", "rope_local_base_freq", GGUF_REAL },
    { NULL, NULL, 0 },
};

/* One over the square of the scale. */
static int64_t scalar(int64_t n_layer, int64_t dim, int64_t n_head, int64_t head_dim)
{
    return n_layer == LARGEST && n_head > 0 ? dim / n_head : head_dim;
}

static spec_status finish(gguf_reading *r)
{
    const int64_t n = scalar(speci_gguf_config_integer(r, "num_hidden_layers"), speci_gguf_config_integer(r, "hidden_size"),
                             speci_gguf_config_integer(r, "num_attention_heads"), speci_gguf_config_integer(r, "head_dim"));
    return speci_gguf_set(r, "query_pre_attn_scalar", json_integer(n), NULL);
}

/* --- and back --- */

static int64_t whole(const gguf_writing *w, const char *key) { return json_integer_value(json_object_get(w->taken, key)); }

static spec_status write(gguf_writing *w)
{
    const int64_t n_layer = whole(w, "num_hidden_layers"), said = (int64_t)json_number_value(json_object_get(w->taken, "query_pre_attn_scalar"));
    const int64_t expected = scalar(n_layer, whole(w, "hidden_size"), whole(w, "num_attention_heads"), whole(w, "head_dim"));
    if (said != expected)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: query_pre_attn_scalar is %" PRId64 ", but GGUF files of Gemma 3 with these sizes mean %"
                          PRId64, w->config->file, said, expected);
    if (whole(w, "_sliding_window_pattern") > 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: layer_types is no pattern that a GGUF file can say: every n-th layer attends to all",
                      w->config->file);
}

const model_gguf speci_gguf_gemma3 = { .architecture = "gemma3", .model_type = "gemma3_text", .names = names, .keys = keys,
                                       .form = { .norms = true }, .finish = finish, .write = write };
