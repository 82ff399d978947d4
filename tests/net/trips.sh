#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Half round trips of messages, and allreduces, between two hosts far apart: in trips, times divided by how long the network holds
# every packet. Beside them a bare pair of processes, with one connection and the same limits of socket buffers. What the machine is
# busy with makes single times longer and none shorter, so the least of them counts; in brackets the median.
#
# usage: trips.sh [-d MILLISECONDS] [-k ROUNDS] FAR COMPARE    FAR: the program net.far; COMPARE: pickle-compare. Root; 77: not allowed here
set -u

delay=20 rounds=5
all=("$@")
while getopts d:k: letter; do
    case $letter in d) delay=$OPTARG ;; k) rounds=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
[ $# = 2 ] || { sed -n '3,7s/^# \{0,1\}//p' "$0"; exit 2; }

if [ -z "${PICKLE_NET_INSIDE:-}" ]; then
    if ! unshare -n -m true 2>/dev/null || ! command -v ip >/dev/null; then
        echo "SKIPPED: network namespaces need root (CAP_SYS_ADMIN) and iproute2"
        exit 77
    fi
    PICKLE_NET_INSIDE=1 exec unshare -n -m -p --fork --kill-child --mount-proc "$0" "${all[@]}"
fi
. "$(dirname "$0")/far.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
make_far "$work" "$1" "$delay"

measure() { # OPERATION BYTES
    "$compare" --net --enter "$work/on %r" --root 10.77.0.1 --bind none -o "$1" -b "$2" -e "$2" -k "$rounds" -t $((delay * 50)) \
        -w pickle:PK_INSECURE=1,bare-frames --csv "$work/csv" >"$work/said" || { cat "$work/said"; exit 1; }
    awk -F, -v delay="$delay" 'NR > 1 { median[NR] = $6 / 1e3 / delay; least[NR] = $8 / 1e3 / delay; name = $1; bytes = $2 }
        END { printf "%-10s %9d bytes: %6.2f trips (%.2f), bare %6.2f (%.2f): %.2f of it\n", name, bytes, least[2], median[2],
                  least[3], median[3], least[2] / least[3] }' "$work/csv"
}

compare=$2
echo "# $delay ms each way, $rounds rounds: the least (the median)"
for bytes in 8 4K 64K 1M 64M; do
    measure pingpong $bytes
done
for bytes in 8 1K 64K 1M; do
    measure allreduce $bytes
done
