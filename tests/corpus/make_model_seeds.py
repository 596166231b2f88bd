"""Writes the seeds of fuzz_safetensors.c and fuzz_config.c: python make_model_seeds.py, no packages needed.

A seed for fuzz_config is config.json, a zero byte, and a safetensors file that fits it."""
import json
import os
import struct

HERE = os.path.dirname(os.path.abspath(__file__))
INF = {"__float__": "Infinity"}


def safetensors(shapes, dtype="F32"):
    size, header, at = {"F32": 4, "BF16": 2, "F16": 2}[dtype], {}, 0
    for name, shape in shapes.items():
        n = size
        for d in shape:
            n *= d
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(text)) + text + bytes(i * 37 % 64 for i in range(at))


def write(folder, name, data):
    with open(os.path.join(HERE, folder, name), "wb") as f:
        f.write(data)


def attention(p, h, kv, bias=()):
    t = {p + n + "_proj.weight": (kv if n in "kv" else h, h) for n in "qkvo"}
    t.update({p + n + "_proj.bias": (kv if n in "kv" else h,) for n in bias})
    return t


def gated_mlp(p, h, ff):
    return {p + "gate_proj.weight": (ff, h), p + "up_proj.weight": (ff, h), p + "down_proj.weight": (h, ff)}


def mamba2(p, h, inner, channel, heads):
    return {p + "in_proj.weight": (inner + channel + heads, h), p + "conv1d.weight": (channel, 1, 4),
            p + "conv1d.bias": (channel,), p + "dt_bias": (heads,), p + "A_log": (heads,), p + "D": (heads,),
            p + "norm.weight": (inner,), p + "out_proj.weight": (h, inner)}


def ends(h, final, embed="model.embed_tokens.weight"):
    return {embed: (4, h), final: (h,)}


LLAMA = {"hidden_size": 4, "intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2,
         "num_key_value_heads": 1, "vocab_size": 4, "tie_word_embeddings": True}


def llama(kind, extra=None, bias=(), more=None):
    p = "model.layers.0."
    t = {**ends(4, "model.norm.weight"), p + "input_layernorm.weight": (4,), p + "post_attention_layernorm.weight": (4,),
         **attention(p + "self_attn.", 4, 2, bias), **gated_mlp(p + "mlp.", 4, 4), **(more or {})}
    return {"model_type": kind, **LLAMA, **(extra or {})}, t


def cases():
    yield "llama3", *llama("llama", {"rope_theta": 5e5, "rope_scaling": {
        "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 32}})
    yield "mistral", *llama("mistral", {"sliding_window": 8, "rope_parameters": {"rope_theta": 100.0}})
    yield "qwen2", *llama("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, "qkv")
    p = "model.layers.0.self_attn."
    yield "qwen3", *llama("qwen3", {"head_dim": 2, "layer_types": ["full_attention"]}, "",
                          {p + "q_norm.weight": (2,), p + "k_norm.weight": (2,)})
    p = "gpt_neox.layers.0."
    t = ends(8, "gpt_neox.final_layer_norm.weight", "gpt_neox.embed_in.weight")
    t.update({"gpt_neox.final_layer_norm.bias": (8,), "embed_out.weight": (4, 8)})
    for n in ("input_layernorm", "post_attention_layernorm"):
        t.update({p + n + ".weight": (8,), p + n + ".bias": (8,)})
    for n, o, i in (("attention.query_key_value", 24, 8), ("attention.dense", 8, 8), ("mlp.dense_h_to_4h", 8, 8),
                    ("mlp.dense_4h_to_h", 8, 8)):
        t.update({p + n + ".weight": (o, i), p + n + ".bias": (o,)})
    yield "gpt_neox", {"model_type": "gpt_neox", "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1,
                       "num_attention_heads": 1, "vocab_size": 4, "rotary_pct": 0.25}, t
    p = "backbone.layers.0."
    base = {**ends(4, "backbone.norm_f.weight", "backbone.embeddings.weight"), p + "norm.weight": (4,)}
    m = p + "mixer."
    mamba1 = {m + "in_proj.weight": (16, 4), m + "conv1d.weight": (8, 1, 4), m + "conv1d.bias": (8,),
              m + "x_proj.weight": (5, 8), m + "dt_proj.weight": (8, 1), m + "dt_proj.bias": (8,), m + "A_log": (8, 2),
              m + "D": (8,), m + "out_proj.weight": (4, 8)}
    yield "mamba", {"model_type": "mamba", "hidden_size": 4, "num_hidden_layers": 1, "state_size": 2, "vocab_size": 4,
                    "time_step_rank": "auto"}, {**base, **mamba1}
    two = {**base, **mamba2(m, 4, 8, 12, 2)}
    yield "mamba2", {"model_type": "mamba2", "hidden_size": 4, "num_hidden_layers": 1, "num_heads": 2, "head_dim": 4,
                     "n_groups": 1, "state_size": 2, "vocab_size": 4, "tie_word_embeddings": True,
                     "time_step_limit": [0.0, INF]}, two
    two = {k.replace("embeddings", "embedding"): v for k, v in two.items()}
    yield "mamba2_original", {"d_model": 4, "n_layer": 1, "vocab_size": 3, "pad_vocab_size_multiple": 4,
                              "ssm_cfg": {"layer": "Mamba2", "d_state": 2, "headdim": 4}}, two
    config, t = llama("bamba", {"num_hidden_layers": 2, "attn_layer_indices": [1], "mamba_n_heads": 2,
                                "mamba_d_state": 2, "rope_parameters": {"partial_rotary_factor": 1.0}})
    t = {k.replace("layers.0", "layers.1").replace("post_attention_", "pre_ff_").replace("mlp", "feed_forward")
         .replace("model.norm", "model.final_layernorm"): v for k, v in t.items()}
    p = "model.layers.0."
    t.update({p + "input_layernorm.weight": (4,), p + "pre_ff_layernorm.weight": (4,),
              **gated_mlp(p + "feed_forward.", 4, 4), **mamba2(p + "mamba.", 4, 8, 12, 2)})
    yield "bamba", config, t


def main():
    for folder in ("safetensors", "config"):
        os.makedirs(os.path.join(HERE, folder), exist_ok=True)
    for name, config, shapes in cases():
        write("config", name, json.dumps(config).encode() + b"\0" + safetensors(shapes))
    write("config", "refused", b'{"model_type":"llama","quantization_config":{"bits":4},"time_step_limit":[0,Infinity]}')
    write("config", "generation", b'{"do_sample":true,"temperature":0.7,"top_k":20,"top_p":0.9,"repetition_penalty":1.1,"num_beams":4,'
          b'"max_new_tokens":9,"stop_strings":["a","bc"],"suppress_tokens":[1,-1,96],"bad_words_ids":[[3],[2]]}')
    write("safetensors", "two", safetensors({"a": (2, 3), "b.c": ()}))
    write("safetensors", "types", safetensors({"a": (4,)}, "BF16"))
    write("safetensors", "none", struct.pack("<Q", 34) + b'{"__metadata__":{"format":"pt"}}  ')


main()
