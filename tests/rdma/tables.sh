#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tables and pictures of point-to-point bandwidth over RDMA by queue pairs and by size, libpickle beside perftest, on the emulated machine,
# and of half round trips of 8 bytes. Each turn of the one follows a turn of the other, so that what else the machine does meets both.
# usage: tables.sh FOLDER-WITH-PICKLE-PERF FOLDER-OF-LIBPICKLE FOLDER-FOR-RESULTS [TURNS]
# Each session of the machine is begun with the command in QUIET, if there is one, and lasts LIMIT seconds at most (default 240).
set -u
here=$(cd "$(dirname "$0")" && pwd)
perf=$1 library=$2 out=$3 turns=${4:-3}
mkdir -p "$out"
: >"$out/ratio.csv"

session() { # TURNS LATENCY-TURNS QPS SIZES
    VM_OUT=$out ${QUIET:-} bash "$here/vm.sh" --timeout "${LIMIT:-240}" bash "$here/ratio.sh" "$perf" "$library" "$@"
    case $? in
    77) exit 77 ;;
    0) ;;
    *) echo "tables.sh: a session did not come to its end" >&2 ;;
    esac
}

session "$turns" "$turns" "1 2" 1048576
session "$turns" 0 "4 8" 1048576
session "$turns" 0 2 "65536 262144 4194304 16777216"

picture() { # NAME TITLE XLABEL COLUMN FILTER [GNUPLOT]
    grep '^bandwidth' "$out/ratio.csv" | awk -F, "$5" | sort -u -t, -k"$4,$4"n >"$out/$1.csv"
    [ -s "$out/$1.csv" ] || return
    gnuplot <<PLOT
set terminal svg size 720,420 background "white"
set output "$out/$1.svg"
set datafile separator ","
set title "$2"
set xlabel "$3"
set ylabel "MiB/s"
set yrange [0:*]
set grid
set key bottom right
${6:-}
plot "$out/$1.csv" using $4:4 with linespoints lw 2 title "libpickle", "" using $4:5 with linespoints lw 2 title "ib\\_write\\_bw"
PLOT
}

hash gnuplot 2>/dev/null || exit 0
picture rdma-by-qps "Bandwidth of 1 MiB transfers (Soft-RoCE, emulated machine)" "queue pairs" 3 '$2 == 1048576'
picture rdma-by-size "Bandwidth on 2 queue pairs (Soft-RoCE, emulated machine)" "bytes of a transfer" 2 '$3 == 2' 'set logscale x 2'
cat "$out/ratio.csv"
