#!/bin/bash
# How the project is configured: without cmocka, with the summary, inside another project that names no build type.
#   configure.sh configure|build SOURCE CC PKG_CONFIG MODEL     build: also builds the other project, and runs it
set -euo pipefail
mode=$1 source=$2 cc=$3 pkg_config=$4 model=$5
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() { echo "FAILED: $1"; cat "$work/log"; exit 1; }
says() { grep -qE -- "$1" "$work/log" || fail "\"$1\" is not said"; }
# configure SOURCE BUILD OPTIONS...
configure() { cmake -S "$1" -B "$2" -DCMAKE_C_COMPILER="$cc" -DSPEC_CUDA=OFF "${@:3}" > "$work/log" 2>&1; }

# A machine without cmocka.
cat > "$work/pkg-config" << END
#!/bin/sh
case "\$*" in *cmocka*) exit 1 ;; esac
exec "$pkg_config" "\$@"
END
chmod +x "$work/pkg-config"
configure "$source" "$work/plain" -DPKG_CONFIG_EXECUTABLE="$work/pkg-config" || fail "cmake -B build needs cmocka"
says '^-- spec [0-9.]+, Release:$'
for part in tokenizers OpenBLAS 'command line' examples; do says "^--   $part +on"; done
says '^--   CUDA +off: SPEC_CUDA=OFF$'
says '^--   tests +off: cmocka was not found .*libcmocka-dev'
[ ! -d "$work/plain/tests" ] || fail "tests are made without cmocka"
if configure "$source" "$work/plain" -DSPEC_TESTS=ON; then fail "SPEC_TESTS=ON does not insist"; fi
says 'SPEC_TESTS=ON, but cmocka'

# Values of options, however they are written; and a wrong one. A machine without pkg-config.
for value in off No 0; do
    configure "$source" "$work/values" -DSPEC_CUDA=$value -DSPEC_TESTS=$value || fail "SPEC_CUDA=$value is refused"
    says '^--   CUDA +off: SPEC_CUDA=OFF$'
    says '^--   tests +off: SPEC_TESTS=OFF$'
done
configure "$source" "$work/values" -DSPEC_TESTS=auto || fail "SPEC_TESTS=auto is refused"
if configure "$source" "$work/values" -DSPEC_CUDA=maybe; then fail "SPEC_CUDA=maybe is taken"; fi
says 'SPEC_CUDA=maybe, need AUTO, ON or OFF'
if configure "$source" "$work/bare" -DPKG_CONFIG_EXECUTABLE="$work/none"; then fail "there is no pkg-config"; fi
says 'pkg-config was not found\. '

# Libraries and headers in places of their own, outside of the prefix.
configure "$source" "$work/apart" -DSPEC_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/one/place -DCMAKE_INSTALL_LIBDIR="$work/lib" \
    -DCMAKE_INSTALL_INCLUDEDIR=/two/include || fail "absolute directories are refused"
mkdir -p "$work/lib/pkgconfig"
cp "$work/apart/spec.pc" "$work/lib/pkgconfig"
flags=$(PKG_CONFIG_PATH=$work/lib/pkgconfig "$pkg_config" --cflags --libs spec)
[ "$(for flag in $flags; do case $flag in -[IL]*) realpath -m "${flag:2}" ;; esac; done | xargs)" = "/two/include $work/lib" ] ||
    fail "spec.pc leads elsewhere: $flags"
rpath=$(sed -n 's/^ *RPATH "\\$ORIGIN\(.*\)".*/\1/p' "$work/apart/cmake_install.cmake" | head -n 1)
[ "$(realpath -m "/one/place/bin$rpath")" = "$work/lib" ] || fail "the program looks for its library in \"$rpath\""

# A compiler that does not know AMX.
cat > "$work/cc" << END
#!/bin/sh
case "\$*" in *-mamx*) echo "error: unrecognized command-line option '-mamx-tile'" >&2; exit 1 ;; esac
exec "$cc" "\$@"
END
chmod +x "$work/cc"
if [ "$(uname -m)" = x86_64 ]; then
    cmake -S "$source" -B "$work/no_amx" -DCMAKE_C_COMPILER="$work/cc" -DSPEC_CUDA=OFF -DSPEC_TESTS=OFF -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
        > "$work/log" 2>&1 || fail "needs a compiler that knows AMX"
    says "^--   AMX +off: .* does not know -mamx-tile"
    if grep -E -- '-mamx|cpu_linear_amx' "$work/no_amx/compile_commands.json" > /dev/null; then fail "AMX is compiled"; fi
fi

# Inside another project.
configure "$source/tests/consumer" "$work/inside" -DSPEC_SOURCE="$source" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON ||
    fail "not a part of another project"
for part in 'command line' examples tests; do says "^--   $part +off: part of consumer \(-DSPEC_[A-Z]+=ON\)$"; done
if grep -q BUILD_SHARED_LIBS "$work/inside/CMakeCache.txt"; then fail "it says of which kind the project's libraries are"; fi
commands=$work/inside/compile_commands.json
if grep '"command".*core_error\.c' "$commands" | grep -vE -- '-O[23].* -DNDEBUG' > /dev/null; then fail "the library is not optimised"; fi
if grep '"command".*core_error\.c' "$commands" | grep -vE -- ' -w ' > /dev/null; then fail "a strict project's -Werror breaks ours"; fi
if grep '"command".*consumer/main\.c' "$commands" | grep -E -- '-O| -w ' > /dev/null; then fail "the project's own sources are built as ours"; fi
configure "$source/tests/consumer" "$work/debug" -DSPEC_SOURCE="$source" -DCMAKE_EXPORT_COMPILE_COMMANDS=ON \
    -DCMAKE_BUILD_TYPE=Debug || fail "not a part of a project that is built for debugging"
if grep '"command".*core_error\.c' "$work/debug/compile_commands.json" | grep -- '-O' > /dev/null; then fail "Debug is optimised"; fi

if [ "$mode" = build ]; then
    cmake --build "$work/inside" -j "$(nproc)" > "$work/log" 2>&1 || fail "the other project is not built"
    if grep -q 'warning:' "$work/log"; then fail "the other project's build warns of ours"; fi
    "$work/inside/consumer" "$model"
fi
echo "every way to configure does what it says"
