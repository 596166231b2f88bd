#!/usr/bin/env python3
"""Files that `spec convert` writes, read by the Python package `gguf`.

    check_gguf.py PROGRAM MODEL     ends with 1 when the package reads something else than was written; SKIPPED without the package

Converts MODEL to f32 and to other types. The package must find the same tensors, of the types that were asked for; blocks of 32 must be
its own, byte for byte, and the values of all blocks near those of the f32 file."""
import os
import subprocess
import sys
import tempfile

try:
    import gguf
    import numpy as np
except ImportError as e:
    print("SKIPPED: the Python package gguf is needed:", e)
    sys.exit(0)

NEAR = {"Q8_0": 0.01, "Q6_K": 0.03, "Q5_K": 0.06, "Q5_1": 0.06, "Q5_0": 0.07, "Q4_K": 0.12, "Q4_1": 0.12, "Q4_0": 0.14, "F16": 1e-3, "BF16": 8e-3,
        "F32": 0} # the root of the mean square of errors, as a share of that of the values
OWN = {"Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"}


def read(program, model, kind, path):
    subprocess.run([program, "convert", model, "-o", path, "--type", kind], check=True, stderr=subprocess.DEVNULL)
    return gguf.GGUFReader(path)


def check(name, made, plain):
    kind = made.tensor_type.name
    assert list(made.shape) == list(plain.shape), f"{name}: shape {made.shape}"
    x = plain.data.astype(np.float32)
    if kind in OWN:
        assert np.array_equal(gguf.quantize(x, made.tensor_type), made.data), f"{name}: the blocks of {kind} are others"
    y = gguf.dequantize(made.data, made.tensor_type).reshape(x.shape)
    error = float(np.sqrt(np.mean((x - y) ** 2)) / max(np.sqrt(np.mean(x * x)), 1e-12))
    assert error <= NEAR[kind], f"{name}: {kind}: error {error:.3g}"


def main():
    program, model = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as d:
        path = os.path.join(d, "m.gguf")
        plain = {t.name: t for t in read(program, model, "f32", os.path.join(d, "f32.gguf")).tensors}
        assert all(t.tensor_type.name == "F32" for t in plain.values())
        for kind in ("f16", "bf16", "q8_0", "q6_k", "q5_k", "q4_k", "q5_k_m", "q4_k_m", "q5_1", "q5_0", "q4_1", "q4_0"):
            made = read(program, model, kind, path)
            assert {t.name for t in made.tensors} == set(plain), f"{kind}: other tensors"
            for t in made.tensors:
                check(t.name, t, plain[t.name])
            tokens = made.fields["tokenizer.ggml.tokens"].contents()
            assert len(tokens) == int(plain["token_embd.weight"].shape[1]), f"{kind}: {len(tokens)} tokens"
            print(kind, len(made.tensors), "tensors,", sorted({t.tensor_type.name for t in made.tensors}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
