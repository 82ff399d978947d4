#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run a program as N ranks on H pretended hosts (ranks in equal parts). Variables RANK<r>=NAME=VALUE go to rank r alone.
# RANKS_PRELOAD is a library that is preloaded into the program, not into what starts it.
# usage: ranks.sh N H PROGRAM [ARGUMENT...]
set -u
size=$1 hosts=$2
shift 2
PK_ROOT=127.0.0.1:$((20000 + $$ % 12000)) PK_SIZE=$size
export PK_ROOT PK_SIZE
pids=()
for ((rank = 0; rank < size; rank++)); do
    own=RANK$rank
    (
        export ${!own:+"${!own}"} PK_RANK=$rank PK_HOST_ID=host$((rank * hosts / size))
        [ -z "${RANKS_PRELOAD:-}" ] || export LD_PRELOAD=$RANKS_PRELOAD
        exec "$@"
    ) </dev/null &
    pids+=($!)
done
status=0
for pid in "${pids[@]}"; do
    wait "$pid" || status=$?
done
exit $status
