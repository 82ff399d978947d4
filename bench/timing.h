/* SPDX-License-Identifier: Apache-2.0 */
/* The clock of all programs here, and what they make of samples. Needs nothing but libc. */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stddef.h>

/* Of the machine's monotonic clock. */
double now_us(void);
/* Both sort the samples, the least first. */
void sort_up(double *samples, size_t n);
double median(double *samples, size_t n);

#endif
