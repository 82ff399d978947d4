#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Parts of the tests one after the other in one machine: that it comes up costs as much as a part. Each leaves the devices as they were.
# Those that are over are listed in $VM_OUT/over: a second machine goes on behind them. What has failed in the first one has failed.
# usage, inside vm.sh: parts.sh FOLDER-OF-TEST-PROGRAMS FOLDER-OF-LIBCUDA PART...     PART: inside, conform, faults, away, limits, gpus
set -u
programs=$1 driver=$2
shift 2
for part; do
    grep -qx "$part" "$VM_OUT/over" 2>/dev/null && continue
    echo "== $part"
    begun=$SECONDS
    timeout -k 5 600 bash "$(dirname "$0")/$part.sh" "$programs" "$driver"
    code=$?
    echo "== $part: exit code $code after $((SECONDS - begun)) s"
    [ $code -eq 0 ] || [ $code -eq 77 ] || echo "$part" >>"$VM_OUT/failed"
    echo "$part" >>"$VM_OUT/over"
done
[ ! -s "$VM_OUT/failed" ] && echo "all parts have passed" && exit 0
sed 's/^/FAIL /' "$VM_OUT/failed"
exit 1
