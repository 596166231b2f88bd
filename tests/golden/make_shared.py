"""Goldens of the small trained models.

    python make_shared.py SHARED_DIR [model ...]

SHARED_DIR holds models/<name>/ and data/prompts/*.jsonl. Writes shared/<name>.safetensors beside this file.
The bfloat16 weights are upcast to float32; transformers computes in float32 on one thread.
"""
import json
import math
import os
import sys

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
TARGETS = ("llama-target", "hybrid-target", "mamba2-target", "demo-target")
N_IDS, STRIDE, N_PROMPT, N_MAX, N_NEW = 64, 8, 20, 96, 256


def prompts(shared, name):
    with open(os.path.join(shared, "data", "prompts", name)) as f:
        return [json.loads(line)["prompt"] for line in f]


def greedy_prompts(shared, tok):
    """Two texts of each file, id 0 then 19..89 tokens: lengths 20..90 in even steps."""
    files = sorted(f for f in os.listdir(os.path.join(shared, "data", "prompts")) if f.endswith(".jsonl"))
    out = []
    for i in range(N_PROMPT):
        n = 20 + (70 * i) // (N_PROMPT - 1)
        for j in range(len(files)):                         # the next file when all texts of one are too short
            texts = prompts(shared, files[(i + j) % len(files)])
            start = (7 * i) % len(texts)
            every = ([0] + tok.encode(t, add_special_tokens=False).ids for t in texts[start:] + texts[:start])
            long_enough = [x for x in every if len(x) >= n]
            if long_enough:
                out.append(long_enough[0][:n])
                break
    return out


def check_config(model):
    limit = getattr(model.config, "time_step_limit", None)
    if limit is not None and tuple(map(float, limit)) != (0.0, math.inf):
        raise RuntimeError(f"time_step_limit read as {limit}")


def continue_greedily(model, ids):
    """One token at a time with a cache, then checked against one pass over the whole sequence."""
    tokens, gaps, cache = [], [], None
    step, first = torch.tensor([ids]), 0
    with torch.no_grad():
        for _ in range(N_NEW):
            if model.config.model_type.startswith("mamba"):
                kwargs = {"cache_params": cache}
            else:               # positions must be given: BambaModel.forward counts from 0 in every call
                kwargs = {"past_key_values": cache,
                          "position_ids": torch.arange(first, first + step.shape[1])[None]}
            first += step.shape[1]
            out = model(input_ids=step, use_cache=True, **kwargs)
            cache = out.cache_params if "cache_params" in kwargs else out.past_key_values
            top = out.logits[0, -1].float().topk(2)
            tokens.append(top.indices[0].item())
            gaps.append((top.values[0] - top.values[1]).item())
            step = top.indices[:1][None]
        whole = model(input_ids=torch.tensor([ids + tokens]), use_cache=False).logits[0, len(ids) - 1:-1].float()
    top = whole.topk(2)
    wrong = (top.indices[:, 0] != torch.tensor(tokens)).nonzero().flatten().tolist()
    off = (top.values[:, 0] - top.values[:, 1] - torch.tensor(gaps)).abs().max().item()
    if off > 1e-3 or any(gaps[i] > 1e-3 for i in wrong):
        raise RuntimeError(f"cached and whole passes disagree: {len(wrong)} tokens, gap by {off:.1e}")
    return tokens, gaps


def main():
    shared = sys.argv[1]
    import transformers
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    os.makedirs(os.path.join(HERE, "shared"), exist_ok=True)
    for name in sys.argv[2:] or sorted(os.listdir(os.path.join(shared, "models"))):
        directory = os.path.join(shared, "models", name)
        if not os.path.isdir(directory):
            continue
        tok = Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
        kwargs = {} if name.startswith("mamba") or name == "demo-drafter" else {"attn_implementation": "eager"}
        model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, **kwargs).eval()
        check_config(model)
        text = prompts(shared, "long_context.jsonl")[0]
        ids = ([0] + tok.encode(text, add_special_tokens=False).ids)[:N_IDS]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
        t = {"ids": torch.tensor(ids, dtype=torch.int32), "logits": logits[:, ::STRIDE].contiguous(),
             "row_max": logits.abs().max(dim=1).values, "argmax": logits.argmax(dim=1).to(torch.int32)}
        loss = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:])).item()
        print(f"{name}: max |logit| {logits.abs().max():.2f}, loss on the text {loss:.2f} nats", flush=True)
        if name in TARGETS:
            ps = greedy_prompts(shared, tok)
            prompt_ids = torch.full((N_PROMPT, N_MAX), -1, dtype=torch.int32)
            greedy, gap = [], []
            for i, p in enumerate(ps):
                prompt_ids[i, :len(p)] = torch.tensor(p, dtype=torch.int32)
                a, b = continue_greedily(model, p)
                greedy.append(a)
                gap.append(b)
            t["prompt_ids"], t["greedy"] = prompt_ids, torch.tensor(greedy, dtype=torch.int32)
            t["gap"] = torch.tensor(gap, dtype=torch.float32)
            print(f"  greedy: smallest gap {t['gap'].min():.2e}, {len(set(sum(greedy, [])))} distinct tokens, e.g. "
                  f"{tok.decode(greedy[3][:40])!r}", flush=True)
        save_file(t, os.path.join(HERE, "shared", name + ".safetensors"))


if __name__ == "__main__":
    main()
