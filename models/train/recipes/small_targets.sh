#!/usr/bin/env bash
# What drafts for llama-target, hybrid-target and mamba2-target, one after another, within so many seconds.
#
#   small_targets.sh MODELS_DIR CORPUS_DIR RUNS_DIR SECONDS [options of distil.py or train_head.py]
#
# RUNS_DIR/<target>/<what> are the drafters. TARGETS="hybrid llama" takes some of the targets, WHAT="drafter eagle3" trains several
# things for each (train.sh says which there are; drafter without). Options go to all of them. The tokenised text is shared.
set -euo pipefail
models=$1 corpus=$2 runs=$3 seconds=$4
shift 4
SECONDS=0
export TOKEN_CACHE=${TOKEN_CACHE:-$runs/tokens}
read -ra targets <<<"${TARGETS:-hybrid llama mamba2}"
read -ra whats <<<"${WHAT:-drafter}"
left=$((${#targets[@]} * ${#whats[@]}))
for target in "${targets[@]}"; do
    for what in "${whats[@]}"; do
        bash "$(dirname "$0")/train.sh" "$what" "$models/$target-target" "$corpus" "$runs/$target" "$(((seconds - SECONDS) / left))" "$@"
        left=$((left - 1))
    done
done
