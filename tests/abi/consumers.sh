#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What users do: install, then build against what was installed, by pkg-config in C (shared and static, also after the tree was
# moved) and by find_package in C and C++; run each.
# usage: consumers.sh BUILD_DIR SOURCE_DIR
set -eu
build=$1
source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
export LC_ALL=C
if command -v ninja >/dev/null; then
    export CMAKE_GENERATOR=Ninja
fi

pc_dir() { dirname "$(find "$1" -name pickle.pc)"; }
lib_dir() { dirname "$(find "$1" -name libpickle.so)"; }

run() { # what, program, library dir or empty
    out=$(env -u PK_RANK -u PK_SIZE -u PK_ROOT LD_LIBRARY_PATH="$3" PK_TIMEOUT_MS=20000 timeout 30 "$2") || {
        echo "$1: failed: $out"
        exit 1
    }
    case $out in
    *"sum 1 over 1 rank"*) echo "$1: ok" ;;
    *)
        echo "$1: printed: $out"
        exit 1
        ;;
    esac
}

pkg_config() { # prefix, options...
    dir=$(pc_dir "$1")
    shift
    PKG_CONFIG_PATH=$dir pkg-config "$@" pickle
}

cmake --install "$build" --prefix "$work/prefix" >"$work/install.log"
[ -n "$(find "$work/prefix" -name libpickle.so.0)" ] || { echo "libpickle.so.0 was not installed"; exit 1; }

cc=${CC:-cc}
strict="-std=c11 -Wall -Wextra -Wpedantic -Werror"
prefix=$work/prefix
# shellcheck disable=SC2046,SC2086 # flags are words
$cc $strict "$source/examples/hello.c" -o "$work/hello" $(pkg_config "$prefix" --cflags --libs)
run "pkg-config, shared" "$work/hello" "$(lib_dir "$prefix")"

# libpickle alone static, what it needs shared. (--static would also ask for the private libraries of hwloc, udev on Debian.)
# shellcheck disable=SC2046,SC2086
$cc $strict "$source/examples/hello.c" -o "$work/hello_static" $(pkg_config "$prefix" --cflags) \
    "$(pkg_config "$prefix" --variable=libdir)/libpickle.a" $(pkg-config --libs hwloc libcrypto) -pthread -ldl -lm
run "pkg-config, static" "$work/hello_static" ""

cp -r "$source/examples" "$work/examples"
mkdir "$work/cxx"
cp "$source/tests/abi/consumer.cc" "$source/tests/abi/consumer.cmake" "$work/cxx/"
mv "$work/cxx/consumer.cmake" "$work/cxx/CMakeLists.txt"
# One of its examples would look for a compiler of CUDA, which takes longer than all else here; the test of that example does so.
cmake -S "$work/examples" -B "$work/examples-build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_CUDA_COMPILER= >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
cmake --build "$work/examples-build" --target hello >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
run "find_package, C" "$work/examples-build/hello" "$(lib_dir "$prefix")"

if command -v "${CXX:-c++}" >/dev/null; then
    cmake -S "$work/cxx" -B "$work/cxx-build" -DCMAKE_PREFIX_PATH="$prefix" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    cmake --build "$work/cxx-build" >"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
    run "find_package, C++, shared" "$work/cxx-build/consumer" "$(lib_dir "$prefix")"
    run "find_package, C++, static" "$work/cxx-build/consumer_static" ""
else
    echo "no C++ compiler here: the C++ consumer was not tried"
fi

mv "$prefix" "$work/moved"
# shellcheck disable=SC2046,SC2086
$cc $strict "$source/examples/hello.c" -o "$work/hello_moved" $(pkg_config "$work/moved" --cflags --libs)
run "pkg-config after a move" "$work/hello_moved" "$(lib_dir "$work/moved")"
