/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allreduce of two ranks over loopback TCP cannot do without: two processes on two cores, one connection, no library, both polling. The exchange of
 * the data alone, the sum alone, and the whole of it in the ways that there are, by turns of some operations each.
 * cc -O3 -march=native halves.c -o halves && ./halves 262144 524288 1048576
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

#define BYTES_MAX ((size_t)4 << 20)
#define PAGE 4096
#define TURNS 41
#define TIMES 30 /* operations in a turn */
#define PLACES 4 /* for sums that are sent: who begins the next operation but one has read those of the last but one */

enum way { EXCHANGE, SUM, ONE_HOP, HALVES, TWICE, WAYS };

static const char *const names[WAYS] = {
    [EXCHANGE] = "exchange, nothing summed up, no answer",
    [SUM] = "half of the sum alone",
    [ONE_HOP] = "one hop, and an answer",
    [HALVES] = "in halves, and an answer",
    [TWICE] = "in halves, sums written twice, no answer",
};

static int rank, wire;
static float *own, *sums, *come, *places;

static void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static size_t moved(ssize_t n, const char *what)
{
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        give_up(what);
    return n > 0 ? (size_t)n : 0;
}

/* As many bytes each way. */
static void exchange(const void *out, void *in, size_t bytes)
{
    size_t sent = 0, read = 0;

    while (sent < bytes || read < bytes) {
        if (sent < bytes)
            sent += moved(send(wire, (const char *)out + sent, bytes - sent, MSG_NOSIGNAL | MSG_DONTWAIT), "send");
        if (read < bytes)
            read += moved(recv(wire, (char *)in + read, bytes - read, MSG_DONTWAIT), "recv");
    }
}

static void answer(void)
{
    static char out[64], in[64];

    exchange(out, in, sizeof out);
}

static void add(float *restrict to, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = a[i] + b[i];
}

static void add_twice(float *restrict to, float *restrict also, const float *a, const float *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] = also[i] = a[i] + b[i];
}

static void one_hop(size_t count)
{
    exchange(own, come, count * sizeof(float));
    add(sums, own, come, count);
    answer();
}

/* That the other half of one's own has been read, its sums say. */
static void in_halves(size_t count, int twice)
{
    static unsigned turn;
    size_t half = count / 2, mine = rank == 0 ? 0 : half, theirs = half - mine;
    float *place = twice ? places + turn++ % PLACES * half : sums + mine;

    exchange(own + theirs, come, half * sizeof(float));
    if (twice)
        add_twice(sums + mine, place, own + mine, come, half);
    else
        add(sums + mine, own + mine, come, half);
    exchange(place, sums + theirs, half * sizeof(float));
    if (!twice)
        answer();
}

static void once(enum way way, size_t count)
{
    switch (way) {
    case EXCHANGE: exchange(own, come, count * sizeof(float)); break;
    case SUM: add(sums, own, come, count / 2); break;
    case ONE_HOP: one_hop(count); break;
    case HALVES: in_halves(count, 0); break;
    case TWICE: in_halves(count, 1); break;
    case WAYS: break;
    }
}

static double turn_us(enum way way, size_t count)
{
    double began;

    once(way, count);
    answer();
    began = now_us();
    for (int i = 0; i < TIMES; i++)
        once(way, count);
    return (now_us() - began) / TIMES;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void measure(size_t bytes)
{
    static double us[WAYS][TURNS];

    for (int turn = 0; turn < TURNS; turn++)
        for (int way = 0; way < WAYS; way++)
            us[way][turn] = turn_us((enum way)way, bytes / sizeof(float));
    for (int way = 0; way < WAYS && rank == 0; way++) {
        qsort(us[way], TURNS, sizeof us[way][0], compare);
        printf("%8zu  %-42s %9.1f\n", bytes, names[way], us[way][TURNS / 2]);
    }
    fflush(stdout);
}

static void connect_both(void)
{
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), ends[2] = { socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), -1 };
    const int on = 1;

    if (bind(listener, (struct sockaddr *)&at, length) != 0 || listen(listener, 1) != 0 || getsockname(listener, (struct sockaddr *)&at, &length) != 0 ||
        connect(ends[0], (struct sockaddr *)&at, length) != 0)
        give_up("connection");
    ends[1] = accept(listener, NULL, NULL);
    for (int i = 0; i < 2; i++) {
        (void)setsockopt(ends[i], IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno")); /* BBR would pace */
        if (ends[i] < 0 || setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
            give_up("socket");
    }
    rank = fork() == 0;
    if (rank == 1)
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    wire = ends[rank];
    close(ends[1 - rank]);
    close(listener);
}

static float *memory(size_t bytes)
{
    float *memory = aligned_alloc(PAGE, bytes);

    if (memory == NULL)
        give_up("memory");
    memset(memory, 0, bytes);
    return memory;
}

int main(int argc, char **argv)
{
    cpu_set_t cpu;

    connect_both();
    CPU_ZERO(&cpu);
    CPU_SET((size_t)rank, &cpu);
    (void)sched_setaffinity(0, sizeof cpu, &cpu);
    own = memory(BYTES_MAX);
    sums = memory(BYTES_MAX);
    come = memory(BYTES_MAX);
    places = memory(PLACES * BYTES_MAX / 2);
    if (rank == 0)
        printf("# bytes  us an operation, the middle of %d turns\n", TURNS);
    for (int i = 1; i < argc; i++) {
        size_t bytes = strtoul(argv[i], NULL, 10) / (2 * sizeof(float)) * (2 * sizeof(float));

        if (bytes > 0 && bytes <= BYTES_MAX)
            measure(bytes);
    }
    if (rank == 0)
        (void)wait(NULL);
    return 0;
}
