"""Makes the tiny random checkpoints of this folder, their golden logits and the config-key cases.

    python make_models.py [case ...]        all cases without arguments; writes beside this file

Weights come from numpy's PCG64 seeded by (case, tensor name), so a case can be made again alone.
Logits come from transformers (float32, eager attention, no cache), or from plain_reference.py for
the layouts that transformers does not read.
"""
import copy
import json
import math
import os
import shutil
import sys
import tempfile
import zlib

import numpy as np
import torch
from safetensors.torch import save_file

import plain_reference

HERE = os.path.dirname(os.path.abspath(__file__))
N_IDS = 64
TAIL = 56           # key cases store positions 56..63
INF = float("inf")


# ---------------------------------------------------------------- random weights

def rng(*names):
    return np.random.default_rng([zlib.crc32(n.encode()) for n in names])


def fill(case, name, shape, kind):
    """kind: see the shape functions. Every tensor is far from its customary initial value (1, 0, arange)."""
    r = rng(case, name)
    n = r.standard_normal(shape)
    u = r.uniform(size=shape)
    if kind == "emb":
        x = 0.7 * n
    elif kind == "tied":
        x = 0.45 * n
    elif kind == "norm":
        x = 0.6 + 0.8 * u
    elif kind == "bias":
        x = 0.3 * n
    elif kind == "conv":
        x = 0.5 * n
    elif kind == "A_log":
        x = np.log(0.4 + 6 * u)
    elif kind == "D":
        x = 0.5 + 0.7 * n
    elif kind == "dt_bias":
        dt = np.exp(math.log(0.02) + u * math.log(0.8 / 0.02))      # soft-plus(dt_bias) in 0.02 .. 0.8
        x = dt + np.log(-np.expm1(-dt))
    else:                                                           # a matrix, kind = gain
        x = float(kind) * n / math.sqrt(shape[-1])
    return torch.tensor(np.asarray(x), dtype=torch.float32)


QK, LIN, HEAD = "1.5", "1.1", "2.5"


def shapes_llama(c):
    h, nh = c["hidden_size"], c["num_attention_heads"]
    hd, kv, ff = c.get("head_dim") or h // nh, c.get("num_key_value_heads") or nh, c["intermediate_size"]
    tied, t = c.get("tie_word_embeddings", False), {}
    kind = c["model_type"]
    qkv_bias = kind == "qwen2" or c.get("attention_bias", kind == "seed_oss")
    o_bias = c.get("attention_out_bias", False) if kind == "seed_oss" else kind != "qwen2" and c.get("attention_bias", False)
    t["model.embed_tokens.weight"] = (c["vocab_size"], h), "tied" if tied else "emb"
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        t[p + "input_layernorm.weight"] = (h,), "norm"
        if kind == "phi3":
            t[p + "self_attn.qkv_proj.weight"] = ((nh + 2 * kv) * hd, h), QK
            t[p + "self_attn.o_proj.weight"] = (h, nh * hd), LIN
            t[p + "mlp.gate_up_proj.weight"], t[p + "mlp.down_proj.weight"] = ((2 * ff, h), LIN), ((h, ff), LIN)
        else:
            attention(t, p, h, nh, kv, hd, qkv_bias, o_bias)
        if c["model_type"] == "qwen3":
            t[p + "self_attn.q_norm.weight"] = t[p + "self_attn.k_norm.weight"] = (hd,), "norm"
        t[p + "post_attention_layernorm.weight"] = (h,), "norm"
        if kind != "phi3":
            mlp(t, p + "mlp.", h, ff, c.get("mlp_bias", False))
    t["model.norm.weight"] = (h,), "norm"
    if not tied:
        t["lm_head.weight"] = (c["vocab_size"], h), HEAD
    return t


def attention(t, p, h, nh, kv, hd, qkv_bias, o_bias):
    for n, rows, gain in (("q", nh, QK), ("k", kv, QK), ("v", kv, LIN)):
        t[p + f"self_attn.{n}_proj.weight"] = (rows * hd, h), gain
        if qkv_bias:
            t[p + f"self_attn.{n}_proj.bias"] = (rows * hd,), "bias"
    t[p + "self_attn.o_proj.weight"] = (h, nh * hd), LIN
    if o_bias:
        t[p + "self_attn.o_proj.bias"] = (h,), "bias"


def mlp(t, p, h, ff, bias):
    for n, s in (("gate", (ff, h)), ("up", (ff, h)), ("down", (h, ff))):
        t[p + n + "_proj.weight"] = s, LIN
        if bias:
            t[p + n + "_proj.bias"] = s[:1], "bias"


def shapes_neox(c):
    h, ff, t = c["hidden_size"], c["intermediate_size"], {}
    tied = c.get("tie_word_embeddings", False)
    t["gpt_neox.embed_in.weight"] = (c["vocab_size"], h), "tied" if tied else "emb"

    def lin(p, s, gain, bias=True):
        t[p + ".weight"] = s, gain
        if bias:
            t[p + ".bias"] = s[:1], "bias"
    for i in range(c["num_hidden_layers"]):
        p = f"gpt_neox.layers.{i}."
        for n in ("input_layernorm", "post_attention_layernorm"):
            t[p + n + ".weight"], t[p + n + ".bias"] = ((h,), "norm"), ((h,), "bias")
        lin(p + "attention.query_key_value", (3 * h, h), QK, c.get("attention_bias", True))
        lin(p + "attention.dense", (h, h), LIN, c.get("attention_bias", True))
        lin(p + "mlp.dense_h_to_4h", (ff, h), LIN)
        lin(p + "mlp.dense_4h_to_h", (h, ff), "3")
    t["gpt_neox.final_layer_norm.weight"], t["gpt_neox.final_layer_norm.bias"] = ((h,), "norm"), ((h,), "bias")
    if not tied:
        t["embed_out.weight"] = (c["vocab_size"], h), HEAD
    return t


def shapes_falcon(c):
    """Norms by what the class makes of the flags."""
    h, nh, t = c["hidden_size"], c["num_attention_heads"], {}
    hd, new, ff = h // nh, c.get("new_decoder_architecture", False), c.get("ffn_hidden_size") or 4 * h
    kv = c.get("num_kv_heads") or nh if new else 1 if c.get("multi_query", True) else nh
    tied, bias, parallel = c.get("tie_word_embeddings", True), c.get("bias", False), new or c.get("parallel_attn", True)
    two = new and c.get("num_ln_in_parallel_attn", 2) == 2
    t["transformer.word_embeddings.weight"] = (c["vocab_size"], h), "tied" if tied else "emb"

    def norm(name):
        t[name + ".weight"], t[name + ".bias"] = ((h,), "norm"), ((h,), "bias")
    for i in range(c["num_hidden_layers"]):
        p = f"transformer.h.{i}."
        for name in ("ln_attn", "ln_mlp") if two else ("input_layernorm",) if parallel else ("input_layernorm", "post_attention_layernorm"):
            norm(p + name)
        for name, shape, gain in (("self_attention.query_key_value", ((nh + 2 * kv) * hd, h), QK), ("self_attention.dense", (h, h), LIN),
                                  ("mlp.dense_h_to_4h", (ff, h), LIN), ("mlp.dense_4h_to_h", (h, ff), "3")):
            t[p + name + ".weight"] = shape, gain
            if bias:
                t[p + name + ".bias"] = shape[:1], "bias"
    norm("transformer.ln_f")
    if not tied:
        t["lm_head.weight"] = (c["vocab_size"], h), HEAD
    return t


def shapes_neox_japanese(c):
    h, t, p = c["hidden_size"], {}, "gpt_neox_japanese."
    tied, ff = c.get("tie_word_embeddings", True), h * c.get("intermediate_multiple_size", 4)
    t[p + "embed_in.weight"] = (c["vocab_size"], h), "tied" if tied else "emb"

    def norm(name):
        t[name + ".weight"], t[name + ".bias"] = ((h,), "norm"), ((h,), "bias")
    for i in range(c["num_hidden_layers"]):
        q = f"{p}layers.{i}."
        norm(q + "input_layernorm")
        norm(q + "post_attention_layernorm")
        for name, shape, gain in (("attention.query_key_value", (3 * h, h), QK), ("attention.dense", (h, h), LIN),
                                  ("mlp.dense_h_to_4h", (ff, h), LIN), ("mlp.dense_4h_to_h", (h, ff), "3")):
            t[q + name + ".weight"] = shape, gain
    t[f"{p}layers.{c['num_hidden_layers'] - 1}.attention.dense_bias"] = (h,), "bias"
    norm(p + "final_layer_norm")
    if not tied:
        t["embed_out.weight"] = (c["vocab_size"], h), HEAD
    return t


# What the other dense transformers have. norms: the tensors of a norm; second: is there a norm of the MLP; mlp: gate and up
# one by one ("glu"), in one tensor ("fused"), or the names of an MLP's tensors, the last of which is down.
DENSE = {
    "olmo": dict(norms="", mlp="glu"), "ernie4_5": dict(norms="w", mlp="glu"), "helium": dict(norms="w", mlp="glu"),
    "internlm3": dict(norms="w", mlp="glu"), "glm": dict(norms="w", mlp="fused"), "stablelm": dict(norms="wb", mlp="glu"),
    "starcoder2": dict(norms="wb", mlp=("c_fc", "c_proj")), "cohere": dict(norms="w", mlp="glu", second=False),
    "cohere2": dict(norms="w", mlp="glu", second=False),
    "phi": dict(norms="wb", mlp=("fc1", "fc2"), second=False, head_bias=True, out="dense", final="model.final_layernorm"),
    "gptj": dict(norms="wb", mlp=("fc_in", "fc_out"), second=False, head_bias=True, out="out_proj", final="transformer.ln_f",
                 layers="transformer.h", first="ln_1", attention="attn", embed="transformer.wte"),
    "codegen": dict(norms="wb", mlp=("fc_in", "fc_out"), second=False, head_bias=True, out="out_proj", final="transformer.ln_f",
                    layers="transformer.h", first="ln_1", attention="attn", embed="transformer.wte", qkv="qkv_proj"),
    "exaone": dict(norms="w", mlp=("c_fc_0", "c_fc_1", "c_proj"), out="out_proj", final="transformer.ln_f", layers="transformer.h",
                   first="ln_1", second_name="ln_2", attention="attn.attention", embed="transformer.wte"),
    # layer_norms: names of norms in front of branches and behind them; qk: norms of each head, or over all heads
    **{kind: dict(norms="w", mlp="glu", **qk, layer_norms=(
        "input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"))
       for kind, qk in (("gemma2", {}), ("gemma3_text", {"qk": "head"}))},
    "glm4": dict(norms="w", mlp="fused", layer_norms=("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                                                      "post_mlp_layernorm")),
    **{kind: dict(norms="w", mlp="glu", qk=qk, layer_norms=("post_attention_layernorm", "post_feedforward_layernorm"))
       for kind, qk in (("exaone4", "head"), ("olmo2", "whole"), ("olmo3", "whole"))},
}


def dense_biases(c):
    """Of q, k and v; of the output; of the MLP."""
    kind = c["model_type"]
    if kind in ("phi", "gptj", "codegen"):
        return kind == "phi", kind == "phi", True
    if kind in ("starcoder2", "ernie4_5"):
        return (c.get("use_bias", kind == "starcoder2"),) * 3
    qkv = c.get("use_qkv_bias", False) if kind == "stablelm" else c.get("attention_bias", c.get("qkv_bias", kind == "glm"))
    return qkv, qkv and kind not in ("glm", "glm4", "stablelm", "helium"), c.get("mlp_bias", c.get("bias", False))


def shapes_dense(c):
    s, t = DENSE[c["model_type"]], {}
    h, nh, n = c.get("hidden_size", c.get("n_embd")), c.get("num_attention_heads", c.get("n_head")), c["vocab_size"]
    hd, kv = c.get("head_dim") or h // nh, c.get("num_key_value_heads") or nh
    ff = c.get("intermediate_size", c.get("n_inner")) or 4 * h
    qkv_bias, out_bias, mlp_bias = dense_biases(c)
    tied = c.get("tie_word_embeddings", c["model_type"] in ("ernie4_5", "starcoder2", "cohere", "cohere2", "gemma2", "gemma3_text"))

    def linear(name, rows, cols, gain, bias):
        t[name + ".weight"] = (rows, cols), gain
        if bias:
            t[name + ".bias"] = (rows,), "bias"

    def norm(name):
        if "w" in s["norms"]:
            t[name + ".weight"] = (h,), "norm"
        if "b" in s["norms"]:
            t[name + ".bias"] = (h,), "bias"
    t[s.get("embed", "model.embed_tokens") + ".weight"] = (n, h), "tied" if tied else "emb"
    for i in range(c.get("num_hidden_layers", c.get("n_layer", c.get("num_layers")))):
        p = f"{s.get('layers', 'model.layers')}.{i}."
        for name in s.get("layer_norms", (s.get("first", "input_layernorm"),)):
            norm(p + name)
        if "qk" in s:
            for name, heads in (("q", nh), ("k", kv)):
                t[p + f"self_attn.{name}_norm.weight"] = (hd * (heads if s["qk"] == "whole" else 1),), "norm"
        if "qkv" in s:
            linear(p + s["attention"] + "." + s["qkv"], (nh + 2 * kv) * hd, h, QK, qkv_bias)
        for name, rows, gain in (("q", nh, QK), ("k", kv, QK), ("v", kv, LIN)) if "qkv" not in s else ():
            linear(p + s.get("attention", "self_attn") + f".{name}_proj", rows * hd, h, gain, qkv_bias)
        linear(p + s.get("attention", "self_attn") + "." + s.get("out", "o_proj"), h, nh * hd, LIN, out_bias)
        if s.get("second", True) and not c.get("use_parallel_residual") and "layer_norms" not in s:
            norm(p + s.get("second_name", "post_attention_layernorm"))
        if s["mlp"] == "glu":
            mlp(t, p + "mlp.", h, ff, mlp_bias)
        elif s["mlp"] == "fused":
            linear(p + "mlp.gate_up_proj", 2 * ff, h, LIN, mlp_bias)
            linear(p + "mlp.down_proj", h, ff, LIN, mlp_bias)
        else:
            for name in s["mlp"][:-1]:
                linear(p + "mlp." + name, ff, h, LIN, mlp_bias)
            linear(p + "mlp." + s["mlp"][-1], h, ff, "3" if len(s["mlp"]) == 2 else LIN, mlp_bias)
    norm(s.get("final", "model.norm"))
    if not tied:
        t["lm_head.weight"] = (n, h), HEAD
    if s.get("head_bias"):
        t["lm_head.bias"] = (n,), "bias"
    return t


def mixer1(t, p, h, inner, n, rank, width, bias, conv_bias):
    t[p + "in_proj.weight"] = (2 * inner, h), LIN
    t[p + "conv1d.weight"] = (inner, 1, width), "conv"
    t[p + "x_proj.weight"] = (rank + 2 * n, inner), LIN
    t[p + "dt_proj.weight"] = (inner, rank), LIN
    t[p + "dt_proj.bias"] = (inner,), "dt_bias"
    t[p + "A_log"], t[p + "D"] = ((inner, n), "A_log"), ((inner,), "D")
    t[p + "out_proj.weight"] = (h, inner), LIN
    if conv_bias:
        t[p + "conv1d.bias"] = (inner,), "bias"
    if bias:
        t[p + "in_proj.bias"], t[p + "out_proj.bias"] = ((2 * inner,), "bias"), ((h,), "bias")


def mixer2(t, p, h, inner, n, groups, heads, width, bias, conv_bias, norm=True, d_xb=None):
    conv = inner + 2 * groups * n if d_xb is None else 2 * d_xb + groups * n
    t[p + "in_proj.weight"] = (inner + conv + heads, h), LIN
    t[p + "conv1d.weight"] = (conv, 1, width), "conv"
    t[p + "A_log"], t[p + "D"], t[p + "dt_bias"] = ((heads,), "A_log"), ((heads,), "D"), ((heads,), "dt_bias")
    t[p + "out_proj.weight"] = (h, inner), LIN
    if norm:
        t[p + "norm.weight"] = (inner,), "norm"
    if conv_bias:
        t[p + "conv1d.bias"] = (conv,), "bias"
    if bias:
        t[p + "in_proj.bias"], t[p + "out_proj.bias"] = ((inner + conv + heads,), "bias"), ((h,), "bias")


def shapes_mamba(c):
    h, t = c["hidden_size"], {}
    inner = c["expand"] * h
    tied = c.get("tie_word_embeddings", c["model_type"] == "mamba")
    t["backbone.embeddings.weight"] = (c["vocab_size"], h), "tied" if tied else "emb"
    for i in range(c["num_hidden_layers"]):
        p = f"backbone.layers.{i}."
        t[p + "norm.weight"] = (h,), "norm"
        if c["model_type"] == "mamba":
            rank = c["time_step_rank"] if c["time_step_rank"] != "auto" else math.ceil(h / 16)
            mixer1(t, p + "mixer.", h, inner, c["state_size"], rank, c["conv_kernel"], c["use_bias"],
                   c["use_conv_bias"])
        else:
            mixer2(t, p + "mixer.", h, inner, c["state_size"], c["n_groups"], c["num_heads"], c["conv_kernel"],
                   c["use_bias"], c["use_conv_bias"])
    t["backbone.norm_f.weight"] = (h,), "norm"
    if not tied:
        t["lm_head.weight"] = (c["vocab_size"], h), HEAD
    return t


def shapes_original(c):
    h, t, s = c["d_model"], {}, c.get("ssm_cfg") or {}
    multiple = c.get("pad_vocab_size_multiple", 8)
    rows = -(-c["vocab_size"] // multiple) * multiple
    tied = c.get("tie_embeddings", True)
    t["backbone.embedding.weight"] = (rows, h), "tied" if tied else "emb"
    inner = s.get("expand", 2) * h
    for i in range(c["n_layer"]):
        p = f"backbone.layers.{i}."
        t[p + "norm.weight"] = (h,), "norm"
        if s.get("layer", "Mamba1") == "Mamba1":
            rank = s.get("dt_rank", "auto")
            mixer1(t, p + "mixer.", h, inner, s.get("d_state", 16), math.ceil(h / 16) if rank == "auto" else rank,
                   s.get("d_conv", 4), s.get("bias", False), s.get("conv_bias", True))
        else:
            mixer2(t, p + "mixer.", h, inner, s.get("d_state", 128), s.get("ngroups", 1), inner // s.get("headdim", 64),
                   s.get("d_conv", 4), s.get("bias", False), s.get("conv_bias", True), s.get("rmsnorm", True))
    t["backbone.norm_f.weight"] = (h,), "norm"
    if not tied:
        t["lm_head.weight"] = (rows, h), HEAD
    return t


def shapes_bamba(c):
    h, t = c["hidden_size"], {}
    tied, nh = c.get("tie_word_embeddings", False), c["num_attention_heads"]
    t["model.embed_tokens.weight"] = (c["vocab_size"], h), "tied" if tied else "emb"
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        t[p + "input_layernorm.weight"] = t[p + "pre_ff_layernorm.weight"] = (h,), "norm"
        if i in (c["attn_layer_indices"] or []):
            b = c["attention_bias"]
            attention(t, p, h, nh, c["num_key_value_heads"], h // nh, b, b)
        else:
            mixer2(t, p + "mamba.", h, c["mamba_expand"] * h, c["mamba_d_state"], c["mamba_n_groups"],
                   c["mamba_n_heads"], c["mamba_d_conv"], c["mamba_proj_bias"], c["mamba_conv_bias"])
        mlp(t, p + "feed_forward.", h, c["intermediate_size"], c["mlp_bias"])
    t["model.final_layernorm.weight"] = (h,), "norm"
    if not tied:
        t["lm_head.weight"] = (c["vocab_size"], h), HEAD
    return t


def shapes_granite4(c):
    h, t = c["hidden_size"], {}
    tied, nh, ff = c.get("tie_word_embeddings", False), c["num_attention_heads"], c["shared_intermediate_size"]
    t["model.embed_tokens.weight"] = (c["vocab_size"], h), "tied" if tied else "emb"
    types = c.get("layer_types") or c.get("layers_block_type") or ["mamba"] * c["num_hidden_layers"]
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        t[p + "input_layernorm.weight"] = t[p + "post_attention_layernorm.weight"] = (h,), "norm"
        if "full" in types[i] or types[i] == "attention":
            attention(t, p, h, nh, c["num_key_value_heads"], h // nh, c["attention_bias"], c["attention_bias"])
        else:
            mixer2(t, p + "mamba.", h, c["mamba_expand"] * h, c["mamba_d_state"], c["mamba_n_groups"],
                   c["mamba_n_heads"], c["mamba_d_conv"], c["mamba_proj_bias"], c["mamba_conv_bias"])
        t[p + "shared_mlp.input_linear.weight"], t[p + "shared_mlp.output_linear.weight"] = ((2 * ff, h), LIN), ((h, ff), LIN)
    t["model.norm.weight"] = (h,), "norm"
    if not tied:
        t["lm_head.weight"] = (c["vocab_size"], h), HEAD
    return t


def shapes_hybrid(c, m):
    t = shapes_llama(c)
    s = m["ssm_cfg"]
    for i in range(c["num_hidden_layers"]):
        if i not in m["attn_layers"]:
            p = f"model.layers.{i}."
            for n in [n for n in t if n.startswith(p + "self_attn.")]:
                del t[n]
            mixer2(t, p + "mamba.", c["hidden_size"], m["d_inner"], s["d_state"], s["ngroups"], s["ngroups"], 4, False,
                   True, d_xb=m["d_xb"])
    return t


def lfm2_inner(c):
    n = c.get("block_ff_dim", c.get("intermediate_size"))
    if c.get("block_auto_adjust_ff_dim", True):
        n = int(2 * n / 3)
        multiple = c.get("block_multiple_of", 256)
        n = multiple * -(-int(c.get("block_ffn_dim_multiplier", 1.0) * n) // multiple)
    return n


def lfm2_attends(c, i):
    if c.get("layer_types") is not None:
        return c["layer_types"][i] == "full_attention"
    return i in c["full_attn_idxs"] if c.get("full_attn_idxs") is not None else True


def shapes_lfm2(c):
    h, t, nh = c["hidden_size"], {}, c["num_attention_heads"]
    hd, tied = c.get("head_dim") or h // nh, c.get("tie_embedding", c.get("tie_word_embeddings", True))
    t["model.embed_tokens.weight"] = (c["vocab_size"], h), "tied" if tied else "emb"
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        t[p + "operator_norm.weight"] = t[p + "ffn_norm.weight"] = (h,), "norm"
        if lfm2_attends(c, i):
            for n, rows, gain in (("q", nh, QK), ("k", c["num_key_value_heads"], QK), ("v", c["num_key_value_heads"], LIN)):
                t[p + f"self_attn.{n}_proj.weight"] = (rows * hd, h), gain
            t[p + "self_attn.out_proj.weight"] = (h, nh * hd), LIN
            t[p + "self_attn.q_layernorm.weight"] = t[p + "self_attn.k_layernorm.weight"] = (hd,), "norm"
        else:
            for n, s in (("in_proj", (3 * h, h)), ("out_proj", (h, h))):
                t[p + f"conv.{n}.weight"] = s, LIN
                if c.get("conv_bias", False):
                    t[p + f"conv.{n}.bias"] = s[:1], "bias"
            t[p + "conv.conv.weight"] = (h, 1, c.get("conv_L_cache", 3)), "conv"
            if c.get("conv_bias", False):
                t[p + "conv.conv.bias"] = (h,), "bias"
        for n, s in (("w1", (lfm2_inner(c), h)), ("w3", (lfm2_inner(c), h)), ("w2", (h, lfm2_inner(c)))):
            t[p + f"feed_forward.{n}.weight"] = s, LIN
    t["model.embedding_norm.weight"] = (h,), "norm"
    if not tied:
        t["lm_head.weight"] = (c["vocab_size"], h), HEAD
    return t


# ---------------------------------------------------------------- cases

class Key:
    """One change of the configuration. fresh: tensors change, so weights of its own are made."""

    def __init__(self, name, patch, expect="logits", fresh=False, same=False, refuse_ok=False, file="config.json",
                 note=None):
        self.name, self.patch, self.expect, self.fresh, self.same = name, patch, expect, fresh, same
        self.refuse_ok, self.file, self.note = refuse_ok, file, note


REMOVE = {"__remove__": True}


def refuse(name, patch, **k):
    return Key(name, patch, "refuse", **k)


class Case:
    def __init__(self, name, family, config, keys=(), mamba_config=None, dtype=torch.float32, shards=1, extra=None,
                 weights_of=None):
        self.name, self.family, self.config, self.keys = name, family, config, list(keys)
        self.mamba, self.dtype, self.shards, self.extra = mamba_config, dtype, shards, extra
        self.seed = weights_of or name


SHAPES = {"llama": shapes_llama, "dense": shapes_dense, "neox": shapes_neox, "mamba": shapes_mamba, "original": shapes_original,
          "bamba": shapes_bamba, "granite4": shapes_granite4, "lfm2": shapes_lfm2, "falcon": shapes_falcon, "neox_japanese": shapes_neox_japanese}


def tensors(case, config, mamba, dtype=None):
    dtype = dtype or case.dtype
    s = shapes_hybrid(config, mamba) if case.family == "hybrid" else SHAPES[case.family](config)
    t = {n: fill(case.seed, n, shape, kind).to(dtype) for n, (shape, kind) in s.items()}
    if case.extra == "duplicate_head":
        t["lm_head.weight"] = t["backbone.embedding.weight"].clone()
    if case.extra == "mixed":               # a fine-tune was merged into some tensors, and they were kept wide
        for n in t:
            if "q_proj" in n or "v_proj" in n or "gate_proj" in n:
                t[n] = t[n].float() + torch.tensor(1e-3)
    if case.extra == "neox_buffers":        # old files carry these; a loader must ignore them
        for i in range(config["num_hidden_layers"]):
            t[f"gpt_neox.layers.{i}.attention.rotary_emb.inv_freq"] = torch.full((2,), 7.0)
            t[f"gpt_neox.layers.{i}.attention.masked_bias"] = torch.tensor(-1e9)
            t[f"gpt_neox.layers.{i}.attention.bias"] = torch.ones((1, 1, 8, 8), dtype=torch.bool)
    return t


def write_json(path, value):
    with open(path, "w") as f:
        json.dump(value, f, indent=1)
        f.write("\n")


def write_weights(directory, t, shards):
    if shards == 1:
        save_file(t, os.path.join(directory, "model.safetensors"), metadata={"format": "pt"})
        return
    names = list(t)
    per = -(-len(names) // shards)
    where, total = {}, 0
    for s in range(shards):
        file = f"model-{s + 1:05d}-of-{shards:05d}.safetensors"
        part = {n: t[n] for n in names[s * per:(s + 1) * per]}
        save_file(part, os.path.join(directory, file), metadata={"format": "pt"})
        where.update({n: file for n in part})
        total += sum(x.numel() * x.element_size() for x in part.values())
    write_json(os.path.join(directory, "model.safetensors.index.json"),
               {"metadata": {"total_size": total}, "weight_map": where})


def apply(config, patch):
    c = copy.deepcopy(config)
    for k, v in patch.items():
        if v == REMOVE:
            c.pop(k, None)
        else:
            c[k] = copy.deepcopy(v)
    return c


def reference(case, directory, config, mamba, ids):
    """Logits [n][vocab] of the weights in directory under this configuration."""
    if case.family in ("original", "hybrid"):
        return plain_reference.run(directory, ids, config, mamba)
    from transformers import AutoModelForCausalLM
    with tempfile.TemporaryDirectory() as tmp:
        for f in os.listdir(directory):
            if f.startswith("model"):
                os.symlink(os.path.join(os.path.abspath(directory), f), os.path.join(tmp, f))
        write_json(os.path.join(tmp, "config.json"), config)
        model, info = AutoModelForCausalLM.from_pretrained(
            tmp, dtype=torch.float32, attn_implementation="eager" if case.family != "mamba" else None,
            output_loading_info=True)
    missing = [k for k in info["missing_keys"] if "lm_head" not in k]
    if missing or info["mismatched_keys"]:
        raise RuntimeError(f"not loaded: {missing} {info['mismatched_keys']}")
    model.eval()
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()


LINEAR = {"type": "linear", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def new_rope(theta, **k):
    return {"rope_scaling": REMOVE, "rope_theta": REMOVE, "rope_parameters": {"rope_theta": theta, **k}}


def yarn_keys(theta=500.0):
    """64 ids: half of them beyond the original length."""
    return [
        Key("rope_yarn", new_rope(theta, **YARN)),
        Key("rope_yarn_factor", new_rope(theta, **{**YARN, "factor": 16.0})),
        Key("rope_yarn_betas", new_rope(theta, **YARN, beta_fast=4.0, beta_slow=0.5)),
        Key("rope_yarn_truncate", new_rope(theta, **YARN, beta_fast=4.0, beta_slow=0.5, truncate=False)),
        Key("rope_yarn_attention_factor", new_rope(theta, **YARN, attention_factor=0.6)),
        Key("rope_yarn_mscale", new_rope(theta, **YARN, mscale=2.0, mscale_all_dim=0.5)),
        Key("rope_yarn_old", {"rope_parameters": REMOVE, "rope_theta": theta,
                              "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}}),
        refuse("rope_yarn_betas_wrong", new_rope(theta, **YARN, beta_fast=1.0, beta_slow=2.0)),
        Key("rope_yarn_no_length", {**new_rope(theta, rope_type="yarn", factor=4.0), "max_position_embeddings": 32},
            note="the original length is the length"),
        Key("rope_yarn_top_length", {**new_rope(theta, rope_type="yarn", factor=4.0), "original_max_position_embeddings": 24}),
        Key("rope_llama3_no_length", new_rope(theta, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)),
    ]


def dynamic_keys():
    """As without scaling, up to max_position_embeddings; a session takes no more."""
    return [
        Key("rope_dynamic", {"rope_scaling": {"type": "dynamic", "factor": 4.0}}, same=True),
        Key("rope_dynamic_to_the_end", {"rope_scaling": {"type": "dynamic", "factor": 4.0}, "max_position_embeddings": 65},
            same=True),
        refuse("rope_dynamic_original", {"rope_scaling": {"type": "dynamic", "factor": 4.0,
                                                          "original_max_position_embeddings": 32}}),
    ]


LONG = {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3, 1.5], "long_factor": [1.2, 1.6, 2.5, 4.0],
        "original_max_position_embeddings": 32}


def longrope_keys():
    """64 ids in a context of 256, so the long factors; test_rope_long.c has the short ones."""
    def key(name, patch=None, top=None, **k):
        return Key(name, {"rope_scaling": {**LONG, **(patch or {})}, **(top or {})}, **k)

    def wrong(name, patch, top=None, **k):
        return key(name, patch, top, expect="refuse", **k)
    no_length = {"rope_scaling": {k: v for k, v in LONG.items() if k != "original_max_position_embeddings"}}
    return [
        key("rope_longrope"), key("rope_longrope_factor", {"factor": 3.0}),
        key("rope_longrope_attention_factor", {"attention_factor": 0.7}),
        key("rope_longrope_shorter", {"factor": 0.5}),
        Key("rope_longrope_new", new_rope(500.0, **LONG)),
        Key("rope_longrope_top", {**no_length, "original_max_position_embeddings": 16}),
        wrong("rope_longrope_lengths_differ", {}, {"original_max_position_embeddings": 16}),
        wrong("rope_longrope_five", {"long_factor": [1.0] * 5}), wrong("rope_longrope_three", {"short_factor": [1.0] * 3}),
        wrong("rope_longrope_zero", {"long_factor": [1.0, 0.0, 1.0, 1.0]}),
        wrong("rope_longrope_text", {"short_factor": "1, 2, 3, 4"}),
        Key("rope_longrope_no_length", no_length, note="the class takes max_position_embeddings"),
    ]


def refusals(sub="rope_scaling"):
    """What no family of this set may silently accept."""
    return [
        refuse("rope_dynamic_no_factor", {"rope_scaling": {"type": "dynamic"}}),
        refuse("rope_longrope_incomplete", {"rope_scaling": {"type": "longrope", "long_factor": [2.0] * 4,
                                                             "original_max_position_embeddings": 32}}),
        refuse("rope_unknown_type", {"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}),
        refuse("rope_llama3_incomplete", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}),
    ] + refusals_any()


def refusals_any():
    return [
        refuse("quantization_config", {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}),
        refuse("is_encoder_decoder", {"is_encoder_decoder": True}),
        refuse("add_cross_attention", {"add_cross_attention": True}),
        refuse("num_experts", {"num_experts": 8, "num_experts_per_tok": 2}),
        refuse("num_local_experts", {"num_local_experts": 8}),
        refuse("attn_logit_softcapping", {"attn_logit_softcapping": 30.0}),
        refuse("final_logit_softcapping", {"final_logit_softcapping": 30.0}),
        refuse("logits_scaling", {"logits_scaling": 4.0}),
        refuse("embedding_multiplier", {"embedding_multiplier": 3.0}),
        refuse("residual_multiplier", {"residual_multiplier": 0.5}),
        refuse("attention_multiplier", {"attention_multiplier": 0.1}),
        refuse("model_type_unknown", {"model_type": "llama9000"}),
        refuse("act_unknown", {"hidden_act": "quick_gelu"}),
        refuse("act_nonsense", {"hidden_act": "wiggle"}),
    ]


ONE = {"num_hidden_layers": 1}


def tied_keys(fewer):
    return [
        Key("tied", {"tie_word_embeddings": True, **fewer}, fresh=True),
        refuse("tied_contradiction", {"tie_word_embeddings": True},
               note="the file holds an lm_head that differs from the embeddings: transformers 4 uses the embeddings, 5 the "
                    "lm_head"),
    ]


def shape_refusals(layers="num_hidden_layers", hidden="hidden_size", vocab="vocab_size"):
    return [
        refuse("too_many_layers", {layers: 9}, note="tensors of layers beyond the file are missing"),
        refuse("hidden_mismatch", {hidden: 64}, note="shapes disagree with the tensors"),
        refuse("vocab_mismatch", {vocab: 500}, note="more rows than the table has"),
    ]


def llama_base(kind, **k):
    c = {"architectures": [{"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
                            "qwen3": "Qwen3ForCausalLM", "granite": "GraniteForCausalLM", "phi3": "Phi3ForCausalLM",
                            "gemma": "GemmaForCausalLM", "seed_oss": "SeedOssForCausalLM",
                            "ministral": "MinistralForCausalLM", "smollm3": "SmolLM3ForCausalLM"}[kind]],
         "model_type": kind, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 96, "hidden_act": "silu",
         "max_position_embeddings": 256, "rms_norm_eps": 1e-3, "rope_theta": 10000.0, "tie_word_embeddings": False,
         "bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.02, "use_cache": True, "torch_dtype": "float32"}
    c.update(k)
    return c


def llama_keys(kind, new_style=False):
    def rope(**r):
        if new_style:
            return {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", **r}}
        theta = r.pop("rope_theta", 10000.0)
        return {"rope_theta": theta, "rope_scaling": r or None}
    k = [
        Key("rms_norm_eps", {"rms_norm_eps": 0.05}),
        Key("rms_norm_eps_removed", {"rms_norm_eps": REMOVE}, refuse_ok=True, note="class default 1e-6"),
        Key("rope_theta", rope(rope_theta=500.0)),
        Key("rope_theta_1e6", rope(rope_theta=1e6)),
        Key("rope_linear", rope(rope_type="linear", factor=4.0)),
        Key("rope_llama3", rope(rope_theta=500.0, **LLAMA3)),
        Key("rope_new_style", {"rope_theta": REMOVE, "rope_scaling": REMOVE,
                               "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}),
        Key("rope_new_linear", {"rope_theta": REMOVE, "rope_scaling": REMOVE,
                                "rope_parameters": {"rope_theta": 500.0, "rope_type": "linear", "factor": 2.0}}),
        Key("rope_new_llama3", {"rope_theta": REMOVE, "rope_scaling": REMOVE,
                                "rope_parameters": {"rope_theta": 500.0, **LLAMA3}}),
        Key("rope_old_style", {"rope_parameters": REMOVE, "rope_theta": 500.0, "rope_scaling": None}),
        Key("rope_old_linear", {"rope_parameters": REMOVE, "rope_theta": 10000.0, "rope_scaling": LINEAR}),
        Key("rope_old_llama3", {"rope_parameters": REMOVE, "rope_theta": 500.0, "rope_scaling": LLAMA3}),
        Key("rope_theta_removed", {"rope_theta": REMOVE, "rope_scaling": REMOVE, "rope_parameters": REMOVE},
            same=True, refuse_ok=True, note="class default 10000"),
        Key("act_gelu", {"hidden_act": "gelu"}, refuse_ok=True),
        Key("act_gelu_new", {"hidden_act": "gelu_new"}, refuse_ok=True),
        Key("act_gelu_pytorch_tanh", {"hidden_act": "gelu_pytorch_tanh"}, refuse_ok=True),
        Key("act_relu", {"hidden_act": "relu"}, refuse_ok=True),
        Key("act_swish", {"hidden_act": "swish"}, same=True, refuse_ok=True, note="another name of silu"),
        Key("one_layer", {"num_hidden_layers": 1}, refuse_ok=True, note="the file holds more layers than used"),
        Key("dtype_new_name", {"torch_dtype": REMOVE, "dtype": "float32"}, same=True),
        refuse("partial_rotary_factor", {"partial_rotary_factor": 0.5},
               note="these classes ignore the key: ambiguous, so refused"),
    ]
    return k + yarn_keys() + refusals() + shape_refusals()


def mamba_keys(kind):
    k = [
        Key("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}),
        Key("residual_in_fp32_false", {"residual_in_fp32": False}, same=True,
            note="no difference in float32 arithmetic"),
        Key("use_bias", {"use_bias": True, "num_hidden_layers": 1}, fresh=True),
        Key("use_conv_bias_false", {"use_conv_bias": False, "num_hidden_layers": 1}, fresh=True),
        Key("conv_kernel_3", {"conv_kernel": 3, "num_hidden_layers": 1}, fresh=True),
            Key("state_size", {"state_size": 12, "num_hidden_layers": 1}, fresh=True, refuse_ok=True),
        Key("one_layer", {"num_hidden_layers": 1}, refuse_ok=True),
        refuse("act_relu", {"hidden_act": "relu"}, note="versions differ on whether the gate follows it"),
        refuse("act_gelu", {"hidden_act": "gelu"}),
    ]
    return k + refusals_any() + shape_refusals()


NEOX = {"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 3, "vocab_size": 104, "hidden_act": "gelu",
        "layer_norm_eps": 1e-5, "max_position_embeddings": 256, "rotary_pct": 0.25, "rotary_emb_base": 10000,
        "use_parallel_residual": True, "tie_word_embeddings": False, "attention_bias": True, "bos_token_id": 0,
        "eos_token_id": 0, "initializer_range": 0.02, "use_cache": True, "torch_dtype": "float32"}
NEOX_NEW = {"rotary_pct": REMOVE, "rotary_emb_base": REMOVE}
NEOX_KEYS = [
    Key("layer_norm_eps", {"layer_norm_eps": 0.05}),
    Key("rotary_pct_0.5", {"rotary_pct": 0.5}),
    Key("rotary_pct_1", {"rotary_pct": 1.0}),
    Key("rotary_pct_removed", {"rotary_pct": REMOVE}, same=True, refuse_ok=True, note="class default 0.25"),
    Key("rotary_emb_base", {"rotary_emb_base": 100}),
    Key("rope_new_style", {**NEOX_NEW, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0,
                                                           "partial_rotary_factor": 0.25}}, same=True),
    Key("rope_new_half", {**NEOX_NEW, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0,
                                                          "partial_rotary_factor": 0.5}}),
    Key("rope_linear", {"rope_scaling": LINEAR}, refuse_ok=True,
        note="transformers turns only rotary_pct of each head, as without scaling"),
    Key("sequential_residual", {"use_parallel_residual": False}),
    Key("act_gelu_new", {"hidden_act": "gelu_new"}),
    Key("act_gelu_pytorch_tanh", {"hidden_act": "gelu_pytorch_tanh"}),
    Key("act_relu", {"hidden_act": "relu"}),
    Key("act_silu", {"hidden_act": "silu"}, refuse_ok=True),
    Key("attention_bias_false", {"attention_bias": False, "num_hidden_layers": 1}, fresh=True),
    *tied_keys(ONE),
    Key("one_layer", {"num_hidden_layers": 1}, refuse_ok=True),
    refuse("heads_do_not_divide", {"num_attention_heads": 5}),
    Key("rope_yarn", {"rope_scaling": YARN}, note="an attention factor of the dimensions that turn"),
] + dynamic_keys() + refusals() + shape_refusals()

MAMBA = {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 32, "num_hidden_layers": 3,
         "intermediate_size": 64, "state_size": 8, "conv_kernel": 4, "expand": 2, "time_step_rank": 3,
         "layer_norm_epsilon": 1e-5, "use_bias": False, "use_conv_bias": True, "residual_in_fp32": True,
         "rms_norm": True, "fused_add_norm": True, "hidden_act": "silu", "pad_vocab_size_multiple": 8,
         "vocab_size": 96, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0, "torch_dtype": "float32"}
MAMBA_KEYS = mamba_keys("mamba") + [
    Key("expand_3", {"expand": 3, "intermediate_size": 96, "num_hidden_layers": 1}, fresh=True),
    Key("time_step_rank_auto", {"time_step_rank": "auto", "num_hidden_layers": 1}, fresh=True),
    Key("untied", {"tie_word_embeddings": False, "num_hidden_layers": 1}, fresh=True),
    Key("tied_said", {"tie_word_embeddings": True}, same=True),
    refuse("untied_no_head", {"tie_word_embeddings": False}, note="lm_head.weight is not in the file"),
]

MAMBA2 = {"architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 32, "num_hidden_layers": 3,
          "num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1, "expand": 2, "conv_kernel": 4,
          "chunk_size": 16, "time_step_limit": [0.0, INF], "time_step_rank": 2, "layer_norm_epsilon": 1e-5,
          "use_bias": False, "use_conv_bias": True, "residual_in_fp32": True, "rms_norm": True, "hidden_act": "silu",
          "vocab_size": 96, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
          "torch_dtype": "float32"}
INF_OBJ = {"__float__": "Infinity"}
MAMBA2_KEYS = mamba_keys("mamba2") + [
    Key("time_step_limit", {"time_step_limit": [0.05, 0.4]}),
    Key("time_step_limit_low", {"time_step_limit": [0.1, INF]}),
    Key("time_step_limit_object", {"time_step_limit": [0.0, INF_OBJ]}, same=True),
    Key("time_step_limit_removed", {"time_step_limit": REMOVE}, same=True),
    Key("n_groups_2", {"n_groups": 2, "num_hidden_layers": 1}, fresh=True,
        note="the gated norm is taken over each group (transformers 5.23; older versions: whole width)"),
    Key("expand_3", {"expand": 3, "num_heads": 12, "num_hidden_layers": 1}, fresh=True),
    Key("head_dim_16", {"head_dim": 16, "num_heads": 4, "num_hidden_layers": 1}, fresh=True),
    *tied_keys(ONE),
    Key("chunk_size", {"chunk_size": 256}, same=True),
    refuse("rms_norm_false", {"rms_norm": False}),
    refuse("heads_mismatch", {"num_heads": 4}, note="num_heads * head_dim != expand * hidden_size"),
]

BAMBA = {"architectures": ["BambaForCausalLM"], "model_type": "bamba", "hidden_size": 32, "intermediate_size": 32,
         "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "attn_layer_indices": [1, 3],
         "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16, "mamba_d_conv": 4,
         "mamba_expand": 2, "mamba_chunk_size": 16, "mamba_conv_bias": True, "mamba_proj_bias": False,
         "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False, "mlp_bias": False, "vocab_size": 96,
         "max_position_embeddings": 256, "tie_word_embeddings": False, "partial_rotary_factor": 0.5,
         "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
         "time_step_limit": [0.0, INF_OBJ], "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0,
         "num_logits_to_keep": 1, "z_loss_coefficient": 0.0, "dtype": "float32"}
TWO = {"num_hidden_layers": 2, "attn_layer_indices": [1]}
SSM_ONLY = {"num_hidden_layers": 1, "attn_layer_indices": []}
ATT_ONLY = {"num_hidden_layers": 1, "attn_layer_indices": [0]}
BAMBA_OLD = {"rope_parameters": REMOVE, "partial_rotary_factor": REMOVE}


def bamba_rope(**k):
    return {"rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default", **k}}


BAMBA_KEYS = [
    Key("rms_norm_eps", {"rms_norm_eps": 0.05}),
    Key("rope_theta", bamba_rope(rope_theta=100.0)),
    Key("rope_old_style", {**BAMBA_OLD, "rope_theta": 100.0, "rope_scaling": None}),
    Key("rope_removed", BAMBA_OLD, same=True, refuse_ok=True, note="class: theta 10000, half of each head"),
    Key("partial_rotary_1", {"partial_rotary_factor": REMOVE, **bamba_rope(partial_rotary_factor=1.0)}),
    Key("partial_rotary_0.25", {"partial_rotary_factor": REMOVE, **bamba_rope(partial_rotary_factor=0.25)}),
    refuse("partial_rotary_contradiction", {"partial_rotary_factor": 0.25},
           note="disagrees with rope_parameters"),
    Key("rope_linear", bamba_rope(rope_type="linear", factor=4.0), refuse_ok=True),
    Key("attn_layer_0_2", {"attn_layer_indices": [0, 2], "num_hidden_layers": 3}, fresh=True),
    Key("no_attention", {"attn_layer_indices": None, "num_hidden_layers": 2}, fresh=True),
    Key("attention_bias", {"attention_bias": True, **ATT_ONLY}, fresh=True),
    Key("mlp_bias", {"mlp_bias": True, **TWO}, fresh=True),
    Key("mamba_proj_bias", {"mamba_proj_bias": True, **SSM_ONLY}, fresh=True),
    Key("mamba_conv_bias_false", {"mamba_conv_bias": False, **SSM_ONLY}, fresh=True),
    Key("mamba_d_conv", {"mamba_d_conv": 3, **SSM_ONLY}, fresh=True),
    Key("mamba_d_state", {"mamba_d_state": 8, **SSM_ONLY}, fresh=True),
    Key("mamba_expand", {"mamba_expand": 3, "mamba_n_heads": 12, **SSM_ONLY}, fresh=True),
    Key("mamba_heads", {"mamba_n_heads": 4, "mamba_d_head": 16, **SSM_ONLY}, fresh=True),
    Key("mamba_d_head_auto", {"mamba_d_head": "auto"}, same=True),
    Key("mamba_n_groups_2", {"mamba_n_groups": 2, **SSM_ONLY}, fresh=True,
        note="the gated norm is taken over each group (transformers 5.23; older versions: whole width)"),
    Key("num_key_value_heads", {"num_key_value_heads": 1, **ATT_ONLY}, fresh=True),
    *tied_keys(TWO),
    Key("time_step_limit", {"time_step_limit": [0.05, 0.4]}),
    Key("time_step_limit_plain_infinity", {"time_step_limit": [0.0, INF]}, same=True),
    Key("chunk_size", {"mamba_chunk_size": 256}, same=True),
    refuse("act_gelu", {"hidden_act": "gelu"}, note="would change the convolution too"),
    refuse("attn_layers_wrong", {"attn_layer_indices": [0, 2]}, note="the tensors of layer 0 are those of a Mamba layer"),
    refuse("heads_mismatch", {"mamba_n_heads": 4}),
    Key("rope_yarn", bamba_rope(**YARN), note="an attention factor of the dimensions that turn"),
    Key("rope_yarn_whole", {"partial_rotary_factor": REMOVE, **bamba_rope(**YARN, partial_rotary_factor=1.0)}),
] + refusals() + shape_refusals()

SSD = {"d_model": 32, "d_intermediate": 0, "n_layer": 2, "vocab_size": 100, "ssm_cfg": {"layer": "Mamba2"},
       "attn_layer_idx": [], "attn_cfg": {}, "rms_norm": True, "residual_in_fp32": True, "fused_add_norm": True,
       "pad_vocab_size_multiple": 16, "tie_embeddings": True}
SSD_CFG = {"layer": "Mamba2", "d_state": 16, "headdim": 16, "ngroups": 2, "expand": 2, "d_conv": 4}


def original_refusals(cfg):
    return [
        refuse("d_intermediate", {"d_intermediate": 64}),
        refuse("attn_layer_idx", {"attn_layer_idx": [1], "attn_cfg": {"num_heads": 4}}),
        refuse("rms_norm_false", {"rms_norm": False}, note="LayerNorm"),
        refuse("ssm_layer_unknown", {"ssm_cfg": {**cfg, "layer": "Mamba7"}}),
        refuse("ssm_key_unknown", {"ssm_cfg": {**cfg, "wobble": 3}}),
        refuse("quantization_config", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
        refuse("too_many_layers", {"n_layer": 9}),
        refuse("d_model_mismatch", {"d_model": 64}),
        refuse("vocab_mismatch", {"vocab_size": 500}),
        refuse("untied_no_head", {"tie_embeddings": False}),
    ]


def ssm(name, change, **k):
    return Key(name, {"ssm_cfg": {**SSD_CFG, **change}, "n_layer": 1}, **k)


SSD_KEYS = [
    Key("norm_before_gate", {"ssm_cfg": {**SSD_CFG, "norm_before_gate": True}}, refuse_ok=True),
    Key("dt_limit", {"ssm_cfg": {**SSD_CFG, "dt_limit": [0.05, 0.4]}}, refuse_ok=True),
    Key("chunk_size", {"ssm_cfg": {**SSD_CFG, "chunk_size": 64}}, same=True),
    Key("residual_in_fp32_false", {"residual_in_fp32": False}, same=True),
    ssm("d_state", {"d_state": 8}, fresh=True),
    ssm("headdim", {"headdim": 32}, fresh=True),
    ssm("ngroups_1", {"ngroups": 1}, fresh=True),
    ssm("expand", {"expand": 3, "headdim": 24}, fresh=True),
    ssm("d_conv", {"d_conv": 3}, fresh=True),
    ssm("bias", {"bias": True}, fresh=True),
    ssm("conv_bias_false", {"conv_bias": False}, fresh=True),
    ssm("rmsnorm_false", {"rmsnorm": False}, fresh=True, refuse_ok=True),
    Key("untied", {"tie_embeddings": False, "n_layer": 1}, fresh=True),
    refuse("D_has_hdim", {"ssm_cfg": {**SSD_CFG, "D_has_hdim": True}}),
    refuse("activation", {"ssm_cfg": {**SSD_CFG, "activation": "relu"}}),
    refuse("layer_mamba1", {"ssm_cfg": {"layer": "Mamba1"}}, note="the tensors are those of Mamba-2"),
] + original_refusals(SSD_CFG)

SSM1 = {"d_model": 32, "n_layer": 2, "vocab_size": 93, "ssm_cfg": {}, "rms_norm": True, "residual_in_fp32": True,
        "fused_add_norm": True, "pad_vocab_size_multiple": 8}


def ssm1(name, change, **k):
    return Key(name, {"ssm_cfg": change, "n_layer": 1}, **k)


SSM1_KEYS = [
    Key("layer_said", {"ssm_cfg": {"layer": "Mamba1"}}, same=True),
    ssm1("d_state", {"d_state": 8}, fresh=True),
    ssm1("d_conv", {"d_conv": 3}, fresh=True),
    ssm1("expand", {"expand": 3}, fresh=True),
    ssm1("dt_rank", {"dt_rank": 5}, fresh=True),
    ssm1("bias", {"bias": True}, fresh=True),
    ssm1("conv_bias_false", {"conv_bias": False}, fresh=True),
    refuse("layer_mamba2", {"ssm_cfg": {"layer": "Mamba2"}}, note="the tensors are those of Mamba-1"),
] + original_refusals({})

HYBRID = llama_base("llama", num_hidden_layers=3, intermediate_size=32, num_key_value_heads=2, rope_theta=500.0,
                    rope_scaling=LLAMA3, rms_norm_eps=1e-5, _name_or_path="tiny-hybrid", attention_bias=False, mlp_bias=False)
HYBRID_MAMBA = {"d_model": 32, "ssm_cfg": {"expand": 1, "ngroups": 4, "d_state": 8}, "rms_norm_eps": 1e-5,
                "vocab_size": None, "d_inner": 32, "d_xb": 16, "intermediate_size": 32, "hidden_act": "silu",
                "n_layer": 3, "attn_layers": [1]}
M = "mamba_config.json"
HYBRID_KEYS = [
    Key("rope_theta", {"rope_theta": 50.0}),
    Key("rope_scaling_none", {"rope_scaling": None}),
    Key("rms_norm_eps", {"rms_norm_eps": 0.05}, refuse_ok=True,
        note="config.json's value; mamba_config.json keeps 1e-5, so refusing the contradiction is right too; the gated "
             "norm keeps 1e-5 in any case"),
    *tied_keys({}),
    Key("attn_layers_0", {"attn_layers": [0]}, fresh=True, file=M),
    Key("no_attention", {"attn_layers": []}, fresh=True, file=M, note="the layout of a drafter of this family"),
    Key("d_xb_8", {"d_xb": 8}, fresh=True, file=M),
    Key("ngroups_2", {"ssm_cfg": {"expand": 1, "ngroups": 2, "d_state": 16}}, fresh=True, file=M),
    refuse("attn_layers_wrong", {"attn_layers": [0, 2]}, file=M),
    refuse("d_xb_wrong", {"d_xb": 8}, file=M),
    refuse("d_inner_wrong", {"d_inner": 64}, file=M),
    refuse("ssm_key_unknown", {"ssm_cfg": {"expand": 1, "ngroups": 4, "d_state": 8, "wobble": 1}}, file=M),
    refuse("n_layer_mismatch", {"n_layer": 2}, file=M),
    refuse("ssm_cfg_removed", {"ssm_cfg": REMOVE}, file=M),
    Key("rope_yarn", {"rope_scaling": YARN}),
    refuse("quantization_config", {"quantization_config": {"quant_method": "gptq", "bits": 4}}),
    refuse("num_local_experts", {"num_local_experts": 8}),
    refuse("act_nonsense", {"hidden_act": "wiggle"}),
]

LFM2 = {"architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 32, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "block_ff_dim": 60,
        "block_auto_adjust_ff_dim": True, "block_ffn_dim_multiplier": 1.0, "block_multiple_of": 16, "block_dim": 32,
        "block_mlp_init_scale": 1.0, "block_norm_eps": 1e-5, "block_out_init_scale": 1.0, "block_use_swiglu": True,
        "block_use_xavier_init": True, "conv_L_cache": 3, "conv_bias": False, "conv_dim": 32, "conv_dim_out": 32,
        "conv_use_xavier_init": True, "full_attn_idxs": [1, 3], "max_position_embeddings": 256, "norm_eps": 1e-5,
        "rope_theta": 1000000.0, "use_pos_enc": True, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "initializer_range": 0.02, "use_cache": True, "torch_dtype": "float32"}
CONV_ONLY = {"num_hidden_layers": 1, "full_attn_idxs": []}
LFM2_ATT = {"num_hidden_layers": 1, "full_attn_idxs": [0]}
LFM2_KEYS = [
    Key("norm_eps", {"norm_eps": 0.05, "block_norm_eps": 0.05}),
    Key("rope_theta", {"rope_theta": 500.0}),
    Key("rope_theta_removed", {"rope_theta": REMOVE}, same=True, note="class default 1000000"),
    Key("rope_new_style", {"rope_theta": REMOVE, "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}),
    Key("rope_linear", {"rope_theta": REMOVE, "rope_parameters": {"rope_theta": 500.0, "rope_type": "linear",
                                                                  "factor": 4.0}}),
    Key("layer_types", {"full_attn_idxs": REMOVE,
                        "layer_types": ["conv", "full_attention", "conv", "full_attention"]}, same=True),
    Key("layer_types_win", {"full_attn_idxs": [0], "layer_types": ["conv", "full_attention", "conv", "full_attention"]},
        same=True, refuse_ok=True),
    Key("attention_0_2", {"full_attn_idxs": [0, 2], "num_hidden_layers": 3}, fresh=True),
    Key("all_attention", {"full_attn_idxs": REMOVE, "num_hidden_layers": 2}, fresh=True, note="class default"),
    Key("no_attention", {"full_attn_idxs": [], "num_hidden_layers": 2}, fresh=True),
    Key("conv_bias", {"conv_bias": True, **CONV_ONLY}, fresh=True, note="of both projections too"),
    Key("conv_L_cache_2", {"conv_L_cache": 2, **CONV_ONLY}, fresh=True),
    Key("conv_L_cache_4", {"conv_L_cache": 4, **CONV_ONLY}, fresh=True),
    Key("num_key_value_heads", {"num_key_value_heads": 1, **LFM2_ATT}, fresh=True),
    Key("head_dim_16", {"head_dim": 16, **LFM2_ATT}, fresh=True),
    Key("intermediate_size", {"block_ff_dim": REMOVE, "intermediate_size": 60}, same=True, note="its newer name"),
    Key("block_ff_dim_wins", {"intermediate_size": 96}, same=True, refuse_ok=True),
    Key("block_ffn_dim_multiplier", {"block_ffn_dim_multiplier": 1.5, **CONV_ONLY}, fresh=True),
    Key("block_multiple_of", {"block_multiple_of": 10, **CONV_ONLY}, fresh=True),
    Key("block_auto_adjust_ff_dim", {"block_auto_adjust_ff_dim": False, **CONV_ONLY}, fresh=True),
    Key("untied", {"tie_word_embeddings": False, **CONV_ONLY}, fresh=True),
    Key("tie_embedding_wins", {"tie_embedding": True, "tie_word_embeddings": False}, same=True, refuse_ok=True),
    Key("one_layer", {"num_hidden_layers": 1, "full_attn_idxs": []}, refuse_ok=True),
    refuse("conv_L_cache_5", {"conv_L_cache": 5}),
    refuse("attention_wrong", {"full_attn_idxs": [0, 2]}, note="the tensors of layer 0 are those of a convolution"),
    refuse("layer_types_unknown", {"layer_types": ["conv", "full_attention", "conv", "sliding_attention"]}),
    refuse("layer_types_short", {"layer_types": ["conv", "full_attention"]}),
    refuse("full_attn_idxs_beyond", {"full_attn_idxs": [1, 7]}),
    refuse("use_pos_enc_false", {"use_pos_enc": False}),
    refuse("block_use_swiglu_false", {"block_use_swiglu": False}),
    refuse("conv_dim", {"conv_dim": 48}),
    refuse("moe", {"model_type": "lfm2_moe"}),
    refuse("heads_do_not_divide", {"num_attention_heads": 5, "num_heads": 5}),
    refuse("untied_no_head", {"tie_word_embeddings": False}),
] + yarn_keys() + refusals() + shape_refusals()

HD16 = {"head_dim": 16, "num_hidden_layers": 1}
LLAMA2 = llama_base("llama", rope_scaling=None, attention_bias=False, mlp_bias=False, pretraining_tp=1)
LLAMA2_KEYS = llama_keys("llama") + [
    *tied_keys(ONE),
    Key("num_key_value_heads_2", {"num_key_value_heads": 2, "num_hidden_layers": 1}, fresh=True),
    Key("num_key_value_heads_1", {"num_key_value_heads": 1, "num_hidden_layers": 1}, fresh=True),
    Key("num_key_value_heads_removed", {"num_key_value_heads": REMOVE}, same=True, note="as many as heads"),
    Key("head_dim_16", HD16, fresh=True),
    Key("attention_bias", {"attention_bias": True, "num_hidden_layers": 1}, fresh=True),
    Key("mlp_bias", {"mlp_bias": True, "num_hidden_layers": 1}, fresh=True),
    Key("heads_2", {"num_attention_heads": 2, "num_key_value_heads": 2}, note="other split of the same tensors"),
    refuse("heads_do_not_divide", {"num_attention_heads": 5}),
    refuse("kv_do_not_divide", {"num_key_value_heads": 3}),
    refuse("attention_bias_missing", {"attention_bias": True}, note="the biases are not in the file"),
] + dynamic_keys() + longrope_keys()
LLAMA3_CFG = llama_base("llama", hidden_size=48, intermediate_size=64, num_attention_heads=3, num_key_value_heads=1,
                        rope_theta=500.0, rope_scaling=LLAMA3, tie_word_embeddings=True, attention_bias=False,
                        mlp_bias=False)


def l3(**k):
    return {"rope_scaling": {**LLAMA3, **k}}


LLAMA3_KEYS = [
    Key("factor", l3(factor=2.0)),
    Key("low_freq_factor", l3(low_freq_factor=2.0)),
    Key("high_freq_factor", l3(high_freq_factor=2.5)),
    Key("original_max", l3(original_max_position_embeddings=64)),
    Key("rope_scaling_none", {"rope_scaling": None}),
    Key("old_type_key", {"rope_scaling": {**{k: v for k, v in LLAMA3.items() if k != "rope_type"}, "type": "llama3"}},
        same=True),
    Key("new_style", {"rope_theta": REMOVE, "rope_scaling": REMOVE, "rope_parameters": {"rope_theta": 500.0, **LLAMA3}},
        same=True),
    Key("head_dim_said", {"head_dim": 16}, same=True),
    Key("untied", {"tie_word_embeddings": False, "num_hidden_layers": 1}, fresh=True),
    refuse("untied_no_head", {"tie_word_embeddings": False}, note="lm_head.weight is not in the file"),
]
MISTRAL = llama_base("mistral", num_key_value_heads=2, num_hidden_layers=3, sliding_window=16)
MISTRAL_KEYS = llama_keys("mistral") + [
    Key("sliding_window_null", {"sliding_window": None}),
    Key("sliding_window_1", {"sliding_window": 1}, refuse_ok=True, note="a token sees itself only"),
    Key("sliding_window_5", {"sliding_window": 5}),
    Key("sliding_window_4096", {"sliding_window": 4096}, note="same as null for 64 tokens"),
    Key("num_key_value_heads_4", {"num_key_value_heads": 4, "num_hidden_layers": 1}, fresh=True),
    Key("head_dim_16", HD16, fresh=True),
    *tied_keys(ONE),
]
QWEN2 = llama_base("qwen2", num_key_value_heads=2, num_hidden_layers=3, use_sliding_window=False,
                   sliding_window=8, max_window_layers=1)
WINDOW_KEYS = [
    Key("use_sliding_window", {"use_sliding_window": True}, note="layers from max_window_layers on"),
    Key("max_window_layers_0", {"use_sliding_window": True, "max_window_layers": 0}),
    Key("max_window_layers_2", {"use_sliding_window": True, "max_window_layers": 2}),
    Key("max_window_layers_3", {"use_sliding_window": True, "max_window_layers": 3}, same=True),
    Key("window_ignored", {"sliding_window": 3}, same=True, note="use_sliding_window is false"),
    Key("layer_types", {"use_sliding_window": True,
                        "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
    Key("layer_types_full", {"layer_types": ["full_attention"] * 3}, same=True),
    refuse("layer_types_unknown", {"layer_types": ["full_attention", "wobbly_attention", "full_attention"]}),
    refuse("layer_types_short", {"use_sliding_window": True, "layer_types": ["sliding_attention"]}),
    Key("num_key_value_heads_1", {"num_key_value_heads": 1, "num_hidden_layers": 1}, fresh=True),
]
QWEN2_KEYS = llama_keys("qwen2") + WINDOW_KEYS + [
    *tied_keys(ONE),
]
QWEN3 = llama_base("qwen3", num_key_value_heads=2, num_hidden_layers=3, head_dim=16,
                   use_sliding_window=False, sliding_window=8, max_window_layers=1, attention_bias=False,
                   tie_word_embeddings=True,
                   rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})
del QWEN3["rope_theta"]
QWEN3_KEYS = llama_keys("qwen3", new_style=True) + WINDOW_KEYS + [
    Key("attention_bias", {"attention_bias": True, "num_hidden_layers": 1}, fresh=True),
    Key("head_dim_8", {"head_dim": 8, "num_hidden_layers": 1}, fresh=True),
    Key("untied", {"tie_word_embeddings": False, "num_hidden_layers": 1}, fresh=True),
    refuse("head_dim_removed", {"head_dim": REMOVE}, note="class default 128 does not fit the tensors"),
]


def without(keys, *names):
    return [k for k in keys if k.name not in names]


GRANITE = llama_base("granite", num_key_value_heads=2, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.6,
                     attention_multiplier=0.2, attention_bias=False, mlp_bias=False, tie_word_embeddings=True)
GRANITE_KEYS = without(llama_keys("granite"), "logits_scaling", "embedding_multiplier", "residual_multiplier",
                       "attention_multiplier") + [
    Key("embedding_multiplier", {"embedding_multiplier": 1.5}),
    Key("embedding_multiplier_removed", {"embedding_multiplier": REMOVE}, note="class default 1"),
    Key("logits_scaling", {"logits_scaling": 4.0}),
    Key("logits_scaling_removed", {"logits_scaling": REMOVE}),
    Key("residual_multiplier", {"residual_multiplier": 0.2}),
    Key("residual_multiplier_removed", {"residual_multiplier": REMOVE}),
    Key("attention_multiplier", {"attention_multiplier": 0.7}),
    Key("attention_multiplier_removed", {"attention_multiplier": REMOVE}, note="class default 1, not 1 / sqrt(head_dim)"),
    Key("attention_bias", {"attention_bias": True, "num_hidden_layers": 1}, fresh=True),
    Key("mlp_bias", {"mlp_bias": True, "num_hidden_layers": 1}, fresh=True),
    Key("untied", {"tie_word_embeddings": False, "num_hidden_layers": 1}, fresh=True),
    refuse("embedding_multiplier_zero", {"embedding_multiplier": 0}),
]
PHI3 = llama_base("phi3", num_key_value_heads=2, num_hidden_layers=3, sliding_window=16, original_max_position_embeddings=256,
                  rope_scaling=None, resid_pdrop=0.0, embd_pdrop=0.0, pad_token_id=0)
PHI3_KEYS = without(llama_keys("phi3"), "rope_linear", "rope_llama3", "rope_new_linear", "rope_new_llama3", "rope_old_linear",
                    "rope_old_llama3", "partial_rotary_factor", *[k.name for k in yarn_keys()]) + [
    Key("sliding_window_null", {"sliding_window": None}),
    Key("sliding_window_removed", {"sliding_window": REMOVE}, note="class default: none"),
    Key("sliding_window_5", {"sliding_window": 5}),
    Key("partial_rotary_factor", {"partial_rotary_factor": 0.5}, note="Phi-4-mini: 0.75"),
    Key("partial_rotary_new", {"rope_theta": REMOVE, "rope_scaling": REMOVE,
                               "rope_parameters": {"rope_theta": 500.0, "rope_type": "default", "partial_rotary_factor": 0.5}}),
    Key("num_key_value_heads_4", {"num_key_value_heads": 4, "num_hidden_layers": 1}, fresh=True),
    Key("tied", {"tie_word_embeddings": True, **ONE}, fresh=True),
]
PHI3_LONG = llama_base("phi3", num_key_value_heads=2, sliding_window=None, pad_token_id=0, original_max_position_embeddings=32,
                       rope_scaling={k: v for k, v in LONG.items() if k != "original_max_position_embeddings"})


def phi3_long(name, **k):
    return Key(name, {"rope_scaling": {**PHI3_LONG["rope_scaling"], **k}})


PHI3_LONG_KEYS = [
    Key("old_name", {"rope_scaling": {**{k: v for k, v in LONG.items() if k != "rope_type"}, "type": "su"}}, same=True),
    phi3_long("factor", factor=3.0), phi3_long("attention_factor", attention_factor=0.7),
    Key("original_16", {"original_max_position_embeddings": 16}, note="another attention factor"),
    Key("longest_65", {"max_position_embeddings": 65}, note="another attention factor"),
    Key("half_a_head", {"partial_rotary_factor": 0.5, "rope_scaling": {**PHI3_LONG["rope_scaling"], "attention_factor": 1.0,
                                                                        "short_factor": [1.0, 1.2], "long_factor": [1.5, 3.0]}}),
    Key("half_a_head_scaled", {"partial_rotary_factor": 0.5, "rope_scaling": {
        **PHI3_LONG["rope_scaling"], "short_factor": [1.0, 1.2], "long_factor": [1.5, 3.0]}}, note="an attention factor of half a head"),
    refuse("linear", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, note="the class refuses it, too"),
    refuse("yarn", {"rope_scaling": YARN}, note="the class takes it for longrope"),
    refuse("original_default", {"original_max_position_embeddings": REMOVE, "rope_scaling": LONG},
           note="class default 4096, whatever the object says"),
]
PHI4_MINI = llama_base("phi3", num_key_value_heads=2, sliding_window=None, pad_token_id=0, original_max_position_embeddings=32,
                       partial_rotary_factor=0.75, tie_word_embeddings=True, rope_scaling={
                           "type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.2, 1.6, 4.0]})
PHI4_MINI_KEYS = [
    Key("factor", {"rope_scaling": {**PHI4_MINI["rope_scaling"], "factor": 3.0}}, note="another attention factor"),
    Key("attention_factor", {"rope_scaling": {**PHI4_MINI["rope_scaling"], "attention_factor": 0.7}}),
    Key("original_16", {"original_max_position_embeddings": 16}), Key("longest_65", {"max_position_embeddings": 65}),
    Key("half_a_head", {"partial_rotary_factor": 0.5, "rope_scaling": {**PHI4_MINI["rope_scaling"], "short_factor": [1.0, 1.2],
                                                                        "long_factor": [1.5, 3.0]}}),
    refuse("whole_head", {"partial_rotary_factor": REMOVE}, note="more factors are needed"),
    Key("published", {"full_attn_mod": 1, "interpolate_factor": 1, "attention_bias": False, "mlp_bias": False, "lm_head_bias": False,
                      "sliding_window": 262144}, same=True, note="what Phi-4-mini's file has besides"),
    refuse("full_attn_mod", {"full_attn_mod": 2}),
]
GEMMA = llama_base("gemma", num_key_value_heads=1, head_dim=16, hidden_act="gelu_pytorch_tanh", attention_bias=False,
                   pad_token_id=0, tie_word_embeddings=True)
GEMMA_KEYS = without(llama_keys("gemma"), "act_gelu", "act_swish", "act_gelu_pytorch_tanh") + [
    Key("act_gelu", {"hidden_act": "gelu"}, same=True, note="the first files say so and mean the tanh form"),
    Key("act_removed", {"hidden_act": REMOVE}, same=True),
    Key("act_silu", {"hidden_act": "silu"}),
    Key("hidden_activation", {"hidden_activation": "gelu_pytorch_tanh"}, same=True),
    Key("hidden_activation_null", {"hidden_activation": None}, same=True),
    refuse("hidden_activation_gelu", {"hidden_activation": "gelu"}),
    refuse("use_bidirectional_attention", {"use_bidirectional_attention": True}),
    Key("num_key_value_heads_4", {"num_key_value_heads": 4, "num_hidden_layers": 1}, fresh=True),
    Key("attention_bias", {"attention_bias": True, "num_hidden_layers": 1}, fresh=True),
    Key("tied_removed", {"tie_word_embeddings": REMOVE}, same=True),
    Key("untied", {"tie_word_embeddings": False, "num_hidden_layers": 1}, fresh=True),
]
SEED_OSS = llama_base("seed_oss", num_key_value_heads=2, head_dim=16, attention_bias=True, attention_out_bias=False, mlp_bias=False)
SEED_OSS_KEYS = llama_keys("seed_oss") + [
    Key("attention_bias_removed", {"attention_bias": REMOVE}, same=True, note="class default: true"),
    Key("attention_bias_false", {"attention_bias": False, "num_hidden_layers": 1}, fresh=True),
    Key("attention_out_bias", {"attention_out_bias": True, "num_hidden_layers": 1}, fresh=True),
    Key("mlp_bias", {"mlp_bias": True, "num_hidden_layers": 1}, fresh=True),
    refuse("head_dim_removed", {"head_dim": REMOVE}, note="class default 128 does not fit the tensors"),
    *tied_keys(ONE),
]
MINISTRAL = llama_base("ministral", num_key_value_heads=2, num_hidden_layers=3, head_dim=16, sliding_window=16,
                       layer_types=["sliding_attention", "full_attention", "sliding_attention"])
MINISTRAL_KEYS = without(llama_keys("ministral"), "one_layer") + [
    Key("layer_types_full", {"layer_types": ["full_attention"] * 3}),
    Key("layer_types_removed", {"layer_types": REMOVE}, note="all slide"),
    Key("sliding_window_5", {"sliding_window": 5}),
    refuse("layer_types_short", {"layer_types": ["sliding_attention"]}),
    refuse("window_missing", {"sliding_window": None}, note="layer_types says that layers slide"),
    Key("head_dim_8", {"head_dim": 8, "num_hidden_layers": 1, "layer_types": ["full_attention"]}, fresh=True),
    Key("tied", {"tie_word_embeddings": True, "layer_types": ["full_attention"], **ONE}, fresh=True),
]
SMOLLM3 = llama_base("smollm3", num_key_value_heads=2, num_hidden_layers=4, no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4,
                     use_sliding_window=False, sliding_window=None, max_window_layers=28, layer_types=["full_attention"] * 4,
                     attention_bias=False, mlp_bias=False, pretraining_tp=2, pad_token_id=0, tie_word_embeddings=True)
SMOLLM3_KEYS = without(llama_keys("smollm3"), "rope_theta_removed", "one_layer") + [
    Key("rope_theta_removed", {"rope_theta": REMOVE}, note="class default 2000000"),
    Key("no_rope_layers", {"no_rope_layers": [0, 1, 0, 1]}),
    Key("no_rope_layers_removed", {"no_rope_layers": REMOVE}, same=True, note="every fourth"),
    Key("no_rope_layer_interval", {"no_rope_layers": REMOVE, "no_rope_layer_interval": 2}),
    Key("all_turn", {"no_rope_layers": [1, 1, 1, 1]}),
    Key("window", {"use_sliding_window": True, "sliding_window": 8, "layer_types": REMOVE}, note="of layers that do not turn"),
    Key("window_ignored", {"sliding_window": 8}, same=True),
    Key("layer_types", {"use_sliding_window": True, "sliding_window": 8,
                        "layer_types": ["sliding_attention", "full_attention", "full_attention", "full_attention"]}),
    refuse("no_rope_layers_short", {"no_rope_layers": [1, 0]}),
    refuse("no_rope_layers_odd", {"no_rope_layers": [1, 1, 2, 0]}),
    refuse("layer_types_short", {"layer_types": ["full_attention"]}),
    Key("attention_bias", {"attention_bias": True, **ONE, "layer_types": ["full_attention"]}, fresh=True),
    Key("mlp_bias", {"mlp_bias": True, **ONE, "layer_types": ["full_attention"]}, fresh=True),
    Key("untied", {"tie_word_embeddings": False, **ONE, "layer_types": ["full_attention"]}, fresh=True),
]


# ---- dense transformers that differ from Llama in norms, in the MLP, in which dimensions turn together

def dense_base(kind, name, **k):
    return llama_base("llama", architectures=[name], model_type=kind, num_key_value_heads=2, pad_token_id=0, **k)


def dense_keys(eps, partial=None):
    """partial: what turns by default, of a family whose heads turn partly."""
    k = [
        Key("eps", {eps: 0.05}),
        Key("rope_theta", {"rope_theta": 500.0}),
        Key("rope_linear", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
        Key("rope_new_style", {"rope_theta": REMOVE, "rope_scaling": REMOVE,
                               "rope_parameters": {"rope_theta": 500.0, "rope_type": "default"}}),
        Key("act_relu", {"hidden_act": "relu"}),
        Key("num_key_value_heads_4", {"num_key_value_heads": 4, **ONE}, fresh=True),
        refuse("heads_do_not_divide", {"num_attention_heads": 5}),
        refuse("kv_do_not_divide", {"num_key_value_heads": 3}),
    ]
    if partial is None:
        k += [refuse("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
              Key("rope_yarn", new_rope(500.0, **YARN)), Key("rope_llama3", new_rope(500.0, **LLAMA3))]
    else:
        k += [Key("partial_rotary_factor", {"partial_rotary_factor": 1.0}),
              Key("partial_rotary_removed", {"partial_rotary_factor": REMOVE}, same=True),
              Key("partial_rotary_new", {**new_rope(500.0, rope_type="default", partial_rotary_factor=0.25),
                                         "partial_rotary_factor": REMOVE}),
              Key("rope_yarn", {"rope_scaling": YARN}, note="an attention factor of the dimensions that turn")]
    return k + refusals() + shape_refusals()


def untied(**k):
    return Key("untied", {"tie_word_embeddings": False, **ONE, **k}, fresh=True)


def tied(**k):
    return Key("tied", {"tie_word_embeddings": True, **ONE, **k}, fresh=True)


NO_EPS = {"rms_norm_eps": REMOVE}
OLMO = apply(dense_base("olmo", "OlmoForCausalLM", attention_bias=False, clip_qkv=None), NO_EPS)
OLMO_KEYS = without(dense_keys("eps"), "eps") + [
    tied(), Key("attention_bias", {"attention_bias": True, **ONE}, fresh=True),
    refuse("clip_qkv", {"clip_qkv": 8.0}), refuse("rms_norm_eps", {"rms_norm_eps": 1e-6}, note="the class has 1e-5"),
]
ERNIE4_5 = dense_base("ernie4_5", "Ernie4_5ForCausalLM", head_dim=16, use_bias=False, compression_ratio=1.0,
                      tie_word_embeddings=True)
ERNIE4_5_KEYS = dense_keys("rms_norm_eps") + [
    Key("rope_theta_removed", {"rope_theta": REMOVE}, note="class default 500000"),
    untied(), Key("use_bias", {"use_bias": True, **ONE}, fresh=True),
    Key("head_dim_null", {"head_dim": None, **ONE}, fresh=True, note="hidden_size / num_attention_heads, not the default"),
    refuse("compression_ratio", {"compression_ratio": 2.0}),
]
HELIUM = dense_base("helium", "HeliumForCausalLM", head_dim=8, attention_bias=False, mlp_bias=False)
HELIUM_KEYS = dense_keys("rms_norm_eps") + [
    Key("rope_theta_removed", {"rope_theta": REMOVE}, note="class default 100000"),
    tied(), Key("attention_bias", {"attention_bias": True, **ONE}, fresh=True, note="not of the output"),
    Key("mlp_bias", {"mlp_bias": True, **ONE}, fresh=True),
]
INTERNLM3 = dense_base("internlm3", "InternLM3ForCausalLM", head_dim=16, qkv_bias=False, bias=False)
INTERNLM3_KEYS = dense_keys("rms_norm_eps") + [
    tied(), Key("biases", {"qkv_bias": True, "bias": True, **ONE}, fresh=True),
    Key("biases_new", {"qkv_bias": REMOVE, "bias": REMOVE, "attention_bias": True, "mlp_bias": True, **ONE}, fresh=True),
    refuse("biases_differ", {"qkv_bias": True}, note="the class refuses them, too"),
] + dynamic_keys()
GLM = dense_base("glm", "GlmForCausalLM", head_dim=16, attention_bias=True, partial_rotary_factor=0.5)
GLM_KEYS = dense_keys("rms_norm_eps", 0.5) + [
    tied(), Key("attention_bias_false", {"attention_bias": False, **ONE}, fresh=True),
    Key("attention_bias_removed", {"attention_bias": REMOVE}, same=True),
]
CHATGLM = apply(GLM, {"head_dim": 8, "rms_norm_eps": 1e-5})
STABLELM = apply(dense_base("stablelm", "StableLmForCausalLM", layer_norm_eps=1e-5, partial_rotary_factor=0.25,
                            use_qkv_bias=False, qk_layernorm=False, use_parallel_residual=False, hidden_dropout=0.0,
                            num_attention_heads=2), NO_EPS)
STABLELM_KEYS = without(dense_keys("layer_norm_eps", 0.25), "num_key_value_heads_4", "partial_rotary_new") + [
    tied(), Key("use_qkv_bias", {"use_qkv_bias": True, **ONE}, fresh=True, note="not of the output"),
    Key("use_parallel_residual", {"use_parallel_residual": True, "num_hidden_layers": 2}, fresh=True),
    Key("partial_rotary_new", {**new_rope(500.0, rope_type="default", partial_rotary_factor=0.5),
                               "partial_rotary_factor": REMOVE}),
    Key("num_key_value_heads_1", {"num_key_value_heads": 1, **ONE}, fresh=True),
    refuse("qk_layernorm", {"qk_layernorm": True}),
]
STARCODER2 = apply(dense_base("starcoder2", "Starcoder2ForCausalLM", norm_epsilon=1e-5, use_bias=True, sliding_window=16,
                              hidden_act="gelu_pytorch_tanh", mlp_type="default", norm_type="layer_norm",
                              scale_attn_weights=True, residual_dropout=0.1, embedding_dropout=0.1,
                              tie_word_embeddings=True), NO_EPS)
STARCODER2_KEYS = dense_keys("norm_epsilon") + [
    untied(), Key("use_bias_false", {"use_bias": False, **ONE}, fresh=True),
    Key("use_bias_removed", {"use_bias": REMOVE}, same=True), Key("tied_removed", {"tie_word_embeddings": REMOVE}, same=True),
    Key("sliding_window_null", {"sliding_window": None}), Key("sliding_window_removed", {"sliding_window": REMOVE}),
    Key("sliding_window_5", {"sliding_window": 5}), Key("act_gelu", {"hidden_act": "gelu"}, note="weak: the forms are near"),
    Key("head_dim_16", HD16, fresh=True),
    refuse("mlp_type", {"mlp_type": "gated"}), refuse("norm_type", {"norm_type": "rms_norm"}),
    refuse("scale_attn_weights", {"scale_attn_weights": False}),
]
COHERE = apply(dense_base("cohere", "CohereForCausalLM", layer_norm_eps=1e-5, logit_scale=0.8, attention_bias=False,
                          use_qk_norm=False, tie_word_embeddings=True), NO_EPS)
COHERE_KEYS = dense_keys("layer_norm_eps") + [
    Key("rope_theta_removed", {"rope_theta": REMOVE}, note="class default 500000"),
    Key("logit_scale", {"logit_scale": 0.25}), Key("logit_scale_removed", {"logit_scale": REMOVE}, note="class default 0.0625"),
    untied(), Key("attention_bias", {"attention_bias": True, **ONE}, fresh=True),
    refuse("use_qk_norm", {"use_qk_norm": True}),
]
COHERE2 = apply(dense_base("cohere2", "Cohere2ForCausalLM", layer_norm_eps=1e-5, logit_scale=0.8, attention_bias=False,
                           num_hidden_layers=3, sliding_window=16, sliding_window_pattern=3, layer_switch=3, rotary_pct=1.0,
                           position_embedding_type="rope_gptj", order_of_interleaved_layers="local_attn_first",
                           use_embedding_sharing=True, use_gated_activation=True, use_parallel_block=True,
                           use_parallel_embedding=False, cache_implementation="hybrid", tie_word_embeddings=True), NO_EPS)
COHERE2_KEYS = without(dense_keys("layer_norm_eps"), "num_key_value_heads_4") + [
    Key("logit_scale", {"logit_scale": 0.25}), Key("sliding_window_5", {"sliding_window": 5}),
    Key("pattern_2", {"sliding_window_pattern": 2}),
    Key("pattern_removed", {"sliding_window_pattern": REMOVE}, note="class default 4"),
    Key("layer_types", {"layer_types": ["full_attention", "sliding_attention", "sliding_attention"]}),
    Key("num_key_value_heads_4", {"num_key_value_heads": 4, **ONE}, fresh=True),
    untied(), Key("attention_bias", {"attention_bias": True, **ONE}, fresh=True),
    refuse("sliding_window_null", {"sliding_window": None}), refuse("layer_types_short", {"layer_types": ["full_attention"]}),
    refuse("use_qk_norm", {"use_qk_norm": True}), refuse("rotary_pct", {"rotary_pct": 0.5}),
    refuse("position_embedding_type", {"position_embedding_type": "rope_neox"}),
    refuse("use_parallel_block", {"use_parallel_block": False}),
]
COHERE2_FOUR = apply(COHERE2, {"num_hidden_layers": 4, "sliding_window_pattern": 4, "layer_switch": 4})
PHI = apply(dense_base("phi", "PhiForCausalLM", layer_norm_eps=1e-5, partial_rotary_factor=0.5, qk_layernorm=False,
                       hidden_act="gelu_new", resid_pdrop=0.1, embd_pdrop=0.0, intermediate_size=128), {**NO_EPS, "num_key_value_heads": 4})
PHI_KEYS = without(dense_keys("layer_norm_eps", 0.5), "num_key_value_heads_4") + [
    Key("num_key_value_heads_2", {"num_key_value_heads": 2, "intermediate_size": 48, **ONE}, fresh=True),
    tied(intermediate_size=48), Key("act_gelu", {"hidden_act": "gelu"}, note="weak: the forms are near"),
    refuse("qk_layernorm", {"qk_layernorm": True}),
    Key("num_key_value_heads_removed", {"num_key_value_heads": REMOVE}, same=True, note="as many as heads"),
]
GPTJ = {"architectures": ["GPTJForCausalLM"], "model_type": "gptj", "n_embd": 32, "n_head": 2, "n_inner": None, "n_layer": 2,
        "n_positions": 256, "rotary": True, "rotary_dim": 8, "scale_attn_weights": True, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "summary_activation": None,
        "summary_first_dropout": 0.1, "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
        "tie_word_embeddings": False, "vocab_size": 96, "bos_token_id": 0, "eos_token_id": 0, "initializer_range": 0.02,
        "use_cache": True, "gradient_checkpointing": False, "torch_dtype": "float32"}
GPTJ_KEYS = [
    Key("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}), Key("rotary_dim_16", {"rotary_dim": 16}),
    Key("rotary_dim_6", {"rotary_dim": 6}), Key("act_relu", {"activation_function": "relu"}),
    Key("n_inner", {"n_inner": 48, "n_layer": 1}, fresh=True), tied(n_layer=1),
    refuse("rotary_false", {"rotary": False}), refuse("rotary_dim_null", {"rotary_dim": None}),
    refuse("rotary_dim_odd", {"rotary_dim": 7}), refuse("rotary_dim_beyond", {"rotary_dim": 32}),
    refuse("rotary_dim_removed", {"rotary_dim": REMOVE}, note="class default 64, more than a head has"),
    refuse("scale_attn_weights", {"scale_attn_weights": False}), refuse("heads_do_not_divide", {"n_head": 5}),
    refuse("rope_scaling", {"rope_scaling": LINEAR}, note="the class does not know it"),
] + without(refusals_any(), "act_unknown", "act_nonsense") + shape_refusals("n_layer", "n_embd")

GRANITE4 = {"architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid", "hidden_size": 32,
            "intermediate_size": 48, "shared_intermediate_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4,
            "num_key_value_heads": 2, "layer_types": ["mamba", "attention", "mamba", "attention"], "num_local_experts": 0,
            "num_experts_per_tok": 0, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 16,
            "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 16, "mamba_conv_bias": True, "mamba_proj_bias": False,
            "embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.6, "attention_multiplier": 0.2,
            "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False, "attention_dropout": 0.0, "vocab_size": 96,
            "position_embedding_type": "nope", "rope_theta": 10000, "rope_scaling": None, "max_position_embeddings": 256,
            "normalization_function": "rmsnorm", "init_method": "mup", "output_router_logits": False,
            "router_aux_loss_coef": 0.01, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0,
            "pad_token_id": 0, "initializer_range": 0.1, "use_cache": True, "torch_dtype": "float32"}
G4_MAMBA = {"num_hidden_layers": 1, "layer_types": ["mamba"]}
G4_ATT = {"num_hidden_layers": 1, "layer_types": ["attention"]}
ROPE_ON = {"position_embedding_type": "rope"}
GRANITE4_KEYS = [
    Key("rms_norm_eps", {"rms_norm_eps": 0.05}),
    *[Key(k, {k: v}) for k, v in (("embedding_multiplier", 1.5), ("logits_scaling", 4.0), ("residual_multiplier", 0.2),
                                  ("attention_multiplier", 0.7))],
    *[Key(k + "_removed", {k: REMOVE}) for k in ("embedding_multiplier", "logits_scaling", "residual_multiplier",
                                                 "attention_multiplier")],
    Key("rope", ROPE_ON), Key("rope_theta", {**ROPE_ON, "rope_theta": 500.0}),
    Key("rope_yarn", {**ROPE_ON, **new_rope(500.0, **YARN)}),
    Key("position_embedding_type_null", {"position_embedding_type": None}, same=True),
    Key("layer_types_new", {"layer_types": ["linear_attention", "full_attention", "linear_attention", "full_attention"]},
        same=True),
    Key("layers_block_type", {"layer_types": REMOVE, "layers_block_type": ["mamba", "attention", "mamba", "attention"]},
        same=True),
    Key("layer_types_removed", {"layer_types": REMOVE, "num_hidden_layers": 1}, fresh=True, note="class default: all Mamba-2"),
    Key("attention_first", {"layer_types": ["attention", "mamba"], "num_hidden_layers": 2}, fresh=True),
    Key("attention_bias", {"attention_bias": True, **G4_ATT}, fresh=True),
    Key("mamba_proj_bias", {"mamba_proj_bias": True, **G4_MAMBA}, fresh=True),
    Key("mamba_conv_bias_false", {"mamba_conv_bias": False, **G4_MAMBA}, fresh=True),
    Key("mamba_n_groups_2", {"mamba_n_groups": 2, **G4_MAMBA}, fresh=True),
    Key("mamba_d_head_auto", {"mamba_d_head": "auto"}, same=True),
    Key("time_step_limit", {"time_step_limit": [0.05, 0.4]}),
    Key("untied", {"tie_word_embeddings": False, **G4_ATT}, fresh=True),
    refuse("num_local_experts_removed", {"num_local_experts": REMOVE}, note="class default 8"),
    refuse("position_embedding_type", {"position_embedding_type": "alibi"}),
    refuse("normalization_function", {"normalization_function": "layernorm"}),
    refuse("layer_types_unknown", {"layer_types": ["mamba", "attention", "mamba", "conv"]}),
    refuse("layer_types_short", {"layer_types": ["mamba"]}),
    refuse("act_gelu", {"hidden_act": "gelu"}, note="would change the convolution too"),
    refuse("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
] + without(refusals(), "logits_scaling", "embedding_multiplier", "residual_multiplier",
            "attention_multiplier") + shape_refusals()

# ---- norms behind branches

BEHIND = dict(num_key_value_heads=2, head_dim=16, attention_bias=False, pad_token_id=0)
SLIDES = ["sliding_attention", "full_attention", "sliding_attention"]


def two_ropes(sliding=None, full=None):
    default = {"rope_type": "default", "rope_theta": 10000.0}
    return {"rope_theta": REMOVE, "rope_local_base_freq": REMOVE, "rope_scaling": REMOVE,
            "rope_parameters": {"sliding_attention": {**default, **(sliding or {})}, "full_attention": {**default, **(full or {})}}}


GEMMA3 = llama_base("llama", architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", num_hidden_layers=3,
                    hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=24, sliding_window=16, layer_types=SLIDES,
                    rope_theta=1e6, rope_local_base_freq=10000.0, rope_scaling=None, tie_word_embeddings=True,
                    final_logit_softcapping=None, attn_logit_softcapping=None, **BEHIND)
del GEMMA3["hidden_act"]
GEMMA3_KEYS = [
    Key("rms_norm_eps", {"rms_norm_eps": 0.05}),
    Key("rope_theta", {"rope_theta": 500.0}), Key("rope_local_base_freq", {"rope_local_base_freq": 500.0}),
    Key("rope_theta_removed", {"rope_theta": REMOVE, "rope_local_base_freq": REMOVE}, same=True, note="class defaults"),
    Key("rope_linear", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}, note="of the layers without a window"),
    Key("rope_two", two_ropes({"rope_theta": 500.0}, {"rope_theta": 1e5})),
    Key("rope_two_linear", two_ropes({}, {"rope_theta": 1e6, "rope_type": "linear", "factor": 4.0})),
    Key("layer_types_full", {"layer_types": ["full_attention"] * 3}),
    Key("pattern", {"layer_types": REMOVE, "sliding_window_pattern": 3}), Key("pattern_removed", {"layer_types": REMOVE}),
    Key("sliding_window_5", {"sliding_window": 5}),
    Key("query_pre_attn_scalar", {"query_pre_attn_scalar": 64}),
    Key("num_key_value_heads_4", {"num_key_value_heads": 4, **ONE, "layer_types": ["full_attention"]}, fresh=True),
    Key("attention_bias", {"attention_bias": True, **ONE, "layer_types": ["full_attention"]}, fresh=True),
    untied(layer_types=["full_attention"]),
    refuse("final_logit_softcapping", {"final_logit_softcapping": 30.0}),
    refuse("attn_logit_softcapping", {"attn_logit_softcapping": 50.0}),
    refuse("use_bidirectional_attention", {"use_bidirectional_attention": True}),
    refuse("hidden_activation_gelu", {"hidden_activation": "gelu"}), refuse("hidden_act_silu", {"hidden_act": "silu"}),
    refuse("layer_types_short", {"layer_types": ["full_attention"]}),
] + shape_refusals()
GEMMA2 = llama_base("llama", architectures=["Gemma2ForCausalLM"], model_type="gemma2", num_hidden_layers=3,
                    hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=16, sliding_window=16, tie_word_embeddings=True,
                    final_logit_softcapping=20.0, attn_logit_softcapping=3.0, cache_implementation="hybrid", **BEHIND)
del GEMMA2["hidden_act"]
GEMMA2_KEYS = [
    Key("rms_norm_eps", {"rms_norm_eps": 0.05}),
    Key("rope_theta", {"rope_theta": 500.0}), Key("rope_theta_removed", {"rope_theta": REMOVE}, same=True, note="class default"),
    Key("rope_linear", {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}), Key("rope_yarn", new_rope(500.0, **YARN)),
    Key("attn_cap", {"attn_logit_softcapping": 1.0}), Key("attn_cap_null", {"attn_logit_softcapping": None}, note="no cap"),
    Key("attn_cap_removed", {"attn_logit_softcapping": REMOVE}, note="class default 50"),
    Key("final_cap", {"final_logit_softcapping": 5.0}), Key("final_cap_null", {"final_logit_softcapping": None}, note="no cap"),
    Key("final_cap_removed", {"final_logit_softcapping": REMOVE}, note="class default 30"),
    Key("layer_types", {"layer_types": SLIDES}, same=True), Key("layer_types_full", {"layer_types": ["full_attention"] * 3}),
    Key("layer_types_other", {"layer_types": SLIDES[1:] + SLIDES[1:2]}), Key("sliding_window_5", {"sliding_window": 5}),
    Key("query_pre_attn_scalar", {"query_pre_attn_scalar": 64}),
    Key("query_pre_attn_scalar_removed", {"query_pre_attn_scalar": REMOVE}, note="class default 256"),
    Key("hidden_activation_removed", {"hidden_activation": REMOVE}, same=True),
    Key("hidden_act_gelu", {"hidden_act": "gelu"}, same=True, note="not read by the class"),
    Key("num_key_value_heads_4", {"num_key_value_heads": 4, **ONE}, fresh=True),
    Key("attention_bias", {"attention_bias": True, **ONE}, fresh=True),
    untied(),
    refuse("attn_cap_zero", {"attn_logit_softcapping": 0.0}), refuse("final_cap_negative", {"final_logit_softcapping": -30.0}),
    refuse("hidden_act_silu", {"hidden_act": "silu"}, note="not read by the class"),
    refuse("use_bidirectional_attention", {"use_bidirectional_attention": True}),
    refuse("hidden_activation_gelu", {"hidden_activation": "gelu"}),
    refuse("layer_types_short", {"layer_types": ["full_attention"]}),
    refuse("pattern_3", {"_sliding_window_pattern": 3}, note="of GGUF files"),
    Key("sliding_window_size", {"sliding_window_size": 16}, same=True, note="in published files; not read by the class"),
    refuse("sliding_window_sizes", {"sliding_window_size": 8}),
] + shape_refusals()
GLM4 = dense_base("glm4", "Glm4ForCausalLM", head_dim=16, attention_bias=True, partial_rotary_factor=0.5)
GLM4_KEYS = without(dense_keys("rms_norm_eps", 0.5), "num_key_value_heads_4") + [
    tied(), Key("attention_bias_false", {"attention_bias": False, **ONE}, fresh=True),
]
EXAONE4 = dense_base("exaone4", "Exaone4ForCausalLM", head_dim=16, num_hidden_layers=3, sliding_window=16, sliding_window_pattern=3,
                     layer_types=SLIDES)
EXAONE4_KEYS = without(dense_keys("rms_norm_eps"), "num_key_value_heads_4") + [
    Key("no_windows", {"sliding_window": None, "layer_types": ["full_attention"] * 3}, note="then all layers turn"),
    Key("pattern", {"layer_types": REMOVE, "sliding_window_pattern": 2}, same=True), Key("pattern_3", {"layer_types": REMOVE}),
    Key("sliding_window_5", {"sliding_window": 5}), tied(layer_types=["full_attention"]),
    refuse("layer_types_short", {"layer_types": ["full_attention"]}),
    refuse("pattern_letters", {"layer_types": REMOVE, "sliding_window_pattern": "LXG"}),
]
OLMO2 = dense_base("olmo2", "Olmo2ForCausalLM", attention_bias=False)
OLMO2_KEYS = dense_keys("rms_norm_eps") + [tied(), Key("attention_bias", {"attention_bias": True, **ONE}, fresh=True)]
OLMO3 = dense_base("olmo3", "Olmo3ForCausalLM", attention_bias=False, num_hidden_layers=3, sliding_window=16, layer_types=SLIDES,
                   rope_theta=500000.0)
OLMO3_KEYS = [
    Key("eps", {"rms_norm_eps": 0.05}),
    Key("rope_theta_removed", {"rope_theta": REMOVE}, same=True, note="class default. Of another base at the top version 5 of "
        "transformers takes the default for layers with a window, version 4 the other base"),
    Key("rope_yarn", {"rope_scaling": YARN}, note="of the layers without a window"),
    Key("rope_two", two_ropes({"rope_theta": 500.0}, {"rope_theta": 500.0, **YARN})),
    Key("layer_types_removed", {"layer_types": REMOVE}), Key("sliding_window_5", {"sliding_window": 5}),
    tied(layer_types=["full_attention"]),
] + shape_refusals()

FALCON = {"architectures": ["FalconForCausalLM"], "model_type": "falcon", "hidden_size": 24, "num_hidden_layers": 2,
          "num_attention_heads": 3, "num_kv_heads": 1, "vocab_size": 96, "alibi": False, "bias": False, "multi_query": True,
          "parallel_attn": True, "new_decoder_architecture": False, "apply_residual_connection_post_layernorm": False,
          "hidden_dropout": 0.0, "attention_dropout": 0.0, "layer_norm_epsilon": 1e-5, "initializer_range": 0.02, "bos_token_id": 11,
          "eos_token_id": 11, "use_cache": True, "torch_dtype": "float32"}
FALCON_SAME = [
    Key("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}), Key("rope_theta", {"rope_theta": 500.0}),
    Key("rope_linear", {"rope_scaling": LINEAR}), Key("rope_yarn", new_rope(500.0, **YARN)), Key("rope_llama3", new_rope(500.0, **LLAMA3)),
    Key("act_relu", {"activation": "relu"}), Key("act_gelu_new", {"activation": "gelu_new"}, note="weak: the forms are near"),
    Key("bias", {"bias": True, **ONE}, fresh=True), Key("ffn_hidden_size", {"ffn_hidden_size": 40, **ONE}, fresh=True), untied(),
    refuse("alibi", {"alibi": True}), refuse("apply_residual", {"apply_residual_connection_post_layernorm": True}),
    refuse("act_quick_gelu", {"activation": "quick_gelu"}), refuse("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
    refuse("heads_do_not_divide", {"num_attention_heads": 5}),
] + without(refusals_any(), "act_unknown", "act_nonsense") + shape_refusals()
FALCON_KEYS = FALCON_SAME + dynamic_keys() + [
    Key("num_kv_heads_3", {"num_kv_heads": 3}, same=True, note="as transformers writes it; not read with multi_query"),
    Key("num_kv_heads_removed", {"num_kv_heads": REMOVE}, same=True), Key("multi_query_removed", {"multi_query": REMOVE}, same=True),
    Key("n_embed", {"hidden_size": REMOVE, "n_embed": 24}, same=True, note="the older name"),
    Key("one_behind_the_other", {"parallel_attn": False, **ONE}, fresh=True),
    Key("three_per_head", {"multi_query": False, "num_kv_heads": 3, **ONE}, fresh=True),
    Key("as_the_first", {"multi_query": False, "num_kv_heads": REMOVE, "parallel_attn": False, "bias": True, **ONE}, fresh=True,
        note="Falcon-RW, but for its positions"),
    refuse("kv_heads_missing", {"multi_query": False, "num_kv_heads": 3}, note="the tensors have one"),
    refuse("kv_heads_differ", {"multi_query": False, "num_kv_heads": 1}),
    refuse("two_norms", {"num_ln_in_parallel_attn": 2}, note="the class has no use for them here, and fails"),
    refuse("n_embed_differs", {"n_embed": 32}),
    refuse("new_decoder", {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 2}, note="other norms are missing"),
]
FALCON_NEW = apply(FALCON, {"hidden_size": 32, "num_attention_heads": 4, "num_kv_heads": 2, "new_decoder_architecture": True,
                            "ffn_hidden_size": 128, "num_ln_in_parallel_attn": 2})
FALCON_NEW_KEYS = [
    Key("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}), Key("rope_theta", {"rope_theta": 500.0}),
    Key("one_norm", {"num_ln_in_parallel_attn": 1, **ONE}, fresh=True, note="Falcon 2"),
    Key("norms_removed", {"num_ln_in_parallel_attn": REMOVE}, same=True, note="class default: two"),
    Key("num_kv_heads_removed", {"num_kv_heads": REMOVE, **ONE}, fresh=True, note="as many as heads"),
    Key("multi_query_false", {"multi_query": False}, same=True, note="not read"),
    refuse("parallel_attn_false", {"parallel_attn": False}), refuse("three_norms", {"num_ln_in_parallel_attn": 3}),
    refuse("kv_do_not_divide", {"num_kv_heads": 3}), refuse("alibi", {"alibi": True}),
]

CODEGEN = apply({**GPTJ, "n_ctx": 256}, {"architectures": ["CodeGenForCausalLM"], "model_type": "codegen", "n_head": 4, "n_inner": 48,
                                         "rotary_dim": 4, "rotary": REMOVE})
CODEGEN_KEYS = [
    Key("layer_norm_epsilon", {"layer_norm_epsilon": 0.05}), Key("rotary_dim_8", {"rotary_dim": 8}),
    Key("act_relu", {"activation_function": "relu"}), Key("n_ctx", {"n_ctx": 128}, same=True, note="not read by the class"),
    Key("n_head_2", {"n_head": 2}, note="a head of two devices"), Key("n_head_8", {"n_head": 8}, note="two heads of each device"),
    Key("n_inner_null", {"n_inner": None, "n_layer": 1}, fresh=True), tied(n_layer=1),
    Key("n_embd_24", {"n_embd": 24, "n_head": 3, "n_layer": 1}, fresh=True, note="heads that devices share"),
    refuse("rotary_dim_null", {"rotary_dim": None}), refuse("rotary_dim_beyond", {"rotary_dim": 16}),
    refuse("scale_attn_weights", {"scale_attn_weights": False}), refuse("heads_do_not_divide", {"n_head": 5}),
    refuse("rope_scaling", {"rope_scaling": LINEAR}, note="the class does not know it"),
    refuse("devices_do_not_divide", {"n_embd": 30, "n_head": 3}),
] + without(refusals_any(), "act_unknown", "act_nonsense") + shape_refusals("n_layer", "n_embd")

NEOX_JAPANESE = apply(NEOX, {"architectures": ["GPTNeoXJapaneseForCausalLM"], "model_type": "gpt_neox_japanese", "rotary_pct": 1.0,
                            "hidden_size": 24, "intermediate_multiple_size": 2, "intermediate_size": REMOVE, "attention_bias": REMOVE,
                            "use_parallel_residual": REMOVE, "tie_word_embeddings": REMOVE, "vocab_size": 96, "attention_dropout": 0.1,
                            "hidden_dropout": 0.0})
NEOX_JAPANESE_KEYS = [
    Key("layer_norm_eps", {"layer_norm_eps": 0.05}), Key("rotary_pct", {"rotary_pct": 0.5}),
    Key("rotary_pct_removed", {"rotary_pct": REMOVE}, same=True), Key("rotary_emb_base", {"rotary_emb_base": 100}),
    Key("rope_new_style", {**NEOX_NEW, "rope_parameters": {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}),
    Key("act_relu", {"hidden_act": "relu"}), Key("multiple_removed", {"intermediate_multiple_size": REMOVE, **ONE}, fresh=True),
    Key("one_layer", ONE, fresh=True), Key("tied", {"tie_word_embeddings": True}, same=True), untied(),
    refuse("heads_do_not_divide", {"num_attention_heads": 5}), refuse("intermediate_size", {"intermediate_size": 96}),
    refuse("fewer_layers", ONE, note="the bias is of the last"), refuse("use_parallel_residual", {"use_parallel_residual": True}),
] + refusals_any() + shape_refusals()
CWM = dense_base("cwm", "CwmForCausalLM", head_dim=16, num_hidden_layers=3, sliding_window=16, mlp_bias=False, rope_theta=1e6,
                 rope_scaling=LLAMA3, layer_types=[SLIDES[1], SLIDES[0], SLIDES[0]])
CWM_KEYS = [
    Key("rms_norm_eps", {"rms_norm_eps": 0.05}), Key("rope_theta", {"rope_theta": 500.0}),
    Key("rope_default", new_rope(500.0, rope_type="default")), Key("rope_yarn", {"rope_scaling": YARN}), Key("act_relu", {"hidden_act": "relu"}),
    Key("layer_types_removed", {"layer_types": REMOVE}, same=True), Key("layer_types_full", {"layer_types": SLIDES[1:2] * 3}),
    Key("layer_types_other", {"layer_types": SLIDES}), Key("sliding_window_5", {"sliding_window": 5}),
    Key("mlp_bias", {"mlp_bias": True, **ONE, "layer_types": REMOVE}, fresh=True), tied(layer_types=REMOVE),
    refuse("rope_removed", {"rope_scaling": REMOVE}, note="the class has a scaling of its own then"),
    refuse("sliding_window_null", {"sliding_window": None}), refuse("layer_types_short", {"layer_types": ["full_attention"]}),
    refuse("attention_bias", {"attention_bias": True}), refuse("head_dim_removed", {"head_dim": REMOVE}, note="class default 128"),
    refuse("partial_rotary_factor", {"partial_rotary_factor": 0.5}),
] + refusals() + shape_refusals()

# Keys as the code that comes with the files has them.
EXAONE_NAMES = {"num_layers": "num_hidden_layers", "layer_norm_epsilon": "rms_norm_eps", "activation_function": "hidden_act"}


def exaone(patch):
    """Llama's keys by EXAONE's names."""
    back = {v: k for k, v in EXAONE_NAMES.items()}
    return {back.get(k, k): v for k, v in patch.items()}


EXAONE = exaone(dense_base("exaone", "ExaoneForCausalLM", head_dim=8, rope_scaling=None, embed_dropout=0.0, attention_dropout=0.0,
                           rms_norm_eps=1e-5, rope_theta=500000.0))
EXAONE_KEYS = [Key(k.name, exaone(k.patch), k.expect, k.fresh, k.same, k.refuse_ok, note=k.note) for k in dense_keys("rms_norm_eps") + [
    tied(), Key("attention_bias", {"attention_bias": True, **ONE}, fresh=True), Key("mlp_bias", {"mlp_bias": True, **ONE}, fresh=True)]] + [
    Key("rope_theta_removed", {"rope_theta": REMOVE}, same=True, note="class default"),
    Key("names_new", {**{k: REMOVE for k in EXAONE_NAMES}, **{v: EXAONE[k] for k, v in EXAONE_NAMES.items()}}, same=True,
        note="as transformers writes them"),
    refuse("names_differ", {"num_hidden_layers": 1}), refuse("num_layers_removed", {"num_layers": REMOVE}, note="class default 32"),
]

BF16, F16 = torch.bfloat16, torch.float16
CASES = [
    Case("llama2", "llama", LLAMA2, LLAMA2_KEYS),
    Case("llama3", "llama", LLAMA3_CFG, LLAMA3_KEYS),
    Case("mistral", "llama", MISTRAL, MISTRAL_KEYS),
    Case("qwen2", "llama", QWEN2, QWEN2_KEYS),
    Case("qwen3", "llama", QWEN3, QWEN3_KEYS),
    Case("granite", "llama", GRANITE, GRANITE_KEYS),
    Case("phi3", "llama", PHI3, PHI3_KEYS),
    Case("phi3-long", "llama", PHI3_LONG, PHI3_LONG_KEYS, extra="short"),
    Case("phi4_mini", "llama", PHI4_MINI, PHI4_MINI_KEYS, extra="short"),
    Case("gemma", "llama", GEMMA, GEMMA_KEYS),
    Case("seed_oss", "llama", SEED_OSS, SEED_OSS_KEYS),
    Case("ministral", "llama", MINISTRAL, MINISTRAL_KEYS),
    Case("smollm3", "llama", SMOLLM3, SMOLLM3_KEYS),
    Case("olmo", "dense", OLMO, OLMO_KEYS),
    Case("ernie4_5", "dense", ERNIE4_5, ERNIE4_5_KEYS),
    Case("helium", "dense", HELIUM, HELIUM_KEYS),
    Case("internlm3", "dense", INTERNLM3, INTERNLM3_KEYS),
    Case("glm", "dense", GLM, GLM_KEYS),
    Case("chatglm", "dense", CHATGLM),
    Case("stablelm", "dense", STABLELM, STABLELM_KEYS),
    Case("starcoder2", "dense", STARCODER2, STARCODER2_KEYS),
    Case("cohere", "dense", COHERE, COHERE_KEYS),
    Case("cohere2", "dense", COHERE2, COHERE2_KEYS),
    Case("cohere2_four", "dense", COHERE2_FOUR),
    Case("gemma2", "dense", GEMMA2, GEMMA2_KEYS),
    Case("gemma3", "dense", GEMMA3, GEMMA3_KEYS),
    Case("glm4", "dense", GLM4, GLM4_KEYS),
    Case("exaone4", "dense", EXAONE4, EXAONE4_KEYS),
    Case("olmo2", "dense", OLMO2, OLMO2_KEYS),
    Case("olmo3", "dense", OLMO3, OLMO3_KEYS),
    Case("phi", "dense", PHI, PHI_KEYS),
    Case("gptj", "dense", GPTJ, GPTJ_KEYS),
    Case("exaone", "dense", EXAONE, EXAONE_KEYS),
    Case("falcon", "falcon", FALCON, FALCON_KEYS),
    Case("falcon-new", "falcon", FALCON_NEW, FALCON_NEW_KEYS),
    Case("gpt_neox_japanese", "neox_japanese", NEOX_JAPANESE, NEOX_JAPANESE_KEYS),
    Case("cwm", "llama", CWM, CWM_KEYS),
    Case("codegen", "dense", CODEGEN, CODEGEN_KEYS),
    Case("gpt_neox", "neox", NEOX, NEOX_KEYS, shards=3, extra="neox_buffers"),
    Case("mamba", "mamba", MAMBA, MAMBA_KEYS),
    Case("mamba2", "mamba", MAMBA2, MAMBA2_KEYS),
    Case("bamba", "bamba", BAMBA, BAMBA_KEYS),
    Case("granitemoehybrid", "granite4", GRANITE4, GRANITE4_KEYS),
    Case("lfm2", "lfm2", LFM2, LFM2_KEYS),
    Case("mambainllama", "hybrid", HYBRID, HYBRID_KEYS, HYBRID_MAMBA),
    Case("mamba2-ssd", "original", SSD, [Key("residual_in_fp32_false", {"residual_in_fp32": False}, same=True)] +
         original_refusals({"layer": "Mamba2"})[:-1], extra="duplicate_head"),
    Case("mamba2-ssd-cfg", "original", {**SSD, "ssm_cfg": SSD_CFG}, SSD_KEYS),
    Case("mamba-ssm", "original", SSM1, SSM1_KEYS),
    Case("llama3-bf16", "llama", {**LLAMA3_CFG, "torch_dtype": "bfloat16"}, dtype=BF16, weights_of="llama3"),
    Case("mamba2-bf16", "mamba", {**MAMBA2, "torch_dtype": "bfloat16"}, dtype=BF16, weights_of="mamba2"),
    Case("llama2-mixed", "llama", {**LLAMA2, "torch_dtype": "bfloat16"}, dtype=BF16, extra="mixed", weights_of="llama2"),
    Case("llama2-f16", "llama", {**LLAMA2, "torch_dtype": "float16"}, dtype=F16, weights_of="llama2"),
]


def make(case):
    directory = os.path.join(HERE, case.name)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(directory)
    write_json(os.path.join(directory, "config.json"), case.config)
    if case.mamba:
        write_json(os.path.join(directory, "mamba_config.json"), case.mamba)
    write_weights(directory, tensors(case, case.config, case.mamba), case.shards)
    ids = rng(case.seed, "ids").integers(0, case.config["vocab_size"], N_IDS).tolist()
    base = reference(case, directory, case.config, case.mamba, ids)
    peak = base.abs().max().item()
    golden = {"ids": torch.tensor(ids, dtype=torch.int32), "logits": base.contiguous()}
    if case.extra == "short":               # the first half as a sequence of its own: up to the original length
        golden["logits.short"] = reference(case, directory, case.config, case.mamba, ids[:N_IDS // 2]).contiguous()
    save_file(golden, os.path.join(directory, "golden.safetensors"))
    print(f"{case.name}: {sum(os.path.getsize(os.path.join(directory, f)) for f in os.listdir(directory))} bytes, "
          f"max |logit| {peak:.2f}, median {base.abs().median():.2f}", flush=True)
    if not 3 < peak < 30:
        print("  WARNING: scale of the logits")
    listing, stored, names = [], {}, set()
    for k in case.keys:
        if k.name in names:
            raise RuntimeError("two keys named " + k.name)
        names.add(k.name)
        config = apply(case.config, k.patch) if k.file == "config.json" else case.config
        mamba = apply(case.mamba, k.patch) if k.file != "config.json" else case.mamba
        entry = {"name": k.name, "patch": k.patch, "expect": k.expect, "weights": None}
        if k.file != "config.json":
            entry["file"] = k.file
        where = directory
        if k.fresh:
            entry["weights"] = k.name
            where = os.path.join(directory, k.name)
            os.makedirs(where)
            write_weights(where, tensors(case, config, mamba, torch.bfloat16), 1)    # half the bytes; read upcast
        if k.expect == "logits":
            try:
                got = reference(case, where, config, mamba, ids)
            except Exception as e:
                print(f"  FAILED {k.name}: {type(e).__name__}: {str(e)[:300]}")
                continue
            change = (got[TAIL:] - base[TAIL:]).abs().max().item() / peak
            if k.same != (change < 1e-6):
                print(f"  WARNING {k.name}: change {change:.2e}, said same={k.same}")
            if not k.same and change < 1e-3:
                print(f"  WARNING {k.name}: weak, change {change:.2e}")
            if not torch.isfinite(got).all():
                print(f"  WARNING {k.name}: not finite")
            stored["logits." + k.name] = got[TAIL:].contiguous()
            entry["same_as_base"] = k.same
            if k.refuse_ok:
                entry["refuse_ok"] = True
        if k.note:
            entry["note"] = k.note
        listing.append(entry)
    if listing:
        with open(os.path.join(directory, "keys.json"), "w") as f:
            f.write("[\n" + ",\n".join(json.dumps(e) for e in listing) + "\n]\n")
        if stored:
            save_file(stored, os.path.join(directory, "keys.safetensors"))


def main():
    torch.set_num_threads(1)
    import transformers
    transformers.logging.set_verbosity_error()
    wanted = sys.argv[1:]
    for case in CASES:
        if not wanted or case.name in wanted:
            make(case)


if __name__ == "__main__":
    main()
