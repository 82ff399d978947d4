#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install the Debian packages that are missing (scripts/packages.txt). As root or through sudo; where neither works or there is no
# network it goes on as long as everything that a build needs is there.
# usage: scripts/setup.sh [need] [test] [demo] [torch] [docs] [release]     which of the list; without an argument need, test, demo
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

wanted=${*:-need test demo}
missing=()

if have dpkg-query; then
    while read -r class package _; do
        [[ " $wanted " == *" $class "* ]] || continue
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done < <(grep -v '^#' scripts/packages.txt)
fi

install_missing() {
    local sudo=()
    if [ "$(id -u)" -ne 0 ]; then
        have sudo && sudo -n true 2>/dev/null || return 1
        sudo=(sudo -n)
    fi
    local apt=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=120
        -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15)
    timeout 600 "${apt[@]}" update </dev/null >/dev/null 2>&1 || true
    timeout 1800 "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
}

if [ ${#missing[@]} -gt 0 ]; then
    say "installing ${missing[*]}"
    if have apt-get && install_missing; then
        echo "installed"
    else
        echo "could not install: ${missing[*]} (no right to, or no network); going on with what is here"
    fi
fi

# What nothing can be built without, by whatever way it came.
failed=0
need() { # what, command...
    local what=$1
    shift
    "$@" >/dev/null 2>&1 || {
        echo "missing: $what"
        failed=1
    }
}
version_at_least() { [ "$(printf '%s\n%s\n' "$1" "$2" | sort -V | head -n 1)" = "$2" ]; }
cmake_new_enough() { version_at_least "$(cmake --version | sed -n 's/^cmake version //p')" 3.25; }

need "a C compiler (gcc)" have gcc
need "ninja (ninja-build)" have ninja
need "cmake 3.25 or newer" cmake_new_enough
need "pkg-config" have pkg-config
need "hwloc's headers (libhwloc-dev)" pkg-config --exists hwloc
need "OpenSSL's headers (libssl-dev)" pkg-config --exists libcrypto
exit "$failed"
