#!/usr/bin/env python3
"""Counts what one spec_step enters above the kernels: functions and files of algorithms/, of models/ and of backends/ itself. A
device's operations are kernels, with all that they call. What a reader has to follow to know what a step does.

    count_step.py SOURCE BUILD [--list]     builds SOURCE in BUILD, instrumented; --list: names them

Fails where a step enters more than its row of STEPS says. Those are the counts of today: a change that lowers one lowers it there.

Unoptimised, so that a function is one whatever a compiler would make of it; on the CPU with the models of the tree, greedy."""
import collections
import os
import re
import subprocess
import sys

# (name, arguments of the program, most functions, most files)
STEPS = [
    ("plain", ["{models}/demo-target"], 41, 6),
    ("tree product:3,2,2", ["{models}/demo-target", "{models}/demo-drafter", "product:3,2,2"], 98, 12),
]
ABOVE_THE_KERNELS = re.compile(r"(algorithms|models)/|backends/[^/]*$")
DEVICE = re.compile(r"backends/[^/]+/")
INLINE = re.compile(r"^(?:\w+ )?static inline [^;(]*?\b(\w+)\(", re.M)


def build(source, target):
    options = ["-DSPEC_TESTS=ON", "-DSPEC_CUDA=OFF", "-DSPEC_BLAS=OFF", "-DSPEC_TOKENIZER=OFF", "-DSPEC_CLI=OFF",
               "-DSPEC_EXAMPLES=OFF", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O0 -g -finstrument-functions"]
    for command in (["cmake", "-S", source, "-B", target] + options,
                    ["cmake", "--build", target, "--target", "count-step", "-j", str(os.cpu_count())]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout)
    return os.path.join(target, "bin", "count-step")


def inline_functions(source):
    """{function: the header that has it}; each source that calls it has a copy, which is not another function"""
    found = {}
    for folder, _, names in os.walk(source):
        for name in names:
            if name.endswith(".h"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    found.update(dict.fromkeys(INLINE.findall(f.read()), os.path.relpath(path, source)))
    return found


def names_of(program, addresses, source):
    """{address: (file, function)}"""
    lines = subprocess.run(["addr2line", "-f", "-e", program], input="\n".join(addresses), check=True, stdout=subprocess.PIPE,
                           text=True).stdout.splitlines()
    headers = inline_functions(source)
    places = [os.path.relpath(place.rsplit(":", 1)[0], source) for place in lines[1::2]]
    return {a: (headers.get(name, path), name) for a, name, path in zip(addresses, lines[0::2], places)}


def entered(program, arguments, source):
    """{file: functions of it}, above the kernels"""
    lines = subprocess.run([program] + arguments, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    called = collections.defaultdict(set)
    for line in lines:
        caller, function = line.split()
        called[caller].add(function)
    names = names_of(program, sorted(set.union(*called.values())), source)
    found, seen, left = collections.defaultdict(set), set(), ["0"]
    while left:
        for function in called[left.pop()] - seen:
            seen.add(function)
            path, name = names[function]
            if DEVICE.match(path):
                continue
            left.append(function)
            if ABOVE_THE_KERNELS.match(path):
                found[path].add(name)
    return found


def main():
    source, target = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])
    program = build(source, target)
    failed = 0
    for name, arguments, most_functions, most_files in STEPS:
        found = entered(program, [a.format(models=source + "/models") for a in arguments], source)
        n_function = sum(map(len, found.values()))
        print(f"{name}: {n_function} functions in {len(found)} files")
        if n_function > most_functions or len(found) > most_files:
            print(f"    more than {most_functions} functions in {most_files} files")
            failed = 1
        if "--list" in sys.argv[3:]:
            for path in sorted(found):
                print(f"    {path}: {', '.join(sorted(found[path]))}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
