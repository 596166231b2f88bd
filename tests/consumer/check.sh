#!/bin/bash
# Installs a build to a new place, then builds and runs an application against it in four ways:
#   check.sh BUILD CONSUMER_SOURCE CC MODEL
set -euo pipefail
build=$1 source=$2 cc=$3 model=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/first" > /dev/null
mv "$work/first" "$work/prefix" # packages must not remember where they were installed
prefix=$work/prefix

for shared in ON OFF; do
    echo "== CMake, BUILD_SHARED_LIBS=$shared"
    cmake -S "$source" -B "$work/cmake-$shared" -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" \
        -DBUILD_SHARED_LIBS=$shared > "$work/log" || { cat "$work/log"; exit 1; }
    cmake --build "$work/cmake-$shared" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    "$work/cmake-$shared/consumer" "$model"
    if [ -x "$work/cmake-$shared/consumer_cuda" ]; then "$work/cmake-$shared/consumer_cuda"; fi
done
uses_shared() { readelf -d "$work/cmake-$1/consumer" | grep 'libspec\.so\.[0-9]' > /dev/null; }
if ! uses_shared ON; then echo "the shared build does not use libspec.so"; exit 1; fi
if uses_shared OFF; then echo "the static build uses libspec.so"; exit 1; fi

PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name spec.pc)")
export PKG_CONFIG_PATH
libdir=$(pkg-config --variable=libdir spec)
# shellcheck disable=SC2046 # flags are words
{
    echo "== pkg-config, shared"
    "$cc" "$source/main.c" -o "$work/shared" $(pkg-config --cflags --libs spec)
    LD_LIBRARY_PATH=$libdir "$work/shared" "$model"
    echo "== pkg-config, static"
    "$cc" "$source/main.c" -o "$work/static" $(pkg-config --cflags spec) \
        $(pkg-config --static --libs spec | sed 's/-lspec\b/-l:libspec.a/')
    "$work/static" "$model"
}

# Only what spec.h declares is visible.
hidden=$(nm -D --defined-only "$libdir/libspec.so" | awk '{ print $3 }' | grep -v '^spec_' || true)
if [ -n "$hidden" ]; then echo "libspec.so exports what is not public: $hidden"; exit 1; fi
if [ -x "$prefix/bin/spec" ]; then "$prefix/bin/spec" --version; fi
