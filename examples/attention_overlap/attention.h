/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the demonstration share. compute*.c know attention and nothing of communication; gather*.c know how keys and values
 * travel and nothing of attention; measure.c lets them meet; report.c and picture.c tell of it.
 */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "../example.h"

#include <stdbool.h>
#include <stddef.h>

#define ROUNDS_MAX 1000
#define LIBRARIES_MAX 3

/* What each rank works on in each layer: `queries` of its own against the keys and values of all ranks, `keys` from each. */
struct shape {
    int ranks, rank;
    int heads, width;
    int queries, keys;
    int layers;
    int threads; /* that compute, on each rank */
};

/* Elements of one rank's part of a layer: [keys][2: key, value][heads][width], so that all ranks' parts are one sequence. */
static inline size_t shape_part(const struct shape *s)
{
    return (size_t)2 * (size_t)s->heads * (size_t)s->keys * (size_t)s->width;
}

/* Elements of a layer's queries and of its output: [heads][queries][width]. */
static inline size_t shape_queries(const struct shape *s)
{
    return (size_t)s->heads * (size_t)s->queries * (size_t)s->width;
}

/* Something that computes attention, with its own memory and stream. */
struct compute {
    const char *name;
    pk_dtype_t type; /* of all elements */
    size_t element_bytes;
    double tolerance;      /* of an element of the output: all lie between -1 and 1 */
    struct shape defaults; /* where nothing else was asked for: its ranks and threads are not meant */
    pk_mem_kind_t memory;
    /* Called before there is a communicator, which takes the GPU that is current then. false: it cannot be used here, and `why` says so. */
    bool (*usable)(const char **why);
    /* NULL: it cannot compute this, and `why` says so. */
    void *(*open)(const struct shape *shape, const char **why);
    void (*close)(void *state);
    /* Where communication of that memory ends beside the attention, and a wait for all that was begun there. */
    pk_stream_t (*stream)(void *state);
    pk_result_t (*stream_wait)(void *state);
    /* Memory that attention and communication use: the host's, or a GPU's. */
    void *(*alloc)(void *state, size_t elements);
    void (*free)(void *state, void *memory);
    /* Begin output = attention(queries, parts), parts being [ranks] parts in rank order. Returns at once. */
    void (*begin)(void *state, const void *queries, const void *parts, void *output);
    /* Wait for it. `poke(arg)` is called occasionally on the caller's thread, for libraries that progress only in calls; may be NULL. */
    void (*end)(void *state, void (*poke)(void *), void *arg);
    /* What is begun from now on, attention or communication, waits for all that was begun before, and the caller does not. NULL: there are no
     * streams for that, and the caller waits. */
    void (*join)(void *state);
    /* Copies between that memory and ordinary memory, where elements are floats. */
    void (*put)(void *state, void *to, const float *from, size_t elements);
    void (*get)(void *state, float *to, const void *from, size_t elements);
    /* What it computes with, in a few words; NULL: nothing to add. */
    const char *(*how)(void *state);
};

extern const struct compute compute_cpu, compute_gpu, compute_kernel;

/* The one of this name, or the first that can be used for "auto"; NULL: none, and `why` says so. */
const struct compute *compute_find(const char *name, const char **why);

/* A library that gathers parts: each rank's own lies in its place of `parts` before. */
struct gather {
    const char *name, *how;
    void *state;
    void (*fetch)(void *state, void *parts, size_t elements); /* of one part; ended on return */
    void (*begin)(void *state, void *parts, size_t elements); /* in the background */
    void (*poke)(void *state);                                /* NULL: it needs none */
    void (*end)(void *state);
    void (*close)(void *state);
};

struct job;

void gather_pickle(struct gather *gather, const struct job *job);
/* false: it is not here, or not for this memory, and `why` says so. */
bool gather_mpi(struct gather *gather, const struct job *job, const char **why);
bool gather_nccl(struct gather *gather, const struct job *job, const char **why);

/* Medians over the rounds of the slowest rank's time for all layers, in ms. */
struct times {
    double attention, communication, in_turn, overlapped;
    bool unquiet; /* one of them moved by more than half between its quartiles */
};

struct job {
    struct shape shape;
    pk_comm_t *comm;
    const struct compute *compute;
    void *compute_state;
    struct gather libraries[LIBRARIES_MAX];
    int library_count;
    int rounds, warmup;
    bool spoil;                            /* one element, so that the check must find it */
    void **gathered, **queries, **outputs; /* one of each a layer */
    struct times times[LIBRARIES_MAX];
};

/* Where a rank's part of a layer lies among all. */
static inline void *place(const struct job *job, int layer, int rank)
{
    return (char *)job->gathered[layer] + (size_t)rank * shape_part(&job->shape) * job->compute->element_bytes;
}

/* Fill in job->times. */
void measure(struct job *job);

/* All layers once, overlapped. */
void run_overlapped(struct job *job, struct gather *library);

/* Run it and look: how many of the elements that were looked at are not a plain reference's, on any rank. */
size_t check(struct job *job, struct gather *library);

/* Queries (kind 0) and parts (kind 1) of every rank, known to all, so that results can be checked. */
float number(int kind, int layer, int rank, size_t i);

void report(const struct job *job);
/* false: no gnuplot here. */
bool picture(const struct job *job, const char *prefix);

#endif
