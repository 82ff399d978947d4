/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle-compare: what its programs share. One driver starts a world of ranks for each library and setting; every rank is connected to
 * the driver by a Unix socket and blocks in it, using no CPU, until its world has its turn. Structures go over the socket as they are:
 * all programs are of one build and on one machine.
 */
#ifndef COMPARE_H
#define COMPARE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum compare_op {
    COMPARE_PINGPONG,
    COMPARE_ALLREDUCE,
    COMPARE_ALLGATHER,
    COMPARE_ALLTOALL,
    COMPARE_REDUCE_SCATTER,
    COMPARE_BROADCAST,
    COMPARE_REDUCE,
    COMPARE_BARRIER,
    COMPARE_WAKE, /* from rank 0 to rank 1, who has waited so long that it may sleep: until it has the message */
    COMPARE_OPS
};

#define COMPARE_TEXT_BYTES 256
#define COMPARE_NOTE_BYTES 64
#define COMPARE_SAMPLES_MAX 4096u

/* A rank's first message. */
struct compare_hello {
    int world, rank, size;
    unsigned operations;               /* what the library has: bits 1 << enum compare_op */
    char settings[COMPARE_TEXT_BYTES]; /* the library in its own words */
};

/* The driver's wish. Reductions are sums of f32. */
struct compare_order {
    int op;          /* COMPARE_OPS: end */
    int check;       /* 1: one operation with each rank as root, its data checked; no samples */
    size_t bytes;    /* what one rank has, all its blocks together (as nccl-tests counts) */
    unsigned warmup; /* operations before the samples */
    unsigned chunk;  /* operations in a sample */
    unsigned samples;
};

/* A rank's answer, with the samples behind it: microseconds of one operation (pingpong: one way). */
struct compare_answer {
    uint64_t wrong; /* elements */
    unsigned samples;
    /* of the rank's core to somebody else, willing (a yield counts) or not, of one operation; of all ranks once merged */
    double switches;
    char note[COMPARE_NOTE_BYTES]; /* how the library does it, where it can tell; of rank 0 */
};

/* One operation's buffers. Those with roots take turns as roots, so that no operation overlaps the next. */
struct compare_work {
    enum compare_op op;
    size_t count; /* elements of the whole: pingpong, allreduce, broadcast, reduce */
    size_t block; /* elements of one rank's part: allgather, alltoall, reduce_scatter; at least 1 */
    int root;
};

/* One process of a world. */
struct compare_rank {
    int rank, size;
    const char *folder; /* private to the world, for libraries that meet by files */
    size_t capacity_bytes;
    char *send, *recv;   /* page-aligned, capacity_bytes and one block each */
    const char *variant; /* of the library, by its own names */
    char settings[COMPARE_TEXT_BYTES];
};

/* A library under comparison. Errors end the process with a text. */
struct compare_library {
    unsigned operations;
    int in_place; /* reductions work on recv alone, which holds the input */
    /* Join the world: sets rank, size and settings. */
    void (*open)(struct compare_rank *self, int argc, char **argv);
    void (*close)(struct compare_rank *self);
    /* Memory of the buffers; NULL: ordinary. */
    void *(*alloc)(struct compare_rank *self, size_t bytes);
    /* Before the first operation of a kind and size; NULL: nothing. */
    void (*prepare)(struct compare_rank *self, const struct compare_work *work);
    /* One operation, finished on return. Broadcast: in place in recv. pingpong: there and back. */
    void (*run)(struct compare_rank *self, const struct compare_work *work);
    /* How it is done, for rank 0; NULL: it cannot tell. */
    void (*explain)(struct compare_rank *self, const struct compare_work *work, char note[COMPARE_NOTE_BYTES]);
};

/* The main program of a rank: argv is SOCKET WORLD FOLDER CAPACITY VARIANT. */
int compare_main(int argc, char **argv, const struct compare_library *library);

#ifdef __cplusplus
}
#endif

#endif
