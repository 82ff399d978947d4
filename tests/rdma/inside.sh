#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The transport alone, idleness, and a machine without libibverbs, in the machine with RDMA devices: each line is a test of its own; the
# last line counts.
# usage, inside vm.sh: inside.sh FOLDER-OF-TEST-PROGRAMS
set -u
bin=$1
. "$(dirname "$0")/check.sh"

check "two endpoints, two rails" 60 "$bin/rdma-pair"
check "two endpoints, one queue pair" 60 env PK_QPS=1 "$bin/rdma-pair" moves
check "two endpoints, 8 queue pairs on one device, a link-local address" 60 env PK_QPS=8 PK_GID_INDEX=0 PK_IFNAME=eth0 "$bin/rdma-pair" moves
check "two endpoints, nothing goes inline" 60 env LD_PRELOAD="$bin/rdma-shim.so" SHIM_NO_INLINE=1 PK_QPS=4 "$bin/rdma-pair" moves
grep -q '^4 data queue pairs, 0 bytes inline' /tmp/log
outcome "and nothing did" $?

check "one device by name" 20 env PK_RDMA_DEVICES=rxe1 "$bin/rdma-why" "1 RDMA devices with an active port, rxe1 among them"
check "its port by number" 20 env PK_RDMA_DEVICES=rxe0:1 "$bin/rdma-why" "1 RDMA devices with an active port, rxe0 among them"
check "a port that it does not have" 20 env PK_RDMA_DEVICES=rxe0:2 "$bin/rdma-why" "PK_RDMA_DEVICES names none"
check "no device" 20 env PK_RDMA_DEVICES=none "$bin/rdma-why" "PK_RDMA_DEVICES names none"
check "two endpoints over the one that is named" 60 env PK_RDMA_DEVICES=rxe1 "$bin/rdma-pair" moves

before=$(packets)
# Between hosts only: how soon a rank of one host is woken is no matter of an emulated processor.
check "an idle communicator uses no CPU, and who waits long sleeps" 100 env PICKLE_TEST_SLOW=1 "$bin/mp.idle" "two hosts"
grep '^# woken' /tmp/log
went "though it had used the devices" "$before" 50

verbs=$(readlink -f "$(ldconfig -p | awk '/libibverbs.so.1 / { print $NF; exit }')")
mount --bind /dev/null "$verbs"
check "without libibverbs" 20 "$bin/rdma-why" "cannot be used: libibverbs.so.1 cannot be loaded"
check "all goes over TCP" 60 env EXPECT_TRANSPORT=tcp "$(dirname "$0")/ranks.sh" 2 2 "$bin/rdma-loop" ok 1 1048576 2
umount "$verbs"
the_end
