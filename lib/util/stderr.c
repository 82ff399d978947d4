/* SPDX-License-Identifier: Apache-2.0 */
#include "util/stderr.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util/fd.h"
#include "util/sigblock.h"

#define NOTE_BYTES 96

static struct {
    unsigned long lost;
    bool within; /* a line has been written in part */
} now;

/* The open file behind descriptor 2 is shared with others, who would find out if it were made non-blocking. The same pipe or
 * terminal opened once more is ours; O_DIRECT keeps a pipe's writes apart. Negative: there is no reader (ENXIO), or it cannot
 * be opened: no /proc, another user's pipe, no descriptor. */
static int open_again(void)
{
    const int flags = O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (fcntl(STDERR_FILENO, F_GETFL) & O_DIRECT);

    return pki_fd_keep(open("/proc/thread-self/fd/2", flags));
}

/* A write of up to PIPE_BUF bytes to a pipe that polls as writable does not wait, unless another process fills it in between. */
static ssize_t write_if_ready(const char *text, size_t bytes)
{
    struct pollfd p = { .fd = STDERR_FILENO, .events = POLLOUT };

    if (poll(&p, 1, 0) != 1 || p.revents != POLLOUT)
        return -1;
    return write(STDERR_FILENO, text, bytes);
}

static ssize_t write_now(const char *text, size_t bytes)
{
    struct stat kind;
    ssize_t n;
    int fd;

    if (fstat(STDERR_FILENO, &kind) != 0)
        return -1;
    if (S_ISSOCK(kind.st_mode))
        return send(STDERR_FILENO, text, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (!S_ISFIFO(kind.st_mode) && !S_ISCHR(kind.st_mode))
        return write(STDERR_FILENO, text, bytes);
    fd = open_again();
    if (fd < 0)
        return errno != ENXIO ? write_if_ready(text, bytes) : -1;
    n = write(fd, text, bytes);
    close(fd);
    return n;
}

void pki_stderr_line(const char *line, size_t bytes)
{
    char text[NOTE_BYTES + PKI_STDERR_LINE];
    struct pki_sigblock pipe, size; /* nobody reads; a file that is as long as ulimit -f allows */
    size_t used = 0;
    ssize_t n;

    if (bytes > PKI_STDERR_LINE)
        bytes = PKI_STDERR_LINE;
    if (now.lost > 0)
        used = (size_t)snprintf(text, NOTE_BYTES, "%spickle: lines lost before this one because standard error was full: %lu\n",
                                now.within ? "\n" : "", now.lost);
    memcpy(text + used, line, bytes);
    pki_sigblock(&pipe, SIGPIPE);
    pki_sigblock(&size, SIGXFSZ);
    n = write_now(text, used + bytes);
    pki_sigblock_release(&size, n < 0);
    pki_sigblock_release(&pipe, n < 0);
    if (n == (ssize_t)(used + bytes)) {
        now.lost = 0;
        now.within = false;
        return;
    }
    now.lost++;
    now.within = now.within || n > 0;
}
