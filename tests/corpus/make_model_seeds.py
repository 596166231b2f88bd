"""Writes the seeds of fuzz_safetensors.c, fuzz_config.c and fuzz_gguf.c: python make_model_seeds.py, no packages needed.

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


def stack(layers, h, norms, matrices, embed, extra):
    """Layer norms, and matrices below the first layer."""
    t = {embed + ".weight": (4, h), **extra}
    for n in norms:
        t.update({n + ".weight": (h,), n + ".bias": (h,)})
    t.update({layers + n + ".weight": (o, i) for n, o, i in matrices})
    return t


def fused_cases():
    """q, k and v in one tensor, in orders of their own."""
    p = "transformer.h.0."
    yield "falcon", {"model_type": "falcon", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4, "num_kv_heads": 2,
                     "vocab_size": 4, "new_decoder_architecture": True, "ffn_hidden_size": 8, "alibi": False}, stack(
        p, 16, (p + "ln_attn", p + "ln_mlp", "transformer.ln_f"),
        (("self_attention.query_key_value", 32, 16), ("self_attention.dense", 16, 16), ("mlp.dense_h_to_4h", 8, 16),
         ("mlp.dense_4h_to_h", 16, 8)), "transformer.word_embeddings", {})
    yield "codegen", {"model_type": "codegen", "n_embd": 8, "n_layer": 1, "n_head": 2, "n_inner": 4, "rotary_dim": 2, "vocab_size": 4}, stack(
        p, 8, (p + "ln_1", "transformer.ln_f"), (("attn.qkv_proj", 24, 8), ("attn.out_proj", 8, 8), ("mlp.fc_in", 4, 8), ("mlp.fc_out", 8, 4)),
        "transformer.wte", {p + "mlp.fc_in.bias": (4,), p + "mlp.fc_out.bias": (8,), "lm_head.weight": (4, 8), "lm_head.bias": (4,)})
    p = "gpt_neox_japanese.layers.0."
    yield "gpt_neox_japanese", {"model_type": "gpt_neox_japanese", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
                                "intermediate_multiple_size": 1, "vocab_size": 4}, stack(
        p, 8, (p + "input_layernorm", p + "post_attention_layernorm", "gpt_neox_japanese.final_layer_norm"),
        (("attention.query_key_value", 24, 8), ("attention.dense", 8, 8), ("mlp.dense_h_to_4h", 8, 8), ("mlp.dense_4h_to_h", 8, 8)),
        "gpt_neox_japanese.embed_in", {p + "attention.dense_bias": (8,)})


def cases():
    yield from fused_cases()
    p = "transformer.h.0."
    yield "exaone", {"model_type": "exaone", "hidden_size": 4, "intermediate_size": 4, "num_layers": 1, "num_attention_heads": 2,
                     "num_key_value_heads": 1, "vocab_size": 4, "tie_word_embeddings": True, "layer_norm_epsilon": 1e-5,
                     "activation_function": "silu"}, {
        "transformer.wte.weight": (4, 4), "transformer.ln_f.weight": (4,), p + "ln_1.weight": (4,), p + "ln_2.weight": (4,),
        **{f"{p}attn.attention.{n}_proj.weight": (r, 4) for n, r in (("q", 4), ("k", 2), ("v", 2), ("out", 4))},
        **{f"{p}mlp.{n}.weight": (4, 4) for n in ("c_fc_0", "c_fc_1", "c_proj")}}
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


# ------------------------------------------------------------------------------------------- GGUF ---

BLOCKS = {0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 8: (32, 34), 12: (256, 144), 14: (256, 210), 30: (1, 2), 39: (32, 17)}


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def value(v):
    """Type and bytes; a list of strings or of numbers is an array."""
    if isinstance(v, bool):
        return 7, struct.pack("<B", v)
    if isinstance(v, int):
        return 4, struct.pack("<I", v)
    if isinstance(v, float):
        return 6, struct.pack("<f", v)
    if isinstance(v, str):
        return 8, text(v)
    parts = [value(x) for x in v]
    return 9, struct.pack("<IQ", parts[0][0] if parts else 8, len(v)) + b"".join(p[1] for p in parts)


def gguf(pairs, tensors, version=3):
    """tensors: {name: (shape, slowest first, type)}"""
    alignment = pairs.get("general.alignment", 32)
    head, data = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)), b""
    for key, v in pairs.items():
        kind, packed = value(v)
        head += text(key) + struct.pack("<I", kind) + packed
    for name, (shape, kind) in tensors.items():
        n, size = BLOCKS[kind]
        head += text(name) + struct.pack("<I", len(shape)) + b"".join(struct.pack("<Q", d) for d in reversed(shape))
        head += struct.pack("<IQ", kind, len(data))
        count = size
        for d in shape:
            count *= d
        data += struct.pack("<f", 2.0) * (count // 4) if name.startswith("rope_") else bytes(i * 37 % 64 for i in range(count // n))
        data += bytes(-len(data) % alignment)
    return head + bytes(-len(head) % alignment) + data


TOKENIZER = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.tokens": ["a", "b", "ab", "</s>"],
             "tokenizer.ggml.token_type": [1, 1, 1, 3], "tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.eos_token_id": 3,
             "tokenizer.chat_template": "{{ x }}"}
PIECES = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["<unk>", "a", "\u2581", "\u2581a"],
          "tokenizer.ggml.scores": [0.0, -1.0, -2.0, -3.0], "tokenizer.ggml.token_type": [2, 1, 1, 1], "tokenizer.ggml.add_bos_token": False}


def gguf_llama(kind, h, arch="llama", **more):
    b, keys = "blk.0.", {"block_count": 1, "context_length": 64, "embedding_length": h, "feed_forward_length": h, "attention.head_count": 2,
                         "attention.head_count_kv": 1, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 1e4, **more}
    t = {"token_embd.weight": ((4, h), kind), "output_norm.weight": ((h,), 0), b + "attn_norm.weight": ((h,), 0), b + "ffn_norm.weight": ((h,), 0)}
    for n, rows in (("attn_q", h), ("attn_k", h // 2), ("attn_v", h // 2), ("attn_output", h), ("ffn_gate", h), ("ffn_up", h), ("ffn_down", h)):
        t[b + n + ".weight"] = ((rows, h), kind)
    return {"general.architecture": arch, **{arch + "." + k: v for k, v in keys.items()}}, t


def own(arch, keys):
    return {"general.architecture": arch, **{arch + "." + k: v for k, v in keys.items()}}


def blk(i, shapes):
    return {f"blk.{i}.{name}": (shape, 0) for name, shape in shapes.items()}


def gguf_cases():
    p, t = gguf_llama(0, 8, **{"rope.dimension_count": 4, "vocab_size": 4})
    yield "llama", {**p, **TOKENIZER}, {**t, "rope_freqs.weight": ((2,), 0)}
    for name, kind, h in (("q4_0", 2, 32), ("q8_0", 8, 32), ("mxfp4", 39, 32), ("bf16", 30, 8)):
        yield name, *gguf_llama(kind, h)
    p, t = gguf_llama(0, 8, "qwen2", **{"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16})
    for n, rows in (("q", 8), ("k", 4), ("v", 4)):
        t["blk.0.attn_" + n + ".bias"] = ((rows,), 0)
    yield "qwen2", {**p, **PIECES}, t
    ends = {"token_embd.weight": ((4, 4), 0), "output_norm.weight": ((4,), 0)}
    ssm = {"ssm_in.weight": (22, 4), "ssm_conv1d.weight": (12, 4), "ssm_conv1d.bias": (12,), "ssm_dt.bias": (2,), "ssm_a": (2, 1),
           "ssm_d": (2, 1), "ssm_norm.weight": (1, 8), "ssm_out.weight": (4, 8), "attn_norm.weight": (4,)}
    keys = {"ssm.conv_kernel": 4, "ssm.inner_size": 8, "ssm.state_size": 2, "ssm.time_step_rank": 2, "ssm.group_count": 1,
            "block_count": 1, "context_length": 64, "embedding_length": 4, "attention.layer_norm_rms_epsilon": 1e-5}
    yield "mamba2", own("mamba2", {**keys, "feed_forward_length": 0, "attention.head_count": 0}), {**ends, **blk(0, ssm)}
    mlp = {"ffn_norm.weight": (4,), "ffn_gate.weight": (4, 4), "ffn_up.weight": (4, 4), "ffn_down.weight": (4, 4)}
    heads = {"attn_norm.weight": (4,), "attn_q.weight": (4, 4), "attn_k.weight": (2, 4), "attn_v.weight": (2, 4), "attn_output.weight": (4, 4)}
    more = {"block_count": 2, "attention.head_count": 2, "attention.head_count_kv": [0, 1], "feed_forward_length": 4}
    for name, turns in (("granitehybrid", False), ("bamba", True)):
        yield name, own("granitehybrid", {**keys, **more, "expert_shared_feed_forward_length": 4, "rope.scaling.finetuned": turns}), {
            **ends, **blk(0, {**ssm, **mlp}), **blk(1, {**heads, **mlp})}
    ssm = {"ssm_in.weight": (16, 4), "ssm_conv1d.weight": (8, 4), "ssm_conv1d.bias": (8,), "ssm_x.weight": (5, 8), "ssm_dt.weight": (8, 1),
           "ssm_dt.bias": (8,), "ssm_a": (8, 2), "ssm_d": (8,), "ssm_out.weight": (4, 8), "attn_norm.weight": (4,)}
    yield "mamba", own("mamba", {**keys, "ssm.time_step_rank": 1, "ssm.dt_b_c_rms": False}), {**ends, **blk(0, ssm)}
    yield "values", {"general.architecture": "x", "general.alignment": 64, "a": [True, False], "b": [1.0, float("inf")], "c": ["", "x"],
                     "general.sampling.temp": 0.5, "split.no": 0, "split.count": 1}, {"t": ((2, 3), 0), "u": ((256,), 14)}


def main():
    for folder in ("safetensors", "config", "gguf"):
        os.makedirs(os.path.join(HERE, folder), exist_ok=True)
    for name, config, shapes in cases():
        write("config", name, json.dumps(config).encode() + b"\0" + safetensors(shapes))
    write("config", "refused", b'{"model_type":"llama","quantization_config":{"bits":4},"time_step_limit":[0,Infinity]}')
    write("config", "generation", b'{"do_sample":true,"temperature":0.7,"top_k":20,"top_p":0.9,"repetition_penalty":1.1,"num_beams":4,'
          b'"max_new_tokens":9,"stop_strings":["a","bc"],"suppress_tokens":[1,-1,96],"bad_words_ids":[[3],[2]]}')
    write("safetensors", "two", safetensors({"a": (2, 3), "b.c": ()}))
    write("safetensors", "types", safetensors({"a": (4,)}, "BF16"))
    for name, pairs, tensors in gguf_cases():
        write("gguf", name, gguf(pairs, tensors))
    write("gguf", "no_tensors", gguf({"general.architecture": "llama"}, {}, 2))
    write("tokenizer", "gpt2.gguf", gguf(TOKENIZER, {}))
    write("tokenizer", "llama.gguf", gguf(PIECES, {}))
    write("safetensors", "none", struct.pack("<Q", 34) + b'{"__metadata__":{"format":"pt"}}  ')


main()
