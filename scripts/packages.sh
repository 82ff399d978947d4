#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Debian packages of the tree as it is (what git lists), for this machine's release: libpickle0, libpickle-dev, pickle-tools, libpickle-nccl,
# python3-libpickle; then lintian, which must find neither errors nor warnings. They come to build/packages. The version is that of
# include/pickle/base.h. PICKLE_FATBIN in the environment: GPU kernels that were compiled before.
# usage: scripts/packages.sh [-r TARBALL] [-b]
#     -b          build alone
#     -r TARBALL  then install them in a fresh minimal root (fresh.sh -r), compile and run README's program there, and remove them
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

tarball= try=1
while getopts r:b option; do
    case $option in
    r) tarball=$OPTARG ;;
    b) try= ;;
    *) sed -n '3,8s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done

out=$PWD/build/packages
version=$(version_of_tree)
tree=$out/libpickle-$version
export DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS-parallel=$(nproc)}"

# What the version and the list of symbols are made of stands in one place each.
write_changelog() {
    local date
    date=$(git log -1 --format=%cD 2>/dev/null || date -R)
    printf 'libpickle (%s) unstable; urgency=medium\n\n  * Release %s: what has changed stands in CHANGELOG.md.\n\n -- %s  %s\n' "$version" "$version" \
        "$(sed -n 's/^Maintainer: //p' debian/control)" "$date" >"$tree/debian/changelog"
}

write_symbols() {
    awk -v since="$(sed -n 's/^\(PICKLE_[0-9.]*\) {.*/\1/p' lib/pickle.map | head -n 1)" -v soname="libpickle.so.${version%%.*}" '
        BEGIN { print soname " libpickle0 #MINVER#" }
        /^PICKLE_[0-9.]+ \{/ { stanza = $1; number = substr($1, 8) ".0"; print " " stanza "@" stanza " " number }
        /^ *pk_[a-z_0-9]+;/ { sub(/;/, "", $1); print " " $1 "@" stanza " " number }' lib/pickle.map >"$tree/debian/libpickle0.symbols"
}

bash scripts/setup.sh need release
for tool in dpkg-buildpackage dh lintian fakeroot; do
    have $tool || { echo "$tool is not here (Debian: dpkg-dev debhelper dh-python lintian fakeroot)"; exit 77; }
done
rm -rf "$out"
mkdir -p "$tree"
git ls-files -z | tar --null --files-from=- --create | tar -C "$tree" --extract
write_changelog
write_symbols

say "libpickle $version"
(cd "$tree" && dpkg-buildpackage -us -uc -b) >"$out/build.log" 2>&1 || { tail -n 40 "$out/build.log"; exit 1; }
say "lintian"
lintian --allow-root --fail-on error,warning "$out"/*.changes
ls -l "$out"/*.deb
[ -n "$try" ] || exit 0
scripts/fresh.sh ${tarball:+-r "$tarball"} -c build/packages scripts/packages_try.sh
