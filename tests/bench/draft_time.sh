#!/usr/bin/env bash
# What a draft of the tree (3,2,2,1,1) takes, with floors, one JSON object a line: models of the shapes Mamba-130M and Mamba2-130M, which
# draft for themselves; heads of random weights for the shapes of two targets; and TARGET DRAFTER pairs of directories, which are given.
#
#   draft_time.sh SPEC_BENCH BACKEND [TARGET DRAFTER]...        OPTIONS="--keep DIR -r 200" for all of them
set -euo pipefail
bench=$1 backend=$2
shift 2
read -ra options <<<"${OPTIONS:-}"
draft() { "$bench" draft -b "$backend" --tree product:3,2,2,1,1 --json "${options[@]}" "$@"; }
has_token_info() { # a shape, or a directory whose head has some
    case $1 in
    lyanna-*) ;;
    *) grep -qsE '"token_info_hot": *[1-9]' "$1/config.json" ;;
    esac
}
if [ "${SMALL:-}" ]; then # to try the script with
    draft -m mamba2-tiny
    set -- "$@" llama-tiny eagle2-llama-tiny llama-tiny lyanna-llama-tiny
else
    draft -m mamba-130m
    draft -m mamba2-130m
    set -- "$@" llama-2-7b eagle2-llama-2-7b llama-2-7b lyanna-llama-2-7b mamba2-2.7b lyanna-mamba2-2.7b
fi
for (( ; $# > 0; )); do
    draft -m "$1" -d "$2"
    if has_token_info "$2"; then draft -m "$1" -d "$2" --draft-token-info collapsed; fi
    shift 2
done
