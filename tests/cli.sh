#!/bin/bash
# The program spec as its users meet it: exit codes, what goes where, JSON keys, --check, usage errors, info.
#   cli.sh SPEC MODELS     SPEC the program, MODELS the directory with demo-target and demo-drafter
set -u
spec=$1 target=$2/demo-target drafter=$2/demo-drafter
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for variable in $(compgen -e | grep '^SPEC_'); do unset "$variable"; done
failed=0

# run CODE ARGS...: runs spec, leaves $work/out and $work/err, and compares the exit code.
run() {
    local want=$1 got=0
    shift
    "$spec" "$@" > "$work/out" 2> "$work/err" < /dev/null || got=$?
    what="spec $*"
    if [ $got -ne "$want" ]; then fail "exit code $got, expected $want"; fi
}
fail() {
    echo "FAILED: $what: $1"
    sed 's/^/    stderr: /' "$work/err" | head -n 5
    failed=1
}
out_has() { grep -qE -- "$1" "$work/out" || fail "stdout lacks \"$1\""; }
err_has() { grep -qE -- "$1" "$work/err" || fail "stderr lacks \"$1\""; }
no_out() { [ ! -s "$work/out" ] || fail "stdout is not empty"; }
# A value of the JSON object in $work/out, one key a line.
value() { sed -n "s/^  \"$1\": \(.*[^,]\),\{0,1\}$/\1/p" "$work/out"; }
is() { [ "$(value "$1")" = "$2" ] || fail "$1 is $(value "$1"), expected $2"; }

prompt="Once upon a time"
printf 'Once upon a time there was a fox.\nOnce upon a time there was a hen.\n' > "$work/corpus.txt"
printf '{"text": "Once upon a time there was a fox.\\nOnce upon a time there was a hen.\\n", "body": "once"}\n\n' > "$work/corpus.jsonl"

# --- other files of models ---
run 2 convert;                                                       no_out; err_has 'no model'
run 2 convert "$target";                                             no_out; err_has 'no file to write: .*-o FILE.gguf'
run 2 convert "$target" "$work/m.gguf";                              no_out; err_has "m.gguf. is not expected here: .* -o"
run 2 convert "$target" -o "$work/m.gguf" -p a;                      no_out; err_has 'convert|-p'
run 2 convert "$target" -o "$work/m.gguf" --type q3;                 no_out; err_has '--type is "q3", need one of f32\|'
run 1 convert "$work/none" -o "$work/m.gguf";                        no_out; err_has "$work/none"
run 1 convert "$target" -o "$work/no/m.gguf";                        no_out; err_has "$work/no/m.gguf"
[ -z "$(ls "$work" | grep '^m')" ] || fail "a model or a part of it was left behind"
run 0 convert "$target" -o "$work/m.gguf" --type bf16;               no_out; err_has "$work/m.gguf: [0-9.]+ MB"
run 0 run -m "$target" -p "$prompt" -n 24;  cp "$work/out" "$work/plain"
run 0 run -m "$work/m.gguf" -p "$prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "a converted model says something else"
run 0 convert "$work/m.gguf" -o "$work/m.gguf" --type q8_0;          no_out; err_has 'MB in'
run 0 info "$work/m.gguf";                                           out_has 'Q8_0'
run 0 convert --help;                                                out_has '--type f32\|f16'
grep -q -- --help-lab "$work/out" && fail "--help shows options of experiments, and there are none"
# what is there and is no GGUF file stays: the model's own files above all
cp -r "$target" "$work/source"; chmod -R u+w "$work/source"
for file in model.safetensors config.json; do
    run 1 convert "$work/source" -o "$work/source/$file";            no_out; err_has "$file: is there, and is not .*: it is not replaced"
    cmp -s "$target/$file" "$work/source/$file" || fail "the model's own $file was changed"
done
ln -s m.gguf "$work/link"
run 0 convert "$target" -o "$work/link" --type f16
[ -L "$work/link" ] && [ ! -L "$work/m.gguf" ] || fail "the link was replaced, and not its file"
mkfifo "$work/pipe"
cat "$work/pipe" > "$work/through" &
run 0 convert "$target" -o "$work/pipe" --type f16
wait $!
cmp -s "$work/m.gguf" "$work/through" && [ -p "$work/pipe" ] || fail "a pipe is not written, or is one no more"
err_has "^$work/pipe: [0-9.]+ s$" # and no size
what="spec convert -o -"
"$spec" convert "$target" -o - --type f16 2> "$work/err" | cmp -s - "$work/m.gguf" || fail "the model is not on stdout"
"$spec" convert "$target" -o - --type f16 > "$work/stdout.gguf" 2> "$work/err"
cmp -s "$work/stdout.gguf" "$work/m.gguf" || fail "the model is not in the file that is stdout"
! grep -q ' 0.0 MB' "$work/err" || fail "says that nothing was written"
rm -r "$work"/source "$work"/pipe "$work"/link "$work"/through

# --- heads, which are no targets ---
head=$(dirname "$0")/golden/heads/eagle3-llama2
run 0 info "$head";                                                  out_has '^head +EAGLE-3'
run 1 run "$head" -p a;                                              no_out; err_has 'is a head, which drafts for the model .* -md'
run 1 run "$head" --prompt-ids 1,2;                                  no_out; err_has 'drafts for another model'
run 1 convert "$head" -o "$work/m.gguf";                             no_out; err_has 'is a head on another model'

# --- tables of n-grams ---
run 2 ngram;                                                         no_out; err_has 'spec ngram build CORPUS... -m DIR -o FILE'
run 2 ngram walk -m "$target" -o "$work/t";                          no_out; err_has 'ngram walk: need spec ngram build'
run 2 ngram build "$work/corpus.txt" -o "$work/t";                   no_out; err_has 'whose tokens'
run 2 ngram build -m "$target" -o "$work/t";                         no_out; err_has 'no corpus'
run 2 ngram build "$work/corpus.txt" -m "$target";                   no_out; err_has 'no table: .*-o FILE'
run 2 ngram build "$work/corpus.txt" -m "$target" -o "$work/t" --order 9; no_out; err_has '--order is 9, need 1 to 8'
run 2 ngram build "$work/corpus.txt" -m "$target" -o "$work/t" --backend cpu; no_out; err_has 'backend'
run 1 ngram build "$work/none" -m "$target" -o "$work/t";            no_out; err_has "$work/none: No such file"
run 1 ngram build "$work" -m "$target" -o "$work/t";                 no_out; err_has "$work: is a directory"
run 1 ngram build "$work/corpus.txt" -m "$work/none" -o "$work/t";   no_out; err_has "$work/none"
run 1 ngram build "$work/corpus.txt" -m "$target" -o "$work/no/t";   no_out; err_has "$work/no/t: "
printf 'abc\n{"text": 1}\n' > "$work/bad.jsonl"
run 1 ngram build "$work/bad.jsonl" -m "$target" -o "$work/t";       no_out; err_has "$work/bad.jsonl: line 1 is not JSON"
printf '{"text": 1}\n' > "$work/bad.jsonl"
run 1 ngram build "$work/bad.jsonl" -m "$target" -o "$work/t";       no_out; err_has 'line 1 has no string "text"; --json-field'
printf 'abc\377def' > "$work/bad.txt"
run 1 ngram build "$work/bad.txt" -m "$target" -o "$work/t";         no_out; err_has "$work/bad.txt: .*byte 3 is 0xFF"
printf 'a\0b\0' > "$work/bad.txt"
run 1 ngram build "$work/bad.txt" -m "$target" -o "$work/t";         no_out; err_has "$work/bad.txt: byte 1 is 0: not a text"
run 1 ngram build /dev/zero -m "$target" -o "$work/t";               no_out; err_has '/dev/zero: byte 0 is 0: not a text'
# what gives bytes without end is read up to a bound, and refused
ln -s /dev/zero "$work/endless.jsonl"
run 1 ngram build "$work/endless.jsonl" -m "$target" -o "$work/t";   no_out; err_has 'endless.jsonl: line 1: more than 268435455 bytes'
for command in run "tree --html -"; do
    run 1 $command "$target" -f /dev/zero;                           no_out; err_has '/dev/zero: more than 268435455 bytes, which is too long'
done
# a line that memory has no room for is not the end of the corpus (what a sanitizer takes is more than this limit)
if (ulimit -v 400000; "$spec" --version > /dev/null 2>&1); then
    what="spec ngram build long.jsonl"
    cp "$work/corpus.jsonl" "$work/long.jsonl"; truncate -s 200M "$work/long.jsonl"
    (ulimit -v 200000; "$spec" ngram build "$work/long.jsonl" -m "$target" -o "$work/t" --memory 16 2> "$work/err") && fail "a corpus cut short"
    err_has "$work/long.jsonl: Cannot allocate memory"
    [ ! -e "$work/t" ] || fail "a table of a part of the corpus"
    # nor is one whose string has none: jansson would read beyond its end
    { cat "$work/corpus.jsonl"; printf '{"text": "'; head -c 67108862 /dev/zero | tr '\0' a; printf '"}\n'; } > "$work/long.jsonl"
    for room in 200000 250000; do
        (ulimit -v $room; "$spec" ngram build "$work/long.jsonl" -m "$target" -o "$work/t" --memory 16 2> "$work/err") && fail "a line cut short"
        err_has "^spec: $work/long.jsonl: line 3: no memory for its 67108875 bytes"
    done
    rm "$work/long.jsonl"
fi
cp "$work/corpus.txt" "$work/same.txt"
run 1 ngram build "$work/same.txt" -m "$target" -o "$work/same.txt"; no_out; err_has 'same.txt: is there, and is not .*: it is not replaced'
cmp -s "$work/corpus.txt" "$work/same.txt" || fail "the corpus was overwritten by its table"
[ -z "$(ls "$work" | grep '^t')" ] || fail "a table or a part of it was left behind"
run 0 ngram build "$work/corpus.txt" -m "$target" -o "$work/t.png";  no_out; err_has 'continuations of .* contexts, from [0-9]+ tokens of 1 texts'
run 0 ngram build "$work/corpus.jsonl" --tokenizer "$target" -o "$work/json.png"; no_out
cmp -s "$work/t.png" "$work/json.png" || fail "text and JSON lines give unlike tables"
for file in corpus.txt corpus.jsonl; do
    { printf '\357\273\277'; cat "$work/$file"; } > "$work/marked.${file#*.}"
    run 0 ngram build "$work/marked.${file#*.}" -m "$target" -o "$work/marked.png"
    cmp -s "$work/t.png" "$work/marked.png" || fail "a byte order mark is read as text"
done
yes "a b" | head -c 262144 > "$work/block.txt" # as much as is read at once
{ cat "$work/block.txt"; printf '\357\273\277'; } > "$work/behind.txt"
for file in block behind; do run 0 ngram build "$work/$file.txt" -m "$target" -o "$work/$file.png"; done
! cmp -s "$work/block.png" "$work/behind.png" || fail "the bytes of a mark behind the beginning are no text"
cat "$work/corpus.jsonl" "$work/corpus.jsonl" > "$work/two.jsonl"
run 0 ngram build "$work/two.jsonl" -m "$target" -o "$work/two.png"; err_has 'tokens of 2 texts'
"$spec" ngram build - -m "$target" -o "$work/in.png" < "$work/corpus.txt" 2> "$work/err" || fail "a corpus from stdin"
cmp -s "$work/t.png" "$work/in.png" || fail "a corpus from stdin gives another table"
grep -q warning "$work/err" && fail "a warning without a reason"
run 0 ngram build "$work/corpus.txt" -m "$target" -o "$work/in.png" --min-count 99; no_out; err_has 'warning: the table is empty: .*--min-count'
run 0 ngram build "$work/corpus.jsonl" --json-field body -m "$target" -o "$work/body.png" --order 1 --length 2 --rows 1 --min-count 1 --memory 1
run 0 ngram --help;                                                  out_has '--json-field'
run 0 run -m "$target" -p "$prompt" -n 24 --draft "png:$work/t.png" --check; err_has '^check +equal'; err_has 'accepted [1-9]'
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --draft "png:$work/t.png,1,2" --draft-combine union --check; err_has '^check +equal'
run 0 info -m "$target" --draft "png:$work/t.png"
run 2 run -m "$target" -p a --draft "png:$work/t.png,2,7";           no_out; err_has 'draft 7 tokens in a row, the table .* has 6'
run 1 run -m "$target" -p a --draft "png:$work/none";                no_out; err_has "$work/none: cannot open"
run 1 run -m "$target" -p a --draft "png:$work/corpus.txt";          no_out; err_has 'not a corpus table'
head -c 100 "$work/t.png" > "$work/cut.png"
run 1 run -m "$target" -p a --draft "png:$work/cut.png";             no_out; err_has 'cut.png: .*cut short'

# --- usage: 2, nothing on stdout, the reason on stderr ---
run 2;                                              no_out; err_has usage
[ "$(wc -l < "$work/err")" -eq 5 ] || fail "the hint is not five lines"
run 2 walk;                                         no_out; err_has '"walk" is no command'
run 2 run;                                          no_out; err_has 'no model'
run 2 run -m "$target";                             no_out; err_has 'no prompt'
run 2 run -m "$target" -p a -f b;                   no_out; err_has 'both'
run 2 run -m "$target" -p a extra;                  no_out; err_has '"extra" is not expected here: .*-p'
run 2 run "$target" "$drafter" -p a;                no_out; err_has 'not expected here: .*-md'
run 2 run -m "$target" -p a --bogus;                no_out; err_has '"--bogus" is not an option, nor'
# one of another command is told as that
run 2 run --version;                                no_out; err_has '"--version" is not an option here, but of spec alone'
run 2 tree "$target" -p a --html x --json=1;        no_out; err_has '"--json=1" is not an option here, but of spec run, spec info'
run 2 tree "$target" -p a --html x -json;           no_out; err_has '"-json" is not an option here, but of spec run, spec info'
run 2 info "$target" -p a;                          no_out; err_has '"-p" is not an option here, but of spec run, spec tree'
run 2 -m "$target" -p a;                            no_out; err_has '"-m" is not an option here, but of spec run, spec tree, spec info'
run 2 run -m "$target" -p a -n;                     no_out; err_has '"-n" needs an argument: N'
run 2 run -m "$target" -p a --n-predict;            no_out; err_has '"--n-predict" needs an argument: N'
run 2 run -m "$target" -p a --check=1;              no_out; err_has '"--check=1" takes no argument'
run 2 run -m "$target" -p a --to 1;                 no_out; err_has '"--to" is not an option, nor the beginning'
run 2 run -m "$target" -p a -n x;                   no_out; err_has '--n-predict is "x"'
run 2 run -m "$target" -p a -n 0;                   no_out; err_has '--n-predict is 0, need -1 or 1'
run 2 run -m "$target" -p a -n -2;                  no_out; err_has '--n-predict is -2'
run 2 run -m "$target" -p a -n 99999999999;         no_out; err_has '--n-predict'
run 2 run -m "$target" -p a --temp nan;             no_out; err_has '--temp'
run 2 run -m "$target" -p a --temp -1;              no_out; err_has '--temp'
run 2 run -m "$target" -p a --top-p 1.5;            no_out; err_has '--top-p'
run 2 run -m "$target" -p a --logprobs 21;          no_out; err_has '--logprobs'
run 2 run -m "$target" -p a --dtype int3;           no_out; err_has '--dtype'
run 2 run -m "$target" -p a --weights int3;         no_out; err_has '--weights is "int3", need one of auto\|q8_0'
run 2 run -m "$target" -p a --temp 0.5 --check;     no_out; err_has '--check needs'
run 2 run -m "$target" -p a --stop "";              no_out; err_has '--stop'
run 2 info;                                         no_out; err_has 'no model'
# a value that is empty: a variable without one. A prompt may be
run 2 run "" -p a;                                  no_out; err_has 'an empty word'
run 2 run "$target" "" -p a;                        no_out; err_has 'an empty word'
run 2 ngram build "" -m "$target" -o "$work/t";     no_out; err_has 'an empty word'
for option in --model --model-draft --tokenizer --file --backend --plugin-dir --cost-profile --draft-past; do
    run 2 run -m "$target" -p a -n 1 "$option" "";  no_out; err_has "^spec: $option is empty, need [A-Z]+ "
done
run 2 tree "$target" -p a --html "";                no_out; err_has '--html is empty, need FILE'
run 2 convert "$target" -o "";                      no_out; err_has '--output is empty, need FILE'
SPEC_MODEL_DRAFT='' SPEC_COST_PROFILE='' SPEC_TREE='' run 0 run -m "$target" -p a -n 1
run 2 run -m "$target" -md "$drafter" -p a --tree ""; no_out; err_has 'kinds: none, chain, '
run 2 run -m "$target" -md "$drafter" -p a --tree x:3; no_out; err_has 'no tree is called "x:3"; kinds: none, chain, '
SPEC_DRAFT_PAST=$work/of-others run 0 run -m "$target" -p a -n 1 # for runs with a drafter that keeps its past
SPEC_DRAFT_PAST=$work/of-others run 0 run -m "$target" -p a -n 1 --draft ngram
if [ -e "$work/of-others" ]; then fail "a file of a drafter that is not there"; fi
SPEC_SEED=x run 2 run -m "$target" -p a;            no_out; err_has 'SPEC_SEED is "x"'

# options of other programs: named as they were written, never read as a letter with its value
run 2 run -m "$target" -p a -ngl 99;                no_out; err_has '"-ngl" is not an option: .*--backend'
run 2 run -m "$target" -p a --n-gpu-layers 99;      no_out; err_has '"--n-gpu-layers" is not an option: .*--backend'
run 2 run -m "$target" -p a -cnv;                   no_out; err_has '"-cnv" is not an option: .*--parse-special'
run 2 run -hf x/y -p a;                             no_out; err_has '"-hf" is not an option: .*-m DIR'
run 2 run -m "$target" -p a -st;                    no_out; err_has '"-st" is not an option'
run 2 run -m "$target" -p a -vh;                    no_out; err_has '"-vh" is not an option'
run 2 run -m "$target" -p a -fx;                    no_out; err_has '"-fx" is not an option; .*-f FILE'
# shellcheck disable=SC2086
for words in -ngld --device "--draft-min 1" "-cd 9" "-tb 2" "-r x" -no-cnv --color --no-escape "-b 9" "-ub 9" -fa "-ctk f16" \
    --mlock "--mirostat 2" "--grammar x" "--lora x" -hfd --jinja "--samplers x" "--keep 4"; do
    run 2 run -m "$target" -p a $words;             no_out; err_has "\"${words%% *}\" is not an option: "
done
for words in "-np 4:server" "--max-tokens 9:-n N" "--max_new_tokens 9:-n N" "--temperature 1:--temp T" "--assistant_model x:-md DIR" "-nkvo:--backend" \
    "--num-speculative-tokens 3:--spec-draft-n-max" "--prompt_lookup_num_tokens 3:--draft ngram" "--n-ctx 9:-c N" "--top_k 9:called --top-k" \
    "--n_predict=9:called --n-predict" "--draft_temp 1:called --draft-temp" "--repetition_penalty 2:--repeat-penalty" \
    "--speculative_config x:--draft NAME" "--no_repeat_ngram_size 3:--repeat-penalty" "--gpu-memory-utilization 0.9:spec info" \
    "--guided-json x:mask in spec_request" "--min-tokens 3:--ignore-eos" "--numa distribute:numactl" "--ppl:--logprobs N"; do
    # shellcheck disable=SC2086
    run 2 run -m "$target" -p a ${words%:*};        no_out; err_has "\"$(cut -d' ' -f1 <<< "${words%:*}")\" is not an option: .*${words##*:}"
done
run 2 info "$target" --top_k 9;                     no_out; err_has '"--top_k" is not an option, nor'
run 2 run -m "$target" -p a --draft 8;              no_out; err_has '--draft is 8, .*--spec-draft-n-max 8'
run 0 run -m "$target" -p -ngl -n2 -c64 -s7 -t1 --temp 0 --ids; out_has '^[0-9]+ [0-9]+ ?$'
run 0 run -model="$target" -p a -n 2
for words in "--draft-max 3" "--draft-n 3" --draft-max=3 -draft-max=3; do
    # shellcheck disable=SC2086
    run 0 run "$target" -md "$drafter" -p a --predict 2 $words --json; is tree '"chain:3"'; is n_generated 2
done

run 2 run -m "$target" -md "$drafter" -p a --tree bogus:3;         no_out; err_has bogus
run 2 run -m "$target" -md "$drafter" -p a --tree chain:x;         no_out; err_has 'chain:K'
run 2 run -m "$target" -md "$drafter" -p a --tree "chain:2;" --adapt ucb; no_out; err_has 'spec: '
run 2 run -m "$target" -p a --tree chain:2 --tree product:2,2; no_out; err_has 'chain:2;product:2,2.* need --adapt'
# what is asked of drafts where nothing drafts; --tree none asks for nothing, the environment may say it for other runs
for asked in "--tree chain:3" "--spec-draft-n-max 3" "--draft-temp 1" "--draft-vocab text" "--draft-state per-node"; do
    # shellcheck disable=SC2086
    run 2 run -m "$target" -p a $asked;             no_out; err_has "${asked%% *} .*-md DIR"
    # shellcheck disable=SC2086
    run 2 run -m "$target" -p a $asked --draft ngram; no_out; err_has "${asked%% *} .*-md DIR"
done
for asked in "--adapt ucb" "--draft-combine union"; do
    # shellcheck disable=SC2086
    run 2 run -m "$target" -p a $asked;             no_out; err_has "${asked%% *} needs a drafter"
done
run 2 tree "$target" -p a --tree chain:3 --html "$work/page"; no_out; err_has '--tree .*-md DIR'
run 2 info "$target" --tree chain:3;                no_out; err_has '--tree .*-md DIR'
run 0 run -m "$target" -p a -n 2 --tree none
SPEC_TREE=chain:3 SPEC_ADAPT=ucb run 0 run -m "$target" -p a -n 2

run 2 run -m "$target" -p a --verify bogus;         no_out; err_has '--verify is "bogus", need one of auto\|greedy'
run 2 run -m "$target" -md "$drafter" -p a --verify mss;             no_out; err_has mss
run 2 run -m "$target" -md "$drafter" -p a --temp 1 --verify greedy; no_out; err_has greedy
run 2 run -m "$target" -md "$drafter" -p a --temp 1 --tree beam:2,2 --verify mss; no_out; err_has mss
run 2 run -m "$target" -p a --adapt maybe;          no_out; err_has '--adapt'
run 2 run -m "$target" -p a --json --json-lines;    err_has '--json and --json-lines'
run 2 run -m "$target" -p a --scan diagonal;        no_out; err_has '--scan is "diagonal", need one of chunked|recurrent'
run 2 run -m "$target" -p a --scan window;          no_out; err_has '--scan is "window"'
run 2 run -m "$target" -p a --advance back;         no_out; err_has '--advance'
run 2 run -m "$target" -p a --draft-state none;     no_out; err_has '--draft-state'
run 2 run -m "$target" -p a --spec-draft-n-max 64;  no_out; err_has '--spec-draft-n-max is 64'
run 2 run -m "$target" -p a --html x;               no_out; err_has html
run 2 tree;                                         no_out; err_has 'no model'
run 2 tree "$target" -p a;                          no_out; err_has '--html'
run 2 tree "$target" --html "$work/page";           no_out; err_has 'no prompt'
run 2 tree "$target" -p a --html "$work/page" --steps 501; no_out; err_has '--steps is 501'
run 2 tree "$target" "$drafter" "$drafter" -p a --html "$work/page"; no_out; err_has 'not expected'

for option in "--draft-resample-across" "--draft-resample-left 2"; do
    # shellcheck disable=SC2086
    run 2 run -m "$target" -md "$drafter" -p a $option; no_out; err_has "${option%% *} is for what --draft-resample N adds"
done
# what a message quotes moves nothing on a terminal
run 2 run -m "$target" -md "$drafter" -p a --tree $'x\033[2Jy\nz\302\233'; no_out; err_has 'no tree is called "x\\x1b\[2Jy\\x0az\\x9b"'

# --- a terminal ---
# terminal COLUMNS TYPE ARGS...: what a terminal of that width and type is sent, in $work/out
terminal() {
    what="spec ${*:3} on a terminal $2 of $1 columns"
    python3 - "$1" "$2" "$spec" "${@:3}" > "$work/out" 2> "$work/err" << 'END'
import fcntl, os, pty, struct, sys, termios
child, fd = pty.fork()
if child == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[1]), 0, 0))
    os.environ["TERM"] = sys.argv[2]
    os.execv(sys.argv[3], sys.argv[3:])
try:
    while data := os.read(fd, 4096): sys.stdout.buffer.write(data)
except OSError: pass # Linux ends so
os.waitpid(child, 0)
END
}
# Its lines that do not fit in N columns, in front of the text that begins with PLAIN.
too_long() { tr '\r' '\n' < "$work/out" | sed "\\|$2|,\$d; s/\\x1b\\[[0-9]*[Km]//g" | awk -v n="$1" 'length > n - 1'; }
if command -v python3 > /dev/null; then
    for width in 80 20 8; do
        terminal $width xterm run -m "$target" -md "$drafter" -p "$prompt" -n 4
        out_has '[0-9]+ %'; [ -z "$(too_long $width ', there')" ] || fail "its progress does not fit"
    done
    terminal 80 xterm convert "$target" -o "$work/$(printf '%0100d' 0).gguf" --type f16
    out_has 'writing: '; [ -z "$(too_long 80 "$work")" ] || fail "its progress does not fit"
    terminal 80 dumb run -m "$target" -md "$drafter" -p "$prompt" -n 4 -c 4000
    ! grep -q $'\033' "$work/out" || fail "it is sent escapes"
    [ "$(grep -c 'n_ctx is 4000' "$work/out")" = 1 ] || fail "a warning comes twice, or not"
    sed 's/"max_position_embeddings"/"some_unknown_key": 1, &/' "$target/config.json" > "$work/config"
    mkdir "$work/unlike"; cp "$target"/* "$work/unlike"; cp "$work/config" "$work/unlike/config.json"
    terminal 80 xterm run -m "$work/unlike" -p "$prompt" -n 4
    out_has '(^|\[K)spec: warning: .*some_unknown_key'
fi

# --- help, version, devices ---
run 0 --help;                                       out_has '--spec-draft-n-max'
run 0 -h
run 0 run -h;                                       out_has '--top-k'; out_has '^  143 '
for option in scan advance draft-state; do # of experiments
    run 0 run --help; ! grep -q -- "--$option" "$work/out" || fail "--help shows --$option"
    run 0 run --help-lab;                           out_has "--$option "
done
grep -q -- --top-k "$work/out" && fail "--help-lab shows what is of no experiment"
run 0 run --help
grep -E '^  dyspec-threshold:.*[a-z] all ' "$work/out" > /dev/null && fail "a long name pushes its help away"
for kind in chain:K static: product: beam:M,N dyspec:N dyspec-threshold: sequoia: eagle2: none; do
    out_has "^  $kind"
done
out_has '^drafters \(--draft\):'; out_has '^  ngram:N,M,L '; out_has '^  trie:NODES,DEPTH,MEGABYTES '
run 0 info --help
run 0 --version;                                    out_has '^spec [0-9]+\.[0-9]+\.[0-9]+$'
run 0 --list-devices;                               out_has '^cpu'

# --- failures: 1 ---
run 1 run -m "$work/nothing" -p a;                  no_out; err_has nothing
run 1 run -m "$target" -f "$work/nothing";          no_out; err_has nothing
run 1 run -m "$target" -p a --backend abacus;       no_out; err_has abacus
run 1 run -m "$target" -md "$work/nothing" -p a;    no_out; err_has nothing
run 1 run -m "$target" -p "$(printf 'a\377')";      no_out; err_has 'spec: '
run 1 run -m "$target" -p "$prompt" -c 3;           no_out; err_has 'spec: '
run 1 run -m "$target" -md "$drafter" -p a --temp 1 --tree product:2,2 --verify chain; err_has chain
run 1 run -m "$target" -md "$drafter" -p a --adapt cost --cost-profile "$target/config.json"; no_out
err_has config.json
run 1 tree "$target" -p a --html "$work/nothing/page"; no_out; err_has nothing

# --- a failure as JSON: an object on stdout, the sentence on stderr ---
# error CODE FORM ARGS...: FORM --json or --json-lines
error() {
    run "$1" "${@:3}" "$2"
    python3 - "$work/out" "$work/err" "$1" "$2" << 'END' || fail "the error is not told as JSON"
import json, sys
out, err = (open(f, encoding="utf-8", errors="replace").read() for f in sys.argv[1:3])
o = json.loads(out)
assert o["exit_status"] == int(sys.argv[3]) and o["error"]
assert "spec: " + o["error"].replace("?", "\ufffd") in err.replace("?", "\ufffd")
assert (o.get("type") == "error" and out.count("\n") == 1) == (sys.argv[4] == "--json-lines")
END
}
if command -v python3 > /dev/null; then
    for form in --json --json-lines; do
        error 1 $form run -m "$work/nothing" -p a
        error 1 $form run -m "$work/$(printf 'no\377thing')" -p a
        error 1 $form run -m "$target" -f "$work/nothing"
        error 1 $form run -m "$target" -p "$(printf 'a\377')"
        error 2 $form run -m "$target" -p a -n 0
        error 2 $form run -m "$target" -p a --bogus
        error 2 $form run
    done
    error 1 --json info "$work/nothing"
fi

# --- text alone on stdout, the report on stderr ---
run 0 run -m "$target" -p "$prompt" -n 24
cp "$work/out" "$work/plain"
[ -s "$work/plain" ] || fail "no text"
for line in load prompt decode; do err_has "^$line +[0-9.]+ ms"; done
err_has 'tokens per second'; err_has 'emitted per step'
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "speculative text is not the plain text"
err_has 'accepted [0-9]+ of [0-9]+'

run 0 run "$target" -p "$prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "run DIR is not run -m DIR"
SPEC_MODEL=$work/nothing run 0 run "$target" -p "$prompt" -n 1

# --- to the end ---
run 0 run "$target" -p "$prompt" -n -1 --json;      is stop_reason '"eos"'
run 0 run "$target" -p "$prompt" -n -1 -c 40 --ignore-eos --json; is stop_reason '"context"'
run 0 run "$drafter" -p "$prompt" -n -1 -c 40 --ignore-eos --json; is stop_reason '"context"'
run 0 run "$target" -p "$prompt" -n -1 --ignore-eos --ids; [ "$(wc -w < "$work/out")" -gt 1900 ] || fail "it ended before its context"

# --- escapes, where they are asked for ---
run 0 run "$target" -p $'"a"\n\tb\\\'A' -n 9 --ids; cp "$work/out" "$work/written"
run 0 run "$target" -p '\"a\"\n\tb\\\x27\x41' -e -n 9 --ids
cmp -s "$work/out" "$work/written" || fail "escapes are not what they mean"
run 0 run "$target" -p 'a\n' -n 9 --ids; cmp -s "$work/out" "$work/written" && fail "escapes without -e"
printf '%s' 'a\q' > "$work/prompt"
run 0 run "$target" -f "$work/prompt" -n 1 -e       # a file is taken as it is
for text in 'a\q' 'a\' 'a\x4' 'a\x00'; do
    run 2 run "$target" -p "$text" -e;              no_out; err_has '^spec: -p has '
done
run 0 run "$target" -p "$prompt" -n 24 -e --stop '\x67\x69rl' --json; is stop_reason '"stop"'

# --- a prompt from a file, as it is; options from the environment, which the command line overrides ---
printf '%s' "$prompt" > "$work/prompt"
run 0 run -m "$target" -f "$work/prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "the text from a file's prompt differs"
SPEC_MODEL=$target SPEC_MODEL_DRAFT=$drafter SPEC_N_PREDICT=7 run 0 run -p "$prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "the environment gives another text"
SPEC_N_PREDICT=3 run 0 run -m "$target" -p "$prompt" --json; is n_generated 3
run 0 run -m "$target" -p "" -n 4
err_has '^prompt +1 token: nothing was computed'    # and no rate of it
grep -qE '^prompt .*per second' "$work/err" && fail "a rate of nothing"

# --- ids ---
run 0 run -m "$target" -p "$prompt" -n 5 --ids --ignore-eos
out_has '^([0-9]+ ){4}[0-9]+ ?$'

# --- a prompt of ids: the text's own ids give the same text; a model without a tokenizer has no other way ---
mkdir "$work/bare"
for file in "$target"/*; do
    case $file in */tokenizer*) ;; *) ln -s "$(realpath "$file")" "$work/bare" ;; esac
done
run 0 run -m "$target" -p "" -n 9 --ids --ignore-eos; first=$(cat "$work/out")
run 0 info "$target" --json; ids="$(value bos),$(echo $first | tr ' ' ',')"
run 0 run -m "$target" -p "" -n 14 --ids --ignore-eos; cut -d ' ' -f 10- "$work/out" > "$work/rest"
run 0 run -m "$target" --prompt-ids "$ids" -n 5 --ids --ignore-eos
cmp -s "$work/out" "$work/rest" || fail "the prompt's ids give another text"
run 0 run -m "$work/bare" --prompt-ids "$(echo "$ids" | tr ',' ' ') " -n 5 --ids --ignore-eos
cmp -s "$work/out" "$work/rest" || fail "without a tokenizer the ids give another text"
run 0 run -m "$work/bare" --prompt-ids "$ids" -n 5 --json; is n_generated 5; is text null
run 0 tree "$target" "$drafter" --prompt-ids "$ids" --html "$work/page" --steps 3
run 1 run -m "$work/bare" -p a;                     no_out; err_has 'tokenizer.json'; err_has '--prompt-ids'
run 1 tree "$work/bare" --prompt-ids 1 --html "$work/page"; err_has 'tokenizer.json'
run 0 convert "$work/bare" -o "$work/bare.gguf";    no_out
run 1 run -m "$work/bare.gguf" -p a;                no_out; err_has 'bare.gguf has no tokenizer in it, .* Give one with --tokenizer; --prompt-ids'
run 0 run -m "$work/bare.gguf" --tokenizer "$target" -p a -n 2
run 1 run -m "$target" --prompt-ids 999999999 -n 2; no_out; err_has 999999999
for ids in 1,x 1,,2 ,1 1, -1 1,-2 99999999999 1.5 "1 ,2;" x; do
    run 2 run -m "$target" --prompt-ids "$ids" -n 2; no_out; err_has '--prompt-ids'
done
run 2 run -m "$target" --prompt-ids "" -n 2;        no_out; err_has '--prompt-ids is empty'
run 2 run -m "$target" --prompt-ids 1 -p a;         no_out; err_has '-p and --prompt-ids are both given'
run 2 run -m "$target" --prompt-ids 1 -f a;         no_out; err_has '-f and --prompt-ids are both given'

# --- JSON ---
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 -s 7 --spec-draft-n-max 3 --json --logprobs 2 --ignore-eos
for key in text tokens n_prompt n_generated steps drafted accepted emitted_per_step stop_reason load_ms prefill_ms \
    decode_ms tokens_per_second backend dtype weights seed model drafter bytes_model bytes_state version logprobs; do
    out_has "^  \"$key\": "
done
is n_generated 24; is seed 7; is stop_reason '"length"'; is model "\"$target\""; is drafter "\"$drafter\""
[ ! -s "$work/err" ] || fail "--json leaves something on stderr"
if command -v python3 > /dev/null; then
    python3 - "$work/out" "$work/plain" << 'END' || fail "the JSON object does not add up"
import json, sys
o = json.load(open(sys.argv[1]))
assert o["text"].encode() == open(sys.argv[2], "rb").read()
assert len(o["tokens"]) == o["n_generated"] == len(o["logprobs"]) == 24
assert all(len(l["top"]) == 2 and l["token"] == t for l, t in zip(o["logprobs"], o["tokens"]))
assert all(l["top"][0]["logprob"] == l["logprob"] for l in o["logprobs"])  # greedy
assert "".join(l["text"] for l in o["logprobs"]) == o["text"] and all(t["text"] for l in o["logprobs"] for t in l["top"])
assert 0 <= o["accepted"] <= o["drafted"] <= 3 * o["steps"]
assert 1 <= o["emitted_per_step"] <= 4 and o["n_prompt"] > 0
assert o["bytes_model"] > 0 and o["bytes_state"] > 0 and o["tokens_per_second"] > 0
END
fi
run 0 run -m "$target" -p "$prompt" -n 1 --logprobs 1 --logit-bias 130+1000 --json # a part of a character
[ "$(grep -c '"text": null' "$work/out")" -gt 0 ] && grep -q '"bytes": \[' "$work/out" || fail "bytes that are no text are told as some"
run 0 run -m "$target" -p "$prompt" -n 2 --logprobs 1; 
err_has '^logprob  1: [0-9]+ " there" -[0-9.]+ of [0-9]+ " there" -[0-9.]+$'
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --json-lines --ignore-eos
[ ! -s "$work/err" ] || fail "--json-lines leaves something on stderr"
if command -v python3 > /dev/null; then
    python3 - "$work/out" "$work/plain" << 'END' || fail "the lines do not add up"
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
*parts, result = lines
assert {p["type"] for p in parts} == {"tokens"} and result["type"] == "result" and 1 < len(parts) <= result["steps"] + 1
assert "".join(p["text"] for p in parts) == result["text"] == open(sys.argv[2]).read()
assert sum((p["tokens"] for p in parts), []) == result["tokens"] and len(result["tokens"]) == 24
END
fi
run 0 run -m "$target" -p "$prompt" -n 4 --json;    is drafter null; is drafted 0
odd=$work/$'no\377name'; ln -s "$(realpath "$drafter")" "$odd" # a path is bytes, a string of JSON is text
run 0 info "$odd" --json;                           is model "\"$work/no"$'\357\277\275name"'
run 0 run "$odd" -md "$odd" -p a -n 1 --json;       is model "\"$work/no"$'\357\277\275name"'; is drafter "\"$work/no"$'\357\277\275name"'
run 0 run -m "$target" -p "$prompt" -c 16 -n 100 --ignore-eos --json; is stop_reason '"context"'
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --weights q8_0 --check; err_has 'weights in q8_0'; err_has '^check +equal'
run 0 info -m "$target" --weights q8_0;             out_has '^matrices +q8_0'

run 0 run -m "$target" -p "$prompt" -n 4 --json;    is tree null; is branched 0; is speculated_share 0.0

# --- trees: every kind gives the plain text; each rule is called what the library calls it ---
for tree in none chain:3 static:A product:3,2 product-repeat:2,2 beam:2,3 dyspec:8 dyspec-threshold:0.05,12 sequoia:8 \
    eagle2:3,8,3; do
    run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --tree "$tree"
    cmp -s "$work/out" "$work/plain" || fail "the text is not the plain text"
    err_has "^trees +$tree, "; err_has '^accepted 0: '
done
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --tree chain:3 --json; cp "$work/out" "$work/json"
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --spec-draft-n-max 3 --json
is tree '"chain:3"'
grep -v '_ms"\|per_second' "$work/json" > "$work/a"; grep -v '_ms"\|per_second' "$work/out" > "$work/b"
cmp -s "$work/a" "$work/b" || fail "--spec-draft-n-max 3 is not --tree chain:3"
SPEC_TREE="chain:9;beam:2,2" run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 4 --tree chain:2 --json
is tree '"chain:2"'
for rule in auto naive chain mss mss-repeat; do
    run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 8 --temp 0.8 --verify $rule --json; is verify "\"$rule\""
done
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 8 --verify greedy --json; is verify '"greedy"'
for form in "--scan recurrent" "--advance joint" "--draft-state per-node" "--scan chunked --advance replay"; do
    # shellcheck disable=SC2086
    run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --tree product:2,2 $form
done
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 48 --tree product:3,2,2 --json
if command -v python3 > /dev/null; then
    python3 - "$work/out" << 'END' || fail "the numbers of the trees do not add up"
import json, sys
o = json.load(open(sys.argv[1]))
h = o["accepted_histogram"]
assert sum(h) == o["steps"] and sum(k * n for k, n in enumerate(h)) == o["accepted"] and h[-1] > 0 and len(h) <= 4
assert abs(o["nodes_per_step"] * o["steps"] - o["drafted"] - o["steps"]) < 1e-6 and o["nodes_per_step"] > 15
assert 0 < o["speculated_share"] <= 1 and 0 <= o["branched"] <= o["steps"]
END
fi
for adapt in cost ucb; do
    run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --tree "chain:4;product:2,2" --tree none --adapt $adapt \
        --cost-profile "$work/profile" --json
    is tree '"chain:4;product:2,2;none"'
    [ -s "$work/profile" ] || fail "no profile was saved"
done
cp "$work/profile" "$work/profile-before"
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 8 --cost-profile "$work/profile"
cmp -s "$work/profile" "$work/profile-before" || fail "a profile that is there was measured anew"

# --- the past of a drafter: by a second run a text is drafted from the first one's ---
run 0 run -m "$target" --draft trie -p "$prompt" -n 60 --json --draft-past "$work/past"; cp "$work/out" "$work/json"
run 0 run -m "$target" --draft "trie;ngram" -p "$prompt" -n 60 --json --draft-past "$work/past"
python3 - "$work/json" "$work/out" << 'EOF' || fail "the second run does not draft better"
import json, sys
first, second = (json.load(open(f)) for f in sys.argv[1:])
assert first["text"] == second["text"]
assert second["emitted_per_step"] > first["emitted_per_step"] and second["emitted_per_step"] > 2
EOF
run 0 run -m "$target" --draft trie -p "$prompt" -n 40 --check --draft-past "$work/past"; err_has '^check +equal'
run 2 run -m "$target" --draft ngram -p a --draft-past "$work/past"; no_out; err_has 'draft-past.*trie'
run 2 run -m "$target" -p a --draft-past "$work/past"; no_out; err_has 'draft-past.*trie'
head -c 100 "$work/past" > "$work/broken"
run 1 run -m "$target" --draft trie -p a --draft-past "$work/broken"; no_out; err_has "$work/broken: .*cut short"
run 1 run -m "$target" --draft trie -p a -n 2 --draft-past "$work/no/such"; no_out; err_has "$work/no/such: cannot be written: No such file"
run 1 run -m "$target" --draft trie -p a -n 2 --draft-past "$work"; no_out; err_has "$work: is a directory"
[ "$(head -c 7 "$work/past")" = SPECTRI ] || fail "the past is not where it was"

# --- drafters: the report names what proposed, and no tree where no model drafts ---
run 0 run -m "$target" --draft ngram -p "$prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "the text is not the plain text"
err_has '^trees +ngram, verified'
run 0 run -m "$target" --draft ngram:2,4 -p "$prompt" -n 4 --json; is tree null; is draft '"ngram:2,4"'
run 0 run -m "$target" --draft ngram -md "$drafter" -p "$prompt" -n 24; err_has '^trees +ngram;chain:4, verified'
for draft in "ngram;model:$drafter" "model:$drafter;ngram"; do # the model stands last
    run 0 run -m "$target" --draft "$draft" -p "$prompt" -n 24; err_has '^trees +ngram;chain:4, verified'
done
run 2 run -m "$target" --draft "ngram;model" -p a;  no_out; err_has '--draft is "model:", need the directory'
run 2 run -m "$target" --draft "ngram;ngram;ngram;ngram;ngram;ngram;ngram;ngram" -p a; no_out; err_has '--draft names more than 7 drafters'
run 2 run -m "$target" --draft "ngram;8" -p a;      no_out; err_has '--draft is 8, need a kind'
run 2 run -m "$target" --draft "model:$drafter;model:$target" -p a; no_out; err_has "--draft has model:$drafter and model:$target: one model"
one_model="-md $target and --draft model:$drafter: one model" # in any order
run 2 run -m "$target" -md "$target" --draft "model:$drafter" -p a; no_out; err_has "$one_model"
run 2 run -m "$target" --draft "model:$drafter" -md "$target" -p a; no_out; err_has "$one_model"
run 0 run -m "$target" -md "$drafter" --draft "model:$drafter" -p a -n 1
# what the command line says wins over the environment
SPEC_MODEL_DRAFT=$work/none run 0 run -m "$target" --draft "model:$drafter" -p a -n 1 --json; is drafter "\"$drafter\""
SPEC_DRAFT="ngram;model:$work/none" run 0 run -m "$target" -md "$drafter" -p a -n 1 --json; is drafter "\"$drafter\""; is draft '"ngram"'
SPEC_DRAFT="ngram;model:$work/none" run 0 run -m "$target" --draft trie -p a -n 1 --json; is drafter null; is draft '"trie"'
SPEC_DRAFT="model:$work/none" SPEC_MODEL_DRAFT=$drafter run 2 run -m "$target" -p a; no_out; err_has 'SPEC_MODEL_DRAFT .* and SPEC_DRAFT model:'
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 4 --json; is tree '"chain:4"'; is draft null

# --- the page of the trees ---
# page WHAT: what every page must be
page() {
    grep -q "^<!doctype html>" "$work/page" || fail "$1: not HTML"
    [ "$(grep -oE 'id="(canvas|strip|text|run|histogram)"' "$work/page" | head -n 1)" = 'id="canvas"' ] ||
        fail "$1: the tree is not the first thing on the page"
    ! grep -qE 'https?://' "$work/page" || fail "$1: names another place"
    if command -v python3 > /dev/null; then
        python3 - "$work/page" "$2" << 'END' || fail "$1: its data does not add up"
import json, re, sys
page = open(sys.argv[1], encoding="utf-8").read()
o = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S).group(1))
assert 1 <= len(o["steps"]) <= int(sys.argv[2]) and len(o["ids"]) == len(o["texts"])
pending = None
for s in o["steps"]:
    n = len(s["token"])
    assert all(len(s[k]) == n for k in ("parent", "rank", "draft", "target"))
    assert s["draft"][0] is None and s["target"][0] is None  # the root was drawn before
    assert s["path"][0] == 0 and all(s["parent"][b] == a for a, b in zip(s["path"], s["path"][1:]))
    assert pending is None or s["token"][0] == pending
    assert all(0 <= s["draft"][i] <= 1.0001 and 0 <= s["target"][i] <= 1.0001 for i in range(1, n))
    assert 0 < s["next_target"] <= 1.0001
    for x in range(n):  # siblings are distinct: their probabilities share one law
        children = [i for i in range(1, n) if s["parent"][i] == x]
        assert sum(s["target"][i] for i in children) < 1.001 and sum(s["draft"][i] for i in children) < 1.001
        taken = [s["target"][i] for i in children if i in s["path"]] + [s["next_target"]] * (x == s["path"][-1])
        others = [s["target"][i] for i in children if i not in s["path"]]
        assert o["temperature"] > 0 or not taken or all(p < taken[0] for p in others)  # greedy: the likeliest
    pending = s["next"]
END
    fi
    if command -v node > /dev/null; then
        awk '/^<script>$/ { p = 1; next } /^<\/script>$/ { p = 0 } p' "$work/page" > "$work/page.js"
        [ -s "$work/page.js" ] && node --check "$work/page.js" || fail "$1: the script is none"
        node "$(dirname "$0")/tree_page_steps.js" "$work/page" > "$work/node" 2>&1 ||
            { head -n 12 "$work/node"; fail "$1: the page shows made-up steps wrongly"; }
    fi
}
run 0 tree "$target" "$drafter" -p "$prompt" --html "$work/page" --tree product:3,2 --steps 12; no_out; page greedy 12
err_has '12 steps'
# A page appears whole, in place of an older page, or not at all; a file of another kind stays, and what stdout has so far.
echo kept > "$work/other"
run 1 tree "$target" -p a --steps 2 --html "$work/other"; no_out; err_has 'not a file of this kind'
grep -qx kept "$work/other" || fail "a page was written over another file"
cp "$work/page" "$work/older"
what="a page that does not fit"
(ulimit -f 4; "$spec" tree "$target" -p a --steps 2 --html "$work/older" 2> "$work/err") && fail "exit 0"
err_has 'older: File too large'
cmp -s "$work/page" "$work/older" && [ "$(ls "$work" | grep -c '\.part$')" = 0 ] || fail "the older page is gone, or a part is left"
echo left > "$work/older.spec.part" # by a program that was killed
run 0 tree "$target" -p a --steps 2 --html "$work/older"; no_out
[ "$(ls "$work" | grep -c '\.part$')" = 0 ] || fail "what was left stays"
what="spec tree, while another program writes the page"
exec 9> "$work/older.spec.part"; flock 9
"$spec" tree "$target" -p a --steps 2 --html "$work/older" 2> "$work/err" 9>&- &
sleep 0.3; exec 9>&-
wait $! || fail "exit code $?"
[ "$(ls "$work" | grep -c '\.part$')" = 0 ] && [ "$(tail -c 8 "$work/older")" = "</html>" ] || fail "no whole page, or a part is left"
what="spec tree --html -, behind what stdout has"
"$spec" tree "$target" -p a --steps 2 --html - >> "$work/other" 2> "$work/err" && head -n 2 "$work/other" | tr '\n' ' ' |
    grep -q '^kept <!doctype html>' || fail "stdout was written over"
what="spec tree --html - to a full disk"
"$spec" tree "$target" -p a --steps 2 --html - > /dev/full 2> "$work/err" && fail "exit 0"
err_has 'stdout: No space left'
[ "$(wc -l < "$work/err")" = 1 ] || fail "more than one line tells of it"
what="spec tree --html -"
"$spec" tree "$target" "$drafter" -p "$prompt" --html - --tree product:3,2 --steps 12 2> "$work/err" | cmp -s - "$work/page" ||
    fail "the page is not on stdout"
run 0 tree -m "$target" -md "$drafter" -p "$prompt" --html "$work/page" --tree dyspec:16 --steps 9 --temp 0.9 --top-k 40
page sampled 9
run 0 tree "$target" "$drafter" -p "$prompt" --html "$work/page" --tree "chain:3;beam:2,2" --adapt ucb --steps 9
page adapted 9
run 0 tree "$target" --draft ngram -p "$prompt" --html "$work/page" --steps 4; page ngram 4
grep -q '"drafter":"ngram","tree":"ngram"' "$work/page" || fail "the page does not name what drafted"
run 0 tree "$target" "$drafter" --draft ngram -p "$prompt" --html "$work/page" --steps 4 --draft-combine choose --adapt ucb
page choose 4
grep -qF "\"drafter\":\"ngram; $drafter\",\"tree\":\"ngram;chain:4\"" "$work/page" || fail "the page does not name what drafted"
run 0 tree "$target" -p "</script><b>" --html "$work/page" --steps 4; page alone 4
err_has 'no drafter'
run 0 tree "$target" -p "$prompt" -c 16 --ignore-eos --html "$work/page"; page context 16
grep -q '"stop":"context"' "$work/page" || fail "the context's end is not told"
for stop in "length:-n 3 --ignore-eos" "eos:--steps 120" "steps:--steps 120 --ignore-eos"; do
    # shellcheck disable=SC2086
    run 0 tree "$target" -p "$prompt" ${stop#*:} --html "$work/page"
    grep -q "\"stop\":\"${stop%%:*}\"" "$work/page" || fail "it is not told that it stopped by ${stop%%:*}"
done
run 0 tree "$target" -p "" --steps 1 --html "$work/page"
grep -q '"prompt":"[^"]*endoftext' "$work/page" || fail "an empty prompt is not the token in front of texts"

# --- stop strings: the text ends before the first of them ---
word=$(grep -oE '[a-z]{3,}' "$work/plain" | sed -n 3p)
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --stop "never said" --stop "$word" --json
is stop_reason '"stop"'
case $(value text) in *"$word"*) fail "the text holds the stop string \"$word\"" ;; esac

# --- penalties, biases, ids that end the text ---
run 0 run -m "$target" -p "$prompt" -n 40 --ids;    cp "$work/out" "$work/plain-ids"
read -ra plain < "$work/plain-ids"
ids_of() { run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 40 --ids --ignore-eos "$@"; }
# distinct N: no id of $work/out stands among the N before it
distinct() {
    awk -v n="$1" '{ for (i = 1; i <= NF; i++) for (k = 1; k <= n && k < i; k++) if ($i == $(i - k)) exit 1 }' "$work/out"
}
distinct 40 && fail "plain text repeats no id: what follows shows nothing"
distinct 4 && fail "plain text repeats no id at once: what follows shows nothing"
ids_of --frequency-penalty 100;                     distinct 40 || fail "an id is repeated"
ids_of --presence-penalty 100;                      distinct 40 || fail "an id is repeated"
SPEC_FREQUENCY_PENALTY=100 ids_of;                  distinct 40 || fail "an id is repeated"
ids_of --frequency-penalty 100 --repeat-last-n 4;   distinct 4 || fail "an id is repeated at once"
distinct 40 && fail "no id is repeated, though the penalty forgets"
for option in "--repeat-last-n 0 --frequency-penalty 100 --repeat-penalty 9" "--repeat-penalty 1" "--repeat-penalty 0"; do
    ids_of $option; cmp -s "$work/out" "$work/plain-ids" || fail "other ids than without"
done
run 0 run -m "$target" -p "$prompt" -n 40 --ids --repeat-penalty 1.5; cp "$work/out" "$work/repeat"
cmp -s "$work/repeat" "$work/plain-ids" && fail "the penalty changes nothing"
ids_of --repeat-penalty 1.5;                        cmp -s "$work/out" "$work/repeat" || fail "drafted text is another than plain text"
ids_of --logit-bias "${plain[0]}-inf" --logit-bias "${plain[1]}-1e39"
grep -qwE "${plain[0]}|${plain[1]}" "$work/out" && fail "a token that was to come never came"
ids_of --logit-bias 77+1000;                        [ "$(tr ' ' '\n' < "$work/out" | sort -u | xargs)" = 77 ] || fail "not all ids are 77"
ids_of --logit-bias 77+1000 --logit-bias 77-1000;   cmp -s "$work/out" "$work/plain-ids" || fail "biases do not add up"
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 40 --check --repeat-penalty 1.2 --presence-penalty -0.5 --logit-bias 77+1.5
err_has '^check +equal'
end=${plain[6]}; at=0; while [ "${plain[at]}" != "$end" ]; do at=$((at + 1)); done
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 40 --end-id "4000,$end" --json; is stop_reason '"eos"'; is n_generated $((at + 1))
run 0 run -m "$target" -p "$prompt" -n 40 --end-id "$end" --end-id 4001 --ignore-eos --json; is stop_reason '"eos"'
run 1 run -m "$target" -p a --end-id 99999;         no_out; err_has 'end id 0 is 99999'
run 1 run -m "$target" -p a --logit-bias 99999+1;   no_out; err_has 'bias 0'
for word in "" 5 5x1 +5 5+ 5+x 5+1x 5+nan 5+inf 5+1e39 -- 99999999999+1; do
    run 2 run -m "$target" -p a --logit-bias "$word"; no_out; err_has 'need a token id, \+ or -, and a number'
done
# shellcheck disable=SC2046
run 1 run -m "$target" -p a $(seq -f '--logit-bias %.0f-inf' 0 4095); no_out; err_has 'leave no token'
run 1 run -m "$target" -p a --logit-bias 5+3e38 --logit-bias 5+3e38; no_out; err_has 'biases of token 5 add up to infinity'
run 2 run -m "$target" -p a --end-id x;             no_out; err_has '--end-id is "x", need token ids'
run 2 run -m "$target" -p a --repeat-penalty -1;    no_out; err_has '--repeat-penalty is -1'
run 2 run -m "$target" -p a --presence-penalty nan; no_out; err_has '--presence-penalty is nan'
run 2 run -m "$target" -p a --repeat-last-n -2;     no_out; err_has '--repeat-last-n is -2'

# --- special tokens: the same model, whose fourth generated token is now a special one ---
run 0 run -m "$target" -p "$prompt" -n 24 --ids
special=$(cut -d' ' -f4 "$work/out")
mkdir "$work/special"
ln -s "$(realpath "$target")"/* "$work/special/"
rm "$work/special/tokenizer.json"
word=$(python3 - "$target/tokenizer.json" "$work/special/tokenizer.json" "$special" <<'P'
import json, sys
o = json.load(open(sys.argv[1]))
number = int(sys.argv[3])
word = next(w for w, i in o["model"]["vocab"].items() if i == number)
o["added_tokens"].append(dict(id=number, content=word, single_word=False, lstrip=False, rstrip=False,
                              normalized=False, special=True))
json.dump(o, open(sys.argv[2], "w"))
sys.stdout.buffer.write(word.encode())
P
)
run 0 run -m "$work/special" -p "$prompt" -n 24
run 0 run -m "$work/special" -p "$prompt" -n 24 --json
case $(value text) in *"$word"*) fail "special tokens are in the text" ;; esac
run 0 run -m "$work/special" -md "$drafter" -p "$prompt" -n 24 --stop "never said" --stop "$word" --json
is stop_reason '"stop"'; is n_generated 4
run 0 run -m "$work/special" -p "$prompt" -n 24 --special --json
is n_generated 24
python3 - "$work/out" "$word" <<'P' || fail "--special does not write special tokens"
import json, sys
sys.exit(sys.argv[2].replace("\u0120", "") not in json.load(open(sys.argv[1]))["text"])
P
run 0 run -m "$work/special" -p "$prompt" -n 24 --special --stop "$word" --json
is stop_reason '"stop"'; is n_generated 4
run 1 run -m "$target" -p "$prompt" -n 4 --stop "never said" --stop $'\x81\x93'; err_has $'stop string "\x81\x93": .*not UTF-8'

# --- BOS written in the prompt of a tokenizer that adds it: a warning ---
python3 - "$target/tokenizer.json" "$work/special/tokenizer.json" <<'P'
import json, sys
o = json.load(open(sys.argv[1]))
bos = "<|endoftext|>"
o["post_processor"] = dict(
    type="TemplateProcessing", pair=[],
    single=[dict(SpecialToken=dict(id=bos, type_id=0)), dict(Sequence=dict(id="A", type_id=0))],
    special_tokens={bos: dict(id=bos, ids=[0], tokens=[bos])})
json.dump(o, open(sys.argv[2], "w"))
P
run 0 run -m "$work/special" -p "<|endoftext|>$prompt" -n 1 --parse-special --json
err_has 'two BOS tokens'
run 0 run -m "$work/special" -p "<|endoftext|>$prompt" -n 1 --parse-special --no-bos --json
[ ! -s "$work/err" ] || fail "a warning without a reason"
run 0 run -m "$work/special" -p "$prompt" -n 1 --parse-special --json
[ ! -s "$work/err" ] || fail "a warning without a reason"

# --- sampling: the same seed gives the same text ---
run 0 run -m "$target" -p "$prompt" -n 24 --temp 0.9 --top-k 40 --top-p 0.95 --min-p 0.02 -s 5
cp "$work/out" "$work/sampled"
run 0 run -m "$target" -p "$prompt" -n 24 --temp 0.9 --top-k 40 --top-p 0.95 --min-p 0.02 -s 5
cmp -s "$work/out" "$work/sampled" || fail "the same seed gave another text"

# --- numbers at the ends of their ranges ---
run 0 run -m "$target" -p "$prompt" -n 24
cp "$work/out" "$work/greedy"
for p in 1e-9 1e-45 1e-50; do # a mass so small holds the likeliest token alone; it never means "off"
    run 0 run -m "$target" -p "$prompt" -n 24 --temp 1 -s 3 --top-p $p
    cmp -s "$work/out" "$work/greedy" || fail "--top-p $p is not the likeliest"
done
run 0 run -m "$target" -p "$prompt" -n 4 --temp 1 -s 18446744073709551615 --json; is seed '"18446744073709551615"'
run 0 run -m "$target" -p "$prompt" -n 4 --temp 1 -s 9223372036854775807 --json; is seed 9223372036854775807
run 2 run -m "$target" -p a -s 18446744073709551616; err_has '--seed is 18446744073709551616'
run 2 run -m "$target" -p a -s -1;                  err_has '--seed is -1, .*none a random one'

# --- an output that cannot be written is a failure ---
if [ -w /dev/full ]; then
    for arguments in "info TARGET" "info TARGET --json" --version --list-devices --help \
                     "run -m TARGET -p a -n 5" "run -m TARGET -p a -n 5 --json" "run -m TARGET -p a -n 5 --json-lines" \
                     "run -m TARGET -p a -n 900 --ignore-eos --json --logprobs 20"; do
        what="spec $arguments > /dev/full" got=0
        read -ra words <<< "$arguments"
        "$spec" "${words[@]/TARGET/$target}" > /dev/full 2> "$work/err" || got=$?
        [ $got -eq 1 ] || fail "exit code $got, expected 1"
        err_has 'No space left on device'
    done
fi

# --- streams that the caller has closed: no file gets their number, and a closed stdout is a failure ---
closed() { # CODE WHAT GOT: WHAT has ended with GOT
    what="spec $2, with closed streams"
    [ "$3" -eq "$1" ] || fail "exit code $3, expected $1"
}
"$spec" run "$target" -p a -n 3 >&- 2> "$work/err";                  closed 1 run $?; err_has 'spec: stdout: Bad file descriptor'
"$spec" run "$target" -p a -n 3 --json >&- 2> "$work/err";           closed 1 "run --json" $?; err_has 'spec: stdout: Bad file'
"$spec" run "$target" -f - <&- > "$work/out" 2> "$work/err";         closed 1 "run -f -" $?; no_out; err_has 'spec: -: Bad file'
"$spec" run "$target" -p "$prompt" -n 24 <&- > "$work/out" 2>&-;     closed 0 "run" $?
cmp -s "$work/out" "$work/plain" || fail "another text"
"$spec" ngram build - -m "$target" -o "$work/none.png" <&- > "$work/out" 2> "$work/err"; closed 1 "ngram build -" $?; err_has 'spec: -: Bad file'
"$spec" convert "$target" -o "$work/c.gguf" 2> /dev/null
"$spec" convert "$target" -v -o "$work/d.gguf" <&- >&- 2>&-;         closed 0 convert $?
cmp -s "$work/c.gguf" "$work/d.gguf" || fail "what was reported stands in the file"
"$spec" run "$target" -p "$prompt" -n 24 > /dev/full 2> "$work/err"; closed 1 "run > full" $?
rm -f "$work"/[cd].gguf

# cut_short FILE ARGS...: FILE, which the arguments name, may have no bytes
cut_short() {
    what="spec ${*:2}, whose file has no room"
    { (ulimit -f 0; "$spec" "${@:2}" 2>&1; echo "exit $?") | cat; } > "$work/err"
    err_has '^exit 1$'; err_has "^spec: $1: .*(No space left|File too large)"
}
cut_short "$work/cut" run "$target" -md "$drafter" -p a -n 2 --adapt cost --cost-profile "$work/cut"
cut_short "$work/past" run "$target" --draft trie -p a -n 2 --json --draft-past "$work/past"
seq 1 60000 > "$work/numbers.txt" # more than the memory holds: runs are written while the corpus is read
cut_short "$work/cut.png" ngram build "$work/numbers.txt" -m "$target" -o "$work/cut.png" --memory 1
rm "$work/numbers.txt"
cut_short "$work/cut.html" tree "$target" "$drafter" -p "$prompt" --html "$work/cut.html"

# --- check ---
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 48 --check
err_has '^check +equal'
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 48 --check --json
out_has '"equal": true'

# --- info ---
run 0 info "$target"
for word in bamba layers weights 'state/sequence' 'KV cache' total 'unknown keys'; do out_has "$word"; done
run 0 info "$target" -md "$drafter" -c 512 --json
for key in family n_layer n_parameters bytes_weights bytes_state_seq bytes_kv_token unknown_keys session; do
    out_has "\"$key\": "
done
is family '"bamba"'; is n_layer 6; out_has "\"attention\": 2,"; out_has "\"mamba2\": 4,"
# what generation_config.json says is told; values that change nothing are not
mkdir "$work/says"
for file in "$target"/*; do
    case $file in */generation_config.json) ;; *) ln -s "$(realpath "$file")" "$work/says" ;; esac
done
run 0 info "$work/says";                            out_has '^generation +nothing in'
says() { echo "$1" > "$work/says/generation_config.json"; }
says '{"do_sample": true, "temperature": 0.8, "top_p": 1, "top_k": null, "num_beams": 4, "suppress_tokens": [12],
    "repetition_penalty": 1.3, "max_length": 20, "stop_strings": "###", "no_repeat_ngram_size": 3}'
run 0 info "$work/says"
out_has '^generation +temperature 0\.8, repetition_penalty 1\.3, stop_strings \["###"\], suppress_tokens \[12\], unread "no_repeat_ngram_size, num_beams" \(.*--generation-config'
run 0 info "$work/says" --json;                     out_has '"generation_config": \{'; out_has '"temperature": 0\.8'
run 0 run -m "$work/says" -p a -n 2 -v;             err_has 'generation_config.json says temperature 0\.8.*not followed without'
run 0 run -m "$work/says" -p a -n 2 --json;         [ ! -s "$work/err" ] || fail "told without being asked"
# and followed if that is asked for, where no option says otherwise
same_ids() { # FIRST ARGS... -- SECOND ARGS...: both print the same ids
    local first=()
    while [ "$1" != -- ]; do first+=("$1"); shift; done
    shift
    run 0 run -p "$prompt" --ids "${first[@]}"; cp "$work/out" "$work/first"
    run 0 run -p "$prompt" --ids "$@"
    cmp -s "$work/first" "$work/out" || fail "other ids than with ${first[*]}"
}
run 0 run -m "$work/says" -p a -n 2 --generation-config --json
err_has 'warning: generation_config.json says more, which is not done: no_repeat_ngram_size, num_beams$'
run 0 run -m "$work/says" -p a -n 2 --generation-config -v; err_has 'says temperature 0\.8.*options win'
same_ids -m "$target" -n 24 --temp 0.8 --repeat-penalty 1.3 --logit-bias 12-inf --seed 5 -- \
    -m "$work/says" -n 24 --generation-config --seed 5
same_ids -m "$target" -n 24 --repeat-penalty 1.1 --logit-bias 13-inf -- \
    -m "$work/says" -n 24 --generation-config --temp 0 --repeat-penalty 1.1 --logit-bias 13-inf
SPEC_TEMP=0 SPEC_REPEAT_PENALTY=1.1 same_ids -m "$target" -n 24 --logit-bias 12-inf -- -m "$work/says" -n 24 --generation-config
run 2 run -m "$work/says" -p a --generation-config --check; no_out; err_has 'check needs --temp 0, and generation_config.json says 0\.8'
run 0 run -m "$work/says" -md "$drafter" -p a -n 8 --generation-config --check --temp 0; err_has '^check +equal'
run 0 run -m "$work/says" -md "$drafter" -p a -n 8 --generation-config --verify mss
run 1 run -m "$work/says" -md "$drafter" -p a -n 8 --generation-config --verify greedy; err_has 'greedy'
run 1 tree "$work/nothing" -p a --html "$work/early"; no_out; err_has nothing
if [ -e "$work/early" ]; then fail "a page of nothing is left behind"; fi
run 0 tree "$work/says" "$drafter" -p a --generation-config --html "$work/page" --steps 3
grep -q '"temperature":0\.8' "$work/page" || fail "the page has another temperature"
says '{"do_sample": true, "temperature": 0.6, "top_k": 7, "top_p": 0.7, "min_p": 0.2, "max_new_tokens": 9}'
same_ids -m "$target" -n 9 --temp 0.6 --top-k 7 --top-p 0.7 --min-p 0.2 -- -m "$work/says" --generation-config
run 0 run -m "$work/says" -p "$prompt" --generation-config --json; is n_generated 9
run 0 run -m "$work/says" -p "$prompt" --generation-config --json -n 4; is n_generated 4
same_ids -m "$target" -n 9 --temp 0.9 --top-k 3 --top-p 0.9 -- \
    -m "$work/says" --generation-config --temp 0.9 --top-k 3 --top-p 0.9 --min-p 0
run 0 run -m "$target" -p "$prompt" -n 24
word=$(grep -oE '[a-z]{3,}' "$work/out" | sed -n 3p)
says "{\"stop_strings\": [\"never said\", \"$word\"]}"
run 0 run -m "$work/says" -p "$prompt" -n 24 --generation-config --json; is stop_reason '"stop"'
run 0 run -m "$work/says" -p "$prompt" -n 24 --generation-config --stop "never said" --json; is stop_reason '"length"'
says '{"top_p": 2}'
run 0 info "$work/says";                            out_has '^generation +error ".*top_p is 2, expected a number from 0 to 1"'
run 0 run -m "$work/says" -p a -n 2
run 1 run -m "$work/says" -p a -n 2 --generation-config; no_out; err_has 'generation_config.json: top_p is 2, expected'
run 1 info "$work/nothing";                         no_out; err_has nothing

# --- Ctrl-C and kill: what there is so far, stop reason aborted, the exit status that shells give ---
if command -v python3 > /dev/null; then
    what="a signal"
    python3 - "$spec" "$target" "$work/aborted.html" << 'END' || fail "a signal did not end the run as it should"
import json, signal, subprocess, sys, time
spec, target, page = sys.argv[1:]
work = [target, "-p", "Once", "-c", "2040", "--ignore-eos"]
numbers = signal.SIGINT, signal.SIGTERM, signal.SIGHUP
for number in numbers:  # what a shell ignores in its background jobs, they ignore
    signal.signal(number, signal.SIG_DFL)

def end(words, number, wait):
    p = subprocess.Popen([spec] + words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait(p)
    p.send_signal(number)
    out, err = p.communicate(timeout=60)
    return p.returncode, out.decode(), err.decode()

for number in numbers:
    code, out, err = end(["run"] + work + ["-n", "2000", "--ids"], number, lambda p: p.stdout.read(8))
    assert code == 128 + number and "stopped by aborted" in err and "decode" in err, (code, err)
    code, out, err = end(["run"] + work + ["-n", "2000", "--json-lines"], number, lambda p: p.stdout.readline())
    last = json.loads(out.splitlines()[-1])
    assert code == 128 + number, code
    assert last["type"] == "result" and last["stop_reason"] == "aborted" and last["n_generated"] < 2000, last
    assert not err, err
    # Of a tree nothing is told before the end: until a signal comes while it is loaded or decodes.
    tree = ["tree"] + work + ["--html", page, "--steps", "500"]
    codes = [end(tree, number, lambda p: time.sleep(0.01 * i))[0] for i in range(1, 15)]
    assert 128 + number in codes and set(codes) <= {0, -number, 128 + number}, codes

# What the caller ignores (nohup, a background job) stays ignored.
for number in numbers:
    p = subprocess.Popen([spec, "run"] + work + ["-n", "40", "--ids"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                         preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))
    p.stdout.read(8)
    p.send_signal(number)
    p.communicate(timeout=60)
    assert p.returncode == 0, p.returncode
END
fi

[ $failed -eq 0 ] && echo "all checks of the command line passed"
exit $failed
