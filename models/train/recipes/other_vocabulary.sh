#!/usr/bin/env bash
# A drafter with another tokenizer's vocabulary for a target, in so many seconds: the target's own text, written in the other tokens, and
# a Mamba-2 distilled from that.
#
#   other_vocabulary.sh TARGET_DIR TOKENIZER_DIR CORPUS_DIR RUN_DIR SECONDS [options of distil.py]
#
# RUN_DIR gets generated/ (the target's text, which train.sh shares), translated/ and other/ (the drafter's directory). After a kill the
# same command goes on; it ends with 3 when there is more to do. SEQUENCES, SAMPLE_BATCH, GENERATE and TOKEN_CACHE as for train.sh.
set -euo pipefail
target=$1 tokenizer=$2 corpus=$3 run=$4 seconds=$5
shift 5
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
SECONDS=0
bash "$here/recipes/train.sh" text "$target" "$corpus" "$run" 0
[[ -e $run/translated/part-00000.safetensors ]] ||
    "$python" "$here/translate.py" "$target" "$tokenizer" --generated "$run/generated" --out "$run/translated"
left=$((seconds - SECONDS))
if ((left < 20)); then
    echo "other_vocabulary.sh: $left of $seconds seconds are left to train in; the same command goes on" >&2
    exit 3
fi
"$python" "$here/distil.py" "$run/translated" --logits "$run/translated" --out "$run/other" --width 128 --batch 64 \
    --budget "$left" --seconds "$((left + 30))" "$@"
