#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-format over all sources: it must change none. It has to be version 14, Debian 12's, for another one breaks other lines.
# And clang-tidy over the library and nccl/ (see .clang-tidy for what is an error), as it is built on this machine: without CUDA's
# headers not over the files that need them.
# usage: scripts/lint.sh [--deep] [FILE...]     --deep: what the static analyzer says, too; for reading
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/common.sh

deep=
if [ "${1:-}" = --deep ]; then
    deep=yes
    shift
fi
failed=0

# clang-format 14, under whichever name it has; nothing where there is none.
formatter() {
    local name
    for name in clang-format-14 clang-format; do
        have $name && $name --version | grep -q ' version 14\.' && { echo $name; return; }
    done
}

sources=("$@")
if [ $# -eq 0 ]; then
    mapfile -t sources < <(find lib include nccl bench examples tests tools docs python -type f \
        \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' \) | sort)
fi
format=$(formatter)
if [ -z "$format" ]; then
    echo "clang-format 14 is not here (Debian 12: clang-format): whether it would change a file was not looked at"
elif said=$(printf '%s\n' "${sources[@]}" | xargs -P "$(nproc)" -n 20 "$format" --dry-run -Werror 2>&1); then
    echo "lint: ${#sources[@]} files, as $format writes them"
else
    grep -E '^[^ ]+:[0-9]+:[0-9]+: error|^No such' <<<"$said" | sort -t: -k1,1 -u
    echo "lint: these files are not as $format -i FILE... would write them"
    failed=1
fi

have clang-tidy || { echo "clang-tidy is not here (Debian: clang-tidy)"; exit 1; }
cmake --preset clang >/dev/null || exit 1

tidy=(clang-tidy -quiet -p build/clang)
[ -z "$deep" ] || tidy+=(-checks=clang-analyzer-core.*,clang-analyzer-unix.*,clang-analyzer-deadcode.* "-warnings-as-errors=-*")
built() { sed -n 's#^ *"file": ".*/\(\(lib\|nccl\)/[^"]*\.c\)".*#\1#p' build/clang/compile_commands.json; }
files=("$@")
if [ ${#files[@]} -eq 0 ]; then
    mapfile -t files < <(comm -12 <(find lib nccl -name '*.c' | sort) <(built | sort -u))
    [ ${#files[@]} -gt 0 ] || { echo "build/clang/compile_commands.json names no file of lib/ and nccl/"; exit 1; }
    find lib nccl -name '*.c' | sort | comm -23 - <(built | sort -u) | sed 's/$/: not built on this machine, not looked at/'
fi
printf '%s\n' "${files[@]}" | xargs -P "$(nproc)" -n 4 timeout 300 "${tidy[@]}" 2>/dev/null || failed=1

[ "$failed" -eq 0 ] && echo "lint: ${#files[@]} files, no error"
exit "$failed"
