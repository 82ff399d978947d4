/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of ranks: argument lists under construction, and environment variables. */
#ifndef COMPARE_WORDS_H
#define COMPARE_WORDS_H

#include "driver.h"

#define WORDS_MAX 96
#define SPEC_BYTES 512

struct words {
    char *list[WORDS_MAX]; /* ends with NULL */
    int count;
    char storage[COMMAND_BYTES * 2];
    size_t used;
};

void words_add_one(struct words *words, const char *text, size_t length);
/* The parts of `text`, which may be NULL, between dividers. */
void words_add(struct words *words, const char *text, const char *divider);
/* The same between blanks, with the rank for each %r. */
void words_add_for_rank(struct words *words, const char *text, int rank);
/* Set each NAME=VALUE in this process; %r in a value is the rank. */
void words_set_variables(char *const *words, int rank);

#endif
