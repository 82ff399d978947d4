/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-perf: what its files share. */
#ifndef PERF_H
#define PERF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <pickle/pickle.h>

#include "cuda_dl.h"
#include "perf_nccl.h"

#define PERF_SLACK_BYTES 256 /* behind each buffer, for answers of one element */

enum perf_op {
    PERF_SENDRECV,
    PERF_BARRIER,
    PERF_BROADCAST,
    PERF_REDUCE,
    PERF_ALLREDUCE,
    PERF_REDUCE_SCATTER,
    PERF_ALLGATHER,
    PERF_ALLTOALL,
    PERF_GATHER,
    PERF_SCATTER,
    PERF_ALLGATHERV,
    PERF_ALLTOALLV,
    PERF_GATHERV,
    PERF_SCATTERV,
    PERF_BARECOPY,
    PERF_OPS
};
enum perf_pattern { PERF_PINGPONG, PERF_ONEWAY, PERF_BIDIR };
enum perf_ending { PERF_BLOCKING, PERF_STREAM };
enum perf_memory { PERF_PLAIN, PERF_REGISTERED, PERF_ALLOCATED };

/* How a buffer is cut. */
enum perf_shape {
    PERF_NOTHING,
    PERF_WHOLE, /* one block */
    PERF_PARTS  /* a block a rank */
};

/* Whose data a block of the result is. */
enum perf_origin {
    PERF_OF_PEER,  /* the rank that sends to this one */
    PERF_OF_BLOCK, /* block i is rank i's */
    PERF_OF_ROOT,
    PERF_OF_ALL /* reduced over all ranks */
};

enum perf_in_place {
    PERF_NEVER,
    PERF_SAME,         /* the source is the receive buffer */
    PERF_PART_OF_RECV, /* the source is the own part of the receive buffer */
    PERF_PART_OF_SEND  /* the result is the own part of the send buffer */
};

/* What the benchmark knows of an operation: one entry of a table. */
struct perf_operation {
    const char *name;
    int kind; /* pk_op_kind_t; -1: none of the library's */
    enum perf_shape source, result;
    bool source_at_root, result_at_root;
    enum perf_origin origin;
    bool own_part;                      /* the result is the origins' block with this rank's number, not their whole source */
    bool uneven;                        /* ranks' parts differ in length (see perf_length) */
    enum perf_in_place in_place;        /* with a root: there alone */
    bool nccl;                          /* NCCL has it, or sends and receives that make it */
    double (*bus_factor)(double ranks); /* of nccl-tests: bus bandwidth to algorithm bandwidth */
};

struct perf_options {
    enum perf_op op;
    enum perf_memory memory;
    pk_op_t reduction;
    int root;                  /* -1: each rank in turn */
    enum perf_pattern pattern; /* of sendrecv */
    enum perf_ending ending;
    size_t begin_bytes, end_bytes;
    unsigned factor, iterations, warmup;
    unsigned window; /* messages of a window, one way; 0: by their size */
    pk_dtype_t dtype;
    bool check, cuda, in_place, zero_sm, bare;
    int gpu; /* ordinal, -1: by local rank */
    enum perf_nccl_setting nccl;
    const char *csv_path, *json_path;
};

struct perf_run;
struct perf_size;

/* The blocks of one size, in elements; `size` of them each, whatever the shape. Offsets are from the begin of the buffer. */
struct perf_layout {
    size_t *send_counts, *send_offsets, *recv_counts, *recv_offsets;
};

/*
 * A library that can be measured: what perf_post and perf_finish are made of. Each call posts in run->stream on a communicator of
 * its own, and ends the program with the library's text when it fails.
 */
struct perf_library {
    void (*group_start)(void);
    void (*group_end)(void);
    void (*send)(struct perf_run *run, const void *buffer, size_t count, int peer);
    void (*receive)(struct perf_run *run, void *buffer, size_t count, int peer);
    /* The operation of run->options, with run->root and run->layout. */
    void (*collective)(struct perf_run *run, const struct perf_size *size, const void *source, void *result);
    /* End the program if something that was posted has failed since. */
    void (*must_be_well)(struct perf_run *run);
};

/* One process of the benchmark. */
struct perf_run {
    struct perf_options options;
    pk_comm_t *comm;
    const struct perf_library *library; /* whose turn it is */
    struct perf_nccl *nccl;             /* NULL: not asked for */
    int rank, size;
    int root;                  /* of the next operation */
    struct perf_layout layout; /* of the present size */
    int gpu;
    pk_stream_t stream;
    size_t capacity_bytes; /* of each of the buffers, without slack */
    size_t buffer_bytes;
    char *send_buffer, *recv_buffer;
    char *staging; /* host memory where the checks look; the buffers themselves on the host */
    FILE *csv, *json;
    bool first_row;
    double ratio; /* to the bare copy, of the last row */
};

/* One size. */
struct perf_size {
    size_t bytes;         /* as nccl-tests counts: all parts together where there are parts, else what one rank has */
    size_t count;         /* elements of a part (on the average, where they differ), else of the whole */
    size_t message_bytes; /* count * size of the type */
};

struct perf_times {
    double median_us, p99_us, min_us, max_us;
};

struct perf_row {
    struct perf_size size;
    struct perf_times times; /* the worst of the ranks, of each */
    double algorithm_gbps, bus_gbps;
    uint64_t wrong;               /* elements, over all ranks; meaningless without -c 1 */
    double bare_gbps;             /* of the bare copy; 0 not measured */
    struct perf_times nccl_times; /* as times; median 0: not measured */
    double nccl_ratio;            /* NCCL's time / the library's */
    uint64_t nccl_wrong;
    pk_explanation_t explanation;
};

/* perf_args.c. Prints what is wrong and ends the program when the arguments cannot be understood. */
void perf_parse(int argc, char **argv, struct perf_options *options);
/* perf_programs.c: does not return where the first word is that of a program of its own. */
void perf_subcommand(int argc, char **argv);
const char *perf_pattern_name(enum perf_pattern pattern);
const char *perf_reduction_name(pk_op_t reduction);
const char *perf_memory_name(enum perf_memory memory);

/* perf_table.c */
const struct perf_operation *perf_operation(enum perf_op op);
bool perf_reduces(enum perf_op op);
bool perf_has_root(enum perf_op op);
/* Are there parts, one a rank, on either side? */
bool perf_has_parts(enum perf_op op);
/* Is this operation in place here, with the present root? */
bool perf_in_place(const struct perf_run *run);
/* Blocks of this rank's source and result, with the present root. */
int perf_source_blocks(const struct perf_run *run);
int perf_result_blocks(const struct perf_run *run);
/* Block i of this rank's result: `from` -1: all ranks. `index`: the block of their sources. */
struct perf_origin_block {
    int from, index;
} perf_origin_of(const struct perf_run *run, int i);
/* Fill run->layout. */
void perf_lay_out(struct perf_run *run, const struct perf_size *size);
void perf_layout_free(struct perf_run *run);

/* perf_ops.c. Ends the program with the library's text unless result is PK_OK. */
void perf_must(pk_result_t result, const char *what);
extern const struct perf_library perf_pickle;
/* Every rank's `value`, in rank order, into values[size]. Also a barrier. */
void perf_share(struct perf_run *run, const void *value, void *values, size_t bytes);
/* Post the operation once, and pass the root on where all have their turn. sendrecv one way: one window. */
void perf_post(struct perf_run *run, const struct perf_size *size);
/* Does this rank take part in the operation (pingpong and oneway are for two)? */
bool perf_takes_part(const struct perf_run *run);
/* The next operation's root, where each rank has its turn. */
void perf_pass_root(struct perf_run *run);
/* Wait for everything posted. */
void perf_finish(struct perf_run *run);
/* The operation as a group of sends and receives, for libraries that have nothing else. */
void perf_exchange(struct perf_run *run, const char *source, char *result);
/* Where the operation reads and writes. */
char *perf_source(const struct perf_run *run);
char *perf_result(const struct perf_run *run);
/* Messages that one post of sendrecv one way sends. */
unsigned perf_window(const struct perf_run *run, const struct perf_size *size);

/* perf_measure.c. All of run->library, whose turn it is. */
/* Warm up. Tells how many operations make a sample, the same on all ranks. */
unsigned perf_warm_up(struct perf_run *run, const struct perf_size *size);
/* Samples of `chunk` operations. */
void perf_measure(struct perf_run *run, const struct perf_size *size, unsigned chunk, struct perf_times *times);
void perf_sort_out(double *samples, size_t n, struct perf_times *times);
void perf_worst(struct perf_run *run, struct perf_times *times);

/* perf_data.c. The data of every rank, block and iteration differ and are computed from these and the element's number alone. */
/* `count` elements of block `index` of `rank`'s source, from element `first` (a multiple of 64) on. Rank -1: reduced over all. */
void perf_data(const struct perf_run *run, char *out, size_t count, int rank, int index, unsigned iteration, size_t first);
/* Why this reduction cannot be checked with these ranks and this type, or NULL. */
const char *perf_uncheckable(pk_op_t reduction, pk_dtype_t dtype, int ranks);

/* perf_check.c. Run the operation on fresh data and count wrong elements, here. */
uint64_t perf_check(struct perf_run *run, const struct perf_size *size, unsigned iteration);

/* perf_bare.c. Copies by the copy engines with nothing of the library in between. */
void perf_bare_open(struct perf_run *run);
void perf_bare_close(struct perf_run *run);
void perf_bare_measure(struct perf_run *run, size_t bytes, struct perf_times *times);

/* perf_files.c. CSV and JSON. */
void perf_files_open(struct perf_run *run, const char *description);
void perf_files_row(struct perf_run *run, const struct perf_row *row);
void perf_files_close(struct perf_run *run);

/* perf_report.c. Only rank 0 prints; all ranks call. */
void perf_header(struct perf_run *run);
void perf_report_row(struct perf_run *run, const struct perf_row *row);
void perf_progress(struct perf_run *run, size_t bytes);
void perf_footer(struct perf_run *run, uint64_t wrong);

#endif
