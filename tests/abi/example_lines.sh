#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Examples by the lines that their own headers give, against an installed package, as a new user types them; without mpirun each alone.
# usage: example_lines.sh SOURCE_DIR PREFIX [NAME...]    NAME: hello, ...; a folder of examples too. All, if none is named
set -eu
source=$1
prefix=$2
shift 2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

cp -r "$source"/examples/. "$work"
cd "$work"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name pickle.pc)")
LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libpickle.so)")
CMAKE_PREFIX_PATH=$prefix
PK_TIMEOUT_MS=30000
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PKG_CONFIG_PATH LD_LIBRARY_PATH CMAKE_PREFIX_PATH PK_TIMEOUT_MS OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM

# The commands of a header, each a line: those of the shell begin with the name of a program.
lines_of() {
    sed -n '1,/\*\/\|^#include/p' "$1" | sed 's|^ \* \{0,1\}||; s|^// \{0,1\}||' | sed -e ':a' -e '/\\$/N; s/\\\n//; ta' |
        sed -n 's/^ *\(\(cc\|c++\|cmake\|mpirun\) .*\)$/\1/p'
}

run_lines() { # FILE SECONDS
    lines_of "$1" >"$work/lines"
    [ -s "$work/lines" ] || { echo "$1: its header says no line"; exit 1; }
    while read -r line; do
        command -v mpirun >/dev/null || line=$(echo "$line" | sed 's/mpirun .*-n [0-9]* //')
        # Its own rounds, layers and keys are for figures, which nobody looks at here; one kind of GPU is enough, too.
        line=$(echo "$line" | sed 's/build\/attention_overlap/& --rounds 2 --warmup 1 --layers 3 --keys 256/g; s/cmake -S/cmake -DCMAKE_CUDA_ARCHITECTURES=90 -S/')
        timeout "$2" sh -euc "$line" >"$work/log" 2>&1 </dev/null || { echo "$1: '$line' failed:"; cat "$work/log"; exit 1; }
        echo "\$ $line"
        tail -n 1 "$work/log"
    done <"$work/lines"
}

if [ $# -eq 0 ]; then
    for file in *.c *.cc */main.c; do
        set -- "$@" "$(echo "$file" | sed 's|[./].*||')"
    done
fi
for name in "$@"; do
    if [ -d "$name" ]; then
        (cd "$name" && rm -rf build && run_lines main.c 300)
    else
        run_lines "$(echo "$name".c*)" 60
    fi
done
echo "$# examples, each by its own lines"
