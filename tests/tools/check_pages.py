#!/usr/bin/env python3
"""Checks the pages: what they name is there, they and the examples stay short, and they speak to users.

    check_pages.py [ROOT]        the tree at ROOT (.): prints what is wrong, and counts; ends with 1 when something is
    check_pages.py --self-test   plants every kind of fault in a small tree, and a few traps that are none

A page is a Markdown file. Its links lead to files and headings. The paths, the sources, the sections of algorithms.md
and the library's names that it mentions are there. Code with names of the library's inside is quoted from a source. No commit is named in it (of other projects: "owner/name @ revision").
Labels have words behind them, and what stands in angle brackets is code, since it would be a tag elsewhere.
It is understood at the first reading: no sentence and no paragraph is longer than such a one can be. (The changelog has a line for each change.)
Comments of sources cite pages by the same rules. docs/api.md names each public function."""
import bisect
import fnmatch
import os
import re
import sys
import tempfile

INDEX, HEADERS = "docs/api.md", ("spec.h", "spec_trees.h")
WORDS, CHARACTERS = 40, 700  # of a sentence; of a paragraph or an item of a list. A piece of code is a word, a link its text
UNDER = {"README.md": 150, "docs/performance.md": 150, "CHANGELOG.md": 30, "examples/*.c": 61}  # lines

ROOMS = "algorithms|backends|cli|cmake|core|docs|examples|models|tests"
SOURCE = re.compile(r"\.(c|h|cu|cuh|cpp|py|js|sh|html|txt|cmake)$")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"(?<![\w/.$<>-])((?:%s)/[\w./*<>-]*[\w*>])" % ROOMS)
FILE = re.compile(r"`([\w*<>-]+\.(?:c|h|cu|cuh|cpp|py|sh|md))`")
NAME = re.compile(r"(?<![\w/.-])(?:speci?|SPECI?)_\w+")
FUNCTION = re.compile(r"^SPEC_API[^;(]*?\b(spec_\w+)\(", re.M)
MADE_UP = {"spec_noun_verb", "speci_draft_repeat"}  # how names are formed; an example's
PAGE = re.compile(r"(?<![\w/.-])(docs/[\w./-]*\w)")
SECTION = re.compile(r"\balgorithms\.md(?:\]\([\w./]*\))?,? \(?(\d+(?:\.\d+)?)(?![\w/])")
COMMIT = re.compile(r"(?<!@ )\b(?=[0-9a-f]*[0-9])(?=[0-9a-f]*[a-f])[0-9a-f]{7,40}\b")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)
CODE = re.compile(r"^```c\n(.*?)^```", re.M | re.S)
INSIDE = re.compile(r"\bspeci_\w+")
NO_PROSE = re.compile(r"^(?:\||    |#|!).*$", re.M)  # tables, code, headings, pictures
BETWEEN = re.compile(r"\n\s*\n|\n(?= *(?:[-*]|\d+\.) )")  # paragraphs and items
MARK = re.compile(r"\A\s*(?:[-*]|\d+\.) ")
LABEL = re.compile(r"^\*\*([^*\n]+)\.\*\* +\*\*", re.M)  # and the next one right behind
TAG = re.compile(r"<[A-Za-z/][^>\n]*>")
SENTENCE = re.compile(r"(?<=[.;:?!])[)*\"']*\s+")


def flat(code):
    return " ".join(code.split())


def files_of(root):
    for folder, below, names in os.walk(root):
        inside = os.path.relpath(folder, root).replace(os.sep, "/")
        below[:] = [b for b in below if not b.startswith((".", "build")) or inside.startswith("algorithms")]
        for name in names:
            yield name if inside == "." else inside + "/" + name


def anchors_of(text):
    """The names of headings: small letters, no punctuation, hyphens for spaces, numbered where they repeat."""
    seen, out = {}, set()
    for title in re.findall(r"^#+ +(.*)$", FENCE.sub("", text), re.M):
        name = re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")
        out.add(name if name not in seen else "%s-%d" % (name, seen[name]))
        seen[name] = seen.get(name, 0) + 1
    return out


class Tree:
    def __init__(self, root):
        self.root = root
        self.files = sorted(files_of(root))
        self.names = {f.rsplit("/", 1)[-1] for f in self.files}
        self.pages = {f: self.read(f) for f in self.files if f.endswith(".md")}
        self.anchors = {f: anchors_of(text) for f, text in self.pages.items()}
        algorithms = self.pages.get("docs/algorithms.md", "")
        self.words = sorted({w for f in self.files if SOURCE.search(f) for w in NAME.findall(self.read(f))} | MADE_UP)
        self.sources = [flat(self.read(f)) for f in self.files if f.endswith((".c", ".h", ".cu", ".cuh"))]
        self.sections = set(re.findall(r"^#+ +(\d+(?:\.\d+)?)[. ]", algorithms, re.M))

    def read(self, file):
        with open(os.path.join(self.root, file), encoding="utf-8", errors="replace") as f:
            return f.read()

    def has(self, path):
        pattern = re.sub(r"<[^>]*>", "*", path).rstrip("/")
        if "*" in pattern:
            return any(fnmatch.fnmatch(f, pattern) for f in self.files)
        return os.path.exists(os.path.join(self.root, pattern))

    def has_word(self, word):
        """Is it a name of the sources, or the beginning of one? "spec_tree_..." stands for several."""
        at = bisect.bisect_left(self.words, word)
        return at < len(self.words) and self.words[at].startswith(word)

    def has_name(self, name):
        return any(fnmatch.fnmatch(n, re.sub(r"<[^>]*>", "*", name)) for n in self.names)


def broken_link(tree, page, target):
    if re.match(r"[a-z]+:", target):
        return None
    path, _, anchor = target.partition("#")
    path = os.path.normpath(os.path.join(os.path.dirname(page), path)).replace(os.sep, "/") if path else page
    if not tree.has(path):
        return "a link to %s, which is not there" % target
    if anchor and anchor not in tree.anchors.get(path, ()):
        return "a link to %s, which has no such heading" % target
    return None


def faults_of_page(tree, page, text):
    for target in LINK.findall(text):
        fault = broken_link(tree, page, target)
        if fault:
            yield fault
    for path in PATH.findall(LINK.sub(" ", text)):
        if not tree.has(path):
            yield "the path %s, which is not there" % path
    for name in FILE.findall(text):
        if not tree.has_name(name):
            yield "the file %s, which is not there" % name
    for word in sorted({w for code in re.findall(r"`([^`\n]+)`", text) + FENCE.findall(text) for w in NAME.findall(code)}):
        if not tree.has_word(word):
            yield "the name %s, which no source has" % word
    for code in CODE.findall(text):
        names = set(INSIDE.findall(code))
        if names and not names & MADE_UP and not any(flat(code) in source for source in tree.sources):
            yield "code that no source has: %s" % code.strip().split("\n")[0]
    for label in LABEL.findall(text):
        yield "the label %s, behind which nothing stands" % label
    for tag in TAG.findall(re.sub(r"^    .*$", "", re.sub(r"`[^`\n]*`", "", FENCE.sub("", text)), flags=re.M)):
        yield "%s, which readers do not see: it is no code" % tag
    for commit in COMMIT.findall(text):
        yield "the commit %s" % commit


def faults_of_reading(text):
    """Sentences and paragraphs that nobody takes in at once."""
    for block in BETWEEN.split(NO_PROSE.sub("", FENCE.sub("", text))):
        prose = flat(re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", MARK.sub("", block))))
        if len(prose) > CHARACTERS:
            yield "a paragraph of %d characters, where %d are the most: %s" % (len(prose), CHARACTERS, prose[:40])
        for sentence in SENTENCE.split(prose):
            if len(sentence.split()) > WORDS:
                yield "a sentence of %d words, where %d are the most: %s" % (len(sentence.split()), WORDS, sentence[:40])


def faults_of_length(file, text):
    lines = text.count("\n")
    for pattern, limit in UNDER.items():
        if fnmatch.fnmatch(file, pattern) and lines >= limit:
            yield "%d lines, where it has to stay under %d" % (lines, limit)


def faults_of_citations(tree, text):
    for section in SECTION.findall(text):
        if section not in tree.sections:
            yield "section %s of algorithms.md, which is not there" % section


def faults_of_index(tree, header):
    """Functions of a public header that the index leaves out."""
    named = set(re.findall(r"`(spec_\w+)`", tree.pages.get(INDEX, "")))
    for function in FUNCTION.findall(tree.read(header)) if header in tree.files else ():
        if function not in named:
            yield "the function %s, which %s does not name" % (function, INDEX)


def check(root):
    tree, faults, n_source = Tree(root), [], 0
    for header in HEADERS:
        faults += [(header, f) for f in faults_of_index(tree, header)]
    for page, text in tree.pages.items():
        faults += [(page, f) for f in faults_of_page(tree, page, text)]
        faults += [(page, f) for f in faults_of_citations(tree, text)]
        faults += [(page, f) for f in faults_of_length(page, text)]
        faults += [(page, f) for f in faults_of_reading(text) if page != "CHANGELOG.md"]
    for file in tree.files:
        if not SOURCE.search(file) or file.startswith("docs/") or file == "tests/tools/check_pages.py":
            continue
        n_source += 1
        text = tree.read(file)
        faults += [(file, f) for f in faults_of_citations(tree, text)]
        faults += [(file, f) for f in faults_of_length(file, text)]
        faults += [(file, "the page %s, which is not there" % p) for p in PAGE.findall(text) if not tree.has(p)]
    for file, fault in faults:
        print("%s: %s" % (file, fault))
    print("%d pages, %d sources, %d faults" % (len(tree.pages), n_source, len(faults)))
    return len(faults)


SOUND = {
    "README.md": "# A\n[b](docs/b.md), [c](docs/b.md#one-thing), [web](https://x.org)\n"
                 "`cli/*.c`, `a.c`, build/bin/x, `spec_a_...`\n",
    "CHANGELOG.md": "- fix: 1234567 of 2e5 cases, decade, defaced; texts of x/y @ a0b16d35a985\n" + "- api:" + " word" * 41 + "\n",
    "docs/b.md": "# B\n## One thing\n## One thing\n[above](#one-thing-1) [up](../README.md) `cli/<name>.c`\n"
                 "[algorithms.md](algorithms.md), 8.6; algorithms.md 8\n"
                 "```c\nint  speci_b;\n```\n\n| cell |\n|---|\n|" + " word" * 141 + " |\n\n- Item" + " word" * 39 + ".\n"
                 "- `a b c d e f`" + " [word](b.md)" * 39 + ". Next" + " word" * 39 + ".\n"
                 "\n    code" + " word" * 141 + "\n\n" + "Short one. " * 60 + "\n"
                 "### Heading" + " word" * 30 + "\nText" + " word" * 30 + "\n\n",
    "docs/algorithms.md": "# All\n## 8. Scan\n### 8.6 Chunks\n",
    "docs/performance.md": "short\n",
    "docs/api.md": "```c\nspec_a_b(1);\n```\n`spec_a_b`, `spec_c`\n",
    "spec.h": "SPEC_API spec_status\nspec_a_b(int a);\nSPEC_API int spec_c(void (*each)(int x));\n"
              "typedef int (*spec_fn)(int b);\n",
    "examples/e.c": "int e;\n",
    "cli/a.c": "/* docs/b.md; algorithms.md 8.6 */ int spec_a_b; int\nspeci_b;\n",
}

PLANTED = [
    ("README.md", "[x](docs/gone.md)", "a link to docs/gone.md, which is not there"),
    ("README.md", "[x](docs/b.md#gone)", "a link to docs/b.md#gone, which has no such heading"),
    ("docs/b.md", "[x](#one-thing-2)", "a link to #one-thing-2, which has no such heading"),
    ("docs/b.md", "`cli/gone.c`", "the path cli/gone.c, which is not there"),
    ("docs/b.md", "    cli/*.py", "the path cli/*.py, which is not there"),
    ("docs/b.md", "`gone.c`", "the file gone.c, which is not there"),
    ("docs/b.md", "`spec_b(x)`", "the name spec_b, which no source has"),
    ("docs/b.md", "```c\nspec_b(x);\n```\n", "the name spec_b, which no source has"),
    ("docs/b.md", "```c\nlong speci_b;\n```\n", "code that no source has: long speci_b;"),
    ("spec.h", "SPEC_API const char *spec_d(int a, int b);\n", "the function spec_d, which docs/api.md does not name"),
    ("docs/b.md", "\n**Rounding.** **Tokenizers**\n", "the label Rounding, behind which nothing stands"),
    ("docs/b.md", "cases/<case>.gguf `<code>`", "<case>, which readers do not see: it is no code"),
    ("CHANGELOG.md", "since 3bc10d2", "the commit 3bc10d2"),
    ("docs/b.md", "\nOne" + " word" * 40 + ".\n", "a sentence of 41 words, where 40 are the most: One word word word word word word word w"),
    ("docs/b.md", "\n- Item:" + " word" * 41 + "\n", "a sentence of 41 words, where 40 are the most: word word word word word word word word "),
    ("docs/b.md", "\n" + "Short one. " * 64 + "\n", "a paragraph of 703 characters, where 700 are the most: Short one. Short one. Short one. Short o"),
    ("README.md", "\n" * 150, "153 lines, where it has to stay under 150"),
    ("docs/performance.md", "\n" * 150, "151 lines, where it has to stay under 150"),
    ("CHANGELOG.md", "\n" * 28, "30 lines, where it has to stay under 30"),
    ("examples/e.c", "\n" * 60, "61 lines, where it has to stay under 61"),
    ("docs/b.md", "algorithms.md, 8.7", "section 8.7 of algorithms.md, which is not there"),
    ("cli/a.c", "/* algorithms.md 9 */", "section 9 of algorithms.md, which is not there"),
    ("cli/a.c", "/* docs/gone.md */", "the page docs/gone.md, which is not there"),
]


def faults_with(file, more):
    with tempfile.TemporaryDirectory() as root:
        for name, text in SOUND.items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            with open(os.path.join(root, name), "w", encoding="utf-8") as f:
                f.write(text + (more if name == file else ""))
        old, sys.stdout = sys.stdout, open(os.path.join(root, "said"), "w", encoding="utf-8")
        try:
            n = check(root)
        finally:
            sys.stdout.close()
            sys.stdout = old
        with open(os.path.join(root, "said"), encoding="utf-8") as f:
            return n, f.read()


def self_test():
    missed = 0
    n, said = faults_with(None, "")
    if n != 0:
        print("sound pages are blamed:\n" + said)
        missed += 1
    for file, more, want in PLANTED:
        n, said = faults_with(file, more)
        if n != 1 or "%s: %s\n" % (file, want) not in said:
            print("planted in %s: %r\nwanted: %s\nfound:\n%s" % (file, more[:40], want, said))
            missed += 1
    print("%d faults planted, %d missed" % (len(PLANTED), missed))
    return missed


if __name__ == "__main__":
    argument = sys.argv[1] if len(sys.argv) > 1 else "."
    sys.exit(1 if (self_test() if argument == "--self-test" else check(argument)) else 0)
