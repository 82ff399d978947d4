/* SPDX-License-Identifier: Apache-2.0 */
#include "util/fd.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#define FIRST (STDERR_FILENO + 1)

int pki_fd_keep(int fd)
{
    int moved, error;

    if (fd < 0 || fd >= FIRST)
        return fd;
    moved = fcntl(fd, F_DUPFD_CLOEXEC, FIRST);
    error = errno;
    close(fd);
    errno = error;
    return moved;
}

int pki_fd_pipe(int ends[2], int flags)
{
    int made[2], error;

    if (pipe2(made, flags) != 0)
        return -1;
    made[0] = pki_fd_keep(made[0]);
    error = errno;
    made[1] = pki_fd_keep(made[1]);
    if (made[0] >= 0 && made[1] >= 0) {
        ends[0] = made[0];
        ends[1] = made[1];
        return 0;
    }
    if (made[0] < 0)
        errno = error;
    for (int i = 0; i < 2; i++)
        if (made[i] >= 0)
            close(made[i]);
    return -1;
}
