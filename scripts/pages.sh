#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The pages of docs, and README.md, as HTML: build/pages/html/index.html. A link that leads nowhere is an error. Exit 77: there is no
# Sphinx, or not its reader of Markdown (scripts/setup.sh docs installs them).
# usage: scripts/pages.sh [FOLDER]     instead of build/pages
set -euo pipefail
cd "$(dirname "$0")/.."

out=${1:-$PWD/build/pages}
sphinx=
for python in python3 /usr/bin/python3; do
    if "$python" -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec("sphinx") and u.find_spec("myst_parser")))' 2>/dev/null; then
        sphinx=$python
        break
    fi
done
[ -n "$sphinx" ] || { echo "SKIPPED: no Sphinx that reads Markdown (Debian: python3-sphinx python3-myst-parser)"; exit 77; }
rm -rf "$out/source" "$out/html"
mkdir -p "$out"
python3 docs/pages/stage.py . "$out/source"
PYTHONDONTWRITEBYTECODE=1 "$sphinx" -m sphinx -W --keep-going -q -E -b html -c docs/pages -d "$out/doctrees" "$out/source" "$out/html"
python3 tests/abi/links.py "$out/html"
echo "$out/html/index.html"
