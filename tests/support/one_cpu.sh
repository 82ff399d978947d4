#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A program on one processor: ranks that wait there give way to those they wait for, and leave the other processors to other tests.
# usage: one_cpu.sh NUMBER PROGRAM...     NUMBER: any; programs with different ones keep to different processors where there are several
number=$1
shift
command -v taskset >/dev/null || exec "$@"
# As 0-3,8: each by itself.
cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status | tr ',' '\n' | while IFS=- read -r first last; do
    seq "$first" "${last:-$first}"
done)
index=$((number % $(echo "$cpus" | wc -l) + 1))
exec taskset -c "$(echo "$cpus" | sed -n "${index}p")" "$@"
