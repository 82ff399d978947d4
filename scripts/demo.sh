#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian machine to measured, checked numbers: install what is missing, build, install into ./_prefix, build the benchmark
# against what was installed, run it on 2 and 4 ranks on host memory, beside Open MPI and Gloo, and on GPUs where there are two or more.
# Tables go to the terminal and demo-out/, the pictures to demo-out/bandwidth.png and compare.png (and .svg).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

out=$PWD/demo-out
prefix=$PWD/_prefix
perf=$PWD/build/bench-demo/pickle-perf
compare=$PWD/build/bench-demo/compare/pickle-compare
tables=0
rows=0

quietly() { # say what went wrong, else nothing
    "$@" >"$out/log" 2>&1 || {
        tail -n 40 "$out/log"
        exit 1
    }
}

# column CSV NAME: number of the column with this heading.
column() { head -n 1 "$1" | tr -d '\r' | tr ',' '\n' | grep -nx "$2" | cut -d : -f 1; }

# measure KIND RANKS LARGEST OPERATION: one table. A row that was not checked or had a wrong element ends the demo.
measure() {
    local kind=$1 ranks=$2 largest=$3 op=$4 name=$4-$1-$2 wrong
    say "$op, $ranks ranks, $kind memory"
    LAUNCH_TIMEOUT=900 launch "$ranks" "$perf" "$op" -b 16 -e "$largest" -f 4 -n 20 -w 3 -c 1 -d "$kind" \
        --csv "$out/$name.csv" --json "$out/$name.json" | tee "$out/$name.txt"
    wrong=$(column "$out/$name.csv" wrong)
    awk -F, -v column="$wrong" 'NR > 1 && $column != "0" { bad = 1 } END { exit bad || NR < 2 }' "$out/$name.csv" || {
        echo "$name: wrong or unchecked data"
        exit 1
    }
    tables=$((tables + 1))
    rows=$((rows + $(wc -l <"$out/$name.csv") - 1))
}

picture() {
    local file title plots=""
    for file in "$out"/*-[0-9].csv; do
        title=$(basename "$file" .csv | sed 's/\(.*\)-\(.*\)-\(.*\)/\1, \2, \3 ranks/; s/_/ /g')
        plots+="${plots:+, }'$file' using $(column "$file" bytes):$(column "$file" busbw_gbps) with linespoints title '$title'"
    done
    for terminal in "pngcairo size 1200,800|png" "svg size 1200,800|svg"; do
        gnuplot <<GNUPLOT || return 1
set datafile separator ','
set key autotitle columnhead outside right top vertical
set terminal ${terminal%|*}
set output '$out/bandwidth.${terminal#*|}'
set title 'libpickle: bus bandwidth'
set xlabel 'bytes'
set ylabel 'GB/s'
set logscale x 2
set logscale y
set xtics rotate by -30 ()
do for [i=0:20] { set xtics add (sprintf("%d %s", 2**(2*i%10), word("B KiB MiB GiB TiB", 1+2*i/10)) 4.0**i) }
set grid
plot $plots
GNUPLOT
    done
}

rm -rf "$out"
mkdir -p "$out"
bash scripts/setup.sh need demo

say "build and install into $prefix"
quietly cmake --preset release -DCMAKE_INSTALL_PREFIX="$prefix"
grep '^-- pickle' "$out/log"
quietly cmake --build --preset release
quietly cmake --install build/release
quietly cmake -S bench -B build/bench-demo -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix"
quietly cmake --build build/bench-demo
rm -f "$out/log"

say "pickle-info"
build/bench-demo/pickle-info | tee "$out/info.txt"

for op in sendrecv broadcast reduce allreduce reduce_scatter allgather alltoall; do
    measure host 2 16M "$op"
done
for op in allreduce allgather; do
    measure host 4 16M "$op"
done

say "the same work through libpickle, Open MPI and Gloo, turn by turn"
timeout 900 "$compare" -b 8 -e 4M -f 8 -k 3 -t 5 --csv "$out/compare.csv" --json "$out/compare.json" | tee "$out/compare.txt"

gpus=$(gpus)
if [ "$gpus" -ge 2 ]; then
    for op in sendrecv broadcast allreduce allgather alltoall; do
        measure cuda 2 1G "$op"
        [ "$gpus" -lt 4 ] || measure cuda 4 1G "$op"
    done
else
    say "no two GPUs here: device memory was not measured"
fi

if have gnuplot && picture && sh bench/compare/pickle-compare-chart "$out/compare.csv" "$out/compare" >/dev/null; then
    shown="the pictures are $out/bandwidth.png and $out/compare.png (and .svg)"
else
    shown="no picture was drawn (gnuplot)"
fi
say "tables and CSV are in $out"
echo "$rows rows in $tables tables were measured on 2 and 4 ranks, every result checked and right; $shown."
