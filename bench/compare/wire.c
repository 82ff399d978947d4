/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ping-pong over one TCP connection with no library: send, and recv until the message is there. Nothing is matched, framed, checked or
 * acknowledged, nobody else may write. What these system calls take is the kernel's; where a library comes near it there is nothing left to gain.
 */
#include "compare.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define TRIES 2000 /* of the one who connects, a millisecond apart */

static int wire = -1;

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
    snprintf(self->settings, sizeof self->settings, "bare send and recv on one connection, recv polled");
}

static void close_world(struct compare_rank *self)
{
    (void)self;
    close(wire);
}

static void put(const char *at, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = send(wire, at, bytes, MSG_NOSIGNAL);

        if (n < 0 && errno != EINTR)
            give_up("send");
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
}

static void take(char *at, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = recv(wire, at, bytes, MSG_DONTWAIT);

        if (n == 0 || (n < 0 && errno != EINTR && errno != EAGAIN))
            give_up("recv");
        at += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
}

static void run(struct compare_rank *self, const struct compare_work *work)
{
    size_t bytes = work->count * sizeof(float);

    if (self->rank == 0)
        put(self->send, bytes);
    take(self->recv, bytes);
    if (self->rank == 1)
        put(self->send, bytes);
}

int main(int argc, char **argv)
{
    static const struct compare_library library = {
        .operations = 1u << COMPARE_PINGPONG,
        .open = open_world,
        .close = close_world,
        .run = run,
    };

    return compare_main(argc, argv, &library);
}
