// tree_page_steps.js - runs the script of a page of `spec tree` on made-up steps, with as much of a browser as it needs.
//   node tree_page_steps.js PAGE
// Checks the widths of the histogram, where accepted lengths have a gap, and the folding of what was rejected.
// tools/check_tree_page.py looks at the page as a browser lays it out.
"use strict";
const assert = require("assert"), fs = require("fs"), vm = require("vm");
const page = fs.readFileSync(process.argv[2], "utf8");
const script = page.match(/<script>\n([^]*?)<\/script>/)[1];

class Element {
  constructor(name) {
    this.name = name; this.attributes = {}; this.children = []; this.style = {}; this.dataset = {}; this.listeners = {};
    this.clientWidth = 1000; this.clientHeight = 560; this.namespaceURI = "svg"; this.offsetTop = 0;
  }
  append(child) { this.children.push(child); }
  replaceChildren() { this.children = []; }
  setAttribute(key, value) { this.attributes[key] = String(value); }
  addEventListener(type, call) { this.listeners[type] = call; }
  all(name) { return this.children.flatMap(c => c.all === undefined ? [] : [...(c.name === name ? [c] : []), ...c.all(name)]); }
}

// A tree of `wide` children per node down to `deep`, the first child of each accepted `taken` times.
function step(wide, deep, taken) {
  const s = { token: [0], parent: [-1], rank: [0], draft: [null], target: [null], path: [0], next: 0, next_target: 0.5,
    chosen: 0, text: "" };
  let level = [0];
  for (let d = 0; d < deep; d++) {
    const next = [];
    for (const node of level)
      for (let r = 0; r < wide; r++) {
        next.push(s.token.length);
        s.token.push(0); s.parent.push(node); s.rank.push(r); s.draft.push(0.25); s.target.push(0.25);
      }
    level = next;
  }
  for (let d = 0, node = 0; d < taken; d++) s.path.push(node = s.parent.indexOf(node));
  return s;
}

function open(steps) {
  const elements = {}, byId = id => elements[id] ??= new Element(id);
  byId("data").textContent = JSON.stringify({ model: "m", drafter: "d", tree: "t", verify: "auto", adapt: "off", device: "cpu",
    dtype: "f32", stop: "steps", version: "0", top_k: 0, seed: "0", temperature: 0, top_p: 0, min_p: 0, prompt: "", ids: [7],
    texts: ["word"], steps });
  const listeners = {};
  vm.runInNewContext(script, {
    document: { getElementById: byId, createElement: n => new Element(n), createElementNS: (_, n) => new Element(n),
      addEventListener: (type, call) => { listeners[type] = call; } },
    window: { addEventListener() {} }, location: { hash: "" }, history: { replaceState() {} } });
  return { $: byId, click: id => byId(id).listeners.click({}), boxes: () => byId("tree").all("rect").length,
    texts: () => byId("tree").all("text").map(t => t.textContent) };
}

// Two steps accepted nothing, one accepted three; none accepted one or two.
const lengths = open([step(1, 3, 0), step(1, 3, 0), step(1, 3, 3)]).$("histogram").children;
assert.deepStrictEqual(lengths.map(tr => tr.all("div").map(d => d.style.width)), [["100%"], [], [], ["50%"]]);

// A small tree is drawn as it is, and so is a chain: nothing of them is a crowd.
assert.strictEqual(open([step(2, 2, 1)]).boxes(), 7 + 1);

// 1 + 4 + 16 + 64 nodes, two accepted: these three, the next token, and a box at each of the three for what was rejected there.
const large = open([step(4, 3, 2)]);
assert.strictEqual(large.boxes(), 3 + 1 + 3);
assert.deepStrictEqual(large.texts().filter(t => t.includes("rejected")), ["63 rejected", "15 rejected", "4 rejected"]);
// The whole of it can be read: 0.8 of its size or more.
assert.ok(+large.$("tree").attributes.height / +large.$("tree").dataset.height >= 0.8);
assert.ok(+large.$("tree").dataset.height * 0.8 <= 560);
// Opened at one node, and all at once.
large.$("tree").all("g").find(g => g.attributes.class === "fold").listeners.click({});
assert.ok(large.boxes() > 7 && large.boxes() < 86);
large.click("folds");
assert.strictEqual(large.boxes(), 85 + 1);
large.click("folds");
assert.strictEqual(large.boxes(), 7);
