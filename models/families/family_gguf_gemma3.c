/* family_gguf_gemma3.c - Gemma 2 and Gemma 3's text models from GGUF, and back. The scale of scores is no key: it follows from sizes, in
 * the largest model of each otherwise than in the others. Source: llama.cpp, conversion/gemma.py, src/models/gemma2.cpp, gemma3.cpp. */
#include <inttypes.h>

#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

enum { LARGEST_2 = 46, LARGEST_3 = 62 }; /* layers, of the models with 27 billion parameters */

static const model_rename own[] = {
    { "model.layers.#.input_layernorm", "blk.#.attn_norm" },
    { "model.layers.#.post_attention_layernorm", "blk.#.post_attention_norm" },
    { "model.layers.#.pre_feedforward_layernorm", "blk.#.ffn_norm" },
    { "model.layers.#.post_feedforward_layernorm", "blk.#.post_ffw_norm" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, speci_gguf_ends, speci_gguf_attention, speci_gguf_qk_norms, speci_gguf_mlp, NULL };

static const gguf_key keys_2[] = {
    { "attention.sliding_window", "sliding_window", GGUF_WHOLE },
    { "attention.sliding_window_pattern", "_sliding_window_pattern", GGUF_WHOLE },
    { "attn_logit_softcapping", "attn_logit_softcapping", GGUF_REAL },
    { "final_logit_softcapping", "final_logit_softcapping", GGUF_REAL },
    { NULL, NULL, 0 },
};

static const gguf_key keys_3[] = {
    { "attention.sliding_window", "sliding_window", GGUF_WHOLE },
    { "attention.sliding_window_pattern", "_sliding_window_pattern", GGUF_WHOLE },
    { "rope.freq_base_swa", "rope_local_base_freq", GGUF_REAL },
    { NULL, NULL, 0 },
};

/* One over the square of the scale. */
static int64_t scalar(int64_t n_layer, int64_t largest, int64_t dim, int64_t n_head, int64_t head_dim)
{
    return n_layer == largest && n_head > 0 ? dim / n_head : head_dim;
}

static spec_status finish(gguf_reading *r, int64_t largest)
{
    const int64_t n = scalar(speci_gguf_config_integer(r, "num_hidden_layers"), largest, speci_gguf_config_integer(r, "hidden_size"),
                             speci_gguf_config_integer(r, "num_attention_heads"), speci_gguf_config_integer(r, "head_dim"));
    return speci_gguf_set(r, "query_pre_attn_scalar", json_integer(n), NULL);
}

static spec_status finish_2(gguf_reading *r) { return finish(r, LARGEST_2); }
static spec_status finish_3(gguf_reading *r) { return finish(r, LARGEST_3); }

/* --- and back --- */

static double real(const gguf_writing *w, const char *key) { return json_number_value(json_object_get(w->taken, key)); }
static int64_t whole(const gguf_writing *w, const char *key) { return json_integer_value(json_object_get(w->taken, key)); }

static spec_status check_scalar(const gguf_writing *w, const char *family, int64_t largest)
{
    const int64_t said = (int64_t)real(w, "query_pre_attn_scalar");
    const int64_t expected = scalar(whole(w, "num_hidden_layers"), largest, whole(w, "hidden_size"), whole(w, "num_attention_heads"),
                                    whole(w, "head_dim"));
    if (said == expected) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: query_pre_attn_scalar is %" PRId64 ", but GGUF files of %s with these sizes mean %" PRId64,
                      w->config->file, said, family, expected);
}

static spec_status check_layers(const gguf_writing *w, bool regular, const char *which)
{
    if (regular) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: layer_types is no pattern that a GGUF file can say: every %s layer attends to all",
                      w->config->file, which);
}

/* Without a key there is the default's cap. */
static spec_status check_cap(const gguf_writing *w, const char *key)
{
    if (real(w, key) > 0) return SPEC_OK;
    return speci_fail(SPEC_E_UNSUPPORTED, "%s: %s is null, but GGUF files of Gemma 2 always have a cap", w->config->file, key);
}

static spec_status write_2(gguf_writing *w)
{
    SPEC_TRY(check_scalar(w, "Gemma 2", LARGEST_2));
    SPEC_TRY(check_cap(w, "attn_logit_softcapping"));
    SPEC_TRY(check_cap(w, "final_logit_softcapping"));
    return check_layers(w, whole(w, "_sliding_window_pattern") == 2, "second");
}

static spec_status write_3(gguf_writing *w)
{
    SPEC_TRY(check_scalar(w, "Gemma 3", LARGEST_3));
    return check_layers(w, whole(w, "_sliding_window_pattern") > 0, "n-th");
}

const model_gguf speci_gguf_gemma2 = { .architecture = "gemma2", .model_type = "gemma2", .names = names, .keys = keys_2,
                                       .form = { .norms = true }, .finish = finish_2, .write = write_2 };
const model_gguf speci_gguf_gemma3 = { .architecture = "gemma3", .model_type = "gemma3_text", .names = names, .keys = keys_3,
                                       .form = { .norms = true }, .finish = finish_3, .write = write_3 };
