#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The conformance list over RDMA, in the machine with RDMA devices.
# usage, inside vm.sh: conform.sh FOLDER-OF-TEST-PROGRAMS
# PICKLE_TEST_CASES: so many cases of the list each, instead of the few that are run in CI. PICKLE_TEST_PARTS: not all parts, but
# some of: whole poor losing failing flapping.
set -u
bin=$1
here=$(dirname "$0")
. "$here/check.sh"

# conform NAME RANKS HOSTS CASES VARIABLE=VALUE...: without the errors of the list: their deadlines are too short for an emulated machine.
# faults.sh does damage with longer ones. That data went over a device is counted, or a silent TCP would pass.
seed=0
conform() {
    local name=$1 ranks=$2 hosts=$3 cases=${PICKLE_TEST_CASES:-$4} before
    shift 4
    before=$(packets)
    seed=$((seed + 1)) # another list each time
    check "conformance: $name" $((100 + cases * 2)) env "$@" "$here/ranks.sh" "$ranks" "$hosts" "$bin/pickle-conform" --env --max-bytes 1048576 \
        --watchdog 60 --cases "$cases" --seed $seed --no-errors
    grep ' passed, ' /tmp/log | tail -n 1
    went "and it went over the devices" "$before" 50
}

one=PK_IFNAME=lo,eth0
wire="RANK0=PK_IFNAME=lo,eth0 RANK1=PK_IFNAME=lo,eth1"
four="$wire RANK2=PK_IFNAME=lo,eth1 RANK3=PK_IFNAME=lo,eth0" # both hosts have both devices

whole() {
    conform "2 ranks on one device" 2 2 5 $one
    conform "2 ranks, each with both devices, 4 queue pairs" 2 2 5 PK_QPS=4
    conform "4 ranks on 2 devices, shm and rdma, one queue pair" 4 2 3 $four PK_QPS=1
    conform "4 ranks of 4 hosts on 2 devices" 4 4 3 $four PK_QPS=2
    conform "over the wire, 8 queue pairs" 2 2 4 $wire PK_QPS=8
}

poor() {
    conform "nothing inline" 2 2 4 $wire PK_QPS=2 RANKS_PRELOAD="$bin/rdma-shim.so" SHIM_NO_INLINE=1
    conform "registrations of 64 KiB" 2 2 6 $wire PK_QPS=2 RANKS_PRELOAD="$bin/rdma-shim.so" SHIM_MAX_MR_BYTES=65536
}

# All that netem has dropped on both devices.
dropped() { tc -s qdisc show | grep -o 'dropped [0-9]*' | awk '{ n += $2 } END { print n + 0 }'; }

losing() {
    local cases lost
    tc qdisc add dev eth0 root netem loss 2% && tc qdisc add dev eth1 root netem loss 2%
    for cases in 8 80; do # until one was, which of few packets may be none
        conform "one packet of 50 is lost" 2 2 $cases $wire
        lost=$(dropped)
        [ "$lost" -eq 0 ] || break
    done
    [ "$lost" -gt 0 ]
    outcome "and $lost were" $?
    tc qdisc del dev eth0 root && tc qdisc del dev eth1 root
}

failing() {
    local cases hit mended
    for cases in 24 200; do # more, where none did
        conform "queue pairs fail, the lane's too" 2 2 $cases $wire PK_QPS=2 PICKLE_TEST_VERBOSE=1 RANKS_PRELOAD="$bin/rdma-shim.so" SHIM_KILL_EVERY=150
        hit=$(grep -c 'is put into error' /tmp/log) mended=$(grep -c 'new queue pairs are connected' /tmp/log)
        [ "$hit" -eq 0 ] || break
    done
    [ "$mended" -gt 0 ]
    outcome "and were made again: $hit failed, at both ends together they were made $mended times" $?
}

flapping() {
    local flapper begun
    begun=$(packets)
    { # not before the ranks have met by the devices: without a port they do so over TCP
        while [ $(($(packets) - begun)) -lt 20 ]; do sleep 0.5; done
        while ip link set eth1 down; do echo down >>/tmp/flaps; sleep 0.3; wire_again; sleep 1; done
    } &
    flapper=$!
    conform "the link goes down and up" 2 2 8 $wire PICKLE_TEST_VERBOSE=1
    echo "at both ends together queue pairs were made again $(grep -c 'new queue pairs are connected' /tmp/log) times; \
$(grep -c 'was completed for 8 s; ' /tmp/log) of them because a device had forgotten requests"
    kill $flapper
    wait $flapper 2>/dev/null
    wire_again
    [ -s /tmp/flaps ]
    outcome "and it was down $(wc -l </tmp/flaps) times meanwhile" $?
}

for part in ${PICKLE_TEST_PARTS:-whole poor losing failing flapping}; do
    $part
done
the_end
