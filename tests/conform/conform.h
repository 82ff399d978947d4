/* SPDX-License-Identifier: Apache-2.0 */
/* pickle-conform: what its files share. Every rank is a thread, or a process; each runs the same list of cases. */
#ifndef CONFORM_H
#define CONFORM_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "measure.h"
#include "pickle/pickle.h"

enum op {
    OP_PINGPONG,
    OP_RING,
    OP_MANY,
    OP_EXCHANGE,
    OP_SELF,
    OP_MIXED,
    OP_BARRIER,
    OP_BROADCAST,
    OP_REDUCE,
    OP_ALLREDUCE,
    OP_REDUCE_SCATTER,
    OP_ALLGATHER,
    OP_ALLGATHERV,
    OP_ALLTOALL,
    OP_ALLTOALLV,
    OP_GATHER,
    OP_GATHERV,
    OP_SCATTER,
    OP_SCATTERV,
    OPS
};
enum ending { END_BLOCKING, END_HOST, END_CUDA, ENDINGS };
enum place { PLACE_HOST, PLACE_DEVICE };
enum root { ROOT_FIRST, ROOT_LAST, ROOT_MIDDLE, ROOTS };
enum misalign { ALIGNED, BY_ELEMENT, BY_BYTES, MISALIGNS };

struct config {
    int ranks; /* threads of this process */
    unsigned cases, stride;
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
    bool grouped;    /* all in one group */
    pk_op_t reduction;
    enum root root;
    int ranks;     /* the first so many take part */
    int algorithm; /* PK_ALGORITHM of the communicator: index in `algorithms` */
};

#define REDUCTION_PREMUL ((pk_op_t)PK_OP_COUNT) /* here alone: sums made by pk_op_create_premul, with data_factor's */
#define REDUCTIONS (PK_OP_COUNT + 1)

extern const char *const algorithms[]; /* NULL first: the library chooses */

#define RANKS_MAX 256
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
    pk_comm_config_t comm_config;
    pk_stream_t streams[ENDINGS];
    struct watch *watch;
    bool ok; /* of the case at hand, here */
    char failure[WHAT_BYTES * 2];
    unsigned passed, failed; /* the same on all ranks */
};

/* main.c */
void end_watch(struct rank *rank); /* it is idle from now on */
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
_Noreturn void give_up(const struct rank *rank, const char *what, const char *why);

/* pairs.c: every pair of choices at least once in the first few hundred cases; the same list for the same config and number of ranks
 * everywhere. Sorted by ranks and algorithm. Returns the number of cases, at most config->cases. */
unsigned list_cases(const struct config *config, int ranks, struct item *items);
void describe(const struct item *item, char *what);

/* data.c */
static inline uint64_t data_mix(uint64_t x)
{
    x ^= x >> 30;
    x *= 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    x *= 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}
uint64_t data_key(uint64_t seed, unsigned number, unsigned round, int rank, unsigned tag);
void data_fill(void *out, size_t bytes, uint64_t key);
/* True when equal; else where the first difference is. */
bool data_equal(const void *got, size_t bytes, uint64_t key, size_t *where);
uint64_t data_digest(const void *data, size_t bytes);

/* numbers.c */
void data_factor(void *out, pk_dtype_t dtype, int rank); /* one element */
void data_numbers(void *out, size_t count, pk_dtype_t dtype, pk_op_t op, uint64_t key);
/* Is got[count] the reduction of the numbers of all keys, in rank order, within the rounding that `size` steps may cause? Of
 * long ones a part is looked at. */
bool data_is_reduced(const void *got, size_t count, pk_dtype_t dtype, pk_op_t op, const uint64_t *keys, int size, size_t *where);

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

/* run.c: a case at work. */
#define ROUNDS_MAX 4
#define POISON 0x5a

struct work {
    struct rank *rank;
    const struct item *item;
    size_t bytes;           /* count * width */
    unsigned rounds, round; /* in all; the one at hand */
    struct buffer sources[ROUNDS_MAX], results[ROUNDS_MAX];
    struct buffer factor; /* of REDUCTION_PREMUL */
};

/* What an operation is, for one round. */
struct kind {
    size_t (*source_bytes)(const struct work *work);
    size_t (*result_bytes)(const struct work *work);
    void (*fill)(const struct work *work, char *source, char *result);
    pk_result_t (*post)(const struct work *work, char *source, char *result);
    void (*verify)(const struct work *work, const char *source, const char *result);
};

uint64_t work_key(const struct work *work, int rank, unsigned tag);
pk_stream_t work_stream(const struct work *work);
void work_verify(const struct work *work, const char *got, size_t bytes, int from, unsigned tag);
void run_item(struct rank *rank, const struct item *item);

/* colls.c */
extern const struct kind barrier_kind, coll_kind;
bool is_reduction(enum op op);
bool is_many(enum op op); /* buffers of a block for each rank */
bool is_same_everywhere(enum op op);

/* coll_call.c: every collective by its number. */
#define COLLS 13

struct coll_facts {
    pk_op_kind_t op;
    const char *name;
    bool in_many, out_many, rooted, in_at_root, out_at_root, reduces, v, no_data;
};

struct coll_args {
    const struct coll_facts *facts;
    const void *in;
    void *out;
    size_t count; /* of v-forms: of the buffer that is one block */
    pk_dtype_t dtype;
    pk_op_t reduction;
    int root;
    const size_t *in_counts, *in_offsets, *out_counts, *out_offsets;
    pk_comm_t *comm;
    pk_stream_t stream;
};

extern const struct coll_facts coll_facts[COLLS];
bool coll_has_in(const struct coll_facts *facts, int rank, int root);
bool coll_has_out(const struct coll_facts *facts, int rank, int root);
pk_result_t coll_call(const struct coll_args *args);

/* batches.c: run a list, each stretch of equal ranks and algorithm on a communicator of its own. */
void run_list(struct rank *rank, const struct item *items, unsigned n);

/* A case that is not in the list; it runs on every rank. */
struct special {
    const char *what;
    void (*run)(struct rank *rank);
};

void run_special(struct rank *rank, const struct special *cases, size_t count); /* main.c: those that were selected */

/* errors*.c, inspect.c, lifecycle.c, promises.c, seats.c, survive.c, within.c: such cases. */
void run_argument_errors(struct rank *rank);
void run_collective_errors(struct rank *rank);
void run_promises(struct rank *rank);
void run_peer_errors(struct rank *rank);
void run_lifecycle(struct rank *rank);
void run_survival(struct rank *rank);
void run_seats(struct rank *rank);
void run_within(struct rank *rank);
void run_inspection(struct rank *rank);
bool new_id(struct rank *rank, pk_unique_id_t *id); /* rank 0 makes it, all have it */
/* A communicator of the same ranks, to be spoilt. */
pk_comm_t *throwaway(struct rank *rank, uint64_t timeout_ms);

#endif
