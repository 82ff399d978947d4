/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One thread that is two ranks, over TCP through sockets that hold little: what a rank has sent goes on leaving while the thread waits for the
 * other one, in a group of both communicators.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pickle/pickle.h"
#include "ranks.h"
#include "seccomp.h"

#define SOCKET_BYTES 4096
#define MESSAGES 30
#define BYTES 8000
#define ROUNDS 40

/* The library's sockets come from here. */
int socket(int domain, int type, int protocol)
{
    const int bytes = SOCKET_BYTES;
    int fd = (int)syscall(SYS_socket, domain, type, protocol);

    if (fd >= 0 && domain != AF_UNIX) {
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    return fd;
}

static bool open_both(pk_comm_t *comms[2])
{
    pk_comm_config_t config = PK_COMM_CONFIG_INIT;
    pk_path_t path = { .struct_size = sizeof path };
    pk_unique_id_t id;
    pk_result_t result = pk_get_unique_id(&id);

    config.device = PK_DEVICE_HOST;
    config.timeout_ms = 30000;
    config.nonblocking = 1;
    for (int rank = 0; rank < 2 && (result == PK_OK || result == PK_IN_PROGRESS); rank++)
        result = pk_comm_init_rank(&comms[rank], 2, rank, &id, &config);
    for (int rank = 0; rank < 2 && (result == PK_OK || result == PK_IN_PROGRESS); rank++)
        while ((result = pk_comm_async_error(comms[rank])) == PK_IN_PROGRESS)
            usleep(1000);
    if (result == PK_OK)
        result = pk_comm_path(comms[0], 1, PK_MEM_HOST, PK_MEM_HOST, &path);
    return report(result == PK_OK && strcmp(path.transport, "tcp") == 0, "init: %s, over %s", pk_strerror(result),
                  path.transport);
}

static bool exchange(pk_comm_t *comms[2], int sender, int round)
{
    static unsigned char from[MESSAGES][BYTES], to[MESSAGES][BYTES];
    pk_result_t result = pk_group_start();

    for (int i = 0; i < MESSAGES; i++)
        memset(from[i], round + i, BYTES);
    memset(to, 0, sizeof to);
    for (int i = 0; i < MESSAGES && result == PK_OK; i++)
        result = pk_send(from[i], BYTES, PK_UINT8, !sender, comms[sender], PK_BLOCKING);
    for (int i = 0; i < MESSAGES && result == PK_OK; i++)
        result = pk_recv(to[i], BYTES, PK_UINT8, sender, comms[!sender], PK_BLOCKING);
    if (result == PK_OK)
        result = pk_group_end();
    return result == PK_OK && memcmp(from, to, sizeof from) == 0;
}

int main(void)
{
    pk_comm_t *comms[2] = { NULL, NULL };
    int right = 0;

    if (!seccomp_deny(SYS_memfd_create, SECCOMP_ANY, EPERM)) {
        printf("SKIPPED: no seccomp here\n");
        return 77;
    }
    if (!open_both(comms))
        return report_end();
    while (right < ROUNDS && exchange(comms, right % 2, right))
        right++;
    report(right == ROUNDS, "%d of %d groups of both ranks ended right", right, ROUNDS);
    for (int rank = 0; rank < 2; rank++)
        pk_comm_abort(comms[rank]);
    return report_end();
}
