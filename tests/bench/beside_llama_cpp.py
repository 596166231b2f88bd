#!/usr/bin/env python3
"""Steps of `spec` beside those of llama.cpp, by turns, over the same GGUF files.

    beside_llama_cpp.py SPEC_BENCH LLAMA_BENCH FILE.gguf... [--nodes 1,8,16] [--threads 2] [--context 128] [--rounds 5] [--gpu]

SPEC_BENCH is build/bin/spec-bench, LLAMA_BENCH the llama-bench of a build of llama.cpp. A step of n nodes is a chain of n tokens behind
--context tokens in one pass. spec makes the logits of all n rows, as verification needs them; llama-bench those of the last row alone.
Prints JSON lines, one for each file, engine, n and round: the median and the shortest of a round's repeats, in milliseconds."""
import argparse
import json
import os
import statistics
import subprocess
import sys


def run(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def by_spec(a, file):
    """{nodes: (median, shortest)}"""
    command = [a.spec, "step", "-m", file, "--nodes", a.nodes, "--tree", "chain", "-t", str(a.threads), "-c", str(a.context),
               "-r", str(a.repeats), "--least", "1", "--json"]
    lines = run(command + (["-b", "cuda"] if a.gpu else [])).splitlines()
    return {r["nodes"]: (r["median_ms"], r["min_ms"]) for r in map(json.loads, lines)}, json.loads(lines[0])["commit"]


def by_llama(a, file):
    """A single token is generated 16 times behind the context, of which llama-bench tells the mean; more are one pass."""
    found, commit = {}, ""
    for n in map(int, a.nodes.split(",")):
        work = ["-p", "0", "-n", "16"] if n == 1 else ["-p", str(n), "-n", "0", "-b", str(n), "-ub", str(n)]
        r = json.loads(run([a.llama, "-m", file, "-t", str(a.threads), "-d", str(a.context), "-r", str(a.repeats), "-o", "json",
                            "-ngl", "99" if a.gpu else "0"] + work))[0]
        ms = [ns / 1e6 / (16 if n == 1 else 1) for ns in r["samples_ns"]]
        found[n], commit = (statistics.median(ms), min(ms)), r["build_commit"]
    return found, commit


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("spec")
    p.add_argument("llama")
    p.add_argument("files", nargs="+")
    p.add_argument("--nodes", default="1,8,16")
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--context", type=int, default=128)
    p.add_argument("--repeats", type=int, default=15)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--gpu", action="store_true")
    a = p.parse_args()
    for i in range(a.rounds):
        for file in a.files:
            for engine, measure in (("spec", by_spec), ("llama.cpp", by_llama)):
                found, commit = measure(a, file)
                for n, (median, least) in found.items():
                    print(json.dumps({"engine": engine, "model": os.path.basename(file), "threads": a.threads, "gpu": a.gpu, "nodes": n,
                                      "context": a.context, "median_ms": round(median, 4), "min_ms": round(least, 4), "round": i,
                                      "commit": commit}), flush=True)


if __name__ == "__main__":
    main()
