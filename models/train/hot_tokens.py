"""Picks the tokens that are frequent in text: the hot tokens of a Lyanna head's token info, or an EAGLE-3 head's draft vocabulary.

    python models/train/hot_tokens.py TARGET --text CORPUS... [--generated DIR...] --count 8192 --out HOT.json"""
import torch

import checkpoint
import corpus
import trainer
from files import Refusal, command, write_json


def hot_ids(streams, vocab, count):
    """(the `count` most frequent ids, ascending; the share of tokens that they are). Streams, each int32 [n], count alike: a small one that
    the target generated is not drowned by its corpus. Ties go to the smaller id."""
    if not 1 <= count <= vocab:
        raise Refusal("%d hot tokens of a vocabulary of %d" % (count, vocab))
    share = sum(torch.bincount(s.long(), minlength=vocab).double() / len(s) for s in streams) / len(streams)
    ids = share.sort(descending=True, stable=True).indices[:count]
    return ids.sort().values, float(share[ids].sum())


def main(argv=None):
    p = trainer.parser(__doc__)
    p.add_argument("target")
    p.add_argument("--text", nargs="+", required=True)
    p.add_argument("--repeat", nargs="*", default=[], metavar="NAME=N")
    p.add_argument("--generated", nargs="*", default=[])
    p.add_argument("--cache")
    p.add_argument("--count", type=int, required=True)
    p.add_argument("--out", required=True, help="a JSON list")
    a = p.parse_args(argv)
    config = checkpoint.read_config(a.target)
    text, _ = corpus.load_text(a.text, a.target, config, a.cache, a.repeat)
    ids, share = hot_ids([text] + ([corpus.load_generated(a.generated, config)] if a.generated else []), config["vocab_size"], a.count)
    write_json(a.out, ids.tolist())
    print("%d of %d tokens are %.2f %% of the text" % (a.count, config["vocab_size"], 100 * share))
    return 0


if __name__ == "__main__":
    command(main)
