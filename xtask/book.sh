#!/bin/sh
# Builds the book of docs/ into target/book. Uses the installed mdBook if it has the pinned version.
# Otherwise builds mdBook from crates.io once and keeps the program in Kernlane's cache.
set -eu

version=0.5.4
cache="${KERNLANE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/kernlane}/mdbook-$version"

mdbook=$(command -v mdbook || true)
if [ -z "$mdbook" ] || [ "$("$mdbook" --version)" != "mdbook v$version" ]; then
    mdbook="$cache/bin/mdbook"
    if [ ! -x "$mdbook" ]; then
        echo "book: building mdBook $version once; this takes a few minutes"
        CARGO_TARGET_DIR="$cache/build" cargo install mdbook --version "$version" --locked \
            --no-default-features --features search --root "$cache"
        rm -rf "$cache/build"
    fi
fi
cd "$(dirname "$0")/.."
"$mdbook" build docs
echo "the book: target/book/index.html"
