/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chunks that come late: the connections break in the middle of a receive and lead nowhere until the receive has ended at its deadline, or
 * has been aborted. Its buffer is used for something else then, while the sender is let through and sends again what was lost, and while the
 * communicator is destroyed: no byte of the buffer changes.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "proxy.h"
#include "ranks.h"

#define BYTES ((size_t)64 << 20)
#define SENT 0x11
#define REUSED 0xa5
#define DEADLINE_MS 1500
#define CUT_BYTES ((size_t)4 << 20) /* of the transfer, and then the connections break */
#define LATE_MS 300                 /* in which what is late may come */
#define TIMEOUT_MS 60000

enum { BY_DEADLINE, BY_ABORT, SCENES };
static const char *const names[SCENES] = { "late behind a deadline", "late behind an abort" };

enum { SCENE, GIVEN_UP }; /* words */

/* Over libc's, whose declaration names all kinds of addresses. */
int cutting_connect(int fd, const struct sockaddr *address, socklen_t bytes) __asm__("connect");
int cutting_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return proxy_connect(fd, address, bytes);
}

static void *abort_late(void *comm)
{
    usleep(DEADLINE_MS / 2 * 1000);
    (void)pk_comm_abort(comm);
    return NULL;
}

/* Lets them through when the other has given up. */
static void *let_through(void *arg)
{
    (void)arg;
    while (atomic_load(&ranks_shared()->words[GIVEN_UP]) == 0)
        usleep(1000);
    proxy_let_through();
    return NULL;
}

static bool receive(pk_comm_t *comm, unsigned char *bytes, int scene)
{
    pk_result_t expected = scene == BY_ABORT ? PK_ERR_ABORTED : PK_ERR_TIMEOUT, result;
    pthread_t thread;
    size_t touched;

    if (scene == BY_ABORT && pthread_create(&thread, NULL, abort_late, comm) != 0)
        return false;
    result = pk_recv(bytes, BYTES, PK_UINT8, 1, comm, PK_BLOCKING);
    memset(bytes, REUSED, BYTES);
    atomic_store(&ranks_shared()->words[GIVEN_UP], 1);
    usleep(LATE_MS / 2 * 1000);
    if (scene == BY_ABORT)
        pthread_join(thread, NULL);
    (void)pk_comm_destroy(comm);
    usleep(LATE_MS / 2 * 1000);
    touched = bytes_other_than(REUSED, bytes, BYTES);
    if (result != expected || touched > 0)
        fprintf(stderr, "receive: %s, %zu bytes were touched\n", pk_strerror(result), touched);
    return result == expected && touched == 0;
}

static bool send_cut(pk_comm_t *comm, unsigned char *bytes)
{
    pthread_t thread;
    pk_result_t result;

    memset(bytes, SENT, BYTES);
    proxy_cut_behind(CUT_BYTES); /* which breaks them while they are full */
    if (pthread_create(&thread, NULL, let_through, NULL) != 0)
        return false;
    result = pk_send(bytes, BYTES, PK_UINT8, 0, comm, PK_BLOCKING);
    pthread_join(thread, NULL);
    (void)pk_comm_destroy(comm);
    if (result == PK_OK)
        fprintf(stderr, "send: all had gone before the cut\n");
    return result != PK_OK;
}

static int run_rank(void)
{
    int scene = (int)atomic_load(&ranks_shared()->words[SCENE]), rank = ranks_rank();
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    unsigned char *bytes = malloc(BYTES);
    pk_comm_t *comm;
    bool right;

    config.timeout_ms = scene == BY_DEADLINE && rank == 0 ? DEADLINE_MS : TIMEOUT_MS / 2;
    proxy_rule(&(struct proxy_rules){ .seed = (unsigned)rank });
    if (bytes == NULL || pk_comm_init(&comm, &config) != PK_OK || pk_barrier(comm, PK_BLOCKING) != PK_OK)
        return 1;
    ranks_meet();
    right = rank == 0 ? receive(comm, bytes, scene) : send_cut(comm, bytes);
    free(bytes);
    return right ? 0 : 1;
}

int main(void)
{
    if (ranks_role() != NULL)
        return run_rank();
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    setenv("PK_RETRY_MS", "10000", 1);
    for (int threads = 0; threads < 3; threads += 2) {
        setenv("PK_SOCKETS", threads == 0 ? "2/0" : "2/2", 1);
        for (int scene = 0; scene < SCENES; scene++)
            ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .timeout_ms = TIMEOUT_MS, .word = scene },
                        "%s, %d threads", names[scene], threads);
    }
    return report_end();
}
