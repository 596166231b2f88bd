/* family_gguf_glm.c - GLM-4 and GLM-4-0414 from GGUF: pairs that turn stand as in the checkpoint. Of GLM-4's first
 * layout, ChatGLM's, q, k and v are one tensor. Of its Hugging Face layout the converter keeps neither the length nor
 * the rotary base nor the norms' epsilon, and says hidden_size, 10000 and 1e-5. Source: llama.cpp, conversion/glm.py,
 * chatglm.py. */
#include "models/families/family_gguf.h"

static const model_rename names[] = {
    { "model.embed_tokens", "token_embd" },
    { "model.norm", "output_norm" },
    { "lm_head", "output" },
    { "model.layers.#.input_layernorm", "blk.#.attn_norm" },
    { "model.layers.#.self_attn.qkv_proj", "blk.#.attn_qkv" }, /* ChatGLM's */
    { "model.layers.#.self_attn.q_proj", "blk.#.attn_q" },
    { "model.layers.#.self_attn.k_proj", "blk.#.attn_k" },
    { "model.layers.#.self_attn.v_proj", "blk.#.attn_v" },
    { "model.layers.#.self_attn.o_proj", "blk.#.attn_output" },
    { "model.layers.#.post_self_attn_layernorm", "blk.#.post_attention_norm" },
    { "model.layers.#.post_attention_layernorm", "blk.#.ffn_norm" },
    { "model.layers.#.post_mlp_layernorm", "blk.#.post_ffw_norm" },
    { "model.layers.#.mlp.gate_up_proj", "blk.#.ffn_up" },
    { "model.layers.#.mlp.down_proj", "blk.#.ffn_down" },
    { NULL, NULL },
};

static spec_status biases(gguf_reading *r)
{
    const bool bias = speci_gguf_has_tensor(r, "blk.0.attn_q.bias") || speci_gguf_has_tensor(r, "blk.0.attn_qkv.bias");
    return speci_gguf_set(r, "attention_bias", json_boolean(bias), NULL);
}

const model_gguf speci_gguf_glm4 = { .architecture = "glm4", .model_type = "glm4", .names = names, .finish = biases };
const model_gguf speci_gguf_chatglm = { .architecture = "chatglm", .model_type = "glm", .names = names, .finish = biases };
