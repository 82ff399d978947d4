/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks as processes: a test program starts itself (or another program) once for every rank, by posix_spawn, with PK_RANK, PK_SIZE and
 * PK_ROOT on the loopback. Driver and ranks share some memory, so that they can agree on moments without the library.
 * PICKLE_TEST_HOSTS in the environment: the ranks take themselves to be on so many hosts.
 */
#ifndef RANKS_H
#define RANKS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "measure.h"
#include "pickle/pickle.h"

#define RANKS_MAX 64
#define RANKS_WORDS 64

/* Zero when the ranks start. */
struct ranks_shared {
    _Atomic int64_t words[RANKS_WORDS]; /* for whatever the test likes */
    _Atomic int64_t rank_words[RANKS_MAX][RANKS_WORDS];
    _Atomic uint32_t arrived, generation; /* of ranks_meet */
};

struct ranks {
    int size;
    pid_t pids[RANKS_MAX];   /* 0: not started, or ended */
    int statuses[RANKS_MAX]; /* of waitpid; -1: killed by ranks_wait, -2: not started */
    struct ranks_shared *shared;
    int memory;
    char root[64];
};

/* Called in the driver before each rank starts, to change its environment with setenv and unsetenv; undo in `after`. */
struct ranks_hooks {
    void (*before)(int rank, void *arg);
    void (*after)(int rank, void *arg);
    void *arg;
};

/* A hook, before: the process is not told who it is. mpirun itself is the only "rank" then; its children hear it from PMIx. */
void ranks_forget(int rank, void *arg);

/* In a rank: the role it was started for, its rank and size, the shared memory. In the driver: NULL. */
const char *ranks_role(void);
int ranks_rank(void);
int ranks_size(void);
struct ranks_shared *ranks_shared(void);
/* A barrier of all ranks, by the shared memory. Ends the process after 120 s. */
void ranks_meet(void);

/* In the library for so long, though with nothing to do; until something fails. */
pk_result_t ranks_idle(pk_comm_t *comm, double ms);

/* Make a place for `size` ranks. */
void ranks_open(struct ranks *ranks, int size);
/* Start a rank: this program with `role`, or `argv` if that is not NULL (its first word is the file). */
void ranks_start(struct ranks *ranks, int rank, const char *role, char *const *argv, const struct ranks_hooks *hooks);
void ranks_start_all(struct ranks *ranks, const char *role, char *const *argv, const struct ranks_hooks *hooks);
/* Wait for all that were started; kill what is left after twice the time, for a machine that is busy. Returns how many did not end with
 * code 0; a rank that the driver killed itself, `victim` (or -1), does not count. */
int ranks_wait(struct ranks *ranks, int timeout_ms, int victim);
/* In the driver: until rank_words[..][word] of every rank is above `enough`; false after a minute. */
bool ranks_under_way(struct ranks *ranks, int word, int64_t enough);
void ranks_close(struct ranks *ranks);

/* The whole life of ranks that nothing happens to. */
struct ranks_turn {
    const char *role;
    char *const *argv; /* as for ranks_start */
    const struct ranks_hooks *hooks;
    int size;
    int timeout_ms; /* 0: a minute */
    int64_t word;   /* words[0] of the shared memory when they start */
};

/* Open, start all, wait, close, and report how many failed: "format: 0 of 4 ranks failed, 1234 ms". */
void ranks_drive(const struct ranks_turn *turn, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* PASS and FAIL lines, and their count: report_end is main's return value. */
bool report(bool passed, const char *format, ...) __attribute__((format(printf, 2, 3)));
int report_end(void);

#endif
