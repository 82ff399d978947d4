/* SPDX-License-Identifier: Apache-2.0 */
/* What tests measure by. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stddef.h>
#include <stdint.h>

int64_t monotonic_ns(void);
double monotonic_ms(void);
/* How many times longer than the headers promise things may take: PICKLE_TEST_SLACK, 20 by default so that no test depends on the
 * machine's speed or on what else it does. 1 holds the promises themselves. */
double test_slack(void);
/* Descriptors of this process; always a few too many, and by the same number each time. Ends the process when it cannot count them. */
int open_files(void);
/* How many mappings this process has. */
unsigned long mappings_here(void);
/* How many of n bytes are not `value`. */
size_t bytes_other_than(unsigned char value, const unsigned char *bytes, size_t n);

#endif
