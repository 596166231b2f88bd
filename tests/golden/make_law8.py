"""Makes law8-target (Bamba: one Mamba-2 layer, one attention layer) and law8-drafter (Mamba-2, one layer): models over
8 tokens, whose laws depend on the context and are neither flat nor degenerate, for tests of the sampled law. The two
share what a trained pair would have in common, roughly: embeddings and head, with noise.

    python make_law8.py            # Python's standard library only; the files are the same on every run
"""
import json
import math
import os
import random
import struct

N_VOCAB, DIM = 8, 16
HERE = os.path.dirname(os.path.abspath(__file__))


def normal(rng, rows, cols, std):
    return [[rng.gauss(0.0, std) for _ in range(cols)] for _ in range(rows)]


def noisy(rng, matrix, std):
    return [[x + rng.gauss(0.0, std) for x in row] for row in matrix]


def ones(n):
    return [1.0] * n


def flat(x):
    return [v for row in x for v in flat(row)] if isinstance(x, list) else [x]


def shape(x):
    return [len(x)] + shape(x[0]) if isinstance(x, list) else []


def write(name, config, tensors):
    folder = os.path.join(HERE, name)
    os.makedirs(folder, exist_ok=True)
    header, data = {}, b""
    for key in sorted(tensors):
        values = flat(tensors[key])
        block = struct.pack("<%df" % len(values), *values)
        header[key] = {"dtype": "F32", "shape": shape(tensors[key]), "data_offsets": [len(data), len(data) + len(block)]}
        data += block
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f, indent=1)
        f.write("\n")


def mamba2(rng, prefix, n_head, head_dim, n_state):
    """Time steps around 0.5 and decays between 0.6 and 0.95 a token: what was read a few tokens ago still matters."""
    inner = n_head * head_dim
    n_conv = inner + 2 * n_state
    return {
        prefix + "in_proj.weight": normal(rng, inner + n_conv + n_head, DIM, 1.2 / math.sqrt(DIM)),
        prefix + "conv1d.weight": [[row] for row in normal(rng, n_conv, 4, 0.6)],
        prefix + "conv1d.bias": normal(rng, 1, n_conv, 0.2)[0],
        prefix + "A_log": [math.log(rng.uniform(0.1, 1.0)) for _ in range(n_head)],
        prefix + "D": [rng.gauss(1.0, 0.3) for _ in range(n_head)],
        prefix + "dt_bias": [rng.gauss(-0.4, 0.3) for _ in range(n_head)],
        prefix + "norm.weight": ones(inner),
        prefix + "out_proj.weight": normal(rng, DIM, inner, 1.2 / math.sqrt(inner)),
    }


def target(rng, embed, head):
    t = {"model.embed_tokens.weight": embed, "lm_head.weight": head, "model.final_layernorm.weight": ones(DIM)}
    for i in range(2):
        p = "model.layers.%d." % i
        t[p + "input_layernorm.weight"] = t[p + "pre_ff_layernorm.weight"] = ones(DIM)
        for part in ("gate_proj", "up_proj", "down_proj"):
            t[p + "feed_forward.%s.weight" % part] = normal(rng, DIM, DIM, 1.0 / math.sqrt(DIM))
    t.update(mamba2(rng, "model.layers.0.mamba.", 4, 8, 8))
    p = "model.layers.1.self_attn."
    for part, rows in (("q_proj", DIM), ("k_proj", 8), ("v_proj", 8), ("o_proj", DIM)):
        t[p + part + ".weight"] = normal(rng, rows, DIM, 1.5 / math.sqrt(DIM))
    config = {
        "architectures": ["BambaForCausalLM"], "model_type": "bamba", "hidden_size": DIM, "intermediate_size": DIM,
        "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "attn_layer_indices": [1],
        "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_d_conv": 4,
        "mamba_expand": 2, "mamba_chunk_size": 16, "mamba_conv_bias": True, "mamba_proj_bias": False,
        "hidden_act": "silu", "rms_norm_eps": 1e-05, "attention_bias": False, "mlp_bias": False,
        "vocab_size": N_VOCAB, "max_position_embeddings": 256, "tie_word_embeddings": False,
        "partial_rotary_factor": 0.5,
        "rope_parameters": {"partial_rotary_factor": 0.5, "rope_theta": 10000.0, "rope_type": "default"},
        "time_step_limit": [0.0, {"__float__": "Infinity"}], "dtype": "float32"}
    write("law8-target", config, t)


def drafter(rng, embed, head):
    t = {"backbone.embeddings.weight": noisy(rng, embed, 0.3), "lm_head.weight": noisy(rng, head, 0.1),
         "backbone.norm_f.weight": ones(DIM), "backbone.layers.0.norm.weight": ones(DIM)}
    t.update(mamba2(rng, "backbone.layers.0.mixer.", 4, 8, 8))
    config = {
        "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": DIM, "num_hidden_layers": 1,
        "num_heads": 4, "head_dim": 8, "state_size": 8, "n_groups": 1, "expand": 2, "conv_kernel": 4, "chunk_size": 16,
        "time_step_limit": [0.0, {"__float__": "Infinity"}], "time_step_rank": 1, "layer_norm_epsilon": 1e-05,
        "use_bias": False, "use_conv_bias": True, "residual_in_fp32": True, "rms_norm": True, "hidden_act": "silu",
        "vocab_size": N_VOCAB, "tie_word_embeddings": False, "torch_dtype": "float32"}
    write("law8-drafter", config, t)


rng = random.Random(8)
embed = normal(rng, N_VOCAB, DIM, 1.0)
head = normal(rng, N_VOCAB, DIM, 0.36)
target(rng, embed, head)
drafter(rng, embed, head)
