/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words and numbers in the arguments of all programs here. What cannot be understood ends the program, with code 2 and a line that says
 * which argument it was. Needs nothing but libc.
 */
#ifndef BENCH_ARGUMENTS_H
#define BENCH_ARGUMENTS_H

#include <stddef.h>

/* Before the others: the program's name, for what they refuse. */
void arguments_of(const char *program);

/* "PROGRAM: WHAT 'VALUE' is not understood (--help)" */
_Noreturn void argument_refuse(const char *what, const char *value);

/* A decimal number, or one below 2^30 with K, M or G (1024, its square and cube; small letters too). */
size_t argument_size(const char *what, const char *value, size_t least, size_t most);
unsigned argument_number(const char *what, const char *value, unsigned least, unsigned most);

/* Which of `words`, up to NULL. */
int argument_word(const char *what, const char *value, const char *const *words);

#endif
