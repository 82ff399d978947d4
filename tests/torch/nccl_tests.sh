#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every program of nccl-tests on two GPUs: one thread that drives both, a thread each, all types and reductions, blocking,
# registered, tiny; and by mpirun, a process each, what was built with MPI=1 NAME_SUFFIX=_mpi.
# usage: [pickle-nccl --] nccl_tests.sh FOLDER-WITH-*_perf OUT        JOBS=6 run side by side; LIMIT=60 seconds for one
set -u
programs=${1:?usage: nccl_tests.sh FOLDER OUT} out=${2:?usage: nccl_tests.sh FOLDER OUT}
mkdir -p "$out"
# NVLink multicast is left out: shared machines do not offer it.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0}

one() { # PROGRAM NAME ARGUMENTS...
    local program=$1 name=$2 status=0 log why=
    log=$out/$(basename "$program").$name
    shift 2
    [ "$name" != processes ] || set -- --allow-run-as-root --oversubscribe --bind-to none -n 2 "$program"_mpi "$@"
    [ "$name" != processes ] || program=mpirun
    timeout -k 5 "${LIMIT:-60}" "$program" "$@" >"$log" 2>&1 </dev/null || status=$?
    [ "$status" -eq 0 ] || why="exit code $status"
    grep -q '# Out of bounds values : 0 OK' "$log" || why="${why:+$why, }not 0 values out of bounds"
    [ -z "$why" ] || { echo "FAIL $(basename "$log"): $why: $(grep -iE 'error|warn|fail' "$log" | tail -n 1)"; return 1; }
    echo "PASS $(basename "$log")"
}

each() { # PROGRAM
    local failed=0
    one "$1" one-thread -g 2 -b 8 -e 64M -f 8 -n 5 -w 1 || failed=1
    one "$1" threads -t 2 -g 1 -b 8 -e 64M -f 8 -n 5 -w 1 || failed=1
    one "$1" all-types -g 2 -d all -o all -b 4K -e 1M -f 16 -n 2 -w 1 || failed=1
    one "$1" blocking -g 2 -z 1 -b 8 -e 16M -f 16 -n 5 -w 1 || failed=1
    one "$1" registered -g 2 -R 1 -b 8 -e 16M -f 16 -n 5 -w 1 || failed=1
    one "$1" symmetric -g 2 -R 2 -b 8 -e 16M -f 16 -n 5 -w 1 || failed=1
    one "$1" tiny -g 2 -b 4 -e 64 -i 4 -n 5 -w 1 || failed=1 # from 0 on its warm-up does not end
    [ ! -x "$1_mpi" ] || one "$1" processes -g 1 -b 8 -e 64M -f 8 -n 5 -w 1 || failed=1
    return "$failed"
}
export -f one each
export out

mapfile -t all < <(find "$programs" -maxdepth 1 -name '*_perf' -type f -perm -u+x | sort)
[ ${#all[@]} -gt 0 ] || { echo "FAIL no program *_perf in $programs"; exit 1; }
# shellcheck disable=SC2016
printf '%s\n' "${all[@]}" | xargs -P "${JOBS:-6}" -I{} bash -c 'each "$1"' - {}
status=$?
echo "${#all[@]} programs, exit code $status"
[ "$status" -eq 0 ]
