#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# PyTorch's own distributed tests over its NCCL and over libpickle at the same time; then the two sets of results are compared.
# usage: shipped.sh [-c | -b] [-n PYTESTS] [-k EXPRESSION] [-t SECONDS] FOLDER
#   -c  tensors of the host, over the back ends gloo and pickle; no GPU is needed. PYTHONPATH names libpickle's package
#   -b  tensors of GPUs over the back ends nccl and pickle; without it over nccl both times, whose library is another one
#   -n  pytests that run side by side, half of them over each library (12); -k  as pytest's
#   -t  both runs are cut after so long (540); what has ended until then is compared
# PICKLE_NCCL names pickle-nccl, PYTHON the interpreter, BACKEND another back end than nccl.
set -u
here=$(cd "$(dirname "$0")" && pwd)
workers=12 expression="" seconds=540 first=nccl second=nccl
while getopts cbn:k:t: option; do
    case $option in
    c) first=gloo second=pickle ;;
    b) second=pickle ;;
    n) workers=$OPTARG ;;
    k) expression=$OPTARG ;;
    t) seconds=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))
out=${1:?usage: shipped.sh [-c | -b] [-n PYTESTS] [-k EXPRESSION] [-t SECONDS] FOLDER}
python=${PYTHON:-python3}
pickle_nccl=${PICKLE_NCCL:-pickle-nccl}
[ $first = nccl ] || export BACKEND=gloo CUDA_VISIBLE_DEVICES= # beside fewer GPUs than ranks the tests skip themselves
if [ $second = pickle ]; then
    $python -c 'import libpickle' || { echo "FAIL libpickle's package is not there: PYTHONPATH"; exit 1; }
else
    command -v "$pickle_nccl" >/dev/null || { echo "FAIL pickle-nccl is not there: $pickle_nccl"; exit 1; }
fi
$python -c 'import torch, pytest' || { echo "SKIP torch or pytest is not here"; exit 77; }
mkdir -p "$out" && rm -rf "$out/${first:?}"* "$out"/pickle* || exit 1
out=$(cd "$out" && pwd)
# PyTorch's flight recorder and its like must not write here.
cd "$out" || exit 1
export OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
# NVLink multicast is left out: shared machines do not offer it.
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} TORCH_SYMM_MEM_DISABLE_MULTICAST=1
unset PK_RANK PK_SIZE PK_ROOT

if [ $first = gloo ]; then pairs=0; else pairs=$(($($python -c 'import torch; print(torch.cuda.device_count())') / 2)); fi

# devices NUMBER: the two GPUs of a pytest, another pair for the next.
devices() {
    [ "$pairs" -lt 2 ] || echo "CUDA_VISIBLE_DEVICES=$(($1 % pairs * 2)),$(($1 % pairs * 2 + 1))"
}

# pytests NAME WRAPPER...: half of the pytests, which share the tests among themselves; timeout ends each with its process group.
pytests() {
    local name=$1 worker
    shift
    mkdir -p "$out/$name-claims"
    for ((worker = 0; worker < (workers + 1) / 2; worker++)); do
        # shellcheck disable=SC2046 # one word or none
        env $(devices "$worker") SHIPPED_RESULTS="$out/$name.jsonl" SHIPPED_CLAIMS="$out/$name-claims" \
            timeout -k 5 "$seconds" "$@" "$python" -m pytest \
            -p no:cacheprovider -q --tb=short ${expression:+-k "$expression"} "$here/shipped.py" \
            >"$out/$name-$worker.log" 2>&1 </dev/null &
    done
}

# Each has a process group of its own, which what ends this script does not reach.
# shellcheck disable=SC2046
trap 'kill $(jobs -p) 2>/dev/null' EXIT
trap 'exit 143' TERM INT
pytests $first env
if [ $second = pickle ]; then
    pytests pickle env SHIPPED_INSTEAD=pickle
else
    pytests pickle "$pickle_nccl" --
fi
wait
$python "$here/shipped_compare.py" $first="$out/$first.jsonl" pickle="$out/pickle.jsonl"
