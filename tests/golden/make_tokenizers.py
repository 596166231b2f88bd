"""Trains four small tokenizers and writes vectors for them and for given real vocabularies.

    python make_tokenizers.py SHARED_DIR

SHARED_DIR holds data/corpus/*.txt.xz, data/prompts/*.jsonl and data/tokenizers/mistral-spm/tokenizer.model.
Writes tokenizers/ beside this file. The oracle is the `tokenizers` package, for tokenizer.model `sentencepiece`.
"""
import json
import lzma
import os
import sys
import unicodedata

import sentencepiece
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers)

from check_prompts import texts_of

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "tokenizers")

LLAMA3_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
                r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2_SPLIT = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
               r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def hard_texts(specials):
    nfc, nfd = "Ångström café naïve résumé Ünïcödé", unicodedata.normalize("NFD", "Ångström café naïve résumé Ünïcödé")
    t = ["", " ", "  ", "   ", "\t", "\n", "\r\n", "\r", "\n\n", " \n", "\n ", "\t\t\n", "a", " a", "a ", "  a  ", "\u00a0", "\u3000x",
         "Hello, world!", "hello world", " Hello", "Hello  world", "Hello   world    four", "Hello\tworld", "tabs\t\tand  spaces \t mix",
         "line one\nline two\r\nline three\rline four\n\n\nlast", "trailing spaces   ", "   leading spaces", "trailing newline\n",
         "space before newline \n next", "a\n\n  b\n\n\n   c", "\n\n\n\nx", "x\r\n\r\ny", "  \n  \n  ",
         "I'm you're he's we'll they've I'd can't", "I'M YOU'RE HE'S WE'LL THEY'VE I'D CAN'T", "it'S'LL'd 'tis 'Twas rock'n'roll",
         "don\u2019t use \u2018curly\u2019 quotes", "'''quotes''' \"\"\"doc\"\"\"", "'s", "'S", "''s", "x's", "\u017f 'ſ \u212aelvin",
         "0", "12", "123", "1234", "12345", "1234567890" * 5, "3.14159 2,718,281.828 1e-10 0x1F 1_000", "2024-01-31T23:59:59Z", "1 2  3   4",
         "\u0661\u0662\u0663\u0664", "\u00bd \u00b2 \u2167 \u2460 \U0001d7d8", "\u0967\u0968\u0969 \u09e7\u09e8",
         nfc, nfd, "e\u0301\u0301\u0323 q\u0307\u0323", "\u1e9b\u0323 \ufb01 \u2126 \u212b", "\u0915\u094d\u0937\u093f \u0939\u093f\u0928\u094d\u0926\u0940",
         "\uac00\ub098\ub2e4 \u1100\u1161\u11a8", "\u4f60\u597d\uff0c\u4e16\u754c\uff01\u4eca\u5929\u5929\u6c14\u600e\u4e48\u6837\uff1f",
         "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3001\u30ab\u30bf\u30ab\u30ca\u3002", "\uff21\uff22\uff23\uff11\uff12\uff13 \uff76\uff9e",
         "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645 \u0661\u0662\u0663", "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd",
         "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u1794\u17d2\u179a\u17b6\u179f\u17b6\u1791", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u0436",
         "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5 \u03c2\u03a3", "T\u00fcrk\u00e7e: I\u0131 \u0130i \u015f\u011f", "\u00df \u1e9e \u01c5 \u02b0 \u00aa",
         "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 family", "\U0001f44d\U0001f3fd\U0001f44d", "\u2764\ufe0f \u2764", "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
         "text\U0001f680text \U0001f680\U0001f680", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f", "\U00010348\U00020000\U0010ffff", "\u200b\u200c\u200d\u2060",
         "a\u200bb", "\u180e", "a\u180eb \u180e c", "\ufeff", "\ufeffBOM first", "in\ufeffside", "\u2028\u2029", "a\u2028b\u2029c", "\u0085", "a\u0085b", "\u1680\u2003\u205f x",
         "\x00", "a\x00b", "\x01\x02\x1f\x7f", "\x1b[31mred\x1b[0m", "\x0b\x0c", "a \x0b b", "\x1c\x1d\x1e", "\ufffd\ufffe\uffff", "\ue000\U000f0000", "\u00ad\u034f",
         "def f(x):\n    if x > 0:\n        return x ** 2\n    return -x\n", "\tfor (int i = 0; i < n; ++i) {\n\t\ta[i] += b[i];\n\t}\n",
         "<html><body class=\"x\">&nbsp;</body></html>", "SELECT * FROM t WHERE a='b' -- c", "{\"k\": [1, 2.5, null, true]}", "https://example.org/a?b=c&d=%20#e", "user@example.com",
         "C:\\path\\to\\file.txt", "$\\frac{a}{b} \\leq \\sum_{i=0}^n x_i$", "!!!???...---===***", "....", "\u2026\u2014\u2013\u00ab\u00bb\u201e", "___init___ __dunder__", "#hashtag @mention",
         "camelCaseWord snake_case_word SCREAMING_CASE", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "a a a a a a", " " * 40, "x" + " " * 17 + "y", "\n" * 9 + " z", "-" * 30,
         "\u20ac100 \u00a35 \u00a510 $3.50 50%", "\u2581", "a\u2581b \u2581\u2581c", "\u0120word \u010a", "<0x0A> <0xFF>", "<unk>", "<s></s>", "The quick brown fox jumps over the lazy dog."]
    for s in specials:
        t += [s, f"{s}Hello", f"Hello{s}world", f"Hello {s} world ", f"{s}{s}", f" {s}\n{s}x", s[:-1], s.upper()]
    return list(dict.fromkeys(t))


def corpus(shared, name, n):
    with lzma.open(os.path.join(shared, "data", "corpus", name), "rt", encoding="utf-8", newline="") as f:
        return f.read(n)


def prompt_sample(shared, per_file, n_char):
    out = []
    folder = os.path.join(shared, "data", "prompts")
    for file in sorted(os.listdir(folder)):
        if file.endswith(".jsonl"):
            with open(os.path.join(folder, file), encoding="utf-8") as f:
                lines = [json.loads(x)["prompt"] for x in f]
            step = max(1, len(lines) // per_file)
            for i, text in enumerate(lines[::step][:per_file]):
                start = (i * 97) % max(1, len(text) - n_char)
                out.append(text[start:start + n_char])
    return out


def train(tok, texts, vocab, specials, alphabet):
    trainer = trainers.BpeTrainer(vocab_size=vocab, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    tok.train_from_iterator(texts, trainer)


def rebuilt(tok, **model_args):
    """The same vocabulary and merges in a BPE model with other settings."""
    m = json.loads(tok.to_str())["model"]
    tok.model = models.BPE(vocab=m["vocab"], merges=[tuple(x) for x in m["merges"]], **model_args)
    return tok


def byte_level(texts, vocab, split, normalizer=None, added=(), bos=None, ignore_merges=False):
    tok = Tokenizer(models.BPE())
    if normalizer:
        tok.normalizer = normalizer
    if split:
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated"),
                                                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    else:
        tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    train(tok, texts, vocab, [], pre_tokenizers.ByteLevel.alphabet())
    rebuilt(tok, ignore_merges=ignore_merges)
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in added])
    tok.decoder = decoders.ByteLevel()
    if bos:
        b = (bos, tok.token_to_id(bos))
        tok.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B:1", special_tokens=[b])])
    else:
        tok.post_processor = processors.ByteLevel(trim_offsets=False)
    return tok


def break_a_merge(tok):
    """Removes merges whose result stays in the vocabulary, so that ignore_merges (whole pieces first) shows."""
    d = json.loads(tok.to_str())
    d["model"]["merges"] = [m for i, m in enumerate(d["model"]["merges"]) if i % 5 != 3]
    return Tokenizer.from_str(json.dumps(d))


def spm_bpe(texts, vocab, added, metaspace):
    """Llama-2 / Phi-3 style: marks for spaces, byte pieces for what the vocabulary lacks."""
    tok = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    prepend = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)       # for training: pieces stay in words
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    train(tok, texts, vocab, specials, [])
    d = json.loads(tok.to_str())
    d["added_tokens"] = [t for t in d["added_tokens"] if t["content"] in ("<unk>", "<s>", "</s>")]
    tok = rebuilt(Tokenizer.from_str(json.dumps(d)), unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    if metaspace:
        tok.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
    else:
        tok.normalizer = prepend
        tok.pre_tokenizer = None
        tok.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(),
                                         decoders.Strip(" ", 1, 0)])
    tok.add_special_tokens([AddedToken(s, normalized=False, special=True, rstrip=True) for s in added])
    b = ("<s>", tok.token_to_id("<s>"))
    tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B:1", special_tokens=[b])
    return tok


def save(name, tok, texts):
    folder = os.path.join(OUT, name)
    os.makedirs(folder, exist_ok=True)
    tok.save(os.path.join(folder, "tokenizer.json"), pretty=False)
    tok = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "vectors.jsonl"), "w", encoding="utf-8") as f:
        for text in texts:
            ids = tok.encode(text, add_special_tokens=True).ids
            row = {"text": text, "ids": ids, "ids_plain": tok.encode(text, add_special_tokens=False).ids,
                   "decoded": tok.decode(ids, skip_special_tokens=False)}
            f.write(json.dumps(row, separators=(",", ":"), ensure_ascii=True) + "\n")
    print(f"{name}: vocabulary {tok.get_vocab_size()}, {len(texts)} texts, "
          f"{sum(os.path.getsize(os.path.join(folder, x)) for x in os.listdir(folder))} bytes", flush=True)


def main():
    shared = sys.argv[1]
    texts = [corpus(shared, f, 400_000) for f in ("tinystories.txt.xz", "python_code.txt.xz", "gsm8k_train.txt.xz")]
    texts = [line for t in texts for line in t.splitlines(keepends=True)]
    prompts = prompt_sample(shared, 20, 100)
    llama3 = byte_level(texts, 640, LLAMA3_SPLIT, bos="<|begin_of_text|>", ignore_merges=True,
                        added=["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    save("llama3-style", break_a_merge(llama3), hard_texts(["<|begin_of_text|>", "<|eot_id|>"]) + prompts)
    qwen = byte_level(texts, 600, QWEN2_SPLIT, normalizer=normalizers.NFC(), added=["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    save("qwen2-style", qwen, hard_texts(["<|im_start|>", "<|endoftext|>"]) + prompts)
    neox = byte_level(texts, 600, None, normalizer=normalizers.NFC(), added=["<|endoftext|>"])
    neox.add_tokens([AddedToken(" " * n, normalized=True) for n in range(12, 1, -1)])
    save("gpt_neox-style", neox, hard_texts(["<|endoftext|>"]) + prompts)
    gpt2 = byte_level(texts, 512, None, added=["<|endoftext|>"])
    save("gpt2-style", gpt2, hard_texts(["<|endoftext|>"]) + prompts[::4])
    save("spm-prepend", spm_bpe(texts, 900, ["<|user|>", "<|end|>"], False), hard_texts(["<s>", "<|end|>"]) + prompts)
    save("spm-metaspace", spm_bpe(texts, 700, ["<|user|>", "<|end|>"], True), hard_texts(["</s>", "<|end|>"]) + prompts[::4])

    sp = sentencepiece.SentencePieceProcessor(
        model_file=os.path.join(shared, "data", "tokenizers", "mistral-spm", "tokenizer.model"))
    with open(os.path.join(OUT, "mistral.jsonl"), "w", encoding="utf-8") as f:
        for text in hard_texts(["<s>", "[INST]"]) + prompts:
            ids = sp.encode(text)
            f.write(json.dumps({"text": text, "ids": ids, "decoded": sp.decode(ids)}, separators=(",", ":")) + "\n")

    hashes = {}
    given = {"shared": os.path.join("models", "llama-target"), "gpt2": os.path.join("data", "tokenizers", "gpt2"),
             "gpt-neox": os.path.join("data", "tokenizers", "gpt-neox")}
    encoders = {k: (lambda t, tok=Tokenizer.from_file(os.path.join(shared, v, "tokenizer.json")):
                    tok.encode(t, add_special_tokens=False).ids) for k, v in given.items()}
    encoders["mistral-spm"] = sp.encode
    from check_prompts import Hash
    folder = os.path.join(shared, "data", "prompts")
    for name, encode in encoders.items():
        hashes[name] = {}
        for file in sorted(os.listdir(folder)):
            if file.endswith(".jsonl"):
                h = Hash()
                for text in texts_of(os.path.join(folder, file)):
                    h.add(encode(text))
                hashes[name][file] = h.result()
        print(name, sum(x["n_ids"] for x in hashes[name].values()), "ids", flush=True)
    with open(os.path.join(OUT, "prompt_hashes.json"), "w") as f:
        json.dump(hashes, f, indent=1)
        f.write("\n")


if __name__ == "__main__":
    main()
