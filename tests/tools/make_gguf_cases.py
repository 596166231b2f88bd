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
         "olmo2", "olmo3", "exaone4", "glm4", "cohere2_four", "chatglm", "chatglm_first",
         "falcon", "falcon-new", "exaone", "phi"]
# Keys of real files that the converter reads and the golden configs do not have.
KEYS = {"bamba": {"attn_rotary_emb": 4}}
# Cases made from another's checkpoint.
SOURCES = {"chatglm_first": "chatglm"}


def first_layout(folder):
    """GLM-4 as it was published first, by model code of its own: q, k and v in one tensor, other names of tensors and keys."""
    import torch
    from safetensors.torch import load_file, save_file
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    old = load_file(os.path.join(folder, "model.safetensors"))
    new = {"transformer.embedding.word_embeddings.weight": old["model.embed_tokens.weight"],
           "transformer.encoder.final_layernorm.weight": old["model.norm.weight"],
           "transformer.output_layer.weight": old["lm_head.weight"]}
    for i in range(c["num_hidden_layers"]):
        a, b = f"model.layers.{i}.", f"transformer.encoder.layers.{i}."
        for end in ("weight", "bias"):
            new[b + "self_attention.query_key_value." + end] = torch.cat([old[a + f"self_attn.{p}_proj.{end}"] for p in "qkv"])
        for x, y in (("input_layernorm", "input_layernorm"), ("post_attention_layernorm", "post_attention_layernorm"),
                     ("self_attn.o_proj", "self_attention.dense"), ("mlp.gate_up_proj", "mlp.dense_h_to_4h"),
                     ("mlp.down_proj", "mlp.dense_4h_to_h")):
            new[b + y + ".weight"] = old[a + x + ".weight"]
    save_file(new, os.path.join(folder, "model.safetensors"))
    config = {"architectures": ["ChatGLMModel"], "model_type": "chatglm", "num_layers": c["num_hidden_layers"], "rope_ratio": 1,
              "hidden_size": c["hidden_size"], "ffn_hidden_size": c["intermediate_size"], "kv_channels": c["head_dim"],
              "num_attention_heads": c["num_attention_heads"], "multi_query_group_num": c["num_key_value_heads"],
              "layernorm_epsilon": c["rms_norm_eps"], "seq_length": c["max_position_embeddings"], "padded_vocab_size": c["vocab_size"]}
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)


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
            copy = shutil.copytree(os.path.join(golden, SOURCES.get(case, case)), os.path.join(d, case))
            if case == "chatglm_first":
                first_layout(copy)
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
