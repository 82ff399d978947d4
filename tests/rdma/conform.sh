#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The conformance list over RDMA, in the machine with RDMA devices.
# usage, inside vm.sh: conform.sh FOLDER-OF-TEST-PROGRAMS
set -u
bin=$1
here=$(dirname "$0")
. "$here/check.sh"

counter() { cat "/sys/class/infiniband/rxe$1/ports/1/hw_counters/sent_pkts"; }

# conform NAME RANKS CASES VARIABLE=VALUE...: on two hosts. Without the errors of the list: their deadlines are too short for an emulated
# machine. faults.sh does damage with longer ones. That data went over a device is counted, or a silent TCP would pass.
conform() {
    local name=$1 ranks=$2 cases=$3 before
    shift 3
    before=$(($(counter 0) + $(counter 1)))
    check "conformance: $name" 100 env "$@" "$here/ranks.sh" "$ranks" 2 "$bin/pickle-conform" --env --max-bytes 1048576 --watchdog 60 \
        --cases "$cases" --no-errors
    check "and it went over the devices: $(($(counter 0) + $(counter 1) - before)) packets" 5 \
        [ $(($(counter 0) + $(counter 1) - before)) -gt 300 ]
}

one=PK_IFNAME=lo,eth0
wire="RANK0=PK_IFNAME=lo,eth0 RANK1=PK_IFNAME=lo,eth1"
four="$wire RANK2=PK_IFNAME=lo,eth1 RANK3=PK_IFNAME=lo,eth0" # both hosts have both devices

conform "2 ranks on one device" 2 40 $one
conform "2 ranks, each with both devices, 4 queue pairs" 2 40 PK_QPS=4
conform "4 ranks on 2 devices, shm and rdma, one queue pair" 4 16 $four PK_QPS=1
conform "over the wire, 8 queue pairs" 2 24 $wire PK_QPS=8
conform "over the wire, nothing inline" 2 16 $wire PK_QPS=2 LD_PRELOAD="$bin/rdma-shim.so" SHIM_NO_INLINE=1
conform "over the wire, registrations of 64 KiB" 2 16 $wire PK_QPS=2 LD_PRELOAD="$bin/rdma-shim.so" SHIM_MAX_MR_BYTES=65536
tc qdisc add dev eth0 root netem loss 1% && tc qdisc add dev eth1 root netem loss 1%
conform "one packet of 100 is lost" 2 16 $wire
lost=$(tc -s qdisc show dev eth0 | grep -o 'dropped [0-9]*')
check "and some were: $lost" 5 [ "${lost#dropped }" -gt 0 ]
tc qdisc del dev eth0 root && tc qdisc del dev eth1 root
the_end
