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

/* False: the command was not understood, or asked for help; *rc is main's value. */
bool allreduce_parse(int argc, char **argv, struct allreduce_options *options, int *rc);

#endif
