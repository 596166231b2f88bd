#!/bin/bash
# Configures and builds the project another way, and runs a command in that build:
#   build.sh SOURCE BUILD "CMAKE OPTIONS" COMMAND...
set -euo pipefail
source=$1 build=$2 options=$3
shift 3

# shellcheck disable=SC2086 # options are words
cmake -S "$source" -B "$build" $options > /dev/null
cmake --build "$build" -j "$(nproc)" 2>&1 | grep -v '^\[' || test "${PIPESTATUS[0]}" -eq 0
cd "$build"
"$@"
