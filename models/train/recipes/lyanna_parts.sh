#!/usr/bin/env bash
# What the parts of a Lyanna head are worth: trains it whole, without token info and without the first token, each in a third of the
# time, and prints the table of conditional acceptance by depth on text that no training saw. The same command goes on after a kill.
#
#   lyanna_parts.sh TARGET_DIR CORPUS_DIR RUN_DIR SECONDS [options of train_head.py]
#
# RUN_DIR gets lyanna/, lyanna-without-token-info/, lyanna-without-first-token/, and parts.json, the table.
set -euo pipefail
target=$1 corpus=$2 run=$3 seconds=$4
shift 4
here=$(cd "$(dirname "$0")/.." && pwd)
export TOKEN_CACHE=${TOKEN_CACHE:-$run/tokens}
SECONDS=0
train() { # NAME, runs that are left, options
    NAME=$1 bash "$here/recipes/train.sh" lyanna "$target" "$corpus" "$run" "$(((seconds - SECONDS) / $2))" "${@:3}"
}
train lyanna 3 "$@"
train lyanna-without-token-info 2 "$@" --without token-info
train lyanna-without-first-token 1 "$@" --without first-token
"${PYTHON:-python3}" "$here/measure.py" "$target" "$run"/lyanna{,-without-token-info,-without-first-token} --parts --text "$corpus" \
    --cache "$TOKEN_CACHE" --out "$run/parts.json"
