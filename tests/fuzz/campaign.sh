#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every target of the fuzz programs by itself, so many inputs each, at the lowest priority.
#
# usage: campaign.sh [-n INPUTS] [-o FOLDER] PROGRAM[:TARGET]...
#   -n  inputs of each target, ten million unless given
#   -o  where corpora, logs and findings go (default: build/fuzz/campaign)
# PROGRAM is tcp, bootstrap, shm, rdma, switchml or agree, of the preset fuzz. Exits 1 when something was found; summary.txt tells what was run.
set -u

root=$(cd "$(dirname "$0")/../.." && pwd)
inputs=10000000 out=$root/build/fuzz/campaign
while getopts n:o: letter; do
    case $letter in n) inputs=$OPTARG ;; o) out=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || { sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 2; }

targets_of() { # their names, as the program tells them who asks for none of them
    PICKLE_FUZZ_TARGET=? "$root/build/fuzz/tests/fuzz.$1" "$0" 2>&1 | sed -n 's/.*Targets: //p'
}

failed=0
run() { # program, target
    local folder=$out/$1/$2 log=$out/$1-$2.log seeds=
    mkdir -p "$folder"
    if [ -f "$root/tests/fuzz/corpus/$1.txt" ]; then
        seeds=$out/seeds/$1
        rm -rf "$seeds"
        python3 "$root/tests/fuzz/corpus.py" unpack "$root/tests/fuzz/corpus/$1.txt" "$seeds" || exit 1
    fi
    PK_LOG=none PICKLE_FUZZ_TARGET=$2 nice -n 19 "$root/build/fuzz/tests/fuzz.$1" -runs="$inputs" -timeout=60 -print_final_stats=1 \
        -artifact_prefix="$out/finding-$1-$2-" "$folder" ${seeds:+"$seeds"} >"$log" 2>&1
    local code=$?
    [ $code = 0 ] || failed=1
    printf '%-10s %-16s %12s inputs, cov %s, corpus %s, code %s\n' "$1" "$2" \
        "$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" "$(sed -n 's/.*cov: \([0-9]*\).*/\1/p' "$log" | tail -1)" \
        "$(find "$folder" -type f | wc -l)" $code >>"$out/summary.txt"
}

mkdir -p "$out"
for what in "$@"; do
    if [ "${what#*:}" != "$what" ]; then
        run "${what%%:*}" "${what#*:}"
    else
        for target in $(targets_of "$what"); do
            run "$what" "$target"
        done
    fi
done
cat "$out/summary.txt"
exit $failed
