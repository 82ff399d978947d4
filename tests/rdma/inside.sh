#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What is tested in the machine with RDMA devices: each line is a test of its own; the last line counts.
# usage, inside vm.sh: inside.sh FOLDER-OF-TEST-PROGRAMS
set -u
bin=$1
passed=0 failed=0

# check NAME SECONDS COMMAND...
check() {
    local name=$1 seconds=$2 code
    shift 2
    timeout -k 5 "$seconds" "$@" >/tmp/log 2>&1
    code=$?
    if [ $code -eq 0 ]; then
        passed=$((passed + 1))
        echo "PASS $name"
    else
        failed=$((failed + 1))
        echo "FAIL $name (exit code $code)"
        tail -n 40 /tmp/log
    fi
}

check "two endpoints, two rails" 60 "$bin/rdma-pair"
check "two endpoints, one queue pair" 60 env PK_QPS=1 "$bin/rdma-pair"
check "two endpoints, 8 queue pairs on one device" 60 env PK_QPS=8 PK_IFNAME=eth1 "$bin/rdma-pair"
check "two endpoints, a link-local address" 60 env PK_QPS=2 PK_GID_INDEX=0 PK_IFNAME=eth0 "$bin/rdma-pair"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
