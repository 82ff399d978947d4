#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Prints a port from 20000 to 31999 that nobody has (the kernel's own begin at 32768). A process id says where to look first, so that
# scripts that run side by side take different ones.
at=$$
while
    port=$((20000 + at % 12000))
    grep -q "^ *[0-9]*: [0-9A-F]*:$(printf %04X "$port") " /proc/net/tcp /proc/net/tcp6 2>/dev/null
do
    at=$((at + 7))
done
echo "$port"
