/* family_gguf_falcon.c - Falcon from GGUF: always side by side, without biases. Heads of q, of k and of v stand one after the other. The
 * norm of attention has another name where each branch has its own. Source: llama.cpp, conversion/falcon.py, src/models/falcon.cpp; it
 * keeps no rotary base, which is 10000. */
#include <string.h>

#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

static const model_rename own[] = {
    { "transformer.word_embeddings", "token_embd" },
    { "transformer.ln_f", "output_norm" },
    { "lm_head", "output" },
    { "transformer.h.#.input_layernorm", "blk.#.attn_norm" },
    { "transformer.h.#.ln_mlp", "blk.#.attn_norm" },
    { "transformer.h.#.ln_attn", "blk.#.attn_norm_2" },
    { "transformer.h.#.self_attention.query_key_value", "blk.#.attn_qkv" },
    { "transformer.h.#.self_attention.dense", "blk.#.attn_output" },
    { "transformer.h.#.mlp.dense_h_to_4h", "blk.#.ffn_up" },
    { "transformer.h.#.mlp.dense_4h_to_h", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, NULL };

static const char layout[] = "jploski"; /* the name of that order of heads */

static const gguf_key keys[] = {
    { "attention.head_count_kv", "num_kv_heads", GGUF_WHOLE },
    { "attention.layer_norm_epsilon", "layer_norm_epsilon", GGUF_REAL },
    { "tensor_data_layout", NULL, GGUF_WORD }, /* finish */
    { NULL, NULL, 0 },
};

/* Groups of any number are those of the new decoder. */
static spec_status finish(gguf_reading *r)
{
    const char *said = layout;
    size_t n = sizeof layout - 1;
    SPEC_TRY(speci_gguf_text(r->file, "falcon.tensor_data_layout", &said, &n));
    if (n != sizeof layout - 1 || memcmp(said, layout, n) != 0)
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: falcon.tensor_data_layout is \"%.*s\", expected \"%s\"", r->file->file,
                          n > 60 ? 60 : (int)n, said, layout);
    SPEC_TRY(speci_gguf_set(r, "new_decoder_architecture", json_true(), NULL));
    SPEC_TRY(speci_gguf_set(r, "num_ln_in_parallel_attn",
                            json_integer(speci_gguf_has_tensor(r, "blk.0.attn_norm_2.weight") ? 2 : 1), NULL));
    return speci_gguf_set(r, "bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_qkv.bias")), NULL);
}

static spec_status write(gguf_writing *w)
{
    if (json_is_true(json_object_get(w->taken, "bias")) || json_is_false(json_object_get(w->taken, "parallel_attn")))
        return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s, but GGUF files of Falcon mean bias false and parallel_attn true", w->config->file,
                          json_is_true(json_object_get(w->taken, "bias")) ? "bias is true" : "parallel_attn is false");
    return speci_gguf_put_text(w->head, "falcon.tensor_data_layout", layout, sizeof layout - 1);
}

const model_gguf speci_gguf_falcon = { .architecture = "falcon", .model_type = "falcon", .names = names, .keys = keys,
                                       .form = { .qkv_in_order = true }, .finish = finish, .write = write };
