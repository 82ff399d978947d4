#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Ranks under torchrun itself, in host memory: one agent whose ranks die and live again; two agents, in the two ways in which they can meet.
# usage: torchrun.sh PATH/libpickle.so        exit code 77 where there is no torchrun
set -u
library=$1
here=$(cd "$(dirname "$0")" && pwd)
out=$(mktemp -d)
failed=0
unset PK_RANK PK_SIZE PK_ROOT PK_SECRET_FILE PK_INSECURE PMIX_RANK RANK WORLD_SIZE
export OMP_NUM_THREADS=1 TORCH_CPP_LOG_LEVEL=ERROR

# Debian's is called by its path: another Python may be the first in PATH.
torchrun=$(command -v torchrun)
python=$(sed -n '1s/^#!//p' "${torchrun:-/dev/null}")
if [ -z "$torchrun" ] || ! $python -c 'import importlib.util as u; u.find_spec("torch").name' 2>/dev/null; then
    echo "SKIPPED: there is no torchrun here (Debian: apt-get install python3-torch)"
    exit 77
fi

# Both redirected and shown: Debian's torch 1.13 under Python 3.11 knows no other way to start ranks.
common=(--redirects 1 --tee 1 --log_dir "$out/logs")
job=("$here/torchrun_rank.py" "$library")

# No two runs meet at one port, unless somebody takes it in the moment before they use it.
free_port() { $python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# judge NAME LIFE RANKS STATUS: did every rank say in this life that all was good?
judge() {
    local good
    good=$(cat "$out"/[ab] | grep -c "good: rank [0-9]* of $3 in life $2,")
    if [ "$4" -eq 0 ] && [ "$good" -eq "$3" ]; then
        echo "PASS $1: $(cat "$out"/[ab] | grep -m 1 -o 'master .*')"
    else
        echo "FAIL $1: torchrun ended with $4, $good of $3 ranks were good"
        tail -n 60 "$out"/[ab]
        failed=$((failed + 1))
    fi
    rm -rf "$out"/*
}

# agents NAME COMMON...: two agents of two ranks each, on what they take for two hosts.
agents() {
    local name=$1 first second status=0
    shift
    PK_HOST_ID=a timeout 100 "$torchrun" --nnodes 2 --nproc_per_node 2 --node_rank 0 "${common[@]}" "$@" "${job[@]}" \
        >"$out/a" 2>&1 </dev/null &
    first=$!
    PK_HOST_ID=b timeout 100 "$torchrun" --nnodes 2 --nproc_per_node 2 --node_rank 1 "${common[@]}" "$@" "${job[@]}" \
        >"$out/b" 2>&1 </dev/null &
    second=$!
    wait "$first" || status=$?
    wait "$second" || status=$?
    judge "$name" 0 4 "$status"
}

# What --standalone means, but for its port, which is always the same.
timeout 100 "$torchrun" --rdzv_backend c10d --rdzv_id alone --rdzv_endpoint "localhost:$(free_port)" --nproc_per_node 3 --max_restarts 1 "${common[@]}" "${job[@]}" die >"$out/a" 2>&1 </dev/null
judge "one agent: a rank dies and the job lives again" 1 3 $?

agents "two agents at one address" --master_addr 127.0.0.1 --master_port "$(free_port)"

# Agents that meet by themselves call the master by its host's name, which need not mean the loopback: then a secret is wanted.
head -c 32 /dev/urandom >"$out/secret"
chmod 600 "$out/secret"
PK_SECRET_FILE=$out/secret
export PK_SECRET_FILE
agents "two agents that meet by themselves" --rdzv_backend c10d --rdzv_id pickle --rdzv_endpoint "localhost:$(free_port)"

rm -rf "$out"
[ "$failed" -eq 0 ]
