/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-conform: what its files share. Every rank is a thread, or a process; each runs the same list of cases. */
#ifndef CONFORM_H
#define CONFORM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "pickle/pickle.h"

enum op { OP_PINGPONG, OP_RING, OP_MANY, OP_EXCHANGE, OP_SELF, OP_MIXED, OP_ALLGATHER, OP_ALLREDUCE, OPS };
enum ending { END_BLOCKING, END_HOST, END_CUDA, ENDINGS };
enum place { PLACE_HOST, PLACE_DEVICE };
enum misalign { ALIGNED, BY_ELEMENT, BY_BYTES, MISALIGNS };

struct config {
    int ranks;
    unsigned cases;
    uint64_t seed;
    bool processes, cuda, errors;
    size_t max_bytes;
    const char *filter;
    unsigned watchdog_s;
};

/* One case of the list. */
struct item {
    unsigned number;
    enum op op;
    pk_dtype_t dtype;
    size_t count;
    bool in_place;
    enum ending ending;
    enum place place;
    enum misalign misalign;
    unsigned rounds; /* operations posted before the first is waited for */
};

#define WHAT_BYTES 200

/* What the watchdog looks at. */
struct watch {
    pthread_mutex_t lock;
    int64_t since_ns; /* 0: between cases */
    char what[WHAT_BYTES];
};

struct rank {
    const struct config *config;
    int rank, size;
    pk_comm_t *comm;
    pk_stream_t streams[ENDINGS];
    struct watch *watch;
    bool ok;                  /* of the case at hand, here */
    char failure[WHAT_BYTES * 2];
    unsigned passed, failed;  /* the same on all ranks */
};

/* main.c */
int64_t now_ns(void);
/* How many times longer than the headers promise things may take: PICKLE_TEST_SLACK, 20 by default so that no test depends on the
 * machine's speed or on what else it does. 1 holds the promises themselves. */
double slack(void);
void begin_case(struct rank *rank, const char *what);
/* All ranks tell one another how it went; `digest` must be equal everywhere if `compare`. Ends the program when that fails. */
void end_case(struct rank *rank, const char *what, bool compare, uint64_t digest);
/* Note a failure of the case at hand; the first one's text is kept. */
void fail(struct rank *rank, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* As fail, unless the result is the wanted one. True when it is. */
bool expect(struct rank *rank, pk_result_t got, pk_result_t wanted, const char *what);
/* Every rank's bytes in rank order; also a barrier. */
void share(struct rank *rank, const void *own, void *all, size_t bytes);
bool selected(const struct rank *rank, const char *what);

/* pairs.c: every pair of choices at least once in the first few hundred cases; the same list for the same config everywhere.
 * Returns the number of cases, at most config->cases. */
unsigned list_cases(const struct config *config, struct item *items);
void describe(const struct item *item, char *what);

/* data.c */
uint64_t data_key(uint64_t seed, unsigned number, unsigned round, int rank, unsigned tag);
void data_fill(void *out, size_t bytes, uint64_t key);
/* True when equal; else where the first difference is. */
bool data_equal(const void *got, size_t bytes, uint64_t key, size_t *where);
void data_numbers(void *out, size_t count, pk_dtype_t dtype, uint64_t key);
/* Is got[count] the sum of the numbers of all keys, within the rounding that `size` additions may cause? */
bool data_is_sum(const void *got, size_t count, pk_dtype_t dtype, const uint64_t *keys, int size, size_t *where);
uint64_t data_digest(const void *data, size_t bytes);

/* buffer.c: memory between two guard zones. */
struct buffer {
    enum place place;
    char *base, *data; /* where the library is pointed to: data */
    char *image;       /* the same bytes on the host: base itself there */
    size_t bytes, offset, total;
};
void buffer_open(struct buffer *buffer, enum place place, size_t bytes, size_t misalign_bytes);
void buffer_close(struct buffer *buffer);
/* The host's view of `data`: after buffer_pull as the device has it; buffer_push brings changes to the device. */
char *buffer_view(const struct buffer *buffer);
void buffer_push(struct buffer *buffer);
void buffer_pull(struct buffer *buffer);
bool buffer_guards(const struct buffer *buffer);

/* run.c */
void run_item(struct rank *rank, const struct item *item);

/* errors*.c, inspect.c: cases that are not in the list. Each runs on every rank. */
void run_argument_errors(struct rank *rank);
void run_peer_errors(struct rank *rank);
void run_lifecycle(struct rank *rank);
void run_inspection(struct rank *rank);
/* A communicator of the same ranks, to be spoilt. */
pk_comm_t *throwaway(struct rank *rank, uint64_t timeout_ms);

#endif
