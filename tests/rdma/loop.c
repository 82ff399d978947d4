/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks exchange checked data until time is up or something fails, while the caller does damage.
 *
 * usage: rdma-loop EXPECTED SECONDS BYTES BUFFERS
 *   EXPECTED  ok: all goes well for so many seconds. peer, memory, timeout: it ends with this error before they are over.
 *             late: with timeout, or with peer, because the other rank's deadline was earlier and it has left
 *             any: well or with one of these errors, but with wrong data never
 *   BUFFERS   that many, each used in turn, so that their registrations are many
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pickle/pickle.h>

#define BUFFERS_MAX 256

struct loop {
    pk_comm_t *comm;
    int rank, buffers;
    size_t words;
    uint32_t *out[BUFFERS_MAX], *in[BUFFERS_MAX];
};

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint32_t word_of(uint32_t turn, int rank, size_t i)
{
    return (uint32_t)i * 2654435761u + turn * 40503u + (uint32_t)rank;
}

static pk_result_t exchange(struct loop *l, uint32_t turn)
{
    uint32_t *out = l->out[turn % (uint32_t)l->buffers], *in = l->in[turn % (uint32_t)l->buffers];
    pk_result_t result;

    for (size_t i = 0; i < l->words; i++)
        out[i] = word_of(turn, l->rank, i);
    pk_group_start();
    (void)pk_send(out, l->words, PK_UINT32, 1 - l->rank, l->comm, PK_BLOCKING);
    (void)pk_recv(in, l->words, PK_UINT32, 1 - l->rank, l->comm, PK_BLOCKING);
    result = pk_group_end();
    for (size_t i = 0; i < l->words && result == PK_OK; i++)
        if (in[i] != word_of(turn, 1 - l->rank, i)) {
            printf("rank %d: turn %u: word %zu is wrong\n", l->rank, turn, i);
            exit(1);
        }
    return result;
}

static void make_buffers(struct loop *l, const char *bytes, const char *buffers)
{
    l->words = (size_t)atol(bytes) / sizeof(uint32_t);
    l->buffers = atoi(buffers);
    if (l->words == 0 || l->buffers < 1 || l->buffers > BUFFERS_MAX)
        exit(2);
    for (int b = 0; b < l->buffers; b++) {
        l->out[b] = malloc(l->words * sizeof(uint32_t));
        l->in[b] = calloc(l->words, sizeof(uint32_t));
        if (l->out[b] == NULL || l->in[b] == NULL)
            exit(2);
    }
}

static bool is_expected(const char *expected, pk_result_t result)
{
    if (result == PK_OK)
        return strcmp(expected, "ok") == 0 || strcmp(expected, "any") == 0;
    if (strcmp(expected, "any") == 0)
        return result == PK_ERR_PEER || result == PK_ERR_MEMORY || result == PK_ERR_TIMEOUT;
    if (strcmp(expected, "late") == 0)
        return result == PK_ERR_PEER || result == PK_ERR_TIMEOUT;
    return (strcmp(expected, "peer") == 0 && result == PK_ERR_PEER) ||
           (strcmp(expected, "memory") == 0 && result == PK_ERR_MEMORY) ||
           (strcmp(expected, "timeout") == 0 && result == PK_ERR_TIMEOUT);
}

/* Rank 0 says when it is over, so that both leave after the same turn. */
static pk_result_t go_on(struct loop *l, double until, int32_t *over)
{
    int32_t mine = now_s() > until, theirs = 0;
    pk_result_t result;

    if (l->rank == 0) {
        *over = mine;
        return pk_send(&mine, 1, PK_INT32, 1, l->comm, PK_BLOCKING);
    }
    result = pk_recv(&theirs, 1, PK_INT32, 0, l->comm, PK_BLOCKING);
    *over = theirs;
    return result;
}

/* In steady state memory is registered no more. A transfer of 1 MiB costs its write and a grant, and a turn a word of rank 0's; occasionally
 * a credit, and a RTS where the machine is slow: so the mean of a dozen turns at least counts. */
#define REQUESTS_MAX 4.0
#define COMPLETIONS_MAX 5.5

static bool is_thrifty(const struct loop *l, const pk_stats_t *since, uint32_t turn, bool checked)
{
    pk_stats_t now = { .struct_size = sizeof now };
    double mib = (double)(turn - 2 * (uint32_t)l->buffers) * (double)l->words * sizeof(uint32_t) / 1048576;
    double requests, doorbells, completions;
    uint64_t registrations;

    pk_comm_stats(l->comm, &now);
    registrations = now.registrations - since->registrations;
    requests = (double)(now.work_requests - since->work_requests) / mib;
    doorbells = (double)(now.doorbells - since->doorbells) / mib;
    completions = (double)(now.completions - since->completions) / mib;
    printf("rank %d: a MiB each way costs %.1f work requests, %.1f doorbells, %.1f completions; %llu registrations in steady "
           "state\n",
           l->rank, requests, doorbells, completions, (unsigned long long)registrations);
    if (!checked || l->buffers > 2)
        return true;
    return registrations == 0 && (l->words * sizeof(uint32_t) != 1048576 ||
                                  (requests <= REQUESTS_MAX && doorbells <= requests && completions <= COMPLETIONS_MAX));
}

int main(int argc, char **argv)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_path_t path = { .struct_size = sizeof path };
    pk_stats_t steady = { .struct_size = sizeof steady };
    struct loop loop = { 0 };
    pk_result_t result;
    int32_t over = 0;
    uint32_t turn = 0;
    double begun;
    const char *wanted = getenv("EXPECT_TRANSPORT");
    const bool checked = argc == 5 && strcmp(argv[1], "ok") == 0 && getenv("EXPECT_DAMAGE") == NULL;

    if (argc != 5)
        return 2;
    make_buffers(&loop, argv[3], argv[4]);
    config.device = PK_DEVICE_HOST;
    if (getenv("PK_TIMEOUT_MS") == NULL)
        config.timeout_ms = 30000;
    result = pk_comm_init(&loop.comm, &config);
    if (result != PK_OK) {
        pk_last_error(&info);
        printf("init: %s: %s\n", pk_strerror(result), info.text);
        return 1;
    }
    pk_comm_rank(loop.comm, &loop.rank);
    pk_comm_path(loop.comm, 1 - loop.rank, PK_MEM_HOST, PK_MEM_HOST, &path);
    printf("rank %d: %s %s: %s\n", loop.rank, path.transport, path.device, path.reason);
    fflush(stdout);
    begun = now_s();
    while (result == PK_OK && !over) {
        if (turn == 2 * (uint32_t)loop.buffers) /* every buffer has been used */
            pk_comm_stats(loop.comm, &steady);
        result = exchange(&loop, turn++);
        if (result == PK_OK)
            result = go_on(&loop, checked && turn < 2 * (uint32_t)loop.buffers + 12 ? HUGE_VAL : begun + atof(argv[2]), &over);
    }
    pk_last_error(&info);
    printf("rank %d: %u turns, %.1f s: %s%s%s\n", loop.rank, turn, now_s() - begun, pk_strerror(result),
           result != PK_OK ? ": " : "", result != PK_OK ? info.text : "");
    /* Queue pairs that are made again flush what they had. */
    if (result == PK_OK && steady.operations > 0 && !is_thrifty(&loop, &steady, turn, checked))
        return 1;
    pk_comm_destroy(loop.comm);
    return strcmp(path.transport, wanted != NULL ? wanted : "rdma") == 0 && is_expected(argv[1], result) ? 0 : 1;
}
