/* SPDX-License-Identifier: Apache-2.0 */
/* The parent, which has no CUDA: commands for the workers, the words that streams wait for, and the watchdog. */
#ifndef CHANNELS_PARENT_H
#define CHANNELS_PARENT_H

#include "shared.h"

#include <stdio.h>
#include <sys/types.h>

struct options {
    const char *mode, *csv_path, *cubin, *types, *forms;
    int connections, copy_connections, fresh, serial, rule, rounds, dev[2], ns[16], n_count;
    long size, block;
    double limit;
};

struct parent {
    const char *experiment, *self;
    struct options o;
    struct shared *sh;
    int memfd;
    pid_t pid[2];
    uint32_t epoch, seed;
    int blocked, dead, stuck_count, unverified;
    double start;
    FILE *csv;
};

extern struct parent parent;
extern const char *const kind_name[KINDS];
extern const char *const type_name[];
extern const char *const form_name[];
extern const char *const holder_name[HOLDERS];

/* pair.c */
int start_pair(void);
void kill_pair(void);
int late(void); /* the limit of seconds has been reached */
void post(int w, int op, int n, const long *a);
struct reply *answer(int w); /* NULL: the pair had to be killed. parent.blocked: it came only after all words had been opened */
int both(int op, long a, long b);
void open_words(void);
int finish(const char *what); /* everything runs out, then all data are compared */

#define POST(w, op, ...) post(w, op, (int)(sizeof((long[]){ __VA_ARGS__ }) / sizeof(long)), (long[]){ __VA_ARGS__ })
#define ASK(w, op, ...) (POST(w, op, __VA_ARGS__), answer(w))

/* random.c */
void random_start(uint64_t seed);
unsigned rnd(unsigned n);

/* exp_*.c */
void experiment_waiting(void);
void experiment_programs(void);
void experiment_sequences(void);
void experiment_movers(void);
void experiment_chain(void);
void experiment_turns(void);
void experiment_driver(void);
void experiment_queued(void);

#endif
