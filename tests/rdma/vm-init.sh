#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# The first process of the machine that vm.sh makes: loads modules, mounts, brings devices up, runs the command, switches off.
export PATH=/bin
/bin/busybox --install -s /bin


fail() {
    echo "vm-init: $*"
    poweroff -f
}

mount -t proc none /proc
mount -t sysfs none /sys
mount -t devtmpfs none /dev
for module in $(cat /modules/order); do
    insmod "/modules/$module" || echo "vm-init: $module does not load"
done

options=trans=virtio,version=9p2000.L,msize=262144
mkdir /host # stays as it is; in /root some folders get covered, and the tree may lie in one of them
mount -t 9p -o ro,$options,cache=loose root /host || fail "the file system of the host cannot be mounted"
mount --bind /host /root
for folder in proc sys dev; do
    mount --bind /$folder /root/$folder
done
mkdir -p /dev/shm /dev/pts
mount -t tmpfs none /dev/shm
mount -t devpts none /dev/pts
for folder in /tmp /run /mnt; do
    mount -t tmpfs none /root$folder
done
mkdir /root/mnt/job /root/mnt/out
mount -t 9p -o $options job /root/mnt/job || fail "the folder of the job cannot be mounted"
mount -t 9p -o $options out /root/mnt/out || fail "the folder for results cannot be mounted"
while read -r folder; do
    mkdir -p "/root$folder" && mount --bind "/host$folder" "/root$folder" || fail "$folder cannot be brought in"
done </root/mnt/job/keep

# Of the drivers that libibverbs would load into each process the one whose devices are here.
mkdir /root/run/drivers
cp /root/etc/libibverbs.d/rxe.driver /root/run/drivers && mount --bind /root/run/drivers /root/etc/libibverbs.d

cat >/root/run/devices.sh <<'DEVICES'
# One process for all: each takes 50 ms to start here. What leaves by a device goes over the wire, though both ends are addresses of this machine.
{
    echo "link set lo up
link add eth0 address 52:54:00:77:00:01 type veth peer name eth1 address 52:54:00:77:00:02
rule add pref 100 lookup local
rule del pref 0"
    for i in 0 1; do
        echo "addr add 10.77.0.$((i + 1))/24 dev eth$i
link set eth$i mtu 4500 up
rule add pref $((10 + i)) oif eth$i lookup $((10 + i))
route add 10.77.0.0/24 dev eth$i table $((10 + i))
neigh replace 10.77.0.1 dev eth$i lladdr 52:54:00:77:00:01 nud permanent
neigh replace 10.77.0.2 dev eth$i lladdr 52:54:00:77:00:02 nud permanent"
    done
} | ip -batch - || exit 1
for i in 0 1; do
    echo 1 >/proc/sys/net/ipv4/conf/eth$i/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/eth$i/rp_filter
    rdma link add rxe$i type rxe netdev eth$i || exit 1
done
DEVICES
chroot /root /bin/bash /run/devices.sh || fail "no RDMA device"

chroot /root /usr/bin/env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/tmp TMPDIR=/tmp LANG=C.UTF-8 \
    VM_OUT=/mnt/out HWLOC_PLUGINS_PATH=/none /bin/bash /mnt/job/command >/root/mnt/job/output 2>&1 </dev/null
echo $? >/root/mnt/job/code.new
mv /root/mnt/job/code.new /root/mnt/job/code
sync
poweroff -f
