/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "shared.h"

#include <sched.h>
#include <time.h>

double now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

void relax(void)
{
    static _Thread_local unsigned n;

    if (++n & 63)
        __builtin_ia32_pause();
    else
        sched_yield();
}

void spin_us(double us)
{
    for (double t = now() + us * 1e-3; now() < t;)
        relax();
}
