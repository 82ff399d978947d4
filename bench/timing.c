/* SPDX-License-Identifier: Apache-2.0 */
#include "timing.h"

#include <stdlib.h>
#include <time.h>

double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void sort_up(double *samples, size_t n)
{
    qsort(samples, n, sizeof *samples, by_size);
}

double median(double *samples, size_t n)
{
    sort_up(samples, n);
    return n % 2 == 1 ? samples[n / 2] : (samples[n / 2 - 1] + samples[n / 2]) / 2;
}
