"""Makes a Hugging Face directory, in bfloat16, of a Llama in a GGUF file (F32, F16, Q8_0, Q4_0 or Q4_1; a byte-level BPE tokenizer).

    python models/train/from_gguf.py MODEL.gguf DIR"""
import json
import os
import struct
import sys

import numpy as np
import torch

import checkpoint
from files import Refusal, command, write_json, write_text

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL = 3
# type: (name, values a block, bytes a block)
BLOCKS = {0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 8: ("Q8_0", 32, 34)}
LAYER = {"attn_norm": "norm1", "attn_q": "mixer.q_proj", "attn_k": "mixer.k_proj", "attn_v": "mixer.v_proj", "attn_output": "mixer.o_proj",
         "ffn_norm": "norm2", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}
OUTSIDE = {"token_embd.weight": "embed.weight", "output_norm.weight": "norm.weight", "output.weight": "lm_head.weight"}


class Reader:
    """A GGUF file: metadata by key, tensors by name."""

    def __init__(self, path):
        try:
            self.data = np.memmap(path, np.uint8, "r")
        except (OSError, ValueError) as error:
            raise Refusal("%s cannot be read: %s" % (path, error))
        if bytes(self.data[:4]) != b"GGUF":
            raise Refusal("%s is not a GGUF file" % path)
        self.path, self.at = path, 8  # behind magic and version
        try:
            n_tensors, n_keys = self.number("Q"), self.number("Q")
            self.meta = {self.string(): self.value(self.number("I")) for _ in range(n_keys)}
            self.tensors = {}
            for _ in range(n_tensors):
                name = self.string()
                shape = [self.number("Q") for _ in range(self.number("I"))]
                self.tensors[name] = shape[::-1], self.number("I"), self.number("Q")
        except struct.error:
            raise Refusal("%s ends inside its header" % path)
        except (KeyError, UnicodeDecodeError) as error:
            raise Refusal("%s has a header that is damaged, or newer than this: %s" % (path, error))
        align = self.meta.get("general.alignment", 32)
        self.begin = (self.at + align - 1) // align * align

    def number(self, code):
        size = struct.calcsize("<" + code)
        value, = struct.unpack("<" + code, self.data[self.at:self.at + size].tobytes())
        self.at += size
        return value

    def string(self):
        n = self.number("Q")
        self.at += n
        return self.data[self.at - n:self.at].tobytes().decode("utf-8")

    def value(self, kind):
        if kind == STRING:
            return self.string()
        if kind == ARRAY:
            item, n = self.number("I"), self.number("Q")
            return [self.value(item) for _ in range(n)]
        return self.number(NUMBERS[kind])

    def tensor(self, name):
        shape, kind, offset = self.tensors[name]
        if kind not in BLOCKS:
            raise Refusal("%s: tensor %s is of type %d; this reads %s" % (self.path, name, kind, ", ".join(b[0] for b in BLOCKS.values())))
        _, values, size = BLOCKS[kind]
        n = int(np.prod(shape)) // values * size
        raw = self.data[self.begin + offset:self.begin + offset + n]
        if len(raw) != n:
            raise Refusal("%s ends inside tensor %s" % (self.path, name))
        return torch.from_numpy(dequantise(kind, raw.reshape(-1, size)).reshape(shape))


def dequantise(kind, blocks):
    """float32 of blocks [n, bytes]: a value is scale * (q - offset), or scale * q + least."""
    if kind == 0:
        return blocks.copy().view(np.float32)
    if kind == 1:
        return blocks.copy().view(np.float16).astype(np.float32)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if kind == 8:
        return scale * blocks[:, 2:].view(np.int8)
    packed = blocks[:, 4:] if kind == 3 else blocks[:, 2:]
    q = np.concatenate([packed & 15, packed >> 4], 1).astype(np.float32)
    return scale * q + blocks[:, 2:4].copy().view(np.float16).astype(np.float32) if kind == 3 else scale * (q - 8)


def unpermute(weight, heads):
    """GGUF rotates neighbours, Hugging Face the two halves of a head."""
    return weight.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def config_of(meta):
    def key(name, default=None):
        return meta.get("llama." + name, default)
    heads = key("attention.head_count")
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16", "hidden_act": "silu",
            "hidden_size": key("embedding_length"), "num_hidden_layers": key("block_count"),
            "intermediate_size": key("feed_forward_length"), "num_attention_heads": heads,
            "num_key_value_heads": key("attention.head_count_kv", heads),
            "head_dim": key("rope.dimension_count", key("embedding_length") // heads), "attention_bias": False, "mlp_bias": False,
            "rms_norm_eps": float("%.6g" % key("attention.layer_norm_rms_epsilon")), "max_position_embeddings": key("context_length"),
            "rope_parameters": {"rope_type": "default", "rope_theta": key("rope.freq_base", 10000.0)},
            "vocab_size": len(meta["tokenizer.ggml.tokens"]),
            "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"), "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
            "pad_token_id": meta.get("tokenizer.ggml.padding_token_id")}


def write_tokenizer(meta, directory):
    if meta.get("tokenizer.ggml.model") != "gpt2":
        raise Refusal("the tokenizer is %s; this writes byte-level BPE (gpt2) alone" % meta.get("tokenizer.ggml.model"))
    tokens, kinds = meta["tokenizer.ggml.tokens"], meta["tokenizer.ggml.token_type"]
    digits = [{"type": "Digits", "individual_digits": True}] if meta.get("tokenizer.ggml.pre") == "smollm" else []
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    write_text(os.path.join(directory, "tokenizer.json"), json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "post_processor": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": True} for i, t in enumerate(tokens) if kinds[i] == CONTROL],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": digits + [byte_level]}, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": {t: i for i, t in enumerate(tokens)},
                  "merges": [m.split(" ") for m in meta["tokenizer.ggml.merges"]]}},
        ensure_ascii=False))
    write_json(os.path.join(directory, "tokenizer_config.json"), {
        "tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, "add_bos_token": False,
        "chat_template": meta.get("tokenizer.chat_template"), "bos_token": tokens[meta["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[meta["tokenizer.ggml.eos_token_id"]]})


def check_rotation(file):
    """What is written turns by one base: factors that divide its frequencies have to be ones."""
    scaling, factors = file.meta.get("llama.rope.scaling.type", "none"), "rope_freqs.weight"
    if scaling != "none":
        raise Refusal("%s has rotary positions scaled by %s, which this does not write" % (file.path, scaling))
    if factors in file.tensors and not torch.all(file.tensor(factors) == 1):
        raise Refusal("%s has rotary positions of its own (%s), which this does not write" % (file.path, factors))


def weights_of(file, config):
    """{name in a Decoder: weight}"""
    weights = {}
    for name in file.tensors.keys() - {"rope_freqs.weight"}:
        if name in OUTSIDE:
            weights[OUTSIDE[name]] = file.tensor(name)
            continue
        part = name.split(".")  # blk.N.part.weight
        if len(part) != 4 or part[0] != "blk" or part[2] not in LAYER or part[3] != "weight":
            raise Refusal("%s: tensor %s is no part of the Llama that this writes" % (file.path, name))
        weight = file.tensor(name)
        if part[2] in ("attn_q", "attn_k"):
            weight = unpermute(weight, config["num_attention_heads" if part[2] == "attn_q" else "num_key_value_heads"])
        weights["layers.%s.%s.weight" % (part[1], LAYER[part[2]])] = weight
    return weights


def convert(path, directory):
    file = Reader(path)
    if file.meta.get("general.architecture") != "llama":
        raise Refusal("%s is a %s; this converts llama alone" % (path, file.meta.get("general.architecture")))
    check_rotation(file)
    config = config_of(file.meta) | {"tie_word_embeddings": "output.weight" not in file.tensors}
    net = checkpoint.build_llama(config)
    try:
        net.load_state_dict(weights_of(file, config))
    except RuntimeError as error:  # what is missing, or of another shape
        raise Refusal("%s is not the model that its keys say: %s" % (path, " ".join(str(error).split())))
    os.makedirs(directory, exist_ok=True)
    write_tokenizer(file.meta, directory)
    checkpoint.save(net, config, directory)


def main():
    if len(sys.argv) != 3:
        raise Refusal("usage: from_gguf.py MODEL.gguf DIR")
    convert(*sys.argv[1:])
    return 0


if __name__ == "__main__":
    command(main)
