#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# libpickle against perftest and UCX over the same devices, turn by turn. Only ratios of medians within one run count: the machine is emulated.
# usage, inside vm.sh: ratio.sh FOLDER-WITH-PICKLE-PERF FOLDER-OF-LIBPICKLE SECONDS CELL...
# A CELL is PEER:QPS:BYTES:TURNS. With 8 bytes half round trips are measured, else bandwidth. PEER: write (ib_write_lat, ib_write_bw), send
# (ib_send_lat) or ucx (ucx_perftest: active messages, puts on one queue pair).
# Each cell adds a line to $VM_OUT/ratio.csv when it is done: figure, peer, bytes, queue pairs, turns, medians of libpickle and peer, ratio,
# and all values of both. None is begun when SECONDS have passed.
set -u
perf=$1/pickle-perf
export LD_LIBRARY_PATH=$2${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
seconds=$3
shift 3
here=$(dirname "$0")
csv=${VM_OUT:-/tmp}/ratio.csv
export RANK0=PK_IFNAME=lo,eth0 RANK1=PK_IFNAME=lo,eth1

between() { # VALUE LEAST MOST
    echo $(($1 < $2 ? $2 : $1 > $3 ? $3 : $1))
}

writes() { # of ib_write_bw, on each queue pair; it wants 5 at least
    between $((33554432 / bytes / qps)) 5 2000
}

# both SERVER-VARIABLES CLIENT-VARIABLES PROGRAM OPTIONS...: what the client says.
both() {
    local server=$1 client=$2
    shift 2
    env $server timeout 40 "$@" >/tmp/server.log 2>&1 &
    sleep 0.5
    env $client timeout 40 "$@" 127.0.0.1 2>/tmp/client.log
    wait
}

perftest() { # PROGRAM COLUMN OPTIONS...
    local program=$1 column=$2
    shift 2
    both D=0 D=1 sh -c 'program=$1; shift; exec "$program" -d rxe$D -x 1 "$@"' sh "$program" "$@" |
        awk -v s="$bytes" -v c="$column" '$1 == s { print $c }'
}

# UCX's own layer of transports (uct): the one above it does not find a way from one of these devices to the other.
ucx() { # COLUMN OPTIONS...: of the line of totals
    local column=$1
    shift
    both D=0 D=1 sh -c 'exec ucx_perftest -d rxe$D:1 -x rc_verbs "$@"' sh -p $((13400 + RANDOM % 1000)) -s "$bytes" "$@" |
        awk -v c="$column" '/^Final:/ { print $c }'
}

theirs() {
    case $peer:$bytes in
    write:8) perftest ib_write_lat 5 -s 8 -n 1000 ;;
    send:8) perftest ib_send_lat 5 -s 8 -n 1000 ;;
    write:*) perftest ib_write_bw 4 -q "$qps" -s "$bytes" -n "$(writes)" -t 8 ;;
    ucx:8) ucx 3 -t am_lat -D short -n 1000 -w 10 ;;
    ucx:*) ucx 7 -t put_bw -D zcopy -O 8 -n "$(between $((33554432 / bytes)) 5 2000)" -w 2 ;;
    esac
}

# Windows of 4 MiB at least behind one another, four of them and one to warm up. Long messages: as many as ib_write_bw writes, but 10 at most,
# in one go and in memory that is there, for the machine moves more bytes a second the longer it moves them (40 MiB at 62 MiB/s, 160 MiB at 94).
ours() {
    local window=$((bytes <= 65536 ? 128 : bytes <= 1048576 ? 16 : 4)) mode="-p pingpong -n 1000 -w 10" column=median_us
    [ "$bytes" -eq 8 ] || mode="-p oneway --window $window -n 4 -w 1"
    [ "$bytes" -le 4194304 ] || mode="-p oneway --window $(between $(($(writes) * qps)) 1 10) -n 1 -w 0 -m registered"
    rm -f /tmp/ours.csv
    PK_QPS=$qps timeout 60 "$here/ranks.sh" 2 2 "$perf" sendrecv -b "$bytes" -e "$bytes" $mode -c 0 --csv /tmp/ours.csv >/tmp/ours.log 2>&1
    awk -F, -v c=$column -v s="$bytes" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == c) at = i }
        NR == 2 && at { if (s == 8) print $at; else printf "%.2f\n", s / $at / 1.048576 }' /tmp/ours.csv
}

# ucx_perftest and perftest count 2^20 bytes a second, as this does.
cell() { # PEER:QPS:BYTES:TURNS
    local turns a=() b=()
    IFS=: read -r peer qps bytes turns <<<"$1"
    for ((t = 0; t < turns; t++)); do
        b+=($(theirs))
        a+=($(ours))
    done
    [ ${#a[@]} -gt 0 ] || a=(0)
    if [ ${#b[@]} -eq 0 ]; then
        echo "$1: the peer does not run here: $(grep -hv '^$' /tmp/client.log /tmp/server.log | tail -n 2 | tr '\n' ' ')"
        b=(0)
    fi
    echo "$1 ${a[*]} / ${b[*]}" | awk -v p="$peer" -v q="$qps" -v s="$bytes" -v csv="$csv" -v ours="${a[*]}" -v theirs="${b[*]}" '
        function median(text,    v, n, i, j, t) {
            n = split(text, v, " ")
            for (i = 2; i <= n; i++) for (j = i; j > 1 && v[j] + 0 < v[j - 1] + 0; j--) { t = v[j]; v[j] = v[j - 1]; v[j - 1] = t }
            return v[int((n + 1) / 2)]
        }
        {
            o = median(ours); t = median(theirs)
            ratio = t > 0 ? sprintf("%.2f", o / t) : "none"
            figure = s == 8 ? "half_round_trip_us" : "bandwidth_mib_s"
            printf "%s: %s bytes, %s queue pairs: libpickle %.2f, %s %.2f, ratio %s\n", figure, s, q, o, p, t, ratio
            printf "%s,%s,%s,%s,%d,%.2f,%.2f,%s,%s,%s\n", figure, p, s, q, split(ours, x, " "), o, t, ratio, ours, theirs >>csv
        }'
}

for one; do
    [ $SECONDS -lt "$seconds" ] || break
    cell "$one"
done
