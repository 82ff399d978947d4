#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What only a machine with GPUs can show: builds, installs into a prefix of its own, runs every test that needs a real GPU and
# measures beside NCCL. One line a step; everything they printed is in the output folder. Exit 1 when a step failed, 77 without a GPU.
# usage: scripts/gpu.sh [-o FOLDER] [tests] [programs] [figures] [against] [experiments] [frameworks] [demo]
#     default: tests figures, build/gpu-out
# against: turn by turn beside another build of the library, whose libpickle.so is in the folder AGAINST; AGAINST_SECONDS bounds it
# frameworks: training and inference by torch, over NCCL and libpickle turn by turn (bench/frameworks)
# programs: programs of NCCL, unchanged, over libnccl.so.2 of this tree; NCCL_TESTS names a folder with nccl-tests' *_perf
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/common.sh

out=$PWD/build/gpu-out
if [ "${1:-}" = -o ]; then
    out=${2:?-o wants a folder}
    shift 2
fi
wanted=" ${*:-tests figures} "
build=$PWD/build/gpu
prefix=$PWD/build/gpu-prefix
perf=$PWD/build/gpu-bench/pickle-perf
# NCCL over NVLink multicast is left out: shared machines do not offer it, and the library does not use it either.
export NCCL_NVLS_ENABLE=0

# step NAME SECONDS COMMAND...: what it prints goes to the file NAME; 77 is a skip.
step() {
    local name=$1 seconds=$2 status=0 began=$SECONDS word=ok
    shift 2
    echo "\$ $*" >"$out/$name"
    timeout -k 10 "$seconds" "$@" >>"$out/$name" 2>&1 </dev/null || status=$?
    case $status in
    0) ;;
    77) word=skipped ;;
    124 | 137) word="FAILED, not done in $seconds s" ;;
    *) word="FAILED, exit $status" ;;
    esac
    printf '%-32s %4d s  %s\n' "$name" $((SECONDS - began)) "$word"
    if [ "${word:0:6}" = FAILED ]; then
        echo "$name" >>"$out/failed"
        tail -n 15 "$out/$name" | sed 's/^/    /'
        return 1
    fi
}

# beside NAME SECONDS COMMAND...: a step, GPU_JOBS (4) at a time; `wait` for the last ones.
beside() {
    while [ "$(jobs -rp | wc -l)" -ge "${GPU_JOBS:-4}" ]; do
        wait -n
    done
    step "$@" &
}

build_all() {
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_INSTALL_PREFIX="$prefix" &&
        cmake --build "$build" && cmake --install "$build" &&
        cmake -S bench -B build/gpu-bench -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" &&
        cmake --build build/gpu-bench
}

# on RANKS COMMAND...: through step's timeout, so a program, not a function.
on() {
    local ranks=$1
    shift
    mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$@"
}
export -f on

tests() {
    local source name library sanitizer ranks longest alone="gpu.first_use gpu.graphs_many"
    # They read what others change: the time of the driver's calls, the free memory of the GPU.
    for name in $alone; do
        step "$name" 120 "$build/tests/$name"
    done
    beside gpu.signals_driver 240 "$build/tests/gpu.signals_driver"
    for source in tests/gpu/*.c; do
        name=gpu.$(basename "$source" .c)
        [[ " $alone gpu.gpu_sizes gpu.signals_driver " == *" $name "* ]] || beside "$name" 120 "$build/tests/$name"
    done
    beside gpu.switchml 200 python3 tests/switchml/drive.py "$build/tests" "$build/tools/pickle-aggregator/pickle-aggregator" . gpu
    for name in one_thread collectives lifecycle errors graphs graph_rows; do
        beside "nccl.$name" 120 "$build/tests/nccl.$name"
    done
    beside nccl.late 120 "$build/tests/nccl.late" 100
    for ranks in 2 4; do
        # More ranks than GPUs share them: the same paths, not the same machine, and no room for 1 GiB a rank and block.
        longest=$((ranks > count ? 64 << 20 : 1 << 30))
        beside "gpu.gpu_sizes-$ranks" 240 "$build/tests/gpu.gpu_sizes" $longest "$ranks"
        beside "conform-$ranks" 120 "$build/tests/pickle-conform" --threads --ranks "$ranks" --memory cuda --cases 120 --max-bytes 1048576
        # A fresh process whose first operations are long.
        beside "conform-fresh-$ranks" 60 "$build/tests/pickle-conform" --threads --ranks "$ranks" --memory cuda --cases 120 --max-bytes 1048576 \
            --no-errors --filter "many f32 count 262144 in place" --watchdog 20
        beside "conform-processes-$ranks" 120 bash -c 'on "$@"' on "$ranks" \
            "$build/tests/pickle-conform" --env --memory cuda --cases 60 --max-bytes 1048576
    done
    sanitizer=$(command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null)
    if [ -n "$sanitizer" ] && [ "$count" -ge 2 ]; then
        beside sanitizer 120 "$sanitizer" --tool memcheck --error-exitcode 1 "$build/tests/pickle-conform" --threads --ranks 2 --memory cuda \
            --cases 30 --max-bytes 65536 --no-errors
    else
        echo "sanitizer: not run, no compute-sanitizer or not two GPUs here"
    fi
    wait
    library=$(find "$prefix" -name libpickle.so | head -n 1)
    if [ "$count" -ge 2 ] && python3 -c 'import torch' 2>/dev/null; then
        step torch 200 python3 tests/torch/torch_ctypes.py "$library"
    else
        echo "torch: not run, no torch or not two GPUs here"
    fi
}

module() { python3 -c "import $1" 2>/dev/null; }

programs() {
    local nccl=$prefix/bin/pickle-nccl library script port
    [ "$count" -ge 2 ] || { echo "programs: not run, two GPUs are needed"; return; }
    library=$(find "$prefix" -name libpickle.so | head -n 1)
    export PICKLE_NCCL=$nccl
    if module torch; then
        step torch-programs 500 "$nccl" -- python3 tests/torch/nccl_programs.py --expect pickle --jobs 8 --out "$out/torch-programs.d"
        step torch-beside-nccl 120 python3 tests/torch/nccl_programs.py --only both,maps --expect nccl --pickle "$library" \
            --out "$out/torch-beside-nccl.d"
        step vllm-calls 120 "$nccl" -- python3 tests/torch/vllm_calls.py "$("$nccl" --library)"
        step torch-shipped 580 bash tests/torch/shipped.sh -t 540 "$out/torch-shipped.d"
        step torch-faults-nccl 300 env PYTHONPATH="$build/python" "$nccl" -- python3 python/tests/torch_faults.py --nccl
        step torch-faults 300 env PYTHONPATH="$build/python" python3 python/tests/torch_faults.py --cuda
        step torch-faults-host 300 env PYTHONPATH="$build/python" python3 python/tests/torch_faults.py
        step torch-operations 200 env PYTHONPATH="$build/python:python/tests" python3 python/tests/torch_operations.py --cuda
    else
        echo "programs: no torch here"
    fi
    step others 300 "$nccl" -- python3 tests/torch/others.py --expect pickle --out "$out/others.d"
    if [ -n "${NCCL_TESTS:-}" ]; then
        step nccl-tests 500 "$nccl" -- bash tests/torch/nccl_tests.sh "$NCCL_TESTS" "$out/nccl-tests.d"
    else
        echo "nccl-tests: not run, NCCL_TESTS names no folder"
    fi
    for script in test_script test_ops test_sync test_distributed_data_loop test_ddp_comm_hook; do
        module accelerate || { echo "accelerate: not run, it is not here"; break; }
        [ $script != test_distributed_data_loop ] || module torchdata || { echo "accelerate-$script: not run, it needs torchdata"; continue; }
        port=$(sh tests/support/free_port.sh)
        step "accelerate-$script" 180 "$nccl" -- python3 -m accelerate.commands.launch --multi_gpu --num_processes 2 \
            --num_machines 1 --mixed_precision no --dynamo_backend no --main_process_port "$port" \
            -m "accelerate.test_utils.scripts.$script"
    done
}

figure() { # NAME RANKS pickle-perf's arguments...
    local name=$1 ranks=$2
    shift 2
    [ "$ranks" -gt "$count" ] && return
    step "$name-$ranks" 60 bash -c 'on "$@"' on "$ranks" "$perf" "$@" --csv "$out/$name-$ranks.csv"
}

figures() {
    figure pingpong 2 sendrecv -d cuda -p pingpong -b 8 -e 1M -f 8 --nccl
    figure pingpong-zero 2 sendrecv -d cuda -p pingpong -z -b 8 -e 1M -f 8 --nccl
    figure oneway-zero 2 sendrecv -d cuda -p oneway -z -b 1M -e 1G -f 4 -n 10 --bare --nccl
    for ranks in 2 4; do
        figure allgather-zero "$ranks" allgather -d cuda -z -i -b 4K -e 1G -f 16 -n 10 --nccl
        figure allreduce "$ranks" allreduce -d cuda -b 4K -e 1G -f 8 -n 10 --nccl
    done
    [ "$count" -lt 2 ] || ! module nvidia.nccl || step shrink 200 python3 bench/frameworks/shrink.py \
        "$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0])')/lib/libnccl.so.2" "$("$prefix/bin/pickle-nccl" --library)"
    [ "$count" -lt 2 ] || step beside 120 bash -c 'on "$@"' on 2 build/gpu-bench/overlap/pickle-perf-overlap --turns 1 --nccl --bare --csv "$out/beside.csv"
}

against() {
    [ "$count" -ge 2 ] && [ -n "${AGAINST:-}" ] || { echo "against: not run, AGAINST names no folder or two GPUs are not here"; return; }
    step against $((${AGAINST_SECONDS:-400} + 120)) bench/against --parts 2-gpus --seconds "${AGAINST_SECONDS:-400}" \
        build/gpu-bench "$AGAINST" "$out/against.d"
}

experiments() {
    step examples 120 bash -c 'cmake -S examples -B build/gpu-examples -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$1" &&
        cmake --build build/gpu-examples' - "$prefix"
    step experiments 300 bench/run_all --quick --only gpu --seconds 250 --bin build/gpu-bench --bin build/gpu-examples --out "$out/experiments"
}

# FRAMEWORKS_MINUTES bounds the measuring.
frameworks() {
    if [ "$count" -lt 2 ] || ! module torch; then
        echo "frameworks: not run, torch and two GPUs are needed"
        return
    fi
    step frameworks $((60 * ${FRAMEWORKS_MINUTES:-7} + 60)) python3 bench/frameworks/run.py --minutes "${FRAMEWORKS_MINUTES:-7}" \
        --pickle-nccl "$prefix/bin/pickle-nccl" --sim "$build/tools/pickle-sim/pickle-sim" --out "$out/frameworks.d"
}

count=$(gpus)
[ "$count" -ge 1 ] || { echo "no GPU here"; exit 77; }
mkdir -p "$out"
: >"$out/failed"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1
step build 300 bash -c "$(declare -f build_all); build=$build prefix=$prefix; build_all" || exit 1
[[ $wanted != *" tests "* ]] || tests
[[ $wanted != *" programs "* ]] || programs
[[ $wanted != *" figures "* ]] || figures
[[ $wanted != *" against "* ]] || against
[[ $wanted != *" experiments "* ]] || experiments
[[ $wanted != *" frameworks "* ]] || frameworks
[[ $wanted != *" demo "* ]] || step demo 240 bash scripts/demo.sh
failed=$(wc -l <"$out/failed")
echo "$failed steps failed; what they printed is in $out"
[ "$failed" -eq 0 ]
