#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tables and pictures of point-to-point transfers over RDMA on the emulated machine, libpickle beside perftest and UCX: bandwidth by queue
# pairs and by size, half round trips of 8 bytes. Each turn of the one follows a turn of the other, so that what else the machine does
# meets both.
# usage: tables.sh FOLDER-WITH-PICKLE-PERF FOLDER-OF-LIBPICKLE FOLDER-FOR-RESULTS [TURNS]
# The machine is booted as often as is needed, LIMIT seconds (default 85) at most each time, by the command in QUIET if there is one. What is in
# FOLDER-FOR-RESULTS/ratio.csv is not measured again: whoever is interrupted goes on where he was. Exit code 1: some of it is missing.
set -u
here=$(cd "$(dirname "$0")" && pwd)
perf=$1 library=$2 out=$3 turns=${4:-5} limit=${LIMIT:-85}
mkdir -p "$out"
touch "$out/ratio.csv"

cells=(write:2:8 ucx:2:8 ucx:1:1048576)
for bytes in 65536 1048576 4096 16384 262144 4194304 16777216; do
    cells+=("write:4:$bytes")
done
for bytes in 65536 1048576 16777216; do
    cells+=("write:2:$bytes" "write:1:$bytes" "write:3:$bytes")
done
cells+=(ucx:1:65536 ucx:1:4194304 send:2:8) # uct puts at most 8 MiB; 3 turns of 32 MiB do not fit in a boot

missing() { # those that are not in the table, in order
    local cell peer qps bytes
    for cell in "${cells[@]}"; do
        IFS=: read -r peer qps bytes <<<"$cell"
        grep -q "^[a-z_]*,$peer,$bytes,$qps," "$out/ratio.csv" || echo "$cell:$turns"
    done
}

while todo=$(missing) && [ -n "$todo" ]; do
    before=$(wc -l <"$out/ratio.csv")
    VM_OUT=$out ${QUIET:-} bash "$here/vm.sh" --timeout "$limit" bash "$here/ratio.sh" "$perf" "$library" $((limit * 2 / 3)) $todo
    [ $? -eq 77 ] && exit 77
    [ "$(wc -l <"$out/ratio.csv")" -gt "$before" ] || break
    [ -z "${ONCE:-}" ] || break
done

picture() { # NAME TITLE XLABEL COLUMN FILTER [GNUPLOT]
    awk -F, "\$1 == \"bandwidth_mib_s\" && \$2 == \"write\" && $5" "$out/ratio.csv" | sort -t, -k"$4,$4"n >"$out/$1.csv"
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
set key bottom right noenhanced
${6:-}
plot "$out/$1.csv" using $4:6 with linespoints lw 2 title "libpickle", "" using $4:7 with linespoints lw 2 title "ib_write_bw"
PLOT
}

if hash gnuplot 2>/dev/null; then
    picture rdma-by-qps "Bandwidth of 1 MiB transfers (Soft-RoCE, emulated machine)" "queue pairs" 4 '$3 == 1048576' 'set xtics 1'
    picture rdma-by-size "Bandwidth on 4 queue pairs (Soft-RoCE, emulated machine)" "bytes of a transfer" 3 '$4 == 4' "set logscale x 2
set xrange [3600:19000000]
set xtics (\"4 KiB\" 4096, \"16 KiB\" 16384, \"64 KiB\" 65536, \"256 KiB\" 262144, \"1 MiB\" 1048576, \"4 MiB\" 4194304, \"16 MiB\" 16777216)"
fi
sort -t, -k1,1r -k2,2r -k4,4n -k3,3n "$out/ratio.csv" | awk -F, '
    BEGIN { printf "%-19s %-5s %9s %4s %10s %10s %14s\n", "figure", "peer", "bytes", "QPs", "libpickle", "peer", "libpickle/peer" }
    { printf "%-19s %-5s %9d %4d %10s %10s %14s\n", $1, $2, $3, $4, $6, $7, $8 }'
[ -z "$(missing)" ]
