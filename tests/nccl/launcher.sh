#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# pickle-nccl of the installed package: a program that opens or needs libnccl.so.2 gets ours, and another does not open
# libpickle at all. And nccl/ built by itself, as a project of a user's, against that package.
# usage: launcher.sh PREFIX SOURCE_DIR NAMES_SH
set -eu
prefix=$1
source=$2
names=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
export LC_ALL=C
fail() { echo "FAIL $*"; exit 1; }

launcher=$prefix/bin/pickle-nccl
library=$("$launcher" --library)
case $library in
*/pickle/nccl/libnccl.so.2) echo "PASS $library" ;;
*) fail "the library is $library" ;;
esac
[ -r "$library" ] || fail "$library is not there"

[ "$("$launcher" -- sh -c 'echo "$LD_PRELOAD $VLLM_NCCL_SO_PATH"')" = "$library $library" ] ||
    fail "LD_PRELOAD is not the library"
[ "$(LD_PRELOAD=libc.so.6 "$launcher" sh -c 'echo "$LD_PRELOAD"')" = "$library:libc.so.6" ] ||
    fail "what was in LD_PRELOAD is gone"
status=0
"$launcher" sh -c 'exit 7' || status=$?
[ $status -eq 7 ] || fail "the command's code is $status"
status=0
"$launcher" 2>/dev/null || status=$?
[ $status -eq 2 ] || fail "without a command the code is $status"
"$launcher" cat /proc/self/maps >"$work/maps"
grep -q "$library" "$work/maps" || fail "the command does not have the library"
! grep -q "libpickle[.]so" "$work/maps" || fail "a program that calls nothing has opened libpickle"
echo "PASS the command, its code and its environment"

cat >"$work/opens.c" <<'C'
#include <dlfcn.h>
#include <stdio.h>
int main(void)
{
    char line[512];
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    int (*make)(void *) = (int (*)(void *))dlsym(library, "ncclGetUniqueId");
    char id[128];
    FILE *maps = fopen("/proc/self/maps", "r");
    int code = make(id);
    while (code == 0 && fgets(line, sizeof line, maps))
        fputs(line, stdout);
    return code;
}
C
"${CC:-cc}" "$work/opens.c" -o "$work/opens" -ldl
"$launcher" "$work/opens" >"$work/maps" || fail "a program that opens libnccl.so.2 ended with $?"
grep -q "$library" "$work/maps" || fail "libnccl.so.2 is another one"
[ "$(sed -n 's|.* \(/.*libnccl.*\)|\1|p' "$work/maps" | sort -u)" = "$library" ] || fail "there is a second libnccl"
"$launcher" env -u LD_LIBRARY_PATH "$work/opens" >"$work/maps" || fail "without LD_LIBRARY_PATH it ended with $?"
beside=$(readlink -f "$(dirname "$library")/../../libpickle.so.0")
"$launcher" "$work/opens" | grep -q "$beside" || fail "libpickle is not the one that was installed with it"
echo "PASS a program that opens libnccl.so.2 gets ours, and the libpickle beside it"

quietly() {
    "$@" >"$work/log" 2>&1 || { cat "$work/log"; fail "$*"; }
}
quietly cmake -S "$source/nccl" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DPICKLE_WERROR=ON
quietly cmake --build "$work/build"
quietly cmake --install "$work/build" --prefix "$work/prefix"
sh "$names" "$("$work/prefix/bin/pickle-nccl" --library)"
PICKLE_LIBRARY=$beside "$work/prefix/bin/pickle-nccl" "$work/opens" >"$work/maps" || fail "built by itself: $?"
echo "PASS built and installed by itself"
