#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A wheel of the tree in build/wheel, for every Python 3 of this kind of machine: the library is inside, with hwloc and libcrypto.
# Then it is tried in an empty virtual environment that has NumPy alone: two processes reduce, and nothing of the system's
# libpickle, hwloc or libcrypto is loaded. PICKLE_FATBIN in the environment: GPU kernels that were compiled before. PYTHON: the
# Python of the trial (default: Debian's).
# usage: scripts/wheel.sh
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/common.sh

out=$PWD/build/wheel
python=${PYTHON:-/usr/bin/python3}
bash scripts/setup.sh need release
for tool in patchelf objdump strip; do
    have $tool || { echo "$tool is not here (Debian: patchelf binutils)"; exit 77; }
done

say "build"
cmake -S . -B "$out/tree" -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr/local -DCMAKE_INSTALL_LIBDIR=lib \
    -DPICKLE_PYTHON_DIR=python -DPICKLE_BUILD_TESTS=OFF -DPICKLE_BUILD_TOOLS=OFF -DPICKLE_BUILD_DOCS=OFF \
    ${PICKLE_FATBIN:+"-DPICKLE_FATBIN=$PICKLE_FATBIN"} >"$out.log" 2>&1 || { cat "$out.log"; exit 1; }
cmake --build "$out/tree" >>"$out.log" 2>&1 || { tail -n 30 "$out.log"; exit 1; }
rm -rf "$out/prefix" "$out"/*.whl "$out/venv"
cmake --install "$out/tree" --prefix "$out/prefix" >/dev/null
wheel=$(python3 python/wheel.py . "$out/prefix" "$out/prefix/python/libpickle" "$out")
ls -l "$wheel"

say "in an empty environment"
"$python" -c 'import numpy, pip' 2>/dev/null || { echo "SKIPPED: $python has no NumPy or no pip"; exit 77; }
"$python" -m venv --without-pip --system-site-packages "$out/venv"
"$python" -m pip --disable-pip-version-check --python "$out/venv/bin/python" install --quiet --no-deps --no-index \
    --force-reinstall "$wheel"
cat >"$out/trial.py" <<'EOF'
import os
import libpickle

libpickle.topology() # asks hwloc
here = os.path.dirname(libpickle.__file__)
assert here.startswith(os.environ["VIRTUAL"]), here
with open("/proc/self/maps", encoding="utf-8") as file: # before NumPy, which may bring a libcrypto of its own
    loaded = {line.split()[-1] for line in file if any(word in line for word in ("/libpickle.so", "/libhwloc", "/libcrypto"))}
assert len(loaded) == 3 and all(path.startswith(here) for path in loaded), loaded
assert os.path.exists(os.path.join(here, "include", "pickle", "pickle.h"))

import numpy

with libpickle.Communicator() as comm:
    mine, total = numpy.full(100000, comm.rank + 1.0), numpy.empty(100000)
    comm.Allreduce(mine, total)
    assert (total == 3).all()
if comm.rank == 0:
    print("2 ranks, right sum, from " + here)
EOF
cd "$out"
VIRTUAL=$out/venv sh ../../tests/support/processes.sh env 2 "$out/venv/bin/python" "$out/trial.py"
loaded=$("$out/venv/bin/python" -m libpickle.nccl -- "$out/venv/bin/python" -c '
import ctypes, os
version = ctypes.c_int()
assert ctypes.CDLL("libnccl.so.2").ncclGetVersion(ctypes.byref(version)) == 0
print(os.environ["LD_PRELOAD"], version.value)')
case $loaded in
"$out"/venv/*/libpickle/lib/pickle/nccl/libnccl.so.2\ *) echo "NCCL's interface: $loaded" ;;
*) echo "NCCL's interface: $loaded"; exit 1 ;;
esac
