#!/bin/bash
# From a bare Debian or Ubuntu machine to text: installs what is missing, builds, and generates with the model that
# ships with the project, plainly and speculatively. Tells what speculation saved, passes first, and when to expect time.
#
#     bash examples/quickstart.sh ["prompt"]
#
# SPEC_BUILD_DIR is where it builds (build).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${SPEC_BUILD_DIR:-$root/build}
prompt=${1:-Once upon a time, there was a little girl}
for variable in $(compgen -e | grep '^SPEC_' || true); do unset "$variable"; done # they would set options

. "$root/cmake/packages.sh"
need_to_build
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
if [ ! -f "$build/CMakeCache.txt" ]; then
    cmake -S "$root" -B "$build" -DSPEC_TESTS=OFF -DSPEC_CUDA=OFF > "$log" 2>&1 || { cat "$log" >&2; exit 1; }
fi
cmake --build "$build" -j "$(nproc)" --target spec-cli 2>&1 | tee "$log" | show_progress || { tail -n 40 "$log" >&2; exit 1; }

# generate NAME TITLE OPTIONS...: the text, five times; shows it, and keeps "passes tokens milliseconds" of the fastest
generate() {
    local name=$1 title=$2 run
    shift 2
    echo
    echo "== $title"
    for run in 1 2 3 4 5; do
        "$build/bin/spec" run "$root/models/demo-target" -p "$prompt" -n 128 "$@" \
            > "$build/$name.txt" 2> "$log" || { cat "$log" >&2; exit 1; }
        awk '/^decode/ { ms = $2; tokens = $5 } /^steps/ { passes = $2 + 0 } END { print passes, tokens, ms }' "$log"
    done | sort -n -k 3 | head -n 1 > "$build/$name.figures"
    printf '%s' "$prompt"
    cat "$build/$name.txt"
    echo
}

generate plain "plain: the target alone"
generate speculative "speculative: a smaller model drafts four tokens, the target checks them in one pass" \
    -md "$root/models/demo-drafter"

echo
cmp "$build/plain.txt" "$build/speculative.txt" # drafts change how the text comes, never the text
echo "Both texts are the same, byte for byte."
echo
cat "$build/plain.figures" "$build/speculative.figures" | awk '
    BEGIN { printf "%-12s %8s %16s %14s %12s\n", "", "passes", "tokens per pass", "ms per pass", "ms in all" }
    {
        printf "%-12s %8d %16.2f %14.2f %12.1f\n", NR == 1 ? "plain" : "speculative", $1, $2 / $1, $3 / $1, $3
        passes[NR] = $1; emitted[NR] = $2 / $1; ms[NR] = $3
    }
    END {
        cost = (ms[2] / passes[2]) / (ms[1] / passes[1])
        speed = ms[1] / ms[2]
        printf "\nSpeculation saves passes: %d in place of %d. A speculative pass costs more than a plain one, since the\n", \
            passes[2], passes[1]
        printf "drafter works and five tokens are checked: here %.2f times as much, for %.2f times the tokens.\n", cost, \
            emitted[2] / emitted[1]
        verdict = "no difference"
        if (speed < 0.97) verdict = "a loss"
        if (speed > 1.03) verdict = "a gain"
        printf "So here it takes %.2f times the time of plain decoding: %s.\n", 1 / speed, verdict
    }'
cat << 'END'

Expect a gain where reading the weights is what a pass costs, so that checking five tokens costs hardly more than one:
models of billions of parameters, above all on a GPU, with a drafter many times smaller, and text that it can guess.
Expect none, or a loss, from models as tiny as these (they know stories only), and often on CPUs.
Your pair: build/bin/spec run TARGET -md DRAFTER -p TEXT --check    says both, and compares the texts.

Next: build/bin/spec run --help, examples/embed.c, README.md
END
