#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Does a source file call every symbol of the map?
# usage: all_called.sh lib/pickle.map FILE
set -u
missing=0
for symbol in $(grep -o '\bpk_[a-z0-9_]*' "$1" | sort -u); do
    grep -q "\b$symbol(" "$2" || {
        echo "$2 does not call $symbol"
        missing=$((missing + 1))
    }
done
[ "$missing" -eq 0 ]
