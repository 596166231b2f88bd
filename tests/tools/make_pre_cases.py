#!/usr/bin/env python3
"""Writes tests/golden/tokenizers/pre.jsonl: what tokenizers with the splits that the words of tokenizer.ggml.pre stand for make of hard
texts. Needs tokenizers (0.23); with --llama also gguf and llama-cpp-python (0.3.36), whose ids are compared, and nothing is written: they differ
where a tokenizer normalizes, which llama.cpp does not do.

    make_pre_cases.py GOLDEN_TOKENIZERS_DIR > GOLDEN_TOKENIZERS_DIR/pre.jsonl
    make_pre_cases.py GOLDEN_TOKENIZERS_DIR --llama

Lines {"pre", "text", "ids"}. Vocabulary and merges are those of gpt2-style. The pipelines are written as the models' own tokenizer.json
have them: Llama 3, Qwen2, Qwen3.5, GLM-4, SmolLM, Mistral's tekken, GPT-4o, DeepSeek-V3, BLOOM, Command R, GPT-NeoX, GPT-2, Falcon."""
import json
import os
import sys
import tempfile

from tokenizers import Regex, Tokenizer, decoders, normalizers
from tokenizers import pre_tokenizers as P

BYTES = P.ByteLevel(add_prefix_space=False, use_regex=False)
GPT2 = P.ByteLevel(add_prefix_space=False, use_regex=True)
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace("{1,3}", "")
QWEN35 = QWEN2.replace(r"\p{N}]?\p{L}+", r"\p{N}]?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
          r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?"
         r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|"
         r"\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|"
            r"\s+(?!\S)|\s+")


def splits(*patterns, last=BYTES):
    return P.Sequence([P.Split(Regex(x), "isolated", False) for x in patterns] + [last])


# word: pre-tokenizer, NFC, ignore_merges
PRE = {
    "default": (P.Sequence([P.Split(Regex(r"[\p{P}\$\+<=>\^~\|]+"), "isolated", False), GPT2, P.Digits(individual_digits=False),
                            P.Split(Regex("[0-9][0-9][0-9]"), "isolated", False)]), False, False),
    "falcon": (P.Sequence([P.Punctuation("contiguous"), GPT2, P.Split(Regex("[0-9][0-9][0-9]"), "isolated", False)]), False, False),
    "llama-bpe": (splits(LLAMA3), False, True), "dbrx": (splits(LLAMA3), False, False), "glm4": (splits(LLAMA3), False, True),
    "qwen2": (splits(QWEN2), True, False), "deepseek-r1-qwen": (splits(QWEN2), False, False), "qwen35": (splits(QWEN35), True, False),
    "gpt-2": (GPT2, False, False), "mpt": (GPT2, True, False),
    "smollm": (P.Sequence([P.Digits(individual_digits=True), GPT2]), False, False),
    "command-r": (P.Sequence([P.Digits(individual_digits=True), GPT2]), True, False),
    "tekken": (splits(TEKKEN), False, True), "gpt-4o": (splits(GPT4O), False, False),
    "deepseek-v3": (splits(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK), False, False),
    "bloom": (splits(" ?[^(\\s|[.,!?…。，、।۔،])]+"), False, False),
}

TEXTS = [
    "Hello, world!", " leading", "two  spaces   three", "tab\tand\nline\r\nend", "\n\n \n\n  x", "trailing   ", "I'm you're HE'LL we've THEY'D it's",
    "can't x's 's 't", "1 12 123 1234 12345 123456", "3.14159 1,234,567.89 v1.2.3", "２０２４年 ½ ²", "a1b22c333d4444", "camelCaseXMLHttpRequest",
    "SCREAMING_SNAKE kebab-case", "UPPERlower Title ǅ", "def f(x):\n    return x+1\n\n\n", "a->b::c<d>&&e||f!=g", "{\"a\": [1, 2.5], 'b': null}",
    "---- ==== .... !!!???", "$$x^2$$ ~tilde~ `tick` |bar|", "https://example.com/a/b?c=d&e=f#g", "C:\\Users\\x", "naïve café e\u0301 n\u0303",
    "Å \u212b A\u030a ﬁ", "x\u0323\u0307 \u0301", "你好，世界！", "今日は良い天気ですね。カタカナ", "안녕하세요 세계", "中文English混合123テキスト", "שלום مرحبا",
    "नमस्ते दुनिया", "Здравствуй, мир", "😀😀 👩‍👩‍👧 🇩🇪 👍🏽", "a\u00a0b\u3000c\u200bd", "\u2028\u0085x", "“quotes” … — dash", "#tag @user 100% €2,50 ¥300",
    "  indented\n\tboth  \n", "(parens) [brackets], end. Next", "word\n/path\r\n\r\n  more",
]


def tokenizer(base, pre):
    t = Tokenizer.from_str(json.dumps({**base, "model": {**base["model"], "ignore_merges": PRE[pre][2]}}))
    t.pre_tokenizer, t.decoder = PRE[pre][0], decoders.ByteLevel()
    if PRE[pre][1]:
        t.normalizer = normalizers.NFC()
    return t


def write_vocab(path, base, pre):
    """The same as a GGUF file."""
    import gguf
    vocab = {i: s for s, i in base["model"]["vocab"].items()}
    added = {a["id"]: a["content"] for a in base["added_tokens"]}
    n = max([*vocab, *added]) + 1
    w = gguf.GGUFWriter(path, "gpt2")
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre(pre)
    w.add_token_list([added.get(i) or vocab[i] for i in range(n)])
    w.add_token_types([3 if i in added else 1 for i in range(n)])
    w.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in base["model"]["merges"]])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.close()


def compare(base):
    import llama_cpp
    for pre in PRE:
        with tempfile.TemporaryDirectory() as d:
            write_vocab(d + "/v.gguf", base, pre)
            llama = llama_cpp.Llama(d + "/v.gguf", vocab_only=True, verbose=False)
            t = tokenizer(base, pre)
            other = [x for x in TEXTS if llama.tokenize(x.encode(), add_bos=False, special=False) !=
                     t.encode(x, add_special_tokens=False).ids]
            print(f"{pre}: {len(other)} of {len(TEXTS)} texts differ", *map(repr, other), sep="\n    ")


def main():
    with open(os.path.join(sys.argv[1], "gpt2-style", "tokenizer.json"), encoding="utf-8") as f:
        base = json.load(f)
    if sys.argv[2:] == ["--llama"]:
        return compare(base)
    for pre in PRE:
        t = tokenizer(base, pre)
        for text in TEXTS:
            print(json.dumps({"pre": pre, "text": text, "ids": t.encode(text, add_special_tokens=False).ids}, ensure_ascii=False))


if __name__ == "__main__":
    sys.exit(main())
