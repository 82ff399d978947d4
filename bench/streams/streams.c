/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel's loopback interface carries from one process to another, with no library: N connections, each with a thread that writes
 * and one that reads, nothing framed, matched or acknowledged. The most that anything over TCP can reach on the machine.
 *
 * --help says how it is used.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "arguments.h"
#include "timing.h"

#define THREADS_MAX 32

struct options {
    int threads;
    size_t bytes;
    double seconds;
    bool both, spliced;
};

/* threads read them to the very end of the process */
static struct options o = { .threads = 1, .bytes = 512 << 10, .seconds = 1.0 };

struct end { /* of one connection */
    int fd, pipe[2];
    char *buffer;
    _Atomic uint64_t *received; /* shared by both processes */
    pthread_t reader, writer;
};

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static void splice_all(struct end *e)
{
    struct iovec part = { e->buffer, o.bytes };

    while (part.iov_len > 0) {
        ssize_t n = vmsplice(e->pipe[1], &part, 1, 0);

        if (n <= 0)
            give_up("vmsplice");
        part.iov_base = (char *)part.iov_base + n;
        part.iov_len -= (size_t)n;
        for (ssize_t left = n, m; left > 0; left -= m) {
            m = splice(e->pipe[0], NULL, e->fd, NULL, (size_t)left, SPLICE_F_MOVE);
            if (m <= 0)
                _exit(0); /* the other process has ended */
        }
    }
}

static void *write_on(void *arg)
{
    struct end *e = arg;

    for (;;) {
        if (o.spliced)
            splice_all(e);
        else if (send(e->fd, e->buffer, o.bytes, MSG_NOSIGNAL) < 0)
            return NULL;
    }
}

static void *read_on(void *arg)
{
    struct end *e = arg;
    char *buffer = malloc(o.bytes);
    ssize_t n = 1;

    while (buffer != NULL && n > 0) {
        n = recv(e->fd, buffer, o.bytes, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            n = 1;
            continue;
        }
        if (n > 0)
            atomic_fetch_add_explicit(e->received, (uint64_t)n, memory_order_relaxed);
    }
    free(buffer);
    return NULL;
}

/* A process's ends; it writes, reads or both until it is killed. */
static void run(const int *fds, bool writes, bool reads, _Atomic uint64_t *received)
{
    static struct end ends[THREADS_MAX];

    for (int i = 0; i < o.threads; i++) {
        struct end *e = &ends[i];

        *e = (struct end){ .fd = fds[i], .received = received };
        e->buffer = aligned_alloc(4096, o.bytes);
        if (e->buffer == NULL || pipe(e->pipe) != 0)
            give_up("buffers");
        (void)fcntl(e->pipe[1], F_SETPIPE_SZ, 1 << 20);
        memset(e->buffer, i + 1, o.bytes);
        if ((reads && pthread_create(&e->reader, NULL, read_on, e) != 0) ||
            (writes && pthread_create(&e->writer, NULL, write_on, e) != 0))
            give_up("pthread_create");
    }
}

static void connect_pair(int pair[2])
{
    struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t bytes = sizeof here;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;

    if (listener < 0 || bind(listener, (struct sockaddr *)&here, sizeof here) != 0 || listen(listener, 1) != 0 ||
        getsockname(listener, (struct sockaddr *)&here, &bytes) != 0)
        give_up("listen");
    pair[0] = socket(AF_INET, SOCK_STREAM, 0);
    (void)setsockopt(pair[0], IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    if (pair[0] < 0 || connect(pair[0], (struct sockaddr *)&here, sizeof here) != 0)
        give_up("connect");
    pair[1] = accept(listener, NULL, NULL);
    (void)setsockopt(pair[0], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(pair[1], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    close(listener);
}

static const char usage[] = "usage: bare-streams [-t THREADS] [-b BYTES] [-s SECONDS] [-2] [-z]\n"
                            "  -b  of a write, and of the buffer of each thread: whole pages (512K)   -2  both ways at once\n"
                            "  -z  the writer's pages go by vmsplice, uncopied\n";

static void take_bytes(char *value)
{
    o.bytes = argument_size("-b", value, 4096, 1ull << 40);
    if (o.bytes % 4096 != 0)
        argument_refuse("-b", value);
}

static const struct argument table[] = {
    ARGUMENT_NUMBER(NULL, 't', &o.threads, 1, THREADS_MAX),
    ARGUMENT_TAKEN(NULL, 'b', take_bytes),
    ARGUMENT_REAL(NULL, 's', &o.seconds, 1e-3, 1e6),
    ARGUMENT_FLAG(NULL, '2', &o.both),
    ARGUMENT_FLAG(NULL, 'z', &o.spliced),
    { 0 },
};

int main(int argc, char **argv)
{
    _Atomic uint64_t *received = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fds[2][THREADS_MAX];
    uint64_t before;
    double began;
    pid_t child;

    arguments_parse("bare-streams", usage, table, 0, 0, argc, argv);
    if (received == MAP_FAILED)
        give_up("mmap");
    for (int i = 0; i < o.threads; i++) {
        int pair[2];

        connect_pair(pair);
        fds[0][i] = pair[0];
        fds[1][i] = pair[1];
    }
    child = fork();
    if (child == 0) {
        run(fds[0], true, o.both, &received[8]);
        pause();
    }
    run(fds[1], o.both, true, &received[0]);
    nanosleep(&(struct timespec){ .tv_nsec = 200000000 }, NULL);
    before = received[0];
    began = now_us();
    nanosleep(&(struct timespec){ .tv_sec = (time_t)o.seconds, .tv_nsec = (long)((o.seconds - (double)(time_t)o.seconds) * 1e9) },
              NULL);
    printf("%2d connections%s%s, %zu KiB: %.2f GB/s%s\n", o.threads, o.spliced ? ", spliced" : "", o.both ? ", both ways" : "",
           o.bytes >> 10, (double)(received[0] - before) / (now_us() - began) * 1e-3, o.both ? " each way" : "");
    kill(child, 9);
    (void)waitpid(child, NULL, 0);
    return 0;
}
