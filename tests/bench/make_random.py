#!/usr/bin/env python3
"""Writes a checkpoint of a well-known shape with random bfloat16 weights, for measuring: make_random.py SHAPE DIR.

Shapes: mamba2-2.7b (state-spaces/mamba2-2.7b), llama-1.1b (TinyLlama-1.1B). Nothing is downloaded; the text that such a
model writes means nothing. Needs numpy.
"""
import json
import os
import sys

import numpy as np


def mamba2(d, n_layer, rows, head_dim=64, state=128):
    inner = 2 * d
    heads, conv = inner // head_dim, inner + 2 * state
    config = dict(model_type="mamba2", architectures=["Mamba2ForCausalLM"], hidden_size=d, num_hidden_layers=n_layer,
                  num_heads=heads, head_dim=head_dim, state_size=state, n_groups=1, expand=2, conv_kernel=4,
                  chunk_size=256, vocab_size=rows, layer_norm_epsilon=1e-5, rms_norm=True, residual_in_fp32=True,
                  tie_word_embeddings=True, use_bias=False, use_conv_bias=True, hidden_act="silu", bos_token_id=0,
                  eos_token_id=0, time_step_limit=[0.0, {"__float__": "Infinity"}], dtype="bfloat16")
    tensors = {"backbone.embeddings.weight": (rows, d), "backbone.norm_f.weight": (d,)}
    for i in range(n_layer):
        p = f"backbone.layers.{i}."
        tensors |= {p + "norm.weight": (d,), p + "mixer.in_proj.weight": (inner + conv + heads, d),
                    p + "mixer.conv1d.weight": (conv, 1, 4), p + "mixer.conv1d.bias": (conv,),
                    p + "mixer.dt_bias": (heads,), p + "mixer.A_log": (heads,), p + "mixer.D": (heads,),
                    p + "mixer.norm.weight": (inner,), p + "mixer.out_proj.weight": (d, inner)}
    return config, tensors


def llama(d, inter, n_layer, heads, kv, rows):
    config = dict(model_type="llama", architectures=["LlamaForCausalLM"], hidden_size=d, intermediate_size=inter,
                  num_hidden_layers=n_layer, num_attention_heads=heads, num_key_value_heads=kv, vocab_size=rows,
                  rms_norm_eps=1e-5, rope_theta=10000.0, max_position_embeddings=2048, tie_word_embeddings=False,
                  hidden_act="silu", attention_bias=False, mlp_bias=False, bos_token_id=1, eos_token_id=2,
                  dtype="bfloat16")
    head = d // heads
    tensors = {"model.embed_tokens.weight": (rows, d), "model.norm.weight": (d,), "lm_head.weight": (rows, d)}
    for i in range(n_layer):
        p = f"model.layers.{i}."
        tensors |= {p + "input_layernorm.weight": (d,), p + "post_attention_layernorm.weight": (d,),
                    p + "self_attn.q_proj.weight": (d, d), p + "self_attn.k_proj.weight": (kv * head, d),
                    p + "self_attn.v_proj.weight": (kv * head, d), p + "self_attn.o_proj.weight": (d, d),
                    p + "mlp.gate_proj.weight": (inter, d), p + "mlp.up_proj.weight": (inter, d),
                    p + "mlp.down_proj.weight": (d, inter)}
    return config, tensors


SHAPES = {"mamba2-2.7b": lambda: mamba2(2560, 64, 50288), "mamba2-130m": lambda: mamba2(768, 24, 50288),
          "llama-1.1b": lambda: llama(2048, 5632, 22, 32, 4, 32000)}


def values(rng, name, shape):
    """bfloat16 bits: norms near 1, matrices so small that activations stay of order 1."""
    n = int(np.prod(shape))
    if name.endswith("norm.weight") or name.endswith("norm_f.weight") or name.endswith(".D") or "layernorm" in name:
        x = np.ones(n, np.float32)
    elif name.endswith("A_log"):
        x = rng.uniform(0, 2.7, n).astype(np.float32)
    elif name.endswith("dt_bias"):
        x = rng.uniform(-6, -2, n).astype(np.float32)
    else:
        # one block of random numbers repeated at an odd stride: gigabytes of fresh ones would take minutes
        block = rng.standard_normal(min(n, 1000003), dtype=np.float32) * np.float32(1.0 / np.sqrt(shape[-1]))
        x = np.resize(block, n)
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def main():
    shape, out = sys.argv[1], sys.argv[2]
    config, tensors = SHAPES[shape]()
    os.makedirs(out, exist_ok=True)
    json.dump(config, open(os.path.join(out, "config.json"), "w"), indent=2)
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, dims in tensors.items():
        size = 2 * int(np.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    rng = np.random.default_rng(1)
    with open(os.path.join(out, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for name, dims in tensors.items():
            values(rng, name, dims).tofile(f)


if __name__ == "__main__":
    main()
