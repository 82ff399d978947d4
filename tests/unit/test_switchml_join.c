/* SPDX-License-Identifier: Apache-2.0 */
/* Waits while a rank comes to its aggregator: what ends them, and what is said of it. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "switchml/internal.h"
#include "util/clock.h"
#include "util/netif.h"

#define LONG_NS (600 * PKI_NS_PER_S) /* no wait here ends by itself */

static atomic_int hangs;

/* A resolver that does not answer. */
int slow_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints,
                     struct addrinfo **found) __asm__("getaddrinfo");
int slow_getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **found)
{
    int (*libcs)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
    void *symbol = dlsym(RTLD_NEXT, "getaddrinfo");

    memcpy(&libcs, &symbol, sizeof libcs);
    if ((hints->ai_flags & AI_NUMERICHOST) != 0)
        return libcs(host, port, hints, found);
    while (atomic_load(&hangs))
        usleep(1000);
    return EAI_NONAME;
}

static void expect(const char *where, struct pki_wait wait, pk_result_t wanted, const char *text)
{
    const struct pki_switchml_join join = { .where = where, .rank = 0, .size = 2, .wait = wait };
    pk_error_info_t info = { .struct_size = sizeof info };
    struct pki_switchml *s;
    pk_result_t result = pki_switchml_open(&join, &s);

    cr_assert_eq(result, wanted, "%d, not %d", result, wanted);
    cr_assert(pk_last_error(&info) == PK_OK && strstr(info.text, text) != NULL, "%s", info.text);
}

static int listener(int backlog, struct sockaddr_storage *address, char where[32])
{
    struct sockaddr_in v4 = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof v4;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    cr_assert(fd >= 0 && bind(fd, (struct sockaddr *)&v4, sizeof v4) == 0 && listen(fd, backlog) == 0);
    cr_assert_eq(getsockname(fd, (struct sockaddr *)&v4, &length), 0);
    memset(address, 0, sizeof *address);
    memcpy(address, &v4, sizeof v4);
    snprintf(where, 32, "127.0.0.1:%u", ntohs(v4.sin_port));
    return fd;
}

static pk_result_t news(void *arg)
{
    (void)arg;
    return pki_fail(PK_ERR_ABORTED, NULL, "rank 3 has given up");
}

static pk_result_t news_of_peer(void *arg)
{
    (void)arg;
    return pki_fail(PK_ERR_PEER, NULL, "rank 4 has died");
}

Test(switchml_join, while_its_name_is_looked_up)
{
    struct pki_call_off cancel = { .state = PKI_CALLED_OFF };
    const uint64_t now = pki_now_ns();

    atomic_store(&hangs, 1);
    expect("node1:5", (struct pki_wait){ .deadline_ns = now + LONG_NS, .cancel = &cancel }, PK_ERR_ABORTED, "init was aborted");
    expect("node1:5", (struct pki_wait){ .deadline_ns = now + LONG_NS, .listen = news }, PK_ERR_ABORTED, "rank 3 has given up");
    expect("node1:5", (struct pki_wait){ .deadline_ns = now + LONG_NS, .listen = news_of_peer }, PK_ERR_PEER, "rank 4 has died");
    expect("node1:5", (struct pki_wait){ .deadline_ns = now + 20 * PKI_NS_PER_MS }, PK_ERR_TIMEOUT, "its name was not resolved");
    atomic_store(&hangs, 0);
    expect("node1:5", (struct pki_wait){ .deadline_ns = now + LONG_NS }, PK_ERR_PEER, "Name or service not known");
}

Test(switchml_join, while_nobody_answers)
{
    struct pki_call_off cancel = { .state = PKI_CALLED_OFF };
    const uint64_t now = pki_now_ns();
    struct sockaddr_storage address;
    char where[32];
    int fd = listener(16, &address, where);

    expect(where, (struct pki_wait){ .deadline_ns = now + LONG_NS, .cancel = &cancel }, PK_ERR_ABORTED, "init was aborted");
    expect(where, (struct pki_wait){ .deadline_ns = now + LONG_NS, .listen = news }, PK_ERR_ABORTED, "rank 3 has given up");
    expect(where, (struct pki_wait){ .deadline_ns = now + 20 * PKI_NS_PER_MS }, PK_ERR_TIMEOUT, "no answer before the deadline");
    close(fd);
}

static pk_result_t count_looks(void *arg)
{
    ++*(int *)arg;
    return PK_OK;
}

static void *greet(void *arg)
{
    static const unsigned char versions[] = { 1, 3, 2 };

    for (int i = 0; i < 3; i++) {
        unsigned char greeting[PKI_SWITCHML_GREETING_BYTES] = { 'P', 'K', 'S', i == 2 ? 'X' : 'W', 0, 0, 0, versions[i] };
        int fd = accept(*(int *)arg, NULL, NULL);

        cr_assert_eq(send(fd, greeting, sizeof greeting, MSG_NOSIGNAL), (ssize_t)sizeof greeting);
        (void)recv(fd, greeting, 1, 0);
        close(fd);
    }
    return NULL;
}

Test(switchml_join, aggregators_of_other_versions)
{
    const struct pki_wait wait = { .deadline_ns = pki_now_ns() + LONG_NS };
    struct sockaddr_storage address;
    pthread_t thread;
    char where[32];
    int fd = listener(16, &address, where);

    cr_assert_eq(pthread_create(&thread, NULL, greet, &fd), 0);
    expect(where, wait, PK_ERR_PEER, "speaks version 1 of its session, and this rank version 2");
    expect(where, wait, PK_ERR_PEER, "speaks version 3 of its session, and this rank version 2");
    expect(where, wait, PK_ERR_PEER, "the process there is no pickle-aggregator");
    pthread_join(thread, NULL);
    close(fd);
}

/* The first address answers nobody: its listener has as many connections as it may have. */
Test(switchml_join, one_of_several_addresses)
{
    struct sockaddr_storage addresses[2], peer;
    int looks = 0; /* one each 20 ms at most */
    const struct pki_wait wait = { .deadline_ns = pki_now_ns() + 400 * PKI_NS_PER_MS, .listen = count_looks, .arg = &looks };
    struct pki_switchml s = { .name = "aggregator x:1", .connection = -1 };
    int full, open, crowd[4];
    char where[32];
    socklen_t length = sizeof peer;

    full = listener(0, &addresses[0], where);
    open = listener(4, &addresses[1], where);
    for (int i = 0; i < 4; i++) {
        crowd[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        (void)connect(crowd[i], (struct sockaddr *)&addresses[0], sizeof(struct sockaddr_in));
    }
    cr_assert_eq(pki_switchml_connect(&s, addresses, 2, &wait), PK_OK);
    cr_assert_leq(looks, 11, "half of the time, and not all of it");
    cr_assert_eq(getpeername(s.connection, (struct sockaddr *)&peer, &length), 0);
    cr_assert_eq(pki_netif_port(&peer), pki_netif_port(&addresses[1]));
    cr_assert_eq(pki_netif_port(&s.peer), pki_netif_port(&addresses[1]));
    close(s.connection);
    cr_assert_eq(pki_switchml_connect(&s, addresses, 1, &(struct pki_wait){ .deadline_ns = pki_now_ns() }), PK_ERR_TIMEOUT);
    close(full);
    close(open);
    for (int i = 0; i < 4; i++)
        close(crowd[i]);
}
