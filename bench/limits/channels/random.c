/* SPDX-License-Identifier: Apache-2.0 */
#include "parent.h"

static uint64_t state = 88172645463325252u;

void random_start(uint64_t seed)
{
    state += seed;
}

unsigned rnd(unsigned n)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 11) % n;
}
