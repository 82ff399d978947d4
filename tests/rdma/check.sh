# SPDX-License-Identifier: Apache-2.0
# Read by the scripts that run in the machine: check, damage, and the end.
# shellcheck shell=bash
passed=0 failed=0 ended=$SECONDS

outcome() { # NAME CODE
    local took=$((SECONDS - ended))
    ended=$SECONDS
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        echo "PASS $1 ($took s)"
        grep -hE 'turns|costs|shim' /tmp/log | head -n 6 | sed 's/^/     /'
    else
        failed=$((failed + 1))
        echo "FAIL $1 (exit code $2)"
        grep -h '^FAIL' /tmp/log # perhaps long before the end
        tail -n 40 /tmp/log
    fi
}

packets() { cat /sys/class/infiniband/rxe*/ports/1/hw_counters/sent_pkts | awk '{ n += $1 } END { print n }'; }

# check NAME SECONDS COMMAND...: ended after four times as many, which the machine may take where others keep its processors busy
check() {
    local name=$1 seconds=$2
    shift 2
    timeout -k 5 $((4 * seconds)) "$@" >/tmp/log 2>&1
    outcome "$name" $?
}

wire_again() { # eth1 is up, with what an interface forgets when it goes down
    ip link set eth1 up
    ip route replace 10.77.0.0/24 dev eth1 table 11
    for j in 0 1; do
        ip neigh replace 10.77.0.$((j + 1)) dev eth1 lladdr 52:54:00:77:00:0$((j + 1)) nud permanent
    done
}

# damage NAME EXPECTED SECONDS BYTES BUFFERS COMMAND: the command runs a second after both ranks are up, `pids` are the ranks'. What is
# in the array `wrapper` stands before the rank's program; RANK0 and RANK1 are NAME=VALUE for one rank. Both have ended `within` seconds of
# the command, if that is not empty.
wrapper=() within=
damage() {
    local name=$1 rank own status=0 pids=() survivors=() begun
    export PK_ROOT=127.0.0.1:$((20000 + RANDOM % 12000)) PK_SIZE=2
    : >/tmp/log
    for rank in 0 1; do
        own=RANK$rank
        env PK_IFNAME=lo,eth$rank PK_RANK=$rank PK_HOST_ID=host$rank ${!own:+"${!own}"} timeout -k 5 240 "${wrapper[@]}" \
            "$bin/rdma-loop" "$2" "$3" "$4" "$5" </dev/null >>/tmp/log 2>&1 &
        pids+=($!)
    done
    survivors=("${pids[@]}")
    for ((i = 0; i < 600 && $(grep -c 'ranks on different hosts' /tmp/log) < 2; i++)); do
        sleep 0.1
    done
    sleep 1
    begun=${EPOCHREALTIME/./}
    eval "$6"
    for pid in "${survivors[@]}"; do
        wait "$pid" || status=$?
    done
    begun=$(((${EPOCHREALTIME/./} - begun) / 1000))
    wait
    [ -z "$within" ] || name+=" (over after $begun ms)"
    [ -z "$within" ] || [ $begun -le $((within * 1000)) ] || status=124
    outcome "$name" $status
}

the_end() {
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}
