#!/usr/bin/env python3
"""Checks that public structs can grow, or say that they will not.

    check_structs.py [ROOT]        spec.h and spec_trees.h of the tree at ROOT (.); ends with 1 when something is wrong
    check_structs.py --self-test   plants every kind of fault, and a few traps that are none

A struct of these headers begins with struct_size; or the comment behind its closing brace says "frozen": no field will be added;
or "grows": only the library makes it, and hands out pointers. One of these, not two."""
import collections
import os
import re
import sys

HEADERS = ("spec.h", "spec_trees.h")
COMMENT = re.compile(r"/\*.*?\*/", re.S)
STRUCT = re.compile(r"\bstruct\s+(\w+)\s*\{([^{}]*)\}[^;]*;")
KINDS = ("sized", "frozen", "grows")

# begin, end: of the declarator, in the header; declaration: where that begins, which may have several.
Field = collections.namedtuple("Field", "name declaration begin end")


def split_outside(text, mark):
    """The parts of text between marks that stand in no parentheses or brackets, and where each begins."""
    depth, begin = 0, 0
    for i, c in enumerate(text):
        depth += (c in "([") - (c in ")]")
        if c == mark and depth == 0:
            yield begin, text[begin:i]
            begin = i + 1
    yield begin, text[begin:]


def name_of(declarator):
    called = re.search(r"\(\s*\*\s*(\w+)\s*\)", declarator)
    return called.group(1) if called else re.findall(r"\w+", re.sub(r"\[.*", "", declarator))[-1]


class Struct:
    """name; fields in their order; kinds: which of KINDS hold."""

    def __init__(self, text, match):
        self.name, self.fields = match.group(1), []
        for begin, declaration in split_outside(match.group(2), ";"):
            for at, declarator in split_outside(declaration, ",") if declaration.strip() else ():
                place = match.start(2) + begin
                self.fields.append(Field(name_of(declarator), place, place + at, place + at + len(declarator)))
        said = text[match.end():].split("\n", 1)[0]
        holds = {"sized": self.fields[0].name == "struct_size", "frozen": re.search(r"\bfrozen\b", said),
                 "grows": re.search(r"\bgrows\b", said)}
        self.kinds = [kind for kind in KINDS if holds[kind]]


def structs_of(text):
    """The structs of a header. Comments are blanked before it is read, so places stay."""
    bare = COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m.group()), text)
    return [Struct(text, match) for match in STRUCT.finditer(bare)]


def faults_of(text):
    for s in structs_of(text):
        if not s.kinds:
            yield "%s neither begins with struct_size nor is said to be frozen" % s.name
        if len(s.kinds) > 1:
            yield "%s is said to be %s" % (s.name, " and ".join(s.kinds))


def check(root):
    n_struct, faults = 0, []
    for name in HEADERS:
        with open(os.path.join(root, name), encoding="utf-8") as f:
            text = f.read()
        n_struct += len(structs_of(text))
        faults += ["%s: %s" % (name, fault) for fault in faults_of(text)]
    print("\n".join(faults + ["%d structs, %d faults" % (n_struct, len(faults))]))
    return len(faults) + (n_struct == 0)


SOUND = """
typedef struct spec_a spec_a; /* opaque */
/* Parameters of what is frozen water. */

typedef struct spec_b { /* an ice */
    size_t struct_size;
    void (*each)(void *user, int32_t a[2], int b); /* struct spec_z { int a; } */
    const float *p, *q;
} spec_b;
typedef struct spec_c {
    int32_t x, y[3];
} spec_c; /* frozen */
/* What grows, and is never frozen. */
typedef struct spec_d {
    int32_t a;
} spec_d; /* a thing, frozen */
typedef struct spec_e {
    const char *text;
} spec_e; /* grows */
struct spec_f {
    size_t struct_size;
};
"""
PLANTED = [
    ("} spec_c; /* frozen */", "} spec_c; /* a pair */", ["spec_c neither begins with struct_size nor is said to be frozen"]),
    ("a thing, frozen", "freezing", ["spec_d neither begins with struct_size nor is said to be frozen"]),
    ("} spec_e; /* grows */", "} spec_e;", ["spec_e neither begins with struct_size nor is said to be frozen"]),
    ("    size_t struct_size;\n    void", "    int32_t n;\n    size_t struct_size;\n    void",
     ["spec_b neither begins with struct_size nor is said to be frozen"]),
    ("} spec_b;", "} spec_b; /* frozen */", ["spec_b is said to be sized and frozen"]),
]
FIELDS = {"spec_b": ["struct_size", "each", "p", "q"], "spec_c": ["x", "y"], "spec_d": ["a"], "spec_e": ["text"],
          "spec_f": ["struct_size"]}


def self_test():
    missed = 0
    found = {s.name: [field.name for field in s.fields] for s in structs_of(SOUND)}
    if found != FIELDS or list(faults_of(SOUND)):
        print("a sound header is blamed, or misread: %s %s" % (found, list(faults_of(SOUND))))
        missed += 1
    for before, after, want in PLANTED:
        assert before in SOUND
        said = list(faults_of(SOUND.replace(before, after)))
        if said != want:
            print("planted: %s\nwanted: %s\nfound: %s" % (after, want, said))
            missed += 1
    print("%d faults planted, %d missed" % (len(PLANTED), missed))
    return missed


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else "."
    sys.exit(1 if (self_test() if argument == "--self-test" else check(argument)) else 0)
