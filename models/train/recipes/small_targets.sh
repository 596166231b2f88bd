#!/usr/bin/env bash
# A drafter for each of llama-target, hybrid-target and mamba2-target, one after another, within so many seconds.
#
#   small_targets.sh MODELS_DIR CORPUS_DIR RUNS_DIR SECONDS [options of distil.py]
#
# TARGETS="hybrid llama" takes some of them. RUNS_DIR/<target>/drafter is the drafter. The tokenised text is shared.
set -euo pipefail
models=$1 corpus=$2 runs=$3 seconds=$4
shift 4
SECONDS=0
export TOKEN_CACHE=${TOKEN_CACHE:-$runs/tokens}
read -ra names <<<"${TARGETS:-hybrid llama mamba2}"
left=${#names[@]}
for target in "${names[@]}"; do
    bash "$(dirname "$0")/drafter.sh" "$models/$target-target" "$corpus" "$runs/$target" "$(((seconds - SECONDS) / left))" "$@"
    left=$((left - 1))
done
