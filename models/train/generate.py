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
    p.add_argument("--templates", metavar="FILE", help="for a chat model: a JSON list of texts round a beginning, which stands for {}; "
                   "each row draws one. A beginning is then a document's, and ends where a sentence does if it can")
    p.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0], help="shared out evenly")
    p.add_argument("--batch", type=int, default=2048)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return p.parse_args(argv)


NOT_OF_THE_TEXT = {"target", "out", "text", "cache", "device", "sequences", "templates"}


def beginnings(tokens, first, n, draw, batch):
    """Rows [batch,n]. Half of the beginnings are those of documents, half are from anywhere."""
    documents = torch.nonzero(tokens[:-n] == first)[:, 0]
    starts = torch.randint(len(tokens) - n, (batch,), generator=draw)
    if len(documents):
        of_documents = torch.arange(batch) % 4 < 2  # temperatures alternate by row: both get both
        starts = torch.where(of_documents, documents[torch.randint(len(documents), (batch,), generator=draw)], starts)
    return corpus.windows(tokens, starts, n)


class Templates:
    """Rows for a chat model: a template's text round the beginning of a document."""

    def __init__(self, path, tokenizer, first):
        self.first, self.parts = first, []
        for template in read_json(path):
            if not isinstance(template, str) or template.count("{}") != 1:
                raise Refusal("%s: the template %r needs one {} where the text goes" % (path, template))
            self.parts.append([tokenizer.encode(part, add_special_tokens=False).ids for part in template.split("{}")])
        pieces = [tokenizer.decode([i]) for i in range(tokenizer.get_vocab_size())]
        self.ends = [piece.rstrip(" ").endswith((".", "?", "!", "\n", ":")) for piece in pieces]

    def cut(self, row):
        """Without the document's first token and its next document, and up to the last end of a sentence in its second half."""
        row = row[1:]
        row = row[:row.index(self.first)] if self.first in row else row
        last = next((i for i in reversed(range(len(row) // 2, len(row))) if self.ends[row[i]]), len(row) - 1)
        return row[:last + 1]

    def rows(self, tokens, low, high, draw, batch, length):
        """Rows [batch,length], -1 behind what is given."""
        documents = torch.nonzero(tokens[:-high] == self.first)[:, 0]
        if not len(documents):
            raise Refusal("the text has no document's beginning before its last %d tokens" % high)
        starts, lengths, which = (torch.randint(a, b, (batch,), generator=draw).tolist() for a, b in (
            (0, len(documents)), (low, high + 1), (0, len(self.parts))))
        out = torch.full((batch, length), -1)
        for row, start, n, (before, after) in zip(out, documents[starts].tolist(), lengths, [self.parts[i] for i in which]):
            ids = before + self.cut(tokens[start:start + n + 1].tolist()) + after
            if len(ids) >= length:
                raise Refusal("a beginning in its template takes %d tokens, --length is %d" % (len(ids), length))
            row[:len(ids)] = torch.tensor(ids)
        return out


def memory_of(a, net, config):
    """Bytes, roughly: weights, KV entries and states of a batch, its logits."""
    states = sum(getattr(layer.mixer, "states", 0) * 4 * 2 * config["hidden_size"] for layer in getattr(net, "layers", ()))
    cache = 4 * config["hidden_size"] * len(getattr(net, "layers", ())) * a.length
    return sum(w.numel() * w.element_size() for w in net.parameters()) + a.batch * (states + cache + 16 * config["vocab_size"])


def options_of(a):
    return {k: v for k, v in vars(a).items() if k not in NOT_OF_THE_TEXT} | {"templates": read_json(a.templates) if a.templates else None}


def n_parts(a):
    return (a.sequences + a.batch - 1) // a.batch


def missing_parts(a):
    """{number: path} of the parts that are still to be made. The directory is for text of these options alone."""
    about = os.path.join(a.out, "generated.json")
    if os.path.exists(about) and read_json(about) != options_of(a):
        raise Refusal("%s has text of other options in it (generated.json); name another --out" % a.out)
    paths = {part: os.path.join(a.out, "part-%05d.safetensors" % part) for part in range(n_parts(a))}
    return {part: path for part, path in paths.items() if not os.path.exists(path)}


def given_rows(a, tokens, first, templates, draw):
    """Rows [batch,length] of one part, -1 behind what is given. Without templates one length a part, so that all of it is read at once."""
    low, high = a.beginning
    if templates:
        return templates.rows(tokens, low, high, draw, a.batch, a.length)
    n = int(torch.randint(low, high + 1, (1,), generator=draw))
    return torch.cat([beginnings(tokens, first, n, draw, a.batch), torch.full((a.batch, a.length - n), -1)], 1)


def make_part(a, net, part, path, rows):
    """rows(draw): what is given of the sequences of a part."""
    began, seed = time.time(), a.seed * 1_000_003 + part
    forced = rows(torch.Generator().manual_seed(seed))
    temperature = torch.tensor(a.temperature)[torch.arange(a.batch) % len(a.temperature)]
    made = sample(net, forced.to(a.device), temperature.to(a.device), seed)
    given = (forced >= 0).sum(1)
    checkpoint.save_tensors(path, {"tokens": made.to("cpu", torch.int32), "given": given.int()})
    a_second = (made.numel() - int(given.sum())) / (time.time() - began)
    print("part %d of %d: %d sequences of %d tokens, %.0f of them given, %.0f generated a second"
          % (part + 1, n_parts(a), a.batch, a.length, given.float().mean(), a_second), flush=True)


def main(argv=None):
    a = arguments(argv)
    if not 1 <= a.beginning[0] <= a.beginning[1] < a.length:
        raise Refusal("--beginning %d %d: need 1 <= LOW <= HIGH < --length %d" % (*a.beginning, a.length))
    missing = missing_parts(a)
    if not missing:
        print("%s has all its parts" % a.out)
        return 0
    net, config = checkpoint.load(a.target, a.device)
    check_memory(a.device, memory_of(a, net, config), "--batch or --length")
    tokens, _ = corpus.load_text(a.text, a.target, config, a.cache, a.repeat)
    if len(tokens) <= a.beginning[1]:
        raise Refusal("the text has %d tokens, a beginning may have %d" % (len(tokens), a.beginning[1]))
    if a.device.startswith("cuda"):
        net.half()
    tokenizer = corpus.load_tokenizer(a.target)
    first = corpus.first_token(config, tokenizer)
    templates = Templates(a.templates, tokenizer, first) if a.templates else None
    os.makedirs(a.out, exist_ok=True)
    write_json(os.path.join(a.out, "generated.json"), options_of(a))
    for part, path in missing.items():
        make_part(a, net, part, path, lambda draw: given_rows(a, tokens, first, templates, draw))
    return 0


if __name__ == "__main__":
    command(main)
