#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Ranks that wait elsewhere while queue pairs fail, in the machine with RDMA devices.
# usage, inside vm.sh: away.sh FOLDER-OF-TEST-PROGRAMS
set -u
bin=$1
. "$(dirname "$0")/check.sh"

before=$(packets)
check "queue pairs fail behind a rank's last call: what it has sent comes though the rank waits elsewhere" 330 env PICKLE_TEST_SLACK=1.5 \
    LD_PRELOAD="$bin/rdma-shim.so" "$bin/rdma-away" 1
grep -E '^(PASS|FAIL|# round)' /tmp/log | sed 's/^/     /'
went "and it went over the devices" "$before" 100
the_end
