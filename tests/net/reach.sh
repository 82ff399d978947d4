#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Hosts (network namespaces) that reach one another by some of their addresses only.
#
# usage: reach.sh PROGRAM CASE       PROGRAM is net.reach; see the cases below
# Exits with 0 when every rank ended as it should; 77: namespaces are not allowed here.
set -u

if [ -z "${PICKLE_NET_INSIDE:-}" ]; then
    if ! unshare -n -m true 2>/dev/null || ! command -v ip >/dev/null; then
        echo "SKIPPED: network namespaces need root (CAP_SYS_ADMIN) and iproute2"
        exit 77
    fi
    PICKLE_NET_INSIDE=1 exec unshare -n -m "$0" "$@"
fi
program=$1 case=$2

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mount --make-rprivate / && mkdir -p /run/netns && mount -t tmpfs netns /run/netns || exit 77
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/secret"
chmod 600 "$work/secret"
export PK_SECRET_FILE=$work/secret PK_TIMEOUT_MS=20000
unset PK_IFNAME PK_HOST_ID PK_RUN_DIR

# hosts NAME...: with loopback and nothing else
hosts() {
    for h; do
        ip netns add "$h" && ip -n "$h" link set lo up || exit 77
    done
}

# network NAME HOST:CARD:ADDRESS...: a bridge, and a card on it for each; an address of "-" gives none
network() {
    local bridge=$1 host card address
    shift
    ip link add "$bridge" type bridge && ip link set "$bridge" up || { echo "SKIPPED: no bridge in this kernel"; exit 77; }
    for c; do
        IFS=, read -r host card address <<<"$c"
        ip link add "$host-$card" type veth peer name "$card" netns "$host" || { echo "SKIPPED: no veth in this kernel"; exit 77; }
        ip link set "$host-$card" master "$bridge" up
        ip -n "$host" link set "$card" addrgenmode none # no addresses but those given
        [ "$address" = - ] || ip -n "$host" addr add "$address" dev "$card" $([[ $address != *:* ]] || echo nodad)
        ip -n "$host" link set "$card" up
    done
}

# names HOST LINE...: the host's /etc/hosts
names() {
    local h=$1
    shift
    printf '127.0.0.1 localhost\n' >"$work/hosts.$h"
    printf '%s\n' "$@" >>"$work/hosts.$h"
}

pids=() count=0
# rank HOST ARGUMENT...: the next rank; `machine`: which machine it takes its host to be, "none": it does not know
rank() {
    local h=$1
    shift
    [ -e "$work/hosts.$h" ] || names "$h"
    [ -z "${machine:-}" ] || echo "0000000$machine-0000-4000-8000-000000000000" >"$work/machine.$machine"
    PK_RANK=$count PK_SIZE=$size ip netns exec "$h" sh -c 'mount --bind "$1" /etc/hosts || exit 77
        case $2 in none) mount -t tmpfs none /proc ;; ?*) mount --bind "$3" /proc/sys/kernel/random/boot_id ;; esac || exit 77
        shift 3 && exec timeout -k 5 60 "$@"' sh "$work/hosts.$h" "${machine:-}" "$work/machine.${machine:-}" "$program" "$@" \
        >"$work/out.$count" 2>&1 &
    pids+=($!)
    count=$((count + 1))
}

case $case in
loopback) # ranks of the first host meet over 127.0.1.1, the other one comes by the network
    hosts a b
    network n0 a,eth0,10.99.0.1/24 b,eth0,10.99.0.2/24
    names a "127.0.1.1 nodea" "10.99.0.1 nodea"
    names b "10.99.0.1 nodea"
    export PK_ROOT=nodea:29777
    size=3
    rank a ok; rank a ok; rank b ok
    ;;
private) # two hosts meet in a network that the third one is not in
    hosts a b c
    network n0 a,eth0,10.99.0.1/24 b,eth0,10.99.0.2/24 c,eth0,10.99.0.3/24
    network n1 a,eth1,10.98.0.1/24 b,eth1,10.98.0.2/24
    names a "10.98.0.1 nodea" "10.99.0.1 nodea"
    names b "10.98.0.1 nodea"
    names c "10.99.0.1 nodea"
    export PK_ROOT=nodea:29777
    size=3
    rank a ok; rank b ok; rank c ok
    ;;
dead_end) # and that network's address leads to nobody who answers
    hosts a b c
    network n0 a,eth0,10.99.0.1/24 b,eth0,10.99.0.2/24 c,eth0,10.99.0.3/24
    network n1 a,eth1,10.98.0.1/24 b,eth1,10.98.0.2/24
    ip -n c route add 10.98.0.0/24 via 10.99.0.1 # which forwards nothing
    names a "10.98.0.1 nodea" "10.99.0.1 nodea"
    names b "10.98.0.1 nodea"
    names c "10.99.0.1 nodea"
    export PK_ROOT=nodea:29777
    size=3
    rank a ok; rank b ok; rank c ok
    ;;
link_local | link_local_named) # the card has another number on each host; another card has such addresses, too
    hosts a b c
    network n1 b,eth1,fe80::1:b/64 c,eth2,-
    network n2 b,eth2,-
    network n0 a,eth0,fe80::a/64 b,eth0,fe80::b/64 c,eth0,fe80::c/64
    [ "$(for h in a b c; do ip netns exec $h cat /sys/class/net/eth0/ifindex; done | sort -u | wc -l)" = 3 ] || exit 3
    export PK_ROOT=[fe80::a%eth0]:29777
    [ $case = link_local ] || export PK_IFNAME=eth0
    size=3
    rank a ok; rank b ok; rank c ok
    ;;
sandbox) # of three hosts with IPv4 and IPv6 one knows of IPv4 alone, and not which addresses it has
    hosts a b c
    network n0 a,eth0,10.99.0.1/24 b,eth0,10.99.0.2/24 c,eth0,10.99.0.3/24
    for h in a b c; do ip -n $h addr add fd99::$h/64 dev eth0 nodad; done
    export PK_ROOT=10.99.0.1:29777
    size=3
    rank a ok; rank b jail; rank c ok
    ;;
denied) # rank 0 and another one may not use IPv6, which their hosts have and their peers' names lead to first
    hosts a b c
    network n0 a,eth0,10.99.0.1/24 b,eth0,10.99.0.2/24 c,eth0,10.99.0.3/24
    for h in a b c; do ip -n $h addr add fd99::$h/64 dev eth0 nodad; names $h "fd99::a nodea" "10.99.0.1 nodea"; done
    export PK_ROOT=nodea:29777
    size=3
    rank a denied; rank b denied; rank c ok
    ;;
many_cards) # a host with more IPv4 addresses than fit, of which one leads to the second host; the third one has IPv6 alone
    hosts a b c
    network n0 a,eth0,fd99::a/64 b,eth0,fd99::b/64 c,eth0,fd99::c/64
    ip -n a addr add 10.99.0.1/24 dev eth0 && ip -n b addr add 10.99.0.2/24 dev eth0
    for i in 1 2 3 4 5 6 7 8; do
        ip -n a link add rail$i type veth peer name end$i && ip -n a addr add 10.98.$i.1/24 dev rail$i && ip -n a link set rail$i up &&
            ip -n a link set end$i up || exit 77
    done
    names a "10.99.0.1 nodea" "fd99::a nodea"
    names b "10.99.0.1 nodea"
    names c "fd99::a nodea"
    export PK_ROOT=nodea:29777
    size=3
    rank a ok; rank b ok; rank c ok
    ;;
unknown_machine) # all meet over loopback, as by a tunnel; two know that they are on different machines, the third one does not know its own
    hosts a
    network n0 a,eth0,10.99.0.1/24
    export PK_ROOT=127.0.0.1:29777
    size=3
    machine=1 rank a ok; machine=2 rank a ok; machine=none rank a ok
    ;;
dropped | refused) # a firewall lets the meeting point through and not the ports for data: silently, or with an answer
    hosts a b
    network n0 a,eth0,10.99.0.1/24 b,eth0,10.99.0.2/24
    export PK_ROOT=10.99.0.1:29777 PK_PORTS=41000-41099
    size=2
    if [ $case = dropped ]; then
        ip -n a rule add pref 10 ipproto tcp sport 41000-41099 blackhole || exit 77
        error=110 text="Connection timed out"
    else
        ip -n b rule add pref 10 ipproto tcp dport 41000-41099 unreachable || exit 77
        error=101 text="Network is unreachable"
    fi
    # Who connects gives up first, and tells the other one.
    PK_TIMEOUT_MS=30000 rank a cut - "10.99.0.1:410"; PK_TIMEOUT_MS=8000 rank b cut $error "10.99.0.1:410" "$text"
    ;;
*)
    echo "no such case: $case"
    exit 2
    ;;
esac

code=0 skipped=
for r in "${!pids[@]}"; do
    wait "${pids[$r]}"
    rc=$?
    [ $rc != 77 ] || skipped=77
    [ $rc = 0 ] || { echo "rank $r ended with code $rc"; code=1; }
    sed "s/^/[$r] /" "$work/out.$r" | tail -20
done
exit ${skipped:-$code}
