/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes on two cores send each other a message at the same time over loopback TCP, again and again, with no library, and poll: what an allreduce
 * of short messages is. Over one connection; over two, one for each direction; over two that change direction with every exchange, so that neither end's
 * socket is being written while the other end's message comes in, and acknowledgements still ride on data. In turns of some hundred exchanges.
 * cc -O2 exchange.c -o exchange && ./exchange 1024 8192 65536
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES_MAX (1u << 20)
#define TURNS 200

enum way { ONE, EACH_ITS_OWN, CHANGING, WAYS };

static const char *const names[WAYS] = { "one connection", "one for each direction", "two, changing" };
static int rank, sockets[2];
static char out[BYTES_MAX], in[BYTES_MAX];

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void set_up(int fd)
{
    const int on = 1;

    /* Nobody to be fair to; BBR would pace. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno"));
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
        give_up("socket");
}

static void receive(int fd, size_t bytes)
{
    size_t have = 0;

    while (have < bytes) {
        ssize_t n = recv(fd, in + have, bytes - have, MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            exit(1); /* the other end has */
        have += n > 0 ? (size_t)n : 0;
    }
}

static void exchange(enum way way, unsigned number, size_t bytes)
{
    unsigned mine = way == ONE ? 0 : way == EACH_ITS_OWN ? (unsigned)rank : (number + (unsigned)rank) & 1;
    unsigned theirs = way == ONE ? 0 : mine ^ 1;

    if (send(sockets[mine], out, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        give_up("send");
    receive(sockets[theirs], bytes);
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(size_t bytes)
{
    static double us[WAYS][TURNS];
    unsigned exchanges = bytes > 200000 ? 40 : bytes > 60000 ? 100 : 400;

    for (int turn = 0; turn < TURNS; turn++)
        for (int way = 0; way < WAYS; way++) {
            double began = now_us();

            for (unsigned i = 0; i < exchanges; i++)
                exchange((enum way)way, i, bytes);
            us[way][turn] = (now_us() - began) / exchanges;
        }
    for (int way = 0; way < WAYS && rank == 0; way++) {
        qsort(us[way], TURNS, sizeof us[way][0], compare);
        printf("%8zu bytes, %-22s median %7.2f us, first quarter %7.2f\n", bytes, names[way], us[way][TURNS / 2], us[way][TURNS / 4]);
    }
}

int main(int argc, char **argv)
{
    struct sockaddr_in place = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof place;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    pid_t other;
    cpu_set_t cpu;

    set_up(listener);
    if (bind(listener, (struct sockaddr *)&place, length) != 0 || getsockname(listener, (struct sockaddr *)&place, &length) != 0 ||
        listen(listener, 2) != 0)
        give_up("listen");
    other = fork();
    rank = other == 0;
    if (rank == 1)
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    CPU_ZERO(&cpu);
    CPU_SET((unsigned)rank, &cpu);
    if (sched_setaffinity(0, sizeof cpu, &cpu) != 0)
        give_up("sched_setaffinity");
    for (int i = 0; i < 2; i++) {
        sockets[i] = rank == 0 ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0);
        set_up(sockets[i]);
        if (rank == 1 && connect(sockets[i], (struct sockaddr *)&place, length) != 0)
            give_up("connect");
    }
    for (int i = 1; i < argc; i++) {
        size_t bytes = strtoul(argv[i], NULL, 10);

        if (bytes == 0 || bytes > BYTES_MAX) {
            fprintf(stderr, "%s is not a length from 1 to %u\n", argv[i], BYTES_MAX);
            exit(1);
        }
        measure(bytes);
    }
    if (rank == 0)
        (void)waitpid(other, NULL, 0);
    return 0;
}
