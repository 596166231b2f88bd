#!/usr/bin/env python3
"""Where a step's time goes, by kernel, from what tests/bench/timeline.cpp wrote.

timeline.py TIMELINE [--begin NAME] [--sequence N]

Kernels overlap: one is set up while those in front still run. So what a kernel takes is counted from the end of the one in
front to its own. Steps begin with the kernel whose name holds --begin (embed); those with the commonest number of kernels
are taken, and of these the faster half. --sequence N prints N kernels in a row from the middle of the file.
"""
import argparse
import collections
import re
import statistics
import subprocess


def read(path):
    spans = []
    with open(path) as lines:
        for line in lines:
            begin, end, blocks, threads, name = line.rstrip("\n").split(" ", 4)
            spans.append((int(begin), int(end), int(blocks), int(threads), name))
    return sorted(spans, key=lambda s: s[1])


def short_names(spans):
    """Demangled, without the arguments."""
    names = sorted({s[4] for s in spans})
    try:
        plain = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    except OSError:
        plain = "\n".join(names)
    cut = [re.sub(r"\(.*", "", re.sub(r"^void ", "", n)) for n in plain.split("\n")]
    return dict(zip(names, cut))


def usual_steps(spans, begin):
    first = [i for i, s in enumerate(spans) if begin in s[4]]
    steps = list(zip(first, first[1:]))
    if not steps:
        raise SystemExit(f"no two kernels have {begin} in their names")
    usual = collections.Counter(b - a for a, b in steps).most_common(1)[0][0]
    steps = [s for s in steps if s[1] - s[0] == usual]
    steps.sort(key=lambda s: spans[s[1]][1] - spans[s[0]][1])
    return steps[: max(1, len(steps) // 2)]


def print_table(spans, begin):
    name, steps = short_names(spans), usual_steps(spans, begin)
    us = statistics.median((spans[b][1] - spans[a][1]) / 1e3 for a, b in steps)
    print(f"{len(steps)} steps of {steps[0][1] - steps[0][0]} kernels and copies, median {us:.1f} us")
    rows = collections.defaultdict(list)
    for a, b in steps:
        for before, s in zip(spans[a:b], spans[a + 1 : b + 1]):
            rows[(name[s[4]], s[2], s[3])].append((s[1] - before[1], s[1] - s[0], max(0, s[0] - before[1])))
    print(f"{'us a step':>10} {'times':>6} {'us each':>8} {'resident':>9} {'idle':>6}  blocks x threads, kernel")
    for (kernel, blocks, threads), spent in sorted(rows.items(), key=lambda r: -sum(v[0] for v in r[1])):
        n, (own, resident, idle) = len(spent), [sum(v) / 1e3 for v in zip(*spent)]
        print(f"{own / len(steps):10.2f} {n / len(steps):6.1f} {own / n:8.2f} {resident / n:9.2f} {idle / n:6.2f}  "
              f"{blocks} x {threads}, {kernel}")


def print_sequence(spans, n):
    name, i0 = short_names(spans), max(1, len(spans) // 2)
    for before, s in zip(spans[i0 - 1 : i0 - 1 + n], spans[i0 : i0 + n]):
        begin, end = (s[0] - before[1]) / 1e3, (s[1] - before[1]) / 1e3
        print(f"begins {begin:+8.2f} us, ends {end:+8.2f} us behind the one in front: {s[2]} x {s[3]}, {name[s[4]]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("timeline")
    parser.add_argument("--begin", default="embed")
    parser.add_argument("--sequence", type=int, default=0)
    args = parser.parse_args()
    spans = read(args.timeline)
    if args.sequence > 0:
        print_sequence(spans, args.sequence)
    else:
        print_table(spans, args.begin)


if __name__ == "__main__":
    main()
