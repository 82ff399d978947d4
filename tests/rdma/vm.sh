#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Run a command on a machine that has an RDMA device: a small virtual one (Debian's kernel with Soft-RoCE under qemu's software emulation)
# whose file system is this machine's, read-only, so that it runs the programs that have just been built here.
#
# usage: vm.sh [--timeout SECONDS] COMMAND...        (a single argument is a line for the shell)
#
# Devices rxe0 and rxe1 with the addresses 10.77.0.1 and 10.77.0.2 on eth0 and eth1, the two ends of one wire; what goes from one to the
# other passes over it (and through tc, so netem can lose packets), though both addresses are one machine's. The working directory and PK_*,
# PICKLE_*, LD_LIBRARY_PATH are the caller's. /tmp is empty there; what must come back is written to $VM_OUT, which is a folder here too
# (given by the caller, or thrown away).
# Exit code: the command's; 77 when the machine cannot be made here (packages are not available); 124 when time has run out; 123 when the
# machine's kernel has locked up; 125 when the machine did not come up. The kernel and what it boots from are kept in
# ${PICKLE_VM_CACHE:-${XDG_CACHE_HOME:-~/.cache}/pickle-vm}.
set -u -o pipefail

limit=300
while [ $# -gt 0 ]; do
    case $1 in
    --timeout) limit=$2; shift 2 ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || { sed -n '3,14s/^# \{0,1\}//p' "$0"; exit 2; }

cache=${PICKLE_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pickle-vm}
modules="virtio_pci virtio_rng 9pnet_virtio 9p veth crc32_generic ib_uverbs rdma_ucm rdma_rxe sch_netem"

skip() { echo "SKIPPED: no virtual machine: $*"; exit 77; }

for tool in qemu-system-x86_64 apt-get dpkg-deb depmod modprobe cpio gzip; do
    command -v $tool >/dev/null || skip "$tool is not here (Debian: qemu-system-x86, kmod, cpio)"
done
busybox=$(command -v busybox) || skip "busybox is not here (Debian: busybox-static)"
ldd "$busybox" >/dev/null 2>&1 && skip "busybox is not static (Debian: busybox-static)"
[ "$(uname -m)" = x86_64 ] || skip "this recipe is for x86_64"

# The kernel's package, downloaded and unpacked, never installed.
unpack_kernel() {
    local name
    name=$(apt-cache depends linux-image-amd64 2>/dev/null | awk '/Depends: linux-image-[0-9]/ { print $2; exit }')
    [ -n "$name" ] || skip "apt knows no linux-image-amd64"
    (cd "$1" && apt-get -q -o APT::Sandbox::User=root download "$name" >download.log 2>&1) || { cat "$1/download.log"; skip "$name cannot be downloaded"; }
    dpkg-deb -x "$1"/"$name"_*.deb "$1/root" || skip "$name cannot be unpacked"
    rm -f "$1"/*.deb
}

# An initramfs: busybox, the modules in the order in which they are loaded, and init.
make_initramfs() {
    local tree=$1/initramfs version root=$1/root
    version=$(ls "$root/lib/modules")
    depmod -b "$root" "$version" || skip "depmod failed"
    mkdir -p "$tree"/{bin,proc,sys,dev,modules,root}
    cp "$busybox" "$tree/bin/busybox"
    for module in $modules; do
        modprobe -d "$root" -S "$version" --show-depends "$module" || skip "the kernel has no module $module"
    done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }' >"$1/order"
    : >"$tree/modules/order"
    while read -r file; do
        cp "$file" "$tree/modules/"
        basename "$file" >>"$tree/modules/order"
    done <"$1/order"
    cp "$(dirname "$0")/vm-init.sh" "$tree/init"
    chmod +x "$tree/init"
    (cd "$tree" && find . | cpio -o -H newc --quiet | gzip -1) >"$1/initramfs.gz" || skip "cpio failed"
}

make_image() {
    local fresh
    mkdir -p "$cache" || skip "$cache cannot be made"
    exec 9>"$cache/lock"
    flock -w 600 9 || skip "$cache is locked"
    if [ ! -f "$cache/vmlinuz" ]; then
        fresh=$(mktemp -d "$cache/new.XXXXXX")
        unpack_kernel "$fresh"
        cp "$fresh"/root/boot/vmlinuz-* "$fresh/vmlinuz"
        rm -rf "$cache/root"
        mv "$fresh/root" "$cache/root"
        mv "$fresh/vmlinuz" "$cache/vmlinuz"
        rm -rf "$fresh"
    fi
    if [ ! -f "$cache/initramfs.gz" ] || [ "$(dirname "$0")/vm-init.sh" -nt "$cache/initramfs.gz" ]; then
        rm -rf "$cache/initramfs" "$cache/initramfs.gz"
        make_initramfs "$cache"
    fi
    flock -u 9
}

make_image

job=$(mktemp -d "${TMPDIR:-/tmp}/pickle-vm.XXXXXX") || exit 125
trap 'rm -rf "$job"' EXIT
out=${VM_OUT:-$job/out-files}
mkdir -p "$out"
{
    echo "cd $(printf %q "$PWD") || exit 125"
    export -p | grep -E '^declare -x (PK_|PICKLE_|LD_LIBRARY_PATH=|CRITERION_|OMPI_)'
    if [ $# -eq 1 ]; then echo "$1"; else printf '%q ' "$@"; echo; fi
} >"$job/command"
: >"$job/output"
tree=$(cd "$(dirname "$0")/../.." && pwd)
printf '%s\n' "$tree" "$PWD" | grep -E '^/(tmp|run|mnt)/' >"$job/keep" # folders that are covered in the machine

# One processor: with two the emulator spends a fifth more on the same, and ranks that wait give way to one another on one.
# The emulator does string instructions a byte at a time: without them the kernel and the C library copy and clear by words. Nor are pages
# cleared for nothing.
slow=erms=off,fsrm=off,la57=off,smap=off,smep=off,pku=off,umip=off quick="clearcpuid=rep_good init_on_alloc=0 audit=0"
# What guards a kernel, and what makes it prompt, is of no use in it either.
quick="$quick lsm= hardened_usercopy=off randomize_kstack_offset=off preempt=none"
# Soft-RoCE of Linux 6.1 may spin for ever within a call when a link goes down: the kernel sees that after a minute, and ends.
quick="$quick watchdog_thresh=30 softlockup_panic=1"
timeout -k 5 "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu "max,$slow" -smp 1 -m 2048 -nodefaults -no-user-config -no-reboot \
    -display none -monitor none -serial "file:$job/console" -kernel "$cache/vmlinuz" -initrd "$cache/initramfs.gz" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off $quick nokaslr tsc=reliable cryptomgr.notests random.trust_cpu=on" -device virtio-rng-pci \
    -virtfs "local,path=/,mount_tag=root,security_model=none,readonly=on,multidevs=remap" \
    -virtfs "local,path=$job,mount_tag=job,security_model=none" -virtfs "local,path=$out,mount_tag=out,security_model=none" \
    </dev/null &
qemu=$!
tail -q -f --pid=$qemu "$job/output" & # what the command says, while it says it
tail=$!
wait $qemu
ended=$?
wait $tail 2>/dev/null
if [ -f "$job/code" ]; then
    exit "$(cat "$job/code")"
fi
echo "vm.sh: the machine ended without an exit code (qemu: $ended); the end of its console:"
tail -n 60 "$job/console" 2>/dev/null
[ $ended -eq 124 ] || [ $ended -eq 137 ] && exit 124
grep -q 'soft lockup' "$job/console" && exit 123
exit 125
