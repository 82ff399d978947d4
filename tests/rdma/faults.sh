#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Damage to devices and ranks while two ranks exchange data: right data, or the named error in time.
# usage, inside vm.sh: faults.sh FOLDER-OF-TEST-PROGRAMS
set -u
bin=$1
. "$(dirname "$0")/check.sh"

damage "nothing happens" ok 1 1048576 2 :
# Much of what rank 0 sends goes by a rail where each packet takes 200 ms more; the lane, and what tells of the data, goes by the other.
slow_rail() { # NAME SECONDS BYTES [VARIABLE=VALUE]
    local turns bytes
    tc qdisc add dev eth1 root netem delay 200ms limit 100000
    RANK0=PK_IFNAME=lo,eth0,eth1 RANK1=PK_IFNAME=lo,eth0
    wrapper=(env PK_QPS=2 EXPECT_DAMAGE=1 "${@:4}")
    damage "$1: nothing is told before it is there" ok "$2" "$3" 2 :
    turns=$(sed -n 's/^rank 0: \([0-9]*\) turns.*/\1/p' /tmp/log)
    bytes=$(tc -s qdisc show dev eth1 | sed -n 's/^ Sent \([0-9]*\) bytes.*/\1/p')
    tc qdisc del dev eth1 root
    unset RANK0 RANK1
    wrapper=()
    [ "$bytes" -gt $((${turns:-0} * $3 / 4)) ] && [ "${turns:-0}" -gt 0 ]
    outcome "and the slow rail has carried $bytes bytes of ${turns:-0} transfers" $?
}
slow_rail "two rails, writes that tell of themselves" 2 2097152
slow_rail "two rails, a FIN behind the acknowledgements" 2 2097152 PICKLE_TEST_TUNING=rdma.chunk_max_bytes=262144 # eight chunks, more than tell of themselves
damage "the wire loses all for a second" ok 3 1048576 2 \
    'tc qdisc add dev eth0 root netem loss 100%; sleep 1; tc qdisc del dev eth0 root'
# rxe fails a queue pair at once when a packet meets the interface down: new ones are made when it is up again. Where none met it, none need be.
wrapper=(env EXPECT_DAMAGE=1)
damage "the link goes down and up again" ok 4 1048576 2 'ip link set eth1 down; sleep 1; wire_again'
! grep -q 'the queue pairs are made again' /tmp/log || grep -q 'new queue pairs are connected' /tmp/log
outcome "and queue pairs that failed were made again" $?
wrapper=()
within=30 # less than PK_RETRY_MS, and much for a starved machine
damage "rank 1 is killed" peer 60 1048576 2 'survivors=(${pids[0]}); pkill -9 -P ${pids[1]}'
within=60
damage "the wire loses all for ever" peer 60 1048576 2 'tc qdisc add dev eth0 root netem loss 100%'
tc qdisc del dev eth0 root
damage "the link goes down" peer 60 1048576 2 'ip link set eth1 down'
wire_again
within=40 # two operations after one another
wrapper=(env PK_TIMEOUT_MS=6000) # before the transport gives up
# What one rank has sent may have come without its being told so: it hears that when the queue pairs are made again, and begins its next operation later.
damage "the wire loses all, and 6 s are all there is" late 60 1048576 2 'tc qdisc add dev eth0 root netem loss 100%'
tc qdisc del dev eth0 root
grep -q 'A deadline passed' /tmp/log
outcome "and a deadline passed" $?
wrapper=() within=
damage "the link is as good as before" ok 0.4 1048576 2 :
# The kernel lets those that have it open go on until they leave.
damage "a device is deleted" any 3 1048576 2 'timeout 20 rdma link delete rxe1 || echo "rdma link delete: $?" >>/tmp/log'
gone() { for ((i = 0; i < 600; i++)); do [ -e /sys/class/infiniband/rxe1 ] || return 0; sleep 0.1; done; return 1; }
gone
outcome "it is gone when they have left" $?
wrapper=(env EXPECT_TRANSPORT=tcp)
damage "without it, ranks meet over tcp" ok 0.4 1048576 2 :
rdma link add rxe1 type rxe netdev eth1
wrapper=()
damage "the device is there again" ok 0.4 1048576 2 :
before=$(packets)
for role in "allreduce between hosts" "wait between hosts"; do
    check "4 ranks of two hosts, one is killed, $role: the others name it" 100 env PICKLE_TEST_SLACK=5 "$bin/mp.kill" "$role"
done
went "and what they did went over the devices" "$before" 1000
before=$(packets)
check "queue pairs fail before a rank leaves, and while it does: what was sent comes" 150 env PICKLE_TEST_SLACK=1.5 \
    LD_PRELOAD="$bin/rdma-shim.so" "$bin/rdma-leave" 1
grep -E '^(PASS|FAIL)' /tmp/log | sed 's/^/     /'
went "and it went over the devices" "$before" 400
before=$(packets)
check "one of two gives up in the middle of transfers: nothing is written into its buffers any more" 150 env PICKLE_TEST_MIB=3 \
    PICKLE_TEST_ABORT_US=10000 "$bin/mp.revoke" "between hosts"
went "and they went over the devices" "$before" 4000
the_end
