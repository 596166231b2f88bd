"""Writes what a target has generated in the tokens of another tokenizer, so that distil.py makes a drafter with that vocabulary: the
distributions of other tokens are not to be had, so each token of the text stands for one (sequence-level distillation, Kim and Rush 2016).

    python models/train/translate.py TARGET TOKENIZER_DIR --generated DIR... --out DIR
    python models/train/distil.py DIR --logits DIR --out DRAFTER ...

DIR becomes a directory of logits that also has the tokenizer, and a config.json of its vocabulary in place of a target's."""
import os

import torch

import checkpoint
import corpus
import trainer
from files import Refusal, command, write_json


def texts_of(tokens, ends, tokenizer):
    """Strings between the tokens that end one."""
    places = torch.isin(tokens, ends).nonzero()[:, 0].tolist() + [len(tokens)]
    begins = [0] + [p + 1 for p in places[:-1]]
    return tokenizer.decode_batch([tokens[a:b].tolist() for a, b in zip(begins, places) if b > a], skip_special_tokens=True)


def config_of(tokenizer):
    """What a model with this tokenizer says of it. Its texts begin and end with the same token."""
    end = next((i for i in map(tokenizer.token_to_id, (corpus.SEPARATOR, "</s>", "<|end_of_text|>")) if i is not None), None)
    if end is None:
        raise Refusal("the tokenizer has no %s, </s> or <|end_of_text|>, which ends a text" % corpus.SEPARATOR)
    return {"model_type": "mamba2", "vocab_size": tokenizer.get_vocab_size(), "bos_token_id": end, "eos_token_id": end, "pad_token_id": end}


def rows_of(tokens, length):
    """(rows [N,length], the token behind each [N,length,1]) of one stream; what is left at its end is dropped."""
    n = (len(tokens) - 1) // length
    if n < 1:
        raise Refusal("the text has %d tokens in the other vocabulary; --length is %d" % (len(tokens), length))
    return tokens[:n * length].view(n, length), tokens[1:n * length + 1].clone().view(n, length, 1)


def main(argv=None):
    p = trainer.parser(__doc__)
    p.add_argument("target")
    p.add_argument("tokenizer", help="a directory with tokenizer.json")
    p.add_argument("--generated", nargs="+", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--length", type=int, default=512, help="of a row")
    a = p.parse_args(argv)
    config, own, other = checkpoint.read_config(a.target), corpus.load_tokenizer(a.target), corpus.load_tokenizer(a.tokenizer)
    new = config_of(other)
    texts = texts_of(corpus.load_generated(a.generated, config), corpus.end_tokens(config), own)
    encoded = [e.ids for e in other.encode_batch_fast(texts, add_special_tokens=False)]
    tokens = torch.cat([torch.tensor([new["bos_token_id"]] + ids, dtype=torch.int32) for ids in encoded])
    rows, behind = rows_of(tokens, a.length)
    os.makedirs(a.out, exist_ok=True)
    checkpoint.copy_tokenizer(a.tokenizer, a.out)
    write_json(os.path.join(a.out, "config.json"), new)
    checkpoint.save_tensors(os.path.join(a.out, "part-00000.safetensors"),
                            {"tokens": rows, "top_ids": behind, "top_probs": torch.ones(behind.shape, dtype=torch.float16)})
    print("%d texts: %.2f M tokens in the other vocabulary, %d rows" % (len(texts), len(tokens) / 1e6, len(rows)))
    return 0


if __name__ == "__main__":
    command(main)
