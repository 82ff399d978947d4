/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers and collectives between "hosts" over connections that a proxy splits, merges, delays and cuts at random: every byte right,
 * none twice, no hang.
 *
 * usage: net.cuts [MIB]   send so many MiB in all (64 unless given)
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "proxy.h"
#include "ranks.h"

#define SIZE 3
#define LIFE_BYTES (1u << 20) /* a connection is cut after up to so many */
#define TIMEOUT_MS 120000
#define STAY_MS 60000

enum { CUTS, PROXIED, MIB, FINISHED }; /* words of the shared memory */

/* Over libc's, whose declaration names all kinds of addresses. */
int cutting_connect(int fd, const struct sockaddr *address, socklen_t bytes) __asm__("connect");
int cutting_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return proxy_connect(fd, address, bytes);
}

/* ---- The ranks ---- */

#define WORDS (1u << 19) /* of 4 bytes: 2 MiB a transfer */

static uint32_t word(int rank, unsigned round, size_t i)
{
    uint32_t x = (uint32_t)i * 2654435761u + (uint32_t)rank * 97u + round * 31u;

    return (x ^ x >> 15) & 0xffffff; /* three of them add up without carrying into the sign */
}

static bool ring(pk_comm_t *comm, int rank, unsigned round, uint32_t *out, uint32_t *in)
{
    int from = (rank + SIZE - 1) % SIZE;
    size_t count = 1 + (round * 7919u * 64) % WORDS;
    pk_result_t result = pk_group_start();
    size_t wrong = 0;

    for (size_t i = 0; i < count; i++)
        out[i] = word(rank, round, i);
    if (result == PK_OK)
        result = pk_send(out, count, PK_INT32, (rank + 1) % SIZE, comm, PK_BLOCKING);
    if (result == PK_OK)
        result = pk_recv(in, count, PK_INT32, from, comm, PK_BLOCKING);
    if (pk_group_end() != PK_OK || result != PK_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        wrong += in[i] != word(from, round, i);
    return wrong == 0;
}

static bool sum(pk_comm_t *comm, int rank, unsigned round, uint32_t *out, uint32_t *in)
{
    size_t count = 1 + (round * 104729u) % (WORDS / 4), wrong = 0;

    for (size_t i = 0; i < count; i++)
        out[i] = word(rank, round, i);
    if (pk_allreduce(out, in, count, PK_INT32, PK_SUM, comm, PK_BLOCKING) != PK_OK)
        return false;
    for (size_t i = 0; i < count; i++)
        wrong += in[i] != word(0, round, i) + word(1, round, i) + word(2, round, i);
    return wrong == 0;
}

#define BURST 24

/* From rank to rank, short messages that need no answer: with them the control channels' rings wrap. */
static bool burst(pk_comm_t *comm, int rank, unsigned round, uint32_t *out, uint32_t *in)
{
    int from = (rank + SIZE - 1) % SIZE;
    size_t wrong = 0;

    for (unsigned k = 0; k < BURST; k++) {
        size_t count = 1 + ((round * BURST + k) * 7919u) % 8192;

        for (size_t i = 0; i < count; i++)
            out[i] = word(rank, round + k, i);
        if (rank != SIZE - 1 && pk_send(out, count, PK_INT32, rank + 1, comm, PK_BLOCKING) != PK_OK)
            return false;
        if (rank != 0 && pk_recv(in, count, PK_INT32, from, comm, PK_BLOCKING) != PK_OK)
            return false;
        for (size_t i = 0; i < count && rank != 0; i++)
            wrong += in[i] != word(from, round + k, i);
    }
    return wrong == 0;
}

/* Until all have got everything. A rank that leaves sees its last acknowledgements into the proxy's kernel, and thinks that the peer's has
 * them; those that the proxy then drops nobody could send again. */
static bool stay(pk_comm_t *comm)
{
    double until = monotonic_ms() + STAY_MS;

    atomic_fetch_add(&ranks_shared()->words[FINISHED], 1);
    while (atomic_load(&ranks_shared()->words[FINISHED]) < SIZE && monotonic_ms() < until) {
        pk_result_t result = pk_comm_async_error(comm);

        if (result != PK_OK)
            return false;
        usleep(100);
    }
    return atomic_load(&ranks_shared()->words[FINISHED]) == SIZE;
}

static int run_rank(void)
{
    uint32_t *out = malloc(WORDS * sizeof *out), *in = malloc(WORDS * sizeof *in);
    size_t sent = 0, goal = (size_t)atomic_load(&ranks_shared()->words[MIB]) << 20;
    pk_comm_t *comm;
    unsigned round = 0;
    bool right;
    int rank;

    proxy_rule(&(struct proxy_rules){ .life_bytes = LIFE_BYTES,
                                      .made = &ranks_shared()->words[PROXIED],
                                      .cut = &ranks_shared()->words[CUTS],
                                      .seed = (unsigned)ranks_rank() });
    if (out == NULL || in == NULL || pk_comm_init(&comm, NULL) != PK_OK || pk_comm_rank(comm, &rank) != PK_OK)
        return 1;
    for (right = true; sent < goal && right; round++) {
        memset(in, 0xee, WORDS * sizeof *in);
        right = round % 3 == 2 ? sum(comm, rank, round, out, in) : ring(comm, rank, round, out, in);
        right = right && burst(comm, rank, round, out, in);
        sent += SIZE * (1 + (round % 3 == 2 ? (round * 104729u) % (WORDS / 4) : (round * 7919u * 64) % WORDS)) * sizeof *out;
    }
    if (!right) {
        pk_error_info_t error = { .struct_size = sizeof error };

        (void)pk_last_error(&error);
        fprintf(stderr, "rank %d: round %u went wrong: %s\n", rank, round - 1, error.text);
    }
    if (right)
        right = stay(comm);
    if (pk_comm_destroy(comm) != PK_OK)
        right = false;
    free(out);
    free(in);
    return right ? 0 : 1;
}

int main(int argc, char **argv)
{
    int mib = argc > 1 ? atoi(argv[1]) : 64, wrong;
    struct ranks ranks;
    double began;

    if (ranks_role() != NULL)
        return run_rank();
    setenv("PICKLE_TEST_HOSTS", "3", 1);
    setenv("PK_SOCKETS", "2", 0);
    setenv("PK_CHUNK_BYTES", "131072", 0);
    ranks_open(&ranks, SIZE);
    atomic_store(&ranks.shared->words[MIB], mib);
    began = monotonic_ms();
    ranks_start_all(&ranks, "rank", NULL, NULL);
    wrong = ranks_wait(&ranks, TIMEOUT_MS, -1);
    report(wrong == 0, "%d MiB of transfers and sums in %.1f s, over %lld connections, %lld of them cut: %d ranks failed", mib,
           (monotonic_ms() - began) / 1000, (long long)ranks.shared->words[PROXIED], (long long)ranks.shared->words[CUTS], wrong);
    report(ranks.shared->words[CUTS] >= mib, "at least one cut a MiB");
    ranks_close(&ranks);
    return report_end();
}
