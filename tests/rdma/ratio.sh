#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libpickle against perftest over the same devices, same queue pairs, turn by turn: half round trip of 8 bytes, and bandwidth of windows of
# transfers (ours) against a queue of 8 writes (theirs). Only ratios of medians within one run count: the machine is emulated.
# usage, inside vm.sh: ratio.sh FOLDER-WITH-PICKLE-PERF FOLDER-OF-LIBPICKLE [TURNS [LATENCY-TURNS [QPS [SIZES]]]]    (lists in quotes)
# A line of figures for each goes to $VM_OUT/ratio.csv too.
set -u
perf=$1/pickle-perf
export LD_LIBRARY_PATH=$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
turns=${3:-3} latency_turns=${4:-$turns} all_qps=${5:-1 2 4} sizes=${6:-65536 1048576 16777216}
here=$(dirname "$0")
csv=${VM_OUT:-/tmp}/ratio.csv
export RANK0=PK_IFNAME=lo,eth0 RANK1=PK_IFNAME=lo,eth1

median() { sort -g | awk '{ v[NR] = $1 } END { if (NR) print v[int((NR + 1) / 2)]; else print 0 }'; }

theirs() { # PROGRAM OPTIONS...: the line of figures
    local program=$1
    shift
    timeout 40 "$program" -d rxe0 -x 1 "$@" >/dev/null 2>&1 &
    sleep 0.5
    timeout 40 "$program" -d rxe1 -x 1 "$@" 127.0.0.1 2>/dev/null | awk '$1 == '"$size"' { print }'
    wait
}

ours() { # PATTERN SIZE SAMPLES QPS: median time in us
    PK_QPS=$4 timeout 80 "$here/ranks.sh" 2 2 "$perf" sendrecv -p "$1" -b "$2" -e "$2" -n "$3" -w 1 -c 0 --csv /tmp/ours.csv >/tmp/ours.log 2>&1
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "median_us") c = i } NR == 2 && c { print $c }' /tmp/ours.csv
    rm -f /tmp/ours.csv
}

between() { # VALUE LEAST MOST
    echo $(($1 < $2 ? $2 : $1 > $3 ? $3 : $1))
}

latency() {
    size=8
    rm -f /tmp/our8 /tmp/their8 /tmp/send8
    for ((t = 0; t < latency_turns; t++)); do
        theirs ib_write_lat -s 8 -n 300 | awk '{ print $5 }' >>/tmp/their8
        theirs ib_send_lat -s 8 -n 300 | awk '{ print $5 }' >>/tmp/send8
        ours pingpong 8 300 2 >>/tmp/our8
    done
    echo "half round trip of 8 bytes: libpickle $(median </tmp/our8) us, ib_write_lat $(median </tmp/their8) us, ib_send_lat $(median </tmp/send8) us"
    echo "latency_us,8,2,$(median </tmp/our8),$(median </tmp/their8)" >>"$csv"
}

bandwidth() { # QPS SIZE
    local qps=$1 window
    size=$2
    window=$((size <= 65536 ? 64 : 16)) # of pickle-perf
    : >/tmp/their; : >/tmp/our
    for ((t = 0; t < turns; t++)); do
        theirs ib_write_bw -q "$qps" -s "$size" -n "$(between $((67108864 / size)) 8 2000)" -t 8 | awk '{ print $4 }' >>/tmp/their
        ours oneway "$size" "$(between $((67108864 / size / window)) 2 20)" "$qps" >>/tmp/our
    done
    awk -v s="$size" -v q="$qps" -v o="$(median </tmp/our)" -v b="$(median </tmp/their)" -v csv="$csv" 'BEGIN {
        r = (o > 0 ? s / o / 1.048576 : 0)
        printf "%9d bytes, %d queue pairs: libpickle %.1f MiB/s, ib_write_bw %.1f MiB/s, ratio %.2f\n", s, q, r, b, (b > 0 ? r / b : 0)
        printf "bandwidth_mib_s,%d,%d,%.2f,%.2f\n", s, q, r, b >>csv }'
}

[ "$latency_turns" -eq 0 ] || latency
for qps in $all_qps; do
    for size in $sizes; do
        bandwidth "$qps" "$size"
    done
done
