#!/usr/bin/env python3
"""Turns reports of spec-bench into SVG plots.

plot.py OUT.svg REPORT.json... [-x FIELD] [-y FIELD] [-s FIELD,...] [-w FIELD=VALUE] [-t TITLE]

A report has one JSON object a line. Every combination of the -s fields is a line of the plot; -w keeps the records
where a field has a value. Without -x, -y and -s they follow the records' mode. Where a record has a floor in the plot's
unit, it is drawn dashed. Plain Python 3; the plots need no network and no fonts of their own.
"""
import argparse
import html
import json
import math

# mode: (x, y, what makes a line)
AXES = {
    "step": ("nodes", "median_ms", ["model", "backend", "tree", "scan", "advance"]),
    "sequences": ("sequences", "median_ms", ["model", "backend", "nodes"]),
    "replay": ("path", "cost_ms", ["model", "backend", "advance", "nodes"]),
    "prefill": ("tokens", "tokens_per_s", ["model", "backend"]),
    "draft": ("nodes", "median_ms", ["model", "backend", "tree"]),
    "generate": ("nodes_per_step", "over_plain", ["model", "drafter", "backend", "task", "temperature"]),
    "memory": ("nodes", "extra_percent", ["model", "backend"]),
    "rows": ("nodes", "median_ms", ["what", "backend"]),
    "attention": ("nodes", "queued_ms", ["what", "backend"]),
}
COLOURS = ["#0b6", "#06c", "#c40", "#90c", "#a80", "#088", "#c06", "#555", "#6a0", "#36f"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 460, 80, 300, 46, 56


def read(paths):
    records = []
    for path in paths:
        with open(path, encoding="utf-8") as f:
            records += [json.loads(line) for line in f if line.strip()]
    return records


def keep(records, conditions):
    for condition in conditions:
        key, _, value = condition.partition("=")
        records = [r for r in records if str(r.get(key)) == value]
    return records


def series(records, x, y, by):
    """{name: sorted points}; of several records at one place, the latest. Fields that never differ are not in names."""
    values = {k: {str(r.get(k)) for r in records} for k in by}
    shown = [k for k in by if len(values[k]) > 1]
    lines = {}
    for r in records:
        if isinstance(r.get(x), (int, float)) and isinstance(r.get(y), (int, float)):
            lines.setdefault(", ".join(str(r.get(k)) for k in shown), {})[r[x]] = r[y]
    return {name: sorted(points.items()) for name, points in lines.items()}


class Axis:
    """Logarithmic where the values span more than a decade and are positive."""

    def __init__(self, values, low, high):
        self.log = min(values) > 0 and max(values) / min(values) > 10
        values = [self.place(v) for v in values] + ([] if self.log else [0])
        self.a, self.b, self.low, self.high = min(values), max(values), low, high
        if self.a == self.b:
            self.a, self.b = self.a - 0.5, self.b + 0.5

    def place(self, v):
        return math.log10(v) if self.log else v

    def __call__(self, v):
        return self.low + (self.place(v) - self.a) / (self.b - self.a) * (self.high - self.low)

    def ticks(self):
        if self.log:
            every = (1, 2, 5) if self.b - self.a < 3 else (1,)
            found = [m * 10.0 ** e for e in range(math.floor(self.a) - 1, math.ceil(self.b) + 1) for m in every]
            return [t for t in found if self.a - 1e-9 <= math.log10(t) <= self.b + 1e-9]
        step = 10 ** math.floor(math.log10((self.b - self.a) / 4))
        step *= next(m for m in (1, 2, 5, 10) if (self.b - self.a) / (m * step) <= 6)
        first = math.ceil(self.a / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.b / step + 1e-9) + 1)]


def text(x, y, s, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" {more}>{html.escape(s)}</text>'


def grid(ax, ay, x, y):
    out = []
    for t in ax.ticks():
        out.append(f'<line class="g" x1="{ax(t):.1f}" y1="{TOP}" x2="{ax(t):.1f}" y2="{HEIGHT - BOTTOM}"/>')
        out.append(text(ax(t), HEIGHT - BOTTOM + 18, f"{t:g}", 'text-anchor="middle"'))
    for t in ay.ticks():
        out.append(f'<line class="g" x1="{LEFT}" y1="{ay(t):.1f}" x2="{WIDTH - RIGHT}" y2="{ay(t):.1f}"/>')
        out.append(text(LEFT - 8, ay(t) + 4, f"{t:g}", 'text-anchor="end"'))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, x.replace("_", " "), 'text-anchor="middle"'))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    out.append(text(18, middle, y.replace("_", " "), f'text-anchor="middle" transform="rotate(-90 18 {middle:.1f})"'))
    return out


def curve(points, ax, ay, colour, dashed):
    path = " ".join(f"{ax(x):.1f},{ay(y):.1f}" for x, y in points)
    out = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{1 if dashed else 2}"'
           + (' stroke-dasharray="5 4"' if dashed else "") + "/>"]
    if not dashed:
        out += [f'<circle cx="{ax(x):.1f}" cy="{ay(y):.1f}" r="3.2" fill="{colour}">'
                f'<title>{x:g}: {y:.6g}</title></circle>' for x, y in points]
    return out


def draw(lines, floors, x, y, title):
    points = [p for l in list(lines.values()) + list(floors.values()) for p in l]
    ax = Axis([p[0] for p in points], LEFT, WIDTH - RIGHT)
    ay = Axis([p[1] for p in points], HEIGHT - BOTTOM, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
           'font-family="sans-serif" font-size="12">',
           "<style>.g{stroke:#ddd}text{fill:#222}</style>", f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
           text(LEFT, 24, title, 'font-size="15"')]
    out += grid(ax, ay, x, y)
    for i, (name, line) in enumerate(lines.items()):
        colour, at = COLOURS[i % len(COLOURS)], TOP + 8 + 18 * i
        if name in floors:
            out += curve(floors[name], ax, ay, colour, True)
        out += curve(line, ax, ay, colour, False)
        out.append(f'<rect x="{WIDTH - RIGHT + 16}" y="{at - 9}" width="14" height="10" fill="{colour}"/>')
        out.append(text(WIDTH - RIGHT + 36, at, name or "measured"))
    if floors:
        out.append(text(WIDTH - RIGHT + 16, TOP + 12 + 18 * len(lines), "dashed: the floor"))
    return "\n".join(out + ["</svg>", ""])


def heading(records):
    parts = [sorted({str(r.get(k)) for r in records if k in r}) for k in ("mode", "model", "backend", "commit")]
    return ", ".join(" / ".join(p) for p in parts if 0 < len(p) <= 2)


def main():
    a = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    a.add_argument("out")
    a.add_argument("reports", nargs="+")
    for flag in "xyst":
        a.add_argument("-" + flag)
    a.add_argument("-w", action="append", default=[])
    o = a.parse_args()
    records = keep(read(o.reports), o.w)
    if not records:
        a.error("no records are left")
    x, y, by = AXES.get(records[0].get("mode"), ("nodes", "median_ms", ["model"]))
    x, y, by = o.x or x, o.y or y, o.s.split(",") if o.s else by
    lines = series(records, x, y, by)
    if not lines:
        a.error(f"no record has numbers in both {x} and {y}")
    floors = series(records, x, "floor_ms", by) if y in ("median_ms", "min_ms", "queued_ms") else {}
    floors = {k: v for k, v in floors.items() if all(p[1] > 0 for p in v)}
    with open(o.out, "w", encoding="utf-8") as f:
        f.write(draw(lines, floors, x, y, o.t or heading(records)))


if __name__ == "__main__":
    main()
