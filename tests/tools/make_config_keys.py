"""Makes tests/config_keys.json: every key that the configuration class of each family has in transformers (5.24.0), changed
in turn, and what the class makes of it.

    pip install transformers torch
    python make_config_keys.py GOLDEN_DIR > ../config_keys.json

{family: {key: {"value": the changed value, "effect": "same" | "logits" | "refused"}}}. The base is the golden model's
config.json, with random weights. same: the logits are the same to 1e-5 of the largest (chunks round otherwise); logits: they
differ; refused: the class fails, or its tensors have other names or shapes.
"""
import json
import os
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM

FAMILIES = ["llama2", "mistral", "qwen2", "qwen3", "granite", "phi3", "gemma", "seed_oss", "ministral", "smollm3", "gemma2", "gemma3", "glm4", "exaone4", "olmo2",
            "olmo3", "gpt_neox",
            "mamba", "mamba2", "bamba", "lfm2", "falcon", "falcon-new", "exaone", "codegen",
            "gpt_neox_japanese", "cwm"]
LEFT_OUT = {"model_type", "architectures", "transformers_version", "auto_map"}  # read before the class is


def changed(key, v):
    """Another value of the same kind; one that stands for a list or a number where there was none."""
    if key == "rope_parameters":
        return dict(v or {"rope_type": "default"}, rope_theta=77.0)
    if isinstance(v, bool):
        return not v
    if isinstance(v, int):
        return v + 1 if v else 3
    if isinstance(v, float):
        return v * 2 if v else 0.5
    if isinstance(v, str):
        return {"silu": "relu", "gelu": "relu", "gelu_pytorch_tanh": "relu"}.get(v, "other")
    if isinstance(v, list):
        return list(reversed(v)) if list(reversed(v)) != v else v[:-1]
    return {"a": 1} if isinstance(v, dict) else 3


def logits_of(config, weights):
    torch.manual_seed(1)
    # Falcon's class leaves out the causal mask where output_attentions meets another implementation.
    how = {"attn_implementation": "eager"} if config.model_type == "falcon" else {}
    model = AutoModelForCausalLM.from_config(config, **how).eval().float()
    if weights is None:
        weights = {k: torch.randn_like(v) * 0.3 for k, v in model.state_dict().items()}
    model.load_state_dict(weights)
    ids = torch.arange(40)[None] * 7 % 90
    with torch.no_grad():
        return weights, model(ids, use_cache=False).logits


def effect_of(kind, base, weights, logits):
    try:
        found = logits_of(kind.from_dict(base), weights)[1]
    except Exception:  # whatever the class fails with
        return "refused"
    return "same" if (found - logits).abs().max() <= 1e-5 * logits.abs().max() else "logits"


def main():
    out = {}
    for family in FAMILIES:
        with open(os.path.join(sys.argv[1], family, "config.json"), encoding="utf-8") as f:
            written = json.load(f)
        config = AutoConfig.from_pretrained(os.path.join(sys.argv[1], family))
        kind, base = type(config), config.to_dict()
        weights, logits = logits_of(kind.from_dict(dict(base)), None)
        out[family] = {}
        for key, value in base.items():
            if key in LEFT_OUT:
                continue
            new = changed(key, value)
            patched = json.loads(json.dumps(written))
            patched[key] = new
            out[family][key] = {"value": new, "effect": effect_of(kind, patched, weights, logits)}
    print("{" + ",\n".join(f'"{f}": {{\n' + ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in keys.items()) + "\n}"
                           for f, keys in out.items()) + "}")


if __name__ == "__main__":
    main()
