#!/usr/bin/env python3
"""Writes a GGUF file of the shape of a Llama whose matrices are blocks of random bits, for `spec-bench -m FILE`.

    gguf_shape.py OUT.gguf [--type q4_k] [--head q6_k] [--layers 32 --width 4096 --inner 11008 --heads 32 --kv 32 --vocab 32000]

What it writes means nothing; what a step of it costs is what the real one costs. Scales are small, so that activations stay of
order 1. Needs numpy."""
import argparse
import struct

import numpy as np

TYPES = {  # number in the file, weights and bytes of a block, where its float16 scales are (all are set)
    "q8_0": (8, 32, 34, [0]),
    "q4_0": (2, 32, 18, [0]),
    "q4_1": (3, 32, 20, [0, 2]),
    "q4_k": (12, 256, 144, [0, 2]),
    "q5_k": (13, 256, 176, [0, 2]),
    "q6_k": (14, 256, 210, [208]),
    "bf16": (30, 1, 2, []),
}
F32, ALIGN = 0, 32
U32, FLOAT, STRING = 4, 6, 8  # kinds of metadata


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def pair(key, kind, value):
    body = text(value) if kind == STRING else struct.pack("<f" if kind == FLOAT else "<I", value)
    return text(key) + struct.pack("<I", kind) + body


def tensors(a):
    """Name, type, rows, columns (rows 0: a vector)."""
    kv = a.width // a.heads * a.kv
    yield "token_embd.weight", a.type, a.vocab, a.width
    for i in range(a.layers):
        block = f"blk.{i}."
        for name, rows, columns in (("attn_q", a.width, a.width), ("attn_k", kv, a.width), ("attn_v", kv, a.width),
                                    ("attn_output", a.width, a.width), ("ffn_gate", a.inner, a.width),
                                    ("ffn_up", a.inner, a.width), ("ffn_down", a.width, a.inner)):
            yield f"{block}{name}.weight", a.type, rows, columns
        yield f"{block}attn_norm.weight", F32, 0, a.width
        yield f"{block}ffn_norm.weight", F32, 0, a.width
    yield "output_norm.weight", F32, 0, a.width
    yield "output.weight", a.head, a.vocab, a.width


def n_bytes(kind, rows, columns):
    if kind == F32:
        return 4 * columns
    _, weights, size, _ = TYPES[kind]
    return rows * columns // weights * size


def blocks(random, kind, rows, columns):
    _, weights, size, scales = TYPES[kind]
    data = random.integers(0, 256, (rows * columns // weights, size), dtype=np.uint8)
    if kind == "bf16":
        data[:, 1] = 0x3c  # 0.008 to 0.03
    for at in scales:
        data[:, at:at + 2] = np.frombuffer(np.float16(2e-5 if weights == 256 else 1e-3).tobytes(), np.uint8)
    return data.tobytes()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out")
    p.add_argument("--type", choices=TYPES, default="q4_k")
    p.add_argument("--head", choices=TYPES, default="q6_k")
    for name, value in (("layers", 32), ("width", 4096), ("inner", 11008), ("heads", 32), ("kv", 32), ("vocab", 32000)):
        p.add_argument("--" + name, type=int, default=value)
    a = p.parse_args()
    for name in ("width", "inner"):
        if getattr(a, name) % 256:
            p.error(f"--{name} {getattr(a, name)} is no multiple of 256, the weights of a block")
    meta = [pair("general.architecture", STRING, "llama"), pair("general.alignment", U32, ALIGN)]
    for key, value in (("block_count", a.layers), ("context_length", 4096), ("embedding_length", a.width),
                       ("feed_forward_length", a.inner), ("attention.head_count", a.heads),
                       ("attention.head_count_kv", a.kv), ("rope.dimension_count", a.width // a.heads), ("vocab_size", a.vocab)):
        meta.append(pair("llama." + key, U32, value))
    meta.append(pair("llama.attention.layer_norm_rms_epsilon", FLOAT, 1e-5))
    meta.append(pair("llama.rope.freq_base", FLOAT, 1e4))
    listed, at = [], 0
    for name, kind, rows, columns in tensors(a):
        dims = (columns,) if kind == F32 else (columns, rows)
        number = F32 if kind == F32 else TYPES[kind][0]
        listed.append(text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, number, at))
        at += (n_bytes(kind, rows, columns) + ALIGN - 1) // ALIGN * ALIGN
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(meta)) + b"".join(meta + listed)
    random = np.random.default_rng(1)
    with open(a.out, "wb") as f:
        f.write(head + bytes(-len(head) % ALIGN))
        for _, kind, rows, columns in tensors(a):
            data = np.ones(columns, np.float32).tobytes() if kind == F32 else blocks(random, kind, rows, columns)
            f.write(data + bytes(-len(data) % ALIGN))


if __name__ == "__main__":
    main()
