#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Damage while two ranks exchange data: right data, or the named error in time.
# usage, inside vm.sh: faults.sh FOLDER-OF-TEST-PROGRAMS
set -u
bin=$1
here=$(dirname "$0")
passed=0 failed=0

outcome() { # NAME CODE
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        echo "PASS $1"
        grep -hE 'turns|costs' /tmp/log | sed 's/^/     /'
    else
        failed=$((failed + 1))
        echo "FAIL $1 (exit code $2)"
        tail -n 40 /tmp/log
    fi
}

# damage NAME EXPECTED SECONDS BYTES BUFFERS COMMAND: the command runs a second after both ranks are up, `pids` are the ranks'.
damage() {
    local name=$1 rank status=0 pids=() survivors=()
    export PK_ROOT=127.0.0.1:$((20000 + RANDOM % 12000)) PK_SIZE=2
    : >/tmp/log
    for rank in 0 1; do
        PK_IFNAME=lo,eth$rank PK_RANK=$rank PK_HOST_ID=host$rank timeout -k 5 60 "${wrapper[@]}" "$bin/rdma-loop" "$2" "$3" "$4" "$5" \
            </dev/null >>/tmp/log 2>&1 &
        pids+=($!)
    done
    survivors=("${pids[@]}")
    for ((i = 0; i < 100 && $(grep -c 'ranks on different hosts' /tmp/log) < 2; i++)); do
        sleep 0.1
    done
    sleep 1
    eval "$6"
    for pid in "${survivors[@]}"; do
        wait "$pid" || status=$?
    done
    wait
    outcome "$name" $status
}

wrapper=()
damage "nothing happens" ok 3 1048576 2 :
damage "the wire loses all for a second" ok 5 1048576 2 \
    'tc qdisc add dev eth0 root netem loss 100%; sleep 1; tc qdisc del dev eth0 root'
damage "rank 1 is killed" peer 30 1048576 2 'survivors=(${pids[0]}); pkill -9 -P ${pids[1]}'
wrapper=(setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock bash -c 'ulimit -l 12288; exec "$@"' --)
damage "room for few registrations, many buffers" ok 4 1048576 40 :
damage "no room for a registration" memory 20 16777216 1 :
wrapper=(env EXPECT_TRANSPORT=tcp setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock bash -c 'ulimit -l $((PK_RANK * 65536)); exec "$@"' --)
damage "rank 0 may lock no memory: both go over tcp" ok 2 1048576 2 :
wrapper=()
damage "the wire loses all for ever" peer 25 1048576 2 'tc qdisc add dev eth0 root netem loss 100%'
tc qdisc del dev eth0 root
damage "the link goes down" peer 25 1048576 2 'ip link set eth1 down'

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
