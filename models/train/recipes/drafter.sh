#!/usr/bin/env bash
# Trains a drafter for a target in so many seconds: the target's own text first, then the distillation.
#
#   drafter.sh TARGET_DIR CORPUS_DIR RUN_DIR SECONDS [options of distil.py]
#
# RUN_DIR gets drafter/ (a model directory) and generated/ (token files). A kill loses at most a minute: the same command goes on.
set -euo pipefail
target=$1 corpus=$2 run=$3 seconds=$4
shift 4
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
text=(--text "$corpus" --repeat gsm8k_train=5 tinystories=4 --cache "${TOKEN_CACHE:-$run/../tokens}")
mkdir -p "$run"
SECONDS=0
"$python" "$here/generate.py" "$target" --out "$run/generated" "${text[@]}" --sequences "${SEQUENCES:-16384}" --batch "${SAMPLE_BATCH:-2048}"
left=$((seconds - SECONDS))
if ((left < 30)); then
    echo "drafter.sh: $left s are left of $seconds; run the same command again" >&2
    exit 3
fi
"$python" "$here/distil.py" "$target" --out "$run/drafter" "${text[@]}" --generated "$run/generated" \
    --budget "$left" --seconds "$((left + 30))" "$@"
