#!/usr/bin/env bash
# Trains a drafter for a target in so many seconds: the target's own text first, then the distillation.
#
#   drafter.sh TARGET_DIR CORPUS_DIR RUN_DIR SECONDS [options of distil.py]
#
# RUN_DIR gets generated/ (token files) and drafter/ (a model directory). After a kill the same command goes on.
# SEQUENCES and SAMPLE_BATCH: how much the target generates, and how much of it at once. GENERATE: more options of generate.py.
# TOKEN_CACHE: where tokenised text is kept.
set -euo pipefail
target=$1 corpus=$2 run=$3 seconds=$4
shift 4
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
text=(--text "$corpus" --repeat gsm8k_train=5 tinystories=4 --cache "${TOKEN_CACHE:-$run/tokens}")
read -ra generate <<<"${GENERATE:-}"
mkdir -p "$run"
SECONDS=0
"$python" "$here/generate.py" "$target" --out "$run/generated" "${text[@]}" --sequences "${SEQUENCES:-16384}" \
    --batch "${SAMPLE_BATCH:-2048}" "${generate[@]}"
left=$((seconds - SECONDS))
if ((left < 20)); then
    echo "drafter.sh: $left of $seconds seconds are left to train in; the same command goes on" >&2
    exit 3
fi
"$python" "$here/distil.py" "$target" --out "$run/drafter" "${text[@]}" --generated "$run/generated" \
    --budget "$left" --seconds "$((left + 30))" "$@"
