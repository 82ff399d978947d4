/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of pk_mem_alloc at either end of transfers and collectives, with and without cross-memory attach, by several algorithms; freed
 * and allocated again and again, at the same addresses and in the middle of what is there; refused where it is not what it should be.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define MOST (3u << 20) /* int32 elements: longer than any crossover */
#define SIZES 6

static const size_t counts[SIZES] = { 1, 5000, 16384, 100003, 524289, MOST };

struct buffers {
    int32_t *in, *out;
    bool in_shared, out_shared;
};

static pk_comm_t *comm;
static int rank, size;
static bool failed;

static void must(pk_result_t result, const char *what)
{
    pk_error_info_t info = { .struct_size = sizeof info };

    if (result == PK_OK)
        return;
    pk_last_error(&info);
    report(false, "rank %d: %s: %d %.200s", rank, what, (int)result, info.text);
    exit(report_end());
}

static int32_t *make(bool shared, size_t count)
{
    void *memory = NULL;

    if (shared)
        must(pk_mem_alloc(comm, count * sizeof(int32_t), &memory), "pk_mem_alloc");
    else
        memory = calloc(count, sizeof(int32_t));
    if (memory == NULL)
        abort();
    return memory;
}

static void unmake(bool shared, int32_t *memory)
{
    if (shared)
        must(pk_mem_free(comm, memory), "pk_mem_free");
    else
        free(memory);
}

static void check(const struct buffers *b, const char *what, size_t count, int32_t factor, int32_t start)
{
    for (size_t i = 0; i < count && !failed; i++)
        if (b->out[i] != (int32_t)i * factor + start) {
            report(false, "rank %d: %s of %zu, from %s to %s memory: element %zu is %d instead of %d", rank, what, count,
                   b->in_shared ? "shared" : "ordinary", b->out_shared ? "shared" : "ordinary", i, b->out[i],
                   (int32_t)i * factor + start);
            failed = true;
        }
}

/* What a rank contributes: i + 1000 * (rank + 1) + turn at element i. */
static void turn(struct buffers *b, size_t count, int32_t number)
{
    int next = (rank + 1) % size, before = (rank + size - 1) % size;

    for (size_t i = 0; i < count; i++)
        b->in[i] = (int32_t)i + 1000 * (rank + 1) + number;
    memset(b->out, 0, count * sizeof *b->out);
    must(pk_group_start(), "pk_group_start");
    must(pk_send(b->in, count, PK_INT32, next, comm, PK_BLOCKING), "pk_send");
    must(pk_recv(b->out, count, PK_INT32, before, comm, PK_BLOCKING), "pk_recv");
    must(pk_group_end(), "pk_group_end");
    check(b, "a transfer", count, 1, 1000 * (before + 1) + number);
    must(pk_allreduce(b->in, b->out, count, PK_INT32, PK_SUM, comm, PK_BLOCKING), "pk_allreduce");
    check(b, "allreduce", count, size, 1000 * size * (size + 1) / 2 + size * number);
    must(pk_allreduce(b->in, b->in, count, PK_INT32, PK_MAX, comm, PK_BLOCKING), "pk_allreduce in place");
    if (b->in[count - 1] != (int32_t)count - 1 + 1000 * size + number)
        failed = !report(false, "rank %d: allreduce in place of %zu: the last is %d", rank, count, b->in[count - 1]);
    must(pk_broadcast(b->in, b->out, count, PK_INT32, number % size, comm, PK_BLOCKING), "pk_broadcast");
    check(b, "broadcast", count, 1, 1000 * size + number);
}

static void refusals(void)
{
    int32_t other = 0;
    void *memory = NULL;

    must(pk_mem_free(comm, NULL), "pk_mem_free of null");
    report(pk_mem_alloc(comm, 0, &memory) == PK_ERR_ARG && pk_mem_alloc(comm, 8, NULL) == PK_ERR_ARG &&
               pk_mem_alloc(NULL, 8, &memory) == PK_ERR_ARG && memory == NULL,
           "rank %d: nothing is allocated for wrong arguments", rank);
    must(pk_mem_alloc(comm, 10000, &memory), "pk_mem_alloc");
    report(pk_mem_free(comm, &other) == PK_ERR_ARG && pk_mem_free(comm, (char *)memory + 4096) == PK_ERR_ARG,
           "rank %d: what is no such memory is not freed", rank);
    must(pk_mem_free(comm, memory), "pk_mem_free");
    report(pk_mem_free(comm, memory) == PK_ERR_ARG, "rank %d: nor twice", rank);
    report(pk_mem_alloc(comm, SIZE_MAX - 5, &memory) == PK_ERR_MEMORY, "rank %d: more than there is", rank);
}

static int rank_main(void)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    void *left = NULL;

    rank = ranks_rank();
    size = ranks_size();
    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    must(pk_comm_init(&comm, &config), "pk_comm_init");
    refusals();
    for (int32_t number = 0; number < 4 * SIZES && !failed; number++) {
        size_t count = counts[number % SIZES];
        bool odd = (rank + number / SIZES) % 2 != 0; /* ranks differ, too */
        struct buffers b = { .in_shared = number / SIZES % 4 < 2 ? odd : !odd, .out_shared = number / SIZES % 4 == 0 || odd };

        b.in = make(b.in_shared, count);
        b.out = make(b.out_shared, count + 5);
        turn(&b, count, number);
        turn(&b, count, number + 1); /* known to the peers now */
        unmake(b.in_shared, b.in);
        unmake(b.out_shared, b.out);
    }
    must(pk_mem_alloc(comm, 5u << 20, &left), "memory that pk_comm_destroy frees");
    memset(left, 1, 5u << 20);
    report(!failed, "rank %d of %d: 48 turns", rank, size);
    must(pk_comm_destroy(comm), "pk_comm_destroy");
    return report_end();
}

static void drive(int ranks_here, const char *tuning, const char *algorithm)
{
    setenv("PICKLE_TEST_TUNING", tuning, 1);
    if (algorithm != NULL)
        setenv("PK_ALGORITHM", algorithm, 1);
    ranks_drive(&(struct ranks_turn){ .role = "memory", .size = ranks_here }, "%s, algorithm %s", tuning,
                algorithm != NULL ? algorithm : "by itself");
    unsetenv("PK_ALGORITHM");
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    drive(2, "shm.cma=1", NULL);
    drive(2, "shm.cma=1", "ring");
    drive(2, "shm.cma=0", "ring");
    drive(3, "shm.cma=1", "ring");
    drive(3, "shm.cma=0", NULL);
    return report_end();
}
