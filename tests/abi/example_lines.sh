#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Every example by the line that its own header gives, against an installed package; without mpirun each alone.
# usage: example_lines.sh SOURCE_DIR PREFIX
set -eu
source=$1
prefix=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT INT TERM

cp -r "$source"/examples/. "$work"
cd "$work"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name pickle.pc)")
LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libpickle.so)")
PK_TIMEOUT_MS=30000
# As root, and on fewer cores than ranks.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export PKG_CONFIG_PATH LD_LIBRARY_PATH PK_TIMEOUT_MS OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM
export OMPI_MCA_rmaps_base_oversubscribe OMPI_MCA_hwloc_base_binding_policy
done=0
for program in *.c *.cc; do
    line=$(sed -n 's|^[ /]*\*\{0,1\} *\(c[c+]* .*pkg-config.*\)$|\1|p' "$program" | head -n 1)
    [ -n "$line" ] || { echo "$program: its header says no line"; exit 1; }
    command -v mpirun >/dev/null || line=$(echo "$line" | sed 's/mpirun -n [0-9]* //')
    timeout 60 sh -euc "$line" >log 2>&1 || { echo "$program: '$line' failed:"; cat log; exit 1; }
    done=$((done + 1))
done

# Those that are folders: by cmake, in their folder.
CMAKE_PREFIX_PATH=$prefix
export CMAKE_PREFIX_PATH
for main in */main.c; do
    line=$(sed -n 's|^ \* *\(cmake .*\)$|\1|p' "$main" | head -n 1)
    [ -n "$line" ] || { echo "$main: its header says no line"; exit 1; }
    command -v mpirun >/dev/null || line=$(echo "$line" | sed 's/mpirun -n [0-9]* //')
    (cd "$(dirname "$main")" && rm -rf build && timeout 150 sh -euc "$line") >log 2>&1 || { echo "$main: '$line' failed:"; cat log; exit 1; }
    done=$((done + 1))
done
echo "$done examples, each by its own line"
