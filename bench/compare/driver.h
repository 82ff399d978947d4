/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-compare's driver: worlds of ranks, of which one works at a time, and the tables of what they took. */
#ifndef COMPARE_DRIVER_H
#define COMPARE_DRIVER_H

#include "compare.h"

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#define WORLDS_MAX 14
#define RANKS_MAX 64
#define ROUNDS_MAX 100
#define LABEL_BYTES 48
#define COMMAND_BYTES 1024

struct driver_options {
    int ranks;
    bool net;          /* between hosts: TCP where a library has something else */
    const char *enter; /* with net: words before each rank's command, %r the rank; mpirun gets rank 0's; NULL: none */
    const char *root;  /* with net: where ranks of libpickle meet, without the port */
    bool bind;         /* each rank to a core, in turn */
    bool backwards;    /* the last world of the list is started first, and so has the memory that others get otherwise */
    bool operations[COMPARE_OPS];
    size_t begin_bytes, end_bytes;
    unsigned factor, rounds;
    double turn_us;     /* how long a world works before the next has its turn */
    const char *worlds; /* list, or NULL */
    const char *csv_path, *json_path;
};

/* BARE: no library, only the copies and sums. */
enum driver_family { FAMILY_PICKLE, FAMILY_OMPI, FAMILY_GLOO, FAMILY_BARE, FAMILIES };

/* Ranks of one library with one setting. */
struct driver_world {
    char label[LABEL_BYTES];
    enum driver_family family;
    char command[COMMAND_BYTES];       /* as it is printed, with what is set */
    char settings[COMPARE_TEXT_BYTES]; /* rank 0's hello */
    char absent[COMPARE_TEXT_BYTES];   /* why it does not take part; empty: it does */
    unsigned operations;
    int ranks;
    int fds[RANKS_MAX];
    pid_t pids[RANKS_MAX]; /* of what was started: one a rank, or one launcher */
    int started;
};

/* What one world took for one operation and size, in microseconds. */
struct driver_result {
    bool measured;
    double median_us, p99_us, min_us;
    double turn_us[ROUNDS_MAX]; /* median of each turn */
    double switches;            /* of cores to another process, of all ranks together, of one operation */
    unsigned samples;
    uint64_t wrong;
    char note[COMPARE_NOTE_BYTES];
};

struct driver_row {
    enum compare_op op;
    size_t bytes;
    struct driver_result results[WORLDS_MAX];
};

struct driver {
    struct driver_options options;
    struct driver_world worlds[WORLDS_MAX];
    int world_count;
    char folder[64]; /* sockets, logs and what libraries meet by */
    int listener;
    FILE *csv, *json;
    bool first_row;
    uint64_t wrong;
    bool died; /* a world of libpickle that had taken part */
};

/* main.c */
const char *driver_op_name(enum compare_op op);

/* args.c. Ends the program when the arguments cannot be understood. */
void driver_parse(int argc, char **argv, struct driver_options *options);

/* world.c */
/* Start all worlds that were asked for, one after another. One that cannot be is kept, with the reason. */
void driver_start(struct driver *driver);
void driver_stop(struct driver *driver);
/* Give an order and wait for all ranks. samples[COMPARE_SAMPLES_MAX]: the slowest rank of each. False: the world is dead now. */
bool driver_order(struct driver *driver, struct driver_world *world, const struct compare_order *order,
                  struct compare_answer *answer, double *samples);

/* report.c */
void driver_header(struct driver *driver);
void driver_report(struct driver *driver, const struct driver_row *row);
void driver_footer(struct driver *driver);

#endif
