/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes on two cores send a message to and fro over loopback TCP with no library, and poll: what heads of various lengths in front of it cost, what
 * a copy that the sender keeps, and what an answer that it waits for instead.
 * cc -O2 heads.c -o heads && ./heads 65536 262144
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BYTES_MAX ((size_t)4 << 20)
#define PAGE 4096
#define TURNS 7
#define TIMES 400 /* to and fro in a turn */

enum way { PLAIN, KEPT, ANSWERED, WAYS };

static const char *const names[WAYS] = { "nothing else", "a copy kept", "an answer" };
static const size_t heads[] = { 0, 8, 24, 32, 33, 64, 96, 128 };
#define HEADS (sizeof heads / sizeof heads[0])

static int rank, wire;
static char *out, *in, *kept, head_out[PAGE], head_in[PAGE];

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

/* Head and payload behind the first `done` bytes; returns how many parts. */
static int parts_of(struct iovec parts[2], char *head, size_t head_bytes, char *payload, size_t bytes, size_t done)
{
    size_t of_payload = done > head_bytes ? done - head_bytes : 0;
    int n = 0;

    if (done < head_bytes)
        parts[n++] = (struct iovec){ head + done, head_bytes - done };
    parts[n++] = (struct iovec){ payload + of_payload, bytes - of_payload };
    return n;
}

static void move(int sends, size_t head_bytes, size_t bytes)
{
    for (size_t done = 0; done < head_bytes + bytes;) {
        struct iovec parts[2];
        struct msghdr message = { .msg_iov = parts };
        ssize_t n;

        message.msg_iovlen = (size_t)parts_of(parts, sends ? head_out : head_in, head_bytes, sends ? out : in, bytes, done);
        n = sends ? sendmsg(wire, &message, MSG_NOSIGNAL) : readv(wire, parts, (int)message.msg_iovlen);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            give_up(sends ? "sendmsg" : "readv");
        done += n > 0 ? (size_t)n : 0;
    }
}

/* An answer is as long as a head that is a line. */
static void send_one(enum way way, size_t head_bytes, size_t bytes)
{
    move(1, head_bytes, bytes);
    if (way == KEPT)
        memcpy(kept, out, bytes);
    if (way == ANSWERED)
        move(0, 0, 64);
}

static void take_one(enum way way, size_t head_bytes, size_t bytes)
{
    move(0, head_bytes, bytes);
    if (way == ANSWERED)
        move(1, 0, 64);
}

static int is_less(const void *a, const void *b)
{
    return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *us, size_t n)
{
    qsort(us, n, sizeof *us, is_less);
    return us[n / 2];
}

/* Half of a round, of the middle one. */
static double turn(enum way way, size_t head_bytes, size_t bytes)
{
    double us[TIMES];

    for (int i = 0; i < TIMES; i++) {
        double began = now_us();

        if (rank == 0)
            send_one(way, head_bytes, bytes);
        take_one(way, head_bytes, bytes);
        if (rank == 1)
            send_one(way, head_bytes, bytes);
        us[i] = (now_us() - began) / 2;
    }
    return median(us, TIMES);
}

static void table(size_t bytes)
{
    static double us[WAYS][HEADS][TURNS];

    for (int i = 0; i < TURNS; i++)
        for (int way = 0; way < WAYS; way++)
            for (size_t h = 0; h < HEADS; h++)
                us[way][h][i] = turn((enum way)way, heads[h], bytes);
    for (int way = 0; rank == 0 && way < WAYS; way++) {
        printf("%8zu %-12s", bytes, names[way]);
        for (size_t h = 0; h < HEADS; h++)
            printf(" %8.2f", median(us[way][h], TURNS));
        printf("\n");
    }
}

static void stay_on(int cpu)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0)
        give_up("sched_setaffinity");
}

static void meet(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof address;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    (void)setsockopt(listener, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno"));
    if (bind(listener, (struct sockaddr *)&address, bytes) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&address, &bytes) != 0)
        give_up("listen");
    rank = fork() == 0;
    if (rank == 0) {
        wire = accept(listener, NULL, NULL);
    } else {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        wire = socket(AF_INET, SOCK_STREAM, 0);
        (void)setsockopt(wire, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno"));
        if (connect(wire, (struct sockaddr *)&address, bytes) != 0)
            give_up("connect");
    }
    if (wire < 0 || setsockopt(wire, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0 || fcntl(wire, F_SETFL, O_NONBLOCK) != 0)
        give_up("a connection");
    stay_on(rank);
}

int main(int argc, char **argv)
{
    char **memory[] = { &out, &in, &kept };

    for (size_t i = 0; i < 3; i++) {
        *memory[i] = aligned_alloc(PAGE, BYTES_MAX);
        if (*memory[i] == NULL)
            give_up("memory");
        memset(*memory[i], 1, BYTES_MAX);
    }
    meet();
    if (rank == 0) {
        printf("# us to send and have read so many bytes, behind a head of so many; the middle of %d turns\n%8s %-12s", TURNS, "bytes", "and");
        for (size_t h = 0; h < HEADS; h++)
            printf(" %8zu", heads[h]);
        printf("\n");
    }
    for (int i = 1; i < argc; i++) {
        size_t bytes = (size_t)strtoull(argv[i], NULL, 10);

        if (bytes > 0 && bytes <= BYTES_MAX)
            table(bytes);
        fflush(stdout);
    }
    if (rank == 0)
        (void)wait(NULL);
    return 0;
}
