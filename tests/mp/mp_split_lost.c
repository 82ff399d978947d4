/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks 0 and 2 of three split off, and rank 2 never comes to where they meet: it dies on the way, or it stands still and rank 1 revokes the
 * parent. Rank 0 waits for it in the new communicator's init, and hears the parent's error there, long before the deadline; by a blocking
 * call, and by asking a communicator whose init is not. Within a machine and between "hosts".
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 3
#define LOST 2
#define DEADLINE_MS 600000

/* Words of the shared memory. The first is the turn's: what the lost rank does, and whether inits block. */
enum { TURN, ON_ITS_WAY, GO_ON };
enum { DIES = 1, NONBLOCKING = 2 };

static atomic_bool armed;

/* The library's is this one: in the rank that gets lost its first call after the parent's operations is on the way to rank 0. */
int on_the_way(int fd, const struct sockaddr *address, socklen_t bytes) __asm__("connect");

int on_the_way(int fd, const struct sockaddr *address, socklen_t bytes)
{
    if (atomic_exchange(&armed, false)) {
        _Atomic int64_t *words = ranks_shared()->words;

        atomic_store(&words[ON_ITS_WAY], 1);
        if ((atomic_load(&words[TURN]) & DIES) != 0)
            raise(SIGKILL);
        while (atomic_load(&words[GO_ON]) == 0)
            usleep(1000);
    }
    return (int)syscall(SYS_connect, fd, address, bytes);
}

/* The new communicator's outcome. */
static pk_result_t split(pk_comm_t *parent, bool nonblocking)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = DEADLINE_MS;
    config.nonblocking = nonblocking;
    result = pk_comm_split(parent, ranks_rank() % 2, 0, &comm, &config);
    while (result == PK_IN_PROGRESS) {
        usleep(1000);
        result = pk_comm_async_error(comm);
    }
    (void)pk_comm_destroy(comm);
    return result;
}

static int rank_main(void)
{
    _Atomic int64_t *words = ranks_shared()->words;
    const bool dies = (atomic_load(&words[TURN]) & DIES) != 0;
    const pk_result_t expected = ranks_rank() == 1 ? PK_OK : dies ? PK_ERR_PEER : PK_ERR_REVOKED;
    pk_error_info_t info = { .struct_size = sizeof info };
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *parent = NULL;
    double begun;
    pk_result_t result;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = DEADLINE_MS;
    if (!report(pk_comm_init(&parent, &config) == PK_OK && pk_barrier(parent, PK_BLOCKING) == PK_OK, "rank %d: init",
                ranks_rank()))
        return report_end();
    atomic_store(&armed, ranks_rank() == LOST);
    begun = monotonic_ms();
    result = split(parent, (atomic_load(&words[TURN]) & NONBLOCKING) != 0);
    pk_last_error(&info);
    report(result == expected, "rank %d: split: %d after %.0f ms (%d is expected): %s", ranks_rank(), (int)result,
           monotonic_ms() - begun, (int)expected, result == PK_OK ? "" : info.text);
    while (ranks_rank() == 1 && atomic_load(&words[ON_ITS_WAY]) == 0)
        usleep(1000);
    if (ranks_rank() == 1 && !dies)
        report(pk_comm_revoke(parent) == PK_OK, "rank 1: revoke");
    if (ranks_rank() == 0)
        atomic_store(&words[GO_ON], 1);
    while (ranks_rank() == 1 && atomic_load(&words[GO_ON]) == 0)
        usleep(1000);
    (void)pk_comm_destroy(parent);
    return report_end();
}

static void turn(int what, const char *name)
{
    struct ranks ranks;

    ranks_open(&ranks, SIZE);
    atomic_store(&ranks.shared->words[TURN], what);
    ranks_start_all(&ranks, "rank", NULL, NULL);
    report(ranks_wait(&ranks, DEADLINE_MS / 10, (what & DIES) != 0 ? LOST : -1) == 0, "%s, the lost rank %s, %s", name,
           (what & DIES) != 0 ? "dies" : "stands still", (what & NONBLOCKING) != 0 ? "asking" : "blocking");
    ranks_close(&ranks);
}

int main(void)
{
    if (ranks_role() != NULL)
        return rank_main();
    setenv("PK_LOG", "none", 1);
    for (int what = 0; what < 4; what++)
        turn(what, "within a machine");
    setenv("PICKLE_TEST_HOSTS", "2", 1);
    for (int what = 0; what < 4; what++)
        turn(what, "between hosts");
    return report_end();
}
