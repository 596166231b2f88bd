"""Makes a tokenizer.json from the vocabulary of a GGUF file with a SentencePiece BPE ("llama") tokenizer.

    python gguf_vocab_to_json.py VOCAB.gguf tokenizer.json

For tests that have published vectors for such a vocabulary but no tokenizer file. Nothing but Python is needed.
The merges are found as converters find them: every way to cut a piece into two pieces, ordered by the piece's score.
"""
import json
import struct
import sys

SIZES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, code):
        value, = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize("<" + code)
        return value

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at].decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.number("I"), self.number("Q")
            return [self.value(item) for _ in range(n)]
        return self.number(SIZES[kind])


def metadata(path):
    with open(path, "rb") as f:
        r = Reader(f.read())
    if r.data[:4] != b"GGUF":
        sys.exit(f"{path}: not a GGUF file")
    r.at = 8  # magic, version
    r.number("Q")  # tensors
    return {r.string(): r.value(r.number("I")) for _ in range(r.number("Q"))}


def merges_of(vocab, score):
    found = []
    for piece, _ in vocab.items():
        for cut in range(1, len(piece)):
            left, right = piece[:cut], piece[cut:]
            if left in vocab and right in vocab:
                found.append((-score[piece], vocab[left], vocab[right], left, right))
    found.sort()
    return [[left, right] for *_, left, right in found]


def main():
    source, target = sys.argv[1:3]
    meta = metadata(source)
    tokens, scores, types = (meta["tokenizer.ggml." + k] for k in ("tokens", "scores", "token_type"))
    vocab = {t: i for i, t in enumerate(tokens)}
    mergeable = {t: i for t, i in vocab.items() if types[i] == NORMAL}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": types[i] == CONTROL} for i, t in enumerate(tokens) if types[i] in (CONTROL, USER_DEFINED)]
    out = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "vocab": vocab,
                  "merges": merges_of(mergeable, dict(zip(tokens, scores)))},
    }
    with open(target, "w", encoding="utf-8") as f:
        json.dump(out, f, ensure_ascii=False)


if __name__ == "__main__":
    main()
