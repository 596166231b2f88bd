#!/bin/bash
# The man page and the shells' completions: each knows every option of the program, and the shells complete words and values.
#   pages.sh SPEC PAGES     PAGES: the directory with spec.1, spec.bash, _spec and spec.fish
set -u
spec=$1 pages=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 missing=
fail() { echo "FAILED: $1"; failed=1; }

# Names of options in text, sorted: "--model" and the like.
names() { grep -oE -- '(^|[^a-z-])--[a-z][a-z-]*' | grep -oE -- '--[a-z-]+' | sort -u; }
# names_of COMMAND: what its help shows at the beginning of a line, without and with the options of experiments
names_of() { "$spec" $1 --help | grep -E '^  (-|    )' | cut -c1-30 | names; }
lab_of() { "$spec" $1 --help-lab | grep -E '^  (-|    )' | cut -c1-30 | names; }

# same WHAT FILE FILE: the first has what the second has; aliases, which help leaves out, may come on top
same() {
    local lost
    lost=$(comm -13 "$2" "$3")
    [ -z "$lost" ] || fail "$1 lacks $(echo $lost)"
}

# --- the man page ---
{ for command in run tree info ngram convert ""; do names_of "$command"; done; lab_of ""; } | sort -u > "$work/all"
[ "$(wc -l < "$work/all")" -gt 40 ] || fail "the help shows no options"
sed 's/\\-/-/g; s/\\f[A-Z]//g' "$pages/spec.1" | grep -A 1 '^\.TP' | names > "$work/man"
same "the man page" "$work/man" "$work/all"
lost=$(comm -23 "$work/man" "$work/all" | grep -vxE -- '--(draft-max|draft-n|predict)')
[ -z "$lost" ] || fail "the man page has $(echo $lost), which the program does not show"
for word in chain ngram mss 130 143 SPEC_MODEL 'OPTIONS OF EXPERIMENTS' 'models without attention'; do
    grep -qF -- "$word" "$pages/spec.1" || fail "the man page lacks $word"
done
if command -v groff > /dev/null; then
    warnings=$(groff -man -Tutf8 -ww -z "$pages/spec.1" 2>&1)
    [ -z "$warnings" ] || fail "groff warns: $warnings"
else
    missing="$missing groff"
fi

# --- completions ---
# complete_SHELL LINE: what the shell offers at the end of the line, one a line
complete_bash() {
    bash --norc -c '
        source "$1"
        compopt() { :; }
        line=$2
        read -ra COMP_WORDS <<< "${line//=/ = }"
        [[ $line != *\  ]] || COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _spec
        printf "%s\n" "${COMPREPLY[@]}"' bash "$pages/spec.bash" "$1"
}
complete_fish() { HOME=$work fish --no-config -c "source $pages/spec.fish; complete -C '$1'" | cut -f 1; }
complete_zsh() {
    cat > "$work/ask.zsh" << 'END'
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "cd $3; fpath=($1 \$fpath); autoload -U compinit; compinit -u -D; setopt no_auto_list no_auto_menu"
zpty -w shell "compadd() { if [[ \"\$*\" == *-[OAD]' '* ]]; then builtin compadd \"\$@\"; return; fi
  local -a hits; builtin compadd -O hits \"\$@\"; print -l -- \$hits >> $3/hits; builtin compadd \"\$@\" }"
zpty -w shell "compdef _spec spec; print rea'dy'"
zpty -r shell answer '*ready*'
zpty -n -w shell "$2"$'\t'
repeat 30 { [[ -s $3/hits ]] && break; sleep 0.1 }
zpty -n -w shell $'\C-u'"print en'ded'"$'\n'
zpty -r shell answer '*ended*'
zpty -d shell
END
    : > "$work/hits"
    timeout 30 zsh -f "$work/ask.zsh" "$pages" "$1" "$work" > /dev/null 2>&1
    cat "$work/hits"
}

mkdir "$work/models"
: > "$work/notes.txt"
for shell in bash zsh fish; do
    command -v $shell > /dev/null || { missing="$missing $shell"; continue; }
    cd "$work" || exit 1
    for command in run tree info ngram convert; do
        complete_$shell "spec $command --" | names > "$work/offered"
        names_of $command > "$work/shown"
        same "spec $command -- in $shell" "$work/offered" "$work/shown"
        lost=$(comm -12 "$work/offered" <(lab_of ""))
        [ -z "$lost" ] || fail "$shell offers options of experiments: $(echo $lost)"
    done
    # LINE|what has to be offered|what must not be
    while IFS='|' read -r line wanted other; do
        offered=$(complete_$shell "$line")
        grep -qxE -- "$wanted" <<< "$offered" || fail "\"$line\" in $shell offers $(echo $offered), and not $wanted"
        [ -z "$other" ] || ! grep -qxE -- "$other" <<< "$offered" || fail "\"$line\" in $shell offers $other"
    done << 'END'
spec |run|models/?
spec t|tree|run
spec --vers|--version|
spec run --dtype b|bf16|f32
spec run --dtype=b|(--dtype=)?bf16|(--dtype=)?f32
spec run --dtype=|(--dtype=)?bf16|chain
spec run --tree dys|dyspec-threshold|chain
spec run --verify ms|mss-repeat|auto
spec run -md m|models/?|--model
spec run mod|models/?|--model
spec info --ht||--html
spec ngram b|build|models/?
spec convert --type q8|q8_0|q4_0
spec ngram build no|notes.txt|build
END
    cd - > /dev/null || exit 1
done
[ $failed -eq 0 ] || exit 1
if [ -n "$missing" ]; then echo "not checked, for want of them:$missing"; fi
echo "the man page and the completions have every option"
