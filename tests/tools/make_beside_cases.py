"""Makes tests/tokenizer_beside.jsonl: tokenizers with the files that stand beside them, and what AutoTokenizer of the
transformers package (5.24.0) makes of texts.

    pip install transformers sentencepiece protobuf
    python make_beside_cases.py TESTS_DIR > ../tokenizer_beside.jsonl

Each line is {"name", "base", "files": {name: content}, "text", "ids", "ids_split", "n_vocab", "bos", "eos"}: `base` is a file
below tests/, the ids are those of the text with special tokens added and recognised, or (ids_split) not recognised; bos and
eos are -1 where there is none.
"""
import json
import os
import shutil
import sys
import tempfile

from transformers import AutoTokenizer

SPM, BYTES, LLAMA3, METASPACE = ("tokenizer_spm/bytes.model", "golden/tokenizers/gpt2-style/tokenizer.json",
                                 "golden/tokenizers/llama3-style/tokenizer.json",
                                 "golden/tokenizers/spm-metaspace/tokenizer.json")
WRAPPER, GPT2 = ({"tokenizer_class": c} for c in ("PreTrainedTokenizerFast", "GPT2Tokenizer"))
LLAMA = {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True}  # said, since versions differ on the default
TEXT = "<x>user\nHi<y> there a <x> b"


def token(content, **flags):
    return dict(content=content, lstrip=False, rstrip=False, single_word=False, normalized=False, special=True) | flags


def size(tests, base):
    if base == SPM:
        import sentencepiece
        return sentencepiece.SentencePieceProcessor(model_file=os.path.join(tests, base)).get_piece_size()
    with open(os.path.join(tests, base), encoding="utf-8") as f:
        root = json.load(f)
    return max([len(root["model"]["vocab"])] + [t["id"] + 1 for t in root["added_tokens"]])


def of_base(say, base, own, there, n):
    """`there`: the id and string of a special token that it has. Gives name, base, the three files, text."""
    x, y, word = str(n), str(n + 1), "he here he, a"
    both = {x: token("<x>"), y: token("<y>")}
    plain = {x: token("<x>", special=False, normalized=True), y: token("<y>", special=False, normalized=True)}
    strips = both | {y: token("<y>", lstrip=True, rstrip=True)}
    added, names = {"<y>": n + 1, "<x>": n}, {"eos_token": "<y>", "pad_token": "<x>"}
    parts = [
        ("decoder", {"added_tokens_decoder": both, "eos_token": "<y>"}, None, None, TEXT),
        ("decoder, not special", {"added_tokens_decoder": plain}, None, None, TEXT),
        ("decoder, strips", {"added_tokens_decoder": strips}, None, None, TEXT),
        ("decoder, words", {"added_tokens_decoder": {x: token("he", single_word=True)}}, None, None, word),
        ("decoder, and a map that does not count", {"added_tokens_decoder": both, "eos_token": "<x>"}, added, names, TEXT),
        ("decoder, flags of what is there", {"added_tokens_decoder": {there[0]: token(there[1], lstrip=True, special=False)}},
         None, None, f"a {there[1]} b"),
        ("added, what is there", {}, {there[1]: int(there[0])}, None, f"a {there[1]} b"),
        ("added", {}, added, None, TEXT),
        ("added and map", {}, added, names, TEXT),
        ("added, one of them special", {}, added, {"eos_token": "<y>"}, TEXT),
        ("map alone", {}, None, names, TEXT),
        ("names", {"eos_token": "<y>", "pad_token": "<x>", "bos_token": "<s>"}, None, None, TEXT),
        ("names as objects", {"eos_token": token("<y>", __type="AddedToken", lstrip=True)}, None, None, TEXT),
        ("a list", {"extra_special_tokens": ["<y>", "<x>"]}, None, None, TEXT),
        ("an older list", {"additional_special_tokens": ["<y>", "<x>"]}, None, None, TEXT),
        ("names of its own", {"image_token": "<y>", "extra_special_tokens": {"audio_token": "<x>"}}, None, None, TEXT),
        ("a piece", {"eos_token": "he"}, None, None, word),
        ("an id that does not count", {"added_tokens_decoder": {"0": token("he")}}, None, None, word),
    ]
    for name, config, added_tokens, special_map, text in parts:
        yield f"{say}, {name}", base, own | config, added_tokens, special_map, text


def cases(n):
    """n: how many ids a base has."""
    bases = (("spm", SPM, LLAMA, ("2", "</s>")), ("bytes", BYTES, WRAPPER, ("512", "<|endoftext|>")),
             ("llama3", LLAMA3, WRAPPER, ("640", "<|begin_of_text|>")), ("metaspace", METASPACE, WRAPPER, ("1", "<s>")))
    for say, base, own, there in bases:
        yield from of_base(say, base, own, there, n[base])
    legacy = {"added_tokens_decoder": {str(n[SPM]): token("<x>")}}
    for flag in ({}, {"legacy": True}, {"legacy": False}, {"add_prefix_space": False},
                 {"add_prefix_space": True, "legacy": True}, {"add_bos_token": False, "add_eos_token": True}):
        yield f"spm, {json.dumps(flag)}", SPM, LLAMA | legacy | flag, None, None, "a the<x>a<x> a"
    for own in (GPT2, WRAPPER):
        for flag in (True, False):
            config = own | {"add_prefix_space": flag, "bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
            yield f"{own}, {flag}", BYTES, config, None, None, "the cat"


def main():
    tests = sys.argv[1]
    n = {base: size(tests, base) for base in (SPM, BYTES, LLAMA3, METASPACE)}
    for name, base, config, added, names, text in cases(n):
        files = {"tokenizer_config.json": config, "added_tokens.json": added, "special_tokens_map.json": names}
        files = {k: v for k, v in files.items() if v is not None}
        with tempfile.TemporaryDirectory() as d:
            shutil.copy(os.path.join(tests, base), os.path.join(d, "tokenizer." + base.rsplit(".", 1)[1]))
            for file, content in files.items():
                with open(os.path.join(d, file), "w", encoding="utf-8") as f:
                    json.dump(content, f)
            t = AutoTokenizer.from_pretrained(d)
            ids = t(text)["input_ids"]
            t.backend_tokenizer.encode_special_tokens = True
            split = t(text, split_special_tokens=True)["input_ids"]
        none = {None: -1}
        print(json.dumps({"name": name, "base": base, "files": files, "text": text, "ids": ids, "ids_split": split,
                          "n_vocab": len(t), "bos": none.get(t.bos_token_id, t.bos_token_id),
                          "eos": none.get(t.eos_token_id, t.eos_token_id)}))


if __name__ == "__main__":
    main()
