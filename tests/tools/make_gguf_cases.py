#!/usr/bin/env python3
"""Converts the golden checkpoints to GGUF with llama.cpp's own converter. Needs its source (convert_hf_to_gguf.py, conversion/, gguf-py/:
the release packages of llama-cpp-python have it in vendor/llama.cpp; made with that of 0.3.36), torch, transformers (5.24).

    make_gguf_cases.py LLAMA_CPP_DIR GOLDEN_DIR [CASE...]        writes GOLDEN_DIR/gguf/<case>.gguf, in float32

The checkpoints have no tokenizers: the files have none, and are models for ids. What their logits must be stands in <case>/golden.safetensors
of the Hugging Face twin."""
import json
import logging
import os
import shutil
import sys
import tempfile

CASES = ["llama2", "llama3", "mistral", "qwen2", "qwen3", "mamba", "mamba2", "gpt_neox", "phi3", "phi3-long", "granite", "starcoder2",
         "granitemoehybrid", "bamba", "gemma", "smollm3", "olmo", "seed_oss", "ernie4_5", "stablelm", "cohere", "lfm2", "internlm3", "gemma2", "phi4_mini",
         "falcon", "falcon-new", "exaone", "phi"]
# Keys of real files that the converter reads and the golden configs do not have.
KEYS = {"bamba": {"attn_rotary_emb": 4}}


def main():
    llama_cpp, golden = (os.path.abspath(p) for p in sys.argv[1:3])
    sys.path[:0] = [llama_cpp, os.path.join(llama_cpp, "gguf-py")]
    import convert_hf_to_gguf as converter
    from conversion import base
    os.makedirs(os.path.join(golden, "gguf"), exist_ok=True)
    find = converter.get_model_class

    def without_vocabulary(*args, **kwargs):
        found = find(*args, **kwargs)
        return type(found.__name__, (found,), {"model_arch": found.model_arch, "set_vocab": lambda self: None})

    converter.get_model_class = without_vocabulary
    load = base.ModelBase.load_hparams

    def with_own_keys(folder, *args, **kwargs):
        """As the file has them: transformers has renamed some that the converter asks for."""
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
            own = json.load(f)
        return {**own, **load(folder, *args, **kwargs)}

    base.ModelBase.load_hparams = staticmethod(with_own_keys)
    for case in sys.argv[3:] or CASES:
        with tempfile.TemporaryDirectory() as d:
            copy = shutil.copytree(os.path.join(golden, case), os.path.join(d, case))
            with open(os.path.join(copy, "config.json"), encoding="utf-8") as f:
                config = {**json.load(f), **KEYS.get(case, {})}
            with open(os.path.join(copy, "config.json"), "w", encoding="utf-8") as f:
                json.dump(config, f)
            sys.argv = ["convert", "--outtype", "f32", "--outfile", os.path.join(golden, "gguf", case + ".gguf"), copy]
            try:
                converter.main()
                print(case, "converted")
            except (Exception, SystemExit) as e:
                print(case, "failed:", repr(e)[:300])
        logging.disable(logging.INFO)


if __name__ == "__main__":
    main()
