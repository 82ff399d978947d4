# SPDX-License-Identifier: Apache-2.0
# Sourced by the other scripts, in the root of the tree.

say() { printf '\n== %s\n' "$*"; }

have() { command -v "$1" >/dev/null 2>&1; }

# launch N PROGRAM...: N ranks on this machine, by mpirun where there is one, else one process a rank by PK_RANK, PK_SIZE, PK_ROOT.
launch() {
    local n=$1 rank port failed=0 pids=()
    shift
    if have mpirun; then
        timeout "${LAUNCH_TIMEOUT:-300}" mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$n" "$@" </dev/null
        return
    fi
    port=$(sh tests/support/free_port.sh)
    for ((rank = 0; rank < n; rank++)); do
        PK_RANK=$rank PK_SIZE=$n PK_ROOT=127.0.0.1:$port timeout "${LAUNCH_TIMEOUT:-300}" "$@" </dev/null &
        pids+=($!)
    done
    for rank in "${pids[@]}"; do
        wait "$rank" || failed=$?
    done
    return "$failed"
}

gpus() {
    if have nvidia-smi; then
        timeout 30 nvidia-smi -L 2>/dev/null | grep -c '^GPU ' || true
    else
        echo 0
    fi
}

# The version that the public header has: MAJOR.MINOR.PATCH.
version_of_tree() { sed -n 's/^#define PK_VERSION_\(MAJOR\|MINOR\|PATCH\) \([0-9]*\)$/\2/p' include/pickle/base.h | paste -sd .; }
