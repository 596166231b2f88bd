#!/usr/bin/env python3
"""Looks at the page of `spec tree` as a browser lays it out.

    check_tree_page.py TEMPLATE [--self-test]     TEMPLATE is cli/tree_page.html

Made-up steps are put into the page, and headless Chromium opens it in windows of several sizes. A script goes through
the steps and writes down where everything lies, which is checked here. With --self-test the page has one fault more in
each window, and each must be found. Without Chromium it says SKIPPED."""
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ["chromium", "chromium-browser", "google-chrome", "chrome"]
WINDOWS = [(1280, 800), (1920, 1080), (1000, 700), (420, 800)]
BESIDE_FROM = 1152  # 72rem: from this width on the run stands beside the tree
LEGIBLE = 0.8  # of the drawing's own size, in which letters are 13 px high
NEAR = 1  # px, for rounding

# --- made-up steps ---


def step(wide, deep, path):
    """A tree of `wide` children per node down to `deep`; `path` names the accepted child of each level by its rank."""
    s = {"token": [0], "parent": [-1], "rank": [0], "draft": [None], "target": [None], "path": [0], "next": 2,
         "next_target": 0.5, "chosen": 0, "text": " some text"}
    level = [0]
    for _ in range(deep):
        new = []
        for node in level:
            for rank in range(wide):
                new.append(len(s["token"]))
                s["token"].append(rank % 3)
                s["parent"].append(node)
                s["rank"].append(rank)
                s["draft"].append(0.25)
                s["target"].append(1e-7)
        level = new
    for rank in path:
        children = [i for i, p in enumerate(s["parent"]) if p == s["path"][-1]]
        s["path"].append(children[rank])
    return s


# No step accepts three drafts, and none more than eight.
STEPS = [
    step(2, 2, [0]), step(3, 2, [2, 1]), step(4, 3, []), step(4, 3, [1, 2]), step(63, 1, [40]), step(1, 16, [0, 0]),
    step(1, 4, [0] * 4), step(1, 16, [0] * 8), step(2, 5, [1, 0, 1, 0, 1]), step(1, 0, []), step(8, 2, [7, 7]),
]

DATA = {
    "model": "a/rather-long-name/of-a-directory/with-a-target-model", "drafter": "b", "tree": "product:4,4,4",
    "verify": "auto", "adapt": "off", "device": "cuda:0 NVIDIA H200", "dtype": "bf16", "stop": "steps", "version": "1",
    "top_k": 40, "seed": "1", "temperature": 0.8, "top_p": 0.9, "min_p": 0, "prompt": "Once upon a time " * 40,
    "ids": [5, 6, 7], "texts": [" word", "\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57\u6f22\u5b57", "W" * 40],
    "steps": STEPS,
}

# --- what the browser tells ---

HARNESS = """
const rect = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
function drawn(page) {
  const svg = page.getElementById("tree"), canvas = page.getElementById("canvas"), shown = rect(canvas);
  return { scale: svg.getAttribute("width") / svg.dataset.width, canvas: shown,
    boxes: [...svg.querySelectorAll("g > g")].map(g => ({ kind: g.getAttribute("class"),
      rect: rect(g.querySelector("rect")), texts: [...g.querySelectorAll("text")].map(rect) })) };
}
function look(frame) {
  const win = frame.contentWindow, page = win.document, $ = id => page.getElementById(id);
  const all = (what, of = page) => [...of.querySelectorAll(what)].map(rect);
  const out = { width: win.innerWidth, height: win.innerHeight, scroll: page.documentElement.scrollWidth,
    toolbar: rect(page.querySelector(".bar")), say: rect($("say")), canvas: rect($("canvas")), text: rect($("text")),
    strip: rect($("strip")), aside: rect(page.querySelector("aside")), panels: all(".panel:not(details *)"),
    buttons: all(".bar > *"), rows: [...$("histogram").rows].map(r => all("div", r)), steps: [], open: [] };
  const count = +$("count").textContent;
  for (let i = 0; i < count; i++) { win.go(i); out.steps.push(drawn(page)); }
  win.go(4); $("folds").click();
  const pressed = $("folds").getAttribute("aria-pressed") === "true";
  if (pressed) $("folds").click();
  for (let i = 0; i < count; i++) { win.go(i); out.open.push(drawn(page)); }
  return out;
}
addEventListener("load", () => {
  let said;
  try { said = JSON.stringify([...document.querySelectorAll("iframe")].map(look)); } catch (e) { said = String(e.stack); }
  document.body.textContent = said;
});
"""


def page_of(template):
    data = json.dumps(DATA).replace("<", "\\u003c")
    return template.replace("@DATA@", data)


def look(browser, pages):
    """What the browser tells of each (page, width, height)."""
    frames = "".join('<iframe width="%d" height="%d" style="border:0" srcdoc="%s"></iframe>' %
                     (width, height, html.escape(page, quote=True)) for page, width, height in pages)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "harness.html")
        with open(path, "w", encoding="utf-8") as f:
            f.write("<!doctype html><meta charset=utf-8><script>%s</script><body>%s</body>" % (HARNESS, frames))
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir=" + folder + "/profile",
                   "--dump-dom", "file://" + path]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=120, check=False)
        dom = done.stdout.decode("utf-8", "replace")
        found = re.search(r"<body>(.*)</body>", dom, re.S)
        if done.returncode != 0 or not found:
            raise RuntimeError("the browser says:\n" + done.stderr.decode("utf-8", "replace")[-2000:])
        return json.loads(html.unescape(found.group(1)))


# --- checks ---


def apart(a, b):
    return a[2] <= b[0] + NEAR or b[2] <= a[0] + NEAR or a[3] <= b[1] + NEAR or b[3] <= a[1] + NEAR


def within(a, b):
    return a[0] >= b[0] - NEAR and a[1] >= b[1] - NEAR and a[2] <= b[2] + NEAR and a[3] <= b[3] + NEAR


def overlaps(rects):
    return sum(not apart(a, b) for i, a in enumerate(rects) for b in rects[:i])


def faults_of_page(at):
    """What is wrong with the order and the places of the parts."""
    order = [at["toolbar"], at["say"], at["canvas"], at["text"]]
    if any(a[3] > b[1] + NEAR for a, b in zip(order, order[1:])):
        yield "toolbar, step, tree and text do not stand one below the other"
    if at["width"] >= BESIDE_FROM:
        if at["text"][3] > at["height"]:
            yield "the text is not seen without scrolling"
        if at["aside"][0] < at["canvas"][2] or at["aside"][1] > at["canvas"][1]:
            yield "the run does not stand beside the tree"
    elif at["aside"][1] < at["text"][3]:
        yield "the run stands before the text"
    if at["canvas"][1] > at["height"] / 2:
        yield "the tree begins in the lower half of the window"
    if at["scroll"] > at["width"] or any(p[0] < 0 or p[2] > at["width"] + NEAR for p in at["panels"] + at["buttons"]):
        yield "something is wider than the window"
    if overlaps(at["panels"]) + overlaps(at["buttons"]):
        yield "parts of the page overlap"


def faults_of_histogram(at):
    counts = [0] * (1 + max(len(s["path"]) - 1 for s in STEPS))
    for s in STEPS:
        counts[len(s["path"]) - 1] += 1
    widths = [sum(max(0, bar[2] - bar[0]) for bar in row) for row in at["rows"]]
    if len(widths) != len(counts):
        yield "the histogram has %d rows for %d lengths" % (len(widths), len(counts))
        return
    if any(width > 0 for width, count in zip(widths, counts) if count == 0):
        yield "the histogram has a bar for a length that no step had"
    unit = max(widths) / max(counts)
    if any(abs(width - unit * count) > NEAR for width, count in zip(widths, counts) if count):
        yield "bars of the histogram are not as long as their counts"


def faults_of_drawing(drawn, s, boxes):
    """What is wrong with one step's tree, of which so many boxes are to be seen."""
    rects = [b["rect"] for b in drawn["boxes"]]
    if len(rects) != boxes:
        yield "%d boxes are drawn, not %d" % (len(rects), boxes)
    if overlaps(rects):
        yield "boxes overlap"
    if any(not within(text, box["rect"]) for box in drawn["boxes"] for text in box["texts"]):
        yield "a text leaves its box"
    straight = [b["rect"][1] for b in drawn["boxes"] if b["kind"] in ("took", "next")]
    if len(straight) != len(s["path"]) + 1 or max(straight) - min(straight) > NEAR:
        yield "the accepted path is not a straight row"
    if drawn["scale"] < LEGIBLE - 1e-6:
        yield "the tree is too small to be read"
    following = [b["rect"] for b in drawn["boxes"] if b["kind"] == "next"]
    room = drawn["canvas"][2] - drawn["canvas"][0]
    if any(not within(box, drawn["canvas"]) and box[2] - box[0] < room for box in following):
        yield "the token that followed is not seen"


def n_folded(s):
    """Boxes of a folded tree: the path, what followed, and a fold for two rejected nodes or more at a node of the path."""
    size = [1] * len(s["token"])
    for i in range(len(size) - 1, 0, -1):
        size[s["parent"][i]] += size[i]
    boxes = len(s["path"]) + 1
    for node in s["path"]:
        rejected = [i for i, p in enumerate(s["parent"]) if p == node and i not in s["path"]]
        count = sum(size[i] for i in rejected)
        boxes += 1 if count >= 2 else count
    return boxes


def is_large(s):
    depth = [0] * len(s["token"])
    for i in range(1, len(depth)):
        depth[i] = depth[s["parent"][i]] + 1
    return len(depth) >= 16 or max(depth) >= 5


def faults_of(at):
    yield from faults_of_page(at)
    yield from faults_of_histogram(at)
    for i, s in enumerate(STEPS):
        whole = len(s["token"]) + 1
        for how, drawn, boxes in (("", at["steps"][i], n_folded(s) if is_large(s) else whole),
                                  (", unfolded", at["open"][i], whole)):
            for fault in faults_of_drawing(drawn, s, boxes):
                yield "step %d%s: %s" % (i + 1, how, fault)
        first = at["steps"][i]
        fits = len(s["path"]) <= 4 and at["width"] >= BESIDE_FROM
        if fits and not all(within(b["rect"], first["canvas"]) for b in first["boxes"]):
            yield "step %d: a box leaves the window on the tree" % (i + 1)


# --- the page as it is, and with faults ---

PLANTED = [
    ("if (count > 0) html", "html(\"div\", share); html", "a bar for a length that no step had"),
    (".histogram div { ", ".histogram div { min-width: 40px !important; ", "not as long as their counts"),
    ("beside >= 0 ? at[beside] :", "", "not a straight row"),
    ("minmax(0, 1fr) 18rem", "1fr", "the run does not stand beside the tree"),
    ("row: 48,", "row: 36,", "boxes overlap"),
    ("letters: 15", "letters: 19", "a text leaves its box"),
    ("Math.max(0.8, whole)", "whole", "too small to be read"),
    ("const FOLD_FROM = 16", "const FOLD_FROM = 1000", "boxes are drawn, not"),
    ("right * scale - box.clientWidth", "0", "the token that followed is not seen"),
    ("height: 48vh;", "height: 78vh;", "the text is not seen without scrolling"),
    ("button, input {", "button { min-width: 100rem; }\nbutton, input {", "wider than the window"),
    ("#say {", "#say { position: absolute; top: 300px;", "do not stand one below the other"),
]


def self_test(browser, template):
    pages, missed = [], 0
    for old, new, _ in PLANTED:
        assert template.count(old) == 1, old
        pages.append((page_of(template.replace(old, new)), 1280, 800))
    for (old, _, want), at in zip(PLANTED, look(browser, pages)):
        found = list(faults_of(at))
        if not any(want in fault for fault in found):
            print("planted at %r, wanted: %s\nfound: %s" % (old, want, found[:5]))
            missed += 1
    print("%d faults planted, %d missed" % (len(PLANTED), missed))
    return missed


def check(browser, template):
    n = 0
    for (width, height), at in zip(WINDOWS, look(browser, [(page_of(template), w, h) for w, h in WINDOWS])):
        for fault in faults_of(at):
            print("%d x %d: %s" % (width, height, fault))
            n += 1
    print("%d windows, %d steps, %d faults" % (len(WINDOWS), len(STEPS), n))
    return n


if __name__ == "__main__":
    chromium = next((found for found in map(shutil.which, BROWSERS) if found), None)
    if chromium is None:
        print("SKIPPED: Chromium was not found")
        sys.exit(0)
    with open(sys.argv[1], encoding="utf-8") as file:
        text = file.read()
    sys.exit(1 if (self_test if "--self-test" in sys.argv else check)(chromium, text) else 0)
