#!/bin/bash
# From a bare Debian or Ubuntu machine to text: installs what is missing, builds, and generates with the model that
# ships with the project, plainly and speculatively.
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

echo "== building in $build"
if [ ! -f "$build/CMakeCache.txt" ]; then
    cmake -S "$root" -B "$build" -DSPEC_TESTS=OFF -DSPEC_CUDA=OFF > /dev/null
fi
cmake --build "$build" -j "$(nproc)" --target spec-cli > "$build/quickstart.log" 2>&1 || {
    tail -n 40 "$build/quickstart.log" >&2
    exit 1
}

# generate FILE TITLE OPTIONS...: the text (also to FILE), and its figures
generate() {
    local file=$1 title=$2
    shift 2
    echo
    echo "== $title"
    printf '%s' "$prompt"
    "$build/bin/spec" run -m "$root/models/demo-target" -p "$prompt" -n 128 "$@" \
        > "$build/$file" 2> "$build/quickstart.log" || {
        cat "$build/quickstart.log" >&2
        exit 1
    }
    cat "$build/$file"
    echo
    grep -E '^(decode|steps)' "$build/quickstart.log"
}

generate plain.txt "plain: one token per pass of the target"
generate speculative.txt "speculative: a smaller model drafts, the target checks four drafts in one pass" \
    -md "$root/models/demo-drafter"

echo
cmp "$build/plain.txt" "$build/speculative.txt" # drafts change the speed, never the text
echo "Both texts are the same, byte for byte. The models are tiny and know stories only."
echo "Next: build/bin/spec run --help, examples/embed.c, README.md"
