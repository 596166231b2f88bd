#!/bin/bash
# The reference that Doxygen makes of the headers and the pages: no warning, every comment is there, every link leads somewhere.
#   reference.sh SOURCE
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
fail() { echo "FAILED: $1"; failed=1; }
command -v doxygen > /dev/null || { echo "SKIPPED: doxygen was not found"; exit 0; }

cd "$1" || exit 1
SPEC_VERSION=0 SPEC_DOCS_DIR=$work doxygen docs/Doxyfile > "$work/log" 2>&1 || fail "doxygen: $(tail -1 "$work/log")"
[ ! -s "$work/log" ] || { fail "doxygen warns:"; head -20 "$work/log"; }
cd "$work/html" || exit 1

# shows PAGE WORDS: the page has them, whatever its marks
shows() { sed 's/<[^>]*>//g' "$1" | tr '\n' ' ' | grep -qF -- "$2" || fail "$1 lacks \"$2\""; }
shows spec_8h.html "Whoever generates text needs this header alone"                   # the comment of the file
shows spec_8h.html "Ownership: Who opens, closes."                                    # a label in it
shows structspec__drafter__params.html "mass where the target has none is wasted"     # a comment of two lines behind its field
shows structspec__builder__ops.html "A builder of your own"                           # of a struct that another one stands in front of
shows structspec__bandit.html "UCB1 over n_arm arms"
shows spec__trees_8h.html "chain:K K drafts in a row"                                 # a row of a table stays a line
grep -q 'href="api.html#api-requests"\|href="#api-requests"' api.html || fail "a link to a heading of its page is lost"
grep -q 'href="models.html#models-writing-gguf-files"' using.html || fail "a link to a heading of another page is lost"

while read -r link; do
    link=${link//%20/ }
    [ -e "${link#file://}" ] || fail "a link leads to $link, which is not there"
done < <(grep -oh 'href="[^"#]*' -- *.html | cut -c 7- | grep -v '^http\|^$' | sort -u)
[ $failed -eq 0 ] || exit 1
echo "the reference has all comments and links"
