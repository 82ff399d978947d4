/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers and collectives between "hosts" over connections that a proxy splits, merges, delays and cuts at random: every byte right,
 * none twice, no hang. The proxy sits in the connecting process, in place of libc's connect.
 *
 * usage: net.cuts [MIB]   send so many MiB in all (64 unless given)
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3
#define LIFE_BYTES (1u << 20) /* a connection is cut after up to so many */
#define PIECE (64u << 10)
#define TIMEOUT_MS 280000
#define STAY_MS 60000

enum { CUTS, PROXIED, MIB, FINISHED }; /* words of the shared memory */

/* ---- The proxy ---- */

struct relay {
    int listener;
    struct sockaddr_in to;
    unsigned seed;
};

static uint32_t next_random(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static int real_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return (int)syscall(SYS_connect, fd, address, bytes);
}

static bool push(int fd, const char *bytes, size_t count, unsigned *seed)
{
    while (count > 0) {
        size_t piece = next_random(seed) % 4 == 0 ? 1 + next_random(seed) % 50 : count; /* split */
        ssize_t n = send(fd, bytes, piece < count ? piece : count, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        bytes += n;
        count -= (size_t)n;
    }
    return true;
}

/* Wait for more than is there, sometimes, and hand it on in other pieces than it came. Returns the bytes; 0: it is over. */
static size_t pass(int from, int to, unsigned *seed)
{
    char bytes[PIECE];
    ssize_t n;

    if (next_random(seed) % 64 == 0)
        nanosleep(&(struct timespec){ .tv_nsec = (long)(next_random(seed) % 2000000) }, NULL);
    n = recv(from, bytes, sizeof bytes, 0);
    return n > 0 && push(to, bytes, (size_t)n, seed) ? (size_t)n : 0;
}

static void cut(int fd, unsigned *seed)
{
    const struct linger reset = { .l_onoff = 1 };

    if (next_random(seed) % 2 == 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

static void *relay(void *arg)
{
    struct relay *r = arg;
    int near_fd = accept(r->listener, NULL, NULL), far_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    size_t life = next_random(&r->seed) % LIFE_BYTES, passed = 0;
    bool over = real_connect(far_fd, (struct sockaddr *)&r->to, sizeof r->to) != 0, was_cut = false;

    (void)setsockopt(near_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(far_fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    while (!over) {
        struct pollfd p[2] = { { .fd = near_fd, .events = POLLIN }, { .fd = far_fd, .events = POLLIN } };

        (void)poll(p, 2, -1);
        for (int i = 0; i < 2 && !over; i++)
            if (p[i].revents != 0) {
                size_t n = pass(p[i].fd, p[1 - i].fd, &r->seed);

                over = n == 0;
                passed += n;
            }
        was_cut = !over && passed > life;
        over = over || was_cut;
    }
    if (was_cut)
        atomic_fetch_add(&ranks_shared()->words[CUTS], 1);
    cut(near_fd, &r->seed);
    cut(far_fd, &r->seed);
    close(r->listener);
    free(r);
    return NULL;
}

static bool is_for_root(const struct sockaddr_in *to)
{
    const char *root = getenv("PK_ROOT");

    return root == NULL || atoi(strrchr(root, ':') + 1) == ntohs(to->sin_port);
}

/* Over libc's, whose declaration names all kinds of addresses. The bootstrap's connections go through as they are. */
int cutting_connect(int fd, const struct sockaddr *address, socklen_t bytes) __asm__("connect");
int cutting_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    struct sockaddr_in near_end = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t near_bytes = sizeof near_end;
    struct relay *r;
    pthread_t thread;

    if (address->sa_family != AF_INET || is_for_root((const struct sockaddr_in *)(const void *)address))
        return real_connect(fd, address, bytes);
    r = calloc(1, sizeof *r);
    if (r == NULL)
        abort();
    memcpy(&r->to, address, sizeof r->to);
    r->seed = (unsigned)(atomic_fetch_add(&ranks_shared()->words[PROXIED], 1) * 7919 + ranks_rank());
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(r->listener, (struct sockaddr *)&near_end, sizeof near_end) != 0 || listen(r->listener, 1) != 0 ||
        getsockname(r->listener, (struct sockaddr *)&near_end, &near_bytes) != 0 || pthread_create(&thread, NULL, relay, r) != 0)
        abort();
    pthread_detach(thread);
    return real_connect(fd, (struct sockaddr *)&near_end, sizeof near_end);
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

/* From rank to rank, short messages that need no answer: with them the lanes' rings wrap. */
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
