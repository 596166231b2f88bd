#!/usr/bin/env python3
"""Checks the order of the house: no circle of files, no arrow up, a few rooms that keep to themselves, and mixers that few files
know by name.

    check_rooms.py [ROOT]        the tree at ROOT (.): prints what is wrong, and counts; ends with 1 when something is
    check_rooms.py --self-test   plants every kind of fault in a small tree, and a few traps that are none

A file points at another when it includes it, and a source also when it names a function that the other defines for
others: calling is not needed, since a table of functions depends on them as well. Headers name functions to declare
them, so that what their inline functions call does not count."""
import os
import re
import sys
import tempfile

# Lower rooms first: a file points at its own room and at lower ones.
ROOMS = ["spec.h", "core", "backends", "models", "algorithms", "cli"]

# Files under the first path point at nothing but what lies under the others.
KEEPS_TO = [
    ("models/text", ["models/text", "core", "spec.h"]),
    ("algorithms/tree", ["algorithms/tree", "models", "backends", "core", "spec.h"]),
]

# What only files under a path include.
OWN_HEADERS = [("backends/cuda", re.compile(r"cuda|cublas|nccl|nvtx|\.cuh$"))]

# How many files may name a mixer (its row, its struct, or a kind of its own), but for those of the families that have it.
MIXER_MOST, MIXER_USERS = 3, "models/families"
MIXER_ROW = re.compile(r"^const net_mixer speci_mixer_(\w+) =", re.M)
MIXER_STRUCT = re.compile(r"^} (model_\w+);", re.M)

SOURCE = re.compile(r"\.(c|h|cu|cuh)$")
HEADER = re.compile(r"\.(h|cuh)$")
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]+)[>\"]", re.M)
COMMENT_OR_STRING = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])+'", re.S)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
STATIC_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t].*\bstatic\b", re.M)
CALLED_OR_NAMED = re.compile(r"(?<![\w.])(?<!->)[A-Za-z_]\w*")


def is_under(path, room):
    return path == room or path.startswith(room + "/")


def blank(match):
    """As many lines as there were: what stands on either side must not run together."""
    return " " + "\n" * match.group().count("\n")


def sources(root):
    for room in ROOMS:
        top = os.path.join(root, room)
        if os.path.isfile(top):
            yield room
        for folder, _, names in os.walk(top):
            for name in names:
                if SOURCE.search(name):
                    yield os.path.relpath(os.path.join(folder, name), root).replace(os.sep, "/")


def function_named(head):
    """The function that `head {` begins to define, or None: the name before the last parentheses outside of others."""
    if not head.rstrip().endswith(")"):
        return None
    depth, start = 0, None
    for i, c in enumerate(head):
        if c == "(":
            start = i if depth == 0 else start
            depth += 1
        elif c == ")":
            depth -= 1
    name = re.search(r"([A-Za-z_]\w*)\s*$", head[:start])
    return name.group(1) if name else None


def functions(code):
    """(name, whether for others) of each function that code defines at file scope; no comments or strings in it."""
    static = re.compile(rf"\b({'|'.join(['static'] + STATIC_MACRO.findall(code))})\b")
    text = DIRECTIVE.sub(blank, code)
    found, head, depth = [], 0, 0
    for m in re.finditer(r"[{};]", text):
        c = m.group()
        if c == "{":
            before = text[head:m.start()]
            if depth == 0 and re.search(r"\b(extern|namespace(\s+\w+)?)\s*$", before):
                head = m.end() # a linkage or a namespace: still file scope; its brace closes below
                continue
            if depth == 0 and (name := function_named(before)):
                found.append((name, not static.search(before)))
            depth += 1
        elif c == "}":
            depth = max(depth - 1, 0)
        if depth == 0:
            head = m.end()
    return found


def arrows(root):
    """{file: the files that it points at}, {file: what it includes, as written}, and {file: its code without comments}."""
    code, includes, local, definers = {}, {}, {}, {}
    for path in sorted(sources(root)):
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as f:
            raw = f.read()
        includes[path] = INCLUDE.findall(raw)
        code[path] = COMMENT_OR_STRING.sub(blank, raw)
        local[path] = set()
        for name, is_shared in functions(code[path]):
            local[path].add(name)
            if is_shared and not HEADER.search(path):
                definers.setdefault(name, set()).add(path)
    points = {path: set() for path in code}
    for path in code:
        for name in includes[path]:
            beside = os.path.normpath(os.path.join(os.path.dirname(path), name))
            points[path].update([p for p in (name, beside) if p in points][:1])
        if not HEADER.search(path):
            for name in set(CALLED_OR_NAMED.findall(code[path])) - local[path]:
                points[path].update(definers.get(name, ()))
        points[path].discard(path)
    return points, includes, code


def mixers(code):
    """{mixer: the files that name it, but for families}"""
    found = {}
    for path in code:
        for mixer in MIXER_ROW.findall(code[path]):
            names = [f"speci_mixer_{mixer}", f"model_{mixer}"] + MIXER_STRUCT.findall(code.get(path[:-1] + "h", ""))
            word = re.compile(rf"\b({'|'.join(names)})\b", re.I)
            found[mixer] = sorted(p for p in code if word.search(code[p]) and not is_under(p, MIXER_USERS))
    return found


def circles(points):
    """The sets of files, of two and more, in which each reaches each other (Tarjan's strongly connected components)."""
    order, lowest, stack, found = {}, {}, [], []

    def visit(v):
        order[v] = lowest[v] = len(order)
        stack.append(v)
        for w in sorted(points[v]):
            if w not in order:
                visit(w)
            if w in stack:
                lowest[v] = min(lowest[v], lowest[w])
        if lowest[v] == order[v]:
            at = stack.index(v)
            if len(stack) - at > 1:
                found.append(sorted(stack[at:]))
            del stack[at:]

    sys.setrecursionlimit(100000)
    for v in sorted(points):
        if v not in order:
            visit(v)
    return found


def shortest_way(points, inside, start):
    """One way from start back to it, through files of `inside`: what to cut."""
    ways = [[start]]
    while ways:
        way = ways.pop(0)
        for w in sorted(points[way[-1]] & inside):
            if w == start:
                return way + [start]
            inside = inside - {w}
            ways.append(way + [w])
    return [start]


def check(root):
    """(sentences that say what is wrong, their counts as one line)"""
    points, includes, code = arrows(root)
    said = []
    found = circles(points)
    for circle in found:
        said.append(f"circle of {len(circle)}: {', '.join(circle)}")
        said.append("    such as " + " -> ".join(shortest_way(points, set(circle), circle[0])))
    rank = {path: next(i for i, room in enumerate(ROOMS) if is_under(path, room)) for path in points}
    up = [(a, b) for a in sorted(points) for b in sorted(points[a]) if rank[a] < rank[b]]
    said += [f"up: {a} -> {b}" for a, b in up]
    strays = [(a, b) for room, allowed in KEEPS_TO for a in sorted(points) if is_under(a, room)
              for b in sorted(points[a]) if not any(is_under(b, x) for x in allowed)]
    said += [f"not this room's to know: {a} -> {b}" for a, b in strays]
    taken = [(a, name) for room, own in OWN_HEADERS for a in sorted(points) if not is_under(a, room)
             for name in includes[a] if own.search(name)]
    said += [f"another room's header: {a} includes {name}" for a, name in taken]
    named = mixers(code)
    crowds = {mixer: files for mixer, files in named.items() if len(files) > MIXER_MOST}
    said += [f"mixer {mixer}: {len(files)} files name it, {', '.join(files)}" for mixer, files in sorted(crowds.items())]
    counts = (f"{len(points)} files: {len(found)} circles, {len(up)} arrows up, "
              f"{len(strays)} arrows out of a closed room, {len(taken)} headers of another room, "
              f"{len(crowds)} of {len(named)} mixers that more than {MIXER_MOST} files name")
    return said, counts


# ------------------------------------------------------------------------------------------- the self-test ---

CLEAN = {
    "spec.h": "int spec_open(void);",
    "core/core.h": """
        #include "spec.h"
        int speci_alloc(int n);""",
    "core/core_alloc.c": """
        #include "core/core.h"
        int speci_alloc(int n) { return n; }""",
    "backends/backend.h": """
        #include "core/core.h"
        int speci_run(int (*each)(int));""",
    "backends/backend.c": """
        #include "backends/backend.h"
        int speci_run(int (*each)(int)) { return each(speci_alloc(1)); }""",
    "backends/cuda/cuda.cuh": "#include <cuda_runtime.h>",
    "backends/cuda/cuda_a.cu": """
        #include "cuda.cuh"
        extern "C" {
        int spec_cuda_a(void) { return 1; }
        }""",
    "models/model.h": """
        #include "backends/backend.h"
        int speci_model(int n);""",
    "models/model.c": """
        #include "models/model.h"
        int speci_model(int n)
        {
            return speci_run(0) + n;
        }""",
    "models/net/net_mixer.h": "typedef struct net_mixer { int n; } net_mixer;",
    "models/net/net_mixer_gate.h": """
        #include "models/net/net_mixer.h"
typedef struct model_gate {
    int n;
} model_gate;
extern const net_mixer speci_mixer_gate;""",
    "models/net/net_mixer_gate.c": """
        #include "models/net/net_mixer_gate.h"
const net_mixer speci_mixer_gate = { sizeof(model_gate) };""",
    "models/families/family_a.c": """
        #include "models/net/net_mixer_gate.h"
        int speci_family_a(void) { model_gate g = { 1 }; return g.n + speci_mixer_gate.n; }""",
    "models/families/family_b.c": """
        #include "models/net/net_mixer_gate.h"
        int speci_family_b(void) { return speci_mixer_gate.n; }""",
    "models/text/text.c": """
        #include "core/core.h"
        int speci_text(void) { return speci_alloc(2); }""",
    "algorithms/tree/tree.c": """
        #include "models/model.h"
        int speci_tree(void) { return 0; }""",
    "algorithms/engine/engine.c": """
        #include "models/model.h"
        int speci_step(void) { return speci_model(speci_tree()); }""",
    "cli/main.c": """
        #include "spec.h"
        int main(void) { return spec_open(); }""",
}

# (what is planted, {file: text at its end}, what must be said; "" where nothing is wrong)
FAULTS = [
    ("nothing", {}, ""),
    ("a circle of includes",
     {"core/core.h": '#include "core/core_b.h"',
      "core/core_b.h": '#include "core/core.h"'}, "circle of 2: core/core.h, core/core_b.h"),
    ("a circle of includes from beside",
     {"core/core.h": '#include "b.h"',
      "core/b.h": '#include "core.h"'}, "circle of 2: core/b.h, core/core.h"),
    ("a circle of calls",
     {"models/model.c": "int speci_a(void) { return speci_b(); }",
      "models/model_b.c": "int speci_b(void) { return speci_model(1); }"},
     "circle of 2: models/model.c, models/model_b.c"),
    ("a circle of three",
     {"core/a.c": "int speci_a(void) { return speci_b(); }",
      "core/b.c": "int speci_b(void) { return speci_c(); }",
      "core/c.c": "int speci_c(void) { return speci_a(); }"}, "such as core/a.c -> core/b.c -> core/c.c -> core/a.c"),
    ("a circle through a table",
     {"core/a.c": "int (*table[])(void) = { speci_b }; int speci_a(void) { return table[0](); }",
      "core/b.c": "int speci_b(void) { return speci_a(); }"}, "circle of 2: core/a.c, core/b.c"),
    ("a circle of kernels",
     {"backends/cuda/cuda_a.cu": "__global__ void __launch_bounds__(256) spec_k(int (*f)(int)) { spec_cuda_b<4>(); }",
      "backends/cuda/cuda_b.cu": "template <int N> void spec_cuda_b(void) { spec_k<<<1, 1>>>(0); }"},
     "circle of 2: backends/cuda/cuda_a.cu, backends/cuda/cuda_b.cu"),
    ("an include up",
     {"core/core_alloc.c": '#include "models/model.h"'}, "up: core/core_alloc.c -> models/model.h"),
    ("a call up",
     {"backends/backend.c": "int speci_b(void) { return speci_model(1); }"},
     "up: backends/backend.c -> models/model.c"),
    ("a call up to the program",
     {"algorithms/engine/engine.c": "int speci_b(void) { return cli_help(); }",
      "cli/help.c": "int cli_help(void) { return 1; }"}, "up: algorithms/engine/engine.c -> cli/help.c"),
    ("a tree that knows a session",
     {"algorithms/tree/tree.c": "int speci_b(void) { return speci_step(); }"},
     "not this room's to know: algorithms/tree/tree.c -> algorithms/engine/engine.c"),
    ("text that knows devices",
     {"models/text/text.c": '#include "backends/backend.h"'},
     "not this room's to know: models/text/text.c -> backends/backend.h"),
    ("text that knows models",
     {"models/text/text.c": "int speci_b(void) { return speci_model(1); }"},
     "not this room's to know: models/text/text.c -> models/model.c"),
    ("a header of CUDA outside",
     {"models/model.c": "#include <cuda_runtime.h>"}, "another room's header: models/model.c includes cuda_runtime.h"),
    ("a header of a kernel outside",
     {"backends/backend.c": '#include "backends/cuda/cuda.cuh"'},
     "another room's header: backends/backend.c includes backends/cuda/cuda.cuh"),
    ("a mixer that a third file names",
     {"models/net/net_plan.c": "extern const net_mixer speci_mixer_gate;"}, ""),
    ("a mixer that four files name: its row in a table, its struct elsewhere",
     {"models/net/net_table.c": "const net_mixer *const table[] = { &speci_mixer_gate };",
      "models/net/net_plan.c": "int speci_plan(const model_gate *g) { return g->n; }"},
     "mixer gate: 4 files name it, models/net/net_mixer_gate.c, models/net/net_mixer_gate.h, models/net/net_plan.c, "
     "models/net/net_table.c"),
    ("a mixer that four files name: as a kind",
     {"models/net/net_mixer.h": "typedef enum model_kind { MODEL_GATE } model_kind;",
      "algorithms/tree/tree.c": "int speci_kind(void) { return MODEL_GATE; }"}, "mixer gate: 4 files name it"),
    ("names in a comment, in a string, of a member",
     {"core/core_alloc.c": """
        /* speci_model(1) */ // speci_step()
        int speci_b(row *r) { return r->speci_step() + r[0].speci_model("speci_run()"); }"""}, ""),
    ("a static function with the name of another's",
     {"core/core_alloc.c": """
        static int speci_model(int n)
        {
            return n;
        }
        int speci_b(void) { return speci_model(1); }"""}, ""),
    ("a function that a macro makes static",
     {"models/model.c": """
        #define TILE static inline
        TILE int rows(int n) { return n; }""",
      "core/core_alloc.c": "int speci_b(int rows) { return rows; }"}, ""),
    ("a declaration",
     {"core/core.h": "int speci_model(int n);"}, ""),
]


def write(root, path, text):
    os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
    with open(os.path.join(root, path), "w", encoding="utf-8") as f:
        f.write(text)


def self_test():
    n_wrong = 0
    for name, planted, expected in FAULTS:
        with tempfile.TemporaryDirectory() as root:
            for path in {**CLEAN, **planted}:
                write(root, path, CLEAN.get(path, "") + "\n" + planted.get(path, "") + "\n")
            said, counts = check(root)
        if said if not expected else not any(expected in s for s in said):
            n_wrong += 1
            print(f"planted {name}: expected \"{expected}\", got:", *said, counts, sep="\n    ")
    print(f"{len(FAULTS)} small trees, {n_wrong} judged wrongly")
    return n_wrong


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    said, counts = check(sys.argv[1] if len(sys.argv) > 1 else ".")
    print(*said, counts, sep="\n")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
