#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# All that a release needs, in build/release: the tree's tests on a fresh system, its ABI against the record, the tarball, Debian
# packages, a wheel, SPDX, and the sums of these. It publishes nothing and tags nothing; its last line says how to tag. Root is
# needed for fresh roots.
# usage: scripts/release.sh [-n] [-r TARBALL] VERSION
#     -n          for trial: VERSION may be unreleased in CHANGELOG.md, the tree may have changes, and README's two commands
#                 are left out
#     -r TARBALL  the minimal root of scripts/fresh.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

trial= tarball=
while getopts nr: option; do
    case $option in
    n) trial=1 ;;
    r) tarball=$OPTARG ;;
    *) sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
shift $((OPTIND - 1))
[ $# -eq 1 ] || { sed -n '3,9s/^# \{0,1\}//p' "$0"; exit 2; }
version=$1
out=$PWD/build/release

wrong() {
    echo "release: $*"
    [ -n "$trial" ] || exit 1
}

say "version $version"
[ "$(version_of_tree)" = "$version" ] || { echo "release: include/pickle/base.h says $(version_of_tree)"; exit 1; }
grep -q "^## \[$version\] - [0-9]\{4\}-[0-9][0-9]-[0-9][0-9]$" CHANGELOG.md ||
    wrong "CHANGELOG.md has no section '## [$version] - DATE'"
! grep -q '^## \[.*\] - unreleased$' CHANGELOG.md || wrong "CHANGELOG.md has a section that is unreleased"
[ -z "$(git status --porcelain)" ] || wrong "the tree has changes that are not committed"
! git rev-parse -q --verify "refs/tags/v$version" >/dev/null || wrong "v$version is tagged already"

say "ABI, and faults of ranks under torch"
cmake --preset dev ${PICKLE_FATBIN:+"-DPICKLE_FATBIN=$PICKLE_FATBIN"} >/dev/null
cmake --build --preset dev --target pickle python
ctest --preset dev -R '^abi' --output-on-failure
status=0
PYTHONPATH=build/dev/python sh python/tests/run.sh torch 1 python/tests/torch_faults.py all || status=$?
[ "$status" -eq 0 ] || [ "$status" -eq 77 ] || exit "$status"

say "pages"
scripts/pages.sh >/dev/null || [ $? -eq 77 ]

[ -n "$trial" ] || scripts/fresh.sh ${tarball:+-r "$tarball"}

rm -rf "$out"
mkdir -p "$out"
say "tarball"
git archive --format=tar --prefix="libpickle-$version/" HEAD | gzip -n -9 >"$out/libpickle-$version.tar.gz"
scripts/packages.sh ${tarball:+-r "$tarball"}
cp build/packages/*.deb "$out"
scripts/wheel.sh
cp build/wheel/*.whl "$out"
say "SPDX and sums"
python3 scripts/sbom.py . "$out"/* >"$out.spdx"
mv "$out.spdx" "$out/libpickle-$version.spdx.json"
(cd "$out" && sha256sum -- * >SHA256SUMS && cat SHA256SUMS)
echo "git tag -s v$version -m 'libpickle $version'"
