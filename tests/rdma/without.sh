#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Without RDMA: a machine that has no device, a build that was told to do without, one that finds no headers, and one that cannot do
# without. Each works, or says what is missing; what runs says why RDMA is not used (rdma.not_built: where the library was built without).
# usage: without.sh SOURCE-FOLDER FOLDER-OF-TEST-PROGRAMS C-COMPILER
set -u
source=$1 bin=$2 compiler=$3
folder=$(mktemp -d) || exit 1
trap 'rm -rf "$folder"' EXIT
failed=0

verdict() { # NAME CODE
    [ "$2" -eq 0 ] && echo "PASS $1" || { echo "FAIL $1"; tail -n 15 "$folder/log"; failed=1; }
}

configure() { # PICKLE_RDMA OPTION...
    local rdma=$1
    shift
    cmake -S "$source" -B "$folder/build" -DCMAKE_C_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS=-O0 -DPICKLE_BUILD_TESTS=OFF \
        -DPICKLE_CUDA=OFF -DPICKLE_PMIX=OFF -DPICKLE_RDMA="$rdma" "$@" >"$folder/log" 2>&1
}

if [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
    "$bin/rdma-why" "cannot be used: no RDMA device in /sys/class/infiniband" | tee "$folder/log"
    verdict "a machine without a device" "${PIPESTATUS[0]}"
fi

no_headers="-DCMAKE_FIND_ROOT_PATH=$folder/nothing -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY"
configure ON $no_headers
[ $? -ne 0 ] && grep -q 'infiniband/verbs.h was not found' "$folder/log"
verdict "a build that must have it, without headers" $?
rm -rf "$folder/build"
configure AUTO $no_headers && grep -q 'infiniband/verbs.h was not found: no RDMA' "$folder/log" && grep -q 'RDMA OFF' "$folder/log"
verdict "a build that finds no headers" $?
rm -rf "$folder/build"
configure OFF && grep -q 'RDMA OFF' "$folder/log"
verdict "a build that does without" $?
exit $failed
