# packages.sh - sourced by examples/quickstart.sh and tests/run.sh: installs what is missing, and says so.
# Debian and Ubuntu; elsewhere it names what to install. Nothing is asked of the network when nothing is missing.

missing=()

# need PACKAGE COMMAND...: PACKAGE is missing unless COMMAND succeeds.
need() {
    local package=$1
    shift
    "$@" > /dev/null 2>&1 || missing+=("$package")
}
has_programs() { local p; for p in "$@"; do command -v "$p" || return 1; done; }

need_to_build() {
    need build-essential has_programs cc c++ make
    need cmake has_programs cmake
    need pkg-config has_programs pkg-config
    need libjansson-dev pkg-config --exists jansson
    need libpcre2-dev pkg-config --exists libpcre2-8
    need libutf8proc-dev pkg-config --exists libutf8proc
}

install_missing() {
    if [ ${#missing[@]} -eq 0 ]; then return 0; fi
    local as=()
    if ! command -v apt-get > /dev/null; then
        echo "These packages (by their Debian names) are missing, please install them: ${missing[*]}" >&2
        return 1
    fi
    if [ "$(id -u)" != 0 ]; then
        if ! command -v sudo > /dev/null; then
            echo "Missing: ${missing[*]}. Run this as root, or install them first." >&2
            return 1
        fi
        as=(sudo)
    fi
    echo "== installing ${missing[*]}"
    "${as[@]}" apt-get update -qq || true
    if ! "${as[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null; then
        echo "apt-get could not install: ${missing[*]}" >&2
        return 1
    fi
}
