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

#define BESIDE_CASES 16
#define BESIDE_WORKS 4
#define BESIDE_SIDES 3
#define BESIDE_TURNS 25u

enum beside_operation { BESIDE_SENDRECV, BESIDE_ONEWAY, BESIDE_ALLGATHER, BESIDE_ALLREDUCE, BESIDE_OPERATIONS };

struct beside_case {
    enum beside_operation operation;
    size_t bytes; /* a message; of allgather a rank's part; of allreduce the whole */
};

/* NCCL as it comes; or with symmetric windows and CTA policy zero: its own way without multiprocessors. */
enum beside_nccl { BESIDE_NCCL_OFF, BESIDE_NCCL_DEFAULT, BESIDE_NCCL_ZERO_CTA };

struct beside_options {
    const char *works[BESIDE_WORKS];
    struct beside_case cases[BESIDE_CASES];
    int work_count, case_count;
    unsigned turns;
    double interval_ms, warm_ms; /* of computing: measured, and before it */
    int max_sms;                 /* of operations that need any */
    enum beside_nccl nccl;
    bool bare, spoil, stall;
    double limit_s; /* of what may take next to no time */
    bool kernels;                /* wherever the library takes them */
    bool first; /* messages before computing, where both wait for multiprocessors */
    const char *csv_path, *json_path;
};

struct beside_run {
    struct beside_options options;
    pk_comm_t *world;       /* for what ranks tell one another */
    pk_comm_t *zero, *some; /* PK_SM_NONE, or with --kernels PK_SM_DEFAULT; and PK_SM_BOUNDED */
    int rank, size, gpu;
    gpu_stream_t compute_stream, message_stream;
    char *source, *result;  /* of messages; largest of all cases */
    size_t source_bytes, result_bytes; /* of the two: whole pages */
    struct table *table;
    const char *nccl_absent; /* why, where it was asked for; NULL */
    uint64_t wrong;
};

/* ---- main.c ---- */
void beside_must(pk_result_t result, const char *what);
_Noreturn void beside_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* `value` of every rank; also a barrier. */
void beside_share(struct beside_run *run, const void *value, void *values, size_t bytes);
double beside_worst(struct beside_run *run, double value);
bool beside_all(struct beside_run *run, bool value);
double beside_median(double *samples, unsigned n);
double beside_now_us(void);

/* ---- watch.c: what is under way, told by rank 0 on standard error: on a terminal in one line that is written anew, else in a line a phase.
 * A step that takes longer than --limit, whatever it waits for, ends the process with its rank, its name and the seconds. ---- */
void beside_watch_open(struct beside_run *run);
void beside_phase(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Of the phase; "": its first. */
void beside_step(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Before anything else is written. */
void beside_watch_hide(void);
void beside_watch_close(void);

/* ---- args.c ---- */
void beside_parse(int argc, char **argv, struct beside_options *options);
extern const char *const beside_operation_names[BESIDE_OPERATIONS + 1];

/* ---- work.c: computing ---- */
struct beside_work {
    const char *name, *how; /* "matmul", "cuBLAS 13.0, bf16, 8192 x 8192 x 8192" */
    void *state;
    double flops; /* of one launch */
    unsigned rounds; /* launches of an interval */
    void (*launch)(struct beside_work *work);
    /* Elements looked at after a launch that are wrong. */
    uint64_t (*check)(struct beside_work *work);
    void (*close)(struct beside_work *work);
    gpu_stream_t stream;
};

/* false: it cannot be done here, and `why` says so. */
bool beside_work_open(struct beside_work *work, const char *name, struct beside_run *run, const char **why);
bool beside_matmul_open(struct beside_work *work, const char **why);
bool beside_attention_open(struct beside_work *work, const char **why);
/* GPU memory full of bf16 numbers between -1 and 1 that a seed gives, the same again every 16 MiB; a number of it. */
void *beside_random_bf16(size_t count, unsigned seed);
float beside_bf16(unsigned seed, size_t i);
/* bf16 numbers from the GPU, as floats. */
void beside_get_bf16(const void *from, size_t count, float *to);

/* ---- messages.c: communication ---- */
struct beside_side {
    const char *name;
    char how[128];
    void (*post)(struct beside_run *run, const struct beside_case *c); /* in run->message_stream, in place for allgather */
    bool bare; /* sendrecv alone */
};

void beside_messages_open(struct beside_run *run);
void beside_messages_close(struct beside_run *run);
/* Bytes that leave a rank in one operation, at least; of those ranks that send. */
double beside_leaving(const struct beside_run *run, const struct beside_case *c);
void beside_fill(struct beside_run *run, const struct beside_case *c);
uint64_t beside_check(struct beside_run *run, const struct beside_case *c);
/* Does libpickle do it without multiprocessors? */
bool beside_is_zero(const struct beside_case *c);
void beside_pickle(struct beside_run *run, struct beside_side *side, const struct beside_case *c);
void beside_message_wait(struct beside_run *run, const char *what);

/* ---- bare.c: copies by cuMemcpyAsync into the next rank's buffer, and nothing else. The most that copy engines
 * can do. For sendrecv. ---- */
void beside_bare_open(struct beside_run *run, struct beside_side *side);
void beside_bare_close(struct beside_run *run);

/* ---- nccl.c. load, before there are buffers, and open: false: it is not here, and `why` says so. ---- */
bool beside_nccl_load(struct beside_run *run, const char **why);
/* Buffers of messages: of NCCL, where it wants its own. */
void *beside_message_alloc(size_t bytes);
void beside_message_free(void *memory);
bool beside_nccl_open(struct beside_run *run, struct beside_side *side, const char **why);
void beside_nccl_close(void);

/* ---- samples.c: what the GPU does in an interval ---- */
struct beside_samples {
    double us, cycles;        /* of the interval; mean over the multiprocessors */
    double watts, nvml_mhz;   /* NAN: cannot be told */
};

void beside_samples_open(struct beside_run *run);
void beside_samples_close(void);
/* Into the stream: the beginning (0) and the end (1) of an interval. */
void beside_stamp(struct beside_run *run, int end);
/* Tell the sampler of clock and power what of them is wanted. */
void beside_sampling(bool on);
/* After the interval. */
struct beside_samples beside_samples_take(void);
double beside_power_limit(void); /* watts; NAN */

/* ---- turn.c ---- */
struct beside_turn {
    struct beside_samples alone, beside;
    double rate_alone, rate_beside; /* GB/s that leave a rank */
    double longest;                 /* of the times from message to message meanwhile, in medians of them */
    bool covered;
};

/* Launches that take so long, the same on all ranks. */
unsigned beside_rounds(struct beside_run *run, struct beside_work *work, double ms);
void beside_alone(struct beside_run *run, struct beside_work *work, struct beside_samples *samples);
void beside_turn(struct beside_run *run, struct beside_work *work, struct beside_side *side, const struct beside_case *c,
                 struct beside_turn *turn);

/* ---- held.c: the time of one operation while a kernel holds every multiprocessor, in ms; NAN: it did not end. `free_ms`: without it. ---- */
double beside_held(struct beside_run *run, struct beside_side *side, const struct beside_case *c, double *free_ms);

/* ---- report.c ---- */
void beside_report_open(struct beside_run *run, const char *about);
void beside_report(struct beside_run *run, const struct beside_work *work, const struct beside_side *side, const struct beside_case *c,
                   const struct beside_turn *turns, double held_ms, double free_ms, uint64_t wrong);
/* What the rows since the last call say, in a sentence each. */
void beside_explain(struct beside_run *run, const struct beside_work *work, const struct beside_case *c);
void beside_report_absent(struct beside_run *run, const char *work, const char *side, const struct beside_case *c, const char *why);

#endif
