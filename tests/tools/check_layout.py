#!/usr/bin/env python3
"""Checks that sources in C and CUDA can be read on a screen: no function is longer than one, and no line is wider.

    check_layout.py [ROOT]        the tree at ROOT (.): prints what is too long, and counts; ends with 1 when something is
    check_layout.py --self-test   plants what is too long in a small tree, and what is just short enough

A function begins with a brace in the first column, and ends with one. Code of a device may be long: its phases share registers, and are
labelled."""
import os
import sys
import tempfile

FUNCTION, LINE = 60, 140  # lines with the braces; characters
ENDINGS = (".c", ".h", ".cpp", ".cu", ".cuh")


def sources_of(root):
    for folder, below, names in os.walk(root):
        inside = os.path.relpath(folder, root)
        below[:] = sorted(b for b in below if not b.startswith((".", "build")) or inside == "algorithms")
        for name in sorted(names):
            if name.endswith(ENDINGS):
                yield os.path.join(folder, name)


def is_on_device(lines, begin):
    """Is the function whose brace is line `begin` one of a device? Its head begins behind what ends with ; } or nothing."""
    for line in reversed(lines[:begin - 1]):
        if not line or line[-1] in ";}":
            return False
        if "__global__" in line or "__device__" in line or "SPEC_HD" in line:
            return True
    return False


def faults_of(lines):
    begin = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            begin = None if is_on_device(lines, number) else number
        elif line == "}" and begin:
            if number - begin + 1 > FUNCTION:
                yield "%d: a function of %d lines, where %d are the most" % (begin, number - begin + 1, FUNCTION)
            begin = None
        if len(line) > LINE:
            yield "%d: %d characters, where %d are the most" % (number, len(line), LINE)


def check(root, say):
    n_source = n_fault = 0
    for path in sources_of(root):
        n_source += 1
        with open(path, encoding="utf-8") as f:
            for fault in faults_of(f.read().split("\n")):
                n_fault += 1
                say("%s:%s" % (os.path.relpath(path, root), fault))
    say("%d sources, %d faults" % (n_source, n_fault))
    return n_fault


def body(n):
    return "static void f(void)\n{\n" + "    g();\n" * (n - 2) + "}\n"


# (file, its text, what is said of it; "": nothing)
PLANTED = [
    ("core/core_a.c", body(60), ""),
    ("core/core_a.c", body(61), "2: a function of 61 lines, where 60 are the most"),
    ("tests/test_a.c", body(61), "2: a function of 61 lines, where 60 are the most"),
    ("core/core_a.c", "x\n" * 70 + body(3), ""),
    ("core/core_a.h", "/*" + "." * 138 + "\n", ""),
    ("core/core_a.h", "/*" + "." * 139 + "\n", "1: 141 characters, where 140 are the most"),
    ("spec.h", "." * 141, "1: 141 characters, where 140 are the most"),
    ("algorithms/build/build_a.c", "." * 141, "1: 141 characters, where 140 are the most"),
    ("tests/test_a.c", "." * 141, "1: 141 characters, where 140 are the most"),
    ("backends/cuda/cuda_a.cu", "." * 141, "1: 141 characters, where 140 are the most"),
    ("backends/cuda/cuda_a.cuh", body(61), "2: a function of 61 lines, where 60 are the most"),
    ("backends/cuda/cuda_a.cu", "static __global__ void f(int a,\n    int b)\n" + body(61).split("\n", 1)[1], ""),
    ("backends/cuda/cuda_a.cu", "static __device__ int f(void);\n" + body(61), "3: a function of 61 lines, where 60 are the most"),
    ("build/made.c", "." * 141, ""),
    ("core/core_a.c", "/* " + "\u00d7" * 137 + "\n", ""),
]


def self_test():
    n_wrong = 0
    for file, text, expected in PLANTED:
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.dirname(os.path.join(root, file)), exist_ok=True)
            with open(os.path.join(root, file), "w", encoding="utf-8") as f:
                f.write(text)
            said = []
            check(root, said.append)
            if said[:-1] != (["%s:%s" % (file, expected)] if expected else []):
                n_wrong += 1
                print("%s: expected \"%s\", found %s" % (file, expected, said))
    print("%d planted, %d wrong" % (len(PLANTED), n_wrong))
    return n_wrong


def main():
    if sys.argv[1:] == ["--self-test"]:
        return min(self_test(), 1)
    return min(check(sys.argv[1] if len(sys.argv) > 1 else ".", print), 1)


if __name__ == "__main__":
    sys.exit(main())
