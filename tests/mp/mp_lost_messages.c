/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The system does not take a message of an agreement (no memory for it, a full socket): it is sent again, and all agree. A rank whose messages are never
 * taken is left behind at the deadline, and the error says why.
 *
 * The sendmsg of this program stands in for the C library's.
 */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"

#define SIZE 5
#define TIMES 40
#define TIMEOUT_MS 60000
#define SOON_MS 6000 /* of a rank that is left behind; nobody else is without a core for so long */

static atomic_int refuse_of_4; /* so many of four calls are refused */
static atomic_uint calls, refused;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    const unsigned call = atomic_fetch_add(&calls, 1) * 2654435761u >> 30;

    if ((int)call < atomic_load(&refuse_of_4)) {
        errno = atomic_fetch_add(&refused, 1) % 2 == 0 ? ENOBUFS : EAGAIN;
        return -1;
    }
    return syscall(SYS_sendmsg, fd, message, flags);
}

static pk_comm_t *begin(uint64_t timeout_ms)
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_comm_t *comm = NULL;

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = timeout_ms;
    report(pk_comm_init(&comm, &config) == PK_OK, "rank %d: init", ranks_rank());
    return comm;
}

static int some(void)
{
    pk_comm_t *comm = begin(TIMEOUT_MS);
    int right = 0;

    if (comm == NULL)
        return report_end();
    atomic_store(&refuse_of_4, 3);
    for (int i = 0; i < TIMES; i++) {
        uint64_t all = 0;
        int failed = -1;

        right += pk_comm_agree(comm, ~(1ull << ranks_rank()), &all, NULL, &failed, NULL) == PK_OK && failed == 0 &&
                 all == ~0ull << SIZE;
    }
    atomic_store(&refuse_of_4, 0);
    report(right == TIMES && atomic_load(&refused) > 0, "rank %d: %d of %d agreements are right, %u messages were refused",
           ranks_rank(), right, TIMES, atomic_load(&refused));
    report(pk_barrier(comm, PK_BLOCKING) == PK_OK, "rank %d: a barrier afterwards", ranks_rank());
    (void)pk_comm_destroy(comm);
    return report_end();
}

static int all_of(int victim)
{
    pk_comm_t *comm = begin(SOON_MS);
    pk_error_info_t info = { .struct_size = sizeof info };
    int failed[SIZE] = { -1 }, count = -1;
    pk_result_t result;

    if (comm == NULL)
        return report_end();
    atomic_store(&refuse_of_4, ranks_rank() == victim ? 4 : 0);
    result = pk_comm_agree(comm, 0, NULL, failed, &count, NULL);
    atomic_store(&refuse_of_4, 0);
    if (ranks_rank() == victim) {
        pk_last_error(&info);
        report(result == PK_ERR_PEER && strstr(info.text, "were not sent") != NULL, "rank %d: %d, %.200s", victim, (int)result,
               info.text);
    } else {
        report(result == PK_OK && count == 1 && failed[0] == victim, "rank %d: %d, %d ranks are dead, rank %d the first",
               ranks_rank(), (int)result, count, failed[0]);
    }
    ranks_meet();
    (void)pk_comm_destroy(comm);
    return report_end();
}

int main(void)
{
    static const struct ranks_turn turns[] = { { .role = "some", .size = SIZE, .timeout_ms = 2 * TIMEOUT_MS },
                                               { .role = "first", .size = SIZE },
                                               { .role = "second", .size = SIZE } };
    const char *role = ranks_role();

    if (role == NULL) {
        ranks_drive(&turns[0], "the system refuses messages occasionally");
        ranks_drive(&turns[1], "and all of the first rank");
        ranks_drive(&turns[2], "and all of the second rank");
        return report_end();
    }
    return strcmp(role, "some") == 0 ? some() : all_of(strcmp(role, "second") == 0);
}
