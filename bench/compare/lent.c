/* SPDX-License-Identifier: Apache-2.0 */
#include "lent.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define MOST ((size_t)256 << 10) /* at a time */
#define PIPE_BYTES (512 << 10)

static struct lent_seat *seats;
static int me;
static struct {
    int out, in;    /* what is lent to that rank; what it lends */
    uint64_t taken; /* bytes */
} pipes[LENT_RANKS_MAX];

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}

void lent_open(struct lent_seat *all, int rank, int size)
{
    seats = all;
    me = rank;
    for (int r = 0; r < size; r++) {
        int ends[2];

        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0 || fcntl(ends[1], F_SETPIPE_SZ, PIPE_BYTES) < 0)
            give_up("pipe");
        seats[me].pipes[r] = ends[0];
        pipes[r].out = ends[1];
        pipes[r].in = -1;
    }
    seats[me].pid = getpid();
}

size_t lent_give(int to, const char *from, size_t bytes)
{
    struct iovec pages = { (void *)(uintptr_t)from, bytes < MOST ? bytes : MOST };
    ssize_t n = bytes > 0 ? vmsplice(pipes[to].out, &pages, 1, SPLICE_F_NONBLOCK) : 0;

    if (n <= 0)
        return 0;
    atomic_fetch_add_explicit(&seats[me].bytes[to], (uint64_t)n, memory_order_release);
    return (size_t)n;
}

static int reading_end(int from)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)seats[from].pid, seats[from].pipes[me]);
    if (pipes[from].in < 0)
        pipes[from].in = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (pipes[from].in < 0)
        give_up(path);
    return pipes[from].in;
}

size_t lent_take(int from, char *to, size_t most)
{
    uint64_t there = atomic_load_explicit(&seats[from].bytes[me], memory_order_acquire) - pipes[from].taken;

    if (there > most || (there > 0 && read(reading_end(from), to, there) != (ssize_t)there))
        give_up("read of what was lent");
    pipes[from].taken += there;
    return there;
}
