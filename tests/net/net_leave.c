/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank on another "host" destroys its communicator in good order while its peer still has something to do with it: what it had sent
 * comes, and who waits for what will never come is told so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define EAGER_PUT_COUNT (100u << 10) /* sent before it is granted */
#define COUNT 1000
#define MESSAGES 245 /* nearly all that may be sent to who does not receive */
#define TIMEOUT_MS 20000
#define SOON_MS 3000

enum { UNRECEIVED, MUCH_SENT, SCENES };
static const char *const names[SCENES] = { "left without having received", "sent much and left" };

static pk_result_t receive_all(pk_comm_t *comm, int peer)
{
    for (int i = 0; i < MESSAGES; i++) {
        unsigned char bytes[COUNT] = { 0 }, right[COUNT];
        pk_result_t result = pk_recv(bytes, COUNT, PK_UINT8, peer, comm, PK_BLOCKING);

        if (result != PK_OK)
            return result;
        memset(right, i % 251, COUNT);
        if (memcmp(bytes, right, COUNT) != 0)
            return PK_ERR_INTERNAL;
    }
    return PK_OK;
}

static pk_result_t send_all(pk_comm_t *comm, int peer)
{
    unsigned char bytes[COUNT];
    pk_result_t result = PK_OK;

    for (int i = 0; i < MESSAGES && result == PK_OK; i++) {
        memset(bytes, i % 251, sizeof bytes);
        result = pk_send(bytes, COUNT, PK_UINT8, peer, comm, PK_BLOCKING);
    }
    return result;
}

/* Of the one that stays. */
static bool stays(pk_comm_t *comm, int scene, int peer)
{
    static unsigned char bytes[EAGER_PUT_COUNT];
    double began;
    pk_result_t result = PK_OK;

    if (scene == MUCH_SENT) {
        usleep(500000);
        result = receive_all(comm, peer);
        if (result != PK_OK) {
            fprintf(stderr, "receiving what was sent: %s\n", pk_strerror(result));
            return false;
        }
    }
    began = monotonic_ms();
    result = scene == MUCH_SENT ? pk_recv(bytes, COUNT, PK_UINT8, peer, comm, PK_BLOCKING)
                                : pk_send(bytes, EAGER_PUT_COUNT, PK_UINT8, peer, comm, PK_BLOCKING);
    if (result != PK_ERR_PEER || monotonic_ms() - began > SOON_MS * test_slack()) {
        fprintf(stderr, "after the peer left: %s after %.0f ms\n", pk_strerror(result), monotonic_ms() - began);
        return false;
    }
    return true;
}

static int run_rank(void)
{
    int turn = (int)atomic_load(&ranks_shared()->words[0]), scene = turn / 2, leaver = turn % 2, rank = ranks_rank();
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm;
    bool right = true;

    config.timeout_ms = TIMEOUT_MS;
    if (pk_comm_init(&comm, &config) != PK_OK || pk_barrier(comm, PK_BLOCKING) != PK_OK)
        return 1;
    ranks_meet();
    if (rank != leaver)
        right = stays(comm, scene, leaver);
    else if (scene == MUCH_SENT)
        right = send_all(comm, 1 - rank) == PK_OK;
    else
        usleep(300000);
    return (pk_comm_destroy(comm) == PK_OK || rank != leaver) && right ? 0 : 1;
}

int main(void)
{
    if (ranks_role() != NULL)
        return run_rank();
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    for (int i = 0; i < 2 * SCENES; i++)
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .timeout_ms = 2 * TIMEOUT_MS, .word = i }, "rank %d %s",
                    i % 2, names[i / 2]);
    return report_end();
}
