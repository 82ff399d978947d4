#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The program that README.md shows, compiled by the command that README.md shows, against an installed package, and run.
# usage: readme.sh SOURCE_DIR PREFIX
set -eu
source=$1
prefix=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

# The first block of C, and the first indented command that has pkg-config in it.
sed -n '/^```c$/,/^```$/p' "$source/README.md" | sed -n '2,/^```$/p' | sed '$d' >"$work/sum.c"
command=$(sed -n 's/^    \(cc .*pkg-config.*\)$/\1/p' "$source/README.md" | head -n 1)
lines=$(wc -l <"$work/sum.c")
[ "$lines" -gt 5 ] && [ "$lines" -le 20 ] || { echo "README.md: the program has $lines lines, 6 to 20 were expected"; exit 1; }
[ -n "$command" ] || { echo "README.md: no command with pkg-config"; exit 1; }

pc=$(dirname "$(find "$prefix" -name pickle.pc)")
lib=$(dirname "$(find "$prefix" -name libpickle.so)")
(cd "$work" && PKG_CONFIG_PATH=$pc sh -euc "$command")
out=$(sh "$source/tests/support/processes.sh" env 2 env LD_LIBRARY_PATH="$lib" PK_TIMEOUT_MS=20000 "$work/sum")
[ "$out" = "the sum over 2 ranks is 3" ] || { echo "the program printed: $out"; exit 1; }
echo "README.md: $lines lines, '$command': $out"
