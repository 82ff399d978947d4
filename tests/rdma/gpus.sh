#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# GPU memory over RDMA, in the machine with RDMA devices, on a software CUDA driver: as dma-bufs, which here are memfds (rdma-shim), and where
# no device takes those through pinned memory of the host. What a real GPU and a real NIC do together is not shown by this.
# usage, inside vm.sh: gpus.sh FOLDER-OF-TEST-PROGRAMS FOLDER-OF-LIBCUDA
set -u
bin=$1
here=$(dirname "$0")
. "$here/check.sh"
driver=$2
[ -e "$driver/libcuda.so.1" ] || { echo "no software CUDA driver in this build"; exit 77; }

gpus() { # NAME CASES SEED MAX-BYTES VARIABLE=VALUE...
    local name=$1 cases=$2 seed=$3 most=$4
    shift 4
    check "GPU memory: $name" 150 env "$@" LD_LIBRARY_PATH="$driver" RANKS_PRELOAD="$bin/rdma-shim.so" "$here/ranks.sh" 2 2 "$bin/pickle-conform" --env --memory cuda --max-bytes "$most" --watchdog 100 \
        --cases "$cases" --seed "$seed" --no-errors
}

registered() { # NAME COUNT: registrations of dma-bufs, by both ranks
    grep -c '^shim: [0-9]* dma-bufs' /tmp/log | grep -qx "$2"
    outcome "$1" $?
}

gpus "as dma-bufs, two rails" 10 1 1048576 FAKECUDA_DMABUF=1 SHIM_DMABUF=1
registered "and both ranks registered some" 2
gpus "as dma-bufs in pieces of 64 KiB, one queue pair" 6 1 1048576 FAKECUDA_DMABUF=1 SHIM_DMABUF=1 SHIM_MAX_MR_BYTES=65536 PK_QPS=1
registered "and both ranks registered some" 2
# Through pinned memory; in either list are two whose blocks go there in several pieces (most lists of this length have none).
gpus "no device takes a dma-buf" 20 46 4194304 FAKECUDA_DMABUF=1
registered "and none was registered: it went through pinned memory" 0
gpus "the driver has no dma-bufs" 20 14 4194304 FAKECUDA_DMABUF=0
registered "and none was registered: it went through pinned memory" 0
the_end
