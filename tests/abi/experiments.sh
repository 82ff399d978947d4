#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The benchmarks as users get them: build and install bench/ against the installed library, run every experiment in its smallest form. Each
# table must be filled or say why not, on the host and, where it was built, on the software driver of CUDA. Wrong data must be noticed.
# usage: experiments.sh BUILD_DIR SOURCE_DIR PREFIX BENCH_DIR     BENCH_DIR: where bench/ is built; it stays
set -eu
build=$1
source=$2
prefix=$3
bench=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
export LC_ALL=C PK_TIMEOUT_MS=30000
if command -v ninja >/dev/null; then
    export CMAKE_GENERATOR=Ninja
fi

free_port() { sh "$source/tests/support/free_port.sh"; }

quietly() {
    "$@" >"$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
}

quietly cmake -S "$source/bench" -B "$bench" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O1 -DCMAKE_CXX_FLAGS_RELEASE=-O0 \
    -DCMAKE_PREFIX_PATH="$prefix" # nothing is measured here
quietly cmake --build "$bench"
quietly cmake --install "$bench" --prefix "$work/prefix"
export PATH="$work/prefix/bin:$PATH" # and nothing of the tree

quietly timeout 200 pickle-run-all --tiny --out "$work/results"
for number in 01 02 03 04 05 06 07 08 09 10 11; do
    ls "$work/results/$number"-*.json "$work/results/$number"-*.csv "$work/results/$number"-*.txt >"$work/log"
done
python3 - "$work"/results/*.json <<'PYTHON'
import json
import sys
filled = 0
for path in sys.argv[1:]:
    with open(path, encoding="utf-8") as file:
        table = json.load(file)
    assert table["rows"] and table["about"], path
    for row in table["rows"]:
        assert row["reason"] or None not in row.values(), (path, row)
        filled += not row["reason"]
assert filled > 40, filled
print("%d tables, %d rows with figures" % (len(sys.argv) - 1, filled))
PYTHON
if command -v gnuplot >/dev/null; then
    ls "$work"/results/03-host-sizes.svg "$work"/results/03-host-sizes.png "$work"/results/11-patterns.png >"$work/log"
    rm "$work"/results/*.svg # as from a machine without gnuplot
    quietly pickle-run-all --draw "$work/results"
    ls "$work"/results/03-host-sizes.svg "$work"/results/11-patterns.svg >"$work/log"
fi

# As on a machine with GPUs. NCCL does not run on the software driver.
driver=$build/fakecuda
if [ -e "$driver/libcuda.so.1" ]; then
    LD_LIBRARY_PATH=$driver FAKECUDA_DEVICES=4 PICKLE_BENCH_GPUS=4 PERF_NCCL_LIBRARY=/none timeout 200 pickle-run-all --tiny --only gpu --out "$work/gpu" \
        3 5 6 7 8 10 11 >"$work/log" 2>&1 ||
        { tail -n 60 "$work/log"; exit 1; }
    LD_LIBRARY_PATH=$driver PICKLE_BENCH_GPUS=2 PERF_NCCL_LIBRARY=/none timeout 60 pickle-run-all --tiny --only gpu --out "$work/gpu" 2 9 >"$work/log" 2>&1 ||
        { tail -n 60 "$work/log"; exit 1; }
    for table in 02-tcp-gpu-sizes 09-tcp-unpack 03-nvlink-sizes 05-beside-messages-gpu 06-beside-allgather-gpu 06-beside-allreduce-gpu 07-copies-cuda 08-peer-to-peer 10-allreduce-jobs-gpu 11-patterns-gpu; do
        grep -q '^[^#].*[0-9]' "$work/gpu/$table.txt" || { cat "$work/gpu/$table.txt"; exit 1; }
        ! grep -q 'no GPU' "$work/gpu/$table.txt" || { cat "$work/gpu/$table.txt"; exit 1; }
    done
    root=127.0.0.1:$(free_port)
    for rank in 1 0; do
        LD_LIBRARY_PATH=$driver FAKECUDA_DEVICES=2 PK_RANK=$rank PK_SIZE=2 PK_ROOT=$root timeout 60 pickle-perf-overlap \
            --kernels --compute burn --cases sendrecv:64K,allgather:64K,allreduce:64K --interval 5 --warm 1 --turns 1 >"$work/beside.$rank" 2>&1 &
    done
    wait || true
    [ "$(grep -c '^ *burn .* yes ' "$work/beside.0")" -eq 3 ] || { cat "$work"/beside.*; exit 1; }
    grep -q '^pickle-perf-overlap: [0-9]* s: burn beside allgather of 65536 bytes by libpickle$' "$work/beside.0" || { cat "$work/beside.0"; exit 1; }
    # Waits that would not end are ended, with rank, phase and seconds; so is that for a rank that does not come.
    root=127.0.0.1:$(free_port)
    for rank in 1 0; do
        LD_LIBRARY_PATH=$driver FAKECUDA_DEVICES=2 PK_RANK=$rank PK_SIZE=2 PK_ROOT=$root timeout 40 pickle-perf-overlap \
            --compute burn --stall --limit 3 >"$work/beside.$rank" 2>&1 &
    done
    wait || true
    cat "$work/beside.0" "$work/beside.1" >"$work/log"
    grep -q '^pickle-perf-overlap: rank [01]: burn: its libraries and its first launch: not done after 3 s' "$work/log" || { cat "$work/log"; exit 1; }
    status=0
    LD_LIBRARY_PATH=$driver FAKECUDA_DEVICES=2 PK_RANK=0 PK_SIZE=2 PK_ROOT=127.0.0.1:$(free_port) timeout 40 pickle-perf-overlap --limit 2 \
        >"$work/log" 2>&1 || status=$?
    { [ $status -eq 1 ] && grep -q '^pickle-perf-overlap: .*rank 1 of 2 did not come\|^pickle-perf-overlap: a rank .*pk_comm_init: not done after 2 s' "$work/log"; } ||
        { cat "$work/log"; exit 1; }
    echo "the same on the software driver"
fi

# What must fail does.
spoilt() {
    root=127.0.0.1:$(free_port)
    status=0
    PK_RANK=1 PK_SIZE=2 PK_ROOT=$root pickle-perf jobs "$@" --spoil >/dev/null 2>&1 &
    PK_RANK=0 PK_SIZE=2 PK_ROOT=$root pickle-perf jobs "$@" --spoil >"$work/log" 2>&1 || status=$?
    wait $! || true
    [ $status -eq 1 ] || { cat "$work/log"; echo "pickle-perf-jobs $1: a wrong result went unnoticed (code $status)"; exit 1; }
}
for mode in data sharded tensor sequence pipeline expert; do
    spoilt "$mode" --hidden 16 --tokens 16 --steps 1 --warmup 0
done
spoilt allreduce --numel 100 --jobs 1 --warmup 0
spoilt copies --begin 4K --end 4K --jobs 1
spoilt beside --begin 4K --end 4K --jobs 1
cp -r "$work/prefix" "$work/broken"
printf '#!/bin/sh\necho it broke >&2\nexit 1\n' >"$work/broken/bin/pickle-perf-jobs"
status=0
timeout 60 "$work/broken/bin/pickle-run-all" --tiny --out "$work/broken/results" 7 >"$work/log" 2>&1 || status=$?
{ [ $status -eq 1 ] && grep -q '^FAILED: pickle-perf-jobs copies: it broke' "$work/log"; } || { cat "$work/log"; echo "a program's failure went unnoticed"; exit 1; }
PYTHONPATH=$work/prefix/share/pickle/experiments python3 -c '
from results import Table
table = Table("t", "t", [("a", "a")])
assert table.faults()
table.add()
assert table.faults()
table.rows[0]["reason"] = "because"
assert not table.faults()'
echo "wrong results, failing programs and empty cells are noticed"
