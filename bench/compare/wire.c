/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ping-pong and the allreduce of two ranks over one TCP connection with no library: the bytes are written and read, both ends polling, and added.
 * Nothing is matched, framed or checked, nobody else may write. What these system calls take is the kernel's; where a library comes near it there
 * is nothing left to gain.
 *
 * An allreduce does what any implementation must that can send again over a new connection what a broken one has lost, and gives the caller's buffer back
 * when it returns: short messages are kept, a copy of them, made while the peer reads; of longer ones the sums are written twice, and the half that the peer
 * adds to its own has been read when its sums come; for long ones, and for pages of short ones that were lent, it returns when the peer has said that it has
 * read them. In a ping-pong the answer says that.
 *
 * copy:   send and recv, each of which copies
 * splice: as copy, but the pages of 64 KiB and more go into the connection themselves, through a pipe
 * frames: as copy, but short messages of a ping-pong have a head with length and number, which is checked, begin and end with cache lines, and are kept:
 *         the least that a library does that does not know that an answer will come
 */
#include "add.h"
#include "compare.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define TRIES 2000 /* of the one who connects, a millisecond apart */

#define SPLICE_MIN ((size_t)64 << 10)
#define COPY_MAX ((size_t)512 << 10) /* of one send; more takes no less time */
#define PIECE ((size_t)512 << 10)
#define PIPE_BYTES (1 << 20)
#define KEPT_MAX ((size_t)64 << 10)     /* of a message that is kept; */
#define KEPT_BYTES ((size_t)256 << 10)  /* of all of them */
#define ONE_HOP_MAX ((size_t)256 << 10) /* above in halves: 0.9 of the time of one hop */
#define TWICE_MAX ((size_t)512 << 10)   /* of sums that are written twice; */
#define FRAMED_MAX ((size_t)2016)       /* of a message with a head */
#define LINE ((size_t)64)
#define PLACES 4 /* so often, one behind another: a peer that begins the next but one has read the last but one */

static int wire = -1, pipes[2];
static int splices, frames;
static size_t in_pipe;

static _Noreturn void give_up(const char *what)
{
    perror(what);
    exit(1);
}

static int number_of(const char *variable)
{
    const char *text = getenv(variable);

    if (text == NULL) {
        fprintf(stderr, "%s is not set\n", variable);
        exit(1);
    }
    return atoi(text);
}

/* PK_ROOT, "host:port". */
static struct addrinfo *meeting_place(void)
{
    const struct addrinfo wanted = { .ai_family = AF_INET, .ai_socktype = SOCK_STREAM };
    struct addrinfo *found;
    char host[256];
    char *colon;

    snprintf(host, sizeof host, "%s", getenv("PK_ROOT") != NULL ? getenv("PK_ROOT") : "");
    colon = strrchr(host, ':');
    if (colon == NULL)
        give_up("PK_ROOT");
    *colon = '\0';
    if (getaddrinfo(host, colon + 1, &wanted, &found) != 0)
        give_up("getaddrinfo");
    return found;
}

static int meet(const struct addrinfo *place, int rank)
{
    const int on = 1;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), tries = 0, listener;

    if (fd < 0)
        give_up("socket");
    /* As libpickle within a machine: there is nobody to be fair to, and BBR would pace. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", strlen("reno"));
    if (rank == 0) {
        listener = fd;
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, place->ai_addr, place->ai_addrlen) != 0 || listen(listener, 1) != 0)
            give_up("listen");
        fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        close(listener);
    } else {
        while (connect(fd, place->ai_addr, place->ai_addrlen) != 0) {
            if (++tries == TRIES)
                give_up("connect");
            nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        }
    }
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0)
        give_up("connection");
    return fd;
}

static void open_world(struct compare_rank *self, int argc, char **argv)
{
    struct addrinfo *place = meeting_place();

    (void)argc;
    (void)argv;
    self->rank = number_of("PK_RANK");
    self->size = number_of("PK_SIZE");
    wire = meet(place, self->rank);
    freeaddrinfo(place);
    /* SPLICE_F_NONBLOCK speaks of the pipe alone: two that splice would wait for one another */
    if (fcntl(wire, F_SETFL, O_NONBLOCK) != 0)
        give_up("fcntl");
    splices = strcmp(self->variant, "splice") == 0;
    frames = strcmp(self->variant, "frames") == 0;
    if (pipe2(pipes, O_CLOEXEC | O_NONBLOCK) != 0)
        give_up("pipe2");
    (void)fcntl(pipes[1], F_SETPIPE_SZ, PIPE_BYTES);
    (void)signal(SIGPIPE, SIG_IGN);
    snprintf(self->settings, sizeof self->settings, "bare %s and recv on one connection, polled%s", splices ? "splice" : "send",
             frames ? "; short messages with heads, and kept" : "");
}

static void close_world(struct compare_rank *self)
{
    (void)self;
    close(wire);
}

/* What is written and read, a stream each way. Of the stream in, the first `summed` bytes are added to own elements. */
struct traffic {
    const char *out; /* the first bytes of the stream out; behind them those at `then` */
    size_t first;
    const char *then;
    size_t total_out, may_out; /* bytes [0, may_out) are there already */
    size_t total_in, summed;
    const float *own;    /* summed with what comes, into `sums` */
    float *sums, *again; /* again: NULL, or written as well */
    char *plain;         /* where the rest goes */
    int keeps;           /* a copy of what went out, once it has */
};

static ssize_t send_spliced(const char *at, size_t bytes)
{
    struct iovec part = { (char *)(uintptr_t)at, bytes };

    if (in_pipe == 0) {
        ssize_t n = vmsplice(pipes[1], &part, 1, SPLICE_F_NONBLOCK);

        if (n <= 0)
            return n;
        in_pipe = (size_t)n;
    }
    return splice(pipes[0], NULL, wire, NULL, in_pipe, SPLICE_F_NONBLOCK | SPLICE_F_MOVE);
}

static void write_some(const struct traffic *t, size_t *out)
{
    const char *at = *out < t->first ? t->out + *out : t->then + (*out - t->first);
    size_t end = *out < t->first && t->may_out > t->first ? t->first : t->may_out, left = end - *out;
    ssize_t n;

    if (left == 0)
        return;
    if (in_pipe > 0 || (splices && left >= SPLICE_MIN)) {
        n = send_spliced(at, left);
        in_pipe -= n > 0 ? (size_t)n : 0;
    } else {
        n = send(wire, at, left < COPY_MAX ? left : COPY_MAX, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
    if (n < 0 && errno != EINTR && errno != EAGAIN)
        give_up("send");
    *out += n > 0 ? (size_t)n : 0;
}

/* A piece that fits into the last cache, and is summed up while it is there; shorter ones take more system calls, and longer. */
static ssize_t read_and_add(struct traffic *t, size_t in)
{
    static float piece[PIECE / sizeof(float)];
    size_t have = in % sizeof(float), left = t->summed - in, most = sizeof piece - have;
    ssize_t n = recv(wire, (char *)piece + have, left < most ? left : most, MSG_DONTWAIT);
    size_t at = in / sizeof(float), count;

    if (n <= 0)
        return n;
    count = (have + (size_t)n) / sizeof(float);
    if (t->again != NULL)
        add_into_two(t->sums + at, t->again + at, t->own + at, piece, count);
    else
        add(t->sums + at, t->own + at, piece, count);
    memmove(piece, piece + count, (have + (size_t)n) % sizeof(float)); /* a part of an element */
    return n;
}

static void read_some(struct traffic *t, size_t *in)
{
    ssize_t n;

    if (*in == t->total_in)
        return;
    n = *in < t->summed ? read_and_add(t, *in) : recv(wire, t->plain + (*in - t->summed), t->total_in - *in, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
        give_up("recv");
    *in += n > 0 ? (size_t)n : 0;
}

static void keep(const char *data, size_t bytes)
{
    static char kept[KEPT_BYTES];
    static size_t at;

    if (at + bytes > sizeof kept)
        at = 0;
    memcpy(kept + at, data, bytes);
    __asm__ volatile("" : : "r"(kept) : "memory"); /* nobody reads it here */
    at += bytes;
}

static void move_all(int sends, char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t n = sends ? send(wire, bytes, count, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(wire, bytes, count, MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            give_up("acknowledgement");
        bytes += n > 0 ? n : 0;
        count -= n > 0 ? (size_t)n : 0;
    }
}

/* All that came has been read: say so, and hear it of what went. In a cache line: behind fewer bytes the kernel's next copies take up to 1.6 times as long. */
static void acknowledge(void)
{
    static char line[64];

    move_all(1, line, sizeof line);
    move_all(0, line, sizeof line);
}

struct head {
    uint64_t bytes, number, unused[2];
};

static size_t framed(size_t bytes)
{
    return (sizeof(struct head) + bytes + LINE - 1) / LINE * LINE;
}

static void send_framed(const char *data, size_t bytes)
{
    static _Alignas(4096) char ring[KEPT_BYTES];
    static struct head head;
    static size_t at;
    size_t whole = framed(bytes);

    if (at + whole > sizeof ring)
        at = 0;
    head.bytes = bytes;
    head.number++;
    memset(ring + at + whole - LINE, 0, LINE);
    memcpy(ring + at, &head, sizeof head);
    memcpy(ring + at + sizeof head, data, bytes);
    move_all(1, ring + at, whole);
    at += whole;
}

static void recv_framed(char *data, size_t bytes)
{
    static _Alignas(4096) char in[sizeof(struct head) + FRAMED_MAX];
    static uint64_t number;
    struct head head;

    move_all(0, in, framed(bytes));
    memcpy(&head, in, sizeof head);
    if (head.bytes != bytes || head.number != ++number)
        give_up("another message");
    memcpy(data, in + sizeof head, bytes);
}

static void run_framed(struct compare_rank *self, size_t bytes)
{
    if (self->rank == 0)
        send_framed(self->send, bytes);
    recv_framed(self->recv, bytes);
    if (self->rank == 1)
        send_framed(self->send, bytes);
}

static int is_kept(size_t bytes)
{
    return splices ? bytes < SPLICE_MIN : bytes <= KEPT_MAX;
}

static void carry(struct traffic t)
{
    size_t out = 0, in = 0;

    while (out < t.total_out || in < t.total_in) {
        if (t.may_out < t.total_out) /* what has been summed may go */
            t.may_out = t.first + (in < t.summed ? in - in % sizeof(float) : t.summed);
        write_some(&t, &out);
        if (t.keeps && out == t.total_out) {
            keep(t.out, t.total_out);
            t.keeps = 0;
        }
        read_some(&t, &in);
    }
}

static float *next_place(void)
{
    static _Alignas(4096) float places[PLACES][TWICE_MAX / sizeof(float)];
    static unsigned place;

    return places[place++ % PLACES];
}

/* Each way go as many bytes as the buffer has, the least that there can be. Short: all of one's own, in one hop. Long: half of them, and half of the
 * sum, so that each element is summed once. */
static void allreduce(struct compare_rank *self, size_t count)
{
    float *send = (float *)(void *)self->send, *recv = (float *)(void *)self->recv;
    size_t bytes = count * sizeof(float), half = count / 2, mine = self->rank == 0 ? half : count - half;
    size_t my_first = self->rank == 0 ? 0 : half, their_first = self->rank == 0 ? half : 0;
    float *again = bytes > ONE_HOP_MAX && mine * sizeof(float) <= TWICE_MAX ? next_place() : NULL;

    if (bytes <= ONE_HOP_MAX)
        carry((struct traffic){ .out = self->send,
                                .first = bytes,
                                .total_out = bytes,
                                .may_out = bytes,
                                .total_in = bytes,
                                .summed = bytes,
                                .own = send,
                                .sums = recv,
                                .keeps = is_kept(bytes) });
    else
        carry((struct traffic){ .out = (char *)(send + their_first),
                                .first = bytes - mine * sizeof(float),
                                .then = (char *)(again != NULL ? again : recv + my_first),
                                .total_out = bytes,
                                .may_out = bytes - mine * sizeof(float),
                                .total_in = bytes,
                                .summed = mine * sizeof(float),
                                .own = send + my_first,
                                .sums = recv + my_first,
                                .again = again,
                                .plain = (char *)(recv + their_first) });
    if (!is_kept(bytes) && again == NULL)
        acknowledge();
}

static void run(struct compare_rank *self, const struct compare_work *work)
{
    size_t bytes = work->count * sizeof(float);
    struct traffic out = { .out = self->send, .first = bytes, .total_out = bytes, .may_out = bytes };
    struct traffic in = { .total_in = bytes, .plain = self->recv };

    if (work->op == COMPARE_ALLREDUCE) {
        allreduce(self, work->count);
        return;
    }
    if (frames && bytes <= FRAMED_MAX) {
        run_framed(self, bytes);
        return;
    }
    if (self->rank == 0)
        carry(out);
    carry(in);
    if (self->rank == 1)
        carry(out);
}

int main(int argc, char **argv)
{
    static const struct compare_library library = {
        .operations = 1u << COMPARE_PINGPONG | 1u << COMPARE_ALLREDUCE,
        .open = open_world,
        .close = close_world,
        .run = run,
    };

    return compare_main(argc, argv, &library);
}
