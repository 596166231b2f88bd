"""Makes tests/tokenizer_cases.jsonl: tokenizers with components put together at random, and what the `tokenizers`
package (0.23.3) makes of hard texts with them.

    pip install tokenizers
    python make_tokenizer_cases.py GOLDEN_TOKENIZERS_DIR > ../tokenizer_cases.jsonl

Each line is {"base", "patch", "added", "cases": [{"text", "flags", "ids", "decoded"}]}: the tokenizer is the golden
one named `base`, with the keys of `patch` in place of its own (those of "model" one by one) and `added` after its
added tokens. flags: 1 = special tokens are added, 2 = they are recognised in the text. decoded: of ids, nothing skipped.

Left out, because the package's behaviour there is an accident: added tokens that normalize to nothing, special tokens
that normalize to something else, patterns with empty matches.
"""
import copy
import json
import random
import sys

from tokenizers import Tokenizer

R = random.Random(1)
N_TOKENIZERS, N_TEXTS = 120, 4

SPLITS = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", r"\p{N}{1,3}", r"\w+|[^\w\s]+", r"\s", r"[^\S\n]+", r"\h{2,}",
    r"(?<=a)b", r"\d", r"a$", r"^.", r"[[:punct:]]+", r"[[:alpha:]]+", r"\p{Han}+", r"\p{^L}",
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
FRAGMENTS = [
    "hello", "  ", "\n", "\t", " a", "ab", "b", "don't", "'LL", "'\u017f", "\u00e9", "e\u0301", "\u2167", "\u00bd",
    "\u00b2", "123", "4567", "\u4f60\u597d", "\u3072\u3089", "\U0001f600", "\U0001f468\u200d\U0001f469", "\u180e",
    "\u200b", "\u00a0", "\u3000", "\ufb01", "\u0130", "\u00df", "\u212b", "\u1e9b\u0323", "\u1112\u1161\u11ab",
    "\u0301", "\u0323\u0301", "<s>", "</s>", "<|endoftext|>", "<a>", "[X]", "foo", "xfoox", "_", "\u2581", "\u0120",
    "...", "!", "$x", "-", "\r\n", "\x07", "\ufeff", "\u03a3", "<0x41>", "aab", "QWErty", "\u0345", "\u0663", "\u2028",
]


def coin(p=0.5):
    return R.random() < p


def normalizer():
    kind = R.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel", "Replace", "Replace",
                     "Prepend", "Strip", "Sequence"])
    if kind == "Replace":
        pattern = R.choice([{"String": " "}, {"String": "a"}, {"Regex": r"\s+"}, {"Regex": "[aeiou]"}])
        return {"type": kind, "pattern": pattern, "content": R.choice(["\u2581", "", "ab"])}
    if kind == "Prepend":
        return {"type": kind, "prepend": R.choice(["\u2581", " ", "ab"])}
    if kind == "Strip":
        return {"type": kind, "strip_left": coin(), "strip_right": coin()}
    if kind == "Sequence":
        return {"type": kind, "normalizers": [normalizer() for _ in range(R.randint(1, 3))]}
    return {"type": kind}


def byte_level():
    return {"type": "ByteLevel", "add_prefix_space": coin(), "trim_offsets": True, "use_regex": coin(0.6)}


def pre_tokenizer():
    kind = R.choice(["ByteLevel", "Split", "Split", "Split", "Metaspace", "Digits", "Punctuation", "Whitespace",
                     "WhitespaceSplit", "CharDelimiterSplit", "FixedLength", "Sequence", "Sequence"])
    if kind == "ByteLevel":
        return byte_level()
    if kind == "Split":
        pattern = {"Regex": R.choice(SPLITS)} if coin(0.8) else {"String": R.choice([" ", "a", "\n", "ab"])}
        return {"type": kind, "pattern": pattern, "behavior": R.choice(BEHAVIORS), "invert": coin(0.3)}
    if kind == "Metaspace":
        return {"type": kind, "replacement": R.choice("\u2581_"), "prepend_scheme": R.choice(["always", "first", "never"]),
                "split": coin()}
    if kind == "Digits":
        return {"type": kind, "individual_digits": coin()}
    if kind == "Punctuation":
        return {"type": kind, "behavior": R.choice(BEHAVIORS)}
    if kind == "CharDelimiterSplit":
        return {"type": kind, "delimiter": R.choice("a -")}
    if kind == "FixedLength":
        return {"type": kind, "length": R.randint(1, 5)}
    if kind == "Sequence":
        return {"type": kind, "pretokenizers": [pre_tokenizer() for _ in range(R.randint(1, 3))]}
    return {"type": kind}


def decoder():
    replace = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
    metaspace = {"type": "Metaspace", "replacement": "\u2581", "split": True,
                 "prepend_scheme": R.choice(["always", "first", "never"])}
    llama = [replace, {"type": "ByteFallback"}, {"type": "Fuse"},
             {"type": "Strip", "content": " ", "start": R.randint(0, 2), "stop": 0}]
    return R.choice([byte_level(), metaspace, None, replace, {"type": "Fuse"},
                     {"type": "Sequence", "decoders": llama}, {"type": "Sequence", "decoders": llama},
                     {"type": "Strip", "content": "a", "start": R.randint(0, 2), "stop": R.randint(0, 1)}])


def model():
    patch = {}
    if coin():
        patch["fuse_unk"] = coin()
    if coin(0.3):
        patch["byte_fallback"] = coin()
    if coin(0.3):
        patch["unk_token"] = R.choice([None, "a"])
    if coin(0.3):
        patch["ignore_merges"] = coin()
    if coin(0.1):
        patch["end_of_word_suffix"] = R.choice(["e", "s"])
    elif coin(0.1):
        patch.update(continuing_subword_prefix=R.choice(["a", "##"]), merges=[])
    return patch


def added(base, model_patch):
    vocab = base["model"]["vocab"]
    used = list(vocab.values()) + [t["id"] for t in base["added_tokens"]]
    there = {t["content"] for t in base["added_tokens"]}
    tokens, next_id = [], max(used) + 1
    for content in R.sample(["<a>", "[X]", "foo", "ab", "  ", "hello", "\u00e9", "QW", "\n"], R.randint(0, 4)):
        if content in there:
            continue
        token_id = vocab.get(content)
        if token_id is None:
            token_id, next_id = next_id, next_id + 1
        special = coin()
        tokens.append({"id": token_id, "content": content, "single_word": coin(0.3), "lstrip": coin(0.3),
                       "rstrip": coin(0.3), "normalized": not special and coin(), "special": special})
    return tokens


def put_together(base, patch, tokens):
    out = copy.deepcopy(base)
    for key, value in patch.items():
        if key == "model":
            out["model"].update(value)
        else:
            out[key] = value
    out["added_tokens"] += tokens
    return out


def main():
    folder = sys.argv[1]
    bases = {}
    for name in ("gpt2-style", "spm-prepend", "llama3-style"):
        with open(f"{folder}/{name}/tokenizer.json", encoding="utf-8") as f:
            bases[name] = json.load(f)
    made = 0
    while made < N_TOKENIZERS:
        name = R.choice(sorted(bases))
        patch = {"decoder": decoder(), "model": model()}
        if coin(0.7):
            patch["normalizer"] = normalizer()
        if coin(0.8):
            patch["pre_tokenizer"] = R.choice([None, pre_tokenizer(), pre_tokenizer()])
        tokens = added(bases[name], patch["model"])
        tokenizer = Tokenizer.from_str(json.dumps(put_together(bases[name], patch, tokens)))
        norm = tokenizer.normalizer
        if norm and any(t["normalized"] and not norm.normalize_str(t["content"]) for t in tokens):
            continue
        cases = []
        for _ in range(N_TEXTS):
            text = "".join(R.choice(FRAGMENTS) + R.choice(["", " ", ""]) for _ in range(R.randint(0, 8)))
            flags = R.randint(0, 3)
            tokenizer.encode_special_tokens = not flags & 2
            try:
                ids = tokenizer.encode(text, add_special_tokens=bool(flags & 1)).ids
                decoded = tokenizer.decode(ids, skip_special_tokens=False)
            except BaseException:  # a panic of the package (Strip of more characters than there are)
                continue
            cases.append({"text": text, "flags": flags, "ids": ids, "decoded": decoded})
        print(json.dumps({"base": name, "patch": patch, "added": tokens, "cases": cases}, ensure_ascii=False))
        made += 1


if __name__ == "__main__":
    main()
