#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Build and test everything: gcc, clang, address + undefined-behaviour and thread sanitizers, libFuzzer, a build for aarch64 under an
# emulator, without CUDA, PMIx and RDMA, consumers of the installed package. The last line is "N passed, N failed, N skipped"; exit 1 when
# anything failed.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/common.sh

passed=0 failed=0 skipped=0 failures=()
results=$(mktemp -d)
background=() # the processes that run the tests of dev and of the virtual machine
trap 'kill "${background[@]}" 2>/dev/null; rm -rf "$results"' EXIT

# With the processor time of all that has ended.
say() {
    times >"$results/times"
    printf '\n== %s (after %d s, %d of processor time)\n' "$*" "$SECONDS" \
        "$(sed -n '2s/[ms]/ /gp' "$results/times" | awk '{ print 60 * ($1 + $3) + $2 + $4 }' | cut -d . -f 1)"
}

# outcome NAME STATUS: a step is one test of its own; 77: it could not be run here.
outcome() {
    if [ "$2" -eq 0 ]; then
        passed=$((passed + 1))
    elif [ "$2" -eq 77 ]; then
        skipped=$((skipped + 1))
    else
        echo "FAILED: $1 (exit $2)"
        failed=$((failed + 1))
        failures+=("$1")
    fi
    [ "$2" -eq 0 ]
}

# step NAME SECONDS COMMAND...
step() {
    local name=$1 seconds=$2 status=0
    shift 2
    say "$name"
    "${low[@]}" timeout -k 10 "$seconds" "$@" </dev/null || status=$?
    outcome "$name" "$status"
}

# aside NAME SECONDS COMMAND...: a step that gives way to all others, in the background.
aside() {
    local status=0
    nice -n 19 timeout -k 10 "$2" "${@:3}" </dev/null >"$results/$1.log" 2>&1 || status=$?
    echo $status >"$results/$1.status"
}

# wait_for NAME: until its status is known, or nothing runs that could tell.
wait_for() {
    while [ ! -s "$results/$1.status" ] && [ -n "$(jobs -r)" ]; do
        sleep 1
    done
}

status_of() { cat "$results/$1.status" 2>/dev/null || echo 1; }

# number NAME FILE: an attribute of ctest's summary.
number() { tr '\n\t' '  ' <"$2" 2>/dev/null | grep -o '<testsuite [^>]*>' | sed -n "s/.* $1=\"\([0-9]*\)\".*/\1/p"; }

# ctest_of NAME PRESET OPTIONS...: runs tests, most of which wait; what is to be known of them lies in $results/NAME.*. Those that keep a core busy
# count as two.
ctest_of() {
    local status=0
    "${low[@]}" "${wrapper[@]}" timeout -k 10 3000 ctest --preset "$2" -j "$((3 * $(nproc)))" --timeout 300 \
        --output-junit "$results/$1.xml" "${@:3}" </dev/null >"$results/$1.log" 2>&1 || status=$?
    echo $status >"$results/$1.status"
}

# count NAME XML STATUS: every test of it counts.
count() {
    local total bad skip
    total=$(number tests "$2") bad=$(number failures "$2") skip=$(number skipped "$2")
    total=${total:-0} bad=${bad:-0} skip=${skip:-0}
    # A run that ended badly without naming a test, or that ran none, is a failure too.
    if [ "$total" -eq 0 ] || { [ "$3" -ne 0 ] && [ "$bad" -eq 0 ]; }; then
        bad=$((bad + 1)) total=$((total + 1))
    fi
    passed=$((passed + total - bad - skip)) failed=$((failed + bad)) skipped=$((skipped + skip))
    [ "$bad" -eq 0 ] || failures+=("$1: $bad of ctest")
}

# The tests of dev and those in the virtual machine wait more than they compute: builds, and tests that take any pace, run beside them and
# give way (low).
begin_dev() {
    ctest_of machine dev -L rdma &
    background+=($!)
    ctest_of dev dev -LE rdma &
    background+=($!)
    low=(nice -n 19)
}

# end NAME: waits for its tests and counts them; those that never began, for their build failed, as one more that failed.
end() {
    say "$1: waiting for its tests"
    wait_for "$1"
    say "$1: ctest"
    cat "$results/$1.log"
    count "$1" "$results/$1.xml" "$(status_of "$1")"
}

# build PRESET TARGETS...: what its tests need; all without targets.
build() {
    local preset=$1
    shift
    step "$preset: configure" 600 cmake --preset "$preset" "${settings[@]}" >"$results/log" 2>&1 || { cat "$results/log"; return 1; }
    grep -E '^-- pickle|SKIPPED|Warning' "$results/log"
    step "$preset: build" 1800 cmake --build --preset "$preset" ${1:+--target "$@"}
}

# build_again PRESET: the programs that `others` runs; of all other files the compiler says what it thinks of them.
build_again() {
    build "$1" again || return
    step "$1: all other files" 1800 python3 scripts/syntax.py "build/$1"
}

check_bench() {
    local op
    step "bench: pickle-info" 120 "$bench"/pickle-info
    step "bench: manual pages" 120 python3 tests/abi/manpages.py --programs "$bench"/man pickle-info pickle-perf pickle-compare \
        pickle-perf-jobs pickle-run-all
    for op in sendrecv barrier broadcast reduce allreduce reduce_scatter allgather alltoall gather scatter \
        allgatherv alltoallv gatherv scatterv; do
        step "bench: pickle-perf $op on 2 ranks, checked" 120 sh tests/support/processes.sh env 2 \
            "$bench"/pickle-perf "$op" -b 8 -e 1M -f 16 -n 5 -w 1 -c 1
    done
    step "bench: averages of bf16 in place in a stream on 3 ranks" 120 sh tests/support/processes.sh env 3 \
        "$bench"/pickle-perf allreduce -e 256K -f 32 -n 5 -w 1 -o avg -t bf16 -i -s stream
    step "bench: roots in turn, 8-bit floats, registered memory on 3 ranks" 120 sh tests/support/processes.sh env 3 \
        "$bench"/pickle-perf reduce -e 256K -f 32 -n 5 -w 1 -r -1 -o max -t f8e4m3 -m registered
    # A driver in software; what a library built without CUDA cannot use.
    if [ -f build/dev/lib/kernels.fatbin ]; then
        for op in sendrecv broadcast allreduce alltoall; do
            step "bench: pickle-perf $op on 2 ranks of a software GPU, checked" 120 env LD_LIBRARY_PATH="$PWD/build/dev/fakecuda" \
                sh tests/support/processes.sh env 2 "$bench"/pickle-perf "$op" -d cuda -e 256K -f 32 -n 3 -w 1
        done
    fi
    step "bench: pickle-compare on 2 ranks, checked" 120 "$bench"/compare/pickle-compare -e 64K -f 64 -k 1 -t 2 \
        --csv "$bench"/compare.csv --json "$bench"/compare.json
    step "bench: pickle-compare, the copies alone, checked" 120 "$bench"/compare/pickle-compare -r 3 -e 256K -f 64 -k 1 -t 2 \
        -o pingpong,allreduce,allgather,alltoall,reduce_scatter,broadcast,reduce,barrier,wake -w pickle,bare-cma,bare-copy --csv "$bench"/bare.csv
    step "bench: pickle-compare-summary" 120 python3 bench/compare/pickle-compare-summary "$bench"/compare.csv "$bench"/bare.csv
    if have gnuplot; then
        step "bench: pickle-compare-chart" 120 sh bench/compare/pickle-compare-chart "$bench"/compare.csv "$bench"/compare
    fi
}

check_examples() {
    local name examples overlap
    examples=(hello ring data_parallel experts ring_attention)
    [ ! -x build/examples/user ] || examples+=(user)
    for name in "${examples[@]}"; do
        step "examples: $name on 3 ranks" 120 sh tests/support/processes.sh env 3 "build/examples/$name"
    done
    step "examples: errors" 120 build/examples/errors
    step "examples: survive on 4 ranks, one of which is killed, and one joins" 120 bash -c 'killed=0 ranks=()
        port=$(sh tests/support/free_port.sh) dir=$(mktemp -d)
        mkfifo "$dir/id"
        for r in 0 1 2 3; do PK_RANK=$r PK_SIZE=4 PK_ROOT=127.0.0.1:$port build/examples/survive "$dir/id" & ranks+=($!); done
        build/examples/survive "$dir/id" join & ranks+=($!)
        for rank in "${ranks[@]}"; do wait "$rank" || killed=$((killed + 1)); done
        rm -r "$dir"
        [ "$killed" = 1 ]'
    overlap=(sh tests/support/processes.sh env 2 build/examples/attention_overlap/attention_overlap --layers 3 --keys 200 --queries 9 --rounds 2)
    step "examples: attention_overlap on 2 ranks, checked" 120 "${overlap[@]}"
    step "examples: attention_overlap notices a wrong element" 120 bash -c '! "$@" --spoil' - "${overlap[@]}"
}

# others CPU PRESET...: the tests of those of them that were built, on one processor: there ranks give way to the ranks that they wait for.
others() {
    local preset wrapper=() low=(nice -n 5) # deadlines are met anyway
    have taskset && wrapper=(taskset -c "$1")
    for preset in "${@:2}"; do
        [[ " ${built[*]} " == *" $preset "* ]] || continue
        case $preset in
        clang) ctest_of clang clang -R '^(unit|plan.shape|conform|symbols|vectors|headers_alone)' ;;
        tsan) # needs its shadow where address randomisation may put libraries
            ! have setarch || wrapper+=(setarch "$(uname -m)" -R)
            ctest_of tsan tsan -R '^conform'
            ;;
        fuzz | asan) ctest_of "$preset" "$preset" -R '^(conform|fuzz)' ;;
        no-cuda) ctest_of no-cuda no-cuda -R '^(plan.shape|conform|symbols|rdma.not_built)' ;;
        esac
    done
}

# Two at a time, on the first and on the last processor that may be used, beside what is still to be built.
begin_others() {
    local cpu
    for ((cpu = 0; cpu < $(getconf _NPROCESSORS_CONF); cpu++)); do
        ! taskset -c "$cpu" true 2>/dev/null || cpus+=("$cpu")
    done
    others "${cpus[0]:-0}" clang &
    background+=($!)
    others "${cpus[-1]:-0}" fuzz asan tsan &
    background+=($!)
}

wrapper=() low=() settings=() cpus=()
own=$PWD/build/dev/prefix prefix=$PWD/build/dev/tests/prefix bench=$PWD/build/dev/tests/bench
step "setup" 2400 bash scripts/setup.sh need test || { echo "$passed passed, $failed failed"; exit 1; }

# It needs nothing of the other builds: it takes what the first of them leaves of the processors, which for a long time is busy with the kernels.
aside aarch64 3000 bash scripts/aarch64.sh &
background+=($!)

built=() # what there is to run
no_debugger=(-DPICKLE_TEST_OPTIONS=-g0 "-DPICKLE_TEST_LINK_OPTIONS=-Wl,-S") # 200 programs are linked in a third of the time
settings=("${no_debugger[@]}" "-DPICKLE_GPU_ARCHITECTURES=80;90") # what is newer has sm_90's code
build dev && begin_dev
settings=()

# The kernels are the same whatever the C compiler: the other builds take them from the first.
[ -f build/dev/lib/kernels.fatbin ] && settings=("-DPICKLE_FATBIN=$PWD/build/dev/lib/kernels.fatbin")

if have clang; then
    plain=("${settings[@]}")
    settings+=("${no_debugger[@]}")
    build_again clang && built+=(clang)
    settings=("${plain[@]}")
    build tsan conformance && built+=(tsan)
    build fuzz conformance fuzzing && built+=(fuzz) # address and undefined-behaviour sanitizers, too
else
    echo "SKIPPED: no clang here; neither the clang build nor thread sanitizer nor libFuzzer ran"
    skipped=$((skipped + 2)) # and clang-tidy below
    build asan conformance fuzzing && built+=(asan)
fi
begin_others
if have clang-tidy; then
    step "clang: tidy" 1200 bash scripts/lint.sh
else
    echo "SKIPPED: no clang-tidy here"
    skipped=$((skipped + 1))
fi
wait_for aarch64
say "aarch64: cross-build, conformance under qemu"
cat "$results/aarch64.log"
outcome "aarch64" "$(status_of aarch64)"
# That build has neither CUDA nor PMIx nor RDMA. Where it cannot be made, one for this machine shows how it is without them. Units and plans know
# nothing of CUDA: one of their tests says whether they are built right.
if [ "$(status_of aarch64)" -eq 77 ] && build no-cuda pickle pickle-conform plan.shape rdma-why; then
    built+=(no-cuda)
    others "${cpus[0]:-0}" no-cuda &
    background+=($!)
fi
[ "${#low[@]}" -eq 0 ] || low=(nice -n 5)
step "install" 120 cmake --install build/dev --prefix "$own" >/dev/null
# Where there is no GPU as where there is no nvcc; dev's test `examples.attention_overlap` builds its kernel.
without=()
[ "$(gpus)" -gt 0 ] || without=(-DCMAKE_CUDA_COMPILER=)
step "examples: configure against the installed package" 600 \
    cmake -S examples -B build/examples -G Ninja -DCMAKE_PREFIX_PATH="$own" -DCMAKE_CUDA_ARCHITECTURES=90 "${without[@]}" >/dev/null &&
    step "examples: build" 300 cmake --build build/examples && check_examples
step "README.md's program by README.md's command" 120 sh tests/abi/readme.sh "$PWD" "$own"
end dev
# In the folders where dev's test `experiments` has installed and built.
step "bench: configure against the installed package" 600 \
    cmake -S bench -B "$bench" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_PREFIX_PATH="$prefix" >/dev/null &&
    step "bench: build" 300 cmake --build "$bench" && check_bench
step "docs/guide.md: programs, commands, and what they print" 400 python3 tests/abi/guide.py docs/guide.md "$prefix" "$bench" "$bench/compare"
for preset in "${built[@]}"; do
    end "$preset"
done
end machine

echo
for name in "${failures[@]}"; do
    echo "FAILED: $name"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
