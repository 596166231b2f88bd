#!/bin/bash
# Makes the Debian package of a build, unpacks it into an empty tree, and builds and runs programs against that tree:
#   package.sh CPACK BUILD CONSUMER_SOURCE CC MODELS
set -euo pipefail
cpack=$1 build=$2 source=$3 cc=$4 models=$5
for program in dpkg-deb dpkg-shlibdeps dpkg-query pkg-config; do
    command -v $program > /dev/null || { echo "SKIPPED: no $program"; exit 0; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $1"; exit 1; }

"$cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$work/made" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
package=$(echo "$work"/made/spec_*.deb)
version=$(dpkg-deb -f "$package" Version)
tree=$work/tree
dpkg-deb -x "$package" "$tree"
echo "== $(basename "$package")"

# What it depends on is what its files link, no more and no less; of those, what Debian has packages of.
depends=$(dpkg-deb -f "$package" Depends | tr ',' '\n' | sed 's/^ *//; s/ .*//' | sort)
export LD_LIBRARY_PATH=$tree/usr/lib
linked=$(for file in "$tree"/usr/bin/* "$tree"/usr/lib/*.so; do
    names=$(readelf -d "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\].*/\1/p')
    ldd "$file" | awk -v names="$names" 'BEGIN { split(names, n); for (i in n) wanted[n[i]] = 1 } $1 in wanted { print $3 }'
done | grep -v "^$tree" | xargs -n 1 realpath | sort -u | while read -r library; do
    dpkg-query -S "$library" 2> /dev/null || dpkg-query -S "${library#/usr}" 2> /dev/null || true
done | sed 's/:.*//' | sort -u)
[ "$depends" = "$linked" ] || fail "it depends on $(echo $depends), and links $(echo $linked)"

for file in bin/spec include/spec.h include/spec_backend.h share/doc/spec/LICENSE share/doc/spec/README.md \
    share/doc/spec/docs/api.md share/doc/spec/examples/embed.c share/man/man1/spec.1 share/bash-completion/completions/spec.bash \
    share/zsh/site-functions/_spec share/fish/vendor_completions.d/spec.fish; do
    [ -s "$tree/usr/$file" ] || fail "no /usr/$file"
done
[ "$("$tree/usr/bin/spec" --version)" = "spec $version" ] || fail "the program is not version $version"

export PKG_CONFIG_LIBDIR=$tree/usr/lib/pkgconfig
[ "$(pkg-config --modversion spec)" = "$version" ] || fail "spec.pc is not version $version"
# shellcheck disable=SC2046 # flags are words
"$cc" "$source/main.c" -o "$work/program" $(pkg-config --cflags --libs spec)
ldd "$work/program" | grep -F "=> $tree/usr/lib/libspec.so" > /dev/null || fail "the program does not use the package's library"
"$work/program" "$models/demo-target"
unset PKG_CONFIG_LIBDIR

# The examples, as a project of their own.
cmake -S "$tree/usr/share/doc/spec/examples" -B "$work/examples" -DCMAKE_C_COMPILER="$cc" \
    -DCMAKE_PREFIX_PATH="$tree/usr" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/examples" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
"$work/examples/embed" "$models/demo-target" "$models/demo-drafter" "Once upon a time" | tail -n 1
