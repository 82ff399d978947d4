#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Allreduces by an aggregator over an interface whose packets the kernel loses, repeats and puts out of order (netem): right sums. In the
# machine that vm.sh makes, for it has netem; its RDMA devices are of no use here.
# usage, inside vm.sh: switchml.sh FOLDER-OF-TEST-PROGRAMS
# SWITCHML_RANKS_THREADS is how many threads a rank has, 1 unless set: vm.sh 'SWITCHML_RANKS_THREADS=4 bash tests/rdma/switchml.sh build/dev/tests'
set -u
export SWITCHML_RANKS_THREADS=${SWITCHML_RANKS_THREADS:-1}
bin=$1 aggregator=$1/../tools/pickle-aggregator/pickle-aggregator ranks=2
. "$(dirname "$0")/check.sh"
[ -x "$aggregator" ] || { echo "SKIPPED: pickle-aggregator is not built"; exit 77; }
export PK_RDMA_DEVICES=none PK_ALGORITHM=allreduce=switchml PK_SWITCHML=/tmp/switchml.cfg PK_TIMEOUT_MS=200000

said() { # LEAST TEXT: so many lines of the aggregator's
    local i n line
    for ((i = 0; i < 2000; i++)); do
        n=0
        while read -r line; do
            [[ $line != *$2* ]] || n=$((n + 1))
        done </tmp/aggregator
        [ $n -lt "$1" ] || return 0
        read -r -t 0.1 <>/tmp/nothing
    done
    return 1
}
mkfifo /tmp/nothing /tmp/go
exec 5<>/tmp/go

: >/tmp/aggregator
"$aggregator" --port 0 >>/tmp/aggregator 2>&1 &
server=$!
said 1 'packets at'
port=$(sed -n 's/.*:\([0-9]*\), packets.*/\1/p' /tmp/aggregator)
came=0 lines=0

# through NAME WINDOW NETEM...: ranks whose packets go by lo with netem, which is there from when all have joined on: TCP would wait for what
# is lost.
through() {
    local name=$1 window=$2 code=0 pids=() r
    shift 2
    printf '[general]\ncontroller_ip = 127.0.0.1\ncontroller_port = %s\npacket_numel = 64\nmax_outstanding_packets = %s\nnum_worker_threads = %s\n' \
        "$port" "$window" "$SWITCHML_RANKS_THREADS" >$PK_SWITCHML
    for ((r = 0; r < ranks; r++)); do
        PK_RANK=$r PK_SIZE=$ranks PK_ROOT=127.0.0.1:$((41000 + came)) timeout 250 "$bin/switchml-ranks" short wait <&5 >/tmp/rank.$r 2>&1 &
        pids+=($!)
    done
    came=$((came + ranks))
    said $came 'has come from' || code=1
    tc qdisc add dev lo root netem "$@" limit 100000 || code=1
    echo >&5
    for r in "${pids[@]}"; do wait "$r" || code=$?; done
    tc -s qdisc show dev lo >/tmp/qdisc
    tc qdisc del dev lo root
    grep -q 'algorithm switchml' /tmp/rank.0 || code=1
    kill -USR1 $server
    lines=$((lines + 1))
    said $lines 'sums complete' || code=1
    cat /tmp/rank.* /tmp/aggregator >/tmp/log
    outcome "$name, $window packets on their way, threads $SWITCHML_RANKS_THREADS" $code
    sed -n 's/^ Sent/     lo: sent/p' /tmp/qdisc
    grep '^packets ' /tmp/aggregator | tail -n 1 | sed 's/, malformed.*//; s/^/     in all: /'
}

through "5 % lost" 32 loss 5%
grep -q 'dropped [1-9]' /tmp/qdisc
outcome "and some were" $?
through "20 % twice, out of order" 32 delay 3ms 2ms duplicate 20%
through "3 % lost, 10 % twice, out of order, one by one" $((2 * SWITCHML_RANKS_THREADS)) delay 1ms 1ms loss 3% duplicate 10%
grep -q 'dropped [1-9]' /tmp/qdisc && ! grep '^packets ' /tmp/aggregator | tail -n 1 | grep -q 'sent again 0,'
outcome "and some were lost, and sent again" $?
kill $server
the_end
