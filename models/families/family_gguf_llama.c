/* family_gguf_llama.c - Llama, and what has its tensors, from GGUF. Files of Mistral and InternLM3 say that they are Llama's.
 * Source: llama.cpp, conversion/llama.py, qwen.py, smollm.py, olmo.py, ernie.py, gemma.py, stablelm.py. */
#include "models/families/family_gguf.h"
#include "models/families/family_gguf_write.h"

spec_status speci_gguf_llama_biases(gguf_reading *r)
{
    SPEC_TRY(speci_gguf_set(r, "attention_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_q.bias")), NULL));
    return speci_gguf_set(r, "mlp_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.ffn_gate.bias")), NULL);
}

/* A window, which only some converters write, is Mistral's, which has no biases. */
static spec_status finish(gguf_reading *r)
{
    const int64_t window = speci_gguf_config_integer(r, "sliding_window");
    if (window != 0) return speci_gguf_set(r, "model_type", json_string("mistral"), "general.architecture");
    SPEC_TRY(speci_gguf_set(r, "sliding_window", json_null(), NULL));
    return speci_gguf_llama_biases(r);
}

static const gguf_key llama_keys[] = { { "attention.sliding_window", "sliding_window", GGUF_WHOLE }, { NULL, NULL, 0 } };

const model_gguf speci_gguf_llama = { .architecture = "llama", .model_type = "llama", .also = "mistral internlm3",
                                      .names = speci_gguf_llama_names, .keys = llama_keys,
                                      .form = { .pairs_together = true }, .finish = finish };

const model_gguf speci_gguf_qwen2 = { .architecture = "qwen2", .model_type = "qwen2", .names = speci_gguf_llama_names };
const model_gguf speci_gguf_qwen3 = { .architecture = "qwen3", .model_type = "qwen3", .names = speci_gguf_llama_names };

/* Every fourth layer does not turn; no key says so. */
const model_gguf speci_gguf_smollm3 = { .architecture = "smollm3", .model_type = "smollm3", .names = speci_gguf_llama_names,
                                        .form = { .pairs_together = true }, .finish = speci_gguf_llama_biases };

static const gguf_key olmo_keys[] = {
    { "attention.layer_norm_epsilon", NULL, GGUF_WHOLE }, /* always the same */
    { "attention.clamp_kqv", "clip_qkv", GGUF_REAL },
    { NULL, NULL, 0 },
};
static spec_status olmo_write(gguf_writing *w)
{
    return speci_gguf_put_real(w->head, "olmo.attention.layer_norm_epsilon", 1e-5f);
}
const model_gguf speci_gguf_olmo = { .architecture = "olmo", .model_type = "olmo", .names = speci_gguf_llama_names, .keys = olmo_keys,
                                     .form = { .pairs_together = true }, .write = olmo_write };

static spec_status ernie_biases(gguf_reading *r)
{
    return speci_gguf_set(r, "use_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_q.bias")), NULL);
}
const model_gguf speci_gguf_ernie4_5 = { .architecture = "ernie4_5", .model_type = "ernie4_5", .names = speci_gguf_llama_names,
                                         .finish = ernie_biases };

const model_gguf speci_gguf_gemma = { .architecture = "gemma", .model_type = "gemma", .names = speci_gguf_llama_names,
                                      .form = { .norms = true } };

static const gguf_key stablelm_keys[] = {
    { "attention.layer_norm_epsilon", "layer_norm_eps", GGUF_REAL },
    { "use_parallel_residual", "use_parallel_residual", GGUF_FLAG },
    { NULL, NULL, 0 },
};
static spec_status stablelm_biases(gguf_reading *r)
{
    return speci_gguf_set(r, "use_qkv_bias", json_boolean(speci_gguf_has_tensor(r, "blk.0.attn_q.bias")), NULL);
}
const model_gguf speci_gguf_stablelm = { .architecture = "stablelm", .model_type = "stablelm", .names = speci_gguf_llama_names,
                                         .keys = stablelm_keys, .finish = stablelm_biases };

static const gguf_key command_r_keys[] = {
    { "attention.layer_norm_epsilon", "layer_norm_eps", GGUF_REAL }, { "logit_scale", "logit_scale", GGUF_REAL }, { NULL, NULL, 0 },
};
const model_gguf speci_gguf_command_r = { .architecture = "command-r", .model_type = "cohere", .names = speci_gguf_llama_names,
                                          .keys = command_r_keys };
