#!/bin/bash
# Counts what the latest ctest of a build ran: CTest's entries, and the tests inside those that are cmocka programs.
#   count_tests.sh BUILD
set -euo pipefail
awk '
    function after(text) { match($0, text "[0-9]+"); return RSTART ? substr($0, RSTART + length(text)) + 0 : 0 }
    function close_entry(has_skipped) {
        if (has_skipped) skipped += ran - good # a program that cannot run here ends in its first test
        tests += ran; passed += good; ran = good = 0
    }
    /^[0-9]+\/[0-9]+ Testing: /      { entries++; close_entry(0) }
    /^Test Passed\./                 { entries_passed++ }
    /^Required regular expression found/ { entries_passed++ } # in the place of that line
    /^Skip regular expression found/ { entries_skipped++; close_entry(1) }
    /^\[==========\].*Running [0-9]/ { ran += after("Running ") }
    /^\[  PASSED  \] [0-9]/          { good += after("PASSED  . ") }
    /^\[  SKIPPED \] [0-9]/          { n = after("SKIPPED . "); skipped += n; tests += n; ran -= n }
    function say(what, n, good, left) { printf "%s: %d passed, %d failed, %d skipped\n", what, good, n - good - left, left }
    END {
        close_entry(0)
        say("entries", entries, entries_passed, entries_skipped)
        say("tests", tests, passed, skipped)
    }' "$1/Testing/Temporary/LastTest.log"
