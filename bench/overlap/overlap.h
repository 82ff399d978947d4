/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle-perf-overlap: what communication costs computing on GPUs, and the other way round. Alone and beside take turns, libraries too; time,
 * cycles of the multiprocessors, clock and power are taken in the same intervals.
 */
#ifndef OVERLAP_H
#define OVERLAP_H

#include <pickle/pickle.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_dl.h"
#include "table.h"
#include "timing.h"

#define OVERLAP_CASES 16
#define OVERLAP_WORKS 4
#define OVERLAP_SIDES 3
#define OVERLAP_TURNS 25u

enum overlap_operation { OVERLAP_SENDRECV, OVERLAP_ONEWAY, OVERLAP_ALLGATHER, OVERLAP_ALLREDUCE, OVERLAP_OPERATIONS };

struct overlap_case {
    enum overlap_operation operation;
    size_t bytes; /* a message; of allgather a rank's part; of allreduce the whole */
};

/* NCCL as it comes; or with symmetric windows and CTA policy zero: its own way without multiprocessors. */
enum overlap_nccl { OVERLAP_NCCL_OFF, OVERLAP_NCCL_DEFAULT, OVERLAP_NCCL_ZERO_CTA };

struct overlap_options {
    const char *works[OVERLAP_WORKS];
    struct overlap_case cases[OVERLAP_CASES];
    int work_count, case_count;
    unsigned turns;
    double interval_ms, warm_ms; /* of computing: measured, and before it */
    int max_sms;                 /* of operations that need any */
    enum overlap_nccl nccl;
    bool bare, spoil, stall;
    double limit_s; /* of what may take next to no time */
    bool kernels;   /* wherever the library takes them */
    bool first;     /* messages before computing, where both wait for multiprocessors */
    const char *csv_path, *json_path;
};

struct overlap_run {
    struct overlap_options options;
    pk_comm_t *world;       /* for what ranks tell one another */
    pk_comm_t *zero, *some; /* PK_SM_NONE, or with --kernels PK_SM_DEFAULT; and PK_SM_BOUNDED */
    int rank, size, gpu;
    gpu_stream_t compute_stream, message_stream;
    char *source, *result;             /* of messages; largest of all cases */
    size_t source_bytes, result_bytes; /* of the two: whole pages */
    struct table *table;
    const char *nccl_absent; /* why, where it was asked for; NULL */
    uint64_t wrong;
};

/* ---- main.c ---- */
void overlap_must(pk_result_t result, const char *what);
_Noreturn void overlap_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* `value` of every rank; also a barrier. */
void overlap_share(struct overlap_run *run, const void *value, void *values, size_t bytes);
double overlap_worst(struct overlap_run *run, double value);
bool overlap_all(struct overlap_run *run, bool value);

/* ---- watch.c: what is under way, told by rank 0 on standard error: on a terminal in one line that is rewritten, else in a line a phase.
 * A step that takes longer than --limit, whatever it waits for, ends the process with its rank, its name and the seconds. ---- */
void overlap_watch_open(struct overlap_run *run);
void overlap_phase(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Of the phase; "": its first. */
void overlap_step(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Before anything else is written. */
void overlap_watch_hide(void);
void overlap_watch_close(void);

/* ---- args.c ---- */
void overlap_parse(int argc, char **argv, struct overlap_options *options);
extern const char *const overlap_operation_names[OVERLAP_OPERATIONS + 1];

/* ---- work.c: computing ---- */
struct overlap_work {
    const char *name, *how; /* "matmul", "cuBLAS 13.0, bf16, 8192 x 8192 x 8192" */
    void *state;
    double flops;    /* of one launch */
    unsigned rounds; /* launches of an interval */
    void (*launch)(struct overlap_work *work);
    /* Elements looked at after a launch that are wrong. */
    uint64_t (*check)(struct overlap_work *work);
    void (*close)(struct overlap_work *work);
    gpu_stream_t stream;
};

/* false: it cannot be done here, and `why` says so. */
bool overlap_work_open(struct overlap_work *work, const char *name, struct overlap_run *run, const char **why);
bool overlap_matmul_open(struct overlap_work *work, const char **why);
bool overlap_attention_open(struct overlap_work *work, const char **why);
/* GPU memory full of bf16 numbers between -1 and 1 that a seed gives, the same again every 16 MiB; a number of it. */
void *overlap_random_bf16(size_t count, unsigned seed);
float overlap_bf16(unsigned seed, size_t i);
/* bf16 numbers from the GPU, as floats. */
void overlap_get_bf16(const void *from, size_t count, float *to);

/* ---- messages.c: communication ---- */
struct overlap_side {
    const char *name;
    char how[128];
    void (*post)(struct overlap_run *run, const struct overlap_case *c); /* in run->message_stream, in place for allgather */
    bool bare;                                                           /* sendrecv alone */
};

void overlap_messages_open(struct overlap_run *run);
void overlap_messages_close(struct overlap_run *run);
/* Bytes that leave a rank in one operation, at least; of those ranks that send. */
double overlap_leaving(const struct overlap_run *run, const struct overlap_case *c);
void overlap_fill(struct overlap_run *run, const struct overlap_case *c);
uint64_t overlap_check(struct overlap_run *run, const struct overlap_case *c);
/* Does libpickle do it without multiprocessors? */
bool overlap_is_zero(const struct overlap_case *c);
void overlap_pickle(struct overlap_run *run, struct overlap_side *side, const struct overlap_case *c);
void overlap_message_wait(struct overlap_run *run, const char *what);

/* ---- bare.c: copies by cuMemcpyAsync into the next rank's buffer, and nothing else. The most that copy engines
 * can do. For sendrecv. ---- */
void overlap_bare_open(struct overlap_run *run, struct overlap_side *side);
void overlap_bare_close(struct overlap_run *run);

/* ---- nccl.c. load, before there are buffers, and open: false: it is not here, and `why` says so. ---- */
bool overlap_nccl_load(struct overlap_run *run, const char **why);
/* Buffers of messages: of NCCL, where it wants its own. */
void *overlap_message_alloc(size_t bytes);
void overlap_message_free(void *memory);
bool overlap_nccl_open(struct overlap_run *run, struct overlap_side *side, const char **why);
void overlap_nccl_close(void);

/* ---- samples.c: what the GPU does in an interval ---- */
struct overlap_samples {
    double us, cycles;      /* of the interval; mean over the multiprocessors */
    double watts, nvml_mhz; /* NAN: cannot be told */
};

void overlap_samples_open(struct overlap_run *run);
void overlap_samples_close(void);
/* Into the stream: the beginning (0) and the end (1) of an interval. */
void overlap_stamp(struct overlap_run *run, int end);
/* Tell the sampler of clock and power what of them is wanted. */
void overlap_sampling(bool on);
/* After the interval. */
struct overlap_samples overlap_samples_take(void);
double overlap_power_limit(void); /* watts; NAN */

/* ---- turn.c ---- */
struct overlap_turn {
    struct overlap_samples alone, beside;
    double rate_alone, rate_beside; /* GB/s that leave a rank */
    double longest;                 /* of the times from message to message meanwhile, in medians of them */
    bool covered;
};

/* Launches that take so long, the same on all ranks. */
unsigned overlap_rounds(struct overlap_run *run, struct overlap_work *work, double ms);
void overlap_alone(struct overlap_run *run, struct overlap_work *work, struct overlap_samples *samples);
void overlap_turn(struct overlap_run *run, struct overlap_work *work, struct overlap_side *side, const struct overlap_case *c,
                  struct overlap_turn *turn);

/* ---- held.c: the time of one operation while a kernel holds every multiprocessor, in ms; NAN: it did not end. `free_ms`: without it. ---- */
double overlap_held(struct overlap_run *run, struct overlap_side *side, const struct overlap_case *c, double *free_ms);

/* ---- report.c ---- */
void overlap_report_open(struct overlap_run *run, const char *about);
void overlap_report(struct overlap_run *run, const struct overlap_work *work, const struct overlap_side *side,
                    const struct overlap_case *c, const struct overlap_turn *turns, double held_ms, double free_ms,
                    uint64_t wrong);
/* What the rows since the last call say, in a sentence each. */
void overlap_explain(struct overlap_run *run, const struct overlap_work *work, const struct overlap_case *c);
void overlap_report_absent(struct overlap_run *run, const char *work, const char *side, const struct overlap_case *c,
                           const char *why);

#endif
