"""Makes tests/tokenizer_spm: small SentencePiece BPE models with different options, trained on the texts of the golden
tokenizers, and what the sentencepiece package (0.2.3) makes of hard texts with them.

    pip install sentencepiece
    python make_spm_cases.py GOLDEN_TOKENIZERS_DIR ../tokenizer_spm

<name>.model and <name>.jsonl, one {"text", "ids", "decoded"} a line; no BOS or EOS; ids of some lines end in random ones
(then there is no "text").
"""
import json
import os
import random
import sys

import sentencepiece

OPTIONS = {
    "plain": dict(),
    "bytes": dict(byte_fallback=True, user_defined_symbols=["<sep>", "foo", "\u2581\u2581", "qu"]),
    "extra": dict(remove_extra_whitespaces=True, user_defined_symbols=["foo"], control_symbols=["<sep>"]),
    "noprefix": dict(add_dummy_prefix=False, unk_surface=" ?? "),
}
FRAGMENTS = ["hello", "  ", " ", "\n", "\t", "don't", "\u00e9", "\u65e5\u672c", "\U0001f600", "<s>", "</s>", "<unk>", "<sep>", "a",
             "\u2581", "   ", "the", "xyz", "\u4e00", "<0x41>", "?", "quick", "\u2581\u2581", "foo"]


def main():
    source, target = sys.argv[1:3]
    with open(os.path.join(source, "llama3-style", "vectors.jsonl"), encoding="utf-8") as f:
        texts = [json.loads(line)["text"] for line in f]
    for name, options in OPTIONS.items():
        prefix = os.path.join(target, name)
        settings = dict(model_type="bpe", vocab_size=420, normalization_rule_name="identity", character_coverage=0.99,
                        remove_extra_whitespaces=False, hard_vocab_limit=False, minloglevel=2)
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_prefix=prefix,
                                                 **{**settings, **options})
        os.remove(prefix + ".vocab")
        sp = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
        r = random.Random(1)
        with open(prefix + ".jsonl", "w", encoding="utf-8") as f:
            for i in range(150):
                text = "".join(r.choice(FRAGMENTS) + r.choice(["", " "]) for _ in range(r.randint(0, 9)))
                ids = sp.encode(text)
                case = {"text": text, "ids": ids}
                if i % 3 == 0:
                    case = {"ids": ids + [r.randrange(sp.get_piece_size()) for _ in range(3)]}
                case["decoded"] = sp.decode(case["ids"])
                f.write(json.dumps(case, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
