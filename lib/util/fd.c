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
