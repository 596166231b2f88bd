#!/usr/bin/env python3
"""Counts what one spec_step enters above the kernels: functions and files of algorithms/, of models/ and of backends/ itself, not
of a device. What a reader has to follow to know what a step does.

    count_step.py SOURCE BUILD [--list]     builds SOURCE in BUILD, instrumented; --list: names them

Unoptimised, so that a function is one whatever a compiler would make of it; on the CPU with the models of the tree, greedy."""
import collections
import os
import re
import subprocess
import sys

# (name, arguments of the program)
STEPS = [
    ("plain", ["{models}/demo-target"]),
    ("tree product:3,2,2", ["{models}/demo-target", "{models}/demo-drafter", "product:3,2,2"]),
]
ABOVE_THE_KERNELS = re.compile(r"(algorithms|models)/|backends/[^/]*$")


def build(source, target):
    options = ["-DSPEC_TESTS=ON", "-DSPEC_CUDA=OFF", "-DSPEC_BLAS=OFF", "-DSPEC_TOKENIZER=OFF", "-DSPEC_CLI=OFF",
               "-DSPEC_EXAMPLES=OFF", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_C_FLAGS=-O0 -g -finstrument-functions"]
    for command in (["cmake", "-S", source, "-B", target] + options,
                    ["cmake", "--build", target, "--target", "count-step", "-j", str(os.cpu_count())]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout)
    return os.path.join(target, "bin", "count-step")


def entered(program, arguments, source):
    """{file: functions of it}, above the kernels"""
    addresses = subprocess.run([program] + arguments, check=True, stdout=subprocess.PIPE, text=True).stdout
    lines = subprocess.run(["addr2line", "-f", "-e", program], input=addresses, check=True, stdout=subprocess.PIPE,
                           text=True).stdout.splitlines()
    found = collections.defaultdict(set)
    for name, place in zip(lines[0::2], lines[1::2]):
        path = os.path.relpath(place.rsplit(":", 1)[0], source)
        if ABOVE_THE_KERNELS.match(path):
            found[path].add(name)
    return found


def main():
    source, target = os.path.realpath(sys.argv[1]), os.path.realpath(sys.argv[2])
    program = build(source, target)
    for name, arguments in STEPS:
        found = entered(program, [a.format(models=source + "/models") for a in arguments], source)
        print(f"{name}: {sum(map(len, found.values()))} functions in {len(found)} files")
        if "--list" in sys.argv[3:]:
            for path in sorted(found):
                print(f"    {path}: {', '.join(sorted(found[path]))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
