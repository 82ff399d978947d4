#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The stripped library stays under 2 MB (2 * 10^6 bytes), all kernels included. usage: size.sh LIBRARY [LIMIT]
library=$1
limit=${2:-2000000}
copy=$(mktemp) || exit 2
trap 'rm -f "$copy"' EXIT
strip -s -o "$copy" "$library" || exit 2
bytes=$(wc -c < "$copy")
echo "$library: $bytes bytes stripped, at most $limit"
[ "$bytes" -gt 10000 ] && [ "$bytes" -lt "$limit" ]
