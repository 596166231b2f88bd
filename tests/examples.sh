#!/bin/bash
# The examples do what their first lines say: texts that must be equal are, and numbers are right.
#   examples.sh NAME BIN MODELS     NAME an example, BIN where the programs are, MODELS where demo-target and demo-drafter are
set -u
name=$1 bin=$2 target=$3/demo-target drafter=$3/demo-drafter
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
prompt="Once upon a time"

fail() {
    echo "FAILED: $name: $1"
    failed=1
}
# run PROGRAM ARGS...: leaves $work/out and $work/err.
run() { "$bin/$1" "${@:2}" > "$work/out" 2> "$work/err" || fail "exit code $?: $(head -n 3 "$work/err")"; }
has() { grep -qE -- "$2" "$work/$1" || fail "std$1 lacks \"$2\""; }
same() { cmp "$1" "$2" || fail "$3"; }
# plain PROMPT: at most 64 tokens of greedy text and a newline, by embed without its last line.
plain() { "$bin/embed" "$target" "$drafter" "$1" | sed '$d'; }

# An answer is what a session says that reads all of the conversation anew, and costs the tokens of its turn.
check_chat() {
    local second=" The big dog was" said
    run chat "$target" "$drafter" <<< "$prompt"
    cp "$work/out" "$work/first"
    same "$work/first" <(plain "$prompt") "the first answer is not embed's"
    run chat "$target" "$drafter" <<< "$prompt"$'\n'"$second"
    said=$(head -c -1 "$work/first"; printf .) # the dot keeps newlines at its end
    same "$work/out" <(cat "$work/first"; plain "$prompt${said%.}$second") "the second answer is not embed's"
    has err '^\[4 tokens read, 64 said in [1-3][0-9] steps\]'
    has err '^\[4 tokens read, [1-9][0-9]* said in [1-3][0-9] steps\]'
    [ "$(grep -c '^\[4 tokens read' "$work/err")" = 2 ] || fail "a turn does not cost its own 4 tokens"
}

# However many at once: each text is the same, though its prompt may have waited. Requests are kept.
told() { sed 's/, waited [0-9]* steps\]/]/' "$1" | sort; }
check_batch() {
    local n stopped
    for n in 1 4 8; do
        run batch "$target" $n
        cp "$work/out" "$work/$n"
        same <(told "$work/1") <(told "$work/$n") "$n at once say other texts than one after the other"
    done
    has out '^\[.* waited [1-9] steps\] A red ball' # of 8, where others' prompts were read first
    if cmp -s "$work/1" "$work/4"; then fail "texts of 4 sequences end in the order in which they came"; fi
    [ "$(grep -c '^\[' "$work/out")" = 8 ] || fail "there are not 8 texts"
    stopped=$(sed -n 's/^\[stop, .*\] The dog|//p' "$work/out")
    if [[ -z $stopped || $stopped == *.* || $(plain "The dog") != "$stopped."* ]]; then
        fail "\"$stopped\" does not end at a full stop"
    fi
    same <(plain "The dog") <(awk '/^\[/ { on = /^\[eos, .*\] The dog\|/ } on { sub(/^.*\|/, ""); print }' "$work/1") \
        "greedy text is not embed's"
    has out '^\[length, 30 tokens.*\] The dog\|'       # with a bias against the end of text
    has out '^\[length, 20 tokens.*\] The old house\|'
    has out '^\[length, 24 tokens.*\] A red ball, .*\|'
    [ "$(sed -n 's/^\[.*\] A red.*|//p' "$work/out" | sort -u | wc -l)" = 2 ] || fail "a penalty changes nothing"
    [ "$(sed -n 's/^\[.*\] The old.*|//p' "$work/out" | sort -u | wc -l)" = 3 ] || fail "samplings say the same"
}

# The text is embed's both times, and the second time takes less than half as many steps.
check_own_drafter() {
    local steps
    run own_drafter "$target" "$prompt"
    same <(sed '/^64 tokens in /d' "$work/out") <(plain "$prompt"; plain "$prompt") "the drafter has changed the text"
    mapfile -t steps < <(sed -n 's/^64 tokens in \([0-9]*\) steps$/\1/p' "$work/out")
    [ "${#steps[@]}" = 2 ] && [ "${steps[0]}" -le 64 ] && [ $((2 * steps[1])) -lt "${steps[0]}" ] ||
        fail "steps: ${steps[*]}"
}

# Trees of no more than 23 drafts, of which some are kept.
check_own_tree() {
    local n step drafts
    run own_tree "$target" "$drafter" "$prompt"
    read -r n step drafts < <(sed -n 's/^\([0-9]*\) tokens in \([0-9]*\) steps, \([0-9]*\) drafts$/\1 \2 \3/p' "$work/out")
    [ "${n:-0}" -gt 0 ] && [ $((3 * step)) -lt $((2 * n)) ] && [ "$drafts" -ge $((3 * step)) ] && [ "$drafts" -le $((23 * step)) ] ||
        fail "$n tokens, $step steps, $drafts drafts"
}

# The text is what the same seed gives to batch, whose drafter proposes other trees; some drafts are kept.
check_own_verifier() {
    local text
    text=$("$bin/batch" "$target" | sed -n 's/^\[length, 20 tokens.*\] The old house|/The old house/p')
    run own_verifier "$target" "$drafter" "The old house"
    if [[ -z $text || $(head -n 1 "$work/out") != "$text"* ]]; then fail "the text does not begin with \"$text\""; fi
    has out '^[3-9][0-9] tokens behind 24 steps$'
}

# Where saving fails, what was saved before stays.
check_full_disk() {
    cp "$1" "$work/before"
    (trap '' XFSZ; ulimit -f 1; "$bin/stream" "$target" "$prompt" "$1" <<< "" 2>&1 || echo failed) | tail -n 1 > "$work/failed"
    [ "$(cat "$work/failed")" = failed ] || fail "it is saved on a full disk: $(cat "$work/failed")"
    cmp "$work/before" "$1" || fail "what was saved before is gone"
    if [ -e "$1.part" ]; then fail "a part of it stays"; fi
}

# Stopped and taken up again, however often: the text and its log-probability are those of one go.
check_stream() {
    local delay n=0 file=$work/sequence
    local difference='{ gsub("]", ""); d += FNR == NR ? $NF : -$NF } END { exit d < -0.01 || d > 0.01 }'
    run stream "$target" "$prompt" "$file" < /dev/null
    cp "$work/out" "$work/whole"
    sed -n '/^\[/p' "$work/err" > "$work/whole.sum"
    has err '^\[(eos|length), [1-9][0-9]+ tokens, log-probability -[1-9]'
    if [ -e "$file" ]; then fail "a text that has ended is saved"; fi
    for delay in 0 0.03 0.03 0.05 end; do
        if [ $delay = end ]; then run stream "$target" "$prompt" "$file" < /dev/null
        else run stream "$target" "$prompt" "$file" < <(sleep $delay; echo); fi
        cat "$work/out" >> "$work/parts"
        sed -n '/^\[/p' "$work/err" >> "$work/parts.sum"
        if [ ! -e "$file" ]; then break; fi
        n=$((n + 1))
        if [ $n = 1 ]; then check_full_disk "$file"; fi
    done
    [ $n -gt 0 ] || fail "nothing stopped it"
    if "$bin/stream" "$target" "$prompt" "$work/none/sequence" <<< "" > "$work/out" 2> "$work/err"; then fail "it is saved nowhere"; fi
    has err "^$work/none/sequence: No such file"
    if "$bin/stream" "$work/none" "$prompt" "$file" < /dev/null > "$work/out" 2> "$work/err"; then fail "there is no model"; fi
    [ "$(wc -l < "$work/err")" = 1 ] || fail "without a model it tells more than why"
    same "$work/whole" "$work/parts" "the text is another one after $n stops"
    awk "$difference" "$work/whole.sum" "$work/parts.sum" || fail "other log-probabilities: $(cat "$work"/*.sum)"
}

# Python, by generate and by steps, says what embed says. A library elsewhere: SPEC_TEST_LIBRARY.
check_binding() {
    python3 "$(dirname "$0")/../examples/binding.py" "${SPEC_TEST_LIBRARY:-$bin/../lib/libspec.so}" "$target" "$drafter" "$prompt" \
        > "$work/out" 2> "$work/err" || fail "exit code $?: $(tail -n 3 "$work/err")"
    same "$work/out" <(plain "$prompt"; plain "$prompt") "the text is another one"
    python3 "$(dirname "$0")/../examples/binding.py" 2>&1 | grep -q '^    binding.py build/lib' || fail "without words it does not say how it is called"
}

"check_$name"
exit $failed
