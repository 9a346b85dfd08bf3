#!/bin/sh
# Installs what building and testing Kernlane needs on Debian 12. Leaves installed packages alone;
# needs root only if a package is missing. With --for-tests also what `make quick` checks the
# libraries with.
set -eu

for_tests=""
case "$*" in
    "") ;;
    --for-tests) for_tests=1 ;;
    *) echo "usage: xtask/setup.sh [--for-tests]" >&2; exit 2 ;;
esac
cd "$(dirname "$0")/.."

packages="gcc libc6-dev make flex bison bc libelf-dev libssl-dev cpio kmod xz-utils zstd lz4 rsync
  busybox-static file binutils patch clang-22 lld-22 llvm-22 llvm-22-dev bolt-22 linux-source-6.12
  pahole qemu-system-x86 qemu-utils strace
  valgrind chromium chromium-driver"

# Three kernel trees (in the cache), Kernlane itself in three builds, and recordings: less room ends
# in the middle of a build, an hour later.
needed_gb=18
for place in . "${KERNLANE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}}"; do
    mkdir -p "$place"
    free_gb=$(df -P -k "$place" | awk 'NR == 2 { print int($4 / 1048576) }')
    [ "$free_gb" -ge 3 ] ||
        {
            echo "setup: $free_gb GB free on the disk of $place;" \
                "everything together takes up to $needed_gb GB" >&2
            exit 1
        }
    [ "$free_gb" -ge "$needed_gb" ] ||
        echo "setup: only $free_gb GB free on the disk of $place;" \
            "a first run takes up to $needed_gb GB" >&2
done

version_at_least() { # have want
    [ "$(printf '%s\n%s\n' "$2" "$1" | sort -V | head -n 1)" = "$2" ]
}

missing=""
for package in $packages; do
    dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null | grep -q 'ok installed' ||
        missing="$missing $package"
done
qemu=$(dpkg-query -W -f '${Version}\n' qemu-system-x86 2>/dev/null |
    sed 's/^[0-9]*://; s/[+~-].*//' || true)
version_at_least "${qemu:-0}" 10.0 || missing="$missing qemu-system-x86"

# Debian 12's own cargo is too old; its package cargo-web is new enough. An installed cargo
# (rustup's) is kept.
command -v cargo >/dev/null 2>&1 || {
    missing="$missing cargo-web"
    packages="$packages rustc-web cargo-web"
}
# rustup's toolchain brings these two.
[ -z "$for_tests" ] || command -v clippy-driver >/dev/null 2>&1 || {
    missing="$missing rust-web-clippy rustfmt-web"
    packages="$packages rust-web-clippy rustfmt-web"
}

# It reads an exported profile.
[ -z "$for_tests" ] || command -v go >/dev/null 2>&1 || {
    missing="$missing golang-go"
    packages="$packages golang-go"
}

# Python's readers of tables and answers come by pip.
for module in pip ensurepip; do
    package=python3-pip
    [ "$module" = pip ] || package=python3-venv
    python3 -m "$module" --version >/dev/null 2>&1 || {
        missing="$missing $package"
        packages="$packages $package"
    }
done

if [ -n "$missing" ]; then
    echo "installing:$missing"
    [ "$(id -u)" = 0 ] || { echo "setup: not root; run as root: xtask/setup.sh" >&2; exit 1; }
    export DEBIAN_FRONTEND=noninteractive
    # QEMU 10 is in backports. The entry is derived from the machine's own, so that whatever mirror
    # it uses is used here too.
    if [ ! -e /etc/apt/sources.list.d/kernlane-backports.sources ] && ! apt-cache policy |
        grep -q 'a=stable-backports\|n=bookworm-backports'; then
        if [ -e /etc/apt/sources.list.d/debian.sources ]; then
            awk 'BEGIN { RS = ""; ORS = "\n\n" } /bookworm-updates/' \
                /etc/apt/sources.list.d/debian.sources |
                sed 's/^Suites:.*/Suites: bookworm-backports/' \
                >/etc/apt/sources.list.d/kernlane-backports.sources
        else
            sed -n 's/ bookworm-updates / bookworm-backports /p' /etc/apt/sources.list |
                grep '^deb ' \
                >/etc/apt/sources.list.d/kernlane-backports.list
        fi
    fi
    apt-get update -q
    # shellcheck disable=SC2086 # words on purpose
    apt-get install -y -q --no-install-recommends \
        $(echo $packages | sed 's/qemu-system-x86\|qemu-utils//g')
    apt-get install -y -q --no-install-recommends -t bookworm-backports qemu-system-x86 qemu-utils
fi

[ -n "$for_tests" ] || exit 0

# cargo-deny comes as source only. Compiled with few optimisations it takes one to two minutes, once,
# and checks within a second. It fetches by git.
have=$(cargo deny --version 2>/dev/null | awk '{ print $2 }' || true)
version_at_least "${have:-0}" 0.20.2 || {
    echo "installing: cargo-deny 0.20.2"
    CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_OPT_LEVEL=1 \
        CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
        cargo install --quiet --locked --no-default-features cargo-deny@0.20.2
}
# From here on the check needs no network.
cargo fetch --quiet --locked --target x86_64-unknown-linux-gnu
timeout 60 cargo deny fetch db >/dev/null 2>&1 ||
    echo "setup: the database of advisories cannot be fetched;" \
        "\`make quick\` checks the libraries without it, or with an earlier one" >&2
