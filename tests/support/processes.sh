#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run a program as N ranks that are processes: by PK_RANK, PK_SIZE and PK_ROOT, or by mpirun.
# usage: processes.sh env|mpirun N PROGRAM [ARGUMENT...]
set -u
how=$1
size=$2
shift 2

if [ "$how" = mpirun ]; then
    exec mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$size" "$@" </dev/null
fi

PK_ROOT=127.0.0.1:$(sh "$(dirname "$0")/free_port.sh")
PK_SIZE=$size
export PK_ROOT PK_SIZE
pids=
rank=0
while [ "$rank" -lt "$size" ]; do
    PK_RANK=$rank "$@" </dev/null &
    pids="$pids $!"
    rank=$((rank + 1))
done
status=0
for pid in $pids; do
    wait "$pid" || status=$?
done
exit "$status"
