#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does the virtual machine do what it promises: devices that work, output and files that come back, the command's own exit code? And does the
# command do well in it: one machine for both, for to come up costs as much as some tests.
# A machine whose kernel has locked up tells nothing: another one runs the command again, with the same $VM_OUT. All must do well in the end.
# usage: vm_self_test.sh SECONDS COMMAND...        77: no machine could be made
set -u
limit=$1
shift
cd "$(dirname "$0")" || exit 1
out=$(mktemp -d) || exit 1
trap 'rm -rf "$out"' EXIT

for ((machines = 1; machines <= 3; machines++)); do
    text=$(PICKLE_MARK=mark VM_OUT=$out ./vm.sh --timeout $((limit - SECONDS)) '
        echo "said $PICKLE_MARK in $PWD"
        ibv_devices >"$VM_OUT/devices"
        touch nothing 2>/dev/null && echo "the host can be written to"
        '"$(printf '%q ' "$@")"' && exit 3
        exit 4')
    code=$?
    echo "$text"
    [ $code -eq 123 ] || break
    echo "== the kernel of machine $machines has locked up"
    [ $((limit - SECONDS)) -gt 120 ] || break
done
[ $code -eq 77 ] && exit 77
failed=0
check() { "${@:2}" || { echo "FAIL $1"; failed=1; }; }
check "exit code 3, or 4 where the command has failed, came back as $code" [ $code -eq 3 ]
check "output and environment" grep -q "^said mark in $PWD$" <<<"$text"
check "two devices" [ "$(grep -c 'rxe[01]' "$out/devices")" -eq 2 ]
check "the host's files are read-only" [ -z "$(grep 'can be written' <<<"$text")" ]
[ $failed -eq 0 ] && echo "PASS the machine with RDMA devices, and what ran in it"
exit $failed
