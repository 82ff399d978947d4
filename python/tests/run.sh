#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Run a test of the Python package as N ranks, by the first Python that has a module: of python3 in PATH and Debian's. Exit 77:
# none has it.
# usage: run.sh MODULE N PROGRAM.py [ARGUMENT...]      PYTHONPATH names the package's folder
module=$1
ranks=$2
shift 2
for python in "${PICKLE_TEST_PYTHON:-python3}" /usr/bin/python3; do
    # Found, not imported: that takes seconds of torch.
    if "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec(sys.argv[1]))' "$module" 2>/dev/null; then
        exec sh "$(dirname "$0")/../../tests/support/processes.sh" env "$ranks" "$python" -W error::ResourceWarning "$@"
    fi
done
echo "SKIPPED: no Python here has $module"
exit 77
