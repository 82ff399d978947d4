/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections between "hosts" that break while a rank is not in the library, is about to leave it for good, or has died behind a proxy that
 * accepts for it anyway: who lives is waited for, what was sent comes, and who is dead is found out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "proxy.h"
#include "ranks.h"

#define RETRY_MS 4000
#define MESSAGES 20
#define COUNT 4096
#define TIMEOUT_MS 60000

enum { LEAVES, AWAY, BACK, DIES, SCENES };
static const char *const names[SCENES] = { "sent and left while the connection was broken", "away while the peer finds it broken",
                                           "away having found it broken", "died behind a proxy" };

/* Over libc's, whose declaration names all kinds of addresses. */
int cutting_connect(int fd, const struct sockaddr *address, socklen_t bytes) __asm__("connect");
int cutting_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return proxy_connect(fd, address, bytes);
}

static void rest(double ms)
{
    double until = monotonic_ms() + ms;

    while (monotonic_ms() < until)
        usleep(10000);
}

static pk_result_t send_row(pk_comm_t *comm, int peer)
{
    unsigned char bytes[COUNT];
    pk_result_t result = PK_OK;

    for (int i = 0; i < MESSAGES && result == PK_OK; i++) {
        memset(bytes, 'a' + i, sizeof bytes);
        result = pk_send(bytes, COUNT, PK_UINT8, peer, comm, PK_BLOCKING);
    }
    return result;
}

static pk_result_t receive_row(pk_comm_t *comm, int peer)
{
    unsigned char bytes[COUNT];
    pk_result_t result = PK_OK;

    for (int i = 0; i < MESSAGES && result == PK_OK; i++) {
        memset(bytes, 0, sizeof bytes);
        result = pk_recv(bytes, COUNT, PK_UINT8, peer, comm, PK_BLOCKING);
        if (result == PK_OK && (bytes[0] != 'a' + i || bytes[COUNT - 1] != 'a' + i))
            return PK_ERR_INTERNAL;
    }
    return result;
}

/* Rank 1 connects, so that its proxy has what can be cut. */
static pk_result_t play(pk_comm_t *comm, int scene, int rank)
{
    switch (scene) {
    case LEAVES:
        if (rank == 0)
            return ranks_idle(comm, 300) == PK_OK ? send_row(comm, 1) : PK_ERR_INTERNAL;
        proxy_cut_all(1);
        rest(RETRY_MS / 2);
        proxy_let_through();
        return receive_row(comm, 0);
    case AWAY:
        if (rank == 0)
            return receive_row(comm, 1);
        proxy_cut_all(0);
        rest(2.5 * RETRY_MS);
        return send_row(comm, 0);
    case BACK:
        if (rank == 0) {
            pk_result_t result = ranks_idle(comm, 300);

            rest(2.5 * RETRY_MS);
            return result == PK_OK ? send_row(comm, 1) : result;
        }
        proxy_cut_all(1);
        rest(500);
        proxy_let_through();
        return receive_row(comm, 0);
    default:
        if (rank == 1)
            _exit(0); /* no shutdown message: its kernel closes what it had */
        proxy_accept_and_close();
        return receive_row(comm, 1);
    }
}

static bool is_right(int scene, pk_result_t result, double ms)
{
    return scene == DIES ? result == PK_ERR_PEER && ms < (2 * RETRY_MS + 250) * test_slack() : result == PK_OK;
}

static int run_rank(void)
{
    int scene = (int)atomic_load(&ranks_shared()->words[0]), rank = ranks_rank();
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t error = { .struct_size = sizeof error };
    pk_comm_t *comm;
    pk_result_t result;
    double began;
    bool right;

    config.timeout_ms = TIMEOUT_MS / 2;
    proxy_rule(&(struct proxy_rules){ .seed = (unsigned)rank });
    if (pk_comm_init(&comm, &config) != PK_OK || pk_barrier(comm, PK_BLOCKING) != PK_OK)
        return 1;
    ranks_meet();
    began = monotonic_ms();
    result = play(comm, scene, rank);
    right = is_right(scene, result, monotonic_ms() - began);
    if (!right) {
        (void)pk_last_error(&error);
        fprintf(stderr, "rank %d: %s after %.0f ms: %s\n", rank, pk_strerror(result), monotonic_ms() - began, error.text);
    }
    return (pk_comm_destroy(comm) == PK_OK || scene == DIES) && right ? 0 : 1;
}

int main(void)
{
    char retry[16];

    if (ranks_role() != NULL)
        return run_rank();
    snprintf(retry, sizeof retry, "%d", RETRY_MS);
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    setenv("PK_RETRY_MS", retry, 1);
    for (int scene = 0; scene < SCENES; scene++)
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .timeout_ms = TIMEOUT_MS, .word = scene }, "%s",
                    names[scene]);
    return report_end();
}
