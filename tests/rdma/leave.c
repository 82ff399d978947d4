/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs of two "hosts" that fail just before a rank leaves for good, or while it does: what pk_send has taken comes, though the
 * receiver may be late, and whoever leaves waits for nobody longer than PK_RETRY_MS. Preloaded: rdma-shim.so, by which they fail.
 *
 * usage: rdma-leave [ROUNDS]
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define RETRY_MS 4000
#define MESSAGES_MAX 24
#define COUNT_MAX 4096
#define LONG_BYTES ((size_t)3 << 20)
#define TIMEOUT_MS 60000
/* the deadline where one waits in vain; a communicator must come to be before it, in an emulated machine too */
#define LATE_MS 6000
#define OVER_MS 1500 /* how much longer than PK_RETRY_MS it may take */

enum scene { BEFORE, BEHIND, INSIDE, THEIRS, BOTH, LONG, AWAY, GONE, LATE, SCENES };
static const char *const names[SCENES] = { "the sender's have failed before it sends",
                                           "the sender's fail behind what it sends",
                                           "the sender's fail while it leaves",
                                           "the receiver's fail",
                                           "each sends to the other, and all fail while they leave",
                                           "the sender's fail in a long transfer whose receiver leaves",
                                           "the receiver is away for longer than anybody waits",
                                           "the receiver has died",
                                           "one waited in vain, and its peer has died before it leaves" };

static int rank;
static unsigned failed_after_us;

/* All queue pairs of this process that are there now, so many microseconds from now. */
static void fail_all(unsigned us)
{
    void (*fail)(unsigned us) = NULL;
    void *found = dlsym(RTLD_DEFAULT, "shim_fail_all");

    memcpy(&fail, &found, sizeof fail);
    if (fail == NULL) {
        fprintf(stderr, "rdma-shim.so is not preloaded\n");
        exit(1);
    }
    failed_after_us = us;
    fail(us);
}

static void rest(double ms)
{
    usleep((useconds_t)(ms * 1000));
}

static unsigned char byte_of(int round, int message, size_t i)
{
    return (unsigned char)(round * 31 + message * 7 + (int)(i % 251));
}

static int messages(int round)
{
    return 1 + round * 5 % MESSAGES_MAX;
}

static pk_result_t send_row(pk_comm_t *comm, int round)
{
    unsigned char bytes[COUNT_MAX];
    pk_result_t result = PK_OK;

    for (int m = 0; m < messages(round) && result == PK_OK; m++) {
        size_t count = m % 3 == 0 ? COUNT_MAX : (size_t)(8 + m);

        for (size_t i = 0; i < count; i++)
            bytes[i] = byte_of(round, m, i);
        result = pk_send(bytes, count, PK_UINT8, 1 - rank, comm, PK_BLOCKING);
    }
    return result;
}

static pk_result_t receive_row(pk_comm_t *comm, int round)
{
    unsigned char bytes[COUNT_MAX];
    pk_result_t result = PK_OK;

    for (int m = 0; m < messages(round) && result == PK_OK; m++) {
        size_t count = m % 3 == 0 ? COUNT_MAX : (size_t)(8 + m);

        memset(bytes, 0, sizeof bytes);
        result = pk_recv(bytes, count, PK_UINT8, 1 - rank, comm, PK_BLOCKING);
        for (size_t i = 0; i < count && result == PK_OK; i++)
            if (bytes[i] != byte_of(round, m, i)) {
                fprintf(stderr, "rank %d: byte %zu of message %d is wrong\n", rank, i, m);
                exit(1);
            }
    }
    return result;
}

static pk_result_t exchange_long(pk_comm_t *comm, int round, bool sends)
{
    unsigned char *bytes = calloc(1, LONG_BYTES);
    pk_result_t result;

    if (bytes == NULL)
        return PK_ERR_MEMORY;
    for (size_t i = 0; sends && i < LONG_BYTES; i++)
        bytes[i] = byte_of(round, 0, i);
    if (sends) {
        fail_all((unsigned)(round * 1733 % 30000));
        result = pk_send(bytes, LONG_BYTES, PK_UINT8, 1 - rank, comm, PK_BLOCKING);
    } else {
        result = pk_recv(bytes, LONG_BYTES, PK_UINT8, 1 - rank, comm, PK_BLOCKING);
        for (size_t i = 0; i < LONG_BYTES && result == PK_OK; i++)
            if (bytes[i] != byte_of(round, 0, i)) {
                fprintf(stderr, "rank %d: byte %zu of the long transfer is wrong\n", rank, i);
                exit(1);
            }
    }
    free(bytes);
    return result;
}

static pk_result_t play_sender(pk_comm_t *comm, enum scene scene, int round)
{
    pk_result_t result;

    switch (scene) {
    case BEFORE:
        fail_all(0);
        return send_row(comm, round);
    case THEIRS:
        rest(round % 4);
        return send_row(comm, round);
    case LONG:
        return exchange_long(comm, round, true);
    case LATE:
        result = receive_row(comm, round);
        rest(1.5 * LATE_MS);
        return result;
    case BOTH:
        fail_all((unsigned)(1 + round * 977 % 5000));
        result = send_row(comm, round);
        return result == PK_OK ? receive_row(comm, round) : result;
    default:
        if (scene == INSIDE)
            fail_all((unsigned)(1 + round * 611 % 4000));
        result = send_row(comm, round);
        if (scene != INSIDE)
            fail_all(0);
        return result;
    }
}

static pk_result_t play_receiver(pk_comm_t *comm, enum scene scene, int round)
{
    switch (scene) {
    case THEIRS:
        fail_all((unsigned)(round * 373 % 4000));
        (void)ranks_idle(comm, 50);
        break;
    case LONG:
        return exchange_long(comm, round, false);
    case BOTH:
        return play_sender(comm, scene, round);
    case AWAY:
        rest(RETRY_MS * 3);
        break;
    case LATE:
        rest(2 * LATE_MS);
        _exit(0);
    case GONE:
        _exit(0);
    default:
        if (round % 3 == 1)
            (void)ranks_idle(comm, 200);
        else
            rest(round % 3 == 0 ? 0 : 300);
        break;
    }
    return receive_row(comm, round);
}

/* Who was away for too long is told so, if not all had come. */
static bool is_right(enum scene scene, bool sends, pk_result_t result)
{
    return scene == LATE ? result == PK_ERR_TIMEOUT : result == PK_OK || (scene == AWAY && !sends && result == PK_ERR_PEER);
}

/* What destroy returns is what pk_last_error says then. */
static bool ends_well(pk_comm_t *comm, enum scene scene)
{
    const pk_result_t expected = scene == LATE ? PK_ERR_TIMEOUT : PK_OK;
    pk_error_info_t error = { .struct_size = sizeof error };
    pk_result_t result = pk_comm_destroy(comm);

    (void)pk_last_error(&error);
    if (result == expected && (result == PK_OK || error.code == result))
        return true;
    fprintf(stderr, "rank %d: destroy: %s (%s)\n", rank, pk_strerror(result), error.text);
    return false;
}

static bool is_in_time(enum scene scene, double ms)
{
    return ms < (RETRY_MS + OVER_MS) * test_slack() && (scene == AWAY || scene == GONE || ms < RETRY_MS * test_slack());
}

static bool goes_over_rdma(pk_comm_t *comm)
{
    pk_path_t path = { .struct_size = sizeof path };

    return pk_comm_path(comm, 1 - rank, PK_MEM_HOST, PK_MEM_HOST, &path) == PK_OK && strcmp(path.transport, "rdma") == 0;
}

static bool run_round(enum scene scene, int round)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_error_info_t error = { .struct_size = sizeof error };
    bool sends = rank == round % 2;
    pk_comm_t *comm;
    pk_result_t result;
    double began;

    config.timeout_ms = scene == LATE ? LATE_MS : TIMEOUT_MS / 4;
    config.device = PK_DEVICE_HOST;
    ranks_meet(); /* that a process begins late is no matter of the deadline, which is init's, too */
    if (pk_comm_init(&comm, &config) != PK_OK || !goes_over_rdma(comm) || pk_barrier(comm, PK_BLOCKING) != PK_OK) {
        fprintf(stderr, "rank %d: no communicator over rdma\n", rank);
        return false;
    }
    ranks_meet();
    result = sends ? play_sender(comm, scene, round) : play_receiver(comm, scene, round);
    (void)pk_last_error(&error);
    began = monotonic_ms();
    if (ends_well(comm, scene) && is_right(scene, sends, result) && is_in_time(scene, monotonic_ms() - began))
        return true;
    fprintf(stderr, "rank %d, which %s, round %d: %s (%s); destroyed in %.0f ms; failed after %u us\n", rank,
            sends ? "sends" : "receives", round, pk_strerror(result), error.text, monotonic_ms() - began, failed_after_us);
    return result == PK_ERR_PEER && scene == AWAY && !sends;
}

static int run_rank(int rounds)
{
    enum scene scene = (enum scene)atomic_load(&ranks_shared()->words[0]);

    rank = ranks_rank();
    for (int round = 0; round < (scene >= AWAY ? 1 : rounds); round++)
        if (!run_round(scene, round))
            return 1;
    return 0;
}

int main(int argc, char **argv)
{
    const char *rounds = argc > 1 ? argv[1] : getenv("LEAVE_ROUNDS");
    char retry[16];

    if (ranks_role() != NULL)
        return run_rank(rounds != NULL ? atoi(rounds) : 6);
    snprintf(retry, sizeof retry, "%d", RETRY_MS);
    if (rounds != NULL)
        setenv("LEAVE_ROUNDS", rounds, 1);
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    setenv("PK_RETRY_MS", retry, 1);
    for (int scene = 0; scene < SCENES; scene++)
        ranks_drive(&(struct ranks_turn){ .role = "rank", .size = 2, .timeout_ms = TIMEOUT_MS, .word = scene }, "%s",
                    names[scene]);
    return report_end();
}
