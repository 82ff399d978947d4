#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is tested in the machine with RDMA devices: each line is a test of its own; the last line counts.
# usage, inside vm.sh: inside.sh FOLDER-OF-TEST-PROGRAMS
set -u
bin=$1
passed=0 failed=0

# check NAME SECONDS COMMAND...
check() {
    local name=$1 seconds=$2 code
    shift 2
    timeout -k 5 "$seconds" "$@" >/tmp/log 2>&1
    code=$?
    if [ $code -eq 0 ]; then
        passed=$((passed + 1))
        echo "PASS $name"
    else
        failed=$((failed + 1))
        echo "FAIL $name (exit code $code)"
        tail -n 40 /tmp/log
    fi
}

check "two endpoints, two rails" 60 "$bin/rdma-pair"
check "two endpoints, one queue pair" 60 env PK_QPS=1 "$bin/rdma-pair"
check "two endpoints, 8 queue pairs on one device" 60 env PK_QPS=8 PK_IFNAME=eth1 "$bin/rdma-pair"
check "two endpoints, a link-local address" 60 env PK_QPS=2 PK_GID_INDEX=0 PK_IFNAME=eth0 "$bin/rdma-pair"

conform="$bin/pickle-conform --env --max-bytes 1048576 --watchdog 60"
here=$(dirname "$0")
# Without the errors of the list: their deadlines are too short for an emulated machine. faults.sh does damage with longer ones.
check "conformance, 2 ranks on 2 hosts" 90 "$here/ranks.sh" 2 2 $conform --cases 150 --no-errors
check "conformance, 4 ranks on 2 hosts, shm and rdma, one queue pair" 90 env PK_QPS=1 "$here/ranks.sh" 4 2 $conform --cases 30 --no-errors
check "conformance over the wire, 8 queue pairs" 60 env RANK0=PK_IFNAME=lo,eth0 RANK1=PK_IFNAME=lo,eth1 PK_QPS=8 \
    "$here/ranks.sh" 2 2 $conform --cases 40 --no-errors --seed 2
tc qdisc add dev eth0 root netem loss 1% && tc qdisc add dev eth1 root netem loss 1%
check "conformance, one packet of 100 is lost" 60 env RANK0=PK_IFNAME=lo,eth0 RANK1=PK_IFNAME=lo,eth1 \
    "$here/ranks.sh" 2 2 $conform --cases 20 --no-errors --seed 3
tc qdisc del dev eth0 root && tc qdisc del dev eth1 root
sent=$(cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts)
check "and all of it went over the devices: $sent packets" 5 [ "$sent" -gt 5000 ]

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
