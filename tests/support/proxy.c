/* SPDX-License-Identifier: Apache-2.0 */
#include "proxy.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PIECE (64u << 10)
#define LOOK_MS 10

struct relay {
    int listener, near_fd, far_fd;
    int generation; /* cut when it is no longer the current one */
    struct sockaddr_in to;
    unsigned seed;
};

static struct proxy_rules rules;
static atomic_int generation, held;
static atomic_bool only_accepts;
static atomic_long left; /* bytes until all are cut; 0: none was asked for */

void proxy_rule(const struct proxy_rules *all)
{
    rules = *all;
}

void proxy_cut_all(int hold)
{
    atomic_store(&held, hold);
    atomic_fetch_add(&generation, 1);
}

void proxy_let_through(void)
{
    atomic_store(&held, 0);
}

void proxy_accept_and_close(void)
{
    atomic_store(&only_accepts, true);
}

void proxy_cut_behind(size_t bytes)
{
    atomic_store(&left, (long)bytes);
}

static void count_down(size_t bytes)
{
    long before = atomic_load(&left);

    if (before > 0 && atomic_fetch_sub(&left, (long)bytes) <= (long)bytes) {
        atomic_store(&left, 0);
        proxy_cut_all(1);
    }
}

static uint32_t next_random(unsigned *seed)
{
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 8;
}

static int real_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    return (int)syscall(SYS_connect, fd, address, bytes);
}

static bool push(int fd, const char *bytes, size_t count, unsigned *seed)
{
    while (count > 0) {
        size_t piece = next_random(seed) % 4 == 0 ? 1 + next_random(seed) % 50 : count; /* split */
        ssize_t n = send(fd, bytes, piece < count ? piece : count, MSG_NOSIGNAL);

        if (n <= 0)
            return false;
        bytes += n;
        count -= (size_t)n;
    }
    return true;
}

/* Wait for more than is there, sometimes, and hand it on in other pieces than it came. Returns the bytes; 0: it is over. */
static size_t pass(int from, int to, unsigned *seed)
{
    char bytes[PIECE];
    ssize_t n;

    if (next_random(seed) % 64 == 0)
        nanosleep(&(struct timespec){ .tv_nsec = (long)(next_random(seed) % 2000000) }, NULL);
    n = recv(from, bytes, sizeof bytes, 0);
    return n > 0 && push(to, bytes, (size_t)n, seed) ? (size_t)n : 0;
}

static void cut(int fd, unsigned *seed)
{
    const struct linger reset = { .l_onoff = 1 };

    if (next_random(seed) % 2 == 0)
        (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    close(fd);
}

static void set_nodelay(int fd)
{
    int on = 1;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

static bool is_cut(const struct relay *r, size_t passed, size_t life)
{
    return r->generation != atomic_load(&generation) || (rules.life_bytes > 0 && passed > life);
}

/* Returns whether it was cut here, not closed by one of the two. */
static bool carry(struct relay *r)
{
    size_t life = rules.life_bytes > 0 ? next_random(&r->seed) % rules.life_bytes : 0, passed = 0;

    for (;;) {
        struct pollfd p[2] = { { .fd = r->near_fd, .events = POLLIN }, { .fd = r->far_fd, .events = POLLIN } };

        (void)poll(p, 2, LOOK_MS);
        for (int i = 0; i < 2; i++)
            if (p[i].revents != 0) {
                size_t n = pass(p[i].fd, p[1 - i].fd, &r->seed);

                if (n == 0)
                    return false;
                passed += n;
                count_down(n);
            }
        if (is_cut(r, passed, life))
            return true;
    }
}

static void *relay(void *arg)
{
    struct relay *r = arg;

    r->near_fd = accept(r->listener, NULL, NULL);
    r->far_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (atomic_load(&held))
        nanosleep(&(struct timespec){ .tv_nsec = LOOK_MS * 1000000L }, NULL);
    set_nodelay(r->near_fd);
    set_nodelay(r->far_fd);
    if (!atomic_load(&only_accepts) && real_connect(r->far_fd, (struct sockaddr *)&r->to, sizeof r->to) == 0 && carry(r) &&
        rules.cut != NULL)
        atomic_fetch_add(rules.cut, 1);
    cut(r->near_fd, &r->seed);
    cut(r->far_fd, &r->seed);
    close(r->listener);
    free(r);
    return NULL;
}

static bool is_for_root(const struct sockaddr_in *to)
{
    const char *root = getenv("PK_ROOT");

    return root == NULL || atoi(strrchr(root, ':') + 1) == ntohs(to->sin_port);
}

int proxy_connect(int fd, const struct sockaddr *address, socklen_t bytes)
{
    struct sockaddr_in near_end = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t near_bytes = sizeof near_end;
    struct relay *r;
    pthread_t thread;

    if (address->sa_family != AF_INET || is_for_root((const struct sockaddr_in *)(const void *)address))
        return real_connect(fd, address, bytes);
    r = calloc(1, sizeof *r);
    if (r == NULL)
        abort();
    memcpy(&r->to, address, sizeof r->to);
    r->seed = rules.seed + (rules.made != NULL ? (unsigned)atomic_fetch_add(rules.made, 1) * 7919 : 0);
    r->generation = atomic_load(&generation);
    r->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(r->listener, (struct sockaddr *)&near_end, sizeof near_end) != 0 || listen(r->listener, 1) != 0 ||
        getsockname(r->listener, (struct sockaddr *)&near_end, &near_bytes) != 0 || pthread_create(&thread, NULL, relay, r) != 0)
        abort();
    pthread_detach(thread);
    return real_connect(fd, (struct sockaddr *)&near_end, sizeof near_end);
}
