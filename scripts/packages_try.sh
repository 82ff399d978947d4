#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The packages of build/packages on a system that has nothing of libpickle (scripts/packages.sh calls it in a fresh root): installed
# as README says, tried by debian/tests, and removed without a trace.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh
export DEBIAN_FRONTEND=noninteractive
here=$PWD

# Everything that could be left behind, but not the tree, nor what apt itself keeps.
files() {
    find / -xdev \( -path "$here" -o -path /proc -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/cache -o -path /var/log \
        -o -path '/usr/lib/python3*/dist-packages/numpy' -o -path '/usr/lib/python3.*' \) -prune -o -print | grep -i pickle || true
}

apt-get update -q
before=$(files)
say "apt install ./libpickle*.deb"
(cd build/packages && apt-get install -q -y --no-install-recommends ./libpickle*.deb)
apt-get install -q -y --no-install-recommends gcc libc6-dev pkg-config
sh debian/tests/readme
say "the others"
(cd build/packages && apt-get install -q -y --no-install-recommends ./pickle-tools_*.deb ./python3-libpickle_*.deb python3-numpy)
sh debian/tests/tools
sh debian/tests/python
say "apt purge"
apt-get purge -q -y libpickle0 libpickle-dev libpickle-nccl pickle-tools python3-libpickle
after=$(files)
[ "$before" = "$after" ] || { echo "left behind:"; diff <(echo "$before") <(echo "$after"); exit 1; }
echo "packages: installed, tried and removed"
