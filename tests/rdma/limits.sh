#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Queue pairs that fail and registrations that fail while two ranks exchange data: right data, or the named error in time.
# usage, inside vm.sh: limits.sh FOLDER-OF-TEST-PROGRAMS
set -u
bin=$1
. "$(dirname "$0")/check.sh"

shim() { wrapper=(env LD_PRELOAD="$bin/rdma-shim.so" PK_QPS=2 "$@"); }
# The library's own program, without the library's own privilege to lock memory.
locked() { wrapper=(setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock bash -c "ulimit -l $1; exec \"\$@\"" --); }

mended() {
    grep -q 'new queue pairs are connected' /tmp/log
    outcome "and queue pairs were made again" $?
}
RANK0=SHIM_KILL_QP=3000:1
shim EXPECT_DAMAGE=1
damage "a data queue pair fails" ok 5 1048576 2 :
mended
RANK0=SHIM_KILL_QP=2500:2,1000:3,1000:7 # those made again are counted on: the lane's is 3, then 6
damage "queue pairs fail three times, the lane's too" ok 7 1048576 2 :
mended
unset RANK0
shim SHIM_MAX_MRS=9
damage "9 registrations at a time, 40 buffers" ok 2 262144 40 :
shim SHIM_MAX_MRS=1
damage "none but the lane's" memory 60 1048576 1 :
shim SHIM_MAX_MR_BYTES=65536
damage "registrations of 64 KiB" ok 2 4194304 2 :
locked 12288
damage "room for few registrations, many buffers" ok 2 1048576 40 :
damage "no room for a registration" memory 60 16777216 1 :
locked '$((PK_RANK * 65536))'
wrapper=(env EXPECT_TRANSPORT=tcp "${wrapper[@]}")
damage "rank 0 may lock no memory: both go over tcp" ok 0.4 1048576 2 :
the_end
