/* SPDX-License-Identifier: Apache-2.0 */
/* Files of results, and what to say of the machine they come from. Needs nothing but libc. */
#ifndef BENCH_OUTPUT_H
#define BENCH_OUTPUT_H

#include <stddef.h>
#include <stdio.h>

/* A file to write; NULL without a path. Ends the program with 2 when it cannot be written, as a wrong argument does. */
FILE *output_open(const char *path);
/* NULL is nothing. Ends the program with 1 when not everything could be written. */
void output_close(FILE *file, const char *path);
/* What was written so far is in the file, which is whole with `end` behind it (NULL: as it is); the next write replaces `end` and must not be
 * shorter. NULL file: nothing. */
void output_flush(FILE *file, const char *end);
/* `text`, or its first `length` bytes, as a JSON string with its quotes. */
void output_json_string(FILE *out, const char *text);
void output_json_text(FILE *out, const char *text, size_t length);
/* "unknown CPU" where the system does not say. */
void output_cpu_model(char *out, size_t bytes);

#endif
