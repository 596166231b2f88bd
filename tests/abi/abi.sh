#!/bin/bash
# Programs that were compiled with other versions of the headers run with today's library, and print the same:
#   abi.sh same PYTHON CC SOURCE LIBRARIES MODELS      an older one, whose structs are shorter, and a newer one
#   abi.sh planted PYTHON CC SOURCE LIBRARIES MODELS   each struct in turn with a field put into its middle: must be seen
set -euo pipefail
what=$1 python=$2 cc=$3 source=$4 libraries=$5 models=$6
here=$source/tests/abi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# run NAME CHANGE...: leaves $work/NAME.out, and the program's exit code in it.
run() {
    local name=$1
    mkdir -p "$work/$name"
    "$python" "$here/abi_headers.py" "$source" "$work/$name" "${@:2}"
    "$cc" -std=c11 -I "$work/$name" "$here/abi_program.c" -o "$work/$name/program" -L "$libraries" -lspec \
        -Wl,-rpath,"$libraries"
    timeout 60 "$work/$name/program" "$models/demo-target" "$models/demo-drafter" "$work/costs.json" \
        > "$work/$name.out" 2> "$work/$name.err" || echo "exit code $?" >> "$work/$name.out"
}
# fail NAME TEXT
fail() {
    echo "FAILED: $2"
    cat "$work/$1.err"
    exit 1
}

run today same
if grep -q '^exit code' "$work/today.out"; then fail today "the program of today"; fi
if [ "$what" = same ]; then
    run older cut
    run newer grow
    for name in older newer; do
        echo "$name: $(head -n 1 "$work/$name.err")"
        cmp "$work/today.out" "$work/$name.out" || fail $name "the $name program prints something else"
    done
    grep -qE ': [1-9][0-9]* are smaller' "$work/older.err" || fail older "no struct of the older program is smaller"
    grep -qE '^([0-9]+) structs: 0 .* \1 are larger' "$work/newer.err" || fail newer "a struct is not larger"
else
    for struct in $("$python" "$here/abi_headers.py" "$source" - names); do
        run "$struct" insert "$struct" 2> /dev/null # what a signal ends, bash tells
        if cmp -s "$work/today.out" "$work/$struct.out"; then fail "$struct" "a field in the middle of $struct is not seen"; fi
        echo "$struct: seen"
    done
fi
