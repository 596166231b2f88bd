#!/usr/bin/env bash
# Trains what drafts for a target in so many seconds: the target's own text first, then the training.
#
#   train.sh WHAT TARGET_DIR CORPUS_DIR RUN_DIR SECONDS [options of distil.py or train_head.py]
#
# WHAT: drafter (a model, distilled), or a head: eagle2, eagle3, lyanna. RUN_DIR gets generated/ (token files, shared by all that are
# trained for the target) and WHAT/ (the drafter's directory). After a kill the same command goes on; it ends with 3 when there is more
# to do. WHAT may be text: generated/ alone, for which SECONDS is 0; behind that several things may be trained at once.
# SEQUENCES and SAMPLE_BATCH: how much the target generates, and how much of it at once. GENERATE: more options of generate.py, in quotes
# where they have spaces. TOKEN_CACHE: where tokenised text is kept. NAME: the directory, in place of WHAT.
set -euo pipefail
what=$1 target=$2 corpus=$3 run=$4 seconds=$5
shift 5
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
text=(--text "$corpus" --repeat gsm8k_train=5 tinystories=4 --cache "${TOKEN_CACHE:-$run/tokens}")
generate=()
words=$(xargs -r printf '%s\n' <<<"${GENERATE:-}") || { echo "train.sh: GENERATE is not whole words and quotes: $GENERATE" >&2; exit 2; }
[[ -z $words ]] || mapfile -t generate <<<"$words"
case $what in
text) train=() ;;
drafter) train=(distil.py "$target") ;;
eagle2 | eagle3 | lyanna) train=(train_head.py "$target" --kind "$what") ;;
*)
    echo "train.sh: $what is neither text, drafter nor eagle2, eagle3, lyanna" >&2
    exit 2
    ;;
esac
mkdir -p "$run"
SECONDS=0
"$python" "$here/generate.py" "$target" --out "$run/generated" "${text[@]}" --sequences "${SEQUENCES:-16384}" \
    --batch "${SAMPLE_BATCH:-2048}" "${generate[@]}"
[[ $what == text ]] && exit
left=$((seconds - SECONDS))
if ((left < 20)); then
    echo "train.sh: $left of $seconds seconds are left to train in; the same command goes on" >&2
    exit 3
fi
"$python" "$here/${train[0]}" "${train[@]:1}" --out "$run/${NAME:-$what}" "${text[@]}" --generated "$run/generated" \
    --budget "$left" --seconds "$((left + 30))" "$@"
