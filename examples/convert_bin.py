#!/usr/bin/env python3
"""Writes model.safetensors from pytorch_model.bin, which spec does not read (it is a pickle: a program).

    pip install torch safetensors
    python convert_bin.py MODEL_DIR [-o OUT_DIR]

MODEL_DIR holds pytorch_model.bin, or pytorch_model.bin.index.json and its shards. Without -o the result is written
beside them. With -o the small files that a model needs (configuration, tokenizer) are copied, too.

Only tensors are unpickled (torch.load with weights_only=True): a file that carries code is refused. Tensors that
share memory (tied embeddings, as in state-spaces/mamba-*) become one tensor when they are the same, and copies when
one is a part of the other; safetensors has no sharing. Nothing is converted: every tensor keeps its type.

All tensors are held in memory at once, mapped from the file where its format allows it.
"""
import argparse
import json
import os
import shutil
import sys

SINGLE, INDEX, OUT = "pytorch_model.bin", "pytorch_model.bin.index.json", "model.safetensors"
SMALL = ("config.json", "mamba_config.json", "generation_config.json", "tokenizer.json", "tokenizer.model",
         "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja", "vocab.json", "merges.txt")


def files_of(directory):
    """The names of the pickle files; a name in the index that leads out of the directory is an error."""
    if os.path.exists(os.path.join(directory, SINGLE)):
        return [SINGLE]
    index = os.path.join(directory, INDEX)
    if not os.path.exists(index):
        sys.exit(f"{directory}: neither {SINGLE} nor {INDEX} is there")
    with open(index, encoding="utf-8") as f:
        names = sorted(set(json.load(f)["weight_map"].values()))
    for name in names:
        if os.path.basename(name) != name or name in ("", ".", ".."):
            sys.exit(f"{index}: {name!r} is not the name of a file beside it")
    return names


def load(path):
    import torch
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # files of torch < 1.6 cannot be mapped
        return torch.load(path, map_location="cpu", weights_only=True)


def tensors_of(directory):
    import torch
    tensors = {}
    for name in files_of(directory):
        path = os.path.join(directory, name)
        state = load(path)
        state = state.get("state_dict", state) if isinstance(state, dict) else state
        if not isinstance(state, dict):
            sys.exit(f"{path}: expected a dictionary of tensors, found {type(state).__name__}")
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                sys.exit(f"{path}: {key} is {type(value).__name__}, expected a tensor")
            if key in tensors:
                sys.exit(f"{path}: {key} is in an earlier file, too")
            tensors[key] = value
    return tensors


def unshare(tensors):
    """Drops a head that is the embedding itself; copies whatever else shares memory."""
    seen, out = {}, {}
    for key in sorted(tensors, key=lambda k: (k.startswith("lm_head") or k.startswith("embed_out"), k)):
        t = tensors[key]
        place = (t.untyped_storage().data_ptr(), t.storage_offset(), tuple(t.shape), tuple(t.stride()))
        if t.numel() > 0 and place in seen:
            print(f"{key} is {seen[place]}: written once")
            continue
        seen[place] = key
        out[key] = t.contiguous()
    used = set()
    for key, t in out.items():  # parts of one storage
        storage = t.untyped_storage().data_ptr()
        if storage in used:
            out[key] = t.clone()
        used.add(storage)
    return out


def check_tied(directory, before, after):
    """A tensor may be left out only if config.json ties it, for that is what tells the reader."""
    dropped = set(before) - set(after)
    path = os.path.join(directory, "config.json")
    config = {}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as f:
            config = json.load(f)
    by_default = config.get("model_type", "mamba") == "mamba"  # also the original state-spaces layout
    tied = config.get("tie_word_embeddings", config.get("tie_embeddings", by_default))
    for key in dropped:
        if not tied or not key.startswith(("lm_head", "embed_out")):
            after[key] = before[key].clone().contiguous()
            print(f"{key} is kept as a copy: config.json does not tie it")


def may_read_as_others(path):
    """safetensors makes files that their owner alone may read; this one gets the mode that new files have."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)


def main():
    parser = argparse.ArgumentParser(description="pytorch_model.bin to model.safetensors")
    parser.add_argument("model_dir")
    parser.add_argument("-o", "--out", help="directory to write to; default: MODEL_DIR")
    args = parser.parse_args()
    out_dir = args.out or args.model_dir
    path = os.path.join(out_dir, OUT)
    if os.path.exists(path):
        sys.exit(f"{path} is already there")

    from safetensors.torch import save_file
    before = tensors_of(args.model_dir)
    after = unshare(before)
    check_tied(args.model_dir, before, after)
    os.makedirs(out_dir, exist_ok=True)
    part = path + ".part"
    save_file(after, part, metadata={"format": "pt"})
    may_read_as_others(part)
    os.replace(part, path)
    for name in SMALL:
        source = os.path.join(args.model_dir, name)
        if os.path.exists(source) and os.path.realpath(out_dir) != os.path.realpath(args.model_dir):
            shutil.copy(source, os.path.join(out_dir, name))
    print(f"{path}: {len(after)} tensors, {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
