#!/bin/bash
# A plugin in the lib directory of a build is found by the programs beside it in bin, whether the library is in them or not;
# --plugin-dir goes first.
#   plugin.sh MODEL PROGRAM...     PROGRAM: spec or spec-bench
# The plugin is none: what tells that it was found is the loader's complaint about it.
set -euo pipefail
model=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for variable in $(compgen -e | grep '^SPEC_'); do unset "$variable"; done
mkdir -p "$work/build/bin" "$work/build/lib" "$work/plugins"
echo none > "$work/build/lib/libspec-abacus.so"

# says PATTERN COMMAND...: the command fails, and its stderr has the pattern
says() {
    local pattern=$1
    shift
    if "$@" > "$work/out" 2>&1; then echo "FAILED: $* succeeded"; exit 1; fi
    grep -qE -- "$pattern" "$work/out" || { echo "FAILED: $* does not say $pattern:"; cat "$work/out"; exit 1; }
}

for program in "$@"; do
    name=$(basename "$program")
    cp "$program" "$work/build/bin"
    library=$(ldd "$program" | sed -n 's/^.*libspec\.so[^ ]* => \(.*\) (0x.*/\1/p')
    unset LD_LIBRARY_PATH
    if [ -n "$library" ]; then # the program is to use the copy; one without has to look for the plugin itself
        cp "$library" "$work/build/lib"
        export LD_LIBRARY_PATH=$work/build/lib
    fi
    case $name in
        spec) run=(run -m "$model" -p a) ;;
        spec-bench) run=(step --model "$model") ;;
    esac
    says 'build/(bin/\.\./)?lib/libspec-abacus.so: (file too short|invalid ELF)' \
        "$work/build/bin/$name" "${run[@]}" --backend abacus
    if grep -q 'lib/\.\./lib' "$work/out"; then echo "FAILED: $name looks in one place twice:"; cat "$work/out"; exit 1; fi
    says 'plugins/libspec-abacus.so: cannot open' \
        "$work/build/bin/$name" "${run[@]}" --backend abacus --plugin-dir "$work/plugins"
done
