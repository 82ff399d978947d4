#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# NCCL's variables become libpickle's, PK_* go before, files are read, and what is not used is said.
# usage: environment.sh PROGRAM      PROGRAM: makes an id and prints its environment's PK_*
set -eu
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
for name in $(env | sed -n 's/^\(\(NCCL\|PK\)_[A-Z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done
export LC_ALL=C HOME="$work"
loopback=lo

# expect TEXT VARIABLE=VALUE...: a line of what the program prints, whole
expect() {
    text=$1
    shift
    env "$@" "$program" >"$work/out" 2>&1 || { cat "$work/out"; echo "FAIL $*: the program failed"; exit 1; }
    grep -qx -- "$text" "$work/out" || { cat "$work/out"; echo "FAIL $*: there is no line $text"; exit 1; }
    echo "PASS $*: $text"
}

# expect_not PATTERN VARIABLE=VALUE...
expect_not() {
    text=$1
    shift
    env "$@" "$program" >"$work/out" 2>&1 || { cat "$work/out"; echo "FAIL $*: the program failed"; exit 1; }
    ! grep -q -- "$text" "$work/out" || { cat "$work/out"; echo "FAIL $*: there is a line with $text"; exit 1; }
    echo "PASS $*: no $text"
}

expect PK_LOG=info NCCL_DEBUG=INFO
expect PK_LOG=warn NCCL_DEBUG=WARN
expect PK_LOG=debug NCCL_DEBUG=TRACE
expect PK_LOG=error NCCL_DEBUG=INFO PK_LOG=error
expect_not PK_LOG= NCCL_DEBUG=VERSION
expect_not 'PK_\|libnccl' UNRELATED=1
expect 'libnccl.so.2 of libpickle [0-9.]*, for programs of NCCL 2.28.9: .*libpickle.so.*' NCCL_DEBUG=VERSION
expect 'libnccl.so.2 of libpickle [0-9.]*, for programs of NCCL 2.28.9: .*libpickle.so.*' NCCL_DEBUG=INFO
expect 'libnccl.so.2 of libpickle: not used: .*NCCL_ALGO.*' NCCL_DEBUG=INFO NCCL_ALGO=Ring NCCL_P2P_LEVEL=NVL
expect 'libnccl.so.2 of libpickle: not used: .*NCCL_NET.*' NCCL_DEBUG=INFO NCCL_NET=Socket
expect PK_RDMA_DEVICES=none NCCL_IB_DISABLE=1 NCCL_IB_HCA=nothere
expect PK_RDMA_DEVICES=nothere:1 NCCL_IB_DISABLE=0 NCCL_IB_HCA==nothere:1
expect_not PK_RDMA_DEVICES NCCL_IB_DISABLE=0
expect_not 'not used' NCCL_DEBUG=INFO NCCL_P2P_LEVEL=NVL NCCL_MAX_CTAS=4
expect_not 'not used' NCCL_ALGO=Ring
expect PK_IFNAME=$loopback NCCL_SOCKET_IFNAME==$loopback
expect PK_IFNAME=$loopback NCCL_SOCKET_IFNAME=l
expect PK_IFNAME=nothere NCCL_SOCKET_IFNAME=nothere
others=$(ls /sys/class/net | grep -vx "$loopback" | tr '\n' ',')
expect PK_IFNAME=$loopback "NCCL_SOCKET_IFNAME=^${others:-nothere}"
[ -z "$others" ] || expect_not "PK_IFNAME=.*$loopback" NCCL_SOCKET_IFNAME=^nothere
expect PK_P2P_LEVEL=NVL NCCL_P2P_LEVEL=NVL
expect PK_P2P_LEVEL=PXB NCCL_P2P_LEVEL=2
expect PK_P2P_LEVEL=LOC NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=SYS
expect PK_P2P_LEVEL=SYS NCCL_P2P_DISABLE=0 NCCL_P2P_LEVEL=SYS
expect PK_GID_INDEX=3 NCCL_IB_GID_INDEX=3
expect_not PK_GID_INDEX NCCL_IB_GID_INDEX=-1
expect PK_QPS=16 NCCL_IB_QPS_PER_CONNECTION=99
expect PK_SOCKETS=8/2 NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=4
expect PK_HOST_ID=one NCCL_HOSTID=one
expect PK_SM_POLICY=4 NCCL_MAX_CTAS=4
# A process that was started by one whose own were others.
set_by_parent=$(printf 'PK_SM_POLICY=9\nPK_P2P_LEVEL=SYS\n')
expect PK_SM_POLICY=4 NCCL_MAX_CTAS=4 PK_SM_POLICY=9 "PICKLE_NCCL_SET=$set_by_parent"
expect_not PK_SM_POLICY PK_SM_POLICY=9 "PICKLE_NCCL_SET=$set_by_parent"
expect PK_SM_POLICY=8 NCCL_MAX_CTAS=4 PK_SM_POLICY=8 "PICKLE_NCCL_SET=$set_by_parent"
expect PK_P2P_LEVEL=NVL NCCL_P2P_LEVEL=NVL PK_SM_POLICY=9 PK_P2P_LEVEL=SYS "PICKLE_NCCL_SET=$set_by_parent"
expect PK_SM_POLICY=none NCCL_MAX_CTAS=4 PK_SM_POLICY=none
expect_not PK_SM_POLICY NCCL_MAX_CTAS=-1

printf '# NCCL_MAX_CTAS=9\nNCCL_HOSTID=of the file\nNCCL_P2P_LEVEL=PIX\n' >"$work/.nccl.conf"
expect 'PK_HOST_ID=of the file' UNRELATED=1
expect PK_HOST_ID=of_the_environment NCCL_HOSTID=of_the_environment
expect_not PK_SM_POLICY UNRELATED=1
printf 'NCCL_HOSTID=elsewhere\n' >"$work/other.conf"
expect PK_HOST_ID=elsewhere NCCL_CONF_FILE="$work/other.conf"
expect_not PK_P2P_LEVEL NCCL_CONF_FILE="$work/other.conf"

expect_not 'for programs of NCCL' NCCL_DEBUG=VERSION NCCL_DEBUG_FILE="$work/log.%h.%p"
grep -q 'for programs of NCCL' "$work/log.$(hostname)".[0-9]* || { ls "$work"; echo "FAIL NCCL_DEBUG_FILE"; exit 1; }
echo "PASS NCCL_DEBUG_FILE with host and process"

status=0
PICKLE_LIBRARY=/none/libpickle.so "$program" >"$work/out" 2>&1 || status=$?
{ [ $status -ne 0 ] && grep -q 'libpickle cannot be opened.*/none/libpickle.so' "$work/out"; } ||
    { cat "$work/out"; echo "FAIL PICKLE_LIBRARY"; exit 1; }
echo "PASS a libpickle that is not there is named"
# One that is started in it.
NCCL_MAX_CTAS=4 "$program" sh -c "NCCL_MAX_CTAS=5 exec '$program'" >"$work/out" 2>&1
grep -qx PK_SM_POLICY=5 "$work/out" || { cat "$work/out"; echo "FAIL a child with another NCCL_MAX_CTAS"; exit 1; }
echo "PASS a child's own NCCL_MAX_CTAS counts"
