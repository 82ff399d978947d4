#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# What the loader sees of libnccl.so.2: every name of NCCL 2.28.9 and the later ones, ncclX weak and pncclX strong, nothing
# else and no versions; its soname; that it needs libc alone. Where there is an nccl.h, every function of it is there.
# usage: names.sh LIBRARY
set -eu
library=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM
export LC_ALL=C

of_2_28_9="AllGather AllReduce AlltoAll Bcast Broadcast CommAbort CommCount CommCuDevice CommDeregister CommDestroy
    CommFinalize CommGetAsyncError CommInitAll CommInitRank CommInitRankConfig CommInitRankScalable CommRegister
    CommRevoke CommShrink CommSplit CommUserRank CommWindowDeregister CommWindowRegister DevCommCreate
    DevCommDestroy Gather GetErrorString GetLastError GetUniqueId GetVersion GinBarrierCreateRequirement GroupEnd
    GroupSimulateEnd GroupStart LLA2ACalcSlots LLA2ACreateRequirement LsaBarrierCreateRequirement MemAlloc MemFree
    Recv RedOpCreatePreMulSum RedOpDestroy Reduce ReduceScatter ResetDebugInit Scatter Send TeamLsa TeamRail
    TeamRankToLsa TeamRankToWorld TeamWorld"
later="CommGetUniqueId CommGrow CommMemStats CommQueryProperties CommResume CommSuspend GetLsaDevicePointer
    GetLsaMultimemDevicePointer GetMultimemDevicePointer GetPeerDevicePointer GinInboxA2ACreateRequirement
    GinOutboxCreateRequirement ParamBind ParamDumpAll ParamGet ParamGetAllParameterKeys ParamGetI16 ParamGetI32
    ParamGetI64 ParamGetI8 ParamGetParameter ParamGetStr ParamGetU16 ParamGetU32 ParamGetU64 ParamGetU8 PutSignal
    Signal WaitSignal WinGetUserPtr"

fail() { echo "FAIL $*"; exit 1; }

# shellcheck disable=SC2086 # names are words
[ "$(echo $of_2_28_9 | wc -w)" -eq 52 ] || fail "the list of 2.28.9 has not 52 names"
nm -D --defined-only "$library" | awk '{ print $2, $3 }' | sort >"$work/got"
for name in $of_2_28_9 $later; do
    echo "W nccl$name"
    echo "T pnccl$name"
done | sort >"$work/expected"
diff "$work/expected" "$work/got" || fail "names and their kinds (W weak, T strong) differ: < expected, > defined"
echo "PASS $(wc -l <"$work/got") names, weak and strong, and no other"

readelf -dW "$library" >"$work/dynamic"
grep -q 'SONAME.*\[libnccl\.so\.2\]' "$work/dynamic" || fail "the soname is not libnccl.so.2: $(cat "$work/dynamic")"
! grep -q VERDEF "$work/dynamic" || fail "there are symbol versions"
needed=$(sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' "$work/dynamic" | tr '\n' ' ')
[ "$needed" = "libc.so.6 " ] || fail "it needs $needed, not libc alone"
echo "PASS soname, no versions, libc alone"

header=
for folder in "${CUDA_HOME:-/none}" "${NCCL_HOME:-/none}" /usr/local/cuda /usr; do
    [ -n "$header" ] || [ ! -r "$folder/include/nccl.h" ] || header=$folder/include/nccl.h
done
if [ -n "$header" ]; then
    grep -oE '^(ncclResult_t|const char ?\*|void) +p?nccl[A-Z][A-Za-z]*' "$header" | sed 's/.* //' | sort -u >"$work/declared"
    [ "$(wc -l <"$work/declared")" -gt 60 ] ||
        fail "nccl.h declares only $(wc -l <"$work/declared") functions: it was not understood"
    awk '{ print $2 }' "$work/got" | sort >"$work/defined"
    missing=$(comm -23 "$work/declared" "$work/defined" | tr '\n' ' ')
    [ -z "$missing" ] || fail "$header declares what is not there: $missing"
    echo "PASS all $(wc -l <"$work/declared") functions of $header"
fi
