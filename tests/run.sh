#!/bin/bash
# Installs what is missing, builds everything (the CUDA backend too where nvcc is), and runs the tests.
#
#     bash tests/run.sh [--full] [--label LABEL] [--fast-compile] [CTEST OPTIONS...]
#
# The label is quick; --full runs everything. With --fast-compile nvcc, where it can and there is no GPU, compiles slow code in a quarter
# of the time, to see that it compiles. SPEC_BUILD_DIR is where it builds (build); SPEC_SHARED a directory with more models and data, for
# tests that skip without. As many tests run at once as there are processors; -j 1 behind the options runs one after the other. Ends
# with 0 when nothing failed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${SPEC_BUILD_DIR:-$root/build}
label=quick
fast_compile=
while [ $# -gt 0 ]; do
    case $1 in
        --full) label='quick|full' ;;
        --label) label=${2:?--label needs a label}; shift ;;
        --fast-compile) fast_compile=1 ;;
        -h | --help) sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit ;;
        *) break ;;
    esac
    shift
done

. "$root/cmake/packages.sh"
need_to_build
need libcmocka-dev pkg-config --exists cmocka
need python3 has_programs python3
if [ "$label" != quick ]; then # fuzzing
    fuzzes() {
        echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -fsanitize=fuzzer,address -x c - -o /dev/null
    }
    need clang has_programs clang
    need libclang-rt-dev fuzzes
fi
install_missing

echo "== commit  $(git -C "$root" describe --always --dirty --abbrev=12 2> /dev/null || echo unknown)"
echo "== date    $(date -u +%Y-%m-%dT%H:%MZ)"
echo "== CPU     $(nproc) x $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(uname -m)"
if command -v nvidia-smi > /dev/null && nvidia-smi -L > /dev/null 2>&1; then
    nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sed 's/^/== GPU     /'
else
    echo "== GPU     none"
fi
echo "== tools   $(cc --version | head -1); cmake $(cmake --version | sed -n 's/cmake version //p')"

# Code for one kind of GPU, this machine's, is enough to test, and takes a fraction of the time.
capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2> /dev/null | head -1 | tr -d . || true)
cuda_flags=()
nvcc_help() { "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)" --help 2> /dev/null || true; }
if [ "$fast_compile" ] && [ -z "$capability" ] && [[ $(nvcc_help) == *--Ofast-compile* ]]; then
    cuda_flags=(-DCMAKE_CUDA_FLAGS=--Ofast-compile=max)
elif grep -qs '^CMAKE_CUDA_FLAGS:.*--Ofast-compile' "$build/CMakeCache.txt"; then
    cuda_flags=(-UCMAKE_CUDA_FLAGS) # of an earlier run
fi

echo "== building in $build"
mkdir -p "$build"
log=$build/build.log
if ! cmake -S "$root" -B "$build" -DSPEC_TESTS=ON -DSPEC_EXAMPLES=ON -DSPEC_CLI=ON -DSPEC_CUDA=AUTO \
    -DSPEC_CUDA_ARCHITECTURES="${capability:-90}" "${cuda_flags[@]}" > "$log" 2>&1; then
    cat "$log" >&2
    exit 1
fi
grep -A 9 '^-- spec ' "$log" | grep -E '^-- (spec|  )' || true
if ! cmake --build "$build" -j "$(nproc)" > "$log" 2>&1; then
    grep -E -A8 'error|Error' "$log" | head -n 60 >&2
    exit 1
fi
grep -E 'warning:' "$log" || true

echo "== testing, label $label"
status=0
ctest --test-dir "$build" -L "$label" -j "$(nproc)" --output-on-failure "$@" || status=$?

bash "$root/tests/tools/count_tests.sh" "$build"
log=$build/Testing/Temporary/LastTest.log
if grep -qsE '^SKIP(PED)? ?[^ ]*: ' "$log"; then
    echo "== skipped, and why"
    awk '/^[0-9]+\/[0-9]+ (Test|Testing): /{ name = $3 }
         /^SKIP(PED)? ?[^ ]*: /{ sub(/^SKIPPED: /, ""); print "   " name ": " $0 }' "$log"
fi
exit $status
