# SPDX-License-Identifier: Apache-2.0
# For scripts that source it, in network and mount namespaces of their own: two hosts far apart, namespaces host0 and host1, each a
# machine of its own. A program, net.far, joins their cards eth0 and holds every packet for so long.
# shellcheck shell=bash

# make_far FOLDER PROGRAM MILLISECONDS: far_pid is the program's, which ends when it is killed. No window is in the way of what is
# sent, so that what takes long is what waits for an answer.
make_far() {
    local h
    mount --make-rprivate / && mkdir -p /run/netns && mount -t tmpfs netns /run/netns || exit 77
    for h in 0 1; do
        ip netns add host$h && ip -n host$h link set lo up || exit 77
        ip netns exec host$h sysctl -q -w net.ipv4.tcp_slow_start_after_idle=0 net.ipv4.tcp_congestion_control=reno \
            net.ipv4.tcp_rmem="4096 8388608 33554432" net.ipv4.tcp_wmem="4096 8388608 33554432" || exit 77
        od -An -N16 -tx1 /dev/urandom | tr -d ' \n' >"$1/boot$h"
    done
    "$2" "$3" host0 host1 &
    far_pid=$!
    for h in 0 1; do
        until ip -n host$h link show eth0 >/dev/null 2>&1; do
            kill -0 $far_pid 2>/dev/null || { wait $far_pid; exit $?; }
            sleep 0.05
        done
        ip -n host$h addr add 10.77.0.$((h + 1))/24 dev eth0 && ip -n host$h link set eth0 mtu 60000 up || exit 77
        ip -n host$h route change 10.77.0.0/24 dev eth0 initcwnd 64 initrwnd 128 || exit 77
    done
    cat >"$1/on" <<'ON'
#!/bin/sh
# usage: on HOST COMMAND...: there, with the boot id of a machine of its own
folder=$(dirname "$0") host=$1
shift
exec ip netns exec "host$host" unshare -m sh -c 'mount --bind "$1" /proc/sys/kernel/random/boot_id && shift && exec "$@"' sh "$folder/boot$host" "$@"
ON
    chmod +x "$1/on"
}
