#!/usr/bin/env python3
"""examples/convert_bin.py: a model of pickle files becomes one that `spec` reads.

    check_convert_bin.py SCRIPT PROGRAM MODEL...     ends with 1 when something is lost; SKIPPED without PyTorch

MODEL's tensors go to a pytorch_model.bin, and to shards with an index; where its config ties the head, that is there too and is the
embedding itself. What the script makes of either has the same tensors and small files, may be read by whoever may read a new file, and
says the same."""
import json
import os
import shutil
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file
except ImportError as e:
    print("SKIPPED: the Python packages torch and safetensors are needed:", e)
    sys.exit(0)

SMALL = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")


def pickles(model, directory, shards):
    """MODEL as `directory`; returns its tensors."""
    tensors = load_file(os.path.join(model, "model.safetensors"))
    os.mkdir(directory)
    for name in SMALL:
        if os.path.exists(os.path.join(model, name)):
            shutil.copyfile(os.path.join(model, name), os.path.join(directory, name))
    with open(os.path.join(directory, "chat_template.jinja"), "w", encoding="utf-8") as f:
        f.write("{{ messages }}")
    saved = dict(tensors)
    with open(os.path.join(model, "config.json"), encoding="utf-8") as f:
        if json.load(f).get("tie_word_embeddings") and shards == 1:  # of shards each is a storage of its own
            saved["lm_head.weight"] = next(t for name, t in tensors.items() if name.endswith(("embeddings.weight", "embed_tokens.weight")))
    names = sorted(saved)
    parts = [names[i::shards] for i in range(shards)]
    files = ["pytorch_model.bin"] if shards == 1 else [f"pytorch_model-{i}.bin" for i in range(shards)]
    for file, part in zip(files, parts):
        torch.save({name: saved[name] for name in part}, os.path.join(directory, file))
    if shards > 1:
        with open(os.path.join(directory, "pytorch_model.bin.index.json"), "w", encoding="utf-8") as f:
            json.dump({"weight_map": {name: file for file, part in zip(files, parts) for name in part}}, f)
    return tensors


def ids_of(program, model):
    return subprocess.run([program, "run", model, "-p", "Once upon a time", "-n", "16", "--ids"], check=True, capture_output=True).stdout


def check(script, program, model, work, shards):
    source, out = os.path.join(work, f"bin{shards}"), os.path.join(work, f"out{shards}")
    tensors = pickles(model, source, shards)
    os.umask(0o022)
    command = [sys.executable, script, source, "-o", out]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    path = os.path.join(out, "model.safetensors")
    made = load_file(path)
    assert made.keys() == tensors.keys() and all(torch.equal(made[k], tensors[k]) for k in made), "other tensors"
    assert os.stat(path).st_mode & 0o777 == 0o644, f"its mode is {os.stat(path).st_mode & 0o777:o}"
    assert ids_of(program, out) == ids_of(program, model), "other text"
    info = json.loads(subprocess.run([program, "info", out, "--json"], check=True, capture_output=True).stdout)
    assert info["chat_template"] == "{{ messages }}", "the chat template is lost"
    assert subprocess.run(command, capture_output=True).returncode == 1, "a model that is there was written over"


def main():
    script, program, *models = sys.argv[1:]
    for model in models:
        with tempfile.TemporaryDirectory() as work:
            for shards in (1, 2):
                check(script, program, model, work, shards)
    print("what the script makes of pickle files is the model")


main()
