#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libpickle against perftest over the same devices, same queue pairs, turn by turn: half round trip of 8 bytes, and bandwidth of one-way
# transfers one after another (ours) against a queue of 8 writes (theirs). Only ratios of medians within one run count: the machine is emulated.
# usage, inside vm.sh: ratio.sh FOLDER-WITH-PICKLE-PERF FOLDER-OF-LIBPICKLE [TURNS]
set -u
perf=$1/pickle-perf
export LD_LIBRARY_PATH=$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
turns=${3:-3}
here=$(dirname "$0")
export RANK0=PK_IFNAME=lo,eth0 RANK1=PK_IFNAME=lo,eth1

median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print 0 }'; }

theirs() { # PROGRAM OPTIONS...: the line of figures
    local program=$1
    shift
    timeout 40 "$program" -d rxe0 -x 1 "$@" >/dev/null 2>&1 &
    sleep 1
    timeout 40 "$program" -d rxe1 -x 1 "$@" 127.0.0.1 2>/dev/null | awk '$1 == '"$size"' { print }'
    wait
}

ours() { # PATTERN SIZE SAMPLES QPS: median time in us
    PK_QPS=$4 timeout 80 "$here/ranks.sh" 2 2 "$perf" sendrecv -p "$1" -b "$2" -e "$2" -n "$3" -w 3 -c 0 --csv /tmp/ours.csv >/tmp/ours.log 2>&1
    awk -F, -v name="${5:-median_us}" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) c = i } NR == 2 && c { print $c }' /tmp/ours.csv
    rm -f /tmp/ours.csv
}

size=8; rm -f /tmp/our8 /tmp/their8
for ((t = 0; t < ${LAT_TURNS:-$turns}; t++)); do
    theirs ib_write_lat -s 8 -n 300 | awk '{ print $5 }' >>/tmp/their8
    theirs ib_send_lat -s 8 -n 300 | awk '{ print $5 }' >>/tmp/send8
    ours pingpong 8 300 2 >>/tmp/our8
done
echo "half round trip of 8 bytes: libpickle $(median </tmp/our8) us, ib_write_lat $(median </tmp/their8) us, ib_send_lat $(median </tmp/send8) us"
for qps in ${QPS:-1 2 4}; do
    for size in ${SIZES:-65536 1048576 16777216}; do
        n=$((16777216 * 4 / size))
        [ $n -gt 100 ] && n=100
        : >/tmp/their; : >/tmp/our
        for ((t = 0; t < turns; t++)); do
            theirs ib_write_bw -q $qps -s $size -n $((n > 8 ? n : 8)) -t 8 | awk '{ print $4 }' >>/tmp/their
            ours oneway $size $n $qps >>/tmp/our
        done
        awk -v s=$size -v q=$qps -v o="$(median </tmp/our)" -v b="$(median </tmp/their)" 'BEGIN {
            r = (o > 0 ? s / o / 1.048576 : 0)
            printf "%9d bytes, %d queue pairs: libpickle %.1f MiB/s, ib_write_bw %.1f MiB/s, ratio %.2f\n", s, q, r, b, (b > 0 ? r / b : 0) }'
    done
done
