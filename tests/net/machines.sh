# SPDX-License-Identifier: Apache-2.0
# For scripts that source it: two "machines" on this one, network namespaces "a" and "b" on one bridge, each with its own /etc/hosts; everything is in
# a namespace of its own that ends with the script. Each has a docker0 with the address that it has everywhere, and a lower index than eth0; "a" also
# has a card mgmt0, first of all, in a network that leads nowhere from "b". Names are looked up in /etc/hosts alone.
#   machines_enter "$0" "$@"     first of all: exits with 77 where this is not allowed
#   machines_make FOLDER
#   on MACHINE HOSTS COMMAND...  runs there with the file HOSTS as /etc/hosts
#   on_slow MACHINE HOSTS COMMAND...  and with a name server that never answers

machines_enter() {
    if [ -n "${PICKLE_NET_INSIDE:-}" ]; then
        return
    fi
    if ! unshare -n -m true 2>/dev/null || ! command -v ip >/dev/null; then
        echo "SKIPPED: network namespaces need root (CAP_SYS_ADMIN) and iproute2"
        exit 77
    fi
    PICKLE_NET_INSIDE=1 exec unshare -n -m "$@"
}

machine_cards() { # NAMESPACE NUMBER
    ip netns add "$1" && ip -n "$1" link set lo up || exit 77
    if [ "$1" = a ]; then
        ip -n a link add mgmt0 type veth peer name mgmt0-end && ip -n a link set mgmt0-end up && ip -n a addr add 10.98.0.1/24 dev mgmt0 &&
            ip -n a link set mgmt0 up || exit 77
    fi
    ip -n "$1" link add docker0 type bridge && ip -n "$1" link add veth0 type veth peer name veth1 &&
        ip -n "$1" link set veth0 master docker0 up && ip -n "$1" link set veth1 up &&
        ip -n "$1" addr add 172.17.0.1/16 dev docker0 && ip -n "$1" link set docker0 up || exit 77
    ip link add "to-$1" type veth peer name eth0 netns "$1" && ip link set "to-$1" master between up || exit 77
    ip -n "$1" addr add "10.99.0.$2/24" dev eth0 && ip -n "$1" addr add "fd77::$2/64" dev eth0 nodad && ip -n "$1" link set eth0 up || exit 77
}

# The kernel takes a moment to find that a card has a carrier, and a test none that has none.
machine_await() { # MACHINE CARD
    local n
    for ((n = 0; n < 200; n++)); do
        if ip -n "$1" -o link show "$2" | grep -q ',LOWER_UP.* state UP'; then return; fi
        sleep 0.05
    done
    echo "$2 of machine $1 gets no carrier"
    exit 3
}

machines_make() {
    machines=$1
    mount --make-rprivate / && mkdir -p /run/netns && mount -t tmpfs netns /run/netns || exit 77
    ip link add between type bridge && ip link set between up || { echo "SKIPPED: no bridge in this kernel"; exit 77; }
    machine_cards a 1
    machine_cards b 2
    machine_await a mgmt0
    for machine in a b; do
        machine_await "$machine" docker0
        machine_await "$machine" eth0
    done
    # What "b" sends to the network of mgmt0 is lost, and nobody says so.
    ip -n b neigh add 10.99.0.254 lladdr 02:00:00:00:00:fe dev eth0 nud permanent && ip -n b route add 10.98.0.0/24 via 10.99.0.254
    echo "hosts: files" >"$machines/files"
    echo "hosts: files dns" >"$machines/dns"
    printf 'nameserver 10.98.0.53\noptions timeout:10 attempts:3\n' >"$machines/resolv"
    copy_etc
}

# What is mounted over must be there.
copy_etc() {
    local file
    for file in hosts nsswitch.conf resolv.conf; do
        [ -e /etc/$file ] || [ -d "$machines/etc" ] || cp -a /etc "$machines/etc"
    done
    [ ! -d "$machines/etc" ] || touch "$machines"/etc/{hosts,nsswitch.conf,resolv.conf}
}

# in_machine MACHINE HOSTS NSSWITCH RESOLV COMMAND...: RESOLV may be empty. In a copy of /etc where there is one.
in_machine() {
    local where=$1
    shift
    # shellcheck disable=SC2016
    ip netns exec "$where" unshare -m sh -c '{ [ ! -d "$1" ] || mount --bind "$1" /etc; } && mount --bind "$2" /etc/hosts &&
        mount --bind "$3" /etc/nsswitch.conf && { [ -z "$4" ] || mount --bind "$4" /etc/resolv.conf; } && shift 4 && exec "$@"' \
        sh "$machines/etc" "$@"
}

on() {
    local where=$1 hosts=$2
    shift 2
    in_machine "$where" "$hosts" "$machines/files" "" "$@"
}

on_slow() {
    local where=$1 hosts=$2
    shift 2
    in_machine "$where" "$hosts" "$machines/dns" "$machines/resolv" "$@"
}
