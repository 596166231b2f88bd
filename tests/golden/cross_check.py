"""Checks the goldens by a second route.

    python cross_check.py

1. every case whose golden transformers made is run again with plain_reference.py (float64);
2. state-spaces layouts made with plain_reference.py are renamed to the transformers layout and run with transformers;
3. MambaInLlama becomes a Bamba network (rows of x and B repeated, whole-head rotation) and is run with transformers.
Prints the largest difference relative to the largest |logit|; about 1e-6 is rounding of float32.
"""
import math
import os
import tempfile

import torch
from safetensors.torch import load_file, save_file

import make_models
import plain_reference

HERE = os.path.dirname(os.path.abspath(__file__))


def report(name, a, b, worst):
    d = ((a - b).abs().max() / b.abs().max()).item()
    print(f"{name}: {d:.1e}", flush=True)
    return max(worst, d)


def main():
    import transformers
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    worst = 0.0
    for case in make_models.CASES:
        directory = os.path.join(HERE, case.name)
        golden = load_file(os.path.join(directory, "golden.safetensors"))
        ids, want = golden["ids"].tolist(), golden["logits"]
        if case.family in ("original", "hybrid"):
            keys = load_file(os.path.join(directory, "keys.safetensors"))
            worst = report(case.name + " with transformers",
                           elsewhere(case, directory, case.config, case.mamba, ids), want, worst)
            for k in case.keys:
                if k.expect != "logits" or k.name in ("norm_before_gate", "rmsnorm_false", "rms_norm_eps"):
                    continue                                # no such switch in transformers
                config = case.config if k.file != "config.json" else make_models.apply(case.config, k.patch)
                mamba = case.mamba if k.file == "config.json" else make_models.apply(case.mamba, k.patch)
                got = elsewhere(case, os.path.join(directory, k.name) if k.fresh else directory, config, mamba, ids)
                worst = report(f"  {k.name}", got[make_models.TAIL:], keys["logits." + k.name], worst)
            continue
        worst = report(case.name + " with plain_reference", plain_reference.run(directory, ids), want, worst)
        keys = load_file(os.path.join(directory, "keys.safetensors")) if case.keys else {}
        for k in case.keys:
            if k.expect != "logits" or k.name.endswith("removed") or "auto" in k.name:
                continue
            config = make_models.apply(case.config, k.patch)
            got = plain_reference.run(directory, ids, config,
                                      weights=os.path.join(directory, k.name) if k.fresh else None)
            worst = report(f"  {k.name}", got[make_models.TAIL:], keys["logits." + k.name], worst)
    print(f"worst {worst:.1e}")


def elsewhere(case, directory, config, mamba, ids):
    """Logits of a plain_reference case by transformers."""
    w = {k: v.float() for k, v in load_file(os.path.join(directory, "model.safetensors")).items()}
    if case.family == "original":
        config, family = translate(config), "mamba"
        w = {k.replace("embedding.", "embeddings."): v.clone() for k, v in w.items()}
        if config["tie_word_embeddings"]:
            w.pop("lm_head.weight", None)
    else:
        w, config = as_bamba(w, config, mamba)
        family = "bamba"
    with tempfile.TemporaryDirectory() as tmp:
        save_file(w, os.path.join(tmp, "model.safetensors"), metadata={"format": "pt"})
        return make_models.reference(make_models.Case(case.name, family, config), tmp, config, None, ids)


def as_bamba(w, c, m):
    heads, n, d_inner, d_xb = m["ssm_cfg"]["ngroups"], m["ssm_cfg"]["d_state"], m["d_inner"], m["d_xb"]
    hd = d_inner // heads

    def widen(x, z):
        """x: rows [z][d_xb][d_xb][heads * n][rest]; each block of x and B becomes d_inner / d_xb equal blocks."""
        a, b, c, rest = x[:z], x[z:z + d_xb], x[z + d_xb:z + 2 * d_xb], x[z + 2 * d_xb:]
        b, c = (torch.cat([t[i:i + hd] for i in range(0, d_xb, hd) for _ in range(d_inner // d_xb)]) for t in (b, c))
        return torch.cat([a, b, c, rest])
    out = {}
    for k, v in w.items():
        if "mamba.in_proj" in k:
            v = widen(v, d_inner)
        elif "mamba.conv1d" in k:
            v = widen(v, 0)
        k = k.replace(".mlp.", ".feed_forward.").replace("post_attention_layernorm", "pre_ff_layernorm")
        out[k.replace("model.norm.", "model.final_layernorm.")] = v.clone()
    rope = {"rope_type": "default", **(c["rope_scaling"] or {}), "rope_theta": c["rope_theta"], "partial_rotary_factor": 1.0}
    keep = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "hidden_act", "rms_norm_eps", "vocab_size", "tie_word_embeddings", "max_position_embeddings")
    return out, {"model_type": "bamba", **{k: c[k] for k in keep}, "rope_parameters": rope,
                 "attn_layer_indices": m["attn_layers"], "mamba_n_heads": heads, "mamba_d_head": hd,
                 "mamba_n_groups": heads, "mamba_d_state": n, "mamba_d_conv": 4, "mamba_expand": 1}


def translate(c):
    """config.json of the state-spaces layout as transformers would have written it."""
    s = c.get("ssm_cfg") or {}
    multiple = c["pad_vocab_size_multiple"]
    out = {"hidden_size": c["d_model"], "num_hidden_layers": c["n_layer"], "expand": s.get("expand", 2),
           "conv_kernel": s.get("d_conv", 4), "vocab_size": -(-c["vocab_size"] // multiple) * multiple,
           "tie_word_embeddings": c.get("tie_embeddings", True), "layer_norm_epsilon": 1e-5, "use_bias": s.get("bias", False),
           "use_conv_bias": s.get("conv_bias", True), "residual_in_fp32": True}
    if s.get("layer", "Mamba1") == "Mamba1":
        return {"model_type": "mamba", "state_size": s.get("d_state", 16), **out,
                "time_step_rank": s.get("dt_rank", math.ceil(c["d_model"] / 16))}
    return {"model_type": "mamba2", "state_size": s.get("d_state", 128), "head_dim": s.get("headdim", 64),
            "num_heads": out["expand"] * c["d_model"] // s.get("headdim", 64), "n_groups": s.get("ngroups", 1),
            "chunk_size": 256, "time_step_limit": s.get("dt_limit", [0.0, math.inf]), **out}


if __name__ == "__main__":
    main()
