"""Writes what a target says after beginnings of text, for distil.py: half of it greedy, half drawn at T = 1. Each part is written
whole; the same command goes on with the parts that are missing.

    python models/train/generate.py TARGET --out DIR --text CORPUS... --sequences N"""
import argparse
import os
import time

import torch

import checkpoint
import corpus
from files import Refusal, command, read_json, write_json
from run import check_memory
from sample import sample


def arguments(argv=None):
    p = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("target")
    p.add_argument("--out", required=True)
    p.add_argument("--text", nargs="+", required=True)
    p.add_argument("--repeat", nargs="*", default=[], metavar="NAME=N")
    p.add_argument("--cache")
    p.add_argument("--sequences", type=int, default=16384)
    p.add_argument("--length", type=int, default=512, help="of a sequence, its beginning counted in")
    p.add_argument("--beginning", type=int, nargs=2, default=[16, 192], metavar=("LOW", "HIGH"), help="tokens of text that it begins with")
    p.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="shared out evenly")
    p.add_argument("--batch", type=int, default=2048)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return p.parse_args(argv)


NOT_OF_THE_TEXT = {"target", "out", "text", "cache", "device", "sequences"}


def beginnings(tokens, first, n, draw, batch):
    """Half of the beginnings are those of documents, half are from anywhere."""
    documents = torch.nonzero(tokens[:-n] == first)[:, 0]
    starts = torch.randint(len(tokens) - n, (batch,), generator=draw)
    if len(documents):
        of_documents = torch.arange(batch) % 4 < 2  # temperatures alternate by row: both get both
        starts = torch.where(of_documents, documents[torch.randint(len(documents), (batch,), generator=draw)], starts)
    return corpus.windows(tokens, starts, n)


def memory_of(a, net, config):
    """Bytes, roughly: weights, KV entries and states of a batch, its logits."""
    states = sum(getattr(layer.mixer, "states", 0) * 4 * 2 * config["hidden_size"] for layer in getattr(net, "layers", ()))
    cache = 4 * config["hidden_size"] * len(getattr(net, "layers", ())) * a.length
    return sum(w.numel() * w.element_size() for w in net.parameters()) + a.batch * (states + cache + 16 * config["vocab_size"])


def main(argv=None):
    a = arguments(argv)
    if not 1 <= a.beginning[0] <= a.beginning[1] < a.length:
        raise Refusal("--beginning %d %d: need 1 <= LOW <= HIGH < --length %d" % (*a.beginning, a.length))
    net, config = checkpoint.load(a.target, a.device)
    check_memory(a.device, memory_of(a, net, config), "--batch or --length")
    options = {k: v for k, v in vars(a).items() if k not in NOT_OF_THE_TEXT}
    os.makedirs(a.out, exist_ok=True)
    about = os.path.join(a.out, "generated.json")
    if os.path.exists(about) and read_json(about) != options:
        raise Refusal("%s has text of other options in it (generated.json); name another --out" % a.out)
    write_json(about, options)
    tokens, _ = corpus.load_text(a.text, a.target, config, a.cache, a.repeat)
    if len(tokens) <= a.beginning[1]:
        raise Refusal("the text has %d tokens, a beginning may have %d" % (len(tokens), a.beginning[1]))
    if a.device.startswith("cuda"):
        net.half()
    parts = (a.sequences + a.batch - 1) // a.batch
    for part in range(parts):
        path = os.path.join(a.out, "part-%05d.safetensors" % part)
        if os.path.exists(path):
            continue
        began = time.time()
        draw = torch.Generator().manual_seed(a.seed * 1_000_003 + part)
        low, high = a.beginning  # one length a part, so that its sequences are in step
        n = int(torch.randint(low, high + 1, (1,), generator=draw))
        given = beginnings(tokens, corpus.first_token(config), n, draw, a.batch)
        forced = torch.cat([given, torch.full((a.batch, a.length - n), -1)], 1).to(a.device)
        temperature = torch.tensor(a.temperature)[torch.arange(a.batch) % len(a.temperature)].to(a.device)
        made = sample(net, forced, temperature, a.seed * 1_000_003 + part)
        checkpoint.save_tensors(path, {"tokens": made.to("cpu", torch.int32)})
        print("part %d of %d: %d sequences, %d tokens given, %.0f tokens/s" % (part + 1, parts, a.batch, n, made.numel() / (time.time() - began)), flush=True)
    return 0


if __name__ == "__main__":
    command(main)
