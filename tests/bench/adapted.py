#!/usr/bin/env python3
"""What a choice among drafters comes to beside each of them, by the step costs of a file: tables of `spec-bench generate --json`.

    adapted.py COSTS.json REPORT.jsonl...

A step of n nodes takes what the target's table says, and what a model drafts in it --draft-ms more (a draft of eagle2:4,16,10 by the
costs of tests/bench/tasks/costs_7b.json: 0.635)."""
import argparse
import json


def interpolate(table, n):
    nodes, ms = table["n_node"], table["ms"]
    k = next((i for i in range(1, len(nodes)) if n <= nodes[i]), len(nodes) - 1)
    return ms[k - 1] + (ms[k] - ms[k - 1]) * (n - nodes[k - 1]) / (nodes[k] - nodes[k - 1])


def is_text(drafter):
    return drafter.split(":")[0] in ("ngram", "trie", "png")


def speed(r, costs, draft_ms):
    """Tokens per time, plain decoding being 1."""
    drafters = r["drafter"].split("+")
    by = [int(n) for n in r["steps_by_drafter"].split(",")] if "steps_by_drafter" in r else [r["steps"]]
    n_model = sum(n for d, n in zip(drafters, by) if not is_text(d))
    ms = r["steps"] * interpolate(costs["target"], r["nodes_per_step"]) + n_model * draft_ms
    return r["emitted"] * interpolate(costs["target"], 1) / ms


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--draft-ms", type=float, default=0.635)
    a.add_argument("costs")
    a.add_argument("reports", nargs="+")
    o = a.parse_args()
    with open(o.costs) as f:
        costs = json.load(f)
    rows = {}
    for path in o.reports:
        with open(path) as f:
            for r in map(json.loads, f):
                if r["drafter"] != "none":
                    kind = "adapted" if r["adapt"] != "off" else "chain" if "+" in r["drafter"] else "single"
                    rows.setdefault((r["model"], r["task"]), {}).setdefault(kind, []).append((speed(r, costs, o.draft_ms), r["drafter"]))
    for (model, task), kinds in rows.items():
        best = {kind: max(kinds[kind]) for kind in ("single", "chain") if kind in kinds}
        print(f"{model} {task}: " + ", ".join(f"best {kind} {s:.2f} ({name})" for kind, (s, name) in best.items()))
        for s, name in kinds.get("adapted", []):
            print(f"    {name}: {s:.2f}" + "".join(f", to the best {kind} {s / b:.3f}" for kind, (b, _) in best.items()))


if __name__ == "__main__":
    main()
