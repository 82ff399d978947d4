#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Several "hosts" on one machine: network namespaces joined by a bridge, everything in a namespace of its own that ends with the script.
#
# usage: hosts.sh [-h HOSTS] [-r RANKS_A_HOST] [-n NICS] [-6] [-m] [-d RANK:SECONDS] [-f FAR:MILLISECONDS] [-t SECONDS] COMMAND...
#   -n  network cards of each host, eth0 and on, each on a bridge of its own; where there are several, all must have been used in the end
#   -6  IPv6 addresses alone
#   -m  start by mpirun (PMIx) instead of PK_RANK, PK_SIZE and PK_ROOT
#   -d  after so many seconds take down the cards of the host that this rank is on
#   -f  two hosts far apart, each a machine of its own: FAR, the program net.far, joins them and holds every packet for so long
#   -t  time limit, 100 seconds unless given
# Output of rank r goes to $OUT/r (default: a folder that is removed). Exits with the first code that is not 0; 77: not allowed here.
set -u

hosts=2 ranks=2 nics=1 six=0 mpirun=0 down= far= limit=100
all=("$@")
while getopts h:r:n:6md:f:t: letter; do
    case $letter in
    h) hosts=$OPTARG ;; r) ranks=$OPTARG ;; n) nics=$OPTARG ;; 6) six=1 ;; m) mpirun=1 ;; d) down=$OPTARG ;; f) far=$OPTARG ;; t) limit=$OPTARG ;;
    *) exit 2 ;;
    esac
done
shift $((OPTIND - 1))

if [ -z "${PICKLE_NET_INSIDE:-}" ]; then
    if ! unshare -n -m true 2>/dev/null || ! command -v ip >/dev/null; then
        echo "SKIPPED: network namespaces need root (CAP_SYS_ADMIN) and iproute2"
        exit 77
    fi
    PICKLE_NET_INSIDE=1 exec unshare -n -m "$0" "${all[@]}"
fi

work=$(mktemp -d)
out=${OUT:-$work/out}
mkdir -p "$out"
trap '[ -z "${far_pid:-}" ] || kill "$far_pid"; rm -rf "$work"' EXIT
[ -n "$far" ] || { mount --make-rprivate / && mkdir -p /run/netns && mount -t tmpfs netns /run/netns || exit 77; }

# ---- hosts, cards, bridges ----
if [ -n "$far" ]; then
    . "$(dirname "$0")/far.sh"
    make_far "$work" "${far%:*}" "${far##*:}"
    hosts=0 nics=0
fi
for ((n = 0; n < nics; n++)); do
    ip link add "br$n" type bridge && ip link set "br$n" up || { echo "SKIPPED: no bridge in this kernel"; exit 77; }
done
for ((h = 0; h < hosts; h++)); do
    ip netns add "host$h" || exit 77
    ip -n "host$h" link set lo up
    for ((n = 0; n < nics; n++)); do
        ip link add "h${h}n$n" type veth peer name eth$n netns "host$h" || { echo "SKIPPED: no veth in this kernel"; exit 77; }
        ip link set "h${h}n$n" master "br$n" up
        if [ $six = 1 ]; then
            ip -n "host$h" addr add "fd77:$n::$((h + 1))/64" dev eth$n nodad
        else
            ip -n "host$h" addr add "10.77.$n.$((h + 1))/24" dev eth$n
        fi
        ip -n "host$h" link set eth$n up
    done
done

# ---- ranks ----
[ -z "$far" ] || hosts=2
size=$((hosts * ranks))
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/secret"
chmod 600 "$work/secret"
export PK_SECRET_FILE=$work/secret
[ $six = 1 ] && root="[fd77:0::1]:29777" || root=10.77.0.1:29777
pids=()

# HOST COMMAND...
on_machine() {
    local host=$1
    shift
    [ -n "$far" ] || exec ip netns exec "host$host" "$@"
    exec "$work/on" "$host" "$@"
}

by_environment() {
    for ((r = 0; r < size; r++)); do
        PK_RANK=$r PK_SIZE=$size PK_ROOT=$root on_machine "$((r / ranks))" timeout -k 5 "$limit" "$@" >"$out/$r" 2>&1 &
        pids+=($!)
    done
}

by_mpirun() {
    local list=
    unset PK_SECRET_FILE
    for ((h = 0; h < hosts; h++)); do
        list+=",10.77.0.$((h + 1)):$ranks"
    done
    cat >"$work/agent" <<'AGENT'
#!/bin/sh
# What mpirun takes for ssh: the last octet says which namespace. Its daemons share a file system here, and must not make the same folders at once.
host=$1
shift
export TMPDIR=$0.$host
mkdir -p "$TMPDIR"
exec ip netns exec "host$((${host##*.} - 1))" sh -c "$*"
AGENT
    chmod +x "$work/agent"
    ip netns exec host0 timeout -k 5 "$limit" mpirun --allow-run-as-root --mca plm_rsh_agent "$work/agent" --mca rtc ^hwloc \
        --mca oob_tcp_if_include eth0 --mca btl ^openib --oversubscribe --host "${list#,}" -n "$size" "$@" >"$out/0" 2>&1 &
    pids+=($!)
}

if [ $mpirun = 1 ]; then
    command -v mpirun >/dev/null || { echo "SKIPPED: there is no mpirun here"; exit 77; }
    by_mpirun "$@"
else
    by_environment "$@"
fi
if [ -n "$down" ]; then
    sleep "${down#*:}"
    for ((n = 0; n < nics; n++)); do
        ip link set "h$((${down%:*} / ranks))n$n" down
    done
fi

code=0
for r in "${!pids[@]}"; do
    wait "${pids[$r]}"
    rc=$?
    [ $rc = 0 ] || echo "rank $r ended with code $rc"
    [ $code != 0 ] || code=$rc
done
for ((n = 0; n < nics && nics > 1 && code == 0; n++)); do
    sent=$(ip netns exec host0 cat /sys/class/net/eth$n/statistics/tx_bytes)
    [ "$sent" -ge 1000000 ] || { echo "eth$n of host 0 sent $sent bytes: no data went over it"; code=1; }
done
for ((r = 0; r < size; r++)); do
    [ ! -s "$out/$r" ] || sed "s/^/[$r] /" "$out/$r" | tail -20
done
exit $code
