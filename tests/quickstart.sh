#!/bin/bash
# The quickstart tells of passes before it tells of time, its figures are those of the program, and its verdict follows from them.
#   quickstart.sh SOURCE BUILD SPEC [fresh]     fresh: in a build directory of its own, with progress
set -euo pipefail
source=$1 build=$2 spec=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; cat "$work/out"; exit 1; }

# refused STATUS TEXT WORDS...: it ends at once with the status, and says the text
refused() {
    local got=0
    SPEC_BUILD_DIR=$work/none bash "$source/examples/quickstart.sh" "${@:3}" > "$work/out" 2>&1 || got=$?
    [ $got = "$1" ] && [ ! -e "$work/none" ] || fail "${*:3}: it ends with $got"
    grep -q -- "$2" "$work/out" || fail "${*:3}: it does not say \"$2\""
}
refused 0 '^    bash examples/quickstart.sh --real' --help
refused 2 '"--rael" is no option' --rael
refused 2 'prompt in quotes' Once upon
refused 2 'prompt in quotes' --real Once upon

if [ "${4:-}" = fresh ]; then # as it is when the first try was interrupted in the middle of its configuration
    build="$work/a build"
    cmake -S "$source" -B "$build" -DSPEC_TESTS=OFF -DSPEC_CUDA=OFF > "$work/out" 2>&1 || fail "it cannot be configured"
    rm -f "$build/Makefile" "$build/build.ninja"
fi
SPEC_BUILD_DIR=$build bash "$source/examples/quickstart.sh" > "$work/out" 2>&1 || fail "it fails"
if [ "${4:-}" = fresh ]; then
    for percent in 20 40 60 80 100; do
        grep -qE "^ +$percent %$|^ +$((percent + 1)) %$|^ +$((percent + 2)) %$" "$work/out" || fail "no progress at $percent %"
    done
fi

line() { grep -n -m 1 -E -- "$1" "$work/out" | cut -d : -f 1; }
passes=$(line '^ +passes +tokens per pass +ms per pass +ms in all$') || fail "no table"
saved=$(line '^Speculation saves passes: ') || fail "passes are not told"
time=$(line 'times the time of plain decoding: ') || fail "time is not told"
program=$build/bin/spec
case $program in *" "*) program="\"$program\"" ;; esac
line "^Your pair: $program run TARGET" > /dev/null || fail "the program is elsewhere"
expect=$(line '^Expect a gain where ') || fail "when to expect a gain is not told"
[ "$passes" -lt "$saved" ] && [ "$saved" -lt "$time" ] && [ "$time" -lt "$expect" ] || fail "the order is another"
grep -q '^Both texts are the same' "$work/out" || fail "the texts are not compared"

# The program's own figures of both runs, by name and row of the table.
prompt="Once upon a time, there was a little girl" models=$source/models
for name in plain speculative; do
    options=()
    if [ $name = speculative ]; then options=(-md "$models/stories-drafter"); fi
    "$spec" run "$models/stories-target" -p "$prompt" -n 128 --json "${options[@]}" > "$work/json"
    steps=$(sed -n 's/^  "steps": \(.*\),/\1/p' "$work/json") n=$(sed -n 's/^  "n_generated": \(.*\),/\1/p' "$work/json")
    want="$name $steps $(awk "BEGIN { printf \"%.2f\", $n / $steps }")"
    got=$(awk -v name="$name" '$1 == name { print $1, $2, $3 }' "$work/out")
    [ "$got" = "$want" ] || fail "the table says \"$got\", the program \"$want\""
done

# The pair that ships is a good one: its steps say three tokens and more.
awk '$1 == "speculative" && NF == 5 { exit $3 < 3 }' "$work/out" || fail "fewer than 3 tokens per pass"

# The time told is the quotient of the table's, and the word for it is true.
awk '
    $1 == "plain" && NF == 5       { plain = $5 }
    $1 == "speculative" && NF == 5 { speculative = $5 }
    /times the time of plain/      { told = $5; word = $NF }
    END {
        if (told < 0.9 * speculative / plain || told > 1.1 * speculative / plain) exit 1
        exit word !~ (told < 0.96 ? "gain" : told > 1.04 ? "loss" : "gain|loss|difference")
    }' "$work/out" || fail "the verdict does not follow from the table"
tail -n +"$passes" "$work/out" | head -n 3
