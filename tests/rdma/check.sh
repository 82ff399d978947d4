# SPDX-License-Identifier: Apache-2.0
# Read by the scripts that run in the machine: check, damage, and the end. A program takes up to half a second of a processor to start there:
# what bash can do itself is done by it.
# shellcheck shell=bash
passed=0 failed=0 ended=$SECONDS

outcome() { # NAME CODE
    local took=$((SECONDS - ended))
    ended=$SECONDS
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
        echo "PASS $1 ($took s)"
    else
        failed=$((failed + 1))
        echo "FAIL $1 (exit code $2)"
        echo "$1" >>"$VM_OUT/failed" # another machine may go on (parts.sh)
        grep -h '^FAIL' /tmp/log # perhaps long before the end
        tail -n 40 /tmp/log
    fi
}

# What a program has said of itself.
told() {
    awk '/turns|costs|shim/ && n++ < 6 { print "     " $0 }' /tmp/log
}

packets() {
    local file n=0 some
    for file in /sys/class/infiniband/rxe*/ports/1/hw_counters/sent_pkts; do
        read -r some <"$file" && n=$((n + some))
    done
    echo "$n"
}

# went NAME BEFORE LEAST: that more than so many packets have left by the devices since; else a silent TCP would pass.
went() {
    local since=$(($(packets) - $2))
    [ $since -gt "$3" ]
    outcome "$1: $since packets" $?
}

# check NAME SECONDS COMMAND...: ended after four times as many, which the machine may take where others keep its processors busy
check() {
    local name=$1 seconds=$2
    shift 2
    timeout -k 5 $((4 * seconds)) "$@" >/tmp/log 2>&1
    outcome "$name" $?
    told
}

wire_again() { # eth1 is up, with what an interface forgets when it goes down
    ip link set eth1 up
    ip route replace 10.77.0.0/24 dev eth1 table 11
    for j in 0 1; do
        ip neigh replace 10.77.0.$((j + 1)) dev eth1 lladdr 52:54:00:77:00:0$((j + 1)) nud permanent
    done
}

# All ranks are up. Nothing is started for it but a sleep.
up() {
    local i line n
    for ((i = 0; i < 600; i++)); do
        n=0
        while read -r line; do
            [[ $line != *'ranks on different hosts'* ]] || n=$((n + 1))
        done </tmp/log
        [ $n -lt 2 ] || return
        sleep 0.1
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
        (
            export PK_IFNAME=lo,eth$rank PK_RANK=$rank PK_HOST_ID=host$rank ${!own:+"${!own}"}
            exec timeout -k 5 240 "${wrapper[@]}" "$bin/rdma-loop" "$2" "$3" "$4" "$5"
        ) </dev/null >>/tmp/log 2>&1 &
        pids+=($!)
    done
    survivors=("${pids[@]}")
    up
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
    told
}

the_end() {
    echo "$passed passed, $failed failed"
    [ $failed -eq 0 ]
}
