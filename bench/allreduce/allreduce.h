/* SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCH_ALLREDUCE_H
#define BENCH_ALLREDUCE_H

#include <stdbool.h>
#include <stddef.h>

struct allreduce_options {
    size_t numel;
    bool floats, gpu, in_place, verify, random, stats, all;
    unsigned jobs, warmup_jobs, sync_every, seed;
    double err; /* of the right value, per cent */
};

/* Prints what is wrong and ends the program. */
void allreduce_parse(int argc, char **argv, struct allreduce_options *options);

#endif
