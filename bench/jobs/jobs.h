/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle-perf-jobs: what jobs of training do with a communication library, as programs of its public API. One program a library: pickle-perf-jobs
 * by libpickle, jobs-mpi by MPI, so that both do the same work in the same way.
 */
#ifndef JOBS_H
#define JOBS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_dl.h"
#include "table.h"
#include "timing.h"

#define JOBS_CHANNELS 4
#define JOBS_TEXT_BYTES 128

enum jobs_type { JOBS_F32, JOBS_INT32, JOBS_F64, JOBS_INT64, JOBS_TYPES };

struct jobs_run;
struct jobs_mode;

struct jobs_options {
    const struct jobs_mode *mode;
    unsigned layers, hidden, tokens, pieces; /* of the model; pieces: micro-batches of the pipeline */
    unsigned steps, warmup;
    size_t bucket_bytes; /* gradients that are reduced at once, at least a layer's */
    size_t begin_bytes, end_bytes;
    unsigned factor;
    size_t numel;
    enum jobs_type type;
    bool cuda, spoil; /* spoil: change a result before it is looked at */
    const char *csv_path, *json_path;
};

/* A communicator of the library. */
struct jobs_group {
    void *handle;
    int rank, size;
    int *members; /* ranks of the job, in the group's order */
};

enum jobs_kind {
    JOBS_ALLREDUCE,
    JOBS_ALLGATHER,
    JOBS_REDUCE_SCATTER,
    JOBS_ALLTOALLV,
    JOBS_SEND,
    JOBS_RECV,
    JOBS_SENDRECV /* to `to`, from `from` */
};

/*
 * One exchange of a pattern, with the buffers that it uses at each step: f32. Data is a function of (rank, tag, element), so that what must
 * have arrived can be told: from all ranks where it is a collective, else from `origin`.
 */
struct jobs_transfer {
    enum jobs_kind kind;
    const struct jobs_group *group;
    int to, from, origin;
    int tag;
    bool forwards; /* the source is what another transfer brought: nothing is filled in */
    float *source, *result;
    size_t count; /* elements of the whole or of a rank's part, as the operation counts */
    size_t *send_counts, *send_offsets, *recv_counts, *recv_offsets; /* alltoallv: one of each a rank */
};

enum { JOBS_COMPUTE = 1, JOBS_COMMUNICATE = 2 };

/* One process. */
struct jobs_run {
    struct jobs_options options;
    struct jobs_group world;
    unsigned parts;    /* of a step that are done: JOBS_COMPUTE, JOBS_COMMUNICATE */
    double sent_bytes; /* by this rank since it was set to 0, as the best algorithm would */
    struct jobs_transfer *transfers;
    int transfer_count;
    struct jobs_group rows, columns; /* of the product of two patterns */
    int gpu;
    gpu_stream_t compute_stream;
    gpu_kernel_t burn;
    struct table *table;
    uint64_t wrong;
};

/* What a mode is: run once by all ranks, which fill run->table at rank 0. */
struct jobs_mode {
    const char *name, *what;
    void (*run)(struct jobs_run *run);
    /* A pattern of training (patterns.h), measured by train.c; NULL: run does it all. */
    const struct jobs_pattern *pattern;
};

/* A pattern: its transfers, made once, and a step of it. */
struct jobs_pattern {
    const char *(*unfit)(const struct jobs_run *run); /* why it cannot be run, or NULL */
    void (*prepare)(struct jobs_run *run);
    void (*step)(struct jobs_run *run);
    void (*note)(const struct jobs_run *run, char text[JOBS_TEXT_BYTES]); /* NULL: none */
};

/*
 * The library: pickle.c or mpi.c, one of which a program is linked with. A channel is a sequence of operations that end one after another;
 * what has begun goes on until wait, in which everything begun in the channel ends. Errors end the process with the library's text.
 */
extern const char library_name[], library_program[];
extern const bool library_has_gpu;
void library_open(struct jobs_run *run, int *argc, char ***argv);
void library_describe(struct jobs_run *run, char text[JOBS_TEXT_BYTES]);
void library_close(struct jobs_run *run);
/* Part of the job: ranks with the same color, in the job's order, but for its members. Collective. */
void library_split(struct jobs_run *run, int color, struct jobs_group *group);
/* Free what split made. */
void library_join(struct jobs_group *group);
void library_begin(struct jobs_run *run, const struct jobs_transfer *transfer, int channel);
void library_wait(struct jobs_run *run, int channel);
/* A sum over the job, out of place, ended on return. */
void library_allreduce(struct jobs_run *run, const void *source, void *result, size_t count, enum jobs_type type);
/* As begin and wait at once; from any one thread at a time for a group that no other thread uses. */
void library_now(const struct jobs_transfer *transfer);
/* `bytes` of every rank, in rank order. Also a barrier. */
void library_share(struct jobs_run *run, const void *value, void *values, size_t bytes);
/* The least of a number over the group, ended on return. From the thread that uses the group. */
int library_least(const struct jobs_group *group, int number);

/* args.c. Prints what is wrong and ends the program. */
void jobs_parse(int argc, char **argv, struct jobs_options *options);
extern const char *const jobs_type_names[JOBS_TYPES + 1];

/* modes.c */
const struct jobs_mode *jobs_find_mode(const char *name);
const struct jobs_mode *jobs_mode_at(int i); /* NULL: beyond the last */

/* main.c */
void jobs_barrier(struct jobs_run *run);
/* The largest of all ranks' numbers, and their sum. */
double jobs_worst(struct jobs_run *run, double value);
double jobs_total(struct jobs_run *run, double value);

/* memory.c: memory of the job's kind, which lives until the program ends. */
void *jobs_alloc(struct jobs_run *run, size_t bytes);
void jobs_put(struct jobs_run *run, void *to, const void *host, size_t bytes);
void jobs_get(struct jobs_run *run, void *host, const void *from, size_t bytes);

/* compute.c. Arithmetic of `flops` operations in f32: on a CPU products of blocks that stay in cache; on a GPU all multiprocessors, in
 * run->compute_stream. Does nothing in a step without JOBS_COMPUTE. The other comes before anything communicates: loading a kernel waits for all
 * streams, also for those that wait for a peer. */
void jobs_compute_open(struct jobs_run *run);
void jobs_compute(struct jobs_run *run, double flops);

/* transfers.c */
/* A new transfer: zero but for these. Valid until the next one is made. */
struct jobs_transfer *jobs_transfer(struct jobs_run *run, enum jobs_kind kind, const struct jobs_group *group, size_t count);
/* Begin, wait: only in steps with JOBS_COMMUNICATE. */
void jobs_begin(struct jobs_run *run, int transfer, int channel);
void jobs_wait(struct jobs_run *run, int channel);
/* Data of one iteration into all sources, nothing into all results; then, after a step, the number of wrong elements here. */
void jobs_fill(struct jobs_run *run, unsigned iteration);
uint64_t jobs_check(struct jobs_run *run, unsigned iteration);

/* train.c, allreduce.c, beside.c, copies.c */
void jobs_train(struct jobs_run *run);
void jobs_allreduce(struct jobs_run *run);
void jobs_beside(struct jobs_run *run);
void jobs_copies(struct jobs_run *run);

/* layers.c, pipeline.c, exchange.c */
extern const struct jobs_pattern jobs_data, jobs_sharded, jobs_tensor, jobs_product, jobs_pipeline, jobs_sequence, jobs_expert;

#endif
