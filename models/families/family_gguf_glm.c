/* family_gguf_glm.c - GLM-4 and GLM-4-0414 from GGUF: pairs that turn stand as in the checkpoint. Of GLM-4's first
 * layout, ChatGLM's, q, k and v are one tensor. Of its Hugging Face layout the converter keeps neither the length nor
 * the rotary base nor the norms' epsilon, and says hidden_size, 10000 and 1e-5. Source: llama.cpp, conversion/glm.py,
 * chatglm.py. */
#include "models/families/family_gguf.h"

static const model_rename own[] = {
    { "model.layers.#.self_attn.qkv_proj", "blk.#.attn_qkv" }, /* ChatGLM's */
    { "model.layers.#.post_self_attn_layernorm", "blk.#.post_attention_norm" },
    { "model.layers.#.post_mlp_layernorm", "blk.#.post_ffw_norm" },
    { "model.layers.#.mlp.gate_up_proj", "blk.#.ffn_up" },
    { "model.layers.#.mlp.down_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static const model_rename *const names[] = { own, speci_gguf_ends, speci_gguf_norms_before, speci_gguf_attention, NULL };

static spec_status biases(gguf_reading *r)
{
    const bool bias = speci_gguf_has_tensor(r, "blk.0.attn_q.bias") || speci_gguf_has_tensor(r, "blk.0.attn_qkv.bias");
    return speci_gguf_set(r, "attention_bias", json_boolean(bias), NULL);
}

const model_gguf speci_gguf_glm4 = { .architecture = "glm4", .model_type = "glm4", .names = names, .finish = biases };
const model_gguf speci_gguf_chatglm = { .architecture = "chatglm", .model_type = "glm", .names = names, .finish = biases };
