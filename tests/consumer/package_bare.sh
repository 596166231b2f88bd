#!/bin/bash
# The Debian package on a bare Debian or Ubuntu: installed by apt with what it depends on, then a program is built and run.
#   package_bare.sh CPACK BUILD CONSUMER_SOURCE MODELS
# Takes minutes and the network; skips where the bare system cannot be made.
set -euo pipefail
cpack=$1 build=$2 source=$3 models=$4
skip() { echo "SKIPPED: $1"; exit 0; }
for program in debootstrap dpkg-shlibdeps; do command -v $program > /dev/null || skip "no $program"; done
[ "$(id -u)" = 0 ] || skip "debootstrap needs root"
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ -n "$suite" ] || skip "this system has no code name that debootstrap would know"
work=$(mktemp -d)
root=$work/root
trap 'rm -rf --one-file-system "$work"' EXIT

"$cpack" -G DEB --config "$build/CPackConfig.cmake" -B "$work/made" > "$work/log" 2>&1 || { cat "$work/log"; exit 1; }
debootstrap --variant=minbase --include=gcc,libc6-dev,pkg-config "$suite" "$root" > "$work/log" 2>&1 ||
    skip "debootstrap: $(tail -n 1 "$work/log")"
cp "$work"/made/spec_*.deb "$source/main.c" "$root/tmp"
cp -r "$models/demo-target" "$models/demo-drafter" "$root/tmp"
in_root() { LC_ALL=C chroot "$root" "$@"; }
in_root sh -c 'DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends /tmp/spec_*.deb' > "$work/log" 2>&1 ||
    { cat "$work/log"; exit 1; }
in_root sh -c 'cd /tmp && gcc main.c -o program $(pkg-config --cflags --libs spec) && ./program demo-target'
in_root spec run -m /tmp/demo-target -md /tmp/demo-drafter -p "Once upon a time" -n 16 --check 2> "$work/log"
grep '^check' "$work/log"
