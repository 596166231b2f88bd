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

# --- usage: 2, nothing on stdout, the reason on stderr ---
run 2;                                              no_out; err_has usage
run 2 walk;                                         no_out; err_has '"walk" is no command'
run 2 run;                                          no_out; err_has 'no model'
run 2 run -m "$target";                             no_out; err_has 'no prompt'
run 2 run -m "$target" -p a -f b;                   no_out; err_has 'both'
run 2 run -m "$target" -p a extra;                  no_out; err_has '"extra"'
run 2 run -m "$target" -p a --bogus;                no_out; err_has bogus
run 2 run -m "$target" -p a -n;                     no_out; err_has argument
run 2 run -m "$target" -p a -n x;                   no_out; err_has '--n-predict is "x"'
run 2 run -m "$target" -p a -n 0;                   no_out; err_has '--n-predict is 0'
run 2 run -m "$target" -p a -n 99999999999;         no_out; err_has '--n-predict'
run 2 run -m "$target" -p a --temp nan;             no_out; err_has '--temp'
run 2 run -m "$target" -p a --temp -1;              no_out; err_has '--temp'
run 2 run -m "$target" -p a --top-p 1.5;            no_out; err_has '--top-p'
run 2 run -m "$target" -p a --logprobs 21;          no_out; err_has '--logprobs'
run 2 run -m "$target" -p a --dtype int3;           no_out; err_has '--dtype'
run 2 run -m "$target" -p a --temp 0.5 --check;     no_out; err_has '--check needs'
run 2 run -m "$target" -p a --stop "";              no_out; err_has '--stop'
run 2 info;                                         no_out; err_has 'no model'
SPEC_SEED=x run 2 run -m "$target" -p a;            no_out; err_has 'SPEC_SEED is "x"'

# --- help, version, devices ---
run 0 --help;                                       out_has '--spec-draft-n-max'
run 0 -h
run 0 run -h;                                       out_has '--top-k'
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

# --- text alone on stdout, the report on stderr ---
run 0 run -m "$target" -p "$prompt" -n 24
cp "$work/out" "$work/plain"
[ -s "$work/plain" ] || fail "no text"
for line in load prompt decode; do err_has "^$line +[0-9.]+ ms"; done
err_has 'tokens per second'; err_has 'emitted per step'
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "speculative text is not the plain text"
err_has 'accepted [0-9]+ of [0-9]+'

# --- a prompt from a file, as it is; options from the environment, which the command line overrides ---
printf '%s' "$prompt" > "$work/prompt"
run 0 run -m "$target" -f "$work/prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "the text from a file's prompt differs"
SPEC_MODEL=$target SPEC_MODEL_DRAFT=$drafter SPEC_N_PREDICT=7 run 0 run -p "$prompt" -n 24
cmp -s "$work/out" "$work/plain" || fail "the environment gives another text"
SPEC_N_PREDICT=3 run 0 run -m "$target" -p "$prompt" --json; is n_generated 3
run 0 run -m "$target" -p "" -n 4

# --- ids ---
run 0 run -m "$target" -p "$prompt" -n 5 --ids --ignore-eos
out_has '^([0-9]+ ){4}[0-9]+ ?$'

# --- JSON ---
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 -s 7 --spec-draft-n-max 3 --json --logprobs 2 --ignore-eos
for key in text tokens n_prompt n_generated steps drafted accepted emitted_per_step stop_reason load_ms prefill_ms \
    decode_ms tokens_per_second backend dtype seed model drafter bytes_model bytes_state version logprobs; do
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
assert 0 <= o["accepted"] <= o["drafted"] <= 3 * o["steps"]
assert 1 <= o["emitted_per_step"] <= 4 and o["n_prompt"] > 0
assert o["bytes_model"] > 0 and o["bytes_state"] > 0 and o["tokens_per_second"] > 0
END
fi
run 0 run -m "$target" -p "$prompt" -n 4 --json;    is drafter null; is drafted 0
run 0 run -m "$target" -p "$prompt" -c 16 -n 100 --ignore-eos --json; is stop_reason '"context"'

# --- stop strings: the text ends before the first of them ---
word=$(grep -oE '[a-z]{3,}' "$work/plain" | sed -n 3p)
run 0 run -m "$target" -md "$drafter" -p "$prompt" -n 24 --stop "never said" --stop "$word" --json
is stop_reason '"stop"'
case $(value text) in *"$word"*) fail "the text holds the stop string \"$word\"" ;; esac

# --- sampling: the same seed gives the same text ---
run 0 run -m "$target" -p "$prompt" -n 24 --temp 0.9 --top-k 40 --top-p 0.95 --min-p 0.02 -s 5
cp "$work/out" "$work/sampled"
run 0 run -m "$target" -p "$prompt" -n 24 --temp 0.9 --top-k 40 --top-p 0.95 --min-p 0.02 -s 5
cmp -s "$work/out" "$work/sampled" || fail "the same seed gave another text"

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
is family '"bamba"'; is n_layer 6; is n_attention 2; is n_mamba2 4
run 1 info "$work/nothing";                         no_out; err_has nothing

# --- Ctrl-C: what there is so far, stop reason aborted ---
# (python starts it: a shell's background jobs ignore SIGINT)
if command -v python3 > /dev/null; then
    what="Ctrl-C"
    python3 - "$spec" "$target" << 'END' || fail "Ctrl-C did not end the run as it should"
import json, signal, subprocess, sys, time
run = [sys.argv[1], "run", "-m", sys.argv[2], "-p", "Once", "-n", "2000", "-c", "2040", "--ignore-eos", "--ids"]
p = subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
p.stdout.read(8)  # it has begun
p.send_signal(signal.SIGINT)
_, err = p.communicate(timeout=60)
assert p.returncode == 1, (p.returncode, err)
assert b"stopped by aborted" in err, err
END
fi

[ $failed -eq 0 ] && echo "all checks of the command line passed"
exit $failed
