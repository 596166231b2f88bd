#!/usr/bin/env python3
"""Writes the public headers as a program of another version knows them.

    abi_headers.py ROOT OUT same              as they are
    abi_headers.py ROOT OUT cut               structs that grow lack their last field: an older program
    abi_headers.py ROOT OUT grow              they have one more at their end: a newer program
    abi_headers.py ROOT OUT insert STRUCT     STRUCT has one more in its middle, which must never be done
    abi_headers.py ROOT OUT names             the structs that grow, one a line

ROOT has spec.h and spec_trees.h. OUT also gets abi_structs.h: ABI_STRUCTS(X) is X(spec_request) ... for all that have a size.
A last field of the library's own (its name ends in _) was always there, and is not cut."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from check_structs import HEADERS, structs_of  # noqa: E402

ADDED = " unsigned char added[16];"


def same(text, _):
    return text


def cut(text, struct):
    last = struct.fields[-1]
    if last.name.endswith("_"):
        return text
    if last.begin == last.declaration:
        return text[:last.begin] + text[last.end + 1:]
    return text[:last.begin - 1] + text[last.end:]  # behind a comma


def grow(text, struct):
    end = struct.fields[-1].end + 1
    return text[:end] + ADDED + text[end:]


def insert(text, struct):
    fields = struct.fields["sized" in struct.kinds:]
    begin = fields[(len(fields) - 1) // 2].declaration
    return text[:begin] + ADDED + text[begin:]


CHANGES = {"same": same, "cut": cut, "grow": grow, "insert": insert}


def main(root, out, change, only=None):
    growing, sized = [], []
    for name in HEADERS:
        with open(os.path.join(root, name), encoding="utf-8") as f:
            text = f.read()
        structs = [s for s in structs_of(text) if "frozen" not in s.kinds]
        growing += [s.name for s in structs]
        sized += [s.name for s in structs if "sized" in s.kinds]
        if change == "names":
            continue
        for struct in reversed(structs):  # from the end, so that places stay
            if only in (None, struct.name):
                text = CHANGES[change](text, struct)
        with open(os.path.join(out, name), "w", encoding="utf-8") as f:
            f.write(text)
    if change == "names":
        print("\n".join(growing))
    else:
        with open(os.path.join(out, "abi_structs.h"), "w", encoding="utf-8") as f:
            f.write("#define ABI_STRUCTS(X) %s\n" % " ".join("X(%s)" % s for s in sized))


if __name__ == "__main__":
    main(*sys.argv[1:])
