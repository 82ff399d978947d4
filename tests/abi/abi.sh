#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Is the library's ABI that of the record, tests/abi/libpickle.abi? Functions may have been added; nothing else may have changed (CONTRIBUTING.md says
# when it may). Exit 77 without abigail-tools, on another machine than the record's, and without debug information.
# usage: abi.sh check LIBRARY              compare
#        abi.sh planted LIBRARY ARCHIVE CC  build a library with a changed signature and a changed structure, which must be found
#        abi.sh record LIBRARY             write the record
set -eu
mode=$1
library=$2
here=$(cd "$(dirname "$0")" && pwd)
tree=$(cd "$here/../.." && pwd)
record=$here/libpickle.abi
ignore=$here/libpickle.abignore

skip() {
    echo "SKIPPED: $*"
    exit 77
}

command -v abidiff >/dev/null || skip "abidiff is not here (Debian: abigail-tools)"
[ "$(uname -m)" = x86_64 ] || skip "the record is of x86_64"
readelf -S "$library" | grep -q '\.debug_info' || skip "$library has no debug information"

compare() { abidiff --suppressions "$ignore" --no-added-syms --no-show-locs "$record" "$1"; }

case $mode in
record)
    abidw --suppressions "$ignore" --no-corpus-path --no-comp-dir-path --no-show-locs --exported-interfaces-only "$library" >"$record"
    ;;
check)
    compare "$library" || { echo "the ABI differs from $record: see CONTRIBUTING.md, section ABI"; exit 1; }
    echo "abi: as recorded"
    ;;
planted)
    archive=$3 cc=$4
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT INT TERM
    cp -r "$tree/include" "$tree/lib/api/base.c" "$tree/lib/api/inspect.c" "$work"
    sed -i 's/pk_dtype_size(pk_dtype_t dtype)/pk_dtype_size(pk_dtype_t dtype, int more)/' "$work/include/pickle/base.h" "$work/base.c"
    sed -i 's/double expected_gbps; .*/int more; &/' "$work/include/pickle/inspect.h"
    for source in base inspect; do
        "$cc" -g -O1 -fPIC -fvisibility=hidden -std=gnu11 -D_GNU_SOURCE -w -I"$work/include" -I"$tree/lib" -c "$work/$source.c" -o "$work/$source.o"
    done
    # Of what is defined twice the first counts.
    "$cc" -shared -Wl,-soname,libpickle.so.0 -Wl,--version-script="$tree/lib/pickle.map" -Wl,-z,muldefs "$work/base.o" "$work/inspect.o" \
        -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lhwloc -lcrypto -lpthread -ldl -lm -o "$work/planted.so"
    if compare "$work/planted.so" >"$work/out"; then
        echo "nothing was found"
        exit 1
    fi
    for word in pk_dtype_size expected_gbps; do
        grep -q $word "$work/out" || { cat "$work/out"; echo "the change of $word was not found"; exit 1; }
    done
    echo "abi: both changes were found"
    ;;
esac
