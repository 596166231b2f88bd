"""Compares encodings of whole prompt files with tokenizers/prompt_hashes.json.

    python check_prompts.py TOKENIZER PROMPT_DIR ENCODED_DIR

TOKENIZER is a key of prompt_hashes.json. For each PROMPT_DIR/<name>.jsonl there must be ENCODED_DIR/<name>.jsonl with one JSON
object a line, {"text": ..., "ids": [...]}, in the order of texts_of below. No special tokens in front or behind.
The hash is SHA-256 over all ids of a file as little-endian int32, in file order, nothing between texts.
"""
import hashlib
import json
import os
import struct
import sys


def strings(value):
    """Every string value, in object order, nested lists and objects flattened; keys are not texts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for v in value:
            yield from strings(v)
    elif isinstance(value, dict):
        for v in value.values():
            yield from strings(v)


def texts_of(path):
    with open(path, encoding="utf-8", newline="\n") as f:
        for line in f:
            if line.strip():
                yield from strings(json.loads(line))


class Hash:
    def __init__(self):
        self.n_texts, self.n_ids, self.sha = 0, 0, hashlib.sha256()

    def add(self, ids):
        self.n_texts += 1
        self.n_ids += len(ids)
        self.sha.update(struct.pack(f"<{len(ids)}i", *ids))

    def result(self):
        return {"n_texts": self.n_texts, "n_ids": self.n_ids, "sha256": self.sha.hexdigest()}


def main():
    tokenizer, prompts, encoded = sys.argv[1:4]
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "tokenizers", "prompt_hashes.json")) as f:
        want = json.load(f)[tokenizer]
    bad = 0
    for file, expected in want.items():
        h = Hash()
        with open(os.path.join(encoded, file), encoding="utf-8", newline="\n") as f:
            rows = [json.loads(line) for line in f if line.strip()]
        texts = list(texts_of(os.path.join(prompts, file)))
        for i, (row, text) in enumerate(zip(rows, texts)):
            if row["text"] != text:
                print(f"{file}: text {i} differs from the prompt file")
                break
        for row in rows:
            h.add(row["ids"])
        ok = h.result() == expected and len(rows) == len(texts)
        bad += not ok
        print(f"{file}: {'ok' if ok else 'DIFFERS'} {h.result()}")
    sys.exit(bad != 0)


if __name__ == "__main__":
    main()
