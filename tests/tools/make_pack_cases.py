#!/usr/bin/env python3
"""Writes tests/golden/packed.txt: the blocks that the Python package `gguf` makes of float32. Needs numpy and gguf (0.19).

    make_pack_cases.py > tests/golden/packed.txt

A line `all TYPE N SUM` is about N blocks of values that follow from their number (values below, and test_pack.c): SUM is over all
bytes. Lines `one TYPE NUMBER BLOCK` show a block in hexadecimal."""
import sys

import gguf
import numpy as np

from make_block_cases import mixed

TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]
N, VALUES, KINDS = 20000, 32, 5
SIZES = np.array([2.0, 0.03, 1e-4, 17.0, 900.0, 127.0, 16.0], dtype=np.float32)


def values():
    """Block b, by b % 5: numbers of both signs; of one; multiples of a half, of which many lie between two numbers; many zeros; one
    number everywhere (and 0.25 more). Each is a whole number of 24 bits times a size over 2^23."""
    block = np.repeat(np.arange(N), VALUES)
    hashed = mixed((np.arange(N * VALUES, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15))
    whole = (hashed >> np.uint64(40)).astype(np.int64) - (1 << 23)
    size = SIZES[block % len(SIZES)] / np.float32(1 << 23)
    kind = block % KINDS
    x = whole.astype(np.float32) * size
    x = np.where(kind == 1, np.abs(x), x)
    x = np.where(kind == 2, (whole // (1 << 18)).astype(np.float32) * np.float32(0.5), x)
    x = np.where((kind == 3) & (hashed % np.uint64(4) != 0), np.float32(0), x)
    x = x.reshape(N, VALUES)
    return np.where(kind.reshape(N, VALUES) == 4, x[:, :1] + np.float32(0.25), x)


def main():
    np.seterr(all="ignore")
    x = values()
    for name in TYPES:
        blocks = gguf.quantize(x, gguf.GGMLQuantizationType[name])
        odd = np.arange(blocks.size, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        print("all", name, N, f"{int((blocks.reshape(-1).astype(np.uint64) * odd).sum(dtype=np.uint64)):016x}")
        for b in (0, 1, 2, 3, 4, 1234):
            print("one", name, b, blocks[b].tobytes().hex())


if __name__ == "__main__":
    sys.exit(main())
