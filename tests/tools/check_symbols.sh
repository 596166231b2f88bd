#!/bin/bash
# A name of the library may not meet one of the program that it is linked into: every symbol of the archive begins with
# spec, and the shared library exports what spec.h declares.
#   check_symbols.sh NM LIBSPEC.A LIBSPEC.SO
set -euo pipefail
nm=$1 archive=$2 shared=$3

# names FILE OPTIONS...: the symbols that FILE defines for others; lines with fewer words name the archive's members.
names() { "$nm" --defined-only "${@:2}" "$1" | awk 'NF == 3 { print $3 }' | sort -u; }

status=0
# check FILE PATTERN OPTIONS...
check() {
    local all alien
    all=$(names "$1" "${@:3}")
    alien=$(grep -vE "$2" <<< "$all" || true)
    echo "$(basename "$1"): $(wc -l <<< "$all") symbols, $(grep -c . <<< "$alien" || true) that do not match $2"
    if [ -z "$all" ]; then echo "no symbol was found"; status=1; fi
    if [ -n "$alien" ]; then echo "$alien"; status=1; fi
}
check "$archive" '^spec' -g
check "$shared" '^spec_' -D
exit $status
