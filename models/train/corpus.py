"""Training text as one tensor of token ids, and token files that a target has generated.

A text file is UTF-8, plain or packed with xz; a line `<|endoftext|>` ends each document. Every document begins with that token if the
model has it, else with its BOS token. The last hundredth of each file is held back: it is for measuring, never for training."""
import glob
import hashlib
import lzma
import os
import re

import torch
from safetensors import safe_open
from tokenizers import Tokenizer

import checkpoint
from files import Refusal

SEPARATOR = "<|endoftext|>"
HELD_BACK = 0.01
CONTROL = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")


def text_files(paths):
    """Files named, and the *.txt and *.txt.xz of directories named."""
    found = []
    for path in paths:
        if os.path.isdir(path):
            found += sorted(glob.glob(os.path.join(path, "*.txt")) + glob.glob(os.path.join(path, "*.txt.xz")))
        elif os.path.exists(path):
            found.append(path)
        else:
            raise Refusal("there is no %s" % path)
    if not found:
        raise Refusal("no *.txt or *.txt.xz in %s" % ", ".join(paths))
    return found


def read_text(path):
    try:
        with (lzma.open if path.endswith(".xz") else open)(path, "rb") as f:
            raw = f.read()
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refusal("%s is not UTF-8 text: byte %d is 0x%02x. Pack text as .txt or .txt.xz"
                      % (path, error.start, error.object[error.start]))
    except (lzma.LZMAError, EOFError, OSError) as error:
        raise Refusal("%s cannot be unpacked: %s" % (path, error))
    control = CONTROL.search(text)
    if control:
        raise Refusal("%s is not text: character %d is the control character 0x%02x" % (path, control.start(), ord(control.group())))
    if not text.strip():
        raise Refusal("%s has no text in it" % path)
    return text


def documents_of(text):
    return [d.strip("\n") for d in re.split(r"^%s$" % re.escape(SEPARATOR), text, flags=re.M) if d.strip()]


def load_tokenizer(directory):
    path = os.path.join(directory, "tokenizer.json")
    if not os.path.exists(path):
        raise Refusal("%s has no tokenizer.json, which turns text into the model's tokens" % directory)
    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the loader raises plain Exception
        raise Refusal("%s cannot be read: %s" % (path, error))
    tokenizer.no_truncation()
    return tokenizer


def first_token(config, tokenizer):
    """The token that begins a document."""
    own = tokenizer.token_to_id(SEPARATOR)
    for value in (own, config.get("bos_token_id"), config.get("eos_token_id")):
        value = value[0] if isinstance(value, list) else value
        if value is not None:
            return value
    raise Refusal("config.json names neither bos_token_id nor eos_token_id, and the tokenizer has no %s: nothing begins a document"
                  % SEPARATOR)


def encode_file(path, tokenizer, first, cache):
    """Tokens int32 of a file. With a cache directory they are read back the next time."""
    kept = None
    if cache:
        os.makedirs(cache, exist_ok=True)
        stat = os.stat(path)
        own = hashlib.sha1(tokenizer.to_str().encode()).hexdigest()
        key = "%s %d %d %d %s" % (os.path.basename(path), stat.st_size, stat.st_mtime_ns, first, own)
        kept = os.path.join(cache, hashlib.sha1(key.encode()).hexdigest() + ".safetensors")
        if os.path.exists(kept):
            with safe_open(kept, "pt") as file:
                return file.get_tensor("tokens")
    documents = documents_of(read_text(path))
    if not documents:
        raise Refusal("%s has no text in it, but %s" % (path, SEPARATOR))
    encodings = tokenizer.encode_batch_fast(documents, add_special_tokens=False)
    tokens = torch.cat([torch.tensor([first] + e.ids, dtype=torch.int32) for e in encodings])
    if kept:
        checkpoint.save_tensors(kept, {"tokens": tokens})
    return tokens


def load_text(paths, directory, config, cache=None, repeat=(), say=print):
    """(training tokens, [held-back tokens of each file]). repeat: "NAME=N" counts the files whose name begins with NAME N times."""
    times = {}
    for item in repeat:
        name, _, n = item.partition("=")
        if not n.isdigit() or int(n) < 1:
            raise Refusal("--repeat %s is not NAME=N with N from 1" % item)
        times[name] = int(n)
    tokenizer = load_tokenizer(directory)
    first = first_token(config, tokenizer)
    train, held = [], []
    for path in text_files(paths):
        name = os.path.basename(path)
        tokens = encode_file(path, tokenizer, first, cache)
        if int(tokens.max()) >= config["vocab_size"]:
            raise Refusal("the tokenizer of %s gives token %d, its model has %d" % (directory, int(tokens.max()), config["vocab_size"]))
        keep = len(tokens) - int(len(tokens) * HELD_BACK)
        n = next((n for prefix, n in times.items() if name.startswith(prefix)), 1)
        train += [tokens[:keep]] * n
        held.append(tokens[keep:])
        say("%s: %.1f M tokens%s" % (name, len(tokens) / 1e6, ", %d times" % n if n > 1 else ""))
    return torch.cat(train), held


def windows(tokens, starts, length):
    """Rows of `length` tokens at each start, int64."""
    return tokens[starts[:, None] + torch.arange(length, device=tokens.device)].long()


def end_tokens(config):
    ends = config.get("eos_token_id")
    return torch.tensor(ends if isinstance(ends, list) else [] if ends is None else [ends], dtype=torch.int32)


def load_logits(directory, config):
    """What a target said of text, computed elsewhere: (tokens [N,T] int32, the k likeliest ids behind each [N,T,k] int32, their
    probabilities [N,T,k]), of the files part-*.safetensors with `tokens`, `top_ids` and `top_probs`."""
    names = sorted(glob.glob(os.path.join(directory, "part-*.safetensors")))
    if not names:
        raise Refusal("%s has no part-*.safetensors with logits" % directory)
    parts = []
    for name in names:
        with safe_open(name, "pt") as file:
            missing = {"tokens", "top_ids", "top_probs"} - set(file.keys())
            if missing:
                raise Refusal("%s has no tensor %s" % (name, " and no ".join(sorted(missing))))
            tokens, ids, probs = (file.get_tensor(key) for key in ("tokens", "top_ids", "top_probs"))
        if tokens.dim() != 2 or ids.dim() != 3 or ids.shape[:2] != tokens.shape or probs.shape != ids.shape:
            raise Refusal("%s: tokens %s, top_ids %s, top_probs %s; need [N,T], [N,T,k], [N,T,k]"
                          % (name, *(list(t.shape) for t in (tokens, ids, probs))))
        if max(int(tokens.max()), int(ids.max())) >= config["vocab_size"] or min(int(tokens.min()), int(ids.min())) < 0:
            raise Refusal("%s has tokens that the model has not: another model's logits" % name)
        parts.append((tokens, ids, probs))
    if len({(tokens.shape[1], ids.shape[2]) for tokens, ids, _ in parts}) != 1:
        raise Refusal("the parts of %s have different lengths or different k" % directory)
    return tuple(torch.cat(tensors) for tensors in zip(*parts))


def load_generated(directories, config):
    """What generate.py has written, as one tensor int32 like text. A sequence ends with its first end of text."""
    out = []
    for directory in directories:
        names = sorted(glob.glob(os.path.join(directory, "part-*.safetensors")))
        if not names:
            raise Refusal("%s has no part-*.safetensors; generate.py writes them" % directory)
        for name in names:
            with safe_open(name, "pt") as file:
                tokens, given = file.get_tensor("tokens"), file.get_tensor("given")
            if int(tokens.max()) >= config["vocab_size"]:
                raise Refusal("%s has token %d, the model has %d: another model's text" % (name, int(tokens.max()), config["vocab_size"]))
            place = torch.arange(tokens.shape[1])
            ended = torch.isin(tokens, end_tokens(config)) & (place >= given[:, None])
            before = ended.cumsum(1) - ended.int()
            out.append(tokens[before == 0])
    return torch.cat(out)
