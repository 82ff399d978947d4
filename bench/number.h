/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers in arguments of the programs. Needs nothing but libc. */
#ifndef BENCH_NUMBER_H
#define BENCH_NUMBER_H

#include <stdbool.h>
#include <stddef.h>

/* A decimal number, or one below 2^30 with K, M or G (1024, its square and cube; small letters too). False: it is something else. */
bool number_parse(const char *text, size_t *number);

#endif
