#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Cross-build for aarch64, without CUDA, PMIx and RDMA: symbols, vectors, and a short list of the conformance program under qemu-user. hwloc and OpenSSL of
# that architecture come as Debian packages, unpacked into build/aarch64/root by an apt of its own: nothing is installed, no root is
# needed. Exit 77 with a message where compiler, emulator or packages are not available.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/common.sh

root=$PWD/build/aarch64/root
state=$PWD/build/aarch64/apt
packages=(libhwloc-dev libhwloc15 libssl-dev libssl3 libudev1 libltdl7 libcap2)

skip() {
    echo "SKIPPED: $*"
    exit 77
}

# apt for arm64 alone, with lists and status of its own and the machine's sources.
arm_apt() {
    timeout 240 apt-get -q -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Dir::State="$state" \
        -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User= \
        -o Acquire::Languages=none -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o Acquire::https::Timeout=15 "$@" </dev/null
}

fetch() {
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/debs" "$root" && : >"$state/status" || return
    arm_apt update >"$state/log" 2>&1 || return
    (cd "$state/debs" && arm_apt download "${packages[@]}" >>"$state/log" 2>&1) || return
    for deb in "$state"/debs/*.deb; do
        dpkg-deb -x "$deb" "$root" || return
    done
    rm -rf "$state/lists" "$state/cache" "$state/debs"
    touch "$root/complete"
}

have aarch64-linux-gnu-gcc || skip "no cross-compiler (Debian: gcc-aarch64-linux-gnu)"
have qemu-aarch64 || skip "no emulator (Debian: qemu-user)"
have dpkg-deb && have apt-get || skip "no Debian packages on this system"
[ -f "$root/complete" ] || fetch || {
    tail -n 3 "$state/log"
    skip "hwloc and OpenSSL for arm64 could not be fetched"
}

set -e
# Without a preset: those name a compiler. Without run paths: the library is looked at as it would be installed.
cmake -S . -B build/aarch64/build -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/cmake/aarch64-linux-gnu.cmake" \
    -DPICKLE_CROSS_ROOT="$root" -DCMAKE_SKIP_RPATH=ON -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O2 -g1 -DNDEBUG" \
    -DPICKLE_CUDA=OFF -DPICKLE_PMIX=OFF -DPICKLE_RDMA=OFF -DPICKLE_BUILD_TESTS=ON -DPICKLE_WERROR=ON >build/aarch64/log 2>&1 || { cat build/aarch64/log; exit 1; }
cmake --build build/aarch64/build --target pickle pickle-conform rdma-why
file=$(readlink -f build/aarch64/build/lib/libpickle.so)
aarch64-linux-gnu-readelf -h "$file" | grep -q AArch64 || { echo "$file is not for aarch64"; exit 1; }
python3 tests/abi/symbols.py "$file" .
python3 tests/abi/vectors.py "$file" aarch64-linux-gnu-objdump

# run PROGRAM ARGUMENT...: a program of the tests, emulated
run() {
    QEMU_LD_PREFIX=/usr/aarch64-linux-gnu QEMU_SET_ENV=LD_LIBRARY_PATH="$root/usr/lib/aarch64-linux-gnu:$PWD/build/aarch64/build/lib" \
        PICKLE_TEST_SLACK=100 timeout 1500 qemu-aarch64 "build/aarch64/build/tests/$1" "${@:2}"
}
run rdma-why "cannot be used: not in this build"
run pickle-conform --threads --ranks 2 --cases 40 --seed 601
run pickle-conform --threads --ranks 3 --cases 25 --seed 602 --no-errors
