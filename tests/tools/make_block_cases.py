#!/usr/bin/env python3
"""Writes tests/golden/blocks.txt: what the Python package `gguf` makes of blocks of weights. Needs numpy and gguf (0.19).

    make_block_cases.py > tests/golden/blocks.txt

A line `all TYPE N SUM` is about N blocks of bytes that follow from their number (block_bytes below, and test_blocks.c), whose f16
scales take every value in turn: SUM is over the float32 bits of all values, with a NaN of any kind as 7fc00000. Lines
`one TYPE BLOCK VALUES` show a block and its float32 values, in hexadecimal."""
import sys

import gguf
import numpy as np

# type, values, bytes, where f16 scales are
TYPES = [("Q8_0", [0]), ("Q4_0", [0]), ("Q4_1", [0, 2]), ("Q5_0", [0]), ("Q5_1", [0, 2]), ("Q4_K", [0, 2]), ("Q5_K", [0, 2]),
         ("Q6_K", [208]), ("Q2_K", [80, 82]), ("Q3_K", [108]), ("IQ4_NL", [0]), ("IQ4_XS", [0]), ("MXFP4", []), ("F16", [0]), ("BF16", [0])]
N = 65536
SHIFT = np.uint64(40503) # odd: the second scale of block b is b times it, which takes every value as well


def mixed(x):
    """splitmix64's finalizer"""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def block_bytes(size, scales):
    """N blocks: eight bytes at a time from the number of the word, then the scales."""
    words = (size + 7) // 8
    x = mixed((np.arange(N * words, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    blocks = x.astype("<u8").view(np.uint8).reshape(N, words * 8)[:, :size].copy()
    number = np.arange(N, dtype=np.uint64)
    for k, at in enumerate(scales):
        blocks[:, at:at + 2] = (number * (SHIFT if k else np.uint64(1))).astype("<u2").view(np.uint8).reshape(N, 2)
    return blocks


def main():
    np.seterr(all="ignore")
    for name, scales in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        n, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = block_bytes(size, scales)
        values = gguf.dequantize(blocks, kind).astype("<f4").reshape(N, n)
        bits = values.view("<u4").astype(np.uint64)
        bits[np.isnan(values)] = 0x7FC00000
        odd = np.arange(N * n, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        print("all", name, N, f"{int((bits.reshape(-1) * odd).sum(dtype=np.uint64)):016x}")
        for b in (0x3001, 0xA2F7) if name not in ("F16", "BF16") else ():
            print("one", name, blocks[b].tobytes().hex(), values[b].astype(">f4").tobytes().hex())


if __name__ == "__main__":
    sys.exit(main())
