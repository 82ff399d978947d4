#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# README's two commands on a fresh Debian 12: a minimal root of its own for each (mmdebstrap), without CUDA, with the tree as it is
# committed. Packages come by this machine's apt sources and settings. All of what they print goes to build/fresh/*.log; here come their
# last lines. Needs root; exit 77 where no root can be made.
# usage: scripts/fresh.sh [-r TARBALL] [-c FOLDER] [COMMAND...]
#     -r TARBALL  the minimal root: used if it is there, else made and kept
#     -c FOLDER   a folder of the tree that git does not list, and whose files come along
#     COMMAND     each in a root of its own (default: scripts/demo.sh scripts/test.sh)
set -uo pipefail
cd "$(dirname "$0")/.." || exit
. scripts/common.sh

tarball= status=0 carry=
while getopts r:c: option; do
    case $option in
    r) tarball=$OPTARG ;;
    c) carry=$OPTARG ;;
    *) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -gt 0 ] || set -- scripts/demo.sh scripts/test.sh

skip() {
    echo "SKIPPED: $*"
    exit 77
}

[ "$(id -u)" -eq 0 ] || skip "root is needed for roots"
for tool in mmdebstrap apt-config git unshare chroot; do
    have $tool || skip "$tool is not here (Debian: mmdebstrap, git)"
done

logs=$PWD/build/fresh
work=$(mktemp -d "${TMPDIR:-/var/tmp}/pickle-fresh.XXXXXX") || exit
trap 'rm -rf "$work"' EXIT # what is mounted there is seen by the command alone
mkdir -p "$logs"
tarball=${tarball:-$work/root.tar}

# How this machine's apt reaches its mirrors: proxies, retries, certificates.
apt_settings() { apt-config dump | grep -E '^Acquire::(https?|Retries|ForceIPv[46]|proxy)[: ]' | grep -v '""' || true; }

make_root() {
    local sources=()
    grep -qs 'VERSION_CODENAME=bookworm' /etc/os-release && mapfile -t sources < <(
        ls /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null)
    apt_settings >"$work/90settings"
    mmdebstrap --quiet --variant=minbase --aptopt="$work/90settings" \
        --setup-hook="mkdir -p \"\$1/etc/apt/apt.conf.d\"; cp '$work/90settings' \"\$1/etc/apt/apt.conf.d/\"" \
        bookworm "$tarball" "${sources[@]}" >"$logs/root.log" 2>&1
}

# in_root ROOT COMMAND: everything is mounted in a namespace of its own and ends with it; so does each process that is left.
in_root() {
    local names=(HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb) name
    for name in http_proxy https_proxy no_proxy; do
        [ -z "${!name:-}" ] || names+=("$name=${!name}")
    done
    # shellcheck disable=SC2016
    unshare --mount --pid --fork --kill-child bash -c 'root=$1 && shift && mount --bind "$root" "$root" &&
        mount -t proc proc "$root/proc" && mount --rbind /sys "$root/sys" && mount --rbind /dev "$root/dev" &&
        mount -t tmpfs tmpfs "$root/dev/shm" && exec chroot "$root" "$@"' - \
        "$1" /usr/bin/env -i "${names[@]}" bash -c "cd /root/libpickle && $2" </dev/null
}

# fresh COMMAND: in a root that nobody has used.
fresh() {
    local name root code=0 begun=$SECONDS
    name=$(basename "${1%% *}" .sh)
    root=$work/$name
    say "$1 on a fresh Debian 12"
    mkdir -p "$root" && tar -C "$root" -xf "$tarball" --exclude=./dev/* && mkdir -p "$root/root/libpickle" || exit
    git archive HEAD | tar -C "$root/root/libpickle" -x || exit
    [ -z "$carry" ] || { mkdir -p "$root/root/libpickle/$carry" && find "$carry" -maxdepth 1 -type f -exec cp {} "$root/root/libpickle/$carry" \; ; } || exit
    rm -f "$root/etc/resolv.conf"
    cp -L /etc/resolv.conf "$root/etc/resolv.conf" 2>/dev/null
    in_root "$root" "$1" >"$logs/$name.log" 2>&1 || code=$?
    grep -E '^FAILED|SKIPPED|\*\*\*Failed' "$logs/$name.log" | sort -u
    tail -n 2 "$logs/$name.log"
    echo "exit code $code after $((SECONDS - begun)) s; all of it: $logs/$name.log"
    rm -rf "$root"
    [ "$code" -eq 0 ] || status=1
}

if [ ! -f "$tarball" ]; then
    make_root || {
        rm -f "$tarball"
        tail -n 5 "$logs/root.log"
        skip "mmdebstrap made no root"
    }
fi
for command; do
    fresh "$command"
done
exit "$status"
