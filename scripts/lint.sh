#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over the library and nccl/ (see .clang-tidy for what is an error), as it is built on this machine: without CUDA's headers not over the
# files that need them. And where clang-format would change a line (for reading).
# usage: scripts/lint.sh [--deep] [FILE...]     --deep: what the static analyzer says, too; for reading
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/common.sh

have clang-tidy || { echo "clang-tidy is not here (Debian: clang-tidy)"; exit 1; }
cmake --preset clang >/dev/null || exit 1

tidy=(clang-tidy -quiet -p build/clang)
if [ "${1:-}" = --deep ]; then
    tidy+=(-checks=clang-analyzer-core.*,clang-analyzer-unix.*,clang-analyzer-deadcode.* "-warnings-as-errors=-*")
    shift
fi
built() { sed -n 's#^ *"file": ".*/\(\(lib\|nccl\)/[^"]*\.c\)".*#\1#p' build/clang/compile_commands.json; }
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
    mapfile -t files < <(comm -12 <(find lib nccl -name '*.c' | sort) <(built | sort -u))
    [ ${#files[@]} -gt 0 ] || { echo "build/clang/compile_commands.json names no file of lib/ and nccl/"; exit 1; }
    find lib nccl -name '*.c' | sort | comm -23 - <(built | sort -u) | sed 's/$/: not built on this machine, not looked at/'
fi
failed=0
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 timeout 300 "${tidy[@]}" 2>/dev/null || failed=1

if have clang-format; then
    differ=$(clang-format --dry-run "${files[@]}" 2>&1 | sed -n 's/^\([^:]*\):[0-9]*:[0-9]*: warning: .*/\1/p' | sort -u | wc -l)
    echo "clang-format would change $differ of ${#files[@]} files"
fi
[ "$failed" -eq 0 ] && echo "lint: ${#files[@]} files, no error"
exit "$failed"
