# SPDX-License-Identifier: Apache-2.0
# Read by the scripts that run in the machine: check, damage, and the end.
# shellcheck shell=bash
passed=0 failed=0

outcome() { # NAME CODE
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        echo "PASS $1"
        grep -hE 'turns|costs|shim' /tmp/log | sed 's/^/     /'
    else
        failed=$((failed + 1))
        echo "FAIL $1 (exit code $2)"
        tail -n 40 /tmp/log
    fi
}

# check NAME SECONDS COMMAND...
check() {
    local name=$1 seconds=$2
    shift 2
    timeout -k 5 "$seconds" "$@" >/tmp/log 2>&1
    outcome "$name" $?
}

# damage NAME EXPECTED SECONDS BYTES BUFFERS COMMAND: the command runs a second after both ranks are up, `pids` are the ranks'. What is
# in the array `wrapper` stands before the rank's program; RANK0 and RANK1 are NAME=VALUE for one rank.
wrapper=()
damage() {
    local name=$1 rank own status=0 pids=() survivors=()
    export PK_ROOT=127.0.0.1:$((20000 + RANDOM % 12000)) PK_SIZE=2
    : >/tmp/log
    for rank in 0 1; do
        own=RANK$rank
        env PK_IFNAME=lo,eth$rank PK_RANK=$rank PK_HOST_ID=host$rank ${!own:+"${!own}"} timeout -k 5 60 "${wrapper[@]}" \
            "$bin/rdma-loop" "$2" "$3" "$4" "$5" </dev/null >>/tmp/log 2>&1 &
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

the_end() {
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}
