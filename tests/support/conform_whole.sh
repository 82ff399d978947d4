#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The whole conformance list, 3,000 cases on 1 to 8 ranks with messages up to 64 MiB, in pieces of one number of ranks and one algorithm
# each (ctest runs a part of the list). The last line is "N pieces passed, M failed".
# usage: conform_whole.sh threads|processes PICKLE-CONFORM [ARGUMENT...]
#   RUN="nice -n 19"   what each piece is started by
#   PIECE_S=1200       seconds a piece may take
#   PIECES="8 ring"    only pieces that match this (of "RANKS ALGORITHM")
set -u
how=$1
conform=$2
shift 2
here=$(dirname "$0")
passed=0
failed=0

# piece LIMIT_S RANKS ARGUMENT...: as threads, or as processes.
piece() {
    limit=$1
    ranks=$2
    shift 2
    if [ "$how" = threads ]; then
        ${RUN:-} timeout -k 10 "$limit" "$conform" --threads --ranks "$ranks" "$@"
    else
        ${RUN:-} timeout -k 10 "$limit" sh "$here/processes.sh" env "$ranks" "$conform" --env "$@"
    fi
}

# count NAME COMMAND...: a piece and its line.
count() {
    name=$1
    shift
    case $name in *${PIECES:-}*) ;; *) return ;; esac
    began=$(date +%s)
    output=$("$@" 2>&1)
    status=$?
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf '%s\n' "$output" | grep -v '^pickle' | tail -n 40
    fi
    echo "$name: exit $status, $(($(date +%s) - began)) s: $(printf '%s\n' "$output" | grep ' passed, ' | tail -n 1)"
}

for ranks in 1 2 3 4 5 6 7 8; do
    for algorithm in chosen direct flat ring doubling halving tree staggered; do
        count "$ranks $algorithm" piece "${PIECE_S:-1200}" 8 --no-errors --cases 3000 --max-bytes 67108864 --watchdog 600 \
            --filter " $ranks ranks, $algorithm," "$@"
    done
done
for ranks in 2 3 8; do
    count "$ranks errors" piece "${PIECE_S:-1200}" "$ranks" --cases 0 "$@"
done
echo "$passed pieces passed, $failed failed"
[ "$failed" -eq 0 ]
