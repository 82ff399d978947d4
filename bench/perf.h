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

enum perf_op { PERF_SENDRECV, PERF_ALLGATHER, PERF_ALLREDUCE, PERF_BARECOPY };
enum perf_pattern { PERF_PINGPONG, PERF_ONEWAY, PERF_BIDIR };
enum perf_ending { PERF_BLOCKING, PERF_STREAM };

struct perf_options {
    enum perf_op op;
    enum perf_pattern pattern; /* of sendrecv */
    enum perf_ending ending;
    size_t begin_bytes, end_bytes;
    unsigned factor, iterations, warmup;
    pk_dtype_t dtype;
    bool check, cuda, in_place, zero_sm, bare;
    int gpu; /* ordinal, -1: by local rank */
    enum perf_nccl_setting nccl;
    const char *csv_path, *json_path;
};

struct perf_run;

/*
 * A library that can be measured: what perf_post and perf_finish are made of. Each call posts in run->stream on a communicator of
 * its own, and ends the program with the library's text when it fails.
 */
struct perf_library {
    void (*group_start)(void);
    void (*group_end)(void);
    void (*send)(struct perf_run *run, const void *buffer, size_t count, int peer);
    void (*receive)(struct perf_run *run, void *buffer, size_t count, int peer);
    /* Into recv_buffer. */
    void (*allgather)(struct perf_run *run, const void *source, size_t count);
    void (*allreduce)(struct perf_run *run, const void *source, size_t count);
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
    int gpu;
    pk_stream_t stream;
    size_t capacity_bytes;  /* of each of the buffers */
    char *send_buffer, *recv_buffer;
    char *staging;          /* host memory where the checks look; the buffers themselves on the host */
    FILE *csv, *json;
    bool first_row;
    double ratio;           /* to the bare copy, of the last row */
};

/* One size. Buffers of `count` elements as the operation counts them (allgather: what one rank contributes). */
struct perf_size {
    size_t bytes;         /* as nccl-tests counts: allgather all ranks together, else what one rank has */
    size_t count;
    size_t message_bytes; /* count * size of the type */
};

struct perf_times {
    double median_us, p99_us, min_us, max_us;
};

struct perf_row {
    struct perf_size size;
    struct perf_times times;     /* the worst of the ranks, of each */
    double algorithm_gbps, bus_gbps;
    uint64_t wrong;              /* elements, over all ranks; meaningless without -c 1 */
    double bare_gbps;            /* of the bare copy; 0 not measured */
    struct perf_times nccl_times; /* as times; median 0: not measured */
    double nccl_ratio;           /* NCCL's time / the library's */
    uint64_t nccl_wrong;
    pk_explanation_t explanation;
};

/* perf_args.c. Prints what is wrong and ends the program when the arguments cannot be understood. */
void perf_parse(int argc, char **argv, struct perf_options *options);
const char *perf_op_name(enum perf_op op);
const char *perf_pattern_name(enum perf_pattern pattern);

/* perf_ops.c. Ends the program with the library's text unless result is PK_OK. */
void perf_must(pk_result_t result, const char *what);
extern const struct perf_library perf_pickle;
double perf_now_us(void);
/* Every rank's `value`, in rank order, into values[size]. Also a barrier. */
void perf_share(struct perf_run *run, const void *value, void *values, size_t bytes);
/* Post the operation once. sendrecv one way: one window. */
void perf_post(struct perf_run *run, const struct perf_size *size);
/* Does this rank take part in the operation (pingpong and oneway are for two)? */
bool perf_takes_part(const struct perf_run *run);
/* Wait for everything posted. */
void perf_finish(struct perf_run *run);
/* Where the operation reads and writes. */
char *perf_source(const struct perf_run *run, const struct perf_size *size);
/* Messages that one post of sendrecv one way sends. */
unsigned perf_window(const struct perf_size *size);
size_t perf_result_bytes(const struct perf_run *run, const struct perf_size *size);

/* perf_measure.c. All of run->library, whose turn it is. */
/* Warm up. Tells how many operations make a sample, the same on all ranks. */
unsigned perf_warm_up(struct perf_run *run, const struct perf_size *size);
/* Samples of `chunk` operations. */
void perf_measure(struct perf_run *run, const struct perf_size *size, unsigned chunk, struct perf_times *times);
void perf_sort_out(double *samples, size_t n, struct perf_times *times);
void perf_worst(struct perf_run *run, struct perf_times *times);

/* perf_check.c. Run the operation on fresh data and count wrong elements, here. */
void perf_fill(struct perf_run *run, const struct perf_size *size, unsigned iteration);
uint64_t perf_check(struct perf_run *run, const struct perf_size *size, unsigned iteration);

/* perf_bare.c. Copies by the copy engines with nothing of the library in between. */
struct perf_bare;
struct perf_bare *perf_bare_open(struct perf_run *run);
void perf_bare_close(struct perf_run *run, struct perf_bare *bare);
void perf_bare_measure(struct perf_run *run, struct perf_bare *bare, size_t bytes, struct perf_times *times);

/* perf_report.c. Only rank 0 prints; all ranks call. */
void perf_header(struct perf_run *run);
void perf_report_row(struct perf_run *run, const struct perf_row *row);
void perf_progress(struct perf_run *run, size_t bytes);
void perf_footer(struct perf_run *run, uint64_t wrong);

#endif
