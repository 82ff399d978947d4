# SPDX-License-Identifier: Apache-2.0
# For scripts that source it: "two hosts" on this machine. Over loopback they are two ranks of one network; over veth, two network
# namespaces with a card eth0 each, in a namespace of the script's own (root). Rank 1 is in the background.
# shellcheck shell=bash

# net_hosts loopback|veth SCRIPT ARGUMENTS...: returns where the hosts are; over veth the script is started again inside them.
net_hosts() {
    fabric=$1
    shift
    root=127.0.0.1
    [ "$fabric" = veth ] || return 0
    if [ -z "${PICKLE_VETH_INSIDE:-}" ]; then
        unshare -n -m -p --fork true 2>/dev/null || { echo "network namespaces are not available here (root has them)"; exit 77; }
        # Nothing of it outlives the script: mpirun leaves programs behind when it is ended.
        PICKLE_VETH_INSIDE=1 exec unshare -n -m -p --fork --kill-child --mount-proc "$@"
    fi
    mount --make-rprivate / && mkdir -p /run/netns && mount -t tmpfs netns /run/netns || exit 77
    ip link set lo up
    ip link add h0 type bridge && ip link set h0 up || exit 77
    for h in 0 1; do
        ip netns add host$h && ip -n host$h link set lo up
        ip link add v$h type veth peer name eth0 netns host$h && ip link set v$h master h0 up
        ip -n host$h addr add 10.77.0.$((h + 1))/24 dev eth0 && ip -n host$h link set eth0 up || exit 77
    done
    root=10.77.0.1
}

on_host() { # 0|1 COMMAND...: one core a host
    local host=$1
    shift
    if [ "$fabric" = veth ]; then
        ip netns exec "host$host" taskset -c "$((host % $(nproc)))" "$@"
    else
        taskset -c "$((host % $(nproc)))" "$@"
    fi
}

# two_ranks PROGRAM ARGUMENTS...: rank 0's output
two_ranks() {
    local port=$((20000 + RANDOM % 20000)) other
    export PK_SIZE=2 PK_ROOT=$root:$port PK_INSECURE=1 PK_LOG=error
    PK_RANK=1 PK_HOST_ID=host1 on_host 1 "$@" >/dev/null &
    other=$!
    PK_RANK=0 PK_HOST_ID=host0 on_host 0 "$@"
    wait $other
}

# gigabytes_per_second of pickle-perf's only row
pingpong_gbps() { # PICKLE_PERF BYTES SAMPLES
    two_ranks "$1" sendrecv -p pingpong -b "$2" -e "$2" -n "$3" -w 2 -c 0 | awk '$3 == "f32" { print $10 }'
}

hardware() {
    echo "$(awk -F': ' '/model name/ { print $2; exit }' /proc/cpuinfo), $(nproc) CPUs, Linux $(uname -r), $(date +%F\ %R)," \
        "tcp_congestion_control $(cat /proc/sys/net/ipv4/tcp_congestion_control), load before $(cut -d' ' -f1 /proc/loadavg)"
}
