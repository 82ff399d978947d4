#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Each public header compiles alone, twice in one unit, as C11 and as C++17, with no warning.
# usage: headers_alone.sh INCLUDE_DIR [CC]
set -eu
include=$1
cc=${2:-cc}
case $cc in
*clang*) cxx=${CXX:-clang++} ;;
*) cxx=${CXX:-g++} ;;
esac
flags="-fsyntax-only -Wall -Wextra -Wpedantic -Werror -I$include"
headers=0
failed=0

compile() { # header, compiler, language, standard
    printf '#include "pickle/%s"\n#include "pickle/%s"\nint user_of_header;\n' "$1" "$1" |
        "$2" -x "$3" "-std=$4" $flags - || {
        echo "pickle/$1 does not stand alone as $4 ($2)"
        failed=$((failed + 1))
    }
}

for path in "$include"/pickle/*.h; do
    header=$(basename "$path")
    headers=$((headers + 1))
    compile "$header" "$cc" c c11
    if command -v "$cxx" >/dev/null; then
        compile "$header" "$cxx" c++ c++17
    fi
done
command -v "$cxx" >/dev/null || echo "no $cxx here: C++ was not tried"
echo "headers_alone: $headers headers, $failed failures"
[ "$headers" -gt 0 ] && [ "$failed" -eq 0 ]
